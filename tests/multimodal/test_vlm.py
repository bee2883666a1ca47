"""Vision-language targets with drafts that read the text alone: ids and logits are plain's; pixels go to the target."""

import copy

import pytest
import torch
from toys import noisy, plain, prompts, spec, tiny
from transformers import GenerationConfig
from vlm_toys import FAMILIES, IMAGE, VIDEO, VISION_END, VISION_START, build, prompt, text_draft, vision_part

import hf_specgen
from hf_specgen import SpecUnsupportedError
from hf_specgen.drafters.base import LoneRow
from hf_specgen.drafters.lookup import LookupDrafter
from hf_specgen.drafters.model import ModelDrafter
from hf_specgen.processors import RowProcessors

NEW = 16
SEEING = [name for name in FAMILIES if name != "mllama"]
PORTABLE = {"qwen2_vl", "gemma3", "llava"}
BY_FAMILY = [pytest.param(n, marks=pytest.mark.parity) if n in PORTABLE else n for n in SEEING]
QWEN = ["qwen2_vl", "qwen2_5_vl"]
ROWS = {
    "one": [(3, "i", 4)],
    "two images": [(2, "i", 3, "i", 2)],
    "ragged": [(3, "i", 4), (2, "i", 1, "I", 5), (6, "I", 1)],
    "with a row of text": [(3, "I", 4), (5,)],
    "text": [(7,)],
    "ragged text": [(7,), (3,), (5,)],
}
PIXELS = {"pixel_values", "image_grid_thw", "pixel_attention_mask", "image_sizes", "cross_attention_mask"}
PIXELS |= {"aspect_ratio_ids", "aspect_ratio_mask", "image_hidden_states", "video_grid_thw"}
GREEDY = {"max_new_tokens": NEW, "output_logits": True}


def vlm_draft(name: str):
    """A noisy copy of the target: it has a tower of its own, which has nothing to read."""
    return noisy(build(name), 0.02)


def assert_plain(target, draft, inputs, tolerance=1e-3, **kwargs):
    """Ids equal plain's, logits to `tolerance` of their spread (so positions are right, whatever the ids)."""
    wanted = plain(target, **inputs, **GREEDY, do_sample=False, return_dict_in_generate=True)
    out = spec(target, draft, **inputs, **GREEDY, **{"num_assistant_tokens": 3} | kwargs)
    assert out.sequences.tolist() == wanted.sequences.tolist()
    for step, (ours, theirs) in enumerate(zip(out.logits, wanted.logits, strict=True)):
        assert ((ours - theirs).abs().max() / theirs.std()).item() < tolerance, f"step {step}"
    return out


class Watch:
    """Counts the forwards of a model's vision tower, and the names of what its own forwards are given."""

    def __init__(self, model):
        self.towers, self.given = 0, set()
        self.handles = [vision_part(model).register_forward_pre_hook(self._tower)]
        self.handles.append(model.register_forward_pre_hook(self._forward, with_kwargs=True))

    def _tower(self, *_):
        self.towers += 1

    def _forward(self, module, args, kwargs):
        self.given |= {name for name, value in kwargs.items() if value is not None}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()


# ---- ids and logits -------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", BY_FAMILY)
def test_text_draft_beside_a_target_that_sees(name, rows):
    out = assert_plain(build(name), text_draft(name), prompt(name, ROWS[rows]))
    stats = out.spec_stats
    assert stats.drafted > 0
    if rows in ("text", "ragged text", "with a row of text"):
        assert stats.accepted > 0


@pytest.mark.parametrize("name", SEEING)
def test_images_matter_and_are_the_rows_own(name):
    """The same rows with other pixels, and in another order."""
    inputs = prompt(name, [(3, "i", 4), (2, "i", 1)])
    first = assert_plain(build(name), text_draft(name), inputs).sequences
    other = dict(inputs, pixel_values=-inputs["pixel_values"])
    assert (assert_plain(build(name), text_draft(name), other).sequences != first).any(1).all()
    swapped = {k: v.flip(0) for k, v in inputs.items() if k != "pixel_values"}
    halves = inputs["pixel_values"].chunk(2)
    swapped["pixel_values"] = torch.cat(halves[::-1])
    assert assert_plain(build(name), text_draft(name), swapped).sequences.tolist() == first.flip(0).tolist()


@pytest.mark.parametrize("name", SEEING)
def test_draft_of_the_targets_own_class_reads_the_text_alone(name):
    target, draft = build(name), vlm_draft(name)
    for rows in ("one", "ragged"):
        with Watch(draft) as seen:
            out = assert_plain(target, draft, prompt(name, ROWS[rows]))
        assert not seen.towers and not seen.given & PIXELS
        assert out.spec_stats.drafted > 0
    held = {"suppress_tokens": [IMAGE, VIDEO], "max_new_tokens": NEW}  # what is never drafted cannot be accepted
    out = spec(target, copy.deepcopy(target), **prompt(name, ROWS["ragged text"]), **held)
    least = 0.9 if name == "paligemma" else 1.0  # its prompts see all of themselves, to the draft they are text
    assert out.spec_stats.acceptance_rate >= least


@pytest.mark.parametrize("name", SEEING)
def test_any_language_model_of_the_same_vocabulary_may_draft(name):
    assert_plain(build(name), tiny(eos_token_id=None), prompt(name, ROWS["ragged"]))


@pytest.mark.parametrize("k", [1, 6])
@pytest.mark.parametrize("name", [*QWEN, "gemma3"])
def test_other_draft_lengths(name, k):
    assert_plain(build(name), text_draft(name), prompt(name, ROWS["ragged"]), num_assistant_tokens=k)


@pytest.mark.parametrize("name", QWEN)
def test_videos_and_images_in_one_batch(name):
    film = [VISION_START, *[VIDEO] * 8, VISION_END]
    rows = [[5, 6, *film, 7, 8, 9], [11, VISION_START, *[IMAGE] * 4, VISION_END, 3, 4], [12, 13]]
    width, generator = max(map(len, rows)), torch.Generator().manual_seed(0)
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    inputs = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": (ids == IMAGE) + 2 * (ids == VIDEO)}
    inputs["pixel_values_videos"] = torch.randn(32, 96, generator=generator)
    inputs |= {"pixel_values": torch.randn(16, 96, generator=generator), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    inputs |= {"video_grid_thw": torch.tensor([[2, 4, 4]])}
    if name == "qwen2_5_vl":
        inputs["second_per_grid_ts"] = torch.tensor([1.5])
    assert assert_plain(build(name), text_draft(name), inputs).spec_stats.accepted > 0


@pytest.mark.parametrize("name", ["exaone4_5", "hyperclovax_vision_v2"])
def test_positions_that_the_model_counts_by_columns(name):
    """Their own preparation drops position_ids: the padding of a row is part of its positions."""
    from architectures.build import shrink
    from transformers import AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if name not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {name}")
    torch.manual_seed(0)
    target = AutoModelForImageTextToText.from_config(shrink(CONFIG_MAPPING[name])).float().eval()
    with torch.no_grad():
        for p in target.parameters():
            if p.dim() >= 2:
                p.mul_(8)
    target.generation_config = GenerationConfig(pad_token_id=0, bos_token_id=1)
    assert assert_plain(target, noisy(target, 0.01), prompts([9, 5, 7])).spec_stats.accepted > 0


# ---- what goes where ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SEEING)
def test_the_tower_runs_once_as_in_plain_decoding(name):
    target, inputs = build(name), prompt(name, ROWS["ragged"])
    with Watch(target) as seen:
        plain(target, **inputs, max_new_tokens=NEW, do_sample=False)
    plains = seen.towers
    with Watch(target) as seen:
        spec(target, text_draft(name), **inputs, max_new_tokens=NEW)
    assert seen.towers == plains == 1


def placeholder_lover(name: str):
    """A draft that proposes the image's placeholder, then the video's, if it is let."""
    draft = copy.deepcopy(text_draft(name))
    draft.lm_head = torch.nn.Linear(32, draft.config.vocab_size)
    with torch.no_grad():
        draft.lm_head.weight.zero_()
        draft.lm_head.bias.zero_()[[IMAGE, VIDEO, 7]] = torch.tensor([9.0, 8.0, 5.0])
    return draft


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("name", SEEING)
def test_placeholders_are_never_drafted(name, sampled, monkeypatch):
    proposed, propose = [], ModelDrafter.propose

    def watch(self, *args):
        proposal = propose(self, *args)
        proposed.extend(proposal.tokens.flatten().tolist())
        assert proposal.q is None or not proposal.q[..., IMAGE].any()
        return proposal

    monkeypatch.setattr(ModelDrafter, "propose", watch)
    inputs = prompt(name, ROWS["ragged"])
    if sampled:
        kwargs = {"do_sample": True, "top_k": 1}
        out = spec(build(name), placeholder_lover(name), **inputs, max_new_tokens=NEW, **kwargs)
        assert out.sequences.tolist() == plain(build(name), **inputs, max_new_tokens=NEW, do_sample=False).tolist()
    else:
        assert_plain(build(name), placeholder_lover(name), inputs)
    held = {IMAGE, VIDEO} if name in QWEN else {IMAGE}
    assert proposed and not held & set(proposed)


@pytest.mark.parametrize("rows", ["one", "ragged"])
@pytest.mark.parametrize("name", SEEING)
def test_lookup_never_copies_placeholders(name, rows, monkeypatch):
    """The answer comes back to what stood before an image, again and again."""
    inputs, proposed, look_up = prompt(name, ROWS[rows]), [], LookupDrafter.propose
    texts = [ids[mask.bool()].tolist() for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)]
    before = [text[text.index(IMAGE) - 1] for text in texts]

    def said(row, ids):
        been = ids.tolist().count(before[row])
        return [20 + been if ids[-1] == before[row] else before[row]]

    def watch(self, rows, *args):
        proposal = look_up(self, rows, *args)
        proposed.extend(proposal.tokens[proposal.drafted()].tolist())
        return proposal

    monkeypatch.setattr(LookupDrafter, "propose", watch)
    options = {"max_new_tokens": NEW, "prefix_allowed_tokens_fn": said}
    out = spec(build(name), None, **inputs, **options, spec_source="lookup", num_assistant_tokens=4)
    assert out.sequences.tolist() == plain(build(name), **inputs, **options, do_sample=False).tolist()
    assert proposed and IMAGE not in proposed
    text = [*texts[0], before[0]]
    row = LoneRow(torch.tensor(text), text, 100, RowProcessors([]))
    careless = look_up(LookupDrafter(1), [row], [1], None, None)
    assert careless.tokens.tolist() == [[IMAGE]], "it would, if it were let"


# ---- sampling, sequences, ends --------------------------------------------------------------------------
@pytest.mark.parametrize("name", SEEING)
def test_several_sequences_per_prompt(name):
    inputs = prompt(name, ROWS["two images"] + ROWS["one"])
    kwargs = {"do_sample": True, "top_k": 1, "num_return_sequences": 2, "max_new_tokens": NEW}
    out = spec(build(name), text_draft(name), "block", **inputs, **kwargs)
    assert out.sequences.tolist() == plain(build(name), **inputs, **kwargs).tolist()


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3", "llava"])
def test_coupled_text_depends_on_the_seed_alone(name):
    inputs = prompt(name, ROWS["ragged"])

    def text(draft, **kwargs):
        generator = torch.Generator().manual_seed(3)
        sampled = {"do_sample": True, "max_new_tokens": NEW, "generator": generator}
        return spec(build(name), draft, "coupled", **inputs, **sampled, **kwargs).sequences.tolist()

    first = text(text_draft(name), num_assistant_tokens=4)
    assert first == text(text_draft(name), num_assistant_tokens=1) == text(None) == text(vlm_draft(name))


@pytest.mark.parametrize("name", ["qwen2_5_vl", "llava", "idefics3"])
def test_rows_that_end_at_different_times(name):
    target, inputs = build(name), prompt(name, ROWS["ragged"])
    columns = inputs["input_ids"].shape[1]
    texts = plain(target, **inputs, max_new_tokens=NEW, do_sample=False)[:, columns:].tolist()
    eos = next(t for t in texts[0] if len({x.index(t) if t in x else NEW for x in texts}) > 1)
    kwargs = {"max_new_tokens": NEW, "eos_token_id": eos}
    out = spec(target, text_draft(name), **inputs, **kwargs, num_assistant_tokens=3)
    assert out.sequences.tolist() == plain(target, **inputs, **kwargs, do_sample=False).tolist()


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3"])
def test_hidden_states_and_attentions(name):
    target, inputs = build(name, "eager"), prompt(name, ROWS["one"])
    kwargs = {"max_new_tokens": 10, "output_hidden_states": True, "output_attentions": True}
    out = spec(target, text_draft(name), **inputs, **kwargs, num_assistant_tokens=3)
    wanted = plain(target, **inputs, **kwargs, do_sample=False, return_dict_in_generate=True)
    for field in ("hidden_states", "attentions"):
        for ours, theirs in zip(out[field], wanted[field], strict=True):
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


# ---- turns ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SEEING)
def test_second_turn_with_the_cache_that_was_returned(name):
    """The answer to more text after the first answer; images are in the cache."""
    target, inputs = build(name), prompt(name, ROWS["two images"])
    more = torch.tensor([[5, 6, 7]])

    def turns(generate):
        first = generate(**inputs, max_new_tokens=8, return_dict_in_generate=True)
        field = "cache" if "cache" in first else "past_key_values"
        ids = torch.cat([first.sequences, more], 1)
        second = {"input_ids": ids, "attention_mask": torch.ones_like(ids), field: first[field]}
        for kind in ("token_type_ids", "mm_token_type_ids"):
            if kind in inputs:
                old = inputs[kind]
                second[kind] = torch.cat([old, old.new_zeros(1, ids.shape[1] - old.shape[1])], 1)
        out = generate(**second, max_new_tokens=8, output_logits=True, return_dict_in_generate=True)
        return out.sequences, torch.stack(out.logits)

    ids, logits = turns(lambda **kw: spec(target, text_draft(name), num_assistant_tokens=3, **kw))
    wanted_ids, wanted = turns(lambda **kw: plain(target, do_sample=False, **kw))
    assert ids.tolist() == wanted_ids.tolist()
    assert ((logits - wanted).abs().max() / wanted.std()).item() < 1e-3


@pytest.mark.parametrize("name", ["llava", "gemma3", "paligemma", "idefics3"])
def test_second_turn_with_another_image(name):
    """The cache holds the first image, the call brings the second."""
    target, first, more = build(name), prompt(name, [(2, "i", 3)]), prompt(name, [(2, "i", 3)], seed=5)

    def turns(generate):
        answer = generate(**first, max_new_tokens=6, return_dict_in_generate=True)
        field = "cache" if "cache" in answer else "past_key_values"
        ids = torch.cat([answer.sequences, more["input_ids"]], 1)
        second = {"input_ids": ids, "attention_mask": torch.ones_like(ids), field: answer[field]}
        if "token_type_ids" in first:
            old, new = first["token_type_ids"], more["token_type_ids"]
            second["token_type_ids"] = torch.cat([old, old.new_zeros(1, 6), new], 1)
        return generate(**second, pixel_values=more["pixel_values"], max_new_tokens=8).tolist()

    ours = turns(lambda **kw: spec(target, text_draft(name), **{"return_dict_in_generate": False} | kw))
    assert ours == turns(lambda **kw: plain(target, do_sample=False, **kw))


@pytest.mark.parametrize("name", SEEING)
def test_session_is_refused_with_images(name):
    session = hf_specgen.SpecSession()
    with pytest.raises(SpecUnsupportedError, match="spec_session"):
        spec(build(name), text_draft(name), **prompt(name, ROWS["one"]), max_new_tokens=4, spec_session=session)


def test_session_of_text_alone_is_allowed():
    session = hf_specgen.SpecSession()
    ids = prompt("llava", ROWS["text"])["input_ids"]
    for _ in range(2):
        out = spec(build("llava"), text_draft("llava"), input_ids=ids, max_new_tokens=8, spec_session=session)
        assert (
            out.sequences.tolist() == plain(build("llava"), input_ids=ids, max_new_tokens=8, do_sample=False).tolist()
        )
        ids = torch.cat([out.sequences, torch.tensor([[5, 6]])], 1)
    assert out.spec_stats.accepted > 0


# ---- attributes that models keep ------------------------------------------------------------------------
@pytest.mark.parametrize("rows", ["one", "ragged", "text"])
@pytest.mark.parametrize("name", QWEN)
def test_rope_deltas_end_as_after_plain_decoding(name, rows):
    target, inputs = build(name), prompt(name, ROWS[rows])
    left = []
    for call in (
        lambda: plain(target, do_sample=False, **inputs, max_new_tokens=6),
        lambda: spec(target, text_draft(name), **inputs, max_new_tokens=6),
    ):
        target.model.rope_deltas = None
        call()
        left.append(target.model.rope_deltas)
    assert (left[0] is None) == (left[1] is None)
    assert left[0] is None or torch.equal(*left)


@pytest.mark.parametrize("name", QWEN)
def test_what_an_earlier_call_left_in_the_models_does_not_matter(name):
    """Offsets of other prompts, in the target and in a draft of its class."""
    target, fresh = build(name), vlm_draft(name)
    stale = copy.deepcopy(fresh)
    for model in (target, stale):
        plain(model, **prompt(name, ROWS["two images"], seed=9), max_new_tokens=3, do_sample=False)
    assert stale.model.rope_deltas.any()
    for rows in ("text", "ragged text", "ragged"):
        inputs = prompt(name, ROWS[rows])
        first, second = (assert_plain(target, draft, inputs).spec_stats for draft in (fresh, stale))
        assert [row.trace for row in first.rows] == [row.trace for row in second.rows]


# ---- cross attention ------------------------------------------------------------------------------------
def test_mllama_reads_text_and_is_refused_with_images():
    target = build("mllama")
    assert assert_plain(target, text_draft("mllama"), prompt("mllama", ROWS["ragged text"])).spec_stats.accepted > 0
    inputs = prompt("mllama", ROWS["one"])
    with Watch(target) as seen, pytest.raises(SpecUnsupportedError, match="Mllama"):
        spec(target, text_draft("mllama"), **inputs, max_new_tokens=4)
    assert not seen.towers
    with pytest.warns(UserWarning, match="without the draft"):
        out = spec(target, text_draft("mllama"), **inputs, max_new_tokens=4, spec_fallback="plain")
    assert out.sequences.tolist() == plain(target, **inputs, max_new_tokens=4, do_sample=False).tolist()
