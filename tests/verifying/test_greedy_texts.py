"""Greedy: ties are told from faults, by plain decoding's own noise, over the whole text."""

import pytest
import torch
from toys import tiny, toy_tokenizer
from verifying_toys import GREEDY, PROMPTS, WRONG_TEXTS, pair, verified

import hf_specgen
from hf_specgen import Verdict
from hf_specgen.benchmarking.calls import Models, settings_of
from hf_specgen.cache.reader import Reader
from hf_specgen.decoding.stops import Stops
from hf_specgen.verifiers.greedy import GreedyVerifier
from hf_specgen.verifying.certificate import FAULTY, LOSSLESS, ROUNDING
from hf_specgen.verifying.greedy import Noise, judge
from hf_specgen.verifying.reading import Reading, decode, follow, in_blocks
from hf_specgen.verifying.texts import call_of


def greedy(draft="noisy", dtype=torch.float32, **options):
    return verified(draft, dtype, temperature=0, **options)


# -- one text ----------------------------------------------------------------------------------------------------------


def reading(*shortfalls: float, best: float = 20.0) -> Reading:
    """A text whose tokens 0, 1, … are so far below the best one; three candidates each."""
    scores = [[best - x, best, best - 1] for x in shortfalls]
    ids = [[i if x == 0 else 50, i, 51] for i, x in enumerate(shortfalls)]
    return Reading(torch.tensor(ids), torch.tensor(scores))


def noise(moved: float, dtype=torch.float32) -> Noise:
    plain = reading(0.0, 0.0)
    other = Reading(plain.ids, plain.scores + torch.tensor([0.0, 0.0, moved]))
    found = Noise()
    found.add("2 positions", plain, other, dtype)
    return found


def checked(noise_, *shortfalls, problem=None):
    text = reading(*shortfalls)
    return judge(0, "alone", list(range(len(shortfalls))), text.taken, problem, text, noise_)


def test_a_gap_within_the_noise_is_a_tie_and_one_beyond_it_a_fault():
    single, half = noise(1e-5), noise(0.125, torch.bfloat16)
    assert single.largest == pytest.approx(1e-5, rel=0.1) and half.largest == pytest.approx(0.156, rel=0.01)
    assert checked(single, 0, 0, 1e-5).verdict == "tie"
    assert checked(single, 0, 0, 0.01).verdict == "fault"
    assert checked(half, 0, 0, 0.125).verdict == "tie"
    assert checked(half, 0, 0, 1.3).verdict == "fault"


def test_what_a_dtype_cannot_write_down_is_no_difference():
    assert noise(0.0, torch.bfloat16).largest == pytest.approx(20 * 2**-7)
    assert noise(0.0).tolerance == pytest.approx(2 * 20 * 2**-23)


def test_the_text_after_a_tie_is_judged_too():
    tie = checked(noise(0.1), 0, 0.1, 0, 0.05, 0)
    assert (tie.verdict, tie.diverged_at, tie.gap, tie.others) == ("tie", 1, pytest.approx(0.1, abs=1e-5), 1)
    assert (tie.token, tie.plain_token) == (50, 1)
    fault = checked(noise(0.1), 0, 0.1, 0, 3.0, 0)
    assert (fault.verdict, fault.diverged_at, fault.worst_at) == ("fault", 1, 3)
    assert fault.why == "token 3 is 3 below the target's best one; rounding explains 0.2"


def test_scores_that_are_no_numbers_are_a_fault():
    assert checked(noise(0.1), 0, float("nan"), 0).verdict == "fault"


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
    together = follow(models, call_of(models, ROWS, 12), plain)
    for row, own, batched in zip(ROWS, plain, together, strict=True):
        ids = torch.tensor([[*row, *own.taken[:-1]]])
        wanted = models.target(ids).logits[0, len(row) - 1 :].gather(1, own.ids)
        for got in (own, batched, in_blocks(models, row, own, width, torch.device("cpu"))):
            torch.testing.assert_close(got.scores, wanted, rtol=1e-4, atol=1e-5)


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
    assert found.verdict == LOSSLESS and len(found.texts) == 6 and found.drafted > 50
    assert found.noise.largest < 1e-4 and {"2 positions", "batch of 3"} <= found.noise.by_way.keys()


@pytest.mark.parametrize("draft", ["close", "contrary"])
def test_any_draft_is_lossless_up_to_rounding_in_bfloat16(draft):
    found = greedy(draft, torch.bfloat16, limit=3, max_new_tokens=24)
    assert found.lossless, str(found)
    assert 1e-3 < found.noise.largest < 1


def test_equal_scores_of_which_another_one_is_taken_are_ties():
    target, draft = (tiny(seed=seed) for seed in (0, 1))
    with torch.no_grad():  # ids 2i and 2i + 1 always have equal scores
        head = target.get_output_embeddings().weight
        head[1::2] = head[::2]
        target.get_input_embeddings().weight.copy_(head)

    def last_best(self, proposal, scores, noise_):
        right = GREEDY(self, proposal, scores, noise_)
        return Verdict(right.accepted, right.next_token | 1)

    options = {"max_new_tokens": 12, "temperature": 0, "prompts": PROMPTS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GreedyVerifier, "accept", last_best)
        found = hf_specgen.verify(target, draft, toy_tokenizer(), **options)
    assert found.verdict == ROUNDING, str(found)
    assert all(text.gap == 0 for text in found.texts if text.verdict == "tie")
    assert "gap 0: a tie" in str(found)
    assert hf_specgen.verify(target, draft, toy_tokenizer(), **options).verdict == LOSSLESS


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

    def mixed(self, ids, counts, keep=None):
        return read(self, ids, counts, keep).flip(0)

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
    (right,) = greedy("close", prompts=PROMPTS[:1]).texts
    assert (right.verdict, right.tokens) == ("same", at + 1)
    monkeypatch.setattr(Stops, "end", wrong)
    found = greedy("close", prompts=PROMPTS[:1])
    assert found.verdict == FAULTY
    assert ("goes on after the EOS" if kind == "goes on" else "it ends after") in found.faults[0]
