"""A smaller language model drafts: one token per forward, on its own ragged cache."""

from collections.abc import Sequence

import torch

from .. import compat
from ..cache import probe
from ..cache.beside import Beside, merged_cross
from ..cache.reader import Reader, device_of, groups_of, padded, read_prompt
from ..cache.stock import Layout
from ..errors import SpecNumericsError
from ..processors import on_draft, trials_for_draft
from ..session import Kept, SpecSession, resume, version_of
from ..verifiers import Proposal
from ..verifiers.base import Alternatives, ChoosingVerifier
from .base import Drafter
from .encoder import Source, encoder_inputs
from .reading import Reading, SameIds
from .trimmed import Trimmed

CERTAIN = 0.95
"""A token that is as probable as this needs no alternative."""
ALTERNATIVES = 2
"""To one token, at most. Of the tokens that Qwen2.5-Coder-0.5B predicts wrongly, half are its second choice and a fifth
its third."""


class ModelDrafter(Drafter):
    """Drafts with a causal language model.

    Args:
        model: the draft.
        threshold: `assistant_confidence_threshold`, or None.
        eos: ids after which drafting ends for the round (the row goes on: the target decides).
        source: what the target's encoder read, if it has one.
        never: ids that are never drafted.
        reading: what the target's tokens are to the draft; None: the same ids.
        trimmed: the part of its vocabulary that it drafts from; None: all of it.
    """

    trusted = True
    drawn = False  # whether the last round's tokens were, rather than chosen

    def __init__(
        self,
        model,
        threshold: float | None,
        eos: list[int],
        device: torch.device,
        source: Source | None = None,
        never: Sequence[int] = (),
        reading: Reading | None = None,
        trimmed: Trimmed | None = None,
    ):
        self.model, self.source = model, source
        self.reading = reading or SameIds()
        self.trimmed = trimmed
        self.network = model if trimmed is None else trimmed.begin([])  # what computes in the draft's place
        self.never = torch.tensor(sorted(never), dtype=torch.long, device=device)
        self.threshold = threshold or None
        self.device = device_of(model, device)
        self.eos = torch.tensor(eos, dtype=torch.long, device=device)
        self.known_ids = getattr(model.get_input_embeddings(), "num_embeddings", compat.text_config(model).vocab_size)
        self.vocabulary = self.known_ids
        self.context = compat.context_length(model)
        self.alone = getattr(model, "_device_mesh", None) is None  # ranks that share it must run the same forwards
        self.reader: Reader | None = None
        self.held: list[list[int]] = []  # per row: the ids its cache holds
        self.indices: list[int] = []  # per row: its place in the batch
        self.prefills = 0
        self.kept: Kept | None = None  # from the last call of a session

    @property
    def forwards(self) -> int:
        return self.reader.forwards + self.prefills if self.reader is not None else 0

    @property
    def stops_inside(self):
        return self.alone and self.device.type == "cpu"  # elsewhere each question would make the host wait

    def room(self, row) -> int:
        """Every token fed back needs a position in the draft's table."""
        return int(max(0, min(self.context - len(self.reading.text(row)), row.limit - row.length)))

    def begin(self, rows, vocabulary=None) -> None:
        """Read the rows' texts; rows beyond the draft's context stay unread.

        Ids that only one of the two models has are never proposed.
        """
        self.vocabulary = vocabulary or self.vocabulary
        fits = [self.room(row) > 0 for row in rows]
        if not any(fits):
            return
        texts = [list(self.reading.text(row)) for row in rows]
        texts = [text if ok else text[:1] for ok, text in zip(fits, texts, strict=True)]
        self.indices = [row.index for row in rows]
        if self.trimmed is not None:  # prompts alone, whenever drafting begins: a row is alone
            self.network = self.trimmed.begin([self.reading.own(row.tokens[: row.prompt_length]) for row in rows])
        if self.kept is not None:
            self.reader = resume(self.kept, self.indices, texts, 256, self.device)
            self.held = [text[:n] for text, n in zip(texts, self.reader.lengths, strict=True)]
        else:
            self._read_prompts(texts)
        self.reader.model = self.network
        if self.trimmed is not None:
            self.reader.uncompiled = "draft_vocab_size gives it another output layer in each call"
        self.held = [held if ok else [] for ok, held in zip(fits, self.held, strict=True)]
        self.reader.lengths[:] = map(len, self.held)
        if self.keep is not None:
            self.keep.windows = self.reader.cache.windows

    def keep_in(self, session: SpecSession) -> None:
        """Go on from what the session holds of this draft, and collect for it what rows hold when they leave."""
        if self.source is None and not compat.keeps_state(self.model):
            self.kept = session.kept("draft", self.model)
            self.keep = Kept(self.model, version_of(self.model), [])

    def _read_prompts(self, texts: list[list[int]]) -> None:
        inputs = encoder_inputs(self.model, self.source)
        if inputs:
            everyone = Beside({}, self.source.outputs[0].shape[0])
            inputs = {name: everyone.pick(x, self.indices) for name, x in inputs.items()}
        beside = Beside(inputs, len(texts))
        groups = [list(range(len(texts)))]
        if beside or probe.padding_counts(self.model):
            groups = groups_of(list(map(len, texts)))
        self.prefills = len(groups)
        filled, first_logits = [], [None] * len(texts)
        for group in groups:
            width = max(len(texts[b]) for b in group)
            pads = torch.tensor([[width - len(texts[b])] for b in group])
            ids = torch.tensor([[0] * (width - len(texts[b])) + texts[b] for b in group], device=self.device)
            mask = (torch.arange(width) >= pads).long().to(self.device) if pads.any() else None
            logits, cache = read_prompt(self.network, self._known(ids), mask, **beside.of(group, width))
            filled.append((cache, Layout(mask, len(group), width), group))
            for b, x in zip(group, logits[:, -1], strict=True):
                first_logits[b] = x
        self.first_logits = torch.stack(first_logits)
        beside.cross = merged_cross([cache for cache, _, _ in filled], groups)
        self.reader = Reader.from_prefill(self.model, filled, room=256, device=self.device, beside=beside or None)
        self.held = texts

    def _known(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids the draft's embedding does not have are read as its first one: only acceptance can suffer."""
        if isinstance(self.reading, SameIds) and self.known_ids >= self.vocabulary:
            return ids
        return ids.masked_fill(ids >= self.known_ids, 0)

    def propose(self, rows, widths, verifier, noise):
        widths, home = list(widths), rows[0].ids.device
        width = max(widths)
        if not width:
            return Proposal.empty(len(rows), home)
        self.reader.cache.reserve(width + 1)
        if self.trimmed is not None:
            self.reader.model = self.network = self.trimmed.now(rows, self.reader.order)
        trials = trials_for_draft(rows)
        tokens, q, sure, self.peaks, self.others = [], [], [], [], [[] for _ in rows]
        logits = self._read_unread(rows, widths)
        for step in range(width):
            if step == max(widths):
                break
            if step:
                fed = self._known(self.reading.fed(tokens[-1])[:, None].to(self.device))
                logits = self.reader.read(fed, [int(step < w) for w in widths], keep=1)[:, 0]
            if trials is not None:
                trials = [trial if step < w else None for trial, w in zip(trials, widths, strict=True)]
            scores = on_draft(rows, trials, self._of_target(logits, home), step)
            self.peaks.append(scores.amax(-1))
            # Whether to go on is decided by the distribution, before anything is drawn from it.
            sure.append(self.peaks[-1] > float("-inf"))
            if self.threshold is not None:
                sure[-1] &= scores.softmax(-1).amax(-1) >= self.threshold
                if self.alone and home.type == "cpu" and not torch.stack(sure).all(0).any():
                    break
            chosen, distribution = verifier.draw(scores, noise, step)
            tokens.append(chosen)
            q.append(distribution)
            if self.rule is not None:
                tops = (self.peaks[-1] - scores.logsumexp(-1)).exp().tolist()
                if self.alternatives and min(tops) < CERTAIN:
                    self._keep_alternatives(rows, widths, step, scores, tops, chosen, verifier, noise)
                self._stop_where_told(rows, widths, step, tops)
            if trials is not None:
                self._extend(rows, trials, step, chosen, sure[-1])
        if not tokens:  # nothing will be settled
            self._refuse_flawed(rows)
            return Proposal.empty(len(rows), home)
        drafted = torch.stack(tokens, 1)
        counts = torch.tensor(widths, device=home).clamp(max=len(tokens))
        counts = torch.minimum(counts, self._ends(drafted, sure))
        self.drawn = q[0] is not None
        return Proposal(drafted, counts, None if q[0] is None else torch.stack(q, 1), self._alternatives(home))

    def _extend(self, rows, trials: list[list | None], step: int, chosen: torch.Tensor, sure: torch.Tensor) -> None:
        """Write what was drafted behind the rows' texts, for their processors. A draft that has ended asks strict ones
        no more: they may know nothing of a text behind its end."""
        open_ = [b for b, trial in enumerate(trials) if trial is not None]
        for b in open_:
            rows[b].ids[rows[b].length + step] = chosen[b]
        if any(rows[b].processors.strict for b in open_):
            ended = (torch.isin(chosen, self.eos) | ~sure).tolist()
            for b in open_:
                trials[b] = None if ended[b] else trials[b]

    def _keep_alternatives(
        self, rows, widths: list[int], step: int, scores, tops: list[float], chosen, verifier: ChoosingVerifier, noise
    ) -> None:
        """Keep the draft's next choices where they are worth a place in the target's forward. One that ends the text
        never is: nothing follows it."""
        others = verifier.others(scores, noise, step, chosen, ALTERNATIVES)
        shares = (scores.gather(1, others) - scores.logsumexp(-1, keepdim=True)).exp()
        ranked = zip(others.T.tolist(), shares.masked_fill(torch.isin(others, self.eos), 0.0).T.tolist(), strict=True)
        open_ = [b for b, width in enumerate(widths) if width > step]
        for tokens, weights in ranked:
            asked = [rows[b] for b in open_], step, [tops[b] for b in open_], [weights[b] for b in open_]
            wanted = self.rule.alternative_pays(*asked)
            for b, pays in zip(open_, wanted, strict=True):
                if pays and weights[b]:
                    self.others[b].append((tokens[b], step))

    def _alternatives(self, home: torch.device) -> Alternatives | None:
        most = max(map(len, self.others))
        if not most:
            return None
        filled = [found + [(0, -1)] * (most - len(found)) for found in self.others]
        tokens, places = torch.tensor(filled, device=home).unbind(-1)
        return Alternatives(tokens, places)

    def _stop_where_told(self, rows, widths: list[int], step: int, tops: list[float]) -> None:
        """Shorten `widths` to what is drafted where a further token is not worth its cost. What was drawn stays."""
        open_ = [b for b, width in enumerate(widths) if width > step]
        on = self.rule.goes_on([rows[b] for b in open_], step, [tops[b] for b in open_])
        for b, more in zip(open_, on, strict=True):
            if not more:
                widths[b] = step + 1

    def _ends(self, drafted: torch.Tensor, sure: list[torch.Tensor]) -> torch.Tensor:
        """How many tokens of each row `[rows]` count: up to and with an EOS, and before a doubtful distribution."""
        goes_on = ~torch.isin(drafted, self.eos)
        length = goes_on.long().cumprod(-1).sum(-1) + 1
        return torch.minimum(length, torch.stack(sure, 1).long().cumprod(-1).sum(-1))

    def _read_unread(self, rows, widths) -> torch.Tensor:
        """Catch up with what is committed but not read; logits `[rows, vocabulary]` after each row's last token.

        Rows with less to catch up with read some of it again, so that all end at the right edge: the head, a quarter
        of a small draft's cost, then runs on one position per row.
        """
        texts = [self.reading.text(row) if w else [] for row, w in zip(rows, widths, strict=True)]
        if self.reader.cache.states is not None:
            unread = [text[n:] for text, n in zip(texts, self.reader.lengths, strict=True)]
            if any(map(len, unread)):
                for held, text in zip(self.held, unread, strict=True):
                    held.extend(text)
                return self._read_texts(unread)
        behind = [len(text) - len(held) if text else 0 for text, held in zip(texts, self.held, strict=True)]
        if not any(behind):  # the first round: the prefill has read everything
            return self.first_logits
        width = max(behind)
        if width > 2 and len({n for n in behind if n}) > 1:  # all but the last token first, each row its own number
            self._read_texts([text[len(text) - n : -1] if n else [] for text, n in zip(texts, behind, strict=True)])
            width = 1
        for b, text in enumerate(texts):
            if text:
                self.reader.roll_back(b, len(text) - width)
                self.held[b].extend(text[len(self.held[b]) :])
        return self._read_texts([text[-width:] for text in texts])

    def _read_texts(self, texts: list[list[int]]) -> torch.Tensor:
        """Read each row's text, padded on the right; logits at the right edge, `[rows, vocabulary]`."""
        return self.reader.read(self._known(padded(texts, self.device)), list(map(len, texts)), keep=1)[:, 0]

    def _of_target(self, logits: torch.Tensor, home: torch.device) -> torch.Tensor:
        """The draft's logits for the target's tokens, float32 `[rows, vocabulary]`."""
        logits = logits.to(home, torch.float32)
        if self.trimmed is not None:
            logits = self.trimmed.expand(logits, self.reader.order)
        scores = self.reading.scores(logits, self.vocabulary)
        if len(self.never):
            scores = scores.index_fill(1, self.never[self.never < scores.shape[1]], float("-inf"))
        return scores

    def settle(self, rows, scores, accepted):
        """Keep of the cache what agrees with the text: compared, never counted."""
        if self.reader is None:
            return
        self._refuse_flawed(rows)
        for b, row in enumerate(rows):
            fed = self._fed(row)
            text, known = self.reading.text(row), len(self.held[b])
            for token in fed[: self.reader.lengths[b] - known]:
                if known + 1 >= len(text) or text[known] != token:  # the last is read again: its logits are wanted
                    break
                self.held[b].append(token)
                known += 1
            self.reader.roll_back(b, known)
            del self.held[b][self.reader.lengths[b] :]

    def _fed(self, row) -> list[int]:
        """What of the last proposal the draft may have read, in its own ids."""
        return self.reading.own(row.last_drafted)

    def _refuse_flawed(self, rows) -> None:
        peaks = torch.stack(self.peaks)
        wrong = peaks.isnan() | (peaks == float("inf")) if self.drawn else peaks.isnan()  # no law has infinite logits
        if wrong.any():
            b = int(wrong.any(0).nonzero()[0, 0])
            row, kind = rows[b], "NaN" if peaks[:, b].isnan().any() else "infinite"
            raise SpecNumericsError(
                f"The draft returned {kind} logits for row {row.index} near position {row.length}. "
                "Check its dtype (float16 overflows; try bfloat16) and weights, or use another draft."
            )

    def drop(self, row):
        if self.reader is not None:
            if self.keep is not None and self.held[row]:
                self.keep.take(self.reader.cache, row, self.indices[row], self.held[row])
            self.indices[row] = self.indices[-1]
            self.indices.pop()
            self.reader.drop(row)
            self.held[row] = self.held[-1]
            self.held.pop()
