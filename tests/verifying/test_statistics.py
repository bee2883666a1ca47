"""The tests' own statistics: exact laws, uniform p-values, the power that is stated."""

import itertools

import pytest
import torch

from hf_specgen.verifying.statistics import Draws, holm, poisson_binomial, pooled, tails, visible_shift

LEVEL, POWER = 1e-3, 0.9


def drawn(chance, generator, shift=0.0, slack=0.0) -> Draws:
    inside = torch.rand(len(chance), generator=generator, dtype=torch.float64) < (chance + shift).clamp(0, 1)
    return Draws(inside, chance, torch.full_like(chance, slack))


def uniform(generator) -> float:
    return float(torch.rand((), generator=generator, dtype=torch.float64))


def test_poisson_binomial_is_that_of_all_outcomes():
    chance = torch.tensor([0.1, 0.5, 0.9, 0.33, 1.0, 0.0, 0.7]).double()
    wanted = torch.zeros(8).double()
    for outcome in itertools.product([0, 1], repeat=7):
        x = torch.tensor(outcome)
        wanted[sum(outcome)] += torch.where(x == 1, chance, 1 - chance).prod()
    torch.testing.assert_close(poisson_binomial(chance), wanted, rtol=0, atol=1e-14)


def test_poisson_binomial_of_many_is_binomial():
    law = poisson_binomial(torch.full((600,), 0.25).double())
    binomial = torch.distributions.Binomial(600, torch.tensor(0.25).double())
    wanted = binomial.log_prob(torch.arange(601).double()).exp()
    torch.testing.assert_close(law, wanted, rtol=0, atol=1e-13)
    assert poisson_binomial(torch.zeros(0).double()).tolist() == [1.0]


def test_p_values_are_uniform_under_the_law_with_chances_of_all_kinds_and_few_draws():
    generator = torch.Generator().manual_seed(1)
    alone, together = [], []
    for _ in range(1500):
        sides = [
            tails(drawn(torch.rand(n, generator=generator).double() ** 4, generator), uniform(generator))
            for n in (3, 12, 30)
        ]
        alone += [side.p_value for side in sides]
        together.append(pooled(sides).p_value)
    for p in map(torch.tensor, (alone, together)):
        for level in (0.01, 0.05, 0.2, 0.5):
            error = 4 * (level * (1 - level) / len(p)) ** 0.5
            assert (p < level).double().mean().item() == pytest.approx(level, abs=error)


@pytest.mark.parametrize("positions", [1, 3])
def test_the_stated_power_is_there(positions):
    generator = torch.Generator().manual_seed(2)
    chances = [0.1 + 0.5 * torch.rand(200, generator=generator).double() for _ in range(positions)]
    shift = visible_shift([drawn(c, generator) for c in chances], LEVEL, POWER)
    assert 0.05 < shift < 0.2
    for sign in (1, -1):
        seen = [
            pooled([tails(drawn(c, generator, sign * shift), uniform(generator)) for c in chances]).p_value < LEVEL
            for _ in range(150)
        ]
        assert 0.8 < sum(seen) / len(seen) < 0.99


def test_rounding_is_not_blamed_and_counts_in_the_power():
    generator = torch.Generator().manual_seed(3)
    chance = torch.full((4000,), 0.3).double()
    p = [tails(drawn(chance, generator, shift=0.03, slack=slack), 0.5).p_value for slack in (0.0, 0.03)]
    assert p[0] < 1e-3 < p[1]
    exact, rounded = (visible_shift([drawn(chance, generator, slack=s)], LEVEL, POWER) for s in (0.0, 0.03))
    assert rounded == pytest.approx(exact + 0.03)


def test_what_cannot_happen_is_seen_at_once_and_what_must_happen_is_not_blamed():
    generator = torch.Generator().manual_seed(4)
    never = torch.full((50,), 1e-9).double()
    assert tails(Draws(torch.arange(50) < 1, never, 0 * never), 0.5).p_value < 1e-6
    assert tails(drawn(torch.zeros(50).double(), generator), 0.4).p_value == pytest.approx(0.8)
    assert visible_shift([], LEVEL, POWER) == 1.0


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
