"""Unless it is told, a draft with a large vocabulary does without its rare tokens while the text is made of others."""

import pytest
import torch
from toys import assert_as_alone, noisy, row_alone, spec, tiny

from hf_specgen.drafters import frequent
from hf_specgen.drafters.frequent import FrequentTokens
from hf_specgen.lengths import GoodputLength
from hf_specgen.lengths.base import NOTHING, Choice

SIZE, VOCAB = 24, 64


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A vocabulary of 64 is large, and any saving is worth it."""
    monkeypatch.setattr(frequent, "FREQUENT", SIZE)
    monkeypatch.setattr(frequent, "WORTH", 0.0)


@pytest.fixture(scope="module")
def pair():
    target = tiny(eos_token_id=None, vocab_size=VOCAB)
    return target, noisy(target, 0)


@pytest.fixture
def trims(monkeypatch):
    """Of each round in which the model drafts: whether it computed all logits."""
    seen, now = [], FrequentTokens.now

    def watched(self, rows, order):
        network = now(self, rows, order)
        seen.append(network is self.model)
        return network

    monkeypatch.setattr(FrequentTokens, "now", watched)
    return seen


class Eager(GoodputLength):
    """Three tokens in every round: what is trimmed is the matter here."""

    def choose(self, rows, offers):
        return [Choice(own[0], min(3, own[0].most)) if own else NOTHING for own in offers]

    def goes_on(self, rows, step, tops):
        return [True] * len(rows)

    def alternative_pays(self, rows, step, tops, shares):
        return [False] * len(rows)

    def learn(self, rounds, seconds):
        pass


def decode(pair, batch, new=40, **options):
    return spec(
        *pair,
        **batch,
        max_new_tokens=new,
        num_assistant_tokens=None,
        num_assistant_tokens_schedule=Eager(),
        spec_source="draft",
        **options,
    )


def of_ids(least: int, most: int, rows: int = 1, length: int = 12):
    torch.manual_seed(least)
    ids = torch.randint(least, most, (rows, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_greedy_ids_are_plains_and_rare_tokens_are_not_drafted(pair, trims):
    batch = of_ids(3, SIZE, 2)
    out = decode(pair, batch, output_logits=True)
    assert_as_alone(pair[0], out, batch, new=40)
    assert trims[0] is False and 0 < out.spec_stats.acceptance_rate < 1, "a copy with all its tokens is accepted whole"


def test_a_prompt_of_rare_tokens_gets_all_of_them(pair, trims):
    out = decode(pair, of_ids(SIZE, VOCAB), new=15)
    assert all(trims) and out.spec_stats.acceptance_rate == 1.0


def test_a_text_that_turns_to_rare_tokens_gets_all_of_them(pair, trims, monkeypatch):
    """And the frequent ones again, once it is made of those."""
    wanted = [*range(3, 9)] * 3 + [*range(40, 64)] * 2 + [*range(3, 9)] * 12
    batch = of_ids(3, SIZE)
    start = batch["input_ids"].shape[1]

    def script(ids, scores):
        token = wanted[min(ids.shape[1] - start, len(wanted) - 1)]
        return torch.full_like(scores, -100.0).index_fill(1, torch.tensor([token]), 0.0)

    decode(pair, batch, new=len(wanted), logits_processor=[script])
    assert trims[0] is False and trims[-1] is False and any(trims)


@pytest.mark.parametrize("strange", [0, 1])
def test_a_row_drafts_the_same_beside_a_row_of_another_script(pair, trims, strange):
    """Where the whole head computes for a neighbour, the others keep to what they may draft."""
    rows = [of_ids(3, SIZE), of_ids(SIZE, VOCAB)]
    batch = {name: torch.cat([row[name] for row in rows[:: 1 if strange else -1]]) for name in rows[0]}
    options = {"do_sample": True, "top_k": 0, "temperature": 1.5, "new": 30}
    seeds = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
    together = decode(pair, batch, generator=seeds, **options)
    assert trims[0] is True
    for b in range(2):
        alone = decode(pair, row_alone(batch, b), generator=[torch.Generator().manual_seed(5 + b)], **options)
        assert alone.sequences[0].tolist() == together.sequences[b].tolist()
        assert alone.spec_stats.rows[0].trace == together.spec_stats.rows[b].trace


@torch.no_grad()
def test_logits_are_barred_alike_by_both_heads(pair):
    model, prompts = pair[1], [[3, 40, 5, 6, 7, 8], [50, 51, 52, 53, 54, 55], [3, 4, 5, 6, 7, 61]]
    ids = torch.tensor(prompts)
    one = FrequentTokens.of_large(model)
    assert one.begin(prompts) is model
    wide = one.expand(model(input_ids=ids).logits[:, -1], [0, 1, 2])
    assert wide[1].isfinite().all()
    for b in (0, 2):
        alone = FrequentTokens.of_large(model)
        narrow = alone.expand(alone.begin([prompts[b]])(input_ids=ids[b : b + 1]).logits[:, -1], [0])
        torch.testing.assert_close(wide[b], narrow[0], rtol=1e-4, atol=1e-4)
        assert narrow.isfinite().sum() < VOCAB


def test_only_where_it_saves_enough_and_is_possible(pair, monkeypatch):
    assert FrequentTokens.of_large(pair[1]) is not None
    assert FrequentTokens.of_large(tiny(vocab_size=2 * SIZE - 1)) is None
    monkeypatch.setattr(frequent, "WORTH", 0.99)
    assert FrequentTokens.of_large(pair[1]) is None
    monkeypatch.setattr(frequent, "WORTH", 0.0)
    hooked = noisy(pair[0], 0)
    hooked.lm_head.register_forward_hook(lambda *_: None)
    assert FrequentTokens.of_large(hooked) is None


@pytest.mark.parametrize(
    "options",
    [{"num_assistant_tokens": 3}, {"num_assistant_tokens_schedule": "heuristic"}, {"draft_vocab_size": VOCAB}],
)
def test_a_fixed_length_and_a_vocabulary_that_was_given_are_left_alone(pair, trims, options):
    options = {"num_assistant_tokens": None, "max_new_tokens": 20, "spec_source": "draft"} | options
    stats = spec(*pair, **of_ids(3, SIZE), **options).spec_stats
    assert not trims and stats.drafted == stats.accepted


def test_a_draft_that_would_not_compute_through_a_copy_keeps_its_head(pair, trims, monkeypatch):
    monkeypatch.setattr(frequent, "fault_of", lambda model: "its logits are 2 standard deviations off")
    stats = decode(pair, of_ids(3, SIZE), return_dict_in_generate=True).spec_stats
    assert all(trims) and 0 < stats.acceptance_rate < 1, "rare tokens stay barred"


def test_a_draft_that_is_not_needed_is_not_even_tried(pair, monkeypatch):
    """One that reads as much as the target is left out before its first forward."""
    monkeypatch.setattr(frequent, "fault_of", lambda model: pytest.fail("a forward of a draft that stays off"))
    out = spec(*pair, **of_ids(3, SIZE), max_new_tokens=20, num_assistant_tokens=None, spec_source="draft")
    assert out.spec_stats.drafted == 0 and out.spec_stats.off_reason
