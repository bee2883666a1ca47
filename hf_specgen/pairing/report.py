"""check_pair: what do the two vocabularies of a target and a draft mean, id by id, before anything is decoded?

A draft cannot change the target's law, whatever its ids mean: the verifier sees to that. It can only be useless. So
what merely costs acceptance is a reason in the report, and a refusal is for pairs that cannot pay.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

from hf_specgen.errors import SpecUnsupportedError
from hf_specgen.pairing.tokenizers import Side, UnreadableTokenizerError, Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    ModelOrFolder = PreTrainedModel | str | os.PathLike[str]

Verdict = Literal["exact", "exact-with-padding", "unknown", "refused"]

SHOWN = 10
TO_CHECK = "pass tokenizer= and assistant_tokenizer=, or put the tokenizer files beside the checkpoints"
OTHER_DRAFT = (
    "Pick a draft of the target's own family, with the same tokenizer; drafts with another vocabulary come with the "
    "Pairs release."
)


@dataclass(frozen=True)
class PairReport:
    """What check_pair found. One report is shared by all who ask, so it cannot be changed.

    exact               every id means the same string to both, and both have as many logits rows
    exact-with-padding  no id means two things, but some exist on one side only: padding rows, added tokens
    unknown             a tokenizer is missing and nothing contradicts; usable, but not checked
    refused             the draft cannot pay, or is no causal LM
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    target: str
    draft: str
    target_rows: int | None
    """Rows of logits; None when a folder does not say."""
    draft_rows: int | None
    target_eos: tuple[int, ...]
    draft_eos: tuple[int, ...]
    target_tokens: int | None = None
    """Ids that the tokenizer knows and the model has a row for; None without a tokenizer."""
    draft_tokens: int | None = None
    shared: float | None = None
    """Ids that mean the same to both, as a share of the ids that either knows; None if they could not be compared."""
    differing_count: int | None = None
    differing: tuple[tuple[int, str, str], ...] = ()
    """The first ten ids that mean two things: (id, target's string, draft's string)."""

    @property
    def usable(self) -> bool:
        return self.verdict != "refused"

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts and numbers, for JSON."""
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}
        plain["differing"] = [{"id": id_, "target": ours, "draft": theirs} for id_, ours, theirs in self.differing]
        return {"usable": self.usable, **plain}

    def summary(self) -> str:
        """All but the table of differing ids."""
        lines = [
            f"target   {self.target}{_sizes(self.target_rows, self.target_tokens)}",
            f"draft    {self.draft}{_sizes(self.draft_rows, self.draft_tokens)}",
            f"verdict  {self.verdict}",
            *(f"- {reason}" for reason in self.reasons),
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        table = (f"  id {id_}: target {ours!r}, draft {theirs!r}" for id_, ours, theirs in self.differing)
        return "\n".join([self.summary(), *table])


def check_pair(
    target: ModelOrFolder,
    draft: ModelOrFolder,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    assistant_tokenizer: PreTrainedTokenizerBase | None = None,
) -> PairReport:
    """Compare two loaded models or two local folders (of which only configs and tokenizers are read).

    Without `tokenizer` / `assistant_tokenizer`, the files beside each checkpoint are used: in its folder, or in the
    local hub cache. Nothing is downloaded. The verdict is kept under what it depends on, so a second call takes
    microseconds, and a resized model, a grown tokenizer or an edited file is looked at afresh.
    """
    return _judge(Side.of(target, tokenizer), Side.of(draft, assistant_tokenizer))


def require_usable(report: PairReport) -> PairReport:
    """The report itself, or SpecUnsupportedError with its reasons and the first ids that differ."""
    if report.usable:
        return report
    message = f"{report.draft} cannot draft for {report.target}: {' '.join(report.reasons)}"
    if report.differing:
        listed = ", ".join(f"{id_} {ours!r} / {theirs!r}" for id_, ours, theirs in report.differing)
        message += f" First differing ids (target / draft): {listed}."
    raise SpecUnsupportedError(message)


@lru_cache(maxsize=64)
def _judge(target: Side, draft: Side) -> PairReport:
    report = partial(
        PairReport,
        target=target.name,
        draft=draft.name,
        target_rows=target.rows,
        draft_rows=draft.rows,
        target_eos=target.eos,
        draft_eos=draft.eos,
    )
    if wrong := tuple(side.not_a_model for side in (target, draft) if side.not_a_model):
        return report("refused", wrong)

    ours, no_ours = _read(target, "target")
    theirs, no_theirs = _read(draft, "draft")
    report = partial(report, target_tokens=_count(ours), draft_tokens=_count(theirs))
    notes = (*_row_notes(target, draft), *_eos_notes(target, draft))
    if ours is None or theirs is None:
        missing = " and ".join(filter(None, (no_ours, no_theirs)))
        if _may_be_padding(target.rows, draft.rows):
            why = f"The ids could not be compared: {missing}. To check them, {TO_CHECK}."
            return report("unknown", (why, *notes))
        rows = f"The target has {target.rows} logits rows, the draft {draft.rows}: more than padding explains"
        return report("refused", (f"{rows}, and {missing}. To compare their ids, {TO_CHECK}.",))

    common = ours.keys() & theirs.keys()
    differing = sorted(id_ for id_ in common if ours[id_] != theirs[id_])
    target_only, draft_only = sorted(ours.keys() - common), sorted(theirs.keys() - common)
    equal = len(common) - len(differing)
    report = partial(
        report,
        shared=equal / max(1, len(ours.keys() | theirs.keys())),
        differing_count=len(differing),
        differing=tuple((id_, ours[id_], theirs[id_]) for id_ in differing[:SHOWN]),
    )
    if differing or not equal:
        share = _percent(equal, len(ours.keys() | theirs.keys()))
        count = f"{len(differing)} of the {len(common)} ids known to both tokenizers mean different strings"
        return report("refused", (f"{count} ({_listed(differing)}); {share} of all ids agree. {OTHER_DRAFT}",))
    if target_only:
        notes += (f"Known only to the target: {_named(target_only, ours)}; the draft never learned them.",)
    if draft_only:
        notes += (f"Known only to the draft: {_named(draft_only, theirs)}; proposing them is in vain.",)
    exact = target.rows == draft.rows and not target_only and not draft_only
    return report("exact" if exact else "exact-with-padding", notes)


def _read(side: Side, role: str) -> tuple[Vocabulary | None, str | None]:
    """The ids the tokenizer knows and the model has a row for; or None and why there are none."""
    if side.source is None:
        return None, f"no tokenizer is known for the {role} ({side.name})"
    try:
        vocabulary = side.source.read()
    except UnreadableTokenizerError as error:
        return None, str(error)
    if side.rows is not None:  # ids past the last row cannot occur, whatever the tokenizer calls them
        vocabulary = {id_: token for id_, token in vocabulary.items() if id_ < side.rows}
    return vocabulary, None


def _count(vocabulary: Vocabulary | None) -> int | None:
    return None if vocabulary is None else len(vocabulary)


def _may_be_padding(target_rows: int | None, draft_rows: int | None) -> bool:
    """Could one vocabulary, with added tokens and padding, have both numbers of rows?

    Rows are rounded up to a multiple of 64 to 1,024, and fine-tunes add up to some hundred tokens; gaps seen within a
    family: Qwen2.5 128, Pythia 384, Phi 943. Hence 1,024, and 1 % more for large vocabularies. Toy models always pass.
    So do two families of one size: that is why the verdict is then "unknown".
    """
    if target_rows is None or draft_rows is None:
        return True
    return abs(target_rows - draft_rows) <= 1024 + max(target_rows, draft_rows) // 100


def _row_notes(target: Side, draft: Side) -> tuple[str, ...]:
    if target.rows is None or draft.rows is None or target.rows == draft.rows:
        return ()
    counts = f"The target has {target.rows} logits rows, the draft {draft.rows}"
    if target.rows > draft.rows:
        return (f"{counts}: ids from {draft.rows} on are never proposed.",)
    return (f"{counts}: ids from {target.rows} on do not exist for the target.",)


def _eos_notes(target: Side, draft: Side) -> tuple[str, ...]:
    if not target.eos or not draft.eos or set(target.eos) == set(draft.eos):
        return ()
    ids = f"target {list(target.eos)}, draft {list(draft.eos)}"
    return (f"The EOS ids differ ({ids}): the draft's only ends its own drafting for that round.",)


def _named(ids: list[int], vocabulary: Vocabulary) -> str:
    return f"{len(ids)} token{'s' if len(ids) > 1 else ''} ({_listed([f'{i} {vocabulary[i]!r}' for i in ids])})"


def _listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:SHOWN])) + (", …" if len(items) > SHOWN else "")


def _percent(part: int, whole: int) -> str:
    """Rounded down: 151,935 of 151,936 ids are not all of them."""
    return f"{math.floor(10_000 * part / max(1, whole)) / 100:.2f} %"


def _sizes(rows: int | None, tokens: int | None) -> str:
    known = [] if rows is None else [f"{rows} logits rows"]
    known += [] if tokens is None else [f"{tokens} tokens"]
    return f" ({', '.join(known)})" if known else ""
