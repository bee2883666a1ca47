"""Weights that accelerate's hooks bring from the CPU or the disk for each layer: nothing else changes."""

import copy

import pytest
import torch
from toys import batch_of, noisy, plain, prompts, read_into_cache, reading, row_alone, spec, text, tiny
from transformers import AutoModelForCausalLM

import hf_specgen
from hf_specgen.compat import CACHE_NAME
from hf_specgen.unwrap import unwrap

accelerate = pytest.importorskip("accelerate")

NEW = 12
BATCH = prompts([5, 9, 3])
SPREAD = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "disk"}
SPREAD |= {"model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk"}


def dispatched(model, folder):
    return accelerate.dispatch_model(copy.deepcopy(model), SPREAD, main_device="cpu", offload_dir=folder)


def with_little_memory(model, folder):
    model.save_pretrained(folder)
    limit = {"cpu": model.get_memory_footprint() * 2 // 3}
    return AutoModelForCausalLM.from_pretrained(folder, device_map="auto", max_memory=limit)


def offloaded_to_cpu(model, folder):
    return accelerate.cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))


def offloaded_to_disk(model, folder):
    return accelerate.disk_offload(copy.deepcopy(model), folder, execution_device=torch.device("cpu"))


def with_adapter(model):
    """A model whose LoRA adapter matters."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    return peft.get_peft_model(copy.deepcopy(model), config).eval()


PLACES = {
    "over cpu and disk": dispatched,
    "with little memory": with_little_memory,
    "to the cpu": offloaded_to_cpu,
    "to the disk": offloaded_to_disk,
    "to the disk, with adapters": offloaded_to_disk,
}


@pytest.fixture(
    scope="module", params=[(place, who) for place in PLACES for who in ("target", "draft", "both")], ids=str
)
def models(request, tmp_path_factory):
    """Two pairs that are the same, but one has the weights of its target, its draft or both elsewhere."""
    place, who = request.param
    target = tiny()
    whole = [target, noisy(target)]
    if "adapters" in place:
        whole = [with_adapter(model) for model in whole]
    roles = ("target", "draft") if who == "both" else (who,)
    placed = [
        PLACES[place](model, str(tmp_path_factory.mktemp(role))) if role in roles else model
        for role, model in zip(("target", "draft"), whole, strict=True)
    ]
    yield placed, whole
    for role, model in zip(("target", "draft"), placed, strict=True):  # nothing was brought to stay
        assert any(p.device.type == "meta" for p in model.parameters()) == (role in roles)


@pytest.fixture
def pair(models):
    return models[0]


@pytest.fixture
def whole(models):
    return models[1]


def speculate(pair, strategy="rejection", **kwargs):
    return spec(pair[0], pair[1], strategy, **{"max_new_tokens": NEW, "num_assistant_tokens": 4} | kwargs)


def test_a_models_own_device_does_not_say_where_it_takes_its_ids(tmp_path):
    assert offloaded_to_cpu(tiny(), None).device.type == "meta"
    assert offloaded_to_disk(tiny(), str(tmp_path)).device.type == "meta"


def plainly(pair, **kwargs):
    """Plain greedy ids."""
    return plain(unwrap(pair[0]), **{"max_new_tokens": NEW, "do_sample": False} | kwargs)


def test_greedy(pair, whole):
    out = speculate(pair, **BATCH)
    wanted = speculate(whole, **BATCH)
    assert out.sequences.tolist() == plainly(whole, **BATCH).tolist()
    assert [row.trace for row in out.spec_stats.rows] == [row.trace for row in wanted.spec_stats.rows]
    assert 0 < out.spec_stats.accepted < out.spec_stats.drafted
    for b in range(3):
        row = row_alone(BATCH, b)
        ids = plainly(whole, **row)[0, row["input_ids"].shape[1] :].tolist()
        assert out.sequences[b, BATCH["input_ids"].shape[1] :].tolist()[: len(ids)] == ids


@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
def test_sampled(pair, whole, strategy):
    said = []
    for models in (pair, whole):
        generator = torch.Generator().manual_seed(5)
        out = speculate(models, strategy, **BATCH, do_sample=True, generator=generator, output_logits=True)
        said.append((out.sequences.tolist(), torch.stack(out.logits)))
    assert said[0][0] == said[1][0]
    assert torch.allclose(said[0][1], said[1][1])


def test_a_returned_cache_goes_on(pair, whole):
    """Speculatively, and in plain decoding."""
    first = speculate(pair, **BATCH, eos_token_id=None)
    text = torch.cat([first.sequences, torch.full((3, 2), 7)], dim=1)
    mask = torch.nn.functional.pad(BATCH["attention_mask"], (0, NEW + 2), value=1)
    wanted = plainly(whole, input_ids=text, attention_mask=mask)
    again = {CACHE_NAME: copy.deepcopy(first[CACHE_NAME])}
    assert torch.equal(plainly(pair, input_ids=text, attention_mask=mask, **again), wanted)
    second = speculate(pair, input_ids=text, attention_mask=mask, **{CACHE_NAME: first[CACHE_NAME]})
    assert torch.equal(second.sequences, wanted)


def test_a_cache_that_plain_decoding_filled(pair, whole):
    batch = batch_of([text(6), text(9)])
    longer = {name: torch.cat([x, torch.full((2, 3), 1 if "mask" in name else 7)], dim=1) for name, x in batch.items()}
    wanted = plainly(whole, **longer)
    assert torch.equal(speculate(pair, **longer, **read_into_cache(unwrap(pair[0]), batch)).sequences, wanted)


def test_a_session(pair, whole):
    session, ids = hf_specgen.SpecSession(), BATCH["input_ids"][:1, -5:]
    first = speculate(pair, input_ids=ids, spec_session=session, eos_token_id=None)
    ids = torch.cat([first.sequences, torch.tensor([[7, 8, 9]])], dim=1)
    with reading(pair[0]) as shapes:
        second = speculate(pair, input_ids=ids, spec_session=session)
    assert torch.equal(second.sequences, plainly(whole, input_ids=ids))
    assert shapes[0] == (1, 4), "the last token of the first turn, and what is new"


def test_without_a_draft(pair, whole):
    said = []
    for target in (pair[0], whole[0]):
        generator = torch.Generator().manual_seed(5)
        said.append(spec(target, None, "coupled", **BATCH, do_sample=True, generator=generator, max_new_tokens=NEW))
    assert torch.equal(said[0].sequences, said[1].sequences)
