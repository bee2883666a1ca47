"""The interface of a source of candidates."""

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from transformers import LogitsProcessorList
from transformers.generation.candidate_generator import CandidateGenerator

from ..lengths.base import Length
from ..lengths.offer import Offer
from ..noise import Noise, row_seeds
from ..processors import RowProcessors
from ..session import Kept, SpecSession
from ..verifiers import Proposal, Verifier, verifier_for


@dataclass
class LoneRow:
    """What a drafter needs to know of a row, for a row that no decoding loop keeps."""

    ids: torch.Tensor
    tokens: list[int]
    limit: int
    processors: RowProcessors
    index: int = 0
    prompt_length: int = 0
    last_drafted: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.tokens)


class Drafter(CandidateGenerator):
    """Proposes tokens for several rows at once.

    A row has `tokens` (its text, a list), `length`, `ids` (the text as a tensor, with room behind it), `limit` (its
    greatest length), `processors` and, in `settle`, `last_drafted` (what was proposed for it). Row order is the
    decoding loop's; `drop` follows it when a row leaves.

    Also a transformers `CandidateGenerator` for one row, drafting `num_assistant_tokens` greedily, or by sampling if
    `do_sample`.
    """

    forwards: int = 0
    num_assistant_tokens: int = 5
    do_sample: bool = False
    rule: Length | None = None  # asked between tokens
    alternatives: bool = False  # whether it is asked about those too
    keep: Kept | None = None
    model: torch.nn.Module | None = None
    network: torch.nn.Module | None = None  # what computes in its place
    trusted: bool = False  # its proposals need no check
    _lone: LoneRow | None = None

    @property
    def stops_inside(self) -> bool:
        """Whether `propose` can ask between its tokens (see `ask`)."""
        return False

    def ask(self, rule: Length, alternatives: bool) -> None:
        """From now on, ask the rule between tokens whether another is worth it (`goes_on`), and with `alternatives`
        which the target should read beside them (`alternative_pays`). Only said to drafters that can."""
        self.rule, self.alternatives = rule, alternatives

    def begin(self, rows: list, vocabulary: int | None = None) -> None:
        """Read the texts. Called once, before the first round in which an offer that costs was chosen, with the rows
        that have not ended.

        `vocabulary`: how many logits the target has.
        """

    def keep_in(self, session: SpecSession) -> None:
        """Go on from what the session holds, and collect in `keep` what it is to hold."""

    def offers(self, rows: list) -> list[list[Offer]]:
        """What could be drafted for each row in the coming round."""
        return [[Offer("draft", room)] if (room := self.room(row)) > 0 else [] for row in rows]

    def choose(self, offers: list[Offer | None]) -> None:
        """Which of its offers was chosen for each row: said before `propose`."""

    def room(self, row) -> int:
        """How many more tokens of this row the drafter has a context for; at 0 the row goes on without drafts."""
        return row.limit - row.length

    @abstractmethod
    def propose(self, rows: list, widths: list[int], verifier: Verifier, noise: Noise) -> Proposal | None:
        """Draft up to `widths[b]` tokens for each row (fewer where the draft stops early).

        Ids must be the target's; tensors on the device of the rows' `ids`. None proposes nothing.

        Everything drawn must be proposed: to drop a token because of its own value bends the law.
        """

    def settle(self, rows: list, scores: torch.Tensor, accepted: list[int]) -> None:
        """The rows' texts have been extended; `scores` and `accepted` are what the target made of the proposal."""

    def drop(self, row: int) -> None:
        """A row has left; the last one has taken its place."""

    def get_candidates(self, input_ids: torch.LongTensor, **kwargs) -> tuple[torch.LongTensor, torch.Tensor | None]:
        """Stock assisted decoding's question, for one row.

        Args:
            input_ids: `[1, length]`, the whole text; longer than at the last call.

        Returns:
            `[1, length + n]`, and log q `[1, n, vocabulary]` (None for tokens that were chosen, not drawn).
        """
        row, tokens = self._lone, input_ids[0].tolist()
        room = torch.cat([input_ids[0], input_ids.new_zeros(self.num_assistant_tokens + 1)])
        if row is None:
            row = self._lone = LoneRow(room, tokens, len(room), RowProcessors(LogitsProcessorList()))
            self.begin([row])
        else:
            row.ids, row.tokens, row.limit = room, tokens, len(room)
        seeds = row_seeds(1, None, self.do_sample)
        noise = Noise(seeds, [row.length], input_ids.device)
        width = min(self.num_assistant_tokens, self.room(row))
        self.choose([next(iter(self.offers([row])[0]), None)])
        proposal = self.propose([row], [width], verifier_for("rejection", self.do_sample), noise)
        proposal = proposal or Proposal.empty(1, input_ids.device)
        drafted = proposal.tokens[:, : int(proposal.counts[0])]
        row.last_drafted = drafted[0].tolist()
        q = None if proposal.q is None else proposal.q[:, : drafted.shape[1]].log()
        return torch.cat([input_ids, drafted], dim=1), q

    def update_candidate_strategy(self, input_ids: torch.LongTensor, scores: torch.Tensor, num_matches: int) -> None:
        """Stock assisted decoding's answer: `input_ids` `[1, length]` is the text now."""
        if self._lone is not None:
            self._lone.tokens = input_ids[0].tolist()
            self.settle([self._lone], scores, [num_matches])
