"""check_pair: what do the two vocabularies of a target and a draft mean, id by id, before anything is decoded?"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.gguf import SUFFIX, lone_file
from .codec import UnreadableTokenizerError
from .report import PairReport, require_usable
from .sides import CANNOT_GO_BACK, Side
from .tokenizers import ROLES, TokenizerFacts, Vocabulary
from .vocabulary import VocabularyMap, by_bytes, few_differ

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .sides import ModelOrFolder

SHOWN = 10
MAPPABLE = 0.9
"""Share of equal ids from which on the text is read token by token by both."""
OTHER_DRAFT = "Pick a draft with the target's tokenizer (hf-specgen recommend lists some)."
TO_CHECK = "pass tokenizer= and assistant_tokenizer=, or put the tokenizer files beside the checkpoints"


def check_pair(
    target: ModelOrFolder,
    draft: ModelOrFolder,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    assistant_tokenizer: PreTrainedTokenizerBase | None = None,
    target_quantization: Any = None,
    draft_quantization: Any = None,
) -> PairReport:
    """Compare two loaded models, two model folders, or two Hub ids, of which configs, tokenizers and the headers of the
    safetensors files are read, and no weights; GGUF files; or two tokenizers, by their ids alone.

    Without `tokenizer` / `assistant_tokenizer`, the files beside each checkpoint are used: in its folder, or in the
    local hub cache. For loaded models nothing is downloaded. `target_quantization` and `draft_quantization`, as in
    `load_pair`, count in the estimates of cost and memory.

    Raises:
        FileNotFoundError, CheckpointError, ValueError: a folder that cannot be checked; the message says why.
        ImportError: a GGUF file, without the package that reads it.
    """
    from .weights import add_weights

    ours, tokenizer = _opened(target, tokenizer)
    theirs, assistant_tokenizer = _opened(draft, assistant_tokenizer)
    report, _ = _judge(*_sides(ours, theirs, tokenizer, assistant_tokenizer))
    return add_weights(report, [ours, theirs], (target_quantization, draft_quantization))


def pair_up(
    target: ModelOrFolder,
    draft: ModelOrFolder,
    tokenizer: PreTrainedTokenizerBase | None = None,
    assistant_tokenizer: PreTrainedTokenizerBase | None = None,
) -> VocabularyMap | None:
    """The check that runs before every pairing: how the draft reads and writes; None where both use the same ids.

    The verdict is kept under what it depends on, so a second call takes microseconds, and a resized model, a grown
    tokenizer or an edited file is looked at afresh.

    Raises:
        SpecUnsupportedError: the pair is refused; with the reasons, and the first ids that differ.
    """
    report, vocabulary = _judge(*_sides(target, draft, tokenizer, assistant_tokenizer))
    require_usable(report)
    return vocabulary


def _opened(
    model: ModelOrFolder, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[ModelOrFolder, PreTrainedTokenizerBase | None]:
    """The model or its folder, and the tokenizer that was given, or that of a GGUF file that comes alone."""
    if not isinstance(model, (str, os.PathLike)):
        return model, tokenizer
    from ..checkpoints.hub import folder_of

    path = Path(model).expanduser()
    if path.suffix == SUFFIX and not path.is_file():
        raise FileNotFoundError(f"{path} is no file.")
    if path.exists() and (file := lone_file(path)):
        from ..quantization.gguf import meta_model

        without_weights, own = meta_model(file)
        return without_weights, tokenizer or own
    return folder_of(path.parent if path.is_file() and path.suffix == SUFFIX else model), tokenizer


def _sides(target, draft, tokenizer, assistant_tokenizer) -> tuple[Side, Side]:
    return Side.of(target, tokenizer), Side.of(draft, assistant_tokenizer)


@lru_cache(maxsize=16)
def _judge(target: Side, draft: Side) -> tuple[PairReport, VocabularyMap | None]:
    report = partial(
        PairReport,
        target=target.name,
        draft=draft.name,
        target_rows=target.rows,
        draft_rows=draft.rows,
        target_eos=target.eos,
        draft_eos=draft.eos,
        target_context=target.context,
        draft_context=draft.context,
    )
    if wrong := (*_not_models(target, draft), *_cannot_go_back(target, draft), *_encoder_only_in_draft(target, draft)):
        return report("refused", wrong), None

    ours, no_ours = _read(target, "target")
    theirs, no_theirs = _read(draft, "draft")
    notes = (*_row_notes(target, draft), *_eos_notes(target, draft), *_context_notes(target, draft))
    if ours is None or theirs is None:
        report = partial(report, target_tokens=_count(ours, target), draft_tokens=_count(theirs, draft))
        missing = " and ".join(filter(None, (no_ours, no_theirs)))
        if _may_be_padding(target.rows, draft.rows):
            why = f"The ids could not be compared: {missing}. To check them, {TO_CHECK}."
            return report("unknown", (why, *notes)), None
        rows = f"The target has {target.rows} logits rows, the draft {draft.rows}: more than padding explains"
        return report("refused", (f"{rows}, and {missing}. To compare their ids, {TO_CHECK}.",)), None

    notes += _tokenizer_notes(ours, theirs)
    a, b = _with_rows(ours.vocabulary, target), _with_rows(theirs.vocabulary, draft)
    common = a.keys() & b.keys()
    differing = sorted(id_ for id_ in common if a[id_] != b[id_])
    target_only, draft_only = sorted(a.keys() - common), sorted(b.keys() - common)
    known, equal = len(a.keys() | b.keys()), len(common) - len(differing)
    report = partial(
        report,
        target_tokens=len(a),
        draft_tokens=len(b),
        shared=equal / max(1, known),
        differing_count=len(differing),
        differing=tuple((id_, a[id_], b[id_]) for id_ in differing[:SHOWN]),
    )
    if not differing and not target_only and not draft_only:
        return report("exact" if target.rows == draft.rows else "exact-with-padding", notes), None
    if differing:
        count = f"{len(differing)} of the {len(common)} ids known to both tokenizers mean different strings"
        notes = (f"{count} ({_listed(differing)}); {_percent(equal, known)} of all ids agree.", *notes)
    sizes = target.rows or max(a) + 1, draft.rows or max(b) + 1
    if equal >= MAPPABLE * known:
        vocabulary = few_differ(ours, theirs, sizes)
        moved = [d for d, t in vocabulary.pairs.items() if d != t]
        for side, ids, known_to in (("target", target_only, a), ("draft", draft_only, b)):
            if ids:
                notes += (f"Known only to the {side}: {_named(ids, known_to)}.",)
        notes += (
            f"{len(moved)} of them mapped to the same string or role at another id; what only one side has is never "
            "proposed: acceptance suffers only where it occurs.",
        )
        return report("mappable", notes, mapped=sum(d in b for d in vocabulary.pairs)), vocabulary
    return _another(report, notes, (target, ours), (draft, theirs), sizes, _percent(equal, known), len(b))


def _another(
    report: Callable[..., PairReport],
    notes: tuple[str, ...],
    target: tuple[Side, TokenizerFacts],
    draft: tuple[Side, TokenizerFacts],
    rows: tuple[int, int],
    agree: str,
    draft_tokens: int,
) -> tuple[PairReport, VocabularyMap | None]:
    """The verdict on a draft with a vocabulary of its own: are there tokens that stand for the same text?"""
    try:
        vocabulary = by_bytes(target[1], draft[1], rows)
    except UnreadableTokenizerError as error:
        why = f"Their tokens cannot be matched by what they stand for: {error}. {OTHER_DRAFT}"
        return report("refused", (*notes, why)), None
    codec = vocabulary.draft
    if codec is None or not any(d in codec.pieces for d in vocabulary.pairs):
        return report("refused", (*notes, f"No token stands for the same text in both. {OTHER_DRAFT}")), None
    how = "token by token" if vocabulary.by_tokens else "as text (token by token when sampling)"
    notes = (  # of the others, only what still matters
        f"Another vocabulary: {agree} of all ids agree. {_percent(len(vocabulary.pairs), draft_tokens)} of the draft's "
        "tokens stand for the same text as one of the target's; of a sample text, "
        f"{100 * vocabulary.alike:.0f} % of the target's tokens are one token to the draft too. Drafting goes {how}. "
        "A draft with the target's own tokenizer is accepted more often.",
        *_context_notes(target[0], draft[0]),
        *_template_notes(target[1], draft[1]),
    )
    return report("cross-vocabulary", notes, mapped=len(vocabulary.pairs), alike=vocabulary.alike), vocabulary


def _not_models(target: Side, draft: Side) -> tuple[str, ...]:
    return tuple(side.not_a_model for side in (target, draft) if side.not_a_model)


def _cannot_go_back(target: Side, draft: Side) -> tuple[str, ...]:
    return tuple(
        f"The {role} {side.name} ({side.model_type}) has no cache that can go back to an earlier token, or cannot read "
        "several tokens at once. Use another model."
        for role, side in (("target", target), ("draft", draft))
        if side.model_type in CANNOT_GO_BACK
    )


def _encoder_only_in_draft(target: Side, draft: Side) -> tuple[str, ...]:
    if not draft.encoder_decoder or target.encoder_decoder or target.model_type is None:
        return ()
    return (
        f"The draft {draft.name} is an encoder-decoder and the target is not. Use a causal language model as draft.",
    )


def _read(side: Side, role: str) -> tuple[TokenizerFacts | None, str | None]:
    """What the tokenizer says; or None and why that is not known."""
    if side.source is None:
        return None, f"no tokenizer is known for the {role} ({side.name})"
    try:
        return side.source.read(), None
    except UnreadableTokenizerError as error:
        return None, str(error)


def _with_rows(vocabulary: Vocabulary, side: Side) -> Vocabulary:
    """Without ids past the last row: they cannot occur, whatever the tokenizer calls them."""
    return vocabulary if side.rows is None else {i: token for i, token in vocabulary.items() if i < side.rows}


def _count(facts: TokenizerFacts | None, side: Side) -> int | None:
    return None if facts is None else len(_with_rows(facts.vocabulary, side))


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
        return (f"{counts}: the draft has none for ids from {draft.rows} on.",)
    return (f"{counts}: ids from {target.rows} on do not exist for the target.",)


def _eos_notes(target: Side, draft: Side) -> tuple[str, ...]:
    if not target.eos or not draft.eos or set(target.eos) == set(draft.eos):
        return ()
    ids = f"target {list(target.eos)}, draft {list(draft.eos)}"
    return (f"The EOS ids differ ({ids}): the draft's only ends its own drafting for that round.",)


def _context_notes(target: Side, draft: Side) -> tuple[str, ...]:
    notes = []
    if target.context and draft.context and draft.context < target.context:
        notes.append(
            f"The draft reads {draft.context} positions, the target {target.context}: longer rows go on without drafts."
        )
    if target.rope != draft.rope:
        scaling = f"target {target.rope or 'none'}, draft {draft.rope or 'none'}"
        notes.append(f"The rope scaling differs ({scaling}): acceptance may fall on long texts.")
    return tuple(notes)


def _tokenizer_notes(ours: TokenizerFacts, theirs: TokenizerFacts) -> tuple[str, ...]:
    notes = []
    for role in ROLES:
        named = [facts.vocabulary.get(facts.roles.get(role, -1)) for facts in (ours, theirs)]
        if all(named) and named[0] != named[1]:
            notes.append(f"The {role} token differs: target {named[0]!r}, draft {named[1]!r}.")
    for part, a, b in (
        ("normalisers", ours.normaliser, theirs.normaliser),
        ("pre-tokenizers", ours.pre_tokeniser, theirs.pre_tokeniser),
    ):
        if a is not None and b is not None and a != b:
            notes.append(f"The {part} differ, so the draft was trained on text that was split in other ways.")
    return (*notes, *_template_notes(ours, theirs))


def _template_notes(ours: TokenizerFacts, theirs: TokenizerFacts) -> tuple[str, ...]:
    if ours.chat_template is None or ours.chat_template == theirs.chat_template:
        return ()
    return ("The chat templates differ: the target's is used, which may not be what the draft was tuned on.",)


def _named(ids: list[int], vocabulary: Vocabulary) -> str:
    return f"{len(ids)} token{'s' if len(ids) > 1 else ''} ({_listed([f'{i} {vocabulary[i]!r}' for i in ids])})"


def _listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:SHOWN])) + (", …" if len(items) > SHOWN else "")


def _percent(part: int, whole: int) -> str:
    """Rounded down: 151,935 of 151,936 ids are not all of them."""
    return f"{math.floor(10_000 * part / max(1, whole)) / 100:.2f} %"
