"""Alternatives read beside the draft: the text is plain's, a round gives a token more where one of them was right."""

import pytest
import torch
from cheap_toys import REPEATING
from families import FAMILIES, alone, build, draft_of
from toys import EOS, Doubting, batch_of, contrary, new_tokens, noisy, plain, row_alone, spec, text, tiny

from hf_specgen import SpecSession
from hf_specgen.cache import probe
from hf_specgen.cache.ragged import RaggedCache
from hf_specgen.noise import Noise
from hf_specgen.verifiers.coupled import CoupledVerifier
from hf_specgen.verifiers.greedy import GreedyVerifier

NEW = 50
RAGGED = (3, 11, 6, 1)


def decoded(target, draft, batch, places=None, tokens: int = 4, new: int = NEW, **options):
    rule = Doubting(tokens, places)
    return spec(target, draft, **batch, num_assistant_tokens_schedule=rule, max_new_tokens=new, **options)


def assert_used(out) -> None:
    stats = out.spec_stats
    assert stats.alternatives > 0, "no alternative was right: nothing was tested"
    assert stats.alternatives < stats.accepted < stats.drafted
    for row in stats.rows:
        assert row.emitted == row.accepted + row.rounds - row.trimmed


PORTABLE = {"llama", "gemma3_text", "deepseek_v3", "gpt2"}
KNOWN = [n for n in FAMILIES if n in probe.KNOWN or n in ("llama_mha", "qwen2_sliding")]


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.parity) if n in PORTABLE else n for n in KNOWN])
@pytest.mark.parametrize("lengths, side", [((11,), "left"), (RAGGED, "left"), (RAGGED, "right")])
def test_every_family_and_layout_gives_the_rows_text_alone(name, lengths, side):
    rows = [text(n) for n in lengths]
    out = decoded(build(name), draft_of(name), batch_of(rows, side), output_logits=True)
    for b, row in enumerate(rows):
        ids, logits = alone(name, tuple(row), NEW)
        assert out.sequences[b, -NEW:].tolist() == ids, f"row {b}"
        got = torch.stack([step[b] for step in out.logits])
        assert ((got - logits).abs().max() / logits.std()).item() < 1e-4, f"row {b}"
    assert_used(out)


def test_they_shorten_the_call():
    target, draft, batch = build("llama"), draft_of("llama"), batch_of([text(11)])
    with_, without = decoded(target, draft, batch), decoded(target, draft, batch, places=())
    assert without.spec_stats.alternatives == 0
    assert with_.spec_stats.rounds < without.spec_stats.rounds
    assert with_.sequences.tolist() == without.sequences.tolist()
    # The draft reads no more: what was an alternative, it is told with the next round.
    assert with_.spec_stats.draft_forwards < without.spec_stats.draft_forwards


@pytest.mark.parametrize("places", [(0,), (1, 2)])
def test_rows_with_different_numbers_of_them(places):
    rows = [text(n) for n in RAGGED]
    out = decoded(build("mistral"), draft_of("mistral"), batch_of(rows), places)
    for b, row in enumerate(rows):
        assert out.sequences[b, -NEW:].tolist() == alone("mistral", tuple(row), NEW)[0]
    assert_used(out)


def test_what_is_held_of_one_has_to_be_moved(monkeypatch):
    """The negative control: where the rejected token's keys and values stay, the text goes wrong."""
    monkeypatch.setattr(RaggedCache, "move", lambda *_, **__: None)
    out = decoded(build("llama"), draft_of("llama"), batch_of([text(11)]))
    assert out.sequences[0, -NEW:].tolist() != alone("llama", tuple(text(11)), NEW)[0]


@pytest.mark.parametrize("seed", range(4))
def test_coupled_sampling_gives_what_the_seed_gives_without_a_draft(seed):
    target, batch = tiny(scale=4.0), batch_of([text(n) for n in RAGGED])
    options = {"do_sample": True, "temperature": 1.3, "top_k": 20, "strategy": "coupled"}
    torch.manual_seed(seed)
    out = decoded(target, noisy(target, 0.3), batch, **options)
    torch.manual_seed(seed)
    assert out.sequences.tolist() == decoded(target, contrary(target), batch, places=(), **options).sequences.tolist()
    assert_used(out)


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_rules_whose_ids_depend_on_the_draft_have_none(strategy):
    target = tiny(scale=4.0)
    out = decoded(target, noisy(target, 0.3), batch_of([text(9)]), do_sample=True, strategy=strategy)
    assert out.spec_stats.alternatives == 0


@pytest.mark.parametrize(
    "options",
    [{"repetition_penalty": 1.3}, {"output_hidden_states": True}, {"output_attentions": True}],
    ids=lambda o: next(iter(o)),
)
def test_processors_that_read_the_text_and_kept_outputs_have_none(options):
    target, batch = tiny(attn_implementation="eager"), batch_of([text(9)])
    out = decoded(target, noisy(target), batch, new=20, **options)
    wanted = plain(target, **batch, max_new_tokens=20, do_sample=False, **{"return_dict_in_generate": True} | options)
    assert out.sequences.tolist() == wanted.sequences.tolist()
    assert out.spec_stats.alternatives == 0


def test_processed_scores_and_logits_are_plains():
    target, batch = tiny(), batch_of([text(9)])
    kept = {"output_scores": True, "output_logits": True, "suppress_tokens": [5, 9, 11]}
    out = decoded(target, noisy(target), batch, **kept)
    wanted = plain(target, **batch, max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True, **kept)
    assert out.sequences.tolist() == wanted.sequences.tolist()
    for name in ("scores", "logits"):
        torch.testing.assert_close(
            torch.cat(getattr(out, name)), torch.cat(getattr(wanted, name)), rtol=1e-3, atol=1e-3
        )
    assert_used(out)


def test_rows_that_end():
    """Inside a round, behind an alternative too."""
    target = tiny(eos_token_id=[EOS, 7, 20])
    rows = [text(n) for n in (5, 8, 3, 14)]
    batch = batch_of(rows)
    out = decoded(target, noisy(target), batch, new=60)
    columns = batch["input_ids"].shape[1]
    for b, got in enumerate(new_tokens(out.sequences, columns, eos=[EOS, 7, 20])):
        one = row_alone(batch, b)
        wanted = plain(target, **one, max_new_tokens=60, do_sample=False)[0, one["input_ids"].shape[1] :]
        assert got == wanted.tolist()


def test_the_models_own_output_is_never_written_to():
    """A hook may keep it: float32 logits on a CPU are handed on as they are."""
    target, kept = tiny(), []
    target.lm_head.register_forward_hook(lambda _, __, out: kept.append((out, out.clone())))
    assert_used(decoded(target, noisy(target), batch_of([text(5)]), new=40))
    assert all(torch.equal(now, then) for now, then in kept)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text"])
def test_the_returned_cache_goes_on(name):
    target, draft, batch = build(name), draft_of(name), batch_of([text(11)])
    first = decoded(target, draft, batch, new=30)
    assert_used(first)
    more = torch.cat([first.sequences, torch.tensor([[5, 9, 4]])], dim=1)
    wanted = plain(target, input_ids=more, max_new_tokens=20, do_sample=False)
    cache = next(x for n in ("past_key_values", "cache") if (x := first.get(n)) is not None)
    argument = {"past_key_values" if "past_key_values" in first else "cache": cache}
    assert plain(target, input_ids=more, max_new_tokens=20, do_sample=False, **argument).tolist() == wanted.tolist()


@pytest.mark.parametrize("verifier", [GreedyVerifier(), CoupledVerifier()])
def test_they_are_the_best_but_one(verifier):
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    noise = Noise([1, 2, 3], [4, 5, 6], scores.device)
    first, _ = verifier.draw(scores, noise, 2)
    others = verifier.others(scores, noise, 2, first, 2)
    assert [first.tolist(), *others.T.tolist()] == verifier.ordered(scores, noise, 2).topk(3, -1).indices.T.tolist()


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_turns_of_a_session(name):
    target, draft, session = build(name), draft_of(name), SpecSession()
    ids, found = torch.tensor([text(9)]), 0
    for turn in range(3):
        out = decoded(target, draft, batch_of(ids.tolist()), new=17, spec_session=session)
        wanted = plain(target, input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=17, do_sample=False)
        assert out.sequences.tolist() == wanted.tolist()
        found += out.spec_stats.alternatives
        ids = torch.cat([wanted, torch.tensor([text(3, seed=turn)])], dim=1)
    assert found


def test_beside_matches_in_other_rows():
    rows = [REPEATING[:30], text(11), text(4)]
    out = decoded(build("llama"), draft_of("llama"), batch_of(rows), spec_source="hybrid")
    for b, row in enumerate(rows):
        assert out.sequences[b, -NEW:].tolist() == alone("llama", tuple(row), NEW)[0]
    assert {"draft", "lookup"} <= out.spec_stats.by_source.keys() and out.spec_stats.alternatives
