"""One measured call: the line of a bench's JSON Lines file that everything else (table, plots, cost) is made from."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Cell:
    """What was run. Two records with equal cells differ by their repetition only.

    Attributes:
        contender: who decoded: "plain", "compiled", "stock", "stock-k4", "ours", "ours-k4", "draft", "lookup", a peer.
        task, prompt: name of the task, index of the (first) prompt in it.
        temperature: 0 is greedy.
        batch: rows decoded together.
        context: tokens the prompt was filled up to, 0: as it is.
        k: constant number of drafted tokens, None where the contender chooses.
        strategy: acceptance rule, None where there is none to choose.
    """

    contender: str
    task: str
    prompt: int
    temperature: float = 0.0
    batch: int = 1
    context: int = 0
    k: int | None = None
    strategy: str | None = None


@dataclass(frozen=True)
class Record:
    """One call. Seconds; bytes; counts are sums over the rows. None: not measured.

    Attributes:
        repeat: which interleaved repetition.
        prompt_tokens, new_tokens: read and emitted.
        seconds: the whole call.
        first_token_seconds: until the first new token was there (time to first token).
        decode_seconds: after both models' prefills (stock: extrapolated from the rate after its first hand-over).
        draft_seconds, verify_seconds, rest_seconds: parts of `decode_seconds`.
        rounds, drafted, accepted: as `SpecStats` defines them.
        by_position: conditional acceptance by position.
        sources: drafted and accepted tokens by where they came from: {"draft": [drafted, accepted], …}.
        ideal_seconds: what the two models' bare forwards of this call would have taken, prefills included.
        peak_bytes: largest memory in use.
        same_ids: whether the ids equal plain's of the same prompt; None when sampled.
        diverged_at, gap: first other token, and plain's logit gap between the two there (0: a tie).
        error: the reason, where the call failed; all figures are then None or 0.
    """

    cell: Cell
    repeat: int
    prompt_tokens: int = 0
    new_tokens: int = 0
    seconds: float | None = None
    first_token_seconds: float | None = None
    decode_seconds: float | None = None
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    rest_seconds: float | None = None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    by_position: list[float | None] | None = None
    sources: dict[str, list[int]] | None = None
    ideal_seconds: float | None = None
    peak_bytes: int | None = None
    same_ids: bool | None = None
    diverged_at: int | None = None
    gap: float | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Record:
        """Raises ValueError for anything but what `to_dict` has given: what is missing, unknown or cannot be."""
        try:
            if not isinstance(data, dict) or not isinstance(data.get("cell"), dict):
                raise ValueError(f"{data!r:.60}")
            rest = {name: value for name, value in data.items() if name != "cell"}
            return cls(Cell(**_checked(Cell, data["cell"])), **_checked(cls, rest))
        except ValueError as error:
            raise ValueError(f"This is not a record of this version's bench: {error}.") from None


LARGEST = 1e18
"""No figure of a record is larger. Of the logits' gap alone, one may be below 0."""


def _checked(cls: type, data: dict[str, Any]) -> dict[str, Any]:
    """`data`, if it gives fields of this class, each one a value that it may have."""
    hints = _hints(cls)
    for name, value in data.items():
        if name not in hints:
            raise ValueError(f"{name!r:.60} is none of its fields")
        if not _fits(value, hints[name], -LARGEST if name == "gap" else 0):
            raise ValueError(f"{name!r} is {value!r:.60}")
    for one in fields(cls):
        if one.default is MISSING and one.name not in (*data, "cell"):
            raise ValueError(f"{one.name!r} is missing")
    return data


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _fits(value: Any, hint: Any, least: float) -> bool:
    """Whether a value out of JSON is of this type, its numbers from `least` on."""
    arguments = get_args(hint)
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(one, arguments[0], least) for one in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(_fits(one, arguments[1], least) for one in value.values())
    if arguments:  # a union
        return any(_fits(value, one, least) for one in arguments)
    if hint in (int, float):
        kinds = int if hint is int else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= LARGEST
    return isinstance(value, hint)
