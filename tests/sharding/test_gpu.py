"""On real GPUs, float32: what is exact on a CPU is exact there. Skipped without one.

`pytest tests/sharding/test_gpu.py` on a machine with two of them runs everything.
"""

import copy

import pytest
import torch
from toys import noisy, plain, prompts, row_alone, seeded, spec, tiny

import hf_specgen
from hf_specgen.compat import CACHE_NAME

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")

NEW = 16
BATCH = prompts([5, 9, 3])
IN_TWO = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0, "model.layers.1": 1}
IN_TWO |= {"model.layers.2": 1, "model.norm": 1, "lm_head": 1}
WITH_CPU = {name: "cpu" if place else 0 for name, place in IN_TWO.items()}
PLACES = {
    "both on one GPU": ("cuda:0", "cuda:0"),
    "draft on the CPU": ("cuda:0", "cpu"),
    "target on the CPU": ("cpu", "cuda:0"),
    "target over GPU and CPU": (WITH_CPU, "cuda:0"),
    "draft on the other GPU": ("cuda:0", "cuda:1"),
    "target over two, draft on its first": (IN_TWO, "cuda:0"),
    "target over two, draft on its second": (IN_TWO, "cuda:1"),
    "target over two, draft on the CPU": (IN_TWO, "cpu"),
    "both over two": (IN_TWO, IN_TWO),
}


def needs_two(places) -> bool:
    return any(1 in place.values() if isinstance(place, dict) else place == "cuda:1" for place in places)


@pytest.fixture(autouse=True)
def full_precision():
    """TF32 would round one forward's tokens differently from single ones."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="module")
def models():
    target = tiny()
    return target, noisy(target)


def placed(model, place):
    model = copy.deepcopy(model)
    if not isinstance(place, dict):
        return model.to(place)
    return pytest.importorskip("accelerate").dispatch_model(model, place)


@pytest.fixture(
    scope="module",
    params=[pytest.param(p, marks=two_gpus if needs_two(p) else ()) for p in PLACES.values()],
    ids=list(PLACES),
)
def pair(request, models):
    return [placed(model, place) for model, place in zip(models, request.param, strict=True)]


def home_of(pair) -> torch.device:
    """Where a user puts the prompts."""
    return pair[0].get_input_embeddings().weight.device


def at_home(pair, batch=BATCH) -> dict:
    return {name: x.to(home_of(pair)) for name, x in batch.items()}


def speculate(pair, strategy="rejection", **kwargs):
    return spec(*pair, strategy, **{"max_new_tokens": NEW, "num_assistant_tokens": 4} | kwargs)


def test_greedy_is_plain_row_by_row(pair):
    out = speculate(pair, **at_home(pair))
    assert out.sequences.device == home_of(pair)
    assert 0 < out.spec_stats.accepted < out.spec_stats.drafted
    for b in range(3):
        row = at_home(pair, row_alone(BATCH, b))
        ids = plain(pair[0], **row, max_new_tokens=NEW, do_sample=False)[0, row["input_ids"].shape[1] :].tolist()
        assert out.sequences[b, BATCH["input_ids"].shape[1] :].tolist()[: len(ids)] == ids


def test_the_noise_is_the_same_everywhere(pair, models):
    """Coupled text depends on the seed alone: that of a CPU."""
    wanted = speculate(models, "coupled", **BATCH, **seeded()).sequences
    assert torch.equal(speculate(pair, "coupled", **at_home(pair), **seeded()).sequences.cpu(), wanted)
    alone = spec(pair[0], None, "coupled", **at_home(pair), **seeded(), max_new_tokens=NEW)
    assert torch.equal(alone.sequences.cpu(), wanted)


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_the_same_seed_twice_alone_and_in_a_batch(pair, strategy):
    def sampled(batch, seeds):
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return speculate(pair, strategy, **at_home(pair, batch), do_sample=True, generator=generators).sequences

    first = sampled(BATCH, [1, 2, 3])
    assert torch.equal(first, sampled(BATCH, [1, 2, 3]))
    row = row_alone(BATCH, 1)
    alone = sampled(row, [2])[0, row["input_ids"].shape[1] :].tolist()
    assert first[1, BATCH["input_ids"].shape[1] :].tolist()[: len(alone)] == alone


def test_a_generator_on_the_gpu(pair):
    if home_of(pair).type != "cuda":
        pytest.skip("the prompt is not on a GPU")
    said = [
        speculate(pair, **at_home(pair), do_sample=True, generator=torch.Generator(home_of(pair)).manual_seed(4))
        for _ in range(2)
    ]
    assert torch.equal(said[0].sequences, said[1].sequences)


@pytest.mark.parametrize("carry", ["session", "cache"])
def test_conversations(pair, carry):
    text, session, cache = at_home(pair)["input_ids"][1:2], hf_specgen.SpecSession(), {}
    for _ in range(2):
        wanted = plain(pair[0], input_ids=text, max_new_tokens=NEW, do_sample=False)
        out = speculate(pair, input_ids=text, **({"spec_session": session} if carry == "session" else cache))
        assert torch.equal(out.sequences, wanted)
        text, cache = torch.cat([out.sequences, text[:, :2]], dim=1), {CACHE_NAME: out[CACHE_NAME]}


def test_options_that_look_at_the_text(pair):
    options = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4, "do_sample": False}
    row = at_home(pair, row_alone(BATCH, 1))
    wanted = plain(pair[0], **row, **options, max_new_tokens=NEW)
    assert torch.equal(speculate(pair, **row, **options).sequences, wanted)


def test_statistics_are_measured(pair):
    stats = speculate(pair, **at_home(pair)).spec_stats
    assert stats.prefill_seconds > 0 and stats.draft_seconds > 0 and stats.verify_seconds > 0
