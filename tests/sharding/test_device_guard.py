"""Target and draft on devices of their own, in pieces too: whatever meets has been brought to one place.

The devices are simulated (see fake_devices.py), so that this runs, and fails, on any machine.
"""

import copy

import pytest
import torch
from families import build, draft_of
from toys import EOS, VOCAB, noisy, prompts, said, seeded, spec, tiny

pytest.importorskip("accelerate")

from fake_devices import CPU, FIRST, SECOND, Devices, WrongDeviceError, place, place_of, settle
from rank_cases import renumbered_pair
from transformers import LogitsProcessorList, StoppingCriteriaList

import hf_specgen
from hf_specgen.cache import reader
from hf_specgen.compat import CACHE_NAME
from hf_specgen.drafters import ModelDrafter
from hf_specgen.drafters import model as model_drafter
from hf_specgen.pairing import vocabulary

BATCH = prompts([5, 9, 3])
NEW = 10
IN_TWO = {
    "model.embed_tokens": FIRST,
    "model.rotary_emb": FIRST,
    "model.layers.0": FIRST,
    "model.layers.1": SECOND,
    "model.layers.2": SECOND,
    "model.norm": SECOND,
    "lm_head": SECOND,
}
PLACES = {
    "draft on another": (FIRST, SECOND),
    "draft on the cpu": (FIRST, CPU),
    "target on the cpu": (CPU, FIRST),
    "target in two, draft on its first": (IN_TWO, FIRST),
    "target in two, draft on its second": (IN_TWO, SECOND),
    "both in two": (IN_TWO, IN_TWO),
    "draft in two": (SECOND, IN_TWO),
}


@pytest.fixture(params=PLACES)
def places(request):
    return PLACES[request.param]


@pytest.fixture(params=["draft on another", "target in two, draft on its second"])
def two_places(request):
    """For what depends less on where things are."""
    return PLACES[request.param]


@pytest.fixture(scope="module")
def models():
    target = tiny()
    return target, noisy(target)


def home_of(target) -> torch.device:
    return place_of(target.get_input_embeddings().weight)


def settled(models, places, **options):
    target, draft = (settle(copy.deepcopy(m), place, **options) for m, place in zip(models, places, strict=True))
    return target, draft


def at(device: torch.device, batch) -> dict:
    return {name: place(x.clone(), device) for name, x in batch.items()}


def both(models, places, strategy="rejection", **kwargs):
    """The results of a call on one device, and on several."""
    found, options = [], {"max_new_tokens": NEW, "num_assistant_tokens": 4} | kwargs
    make = options.pop("make", dict)  # arguments that keep count, made for each call
    found.append(spec(*models, strategy, **BATCH, **options, **make()))
    apart = settled(models, places)
    with Devices() as devices:
        found.append(spec(*apart, strategy, **at(home_of(apart[0]), BATCH), **options, **make()))
        assert found[1].sequences.device == home_of(apart[0])
    used = {place_of(p) for m in apart for p in m.parameters()}
    assert used <= set(devices.seen), "the guard has watched them all"
    return *found, devices


def same(one, other) -> bool:
    return torch.equal(one.sequences, other.sequences) and torch.equal(one.draft_mask, other.draft_mask)


def test_greedy(models, places):
    one, apart, devices = both(models, places)
    assert same(one, apart) and 0 < one.spec_stats.accepted < one.spec_stats.drafted
    if not any(isinstance(where, dict) for where in places):
        target, draft = map(str, places)
        assert devices.moved[draft, target] <= 3 * VOCAB, "one step's logits"
        assert devices.moved[target, draft] <= 3 * 10, "ids: of the prompts and the first token"


@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
def test_sampled(models, two_places, strategy):
    assert same(*both(models, two_places, strategy, make=seeded)[:2])


OPTIONS = {
    "processors": {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95, "do_sample": True},
    "text": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4, "bad_words_ids": [[5], [6, 7]]},
    "threshold": {"assistant_confidence_threshold": 0.3, "temperature": 0.3, "do_sample": True},
    "copies": {"num_return_sequences": 2, "do_sample": True},
    "EOS": {"eos_token_id": [EOS, 4, 5]},
    "outputs": dict.fromkeys(["output_scores", "output_logits", "output_hidden_states", "output_attentions"], True),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options(models, two_places, option):
    def fresh():
        torch.manual_seed(3)
        return {}

    one, apart, _ = both(models, two_places, make=fresh, **OPTIONS[option])
    assert same(one, apart)
    for mine, other in zip(one.logits or (), apart.logits or (), strict=True):
        assert torch.allclose(mine, other, equal_nan=True)


class Counts:
    """A custom processor and criterion that keeps a tensor where the scores are."""

    def __init__(self):
        self.calls = None

    def __call__(self, ids, scores, **_):
        self.calls = ids.new_zeros(1) if self.calls is None else self.calls + 1
        if scores is None or isinstance(scores, tuple):
            return ids[:, -1] == ids.new_tensor(9)
        return scores - self.calls.clamp(max=1)


def test_custom_processors_and_criteria(models, two_places):
    def fresh():
        return {
            "logits_processor": LogitsProcessorList([Counts()]),
            "stopping_criteria": StoppingCriteriaList([Counts()]),
            "prefix_allowed_tokens_fn": lambda row, ids: list(range(2, VOCAB)),
        }

    assert same(*both(models, two_places, make=fresh)[:2])


@pytest.mark.parametrize(("alike", "sampled"), [(0.0, False), (2.0, False), (0.0, True)])
def test_drafts_with_another_vocabulary(models, two_places, monkeypatch, alike, sampled):
    """By tokens and by text, as the check would choose for vocabularies more or less alike."""
    monkeypatch.setattr(vocabulary, "ALIKE", alike)
    renamed, tokenizers = renumbered_pair(models[1])
    pair = models[0], renamed
    one, apart, _ = both(pair, two_places, make=seeded if sampled else dict, **tokenizers)
    assert same(one, apart) and one.spec_stats.accepted > 0


@pytest.mark.parametrize("carry", ["session", "cache"])
def test_conversations(models, places, carry):
    def turns(pair, device):
        text, session, cache = place(BATCH["input_ids"][1:2].clone(), device), hf_specgen.SpecSession(), {}
        for _ in range(2):
            own = {"spec_session": session} if carry == "session" else cache
            out = spec(*pair, input_ids=text, max_new_tokens=6, **own)
            text, cache = torch.cat([out.sequences, text[:, :2]], dim=1), {CACHE_NAME: out[CACHE_NAME]}
        return out

    one = turns(models, CPU)
    apart = settled(models, places)
    with Devices():
        out = turns(apart, home_of(apart[0]))
    assert same(one, out)


def test_output_where_the_head_is(models):
    """A target whose hooks do not bring the logits back."""
    one = spec(*models, **BATCH, max_new_tokens=NEW)
    apart = settled(models, (IN_TWO, FIRST), same_device=False)
    with Devices() as devices:
        out = spec(*apart, **at(FIRST, BATCH), max_new_tokens=NEW)
    assert same(one, out) and devices.moved[str(SECOND), str(FIRST)]


@pytest.mark.parametrize("family", ["mistral", "gemma2", "cohere2", "gpt2", "bloom"])
def test_families(family):
    """Windows, other attention and positions, rows in groups."""
    models = build(family), draft_of(family)
    one = said("ours", *models, **BATCH, new=14)
    apart = settled(models, (FIRST, SECOND))
    with Devices():
        out = said("ours", *apart, **at(FIRST, BATCH), new=14)
    assert same(one, out)


def in_one_place(monkeypatch):
    """The draft is taken to be where the target is."""
    monkeypatch.setattr(model_drafter, "device_of", lambda model, otherwise: otherwise)


def logits_left_behind(monkeypatch):
    monkeypatch.setattr(ModelDrafter, "_of_target", lambda self, logits, home: logits.float())


def masks_on_the_host(monkeypatch):
    ours = reader.ragged_masks
    monkeypatch.setattr(reader, "ragged_masks", lambda *args: ours(*args).cpu())


@pytest.mark.parametrize("fault", [in_one_place, logits_left_behind, masks_on_the_host])
def test_faults_are_found(models, monkeypatch, fault):
    """The negative control."""
    apart = settled(models, (FIRST, SECOND))
    fault(monkeypatch)
    with Devices(), pytest.raises(WrongDeviceError):
        spec(*apart, **at(FIRST, BATCH), max_new_tokens=NEW)


def test_the_guard():
    with Devices():
        x, y = (torch.ones(3, device=device) for device in (FIRST, SECOND))
        assert x.device == FIRST and (x + 1).device == FIRST and x[1:].device == FIRST and not x.is_cpu
        assert (x + torch.tensor(2)).device == FIRST, "a number may come from the host"
        assert x[torch.tensor([0, 2])].device == FIRST, "and so may indices"
        assert (x.to(y.device) + y).device == SECOND and y.cpu().device == CPU
        assert x.sum().item() == 3.0 and x.tolist() == [1.0] * 3
        x[1:] = y[1:]
        for mixed in (
            lambda: x + y,
            lambda: x + torch.ones(3),
            lambda: torch.cat([x, y]),
            lambda: x[y.long()],
            lambda: torch.where(x > 0, x, y.sum()),
            lambda: x.__setitem__(torch.tensor([0]), y[:1]),
            lambda: torch.nn.functional.linear(x, torch.ones(3, 3, device=SECOND)),
            lambda: x.mul_(y),
        ):
            with pytest.raises(WrongDeviceError):
                mixed()
