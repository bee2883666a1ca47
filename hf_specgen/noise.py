"""Random numbers that depend on the row's seed and on what they decide, never on when or beside whom.

A counter-based generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") with the SplitMix64
finaliser (Steele et al. 2014), in int64 torch operations, whose overflow wraps alike on every device.
"""

import functools

import torch

from .errors import SpecUnsupportedError

DRAFT, ACCEPT, NEXT, GUMBEL = range(1, 5)  # purposes: one number decides one thing


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX1 = _signed(0xBF58476D1CE4E5B9)
_MIX2 = _signed(0x94D049BB133111EB)


def _shift_xor(x: torch.Tensor, bits: int) -> torch.Tensor:
    return x ^ ((x >> bits) & ((1 << (64 - bits)) - 1))  # int64 shifts keep the sign: mask it off


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = _shift_xor(x, 30) * _MIX1
    x = _shift_xor(x, 27) * _MIX2
    return _shift_xor(x, 31)


def _absorb(key: torch.Tensor, value) -> torch.Tensor:
    return _mix((key + _GOLDEN) ^ (value * _MIX1 if isinstance(value, torch.Tensor) else torch.tensor(value) * _MIX1))


def _unit(key: torch.Tensor) -> torch.Tensor:
    """int64 -> float64 in the open interval (0, 1). 51 bits: with more, u times a sum could round to the sum itself."""
    return (((_shift_xor(key, 29) >> 13) & ((1 << 51) - 1)).double() + 0.5) * 2.0**-51


def check_generators(rows: int, generator, device: torch.device) -> None:
    """
    Args:
        generator: None (torch's global generator), a `torch.Generator`, or a list of `rows` generators or None.
        device: of the prompt; generators live there or on the CPU.

    Raises:
        SpecUnsupportedError: a list of another length, or a generator elsewhere.
    """
    many = isinstance(generator, (list, tuple))
    if many and len(generator) != rows:
        raise SpecUnsupportedError(
            f"generator= is a list of {len(generator)}, but there are {rows} rows (batch size x num_return_sequences). "
            "Pass one generator per row (None is allowed), or a single one."
        )
    for i, g in enumerate(generator if many else [generator]):
        where = f"generator[{i}]" if many else "generator"
        if g is not None and not isinstance(g, torch.Generator):
            raise SpecUnsupportedError(f"{where} is a {type(g).__name__}; pass a torch.Generator or None.")
        if g is not None and g.device.type not in ("cpu", device.type):
            raise SpecUnsupportedError(
                f"{where} lives on {g.device}, the prompt on {device}. Make it there or on the CPU."
            )


def row_seeds(rows: int, generator, do_sample: bool) -> list[int]:
    """One seed per row: the i-th of one generator's stream, or one per generator of a list.

    Args:
        generator: see `check_generators`.
        do_sample: False draws nothing: like plain greedy decoding, the call leaves every generator as it was.
    """
    if not do_sample:
        return [0] * rows

    def draw(g) -> int:
        return int(torch.randint(-(2**63), 2**63 - 1, (), generator=g, device=g.device if g is not None else "cpu"))

    if isinstance(generator, (list, tuple)):
        drawn, rank = [draw(g) for g in generator], [0] * rows
    else:
        drawn, rank = [draw(generator)] * rows, list(range(rows))
    return _absorb(torch.tensor(drawn), torch.tensor(rank)).tolist()


class Noise:
    """The noise of one round. `seeds[b]`, `starts[b]`: seed of row b, and the position of the first token it decides.

    Decisions of a block are keyed by its start as well: block verification looks at a whole block before it discards
    its end, so what a discarded draw has seen must not come back (the law would be bent).
    """

    def __init__(self, seeds: list[int], starts: list[int], device: torch.device):
        self._seeds, self._starts, self._device = seeds, starts, device

        self._uniforms: torch.Tensor | None = None

    @functools.cached_property
    def seeds(self) -> torch.Tensor:
        return torch.tensor(self._seeds, device=self._device)

    @functools.cached_property
    def starts(self) -> torch.Tensor:
        return torch.tensor(self._starts, device=self._device)

    def ahead(self, positions: torch.Tensor) -> "Noise":
        """The noise of a round that begins so many positions later, int64 `[rows]`."""
        later = Noise(self._seeds, self._starts, self._device)
        later.starts = self.starts + positions
        return later

    def uniform(self, purpose: int, offsets: int | slice) -> torch.Tensor:
        """Float64 in (0, 1), `[rows]` (or `[rows, n]` for a slice); an offset counts positions from the row's start."""
        needed = offsets.stop if isinstance(offsets, slice) else offsets + 1
        if (
            self._uniforms is None or self._uniforms.shape[2] < needed
        ):  # all of a round at once: many tiny kernels saved
            purposes = torch.tensor([[[DRAFT], [ACCEPT], [NEXT]]], device=self._device)
            steps = torch.arange(max(needed, 8), device=self._device)
            block = _absorb(self.seeds, self.starts)[:, None, None]
            self._uniforms = _unit(_absorb(_absorb(block, purposes), steps))
        return self._uniforms[:, purpose - DRAFT, offsets]

    def gumbel(self, offset: int, vocabulary: int) -> torch.Tensor:
        """Standard Gumbel noise `[rows, vocabulary]`, float32, keyed by (row seed, position, token) alone."""
        base = _absorb(_absorb(self.seeds, GUMBEL), self.starts + offset)
        tokens = torch.arange(vocabulary, device=base.device)
        return -(-_unit(_absorb(base[:, None], tokens)).log()).log().float()


def invert(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Token per row by inversion: `weights` `[rows, vocabulary]` (need not sum to one), `u` `[rows]` in (0, 1)."""
    cumulative = weights.double().cumsum(-1)
    wanted = u[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, wanted, right=True).squeeze(1).clamp_(max=weights.shape[1] - 1)
