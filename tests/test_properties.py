"""Random calls: whatever family, batch, draft length and options, a row is what it is alone, and the counts add up."""

import itertools

import pytest
import torch
from families import build, draft_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import VOCAB, batch_of, plain, spec

MODELS = ["llama", "mistral", "gemma3_text", "gpt2", "bloom", "llama4_text"]
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]
PAD = 0
pytestmark = pytest.mark.filterwarnings("ignore:Unfeasible length constraints")

ids = st.integers(2, VOCAB - 1)
some_ids = st.lists(ids, min_size=1, max_size=6, unique=True)
rows_of_text = st.lists(st.lists(ids, min_size=1, max_size=14), min_size=1, max_size=4)
sides = st.sampled_from(["left", "right"])
drafting = st.fixed_dictionaries(
    {
        "num_assistant_tokens": st.integers(1, 6),
        "num_assistant_tokens_schedule": st.sampled_from(["constant", "heuristic"]),
        "assistant_confidence_threshold": st.sampled_from([None, None, 0.0, 0.055]),
    }
)
processors = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.8, 1.1, 1.5]),
        "no_repeat_ngram_size": st.integers(1, 3),
        "bad_words_ids": st.lists(st.lists(ids, min_size=1, max_size=3), min_size=1, max_size=5),
        "sequence_bias": st.lists(
            st.tuples(st.lists(ids, min_size=1, max_size=2), st.sampled_from([-2.0, 1.0])), min_size=1, max_size=3
        ).map(lambda pairs: [[list(key), bias] for key, bias in dict((tuple(k), b) for k, b in pairs).items()]),
        "min_new_tokens": st.integers(1, 12),
        "suppress_tokens": some_ids,
        "begin_suppress_tokens": some_ids,
        "forced_eos_token_id": ids,
        "exponential_decay_length_penalty": st.tuples(st.integers(1, 10), st.sampled_from([1.05, 1.3])),
    },
)


def alone(target, row: list[int], pad: int, **options):
    """Plain greedy decoding of a row without its padding. Absolute lengths count columns, so the row's are shorter."""
    for name in ("max_length", "min_length"):
        if name in options:
            options[name] = max(0, options[name] - pad)
    ids = torch.tensor([row])
    out = plain(
        target,
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    return out.sequences[0, len(row) :].tolist(), torch.cat(out.scores)


def assert_same_up_to_a_tie(got: list[int], wanted: list[int], scores: torch.Tensor, label: str):
    """Equal; two best scores closer than float32 can tell apart (another sum order) may end the comparison."""
    differing = next((i for i, (a, b) in enumerate(itertools.zip_longest(got, wanted)) if a != b), None)
    if differing is not None:
        first, second = scores[min(differing, len(scores) - 1)].topk(2).values.tolist()
        assert differing < min(len(got), len(wanted)) and first - second < 1e-5, f"{label}: {got} is not {wanted}"


def new_of(out, columns: int) -> list[list[int]]:
    """Each row's new tokens, as many as its statistics say; what follows has to be padding."""
    rows = []
    for sequence, stats in zip(out.sequences[:, columns:].tolist(), out.spec_stats.rows, strict=True):
        assert set(sequence[stats.emitted :]) <= {PAD}
        rows.append(sequence[: stats.emitted])
    return rows


def assert_counts_add_up(out):
    stats = out.spec_stats
    for mask, row in zip(out.draft_mask.tolist(), stats.rows, strict=True):
        assert row.emitted == row.accepted + row.rounds - row.trimmed
        assert row.trace[0] == (0, 0), "round 0 is the prefill"
        assert all(0 <= accepted <= drafted for drafted, accepted in row.trace)
        assert row.rounds == len(row.trace) == row.target_forwards
        assert row.tokens_per_target_forward == row.emitted / row.rounds
        by_round = [flag for _, accepted in row.trace for flag in [True] * accepted + [False]]
        assert mask[: row.emitted] == by_round[: row.emitted]
        assert not any(mask[row.emitted :])
        assert row.trimmed <= row.trace[-1][1], "only the last round is cut, and never to nothing"
    assert stats.emitted == stats.accepted + stats.rounds - stats.trimmed == sum(row.emitted for row in stats.rows)
    assert stats.tokens_per_target_forward == stats.emitted / stats.rounds
    assert stats.drafted == sum(row.drafted for row in stats.rows)
    assert max(row.rounds for row in stats.rows) <= stats.target_forwards <= stats.rounds
    assert out.draft_mask.sum() <= stats.accepted
    if stats.drafted:
        assert stats.acceptance_rate == stats.accepted / stats.drafted


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=CHECKS)
@given(
    name=st.sampled_from(MODELS),
    rows=rows_of_text,
    side=sides,
    drafting=drafting,
    options=processors,
    eos=st.one_of(st.none(), some_ids),
    new=st.integers(1, 28),
    absolute=st.booleans(),
    least=st.one_of(st.none(), st.integers(1, 20)),
)
def test_greedy_rows_are_what_they_are_alone(name, rows, side, drafting, options, eos, new, absolute, least):
    batch = batch_of(rows, side)
    columns = batch["input_ids"].shape[1]
    options = options | {"eos_token_id": eos, "pad_token_id": PAD}
    options |= {"max_length": columns + new} if absolute else {"max_new_tokens": new}
    if options.get("forced_eos_token_id") in options.get(
        "suppress_tokens", ()
    ):  # transformers refuses the two together
        del options["forced_eos_token_id"]
    if eos is None:
        for needs_eos in ("min_new_tokens", "exponential_decay_length_penalty"):
            options.pop(needs_eos, None)
    elif least is not None:
        options["min_length"] = columns + least
    out = spec(build(name), draft_of(name), **batch, **drafting, **options)
    for b, (row, got) in enumerate(zip(rows, new_of(out, columns), strict=True)):
        wanted, scores = alone(build(name), row, columns - len(row), **options)
        assert_same_up_to_a_tie(got, wanted, scores, f"row {b}")
    assert_counts_add_up(out)


warpers = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.3, 0.7, 1.5]),
        "top_k": st.sampled_from([0, 2, 10]),
        "top_p": st.sampled_from([0.3, 0.9]),
        "min_p": st.sampled_from([0.05, 0.5]),
        "repetition_penalty": st.just(1.3),
        "min_new_tokens": st.integers(1, 8),
    },
)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=CHECKS)
@given(
    name=st.sampled_from(MODELS),
    rows=rows_of_text,
    side=sides,
    drafting=drafting,
    options=warpers,
    eos=some_ids,
    new=st.integers(1, 24),
    seed=st.integers(0, 2**40),
)
def test_coupled_rows_are_what_they_are_alone_without_a_draft(name, rows, side, drafting, options, eos, new, seed):
    """The coupled rule's text depends on the row's seed alone: no draft at all is the oracle."""
    options = options | {"do_sample": True, "eos_token_id": eos, "pad_token_id": PAD, "max_new_tokens": new}

    def generators(which):
        return [torch.Generator().manual_seed(seed + b) for b in which]

    batch = batch_of(rows, side)
    columns = batch["input_ids"].shape[1]
    everyone = generators(range(len(rows)))
    out = spec(build(name), draft_of(name), "coupled", **batch, **drafting, **options, generator=everyone)
    for b, (row, got) in enumerate(zip(rows, new_of(out, columns), strict=True)):
        single = spec(build(name), None, "coupled", **batch_of([row]), **options, generator=generators([b]))
        assert got == new_of(single, len(row))[0], f"row {b}"
    assert_counts_add_up(out)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=CHECKS)
@given(
    strategy=st.sampled_from(["rejection", "block", "coupled"]),
    name=st.sampled_from(MODELS),
    rows=rows_of_text,
    side=sides,
    drafting=drafting,
    options=warpers,
    eos=some_ids,
    seed=st.integers(0, 2**40),
)
def test_sampled_rows_depend_on_their_own_seed_only(strategy, name, rows, side, drafting, options, eos, seed):
    """A row in a batch draws what it draws alone with the same generator, under every rule."""
    options = options | {"do_sample": True, "eos_token_id": eos, "pad_token_id": PAD, "max_new_tokens": 16}
    batch = batch_of(rows, side)
    columns = batch["input_ids"].shape[1]

    def sample(inputs, which):
        generators = [torch.Generator().manual_seed(seed + b) for b in which]
        return spec(build(name), draft_of(name), strategy, **inputs, **drafting, **options, generator=generators)

    out = sample(batch, range(len(rows)))
    for b, (row, got) in enumerate(zip(rows, new_of(out, columns), strict=True)):
        assert got == new_of(sample(batch_of([row]), [b]), len(row))[0], f"row {b}"
    assert_counts_add_up(out)
