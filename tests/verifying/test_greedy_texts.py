"""Greedy texts in the real loop: rounding is told from faults, alone, in batches and by default settings."""

from dataclasses import replace

import pytest
import torch
from toys import tiny, toy_tokenizer
from verifying_toys import GREEDY, PROMPTS, WRONG_TEXTS, lenient, pair, verified

import hf_specgen
from hf_specgen import SpecUnsupportedError, Verdict
from hf_specgen.benchmarking.calls import Models, settings_of
from hf_specgen.cache.reader import Reader
from hf_specgen.decoding.stops import Stops
from hf_specgen.verifiers.greedy import GreedyVerifier
from hf_specgen.verifying import greedy_texts
from hf_specgen.verifying.certificate import FAULTY, LOSSLESS, ROUNDING, verdict_of
from hf_specgen.verifying.reading import decode, follow, in_blocks
from hf_specgen.verifying.texts import call_of


def greedy(draft="noisy", dtype=torch.float32, **options):
    return verified(draft, dtype, temperature=0, **options)


# -- readings ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def models():
    models = Models(*pair(), toy_tokenizer())
    with torch.no_grad(), settings_of(models.target), settings_of(models.draft):
        yield models


ROWS = [[5, 9, 11, 7], [8, 6]]


def test_plain_text_is_generates_own_and_its_scores_are_the_best(models):
    call = call_of(models, ROWS[:1], 12)
    found = decode(models, call)
    out = type(models.target).generate(models.target, **call.options())
    assert found.taken == call.new_ids(out)[0] and found.shortfall.eq(0).all()


@pytest.mark.parametrize("width", [1, 2, 5, 100])
def test_blocks_and_batches_give_the_scores_of_one_forward_of_everything(models, width):
    plain = [decode(models, call_of(models, [row], 12)) for row in ROWS]
    together = call_of(models, ROWS, 12)
    batched = follow(models, together, plain), in_blocks(models, together, plain, width)
    for row, own, *others in zip(ROWS, plain, *batched, strict=True):
        ids = torch.tensor([[*row, *own.taken[:-1]]])
        wanted = models.target(ids).logits[0, len(row) - 1 :].gather(1, own.ids)
        for got in (own, *others, *in_blocks(models, call_of(models, [row], 12), [own], width)):
            torch.testing.assert_close(got.scores, wanted, rtol=1e-4, atol=1e-5)


def test_rows_of_different_lengths_are_read_in_blocks_as_each_by_itself(models):
    texts = [decode(models, call_of(models, [row], new)) for row, new in zip(ROWS, (12, 5), strict=True)]
    together = in_blocks(models, call_of(models, ROWS, 12), texts, 3)
    for row, text, got in zip(ROWS, texts, together, strict=True):
        (alone,) = in_blocks(models, call_of(models, [row], 12), [text], 3)
        assert got.ids is text.ids and got.scores.shape == text.scores.shape
        torch.testing.assert_close(got.scores, alone.scores, rtol=1e-4, atol=1e-5)


def test_a_text_that_is_not_plains_is_read_as_it_is(models):
    text = [7, 7, 7, 63, 12]  # with an EOS inside
    (found,) = follow(models, call_of(models, ROWS[:1], 12), [text])
    assert found.taken == text and found.shortfall.max() > 0
    logits = models.target(torch.tensor([[*ROWS[0], *text[:-1]]])).logits[0, len(ROWS[0]) - 1 :]
    wanted = logits.amax(-1) - logits.gather(1, torch.tensor(text)[:, None])[:, 0]
    torch.testing.assert_close(found.shortfall, wanted, rtol=1e-4, atol=1e-5)


# -- the real loop -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["close", "contrary", "random"])
def test_any_draft_is_lossless_in_float32(draft):
    found = greedy(draft, limit=3)
    assert found.verdict == LOSSLESS and found.drafted > 50
    assert [text.how for text in found.texts] == ["alone"] * 3 + ["batch"] * 3 + ["default"]
    assert all(noise.largest < 1e-4 and noise.decided > 0.9 for noise in found.noise.values())
    assert {"2 positions", "6 positions"} <= found.noise["alone"].by_way.keys()
    assert [*found.noise["batch"].by_way] == ["batch of 3", "batch of 3, 6 positions"]
    assert found.flips.ways["batch"].tokens == sum(text.tokens for text in found.texts if text.how == "batch")


@pytest.mark.parametrize("draft", ["close", "contrary"])
def test_any_draft_is_lossless_up_to_rounding_in_bfloat16(draft):
    found = greedy(draft, torch.bfloat16, limit=3, max_new_tokens=24)
    assert found.lossless, str(found)
    assert 1e-3 < found.noise["alone"].largest < 1
    assert found.flips.passed and found.flips.visible < 0.2


def ties(first: int):
    """A pair whose ids 2i and 2i + 1, from the first on, always have equal scores."""
    target, draft = (tiny(seed=seed) for seed in (0, 1))
    with torch.no_grad():
        head = target.get_output_embeddings().weight
        head[first + 1 :: 2] = head[first::2]
        target.get_input_embeddings().weight.copy_(head)
    return target, draft


OPTIONS = {"max_new_tokens": 12, "temperature": 0, "prompts": PROMPTS}


def test_equal_scores_of_which_another_one_is_taken_are_ties(monkeypatch):
    def last_best(self, proposal, scores, noise_):
        right = GREEDY(self, proposal, scores, noise_)
        paired = right.next_token >= 40
        return Verdict(right.accepted, torch.where(paired, right.next_token | 1, right.next_token))

    target, draft = ties(40)
    assert hf_specgen.verify(target, draft, toy_tokenizer(), **OPTIONS).verdict == LOSSLESS
    monkeypatch.setattr(GreedyVerifier, "accept", last_best)
    found = hf_specgen.verify(target, draft, toy_tokenizer(), **OPTIONS)
    assert found.verdict == ROUNDING, str(found)
    assert all(text.gap == 0 for text in found.texts if text.verdict == "tie")
    assert "gap 0: a tie" in str(found) and found.flips.passed, "none of them is below the best one"


def test_where_rounding_hides_the_best_token_nothing_is_verified():
    with pytest.raises(SpecUnsupportedError, match=r"at only 0% of the positions .*\(--dtype float32\)"):
        hf_specgen.verify(*ties(0), toy_tokenizer(), **OPTIONS)


def test_a_lenient_rule_is_a_fault_by_the_number_of_its_ties(monkeypatch):
    """Each of its tokens could be rounding."""
    monkeypatch.setattr(GreedyVerifier, "accept", lenient)
    found = greedy("close", torch.bfloat16, limit=3, max_new_tokens=96)
    assert found.verdict == FAULTY and {text.verdict for text in found.texts} <= {"same", "tie"}, str(found)
    assert found.faults[0].startswith("greedy: alone ") and "below the best one" in found.faults[0]
    again = verdict_of((text.verdict for text in found.texts), [found.flips.passed])
    assert again == FAULTY


def test_noise_is_that_of_the_blocks_that_were_decoded():
    """With K = 20 the target reads 21 positions at once, whatever the default is."""
    found = greedy("close", num_assistant_tokens=20, max_new_tokens=32)
    assert {"21 positions", "2 positions"} <= found.noise["alone"].by_way.keys()
    assert [*found.noise["batch"].by_way] == ["batch of 2", "batch of 2, 21 positions"]


def test_a_fault_of_the_default_settings_alone_is_found(monkeypatch):
    """Source and schedule that `generate` chooses by itself are verified, too, on the longest prompt."""
    run = greedy_texts.speculate

    def wrong_by_default(models, call, strategy, k, source, **options):
        found = run(models, call, strategy, k, source, **options)
        return found if k is not None else replace(found, ids=[[(ids[0] + 1) % 60, *ids[1:]] for ids in found.ids])

    (text,) = (text for text in greedy("close").texts if text.how == "default")
    assert (text.prompt, text.verdict) == (0, "same"), "the longest"
    monkeypatch.setattr(greedy_texts, "speculate", wrong_by_default)
    found = greedy("close")
    assert [text.how for text in found.texts if text.verdict == "fault"] == ["default"]
    assert "prompt 0, default, where generate() decides: " in str(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wrong", WRONG_TEXTS)
def test_wrong_acceptance_is_a_fault(wrong, dtype, monkeypatch):
    monkeypatch.setattr(GreedyVerifier, "accept", WRONG_TEXTS[wrong])
    found = greedy("close", dtype)
    assert found.verdict == FAULTY and not found.lossless
    assert "below the target's best one" in found.faults[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_cache_rolled_back_by_one_too_few_is_a_fault(dtype, monkeypatch):
    roll_back = Reader.roll_back
    monkeypatch.setattr(
        Reader, "roll_back", lambda self, row, length: roll_back(self, row, min(length + 1, self.lengths[row]))
    )
    assert greedy("noisy", dtype).verdict == FAULTY


def test_a_fault_in_batches_alone_is_found_there(monkeypatch):
    read = Reader.read

    def mixed(self, ids, counts, keep=None, beside=None):
        return read(self, ids, counts, keep, beside).flip(0)

    monkeypatch.setattr(Reader, "read", mixed)
    found = greedy()
    assert {text.how for text in found.texts if text.verdict == "fault"} == {"batch"}


@pytest.mark.parametrize("kind", ["goes on", "ends early"])
def test_a_text_that_ends_wrongly_is_a_fault(kind, monkeypatch):
    end = Stops.end

    def wrong(self, ids, length, new, scores):
        if kind == "ends early" and len(new) > 2:
            return 1, True
        self.eos = set() if kind == "goes on" else self.eos
        return end(self, ids, length, new, scores)

    target, draft = pair("close", torch.float32)
    own = Models(target, draft, toy_tokenizer())
    text = decode(own, call_of(own, [toy_tokenizer()(PROMPTS[0])["input_ids"]], 16)).taken
    at = next(i for i in range(4, 16) if text[i] not in text[:i])
    monkeypatch.setattr(target.generation_config, "eos_token_id", text[at])
    assert {(text.verdict, text.tokens) for text in greedy("close", prompts=PROMPTS[:1]).texts} == {("same", at + 1)}
    monkeypatch.setattr(Stops, "end", wrong)
    found = greedy("close", prompts=PROMPTS[:1])
    assert found.verdict == FAULTY
    assert ("goes on after the EOS" if kind == "goes on" else "it ends after") in found.faults[0]
