"""The search for a place for each: the draft whole on one device, the target around it, nothing spilled if possible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..checkpoints.memory import activation_bytes
from .devices import Device
from .skeleton import KV, Loaded, Skeleton, device_of

OFFLOADED = ("cpu", "disk")
"""Where a target's modules wait while there is something better to compute on."""


class SpecMemoryError(ValueError):
    """A pair does not fit. The message says how much is missing, where, and what it would be for."""

    def __init__(self, message: str, missing: int, device: Device):
        super().__init__(message)
        self.missing = missing
        """Bytes."""
        self.device = device


@dataclass(frozen=True)
class DeviceUse:
    """Bytes on one device."""

    limit: int
    target_weights: int = 0
    target_kv: int = 0
    draft_weights: int = 0
    draft_kv: int = 0
    reserve: int = 0
    """Left to activations, logits and the allocator."""

    @property
    def used(self) -> int:
        return self.target_weights + self.target_kv + self.draft_weights + self.draft_kv + self.reserve

    @property
    def free(self) -> int:
        return self.limit - self.used


class Placing:
    """One target, one draft, and the memory of the devices."""

    def __init__(self, target: Skeleton, draft: Skeleton | Loaded, memory: dict[Device, int], reserve: int):
        self.target, self.draft, self.memory, self.reserve = target, draft, memory, reserve
        self.need = draft.weights + draft.kv
        self.computing = [device for device in memory if device not in OFFLOADED] or ["cpu"]
        self.waiting = [device for device in memory if device not in self.computing]

    def arrange(self, wanted: Device | None) -> tuple[Device, dict[str, Device]]:
        """The draft's device (`wanted`, or the best) and the target's device map."""
        candidates = self.computing if wanted is None else [wanted]
        apart = []
        for device in candidates:
            found = self.whole(self.budgets(device))
            if found is None:
                continue
            if wanted is not None or self.head_device(found) == device:
                return device, found
            if (moved := self.with_head_on(device, found)) is not None:
                return device, moved
            apart.append((device, found))
        if apart:
            return apart[-1]
        if self.whole(self.budgets(None)) is not None:
            raise self.too_small(candidates, "the target fits without the draft, and shall not spill because of it")
        if (spilled := self.offloaded(candidates)) is not None:
            return spilled
        raise self.too_small(candidates, f"the target does not fit even without the draft{self.no_offloading()}")

    def budgets(self, draft_device: Device | None, more: Mapping[Device, int] | None = None) -> dict[Device, int]:
        """Per device, what is left to the target; negative where the draft does not fit. `more`: imagined memory."""
        left = {device: limit + (more or {}).get(device, 0) for device, limit in self.memory.items()}
        for device in self.computing:
            left[device] = max(0, left[device] - self.reserve)
        if draft_device is not None:
            left[draft_device] -= self.need
        return left

    def whole(self, budgets: Mapping[Device, int]) -> dict[str, Device] | None:
        """A map over the computing devices alone, or None."""
        if min(budgets.values()) < 0:
            return None
        return self.target.place_whole({device: budgets[device] for device in self.computing})

    def with_head_on(self, device: Device, found: dict[str, Device]) -> dict[str, Device] | None:
        """Where the target ends on a device before `device`, its last module, the head, may move on to the draft."""
        last = self.head_device(found)
        between = self.computing[self.computing.index(last) + 1 : self.computing.index(device)]
        closed = {last: sum(self.spread(found)[last]) - 1, **dict.fromkeys(between, 0)}
        moved = self.whole(self.budgets(device) | closed)
        return moved if moved is not None and self.head_device(moved) == device else None

    def offloaded(self, candidates: Iterable[Device]) -> tuple[Device, dict[str, Device]] | None:
        """The draft's device and the map that offload least; None if the rest of the target has no place to wait."""
        found = [(device, placed) for device in candidates if (placed := self.offloaded_beside(device)) is not None]
        return min(found, key=lambda item: self.weights_away(item[1]), default=None)

    def offloaded_beside(self, draft_device: Device) -> dict[str, Device] | None:
        """Offloaded layers compute, and keep their KV cache, on the first device: it needs room for that, which makes
        more layers wait, until it is enough."""
        counted = 0
        while self.waiting:
            budgets = self.budgets(draft_device)
            budgets[self.computing[0]] -= counted
            if min(budgets.values()) < 0:
                return None
            found = self.target.place(budgets)
            if "disk" in found.values() and "disk" not in self.memory:
                return None
            spread = self.spread(found)
            if not any(spread[device][0] for device in self.computing):
                return None  # then nothing would compute there: it is no offloading
            needed = sum(spread[device][1] for device in self.waiting)
            if needed <= counted:
                return found
            counted = needed
        return None

    def no_offloading(self) -> str:
        """Why what waits does not help."""
        waiting = " and ".join(map(str, self.waiting))
        if not self.waiting:
            return ""
        if "disk" in self.memory or sum(self.memory[device] for device in self.waiting) >= self.target.weights:
            return f", and beside {waiting} too little room computes: for the draft, the caches and the largest layer"
        return f", and {waiting} cannot take the rest"

    def spread(self, device_map: Mapping[str, Device]) -> dict[Device, tuple[int, int]]:
        """Weights and KV cache of the target's modules on each device of a map; (0, 0) for other devices."""
        found: dict[Device, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for name, size in self.target.sizes.items():
            device = device_of(name, device_map)
            weights, kv = found[device]
            found[device] = (weights, kv + size) if name.endswith(KV) else (weights + size, kv)
        return found

    def weights_away(self, device_map: Mapping[str, Device]) -> int:
        spread = self.spread(device_map)
        return sum(spread[device][0] for device in self.waiting)

    def head_device(self, device_map: Mapping[str, Device]) -> Device:
        return device_of(self.target.head, device_map)

    def uses(self, draft_device: Device, device_map: Mapping[str, Device]) -> dict[Device, DeviceUse]:
        spread, uses = self.spread(device_map), {}
        kv_away = sum(spread[device][1] for device in self.waiting)
        for device, limit in self.memory.items():
            weights, kv = spread[device]
            computes, here = device in self.computing, device == draft_device
            uses[device] = DeviceUse(
                limit=limit,
                target_weights=weights,
                target_kv=(kv if computes else 0) + (kv_away if device == self.computing[0] else 0),
                draft_weights=self.draft.weights if here else 0,
                draft_kv=self.draft.kv if here else 0,
                reserve=min(self.reserve, limit) if computes else 0,
            )
        return uses

    def notes(
        self, draft_device: Device, device_map: Mapping[str, Device], batch_size: int, length: int
    ) -> tuple[str, ...]:
        """What a person should know beside the figures."""
        notes = []
        head = self.head_device(device_map)
        if head != draft_device and head in self.computing:
            notes.append(f"The draft is on {draft_device}, the target's head on {head}: logits cross over every round.")
        if away := self.weights_away(device_map):
            notes.append(f"{readable(away)} of the target are offloaded: every forward brings them back.")
        wide = max(activation_bytes(s.facts, batch_size, length, dtype=s.dtype) for s in (self.target, self.draft))
        if wide > self.reserve:
            notes.append(
                f"A prefill of {batch_size} × {length} tokens takes about {readable(wide)} beside all this; "
                f"the reserve is {readable(self.reserve)}: raise it, or pass prefill_chunk_size= to generate()."
            )
        return tuple(notes)

    def too_small(self, candidates: list[Device], why: str) -> SpecMemoryError:
        """Missing is the least memory that would make all fit: on the device that is filled last, or on that of the
        draft if no candidate can even hold the draft."""
        at, everything = self.computing[-1], self.target.weights + self.target.kv + self.need + self.reserve
        missing = []
        for device in candidates:
            found = self.whole(self.budgets(device, {at: everything}))
            if found is not None:
                wanted = sum(self.spread(found)[at]) + self.reserve + (self.need if device == at else 0)
                missing.append(wanted - self.memory[at])
        if not missing:
            at = candidates[-1]
            missing.append(self.need + (self.reserve if at in self.computing else 0) - self.memory[at])
            why += "; the target may lack more"
        least = min(missing)
        sizes = [f"{name} {readable(x.weights)} and its KV cache {readable(x.kv)}" for name, x in self.models()]
        given = ", ".join(f"{device}: {readable(limit)}" for device, limit in self.memory.items())
        advice = "Quantize a model, lower length, batch_size or reserve, or name another draft_device"
        if "cpu" not in self.memory:
            advice += ', or give "cpu" memory to offload a part of the target to'
        return SpecMemoryError(
            f"{readable(least)} ({least} bytes) are missing on device {at}: {why}. Needed: {', '.join(sizes)}, and "
            f"a reserve of {readable(self.reserve)} per computing device. Given: {given}. {advice}.",
            least,
            at,
        )

    def models(self) -> tuple[tuple[str, Skeleton | Loaded], ...]:
        return ("target", self.target), ("draft", self.draft)


def readable(count: int) -> str:
    """Bytes as "1.23 GB" (10⁹), "1.23 MB" below 10 MB, "1.23 KB" below 10 KB."""
    for unit, name, least in ((10**9, "GB", 10**7), (10**6, "MB", 10**4)):
        if abs(count) >= least:
            return f"{count / unit:.2f} {name}"
    return f"{count / 1000:.2f} KB" if count else "0 GB"
