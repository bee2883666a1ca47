"""The decoding loop: propose, score, accept, commit, learn."""

import warnings
from dataclasses import replace

import torch

from ..cache.reader import Reader
from ..cache.stock import Export
from ..drafters import Drafter
from ..errors import SpecDraftError
from ..lengths import Choice, Length
from ..lengths.base import NOTHING, Round, Seconds
from ..lengths.offer import Offer
from ..noise import Noise
from ..processors import on_target
from ..session import Kept
from ..stats import Clock, SpecStats
from ..verifiers import Proposal, Verifier
from . import alternatives, numerics
from .ranks import Ranks
from .rows import Row
from .scoring import score
from .stream import Stream


class Decoding:
    """One call in progress.

    Args:
        target: has read the prompts.
        rows: in the order of the batch.
        drafter: None decodes without a draft (every round emits one token).
        stream: shows the tokens as they come.
        ranks: the processes that decode this call.
        export, keep: collect the rows' caches as they leave, for the result and for the session; or None.
        plain_on_oom: go on without the draft when it runs out of memory.
    """

    def __init__(
        self,
        target: Reader,
        rows: list[Row],
        drafter: Drafter | None,
        verifier: Verifier,
        length: Length,
        stats: SpecStats,
        clock: Clock,
        stream: Stream,
        ranks: Ranks,
        export: Export | None = None,
        keep: Kept | None = None,
        plain_on_oom: bool = False,
    ):
        self.target, self.rows, self.drafter = target, list(rows), drafter
        self.verifier, self.length = verifier, length
        self.stats, self.clock = stats, clock
        self.stream, self.export, self.keep, self.plain_on_oom = stream, export, keep, plain_on_oom
        self.device = rows[0].ids.device
        self.ranks = ranks
        self.begun = False  # whether the drafter knows the rows
        self.choices: list[Choice] = []  # of this round
        self.drafts = 0  # forwards of the draft in this round

    def run(self, first_logits: torch.Tensor) -> None:
        """Decode until every row has ended. Round 0: the target's logits after the prompts, `[rows, vocabulary]`."""
        self.vocabulary = first_logits.shape[-1]
        self.ranks.begin(self.rows)
        self.choices = [NOTHING] * len(self.rows)
        self.commit(self.no_proposal(), first_logits[:, None], self.noise())
        while self.rows:
            noise = self.noise()
            proposal, widths = self.ranks.proposal(self.rows, *self.propose(noise))
            logits = self.score(proposal, widths)
            self.learn(self.commit(proposal, logits, noise), proposal.read.shape[1])

    def noise(self) -> Noise:
        return Noise([row.seed for row in self.rows], [row.unseen + row.length for row in self.rows], self.device)

    def no_proposal(self) -> Proposal:
        return Proposal.empty(len(self.rows), self.device)

    def begin_drafting(self) -> None:
        self.begun = True
        before = self.drafter.forwards
        with self.clock.lap("draft prefill"):
            self._guarded(lambda: self.drafter.begin(self.rows, self.vocabulary))
        self._count_drafts(before)

    def propose(self, noise: Noise) -> tuple[Proposal, list[int]]:
        """The rows' drafts for this round, and how many tokens each was allowed: no more than it can still use."""
        self.choices, self.drafts = self._choose(), 0
        if not self.begun and any(choice.costs for choice in self.choices):
            self.begin_drafting()
        if self.drafter is None:
            self.choices = [NOTHING] * len(self.rows)
        widths = [choice.width for choice in self.choices]
        if not any(widths):
            return self.no_proposal(), widths
        for row, width in zip(self.rows, widths, strict=True):
            row.reserve(width + 1)
        self.drafter.choose([offer for offer, _ in self.choices])
        before = self.drafter.forwards
        with self.clock.lap("draft"):
            proposal = self._guarded(lambda: self.drafter.propose(self.rows, widths, self.verifier, noise))
        if proposal is not None and not self.drafter.trusted:
            proposal.check(len(self.rows), self.vocabulary, type(self.drafter).__name__)
        self.drafts = self._count_drafts(before)
        self.stats.drafting_forwards += self.drafts
        for row, choice in zip(self.rows, self.choices, strict=True):
            row.stats.draft_forwards += self.drafts if choice.costs else 0
        return proposal or self.no_proposal(), widths

    def _count_drafts(self, before: int) -> int:
        """Forwards that the drafter has run since it had run `before`; added to the call's."""
        taken = self.drafter.forwards - before if self.drafter is not None else 0
        self.stats.draft_forwards += taken
        return taken

    def _choose(self) -> list[Choice]:
        if self.drafter is None:
            return [NOTHING] * len(self.rows)
        offers = [
            self._usable(row, found) for row, found in zip(self.rows, self.drafter.offers(self.rows), strict=True)
        ]
        return self.ranks.choices(self.length.choose(self.rows, offers), offers)

    def _usable(self, row: Row, offers: list[Offer]) -> list[Offer]:
        """What of the offers the row can still use."""
        room = row.limit - row.length - 1
        position = row.unseen + row.length + self.target.shift_of(row.index)
        if position <= self.target.context:  # beyond it only models without a table of positions get
            room = int(min(room, self.target.context - position))
        if self.drafter.room(row) <= 0 and row.stats.fallback_reason is None:
            row.stats.fallback_reason = f"row {row.index}: its text ({row.length} tokens) is beyond the draft's context"
            if not self.stats.fallback_reason:
                self.stats.fallback_reason = row.stats.fallback_reason
                warnings.warn(f"{row.stats.fallback_reason}; it goes on without the draft.", stacklevel=2)
        return [replace(offer, most=min(offer.most, room)) for offer in offers] if room > 0 else []

    def score(self, proposal: Proposal, widths: list[int]) -> torch.Tensor:
        """One target forward over each row's last token and draft: float32 logits `[rows, width + 1 + alternatives,
        vocabulary]`."""
        with self.clock.lap("verify" if proposal.width else "step"):
            logits = score(self.target, self.rows, proposal, widths)
        # Alternatives are written over what was rejected: never in the model's own output, which hooks may have kept.
        return logits.to(self.device, torch.float32, copy=proposal.alternatives is not None)

    def learn(self, rounds: list[Round], width: int) -> None:
        if self.drafter is None:
            return
        target = self.clock.last("verify" if width else "step")
        drafted = any(round_.choice.costs for round_ in rounds)
        draft = self.clock.last("draft") if drafted else 0.0
        # A first token of the draft comes with its prefill, without a step. Not every drafter counts its forwards.
        steps = (self.drafts if self.drafter.forwards else width) if drafted else 0
        self.length.learn(rounds, Seconds(len(rounds), width + 1, target, draft, steps))

    def commit(self, proposal: Proposal, logits: torch.Tensor, noise: Noise) -> list[Round]:
        """Judge the round; extend, stop, stream and count each row; let the finished ones go."""
        scores = on_target(self.rows, proposal, logits)
        verdict, taken = alternatives.judge(self.verifier, proposal, scores, logits, noise)
        flaw, place = numerics.first_flaw(scores, verdict.accepted, self.verifier.samples)
        figures = torch.stack([flaw, place, proposal.counts, verdict.accepted, taken, verdict.next_token], dim=1)
        outcome = self.ranks.agree(torch.cat([figures, proposal.read], dim=1))
        outcome = outcome.tolist()  # the round's one read by the host
        collected = self.target.collected or [[]] * len(self.rows)
        rounds = []
        for b, (row, (flaw, place, count, accepted, other, next_token, *read)) in enumerate(
            zip(self.rows, outcome, strict=True)
        ):
            row.last_drafted, start, kept = read[:count], row.length, read[:accepted]
            if other != alternatives.NONE:
                kept[-1] = read[proposal.width + other]
                last = row.unseen + start - 1
                self.target.cache.move(b, last + 1 + proposal.width + other, to=last + accepted)
            rounds.append(Round(row.index, self.choices[b], count, accepted, other != alternatives.NONE))
            stay = row.commit(rounds[-1], [*kept, next_token], scores[b], logits[b], collected[b])
            if flaw and place < len(stay):
                numerics.refuse(flaw, row.index, start + place)
            self.target.roll_back(b, row.unseen + row.length - 1)
            source = row.stats.sources[-1]
            for i, token in enumerate(stay):
                self.stream.token(row.index, token, source if i < accepted else None)
        if self.drafter is not None and proposal.width:
            self.drafter.settle(self.rows, scores, [round_.first_choices for round_ in rounds])
        for b in reversed(range(len(self.rows))):
            if self.rows[b].done:
                self._release(b)
        return rounds

    def _release(self, b: int) -> None:
        row = self.rows[b]
        self.stream.end_row(row.index)
        if self.export is not None:
            self.export.take(self.target.cache, b, row.index, self.target.lengths[b])
        if self.keep is not None:
            self.keep.take(self.target.cache, b, row.index, row.tokens[: self.target.lengths[b]])
        self.target.drop(b)
        if self.drafter is not None and self.begun:
            self.drafter.drop(b)
        self.rows[b] = self.rows[-1]
        self.rows.pop()

    def _guarded(self, step):
        """Run a step of the draft. Out of memory is reported as the draft's; with plain_on_oom it is given up."""
        try:
            return step()
        except torch.OutOfMemoryError as error:
            message = f"The draft ran out of memory ({error})"
            if not self.plain_on_oom:
                raise SpecDraftError(
                    f"{message}. Use a smaller or quantized draft, put it on another device, or pass "
                    'spec_fallback="plain" to go on without it.'
                ) from error
        warnings.warn(f"{message}; decoding goes on without it.", stacklevel=2)
        self.stats.fallback_reason = message
        self.drafter = None
        return None
