"""The seed contract: same seed, same ids, whatever runs between, beside or before; one stream per row."""

import pytest
import torch
from toys import noisy, plain, prompts, row_alone, spec, tiny

from hf_specgen import SpecUnsupportedError

LENGTHS = [3, 7, 5]
NEW = 12
SETTINGS = {"do_sample": True, "temperature": 0.9, "max_new_tokens": NEW, "pad_token_id": 0, "top_k": 0}
STRATEGIES = ["rejection", "block", "coupled"]


@pytest.fixture(scope="module")
def target():
    return tiny(num_hidden_layers=2, scale=3.0, eos_token_id=None)


@pytest.fixture(scope="module")
def draft(target):
    return noisy(target, 0.3)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ids_of(target, draft, strategy, batch, **kwargs) -> torch.Tensor:
    """The new tokens."""
    out = spec(target, draft, strategy, **batch, **SETTINGS | kwargs)
    if draft is not None:
        assert out.spec_stats.accepted > 0
    return out.sequences[:, batch["input_ids"].shape[1] :]


# -- torch.manual_seed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[5], LENGTHS], ids=["alone", "batch"])
@pytest.mark.parametrize("schedule", [{}, {"num_assistant_tokens_schedule": "heuristic"}], ids=["default", "heuristic"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_same_manual_seed_twice_gives_the_same_ids(target, draft, strategy, schedule, lengths):
    batch = prompts(lengths)
    torch.manual_seed(3)
    first = ids_of(target, draft, strategy, batch, **schedule)
    ids_of(target, draft, strategy, prompts([4]), num_assistant_tokens=9, **schedule)  # an unrelated call in between
    torch.manual_seed(3)
    assert torch.equal(ids_of(target, draft, strategy, batch, **schedule), first)
    torch.manual_seed(4)
    assert not torch.equal(ids_of(target, draft, strategy, batch, **schedule), first)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_calls_under_one_manual_seed_differ(target, draft, strategy):
    batch = prompts(LENGTHS)
    torch.manual_seed(3)
    assert not torch.equal(ids_of(target, draft, strategy, batch), ids_of(target, draft, strategy, batch))


def test_greedy_ids_need_no_seed(target, draft):
    batch = prompts(LENGTHS)
    runs = [ids_of(target, draft, "rejection", batch, do_sample=False) for _ in range(2)]
    assert torch.equal(*runs)


def test_a_greedy_call_leaves_every_generator_alone(target, draft):
    torch.manual_seed(3)
    own = seeded(1)
    before = torch.get_rng_state(), own.get_state()
    for generator in (None, own, [own, None, own]):
        ids_of(target, draft, "rejection", prompts(LENGTHS), do_sample=False, generator=generator)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(own.get_state(), before[1])


def test_a_callers_generator_leaves_the_global_one_alone(target, draft):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    ids_of(target, draft, "rejection", prompts(LENGTHS), generator=seeded(1))
    ids_of(target, draft, "rejection", prompts(LENGTHS), generator=[seeded(b) for b in range(3)])
    assert torch.equal(torch.get_rng_state(), before)


# -- generator= --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_generator_keys_each_row_by_its_number(target, draft, strategy):
    """Row b's ids are those of any call whose row b has the same prompt and whose generator has the same seed."""
    batch = prompts(LENGTHS)
    first = ids_of(target, draft, strategy, batch, generator=seeded(8))
    torch.manual_seed(99)  # of no influence
    assert torch.equal(ids_of(target, draft, strategy, batch, generator=seeded(8)), first)
    fewer = {name: x[:2] for name, x in batch.items()}
    assert torch.equal(ids_of(target, draft, strategy, fewer, generator=seeded(8)), first[:2])
    other = prompts(LENGTHS, seed=5)
    for name in other:
        other[name][1] = batch[name][1]
    assert torch.equal(ids_of(target, draft, strategy, other, generator=seeded(8))[1], first[1])


def test_equal_prompts_under_one_generator_take_different_ways(target, draft):
    batch = {name: x.expand(3, -1) for name, x in prompts([5]).items()}
    assert len(set(map(tuple, ids_of(target, draft, "rejection", batch, generator=seeded(8)).tolist()))) == 3


def test_a_generator_used_twice_moves_on(target, draft):
    generator = seeded(8)
    runs = [ids_of(target, draft, "rejection", prompts(LENGTHS), generator=generator) for _ in range(2)]
    assert not torch.equal(*runs)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_row_with_its_own_generator_is_that_row_alone(target, draft, strategy, order, side):
    left, padded = prompts(LENGTHS), prompts(LENGTHS, side=side)
    batch = {name: x[order] for name, x in padded.items()}
    got = ids_of(target, draft, strategy, batch, generator=[seeded(50 + b) for b in order])
    for place, b in enumerate(order):
        alone = ids_of(target, draft, strategy, row_alone(left, b), generator=[seeded(50 + b)])
        assert got[place].tolist() == alone[0].tolist()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_alone_a_generator_and_a_list_of_it_are_the_same(target, draft, strategy):
    batch = prompts([6])
    single = ids_of(target, draft, strategy, batch, generator=seeded(2))
    assert torch.equal(ids_of(target, draft, strategy, batch, generator=[seeded(2)]), single)


def test_none_in_a_list_draws_from_the_global_seed(target, draft):
    batch = prompts(LENGTHS)

    def run(manual_seed):
        torch.manual_seed(manual_seed)
        return ids_of(target, draft, "rejection", batch, generator=[seeded(1), None, seeded(3)])

    first, again, other = run(5), run(5), run(6)
    assert torch.equal(first, again)
    assert torch.equal(first[[0, 2]], other[[0, 2]])
    assert not torch.equal(first[1], other[1])


def test_a_list_covers_num_return_sequences(target, draft):
    batch = prompts([4, 6])
    got = ids_of(target, draft, "rejection", batch, num_return_sequences=2, generator=[seeded(b) for b in (7, 8, 7, 8)])
    for row, (b, seed) in enumerate([(0, 7), (0, 8), (1, 7), (1, 8)]):
        alone = ids_of(target, draft, "rejection", row_alone(batch, b), generator=[seeded(seed)])
        assert torch.equal(got[row], alone[0])


@pytest.mark.parametrize(
    "generator, complaint",
    [
        ([None], "list of 1, but there are 3 rows"),
        ([None] * 4, "list of 4, but there are 3 rows"),
        ([], "list of 0, but there are 3 rows"),
        (17, "generator is a int"),
        ([torch.Generator(), 17, None], r"generator\[1\] is a int"),
    ],
    ids=["too few", "too many", "none", "a number", "a number in a list"],
)
def test_a_wrong_generator_is_refused_before_anything_runs(target, draft, generator, complaint):
    ran = []
    hooks = [model.register_forward_pre_hook(lambda *_: ran.append(1)) for model in (target, draft)]
    try:
        with pytest.raises(SpecUnsupportedError, match=complaint):
            ids_of(target, draft, "rejection", prompts(LENGTHS), generator=generator)
    finally:
        for hook in hooks:
            hook.remove()
    assert not ran


# -- rows are different ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeding", ["manual", "generator"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_equal_prompts_spread_as_in_plain_sampling(target, draft, strategy, seeding):
    """64 equal prompts: as many distinct three-token continuations as plain sampling gives, within its own spread."""
    batch = {name: x.expand(64, -1) for name, x in prompts([5]).items()}
    settings = SETTINGS | {"max_new_tokens": 6, "temperature": 0.5, "top_k": 4}

    def distinct(sequences):
        return len(set(map(tuple, sequences[:, -6:][:, :3].tolist())))

    counts = []
    for seed in range(8):
        torch.manual_seed(seed)
        counts.append(distinct(plain(target, **batch, **settings)))
    usual, spread = sum(counts) / len(counts), max(counts) - min(counts)
    assert 4 < usual < 60  # neither all equal nor all different: the number tells something
    generator = None if seeding == "manual" else seeded(0)
    torch.manual_seed(0)
    got = distinct(spec(target, draft, strategy, **batch, generator=generator, **settings).sequences)
    assert abs(got - usual) <= 1.5 * spread


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_are_independent(target, draft, strategy):
    """Neighbouring rows of one call agree on their first token as often as chance has it."""
    batch = {name: x.expand(600, -1) for name, x in prompts([5]).items()}
    first = ids_of(target, draft, strategy, batch, generator=seeded(0), max_new_tokens=3, temperature=0.3)[:, 1]
    law = first.bincount() / len(first)
    expected = (law**2).sum().item()
    agree = (first[:-1] == first[1:]).double().mean().item()
    assert abs(agree - expected) < 4 * (expected * (1 - expected) / 599) ** 0.5
