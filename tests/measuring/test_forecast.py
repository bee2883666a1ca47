"""The walk over a text against every path that modified rejection sampling can take, and against traces by hand."""

import dataclasses
import itertools

import pytest
import torch

from hf_specgen.measuring.forecast import Agreement, Forecast, break_even, forecast, total

EOS, IDS, NEW = 0, 3, 6


def chain(seed: int) -> torch.Tensor:
    """A model of `IDS` tokens that looks at the last one only: float64 `[last, next]`, each row a distribution."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(IDS, IDS, generator=generator, dtype=torch.float64) * 2).exp().softmax(-1)


def texts(p: torch.Tensor, first: int):
    """(text, probability) of all texts that begin with token `first` and end with EOS or at `NEW` tokens."""
    open_texts = [([first], 1.0)]
    while open_texts:
        text, chance = open_texts.pop()
        if text[-1] == EOS or len(text) == NEW:
            yield text, chance
        else:
            open_texts += [([*text, x], chance * float(p[text[-1], x])) for x in range(IDS)]


def agreement_of(text: list[int], p: torch.Tensor, q: torch.Tensor, clip: bool = True) -> Agreement:
    ratio = [float(q[a, x] / p[a, x]) for a, x in itertools.pairwise(text)]
    kept = [min(1.0, r) if clip else r for r in ratio]
    excess = [(q[a] - p[a]).clamp(min=0) for a in text[:-1]]
    return Agreement(
        kept=[0.0, *kept],
        overlap=[None, *(float(torch.minimum(p[a], q[a]).sum()) for a in text[:-1])],
        ends=[0.0, *(float(e[EOS] / e.sum()) for e in excess)],
        eos=[x == EOS for x in text],
        room=[NEW - t - 1 for t in range(len(text))],
    )


def enumerated(p: torch.Tensor, q: torch.Tensor, first: int, k: int) -> dict[str, float]:
    """Expected counts of decoding itself: every draft, every verdict, every correction, with its probability."""
    found = {"rounds": 1.0, "accepted": 0.0, "reached": [0.0] * k, "hits": [0.0] * k, "emitted": 1.0}
    states = {(1, first): 1.0}  # (tokens so far, the last one): probability that a round begins there
    for length in range(1, NEW):
        for last in range(1, IDS):
            if weight := states.get((length, last), 0.0):
                found["rounds"] += weight
                for at, token, chance in one_round(p, q, length, last, k, weight, found):
                    found["emitted"] += chance * (at - length)
                    states[at, token] = states.get((at, token), 0.0) + chance
    return found


def one_round(p, q, length, last, k, weight, found):
    """(tokens so far, last one, probability) of the states that a round leads to."""
    width = min(k, NEW - length - 1)
    drafting = {last: weight}
    for i in range(width):
        ahead = {}
        for a, chance in drafting.items():
            found["reached"][i] += chance
            residual = (p[a] - q[a]).clamp(min=0)
            rejected = 0.0
            for x in range(IDS):
                accepted = chance * float(torch.minimum(p[a, x], q[a, x]))
                rejected += chance * float(q[a, x]) - accepted
                found["hits"][i] += accepted
                found["accepted"] += accepted
                if x == EOS:  # the text is over
                    yield length + i + 1, EOS, accepted
                else:
                    ahead[x] = ahead.get(x, 0.0) + accepted
            for x in range(IDS):
                yield length + i + 1, x, rejected * float(residual[x] / residual.sum())
        drafting = ahead
    for a, chance in drafting.items():
        for x in range(IDS):
            yield length + width + 1, x, chance * float(p[a, x])


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_equal_to_enumeration(k, seed):
    p, q = chain(seed), chain(seed + 10)
    wanted = enumerated(p, q, 1, k)
    assert 0.2 < wanted["accepted"] < NEW - 1
    found = {name: 0.0 for name in ("rounds", "accepted", "emitted")} | {"reached": [0.0] * k, "hits": [0.0] * k}
    for text, chance in texts(p, 1):
        one = forecast(agreement_of(text, p, q), k)
        for name in ("rounds", "accepted", "emitted"):
            found[name] += chance * getattr(one, name)
        for name in ("reached", "hits"):
            found[name] = [a + chance * b for a, b in zip(found[name], getattr(one, name), strict=True)]
    assert found == {name: pytest.approx(value, rel=1e-9) for name, value in wanted.items()}


def test_wrong_formulas_are_told_from_the_right_one():
    """Ratios that are not clipped at 1, and one mean acceptance at every place: both miss the enumeration, here for a
    draft that knows what follows one token and not what follows the other."""
    p, k = chain(0), 4
    q = torch.stack([p[0], 0.95 * p[1] + 0.05 * p[1].flip(0), p[2].flip(0)])
    wanted = enumerated(p, q, 1, k)["rounds"]
    overlap = torch.minimum(p, q).sum(-1).mean().item()
    unclipped, independent = 0.0, 0.0
    for text, chance in texts(p, 1):
        right = agreement_of(text, p, q)
        unclipped += chance * forecast(agreement_of(text, p, q, clip=False), k).rounds
        independent += chance * forecast(dataclasses.replace(right, kept=[overlap] * len(text)), k).rounds
    assert abs(unclipped / wanted - 1) > 0.01 and abs(independent / wanted - 1) > 0.01


def certain(kept: list[int], eos=(), ends=(), room=None) -> Agreement:
    """A greedy text; `kept` from token 1 on."""
    n = len(kept) + 1
    return Agreement(
        kept=[0.0, *map(float, kept)],
        overlap=[None, *map(float, kept)],
        ends=[float(t in ends) for t in range(n)],
        eos=[t in eos for t in range(n)],
        room=room or [n - t - 1 for t in range(n)],
    )


def test_a_certain_text_by_hand():
    #              rounds: [1 1 0] [1 1 1 +] [0] [1 +]
    found = forecast(certain([1, 1, 0, 1, 1, 1, 1, 0, 1, 1]), 3)
    assert (found.emitted, found.rounds, found.drafted, found.accepted) == (11, 5, 3 + 3 + 2 + 1, 2 + 3 + 0 + 1)
    assert found.by_width == [0, 1, 1, 2] and found.tokens_per_round == 10 / 4
    assert found.emitted == found.accepted + found.rounds
    assert found.acceptance_by_position.conditional == [3 / 4, 2 / 2, 1 / 2]
    assert found.acceptance_by_position.unconditional == [3 / 4, 2 / 3, 1 / 2]


def test_rounds_that_were_run_are_counted_as_those_of_the_walk():
    run = Forecast(3, texts=1, emitted=11, rounds=1.0)
    for width, drafted, accepted in ((3, 3, 2), (3, 3, 3), (2, 2, 0), (1, 1, 1)):
        run.add_round(width, drafted, accepted)
    assert run == forecast(certain([1, 1, 0, 1, 1, 1, 1, 0, 1, 1]), 3)


def test_the_drafts_eos_ends_its_drafting_not_the_text():
    wide = [3] * 7
    found = forecast(certain([1, 1, 1, 1, 1, 1], eos={2}, room=wide), 3)
    assert (found.rounds, found.drafted, found.accepted) == (3, 2 + 3, 2 + 3)  # [1 eos +] [1 1 1], and the text is over
    assert found.by_width == [0, 0, 0, 2]  # what it may draft, whatever it does
    wrong = forecast(certain([1, 0, 1, 1, 1, 1], ends={2}, room=wide), 3)
    assert (wrong.drafted, wrong.accepted, wrong.rounds) == (2 + 3, 1 + 3, 3)  # a wrong EOS is drafted, and the last


def test_the_texts_eos_is_the_end():
    found = forecast(certain([1, 1], eos={2}, room=[9, 9, 9]), 4)
    assert (found.rounds, found.drafted, found.accepted, found.emitted) == (2, 2, 2, 3)


def test_an_answer_of_one_token_has_a_prefill_and_nothing_else():
    found = forecast(certain([]), 2)
    assert (found.emitted, found.rounds, found.drafted, found.acceptance_rate) == (1, 1, 0, None)
    assert found.tokens_per_round is None and found.acceptance_by_position.conditional == [None, None]


def test_sums_and_costs():
    one = certain([1, 1, 0, 1, 1, 1, 1, 0, 1, 1])
    both = total([forecast(one, 3), forecast(one, 3)])
    assert (both.texts, both.emitted, both.rounds, both.accepted) == (2, 22, 10, 12)
    assert both.cost([1.0, 1.5, 2.0, 2.5]) == 2 * (1.5 + 2.0 + 2 * 2.5)


def test_break_even():
    assert break_even(1, 1.6) == pytest.approx(0.6)
    assert break_even(2, 1 + 0.5 + 0.25) == pytest.approx(0.5)
    assert break_even(3, 4.01) is None and break_even(3, 0.9) == pytest.approx(0)
