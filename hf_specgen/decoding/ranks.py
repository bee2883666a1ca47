"""Processes that hold one model together: the first of them decides, the others do as it does.

The forwards of a tensor- or pipeline-parallel model are collective. Ranks that part, over another seed, a clock or the
last bit of a logit, feed the model different tokens, or wait for each other for ever.
"""

import torch
from torch.nn.functional import pad

from ..lengths.base import NOTHING, Choice
from ..lengths.offer import Offer
from ..verifiers import Proposal
from .rows import Row
from .stops import Stops

SHARDING = ("pp", "tp")  # the mesh's dimensions along which ranks decode the same text


class Ranks:
    """The ranks that decode this call. Without a model that is spread over several, nothing is done, at no cost.

    Args:
        mesh: `torch.distributed.DeviceMesh` of the model, or None. Only ranks that differ along `SHARDING` belong
            together: others decode texts of their own.
    """

    def __init__(self, mesh):
        self.device_type = None if mesh is None else mesh.device_type
        self.groups = []
        if mesh is not None:
            names = mesh.mesh_dim_names or ("tp",)  # transformers 5.17 names no dimension if there is only that one
            axes = [axis for axis, name in enumerate(names) if name in SHARDING and mesh.size(axis) > 1]
            self.groups = [mesh.get_group(axis) for axis in axes]
        self.first = all(group.rank() == 0 for group in self.groups)

    @classmethod
    def of(cls, *models) -> "Ranks":
        """The ranks of the first of the models that is spread over several (None is not a model)."""
        meshes = (getattr(model, "_device_mesh", None) for model in models)
        return cls(next((mesh for mesh in meshes if mesh is not None), None))

    def agree(self, x: torch.Tensor) -> torch.Tensor:
        """The first rank's `x`, of a shape and dtype that all ranks know. A new tensor, on the device of `x`."""
        if not self.groups:
            return x
        shared = x.to(self.device_type, copy=True).contiguous()
        for group in self.groups:  # along one axis after the other, it reaches every rank
            torch.distributed.broadcast(shared, group=group, group_src=0)
        return shared.to(x.device)

    def begin(self, rows: list[Row]) -> None:
        """From now on the rows have the first rank's seeds, and end when it says so."""
        if not self.groups:
            return
        seeds = self.agree(torch.tensor([row.seed for row in rows])).tolist()
        for row, seed in zip(rows, seeds, strict=True):
            row.seed = seed
            row.stops = SharedStops(row.stops, self)

    def choices(self, choices: list[Choice], offers: list[list[Offer]]) -> list[Choice]:
        """The first rank's choices among offers that are the same everywhere: it may have looked at its clock."""
        if not self.groups:
            return choices
        places = [found.index(c.offer) if c.offer in found else -1 for c, found in zip(choices, offers, strict=True)]
        agreed = self.agree(torch.tensor([places, [c.width for c in choices]])).tolist()
        return [
            Choice(found[place], width) if place >= 0 else NOTHING
            for place, width, found in zip(*agreed, offers, strict=True)
        ]

    def proposal(self, rows: list[Row], proposal: Proposal, widths: list[int]) -> tuple[Proposal, list[int]]:
        """The first rank's proposal, and how many tokens it allowed each row. A drafter may have drawn others here, or
        have given up. q stays with the first rank, whose verdict is the one that counts."""
        if not self.groups:
            return proposal, widths
        width, *widths = self.agree(torch.tensor([proposal.width, *widths])).tolist()
        tokens = pad(proposal.tokens, (0, width - proposal.width))  # or cut
        counts, tokens = self.agree(torch.cat([proposal.counts[:, None], tokens], dim=1)).split([1, width], dim=1)
        for row, allowed in zip(rows, widths, strict=True):
            row.reserve(allowed + 1)
        return Proposal(tokens, counts.squeeze(1), proposal.q if self.first else None), widths


class SharedStops:
    """A row's criteria, asked on every rank (they may keep count) and answered by the first: they may look at a clock,
    or at what only one process knows."""

    def __init__(self, stops: Stops, ranks: Ranks):
        self.stops, self.ranks = stops, ranks

    def end(self, *round_) -> tuple[int, bool]:
        kept, done = self.stops.end(*round_)
        if self.stops.built_in or self.stops.custom:  # the rest follows from the tokens
            kept, done = self.ranks.agree(torch.tensor([kept, done])).tolist()
        return kept, bool(done)
