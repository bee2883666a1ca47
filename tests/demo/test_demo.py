"""The embedded pair: real text, realistic acceptance, the same ids as plain decoding, and the command that shows it."""

import json

import pytest
import torch
from toys import plain, spec
from typer.testing import CliRunner

from hf_specgen import SpecStats
from hf_specgen.cli import app, demo
from hf_specgen.demo import PAIR, PROMPTS, load
from hf_specgen.demo.run import Answer
from hf_specgen.display import OriginText
from hf_specgen.pairing import check_pair


@pytest.fixture(scope="module")
def pair():
    return load()


def test_the_pair_is_small_enough_to_ship():
    assert sum(f.stat().st_size for f in PAIR.rglob("*") if f.is_file()) < 12e6


def test_the_target_is_deep_and_the_draft_is_not(pair):
    target, draft, _ = pair
    assert target.config.num_hidden_layers >= 24
    assert draft.config.num_hidden_layers <= 2


def test_the_pair_check_compares_the_shipped_tokenizers(pair):
    assert check_pair(*pair[:2]).verdict == "exact"


@pytest.mark.parity
def test_greedy_text_is_plain_text_with_realistic_acceptance(pair):
    target, draft, tokenizer = pair
    accepted = drafted = 0
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        wanted = plain(target, **inputs, max_new_tokens=80, do_sample=False)
        out = spec(target, draft, **inputs, max_new_tokens=80)
        assert torch.equal(out.sequences, wanted)
        accepted, drafted = accepted + out.spec_stats.accepted, drafted + out.spec_stats.drafted
    assert 0.3 < accepted / drafted < 1


@pytest.mark.parity
def test_each_row_of_a_ragged_batch_is_the_row_alone(pair):
    target, draft, tokenizer = pair
    batch = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    out = spec(target, draft, **batch, max_new_tokens=60)
    for b, prompt in enumerate(PROMPTS):
        alone = plain(target, **tokenizer(prompt, return_tensors="pt"), max_new_tokens=60, do_sample=False)
        columns = batch["input_ids"].shape[1]
        new = alone[0, int(batch["attention_mask"][b].sum()) :]
        assert torch.equal(out.sequences[b, columns : columns + len(new)], new)


@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
def test_sampling_runs_and_repeats_under_a_seed(pair, strategy):
    target, draft, tokenizer = pair
    batch = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)

    def once():
        torch.manual_seed(7)
        return spec(target, draft, strategy, **batch, max_new_tokens=40, do_sample=True, top_p=0.95)

    first, second = once(), once()
    assert torch.equal(first.sequences, second.sequences)
    assert first.spec_stats.acceptance_rate > 0.2


def test_the_demo_command_reports_the_same_ids():
    result = CliRunner().invoke(app, ["demo", "--json", "--repeats", "1", "--max-new-tokens", "24"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["same_ids"] is True
    assert len(figures["prompts"]) == len(PROMPTS)


def test_the_demo_command_shows_text_and_figures():
    result = CliRunner().invoke(app, ["demo", "--repeats", "1", "--max-new-tokens", "24"])
    assert result.exit_code == 0, result.output
    assert "the same ids as plain decoding" in result.stdout
    assert "tokens per forward" in result.stdout


def test_what_statistics_say_is_shown_as_it_is(capsys):
    answers = [Answer(OriginText("a", (("b", "draft"), ("c", None))), True, [2.0], [1.0])]
    demo._show(answers, SpecStats(calls=1, fallback_reason="no [/way] back"), True, 2.0)
    shown = capsys.readouterr().out
    assert "no [/way] back" in shown and shown.startswith("prompt  draft model (1)  target itself (1)\n")
