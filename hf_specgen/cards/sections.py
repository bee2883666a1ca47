"""What a card says beside the figures: the two models, what they are for, what they cannot do, whose they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..verifying.certificate import lengths_of
from .parts import QUANTIZED_LIMITS, Section

if TYPE_CHECKING:
    from ..pairing.report import PairReport, Weights
    from .licences import Licence

UNKNOWN = "–"
USE = {
    "pair": "Text generation where the target's own text is wanted sooner: one prompt at a time, or small batches, "
    "greedy or sampled. The target decides what is said: all that its own card says of uses and dangers holds here.",
    "draft": "To propose tokens to a larger model of its family. By itself it writes worse text than its dense "
    "original, and has not been examined for that.",
    "custom-generate": "`generate()` of a model that is given a draft, without code of one's own.",
}
COMMON_LIMITS = (
    "- The figures hold for the machine, the models' versions, the prompts and the lengths above, and for no others.\n"
    "- How much is gained depends on how often the draft is right and how much cheaper it is. A batch gains less than "
    "one prompt, for its forwards are already full. Where a draft cannot pay, nothing is drafted by default.\n"
    "- Below float32, a block of tokens is rounded differently from single ones: greedy text can part from plain "
    "decoding's at near ties, as it does between batch sizes.\n"
    "- Beams, contrastive search and classifier-free guidance are refused by name."
)


def vocabulary(report: PairReport, target: str, draft: str) -> Section:
    """What the two checkpoints are, and how they fit."""
    rows = [
        ("", target, draft),
        ("---", "---", "---"),
        ("role", "target", "draft"),
        ("parameters", *(_parameters(w) for w in (report.target_weights, report.draft_weights))),
        ("weights on disk", *(_bytes(w) for w in (report.target_weights, report.draft_weights))),
        ("rows of logits", *(_number(n) for n in (report.target_rows, report.draft_rows))),
        ("positions", *(_number(n) for n in (report.target_context, report.draft_context))),
    ]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    reasons = f": {' '.join(report.reasons)}" if report.reasons else "."
    found = f"`hf-specgen check-pair` finds the two vocabularies **{report.verdict}**{reasons}"
    return Section("The two models", f"{lines}\n\n{found}")


def intended(kind: str) -> Section:
    return Section("Intended use", USE[kind])


def limits(kind: str, certificate: dict[str, Any] | None, unknown: dict[str, list[str]]) -> Section:
    """`unknown`: by source of figures, whose weights were not compared (see `measured.not_compared`)."""
    lines = [COMMON_LIMITS]
    if certificate is not None:
        tested = ["greedy text", *(f'"{law["strategy"]}"' for law in certificate["sampling"])]
        lengths = lengths_of(certificate["prompts"], certificate["settings"])
        lines.append(
            f"- Verified were {', '.join(tested)}, on {certificate['prompts']['count']} {lengths}. Of greedy "
            "text, nothing longer (caches that grow, windows that fill), no logits processors, stop strings or streams."
        )
    for source, roles in unknown.items():
        if roles:
            lines.append(
                f"- The weights of {' and '.join(roles)} were not compared with those that `{source}` measured: only "
                "their config.json was."
            )
    if kind == "draft":
        lines.append(f"- {QUANTIZED_LIMITS}")
    return Section("Limits", "\n".join(lines))


def licences(target: Licence, draft: Licence, kind: str) -> Section:
    lines = [
        f"- Target: {target}.",
        f"- Draft: {draft}.",
        "- The words of this card: hf-specgen's (Apache-2.0), but for what its maker wrote under About. Its figures: "
        "measured by its maker, with the commands above. The prompts that come with hf-specgen: Apache-2.0.",
    ]
    if kind == "custom-generate":
        lines.insert(0, "- The code of this repository: Apache-2.0. The models are no part of it.")
    return Section("Licences", "\n".join(lines))


def _parameters(weights: Weights | None) -> str:
    return UNKNOWN if weights is None else f"{weights.parameters:,}"


def _bytes(weights: Weights | None) -> str:
    if weights is None:
        return UNKNOWN
    return f"{weights.bytes / 1e6:,.1f} MB, {weights.quantization or weights.dtype}"


def _number(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"
