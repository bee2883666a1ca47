"""States that a number cannot roll back: recurrent and convolutional layers.

Such a layer keeps one state per row, which has read all the row's tokens. To go back, a row returns to the last state
that was kept at or before the wanted position, and reads the tokens from there again, together with what comes next.
"""

import copy

import torch
from transformers.cache_utils import LinearAttentionCacheLayerMixin

_NAMES = ("conv_states", "recurrent_states")

State = dict[int, dict[tuple[str, int], torch.Tensor]]
"""Of one row: per layer, per kind and number of state, a tensor without batch dimension."""


def keeps_state(layer) -> bool:
    """Whether a stock cache layer holds a state (perhaps beside keys and values)."""
    return isinstance(layer, LinearAttentionCacheLayerMixin)


def state_of(layer, row: int) -> dict[tuple[str, int], torch.Tensor]:
    """The states of one row in a stock layer: views."""
    return {(name, k): x[row] for name in _NAMES for k, x in getattr(layer, name).items() if x is not None}


def with_states(template, states: list[dict[tuple[str, int], torch.Tensor]]):
    """A stock layer like `template`, with the states of these rows (copied)."""
    layer = copy.copy(template)
    for name in _NAMES:
        filled = dict(getattr(template, name))
        for k, x in filled.items():
            if x is not None:
                filled[k] = torch.stack([state[name, k] for state in states])
        setattr(layer, name, filled)
    layer.has_previous_state = dict(template.has_previous_state)
    if hasattr(layer, "keys"):  # a layer with both: its keys and values are elsewhere
        layer.keys = layer.values = None
    return layer


class RowStates:
    """The rows' states, at the positions they may have to go back to.

    Args:
        layers: stock layers after the prefill, by index: what a forward's are made like.
        states: per row, after the prefill.
        lengths: positions that each row has read then.
    """

    def __init__(self, layers: dict[int, object], states: list[State], lengths: list[int]):
        self.layers = layers
        self.kept = [[(length, state)] for length, state in zip(lengths, states, strict=True)]

    def load(self, rows: list[int]) -> dict[int, object]:
        """Stock layers for a forward of these rows, with their latest states."""
        return {i: with_states(layer, [self.kept[b][-1][1][i] for b in rows]) for i, layer in self.layers.items()}

    def save(self, rows: list[int], layers: list, ends: list[int]) -> None:
        """Keep what a forward has left in its layers: row `rows[j]` has now read `ends[j]` positions."""
        for j, (b, end) in enumerate(zip(rows, ends, strict=True)):
            self.kept[b].append((end, {i: state_of(layers[i], j) for i in self.layers}))

    def roll_back(self, row: int, length: int) -> int:
        """Go back to the last state at or before `length`; the position it is at. Older ones are let go."""
        kept = self.kept[row]
        while kept[-1][0] > length:
            kept.pop()
        del kept[:-1]
        return kept[-1][0]

    def drop(self, row: int) -> None:
        self.kept[row] = self.kept[-1]
        self.kept.pop()
