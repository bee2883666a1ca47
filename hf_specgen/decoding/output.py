"""From finished rows to what `generate()` returns."""

from dataclasses import dataclass

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from .. import compat
from ..stats import SpecStats
from .rows import Row


@dataclass
class SpecGenerateOutput(GenerateDecoderOnlyOutput):
    """`GenerateDecoderOnlyOutput` with what speculation adds.

    Attributes:
        spec_stats: statistics of the call.
        draft_mask: bool `[rows, new tokens]`: which new tokens came from the draft (False at padding).
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
    widths: "KeyWidths",
    encoder,
    extended: bool,
) -> SpecGenerateOutput | SpecGenerateEncoderDecoderOutput:
    """The result of a call with `return_dict_in_generate`.

    Args:
        kept: hidden states and attentions of the prefill, per name a tuple over layers.
        widths: how many keys a step's attentions show.
        encoder: the encoder's outputs, or None for a decoder-only model.
        extended: False leaves out what speculation adds, for callers that take the output apart (Whisper's generate).
    """
    steps = max(len(row.new_tokens) for row in rows)
    mask = [row.from_draft + [False] * (steps - len(row.from_draft)) for row in rows]
    found = {name: _all_steps(name, first, rows, steps, widths) for name, first in kept.items()}
    if encoder is not None:
        found |= {
            f"encoder_{name}": encoder.get(name)
            for name in ("hidden_states", "attentions")
            if f"decoder_{name}" in kept
        }
    kind = SpecGenerateOutput if encoder is None else SpecGenerateEncoderDecoderOutput
    if extended:
        found |= {"spec_stats": stats, "draft_mask": torch.tensor(mask, device=sequences.device)}
    return (kind if extended else kind.__base__)(
        sequences=sequences,
        scores=_by_step([row.scores for row in rows], steps),
        logits=_by_step([row.logits for row in rows], steps),
        **found,
        **{compat.CACHE_NAME: cache},
    )


def _by_step(by_row: list[list[torch.Tensor] | None], steps: int) -> tuple[torch.Tensor, ...] | None:
    """Per step `[rows, vocabulary]`, zero where a row had ended."""
    if by_row[0] is None:
        return None
    nothing = torch.zeros_like(by_row[0][0])
    return tuple(torch.stack([kept[i] if i < len(kept) else nothing for kept in by_row]) for i in range(steps))


@dataclass
class KeyWidths:
    """How many keys plain decoding's step shows in a layer: all columns, or the last `window` of them."""

    columns: int
    windows: list[int | None]

    def at(self, layer: int, step: int) -> int:
        window = self.windows[layer]
        return self.columns + step if window is None else min(window, self.columns + step)


def _all_steps(name: str, first: tuple, rows: list[Row], steps: int, widths: KeyWidths) -> tuple:
    """Per step a tuple over layers of `[rows, …]`: the prefill's, then one token's. Zero where a row had ended, and at
    the keys of its padding."""
    found = [first]
    for step in range(1, steps):
        layers = []
        samples = next(row.steps[step - 1][name] for row in rows if len(row.steps) >= step)
        for layer, sample in enumerate(samples):
            shape = list(sample.shape)
            if name.endswith("attentions") and name != "cross_attentions":
                shape[-1] = widths.at(layer, step)
            full = sample.new_zeros(len(rows), *shape)
            for b, row in enumerate(rows):
                if len(row.steps) >= step:
                    x = row.steps[step - 1][name][layer]
                    full[b, ..., shape[-1] - x.shape[-1] :] = x
            layers.append(full)
        found.append(tuple(layers))
    return tuple(found)
