"""From finished rows to what `generate()` returns."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from .. import compat
from ..cache.stock import Layout
from ..stats import SpecStats
from .rows import Row


@dataclass
class SpecGenerateOutput(GenerateDecoderOnlyOutput):
    """`GenerateDecoderOnlyOutput` with what speculation adds.

    Attributes:
        spec_stats: statistics of the call.
        draft_mask: bool `[rows, new tokens]`: which new tokens were drafted, by the draft or from the text (False at
            padding).
    """

    spec_stats: SpecStats | None = None
    draft_mask: torch.Tensor | None = None


@dataclass
class SpecGenerateEncoderDecoderOutput(GenerateEncoderDecoderOutput):
    """`GenerateEncoderDecoderOutput` with what speculation adds; see `SpecGenerateOutput`."""

    spec_stats: SpecStats | None = None
    draft_mask: torch.Tensor | None = None


def sequences_of(input_ids: torch.Tensor, rows: list[Row], pad: int) -> torch.Tensor:
    """`[rows, columns + new tokens]`: the input as it was given, and the new tokens, padded on the right."""
    width = max(len(row.new_tokens) for row in rows)
    new = [row.new_tokens + [pad] * (width - len(row.new_tokens)) for row in rows]
    return torch.cat([input_ids, torch.tensor(new, dtype=input_ids.dtype, device=input_ids.device)], dim=1)


def as_dict(
    sequences: torch.Tensor,
    rows: list[Row],
    stats: SpecStats,
    cache,
    kept: dict,
    keys: "KeyColumns",
    encoder,
    extended: bool,
) -> SpecGenerateOutput | SpecGenerateEncoderDecoderOutput:
    """The result of a call with `return_dict_in_generate`.

    Args:
        kept: hidden states and attentions of the prefill, per name a tuple over layers.
        keys: which keys a step's attentions show.
        encoder: the encoder's outputs, or None for a decoder-only model.
        extended: False gives transformers' own class, with what speculation adds as mere attributes: for a generate of
            the model's class that takes the output apart item by item (Whisper's).
    """
    steps = max(len(row.new_tokens) for row in rows)
    mask = [row.from_draft + [False] * (steps - len(row.from_draft)) for row in rows]
    found: dict[str, Any] = {name: _all_steps(name, first, rows, steps, keys) for name, first in kept.items()}
    if encoder is not None:
        found |= {
            f"encoder_{name}": encoder.get(name)
            for name in ("hidden_states", "attentions")
            if f"decoder_{name}" in kept
        }
    kind: Any = SpecGenerateOutput if encoder is None else SpecGenerateEncoderDecoderOutput
    added = {"spec_stats": stats, "draft_mask": torch.tensor(mask, device=sequences.device)}
    out = (kind if extended else kind.__base__)(
        sequences=sequences,
        scores=_by_step([row.scores for row in rows], steps),
        logits=_by_step([row.logits for row in rows], steps),
        **{compat.CACHE_NAME: cache},
        **found,
        **(added if extended else {}),
    )
    if not extended:
        vars(out).update(added)
    return out


def _by_step(by_row: list[list[torch.Tensor] | None], steps: int) -> tuple[torch.Tensor, ...] | None:
    """Per step `[rows, vocabulary]`, zero where a row had ended."""
    rows = [kept for kept in by_row if kept is not None]  # all of them or none
    if not rows:
        return None
    nothing = torch.zeros_like(rows[0][0])
    return tuple(torch.stack([kept[i] if i < len(kept) else nothing for kept in rows]) for i in range(steps))


@dataclass
class KeyColumns:
    """Which keys plain decoding's steps show in a layer: all columns, or the last `window` of them."""

    layout: Layout
    windows: list[int | None]

    def width(self, layer: int, step: int) -> int:
        window, columns = self.windows[layer], self.layout.columns + step
        return columns if window is None else min(window, columns)

    def of_row(self, row: int, layer: int, step: int, keys: int) -> slice | torch.Tensor:
        """Where a row's last `keys` positions are among them."""
        length, before = self.layout.lengths[row] + step, self.layout.columns + step - self.width(layer, step)
        at = self.layout.columns_of(row, length - keys, length)
        return slice(at.start - before, at.stop - before) if isinstance(at, slice) else at - before


def _all_steps(name: str, first: tuple, rows: list[Row], steps: int, keys: KeyColumns) -> tuple:
    """Per step a tuple over layers of `[rows, …]`: the prefill's, then one token's. Zero where a row had ended, and at
    the keys of its padding."""
    found = [first]
    for step in range(1, steps):
        layers = []
        samples = next(row.steps[step - 1][name] for row in rows if len(row.steps) >= step)
        for layer, sample in enumerate(samples):
            shape = list(sample.shape)
            over_keys = name.endswith("attentions") and name != "cross_attentions"
            if over_keys:
                shape[-1] = keys.width(layer, step)
            full = sample.new_zeros(len(rows), *shape)
            for b, row in enumerate(rows):
                if len(row.steps) >= step:
                    x = row.steps[step - 1][name][layer]
                    where = keys.of_row(row.index, layer, step, x.shape[-1]) if over_keys else slice(None)
                    full[b, ..., where] = x
            layers.append(full)
        found.append(tuple(layers))
    return tuple(found)
