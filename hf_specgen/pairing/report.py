"""PairReport: what is known of a pair, for people and for programs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hf_specgen.errors import SpecUnsupportedError

if TYPE_CHECKING:
    from ..measuring.measurement import Measurement

Verdict = Literal["exact", "exact-with-padding", "mappable", "cross-vocabulary", "unknown", "refused"]


@dataclass(frozen=True)
class Weights:
    """What a checkpoint's safetensors header says."""

    parameters: int
    bytes: int
    dtype: str
    quantization: str | None
    kv_bytes_per_token: int | None
    """Keys and values of one token of one row."""

    def __str__(self) -> str:
        kind = self.quantization or self.dtype
        return f"{_count(self.parameters)} parameters, {self.bytes / 1e9:.2f} GB in {kind}"


@dataclass(frozen=True)
class PairReport:
    """What check_pair found. One report is shared by all who ask, so it cannot be changed.

    exact               every id means the same string to both, and both have as many logits rows
    exact-with-padding  so do all ids that a tokenizer knows, but one model has more rows than the other
    mappable            a few ids differ, or are known to one side only: those are mapped by their string, or masked
    cross-vocabulary    another vocabulary: tokens are matched by the bytes they stand for
    unknown             a tokenizer is missing and nothing contradicts; usable, but not checked
    refused             the draft cannot help, or a side is no causal LM that can be decoded speculatively

    A draft cannot change the target's law, whatever its ids mean: the verifier sees to that. It can only be useless. So
    what merely costs acceptance is a reason in the report, and a refusal is for pairs that cannot pay.
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
    target_context: int | None = None
    """Positions that the config promises."""
    draft_context: int | None = None
    target_tokens: int | None = None
    """Ids that the tokenizer knows and the model has a row for; None without a tokenizer."""
    draft_tokens: int | None = None
    shared: float | None = None
    """Ids that mean the same to both, as a share of the ids that either knows; None if they could not be compared."""
    differing_count: int | None = None
    differing: tuple[tuple[int, str, str], ...] = ()
    """The first ten ids that mean two things: (id, target's string, draft's string)."""
    mapped: int | None = None
    """Tokens that both have, whatever their ids; None where ids are used as they are."""
    alike: float | None = None
    """Share of a sample text's tokens, as the target splits it, that are one shared token to the draft too; None where
    ids are used as they are. Decides between token-level and string-level drafting when greedy."""
    target_weights: Weights | None = None
    """What the checkpoint's header says; None for loaded models."""
    draft_weights: Weights | None = None
    parameter_ratio: float | None = None
    """Draft's parameters / target's."""
    cost_ratio: float | None = None
    """Bytes that a token makes the draft read / the target: an estimate of the ratio of step times."""
    measurement: Measurement | None = None

    @property
    def ids_differ(self) -> bool:
        """Whether some ids mean other tokens to the draft: both tokenizers are then needed."""
        return self.verdict in ("mappable", "cross-vocabulary")

    @property
    def usable(self) -> bool:
        return self.verdict != "refused"

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts and numbers, for JSON."""
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}
        plain["differing"] = [{"id": id_, "target": ours, "draft": theirs} for id_, ours, theirs in self.differing]
        if self.measurement is not None:
            plain["measurement"] = self.measurement.to_dict()
        return {"usable": self.usable, **plain}

    def summary(self) -> str:
        """All but the table of differing ids."""
        lines = [
            f"target   {self.target}{_sizes(self.target_rows, self.target_tokens, self.target_weights)}",
            f"draft    {self.draft}{_sizes(self.draft_rows, self.draft_tokens, self.draft_weights)}",
            f"verdict  {self.verdict}",
            *(f"- {reason}" for reason in self.reasons),
        ]
        if self.parameter_ratio is not None:
            lines.append(
                f"size     the draft has {self.parameter_ratio:.2f} of the target's parameters and reads "
                f"{self.cost_ratio:.2f} of its bytes per token"
            )
        if self.measurement is not None:
            lines.append(str(self.measurement))
        return "\n".join(lines)

    def __str__(self) -> str:
        table = (f"  id {id_}: target {ours!r}, draft {theirs!r}" for id_, ours, theirs in self.differing)
        return "\n".join([self.summary(), *table])

    def _repr_html_(self) -> str:
        from ..display.pair import html_of

        return html_of(self)


def require_usable(report: PairReport) -> PairReport:
    """The report itself, or SpecUnsupportedError with its reasons and the first ids that differ."""
    if report.usable:
        return report
    message = f"{report.draft} cannot draft for {report.target}: {' '.join(report.reasons)}"
    if report.differing:
        listed = ", ".join(f"{id_} {ours!r} / {theirs!r}" for id_, ours, theirs in report.differing)
        message += f" First differing ids (target / draft): {listed}."
    raise SpecUnsupportedError(message)


def _sizes(rows: int | None, tokens: int | None, weights: Weights | None) -> str:
    known = [] if rows is None else [f"{rows} logits rows"]
    known += [] if tokens is None else [f"{tokens} tokens"]
    known += [] if weights is None else [str(weights)]
    return f" ({', '.join(known)})" if known else ""


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"
