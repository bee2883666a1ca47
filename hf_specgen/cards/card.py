"""A card of a pair, of a quantized draft, or of a `custom_generate` repository, from what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..benchmarking.loading import Side
from ..checkpoints.hub import folder_of
from ..pairing import check_pair
from .commands import elsewhere
from .licences import Licence, licence_of, stated
from .losslessness import losslessness
from .measured import BenchRun, Pair, not_compared, read_bench, read_certificate
from .parts import (
    DRAFTS_PART,
    NEAR_TIES,
    QUANTIZATION,
    TAGS,
    THE_DRAFT,
    THE_TARGET,
    Section,
    rendered,
    section_of,
    usage,
)
from .sections import intended, licences, limits, vocabulary
from .speed import results, speed

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

PAIR, DRAFT, CUSTOM_GENERATE = KINDS = ("pair", "draft", "custom-generate")
SUMMARIES = {
    PAIR: "A target and a draft for lossless speculative decoding with hf-specgen: the draft proposes tokens, the "
    "target checks a block of them in one forward, and an acceptance rule keeps the target's text and sampling law "
    f"({NEAR_TIES}).",
    DRAFT: f"A quantized draft for lossless speculative decoding with hf-specgen. {DRAFTS_PART}",
    CUSTOM_GENERATE: "A `custom_generate` repository: code that `generate()` runs, and no weights.",
}


@dataclass(frozen=True)
class Card:
    text: str
    metadata: dict[str, Any]
    faulty: bool
    """The certificate says FAULT, and so does the card."""


@dataclass(frozen=True)
class Wanted:
    """
    Attributes:
        target, draft: folders, files or Hub ids.
        bench: folder of `hf-specgen bench --out`. One of the two is needed:
        certificate: file of `hf-specgen verify --out`.
        kind: one of `KINDS`; None: a draft's where the draft is quantized, else a pair's.
        title: None: the models' names.
        notes: a Markdown file of the maker's own, put first: where the weights come from.
        draft_quantization: as in `load_pair`, where the draft was measured so.
        target_licence, draft_licence: where the files do not state them, as the Hub writes them.
        base_models: ids on the Hub: of a quantized draft, what it was made from; of a pair, its two models.
    """

    target: str
    draft: str
    bench: Path | None = None
    certificate: Path | None = None
    kind: str | None = None
    title: str | None = None
    notes: Path | None = None
    draft_quantization: str | None = None
    target_licence: str | None = None
    draft_licence: str | None = None
    base_models: tuple[str, ...] = ()


def make(wanted: Wanted) -> Card:
    """
    Raises:
        FileNotFoundError, ValueError, ImportError: something is missing, broken, or of another pair; in one line.
    """
    if wanted.bench is None and wanted.certificate is None:
        raise ValueError(
            "A card tells what was measured: pass --bench (of hf-specgen bench --out), --certificate (of hf-specgen "
            "verify --out), or both."
        )
    pair = Pair(Side("target", wanted.target, "auto"), Side("draft", wanted.draft, "auto", wanted.draft_quantization))
    kind = wanted.kind or (DRAFT if pair.draft.origin.backend.name != "dense" else PAIR)
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of card: choose among {', '.join(KINDS)}.")
    run = None if wanted.bench is None else read_bench(wanted.bench, pair)
    certificate = None if wanted.certificate is None else read_certificate(wanted.certificate, pair)
    folders = [_folder(side) for side in pair]
    stated_licences = [
        licence_of(folder, said)
        for folder, said in zip(folders, (wanted.target_licence, wanted.draft_licence), strict=True)
    ]
    sections = [*_of_kind(kind, wanted, folders[1]), *_measured(wanted, pair, run, certificate)]
    unknown = {"--bench": not_compared(run and run.manifest, pair), "--certificate": not_compared(certificate, pair)}
    sections += [intended(kind), limits(kind, certificate, unknown), licences(*stated_licences, kind)]
    metadata = _metadata(kind, wanted, folders, stated_licences, results(run))
    text = rendered(metadata, _title(wanted, kind), SUMMARIES[kind], sections)
    return Card(text, metadata.to_dict(), certificate is not None and not certificate["lossless"])


def _of_kind(kind: str, wanted: Wanted, draft: Path) -> list[Section]:
    """What comes before the figures."""
    found = []
    if wanted.notes is not None:
        text = wanted.notes.read_text(encoding="utf-8").strip()
        if not text:
            raise ValueError(f"{wanted.notes} is empty: write where the weights come from, or leave --notes out.")
        found.append(Section("About", text))
    if kind == CUSTOM_GENERATE:
        text = files(__package__).joinpath("custom_generate.md").read_text(encoding="utf-8")
        return found + [Section(*part.split("\n", 1)) for part in f"\n{text}".split("\n## ")[1:]]
    names = [elsewhere(name) for name in (wanted.target, wanted.draft)]
    if kind == PAIR and len(wanted.base_models) == len(names):
        names = list(wanted.base_models)
    if kind == DRAFT:
        stand_ins = zip((wanted.target, wanted.draft), (THE_TARGET, THE_DRAFT), strict=True)
        names = [stand_in if Path(name).expanduser().exists() else name for name, stand_in in stand_ins]
    found.append(usage(*names, wanted.draft_quantization))
    card = draft / "README.md"
    if kind == DRAFT and card.is_file():
        made = section_of(card.read_text(encoding="utf-8"), QUANTIZATION)
        found += [] if made is None else [made]
    return found


def _measured(wanted: Wanted, pair: Pair, run: BenchRun | None, certificate: dict[str, Any] | None) -> list[Section]:
    target, draft = pair.target.origin, pair.draft.origin
    report = check_pair(
        target.checked,
        draft.checked,
        tokenizer=target.tokenizer,
        assistant_tokenizer=draft.tokenizer,
        draft_quantization=wanted.draft_quantization,
    )
    names = [_name(side) for side in (wanted.target, wanted.draft)]
    return [vocabulary(report, *names), speed(run), losslessness(certificate, run)]


def _metadata(kind: str, wanted: Wanted, folders: list[Path], found: list[Licence], measured: list[EvalResult]) -> Any:
    from huggingface_hub import ModelCardData

    told = {"library_name": "transformers", "pipeline_tag": "text-generation", "license": _licence(kind, found)}
    tags = [*TAGS, *{PAIR: (), DRAFT: ("draft", "quantized"), CUSTOM_GENERATE: ("custom_generate",)}[kind]]
    if kind == DRAFT and (base := _base_of(wanted, folders[1])):  # a pair's two would be read as those of a merge
        told |= {"base_model": base, "base_model_relation": "quantized"}
    return ModelCardData(
        tags=tags,
        model_name=_title(wanted, kind) if measured else None,
        eval_results=measured or None,
        **{name: value for name, value in told.items() if value},
    )


def _base_of(wanted: Wanted, draft: Path) -> str | None:
    """The id on the Hub of what a draft was made from.

    Raises:
        ValueError: several were named.
    """
    if len(wanted.base_models) > 1:
        raise ValueError(f"A draft is made from one model, not from {', '.join(wanted.base_models)}: pass one.")
    if wanted.base_models:
        return wanted.base_models[0]
    told = stated(draft, "base_model") or ""
    return told if "/" in told else None  # the name of a folder is none


def _licence(kind: str, found: list[Licence]) -> str | None:
    """Of what the repository of such a card holds; None where it is not known."""
    if kind == CUSTOM_GENERATE:
        return "apache-2.0"
    identifiers = {licence.identifier for licence in (found if kind == PAIR else found[1:])}
    if None in identifiers:
        return None
    return identifiers.pop() if len(identifiers) == 1 else "other"


def _title(wanted: Wanted, kind: str) -> str:
    if wanted.title:
        return wanted.title
    target, draft = _name(wanted.target), _name(wanted.draft)
    how = f" ({wanted.draft_quantization})" if wanted.draft_quantization else ""
    return {
        PAIR: f"{target} with {draft}{how}",
        DRAFT: f"{draft}{how}",
        CUSTOM_GENERATE: "Speculative decoding, lossless and batched",
    }[kind]


def _name(given: str) -> str:
    return Path(given).expanduser().resolve().name if Path(given).expanduser().exists() else given


def _folder(side: Side) -> Path:
    """Where its licence and card are looked for."""
    path = Path(side.given).expanduser()
    return path.parent if path.is_file() else folder_of(side.given)
