"""A user's script as a type checker sees it (`make types`): never run, every public name used as its docstring says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TextStreamer
from typing_extensions import assert_type

import hf_specgen
from hf_specgen import (
    Certificate,
    Drafter,
    Measurement,
    Pair,
    PairReport,
    Proposal,
    RowStats,
    SpecConfig,
    SpecStats,
    Verdict,
    Verifier,
)


class Nothing(Drafter):
    """Drafts nothing."""

    def propose(self, rows: list[Any], widths: list[int], verifier: Verifier, noise: Any) -> Proposal:
        return Proposal.empty(len(rows), torch.device("cpu"))


def decode(target: PreTrainedModel, draft: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> SpecStats:
    hf_specgen.enable(target, assistant_model=draft, spec_strategy="rejection")
    with hf_specgen.collect_stats() as stats:
        target.generate(**inputs, spec_session=hf_specgen.SpecSession(), generator=torch.Generator())
        target.generate(**inputs, assistant_model=Nothing(), num_assistant_tokens_schedule=hf_specgen.GoodputLength())
    hf_specgen.disable(target)
    assert_type(stats, SpecStats)
    assert_type(stats.acceptance_rate, float | None)
    assert_type(stats.rows, list[RowStats])
    return stats


def pair_up(tokenizer: PreTrainedTokenizerBase) -> Pair:
    report = hf_specgen.check_pair("target", Path("draft"))
    assert_type(report, PairReport)
    if not report.usable:
        raise hf_specgen.SpecUnsupportedError(report.summary())
    try:
        pair = hf_specgen.load_pair("target", "draft", draft_quantization="nf4", spec_strategy="block")
    except hf_specgen.CheckpointError as error:
        raise SystemExit(str(error)) from None
    measured: Measurement = hf_specgen.measure_pair(pair.target, pair.draft, ["a prompt"], tokenizer=tokenizer)
    assert_type(measured.best_k, int | None)
    return pair


def certify(pair: Pair) -> bool:
    certificate = hf_specgen.verify(pair.target, pair.draft, prompts=["a prompt"], temperature=0.7)
    assert_type(certificate, Certificate)
    certificate.save("certificate.json")
    return certificate.lossless


def streams(tokenizer: PreTrainedTokenizerBase) -> hf_specgen.RowStreamers:
    return hf_specgen.RowStreamers(lambda row: TextStreamer(tokenizer))


def judged(verdict: Verdict) -> torch.Tensor:
    return verdict.accepted


config: SpecConfig = SpecConfig(spec_strategy="coupled", num_assistant_tokens=4)
