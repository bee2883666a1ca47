"""`enable`, `disable`, the mixin, wrappers around models, candidates from elsewhere: what goes in, what stays."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from toys import EOS, VOCAB, noisy, plain, prompts, row_alone, spec, tiny, toy_tokenizer
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    LlamaForCausalLM,
    LogitsProcessorList,
    pipeline,
)
from transformers.generation.candidate_generator import (
    AssistedCandidateGenerator,
    CandidateGenerator,
    PromptLookupCandidateGenerator,
)

import hf_specgen
from hf_specgen.verifiers.block import BlockVerifier
from hf_specgen.verifiers.rejection import RejectionVerifier

NEW = 16
OPTIONS = {"max_new_tokens": NEW, "do_sample": False}
DRAFTING = {"spec_strategy": "rejection", "num_assistant_tokens": 5}  # by itself, a draft as large as its target rests


@pytest.fixture
def target():
    return tiny()


@pytest.fixture(scope="module")
def draft():
    return noisy(tiny())


@pytest.fixture(scope="module")
def prompt():
    return prompts([7])


@pytest.fixture(scope="module")
def batch():
    return prompts([7, 4])


@pytest.fixture
def everywhere():
    """`enable()` for all models, undone afterwards whatever happens."""
    hf_specgen.enable()
    yield
    hf_specgen.disable()


def speculate(model, draft, **kwargs):
    """A speculative call on a model (or wrapper) that is enabled already; checks that it was one."""
    out = model.generate(assistant_model=draft, return_dict_in_generate=True, **DRAFTING | OPTIONS | kwargs)
    assert out.spec_stats.drafted > 0
    return out.sequences.tolist()


def unpadded(rows, batch):
    """Each row's text without the padding on its left, and up to its EOS."""
    texts = []
    for row, mask in zip(rows, batch["attention_mask"], strict=True):
        end = row.index(EOS) + 1 if EOS in row[len(mask) :] else len(row)
        texts.append(row[int((mask == 0).sum()) : end])
    return texts


def alone(model, batch):
    return [plain(model, **row_alone(batch, b), **OPTIONS)[0].tolist() for b in range(len(batch["input_ids"]))]


# ---- enable and disable -------------------------------------------------------------------------------
def test_enable_sets_one_attribute_and_disable_removes_it(target):
    before = dict(vars(target))
    assert hf_specgen.enable(target) is target
    assert set(vars(target)) - set(before) == {"generate"}
    assert type(target) is LlamaForCausalLM
    assert target.generate.args == (target,)
    assert hf_specgen.disable(target) is target
    assert vars(target) == before
    assert target.generate.__func__ is GenerationMixin.generate


def test_enable_twice_is_enable_once(target, draft, prompt):
    want = plain(target, **prompt, **OPTIONS).tolist()
    hf_specgen.enable(hf_specgen.enable(target))
    assert speculate(target, draft, **prompt) == want
    hf_specgen.disable(target)
    assert "generate" not in vars(target)


def test_disable_without_enable_is_harmless(target):
    before, stock = dict(vars(target)), GenerationMixin.generate
    assert hf_specgen.disable(target) is target
    assert hf_specgen.disable() is None
    assert vars(target) == before and GenerationMixin.generate is stock


def test_disable_leaves_another_librarys_generate_alone(target):
    target.generate = theirs = lambda *args, **kwargs: "theirs"
    hf_specgen.disable(target)
    assert target.generate is theirs


def test_enable_is_for_one_object_only(target, draft, prompt):
    other = tiny()
    hf_specgen.enable(target)
    with pytest.raises(ValueError, match="spec_strategy"):
        other.generate(**prompt, assistant_model=draft, spec_strategy="rejection", **OPTIONS)


def test_enable_everywhere_reaches_every_model_and_disable_takes_it_back(target, draft, prompt, batch):
    stock = GenerationMixin.generate
    want = alone(target, batch)
    try:
        assert hf_specgen.enable() is None
        wrapped = GenerationMixin.generate
        assert "generate" not in vars(target)
        assert speculate(target, draft, **prompt) == plain(target, **prompt, **OPTIONS).tolist()
        assert unpadded(speculate(target, draft, **batch), batch) == want
        hf_specgen.enable()
        assert GenerationMixin.generate is wrapped, "enabled twice = once"
    finally:
        hf_specgen.disable()
    assert GenerationMixin.generate is stock
    with pytest.raises(ValueError, match="spec_strategy"):
        target.generate(**prompt, assistant_model=draft, spec_strategy="rejection", **OPTIONS)


def test_enabled_both_ways_and_disabled_in_either_order(everywhere, target, draft, prompt):
    want = plain(target, **prompt, **OPTIONS).tolist()
    hf_specgen.enable(target)
    assert speculate(target, draft, **prompt) == want
    hf_specgen.disable()
    assert speculate(target, draft, **prompt) == want
    hf_specgen.enable()
    hf_specgen.disable(target)
    assert speculate(target, draft, **prompt) == want


@pytest.mark.parametrize("thing", [object(), torch.nn.Linear(2, 2), "a path"], ids=lambda x: type(x).__name__)
def test_enable_names_the_type_of_what_is_not_a_generation_model(thing):
    with pytest.raises(TypeError, match=type(thing).__name__):
        hf_specgen.enable(thing)


def test_positional_arguments_and_inputs_mean_what_they_mean_in_plain(target, draft, prompt):
    hf_specgen.enable(target)
    want = plain(target, **prompt, **OPTIONS).tolist()
    config = GenerationConfig(**OPTIONS, eos_token_id=EOS, pad_token_id=0)
    assert speculate(target, draft, inputs=prompt["input_ids"]) == want
    with hf_specgen.collect_stats() as stats:
        out = target.generate(
            prompt["input_ids"], config, assistant_model=draft, spec_strategy="block", num_assistant_tokens=5
        )
    assert out.tolist() == want and stats.drafted > 0


# ---- without spec_strategy nothing changes ------------------------------------------------------------
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("way", ["object", "everywhere"])
def test_without_spec_strategy_the_stock_path_runs_bit_for_bit(target, prompt, sampled, way, monkeypatch):
    options = OPTIONS | {
        "do_sample": sampled,
        "output_scores": True,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    torch.manual_seed(7)
    want = plain(target, **prompt, **options)
    state = torch.get_rng_state()
    monkeypatch.setattr("hf_specgen.api.decode", lambda *a, **k: pytest.fail("our loop ran"))
    monkeypatch.setattr("hf_specgen.api.take_settings", lambda *a, **k: pytest.fail("our settings were read"))
    models = [target] if way == "object" else []
    hf_specgen.enable(*models)
    try:
        for extra in ({}, {"spec_strategy": None}):
            torch.manual_seed(7)
            got = target.generate(**prompt, **options, **extra)
            assert type(got) is type(want) and got.sequences.tolist() == want.sequences.tolist()
            assert all(
                torch.equal(a, b) for a, b in zip(got.scores + got.logits, want.scores + want.logits, strict=True)
            )
            assert torch.equal(torch.get_rng_state(), state)
    finally:
        hf_specgen.disable(*models)


def test_assistant_model_without_spec_strategy_is_transformers_own_assisted_decoding(target, draft, prompt):
    """Same forwards of both models, same text, same output type, and its own refusal of a batch."""

    def run(call):
        own = copy.deepcopy(draft)
        counts = [0, 0]
        hooks = [
            model.register_forward_hook(lambda *_, i=i: counts.__setitem__(i, counts[i] + 1))
            for i, model in enumerate((target, own))
        ]
        try:
            out = call(**prompt, assistant_model=own, return_dict_in_generate=True, **OPTIONS)
        finally:
            for hook in hooks:
                hook.remove()
        return counts, out.sequences.tolist(), type(out)

    stock = run(target.generate)
    hf_specgen.enable(target)
    assert run(target.generate) == stock
    assert stock[0][1] > 0
    with pytest.raises(ValueError, match="batch_size"):
        target.generate(**prompts([4, 4]), assistant_model=draft, **OPTIONS)


def test_beams_and_lookup_without_spec_strategy_stay_transformers(target, prompt):
    for options in ({"num_beams": 3}, {"prompt_lookup_num_tokens": 3}):
        want = target.generate(**prompt, **OPTIONS, **options).tolist()
        hf_specgen.enable(target)
        assert target.generate(**prompt, **OPTIONS, **options).tolist() == want
        hf_specgen.disable(target)


def test_a_generation_config_keeps_no_trace_of_a_speculative_call(target, draft, prompt):
    given = GenerationConfig(max_new_tokens=NEW, eos_token_id=EOS, pad_token_id=0)
    before = [copy.deepcopy(c.__dict__) for c in (given, target.generation_config, draft.generation_config)]
    spec(target, draft, **prompt, generation_config=given, num_assistant_tokens=3, assistant_confidence_threshold=0.1)
    assert [c.__dict__ for c in (given, target.generation_config, draft.generation_config)] == before


# ---- the model stays a model --------------------------------------------------------------------------
def roundtrip_pickle(model, tmp_path):
    return pickle.loads(pickle.dumps(model))


def roundtrip_torch(model, tmp_path):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def roundtrip_deepcopy(model, tmp_path):
    return copy.deepcopy(model)


@pytest.mark.parametrize("roundtrip", [roundtrip_pickle, roundtrip_torch, roundtrip_deepcopy])
def test_a_copy_of_an_enabled_model_generates_with_itself(target, draft, prompt, tmp_path, roundtrip):
    want = plain(target, **prompt, **OPTIONS).tolist()
    twin = roundtrip(hf_specgen.enable(target), tmp_path)
    assert type(twin) is LlamaForCausalLM and twin is not target
    assert twin.generate.args[0] is twin, "bound to the copy, not to the original"
    with torch.no_grad():
        for p in target.parameters():
            p.zero_()  # the original is of no use any more: only a copy that uses itself can be right
    assert speculate(twin, draft, **prompt) == want
    hf_specgen.disable(twin)
    assert "generate" in vars(target) and "generate" not in vars(twin)


def test_save_pretrained_and_back(target, draft, prompt, tmp_path):
    want = plain(target, **prompt, **OPTIONS).tolist()
    before = copy.deepcopy(target.config.to_dict())
    hf_specgen.enable(target).save_pretrained(tmp_path)
    saved = " ".join(path.read_text() for path in tmp_path.glob("*.json"))
    assert "spec_" not in saved and '"LlamaForCausalLM"' in saved
    back = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(back) is LlamaForCausalLM and "generate" not in vars(back)
    assert speculate(hf_specgen.enable(back), draft, **prompt) == want
    assert {k: v for k, v in target.config.to_dict().items() if k not in ("architectures", "dtype")} == {
        k: v for k, v in before.items() if k not in ("architectures", "dtype")
    }


def test_state_dict_has_the_same_keys_and_moving_an_enabled_model_works(target, draft, prompt):
    keys = list(target.state_dict())
    hf_specgen.enable(target)
    assert list(target.state_dict()) == keys
    want = plain(target, **prompt, **OPTIONS).tolist()
    assert speculate(target.to("cpu", torch.float64).float(), draft, **prompt) == want


def test_mixin_as_a_base_class(draft, prompt, batch):
    class MyLlama(hf_specgen.SpecGenerationMixin, LlamaForCausalLM):
        pass

    reference = tiny()
    model = MyLlama(reference.config).eval()
    model.load_state_dict(reference.state_dict())
    assert speculate(model, draft, **prompt) == plain(reference, **prompt, **OPTIONS).tolist()
    assert unpadded(speculate(model, draft, **batch), batch) == alone(reference, batch)
    assert model.generate(**prompt, **OPTIONS).tolist() == plain(reference, **prompt, **OPTIONS).tolist()
    stock = reference.generate(**prompt, assistant_model=copy.deepcopy(draft), **OPTIONS).tolist()
    assert model.generate(**prompt, assistant_model=copy.deepcopy(draft), **OPTIONS).tolist() == stock
    hf_specgen.enable(model)
    assert speculate(model, draft, **prompt) == plain(reference, **prompt, **OPTIONS).tolist()


def test_a_models_own_generate_is_called_not_skipped(draft, prompt):
    """A class that overrides `generate` (many multimodal ones do) still gets its say."""

    class Own(LlamaForCausalLM):
        calls = 0

        def generate(self, *args, **kwargs):
            type(self).calls += 1
            return super().generate(*args, **kwargs)

    reference = tiny()
    model = Own(reference.config).eval()
    model.load_state_dict(reference.state_dict())
    hf_specgen.enable(model)
    assert speculate(model, draft, **prompt) == plain(reference, **prompt, **OPTIONS).tolist()
    assert Own.calls == 1


# ---- wrappers -----------------------------------------------------------------------------------------
def with_lora(model, seed=3, name="default", scale=0.3):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], lora_alpha=8)
    torch.manual_seed(seed)
    wrapped = peft.get_peft_model(model, config, adapter_name=name) if not hasattr(model, "peft_config") else model
    if wrapped is model:
        wrapped.add_adapter(name, config)
    with torch.no_grad():
        for key, p in wrapped.named_parameters():
            if f"lora_B.{name}." in key:
                p.copy_(torch.randn_like(p) * scale)
    return wrapped.eval()


@pytest.mark.parametrize("enable_the", ["wrapper", "base model"])
def test_lora_target(target, draft, prompt, batch, enable_the):
    bare = plain(target, **prompt, **OPTIONS).tolist()
    wrapped = with_lora(target)
    want = wrapped.generate(**prompt, **OPTIONS).tolist()
    assert want != bare, "the adapter has to matter"
    rows = [wrapped.generate(**row_alone(batch, b), **OPTIONS)[0].tolist() for b in range(2)]
    got = hf_specgen.enable(wrapped if enable_the == "wrapper" else target)
    assert got is (wrapped if enable_the == "wrapper" else target)
    assert speculate(wrapped, draft, **prompt) == want
    assert unpadded(speculate(wrapped, draft, **batch), batch) == rows
    assert speculate(target, draft, **prompt) == want, "the adapter lives in the base model's layers"
    hf_specgen.disable(wrapped)
    assert "generate" not in vars(target) and "generate" not in vars(wrapped)


def test_lora_merged_and_unmerged_and_switched_between_calls(target, draft, prompt):
    wrapped = with_lora(target)
    with_lora(wrapped, seed=4, name="second")
    hf_specgen.enable(wrapped)
    texts = []
    for state in ("default", "second", "merged", "unmerged", "off"):
        if state in ("default", "second"):
            wrapped.set_adapter(state)
        elif state == "merged":
            wrapped.merge_adapter()
        elif state == "unmerged":
            wrapped.unmerge_adapter()
        if state == "off":
            with wrapped.disable_adapter():
                want = plain(target, **prompt, **OPTIONS).tolist()
                got = speculate(wrapped, draft, **prompt)
        else:
            want = plain(target, **prompt, **OPTIONS).tolist()
            got = speculate(wrapped, draft, **prompt)
        assert got == want, state
        texts.append(str(got))
    assert texts[1] == texts[3] and len({texts[0], texts[1], texts[4]}) == 3


def test_lora_draft_and_lora_on_the_target_do_not_mix(target, prompt):
    """The draft is the target's exact copy with the same adapter: all accepted. With the adapter off, some rejected."""
    own = with_lora(copy.deepcopy(target))
    tuned = with_lora(target)
    hf_specgen.enable(tuned)
    want = plain(target, **prompt, **OPTIONS).tolist()
    bare = plain(copy.deepcopy(tiny()), **prompt, **OPTIONS).tolist()
    assert want != bare

    def rate(draft):
        out = tuned.generate(**prompt, assistant_model=draft, return_dict_in_generate=True, **DRAFTING | OPTIONS)
        assert out.sequences.tolist() == want
        return out.spec_stats.acceptance_rate

    assert rate(own) == 1.0
    with own.disable_adapter():
        assert rate(own) < 1.0
    assert rate(own.merge_and_unload()) > 0.9
    plain_target = tiny()
    hf_specgen.enable(plain_target)
    assert speculate(plain_target, with_lora(noisy(tiny())), **prompt) == bare


def test_prompt_tuning_target_is_refused_by_name(target, draft, prompt):
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(target, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="PromptTuning"):
        hf_specgen.enable(wrapped)
    plain_target = tiny()
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="PromptTuning"):
        spec(plain_target, wrapped, **prompt, max_new_tokens=4)


@pytest.mark.parametrize("who", ["target", "draft", "both"])
def test_torch_compile_wrapper(target, draft, prompt, batch, who):
    """Looked through: its eager model does the work."""
    want, rows = plain(target, **prompt, **OPTIONS).tolist(), alone(target, batch)
    compiled = torch.compile(target, backend="eager") if who != "draft" else target
    small = torch.compile(draft, backend="eager") if who != "target" else draft
    hf_specgen.enable(compiled)
    assert speculate(compiled, small, **prompt) == want
    assert unpadded(speculate(compiled, small, **batch), batch) == rows


@pytest.mark.parametrize("who", ["target", "draft", "both"])
@pytest.mark.parametrize("where", ["cpu", "cpu and disk offload"])
def test_accelerate_dispatch_hooks(prompt, batch, tmp_path, who, where):
    accelerate = pytest.importorskip("accelerate")
    reference, small = tiny(), noisy(tiny())

    def dispatched(model, folder):
        if where == "cpu":
            accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
            return model
        spread = {
            "model.embed_tokens": "cpu",
            "model.layers.0": "cpu",
            "model.layers.1": "disk",
            "model.layers.2": "disk",
        }
        spread |= {"model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
        return accelerate.dispatch_model(model, spread, main_device="cpu", offload_dir=str(tmp_path / folder))

    model = dispatched(tiny(), "target") if who != "draft" else tiny()
    helper = dispatched(small, "draft") if who != "target" else small
    assert any(hasattr(m, "_hf_hook") for m in [*model.modules(), *helper.modules()])
    hf_specgen.enable(model)
    assert speculate(model, helper, **prompt) == plain(reference, **prompt, **OPTIONS).tolist()
    assert unpadded(speculate(model, helper, **batch), batch) == alone(reference, batch)


@pytest.mark.parametrize("sampled", [False, True])
def test_from_pretrained_with_a_device_map(target, draft, prompt, tmp_path, sampled):
    pytest.importorskip("accelerate")
    target.save_pretrained(tmp_path)
    placed = AutoModelForCausalLM.from_pretrained(tmp_path, device_map={"": "cpu"})
    hf_specgen.enable(placed)
    options = {"do_sample": sampled, "top_k": 1} if sampled else {}
    assert speculate(placed, draft, **prompt, **options) == plain(target, **prompt, **OPTIONS).tolist()


# ---- candidates from elsewhere ------------------------------------------------------------------------
def repetitive():
    """A prompt whose continuation a lookup can find."""
    pattern = torch.tensor([5, 9, 14, 5, 9, 33, 8])
    ids = torch.cat([pattern, pattern, pattern])[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("eos", [EOS, None])
@pytest.mark.parametrize("ngram", [1, 2, 3])
def test_stock_prompt_lookup_generator_equals_plain(target, ngram, eos):
    prompt = repetitive()
    end = None if eos is None else torch.tensor([eos])
    lookup = PromptLookupCandidateGenerator(
        eos_token_id=end, num_output_tokens=6, max_matching_ngram_size=ngram, max_length=64
    )
    options = {"max_new_tokens": 40, "eos_token_id": eos}
    got = spec(target, lookup, **prompt, **options)
    assert got.sequences.tolist() == plain(target, **prompt, do_sample=False, **options).tolist()
    assert got.spec_stats.drafted > 0 and (ngram > 1 or got.spec_stats.accepted > 0)


@pytest.mark.parametrize("end", range(3, 12, 2))
@pytest.mark.parametrize("kind", ["stop string", "suppressed"])
def test_stock_prompt_lookup_with_a_stop_or_a_forbidden_token_inside_the_copied_span(target, end, kind):
    prompt, tokenizer = repetitive(), toy_tokenizer()
    lookup = PromptLookupCandidateGenerator(num_output_tokens=8, max_matching_ngram_size=1, max_length=64)
    said = plain(target, **prompt, max_new_tokens=40, do_sample=False)[0, prompt["input_ids"].shape[1] :].tolist()
    options = {
        "stop string": {"stop_strings": [tokenizer.decode(said[end : end + 2])], "tokenizer": tokenizer},
        "suppressed": {"suppress_tokens": [said[end], 33]},
    }[kind] | {"max_new_tokens": 40}
    want = plain(target, **prompt, do_sample=False, **options)
    got = spec(target, lookup, **prompt, **options)
    assert got.sequences.tolist() == want.tolist()
    assert got.spec_stats.drafted > 0


@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
def test_stock_prompt_lookup_generator_with_sampling_stays_in_the_targets_support(target, strategy):
    prompt = repetitive()
    lookup = PromptLookupCandidateGenerator(eos_token_id=torch.tensor([EOS]), num_output_tokens=6, max_length=64)
    torch.manual_seed(0)
    options = {"do_sample": True, "top_k": 3, "temperature": 2.0, "output_scores": True}
    out = spec(target, lookup, strategy, **prompt, max_new_tokens=40, **options)
    for scores, token in zip(out.scores, out.sequences[0, prompt["input_ids"].shape[1] :], strict=True):
        assert scores[0, token] > float("-inf")


def assisted(draft, prompt, sampled, k=4, length=7 + NEW):
    own = copy.deepcopy(draft)
    own.generation_config.num_assistant_tokens = k
    own.generation_config.num_assistant_tokens_schedule = "constant"
    own.generation_config.assistant_confidence_threshold = 0.0
    config = GenerationConfig(
        do_sample=sampled,
        max_length=length,
        eos_token_id=EOS,
        pad_token_id=0,
        return_dict_in_generate=True,
        min_length=0,
    )
    return AssistedCandidateGenerator(
        input_ids=prompt["input_ids"],
        assistant_model=own,
        generation_config=config,
        model_kwargs={},
        logits_processor=LogitsProcessorList(),
    )


@pytest.mark.parametrize("noise", [0, 0.05, 0.5])
@pytest.mark.parametrize("sampled_draft", [False, True])
def test_stock_assisted_generator_equals_plain_greedy(target, prompt, noise, sampled_draft):
    source = assisted(noisy(target, noise), prompt, sampled_draft)
    got = spec(target, source, **prompt, max_new_tokens=NEW)
    assert got.sequences.tolist() == plain(target, **prompt, **OPTIONS).tolist()
    assert got.spec_stats.drafted > 0
    if not noise and not sampled_draft:
        assert got.spec_stats.acceptance_rate == 1.0


@pytest.mark.parametrize("verifier", [RejectionVerifier, BlockVerifier])
def test_stock_assisted_generator_sampled_is_judged_by_the_law_it_drew_from(target, prompt, verifier, monkeypatch):
    """q, as the verifier gets it, is the draft's own softmax after each drafted token: not one-hot, not shifted."""
    helper = noisy(target, 0.4)
    source = assisted(helper, prompt, sampled=True)
    source.generation_config.temperature, source.generation_config.top_k = 4.0, 0
    proposals, texts = [], []
    judge, ask = verifier.accept, source.get_candidates

    def accept(self, proposal, scores, noise):
        if proposal.width:
            proposals.append(proposal)
        return judge(self, proposal, scores, noise)

    def get_candidates(input_ids, **kwargs):
        candidates, logits = ask(input_ids, **kwargs)
        texts.append((candidates, input_ids.shape[1]))
        return candidates, logits

    monkeypatch.setattr(verifier, "accept", accept)
    source.get_candidates = get_candidates
    torch.manual_seed(4)
    out = spec(target, source, verifier.name, **prompt, max_new_tokens=NEW, do_sample=True, temperature=4.0, top_k=0)
    assert out.spec_stats.drafted > 5 and len(proposals) == len(texts)
    surprises = 0
    for proposal, (candidates, start) in zip(proposals, texts, strict=True):
        with torch.no_grad():
            law = (helper(candidates).logits[:, start - 1 : -1] / 4.0).softmax(-1)[:, : proposal.width]
        torch.testing.assert_close(proposal.q, law, atol=1e-4, rtol=1e-3)
        assert proposal.tokens.tolist() == candidates[:, start:][:, : proposal.width].tolist()
        surprises += int((proposal.tokens != law.argmax(-1)).sum())
    assert surprises > 0, "drawn, not chosen"


@pytest.mark.parametrize("verifier", [RejectionVerifier, BlockVerifier])
def test_stock_assisted_generator_that_does_not_sample_counts_as_chosen(target, prompt, verifier, monkeypatch):
    """In a sampled call: its tokens are the best of its logits, whatever these are. A softmax of them would be no q."""
    source, judge, proposals = assisted(noisy(target, 0.4), prompt, sampled=False), verifier.accept, []

    def accept(self, proposal, scores, noise):
        proposals.append(proposal)
        return judge(self, proposal, scores, noise)

    monkeypatch.setattr(verifier, "accept", accept)
    torch.manual_seed(4)
    out = spec(target, source, verifier.name, **prompt, max_new_tokens=NEW, do_sample=True, temperature=4.0, top_k=0)
    assert out.spec_stats.drafted > 5 and all(proposal.q is None for proposal in proposals)


class Scripted(CandidateGenerator):
    """Any third-party generator: proposes what it is told, notes what it is told back."""

    def __init__(self, propose):
        self.propose, self.seen, self.told = propose, [], []

    def get_candidates(self, input_ids, **kwargs):
        self.seen.append(input_ids.clone())
        new = torch.tensor([self.propose(input_ids[0].tolist())], dtype=torch.long).reshape(1, -1)
        return torch.cat([input_ids, new], dim=1), None

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        self.told.append((input_ids.clone(), tuple(scores.shape), num_matches))


def test_candidate_generator_is_shown_the_text_and_told_the_outcome_as_in_stock(target, prompt):
    text = plain(target, **prompt, **OPTIONS)[0].tolist()
    source = Scripted(lambda ids: [text[len(ids)], text[len(ids) + 1], 1][: len(text) - len(ids) - 1])
    got = spec(target, source, **prompt, max_new_tokens=NEW)
    assert got.sequences[0].tolist() == text
    assert [seen[0].tolist() for seen in source.seen] == [text[: seen.shape[1]] for seen in source.seen]
    assert [told[2] for told in source.told][:3] == [2, 2, 2]
    for ids, shape, matches in source.told:
        assert ids[0].tolist() == text[: ids.shape[1]]
        assert shape[0] == 1 and shape[2] == VOCAB and shape[1] > matches


@pytest.mark.parametrize("given", ["nothing", "far too many", "wrong", "eos first"])
def test_candidate_generator_may_propose_anything(target, prompt, given):
    propose = {
        "nothing": lambda ids: [],
        "far too many": lambda ids: [3] * 300,
        "wrong": lambda ids: [int(ids[-1])] * 5,
        "eos first": lambda ids: [EOS, 4, 4],
    }[given]
    got = spec(target, Scripted(propose), **prompt, max_new_tokens=NEW)
    assert got.sequences.tolist() == plain(target, **prompt, **OPTIONS).tolist()


def test_candidate_generator_with_several_rows_is_refused(target, batch):
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="Scripted proposes for one row"):
        spec(target, Scripted(lambda ids: []), **batch, max_new_tokens=4)


def test_candidate_generator_that_reads_hidden_states_is_refused(target, prompt):
    source = Scripted(lambda ids: [])
    source.requires_model_outputs = True
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="hidden states"):
        spec(target, source, **prompt, max_new_tokens=4)


class Bigrams(hf_specgen.Drafter):
    """The custom drafter of thirty lines: what followed the last token before, row by row."""

    def begin(self, rows, vocabulary=None):
        self.read = [{} for _ in rows]
        self.settle(rows, None, None)

    def settle(self, rows, scores, accepted):
        for table, row in zip(self.read, rows, strict=True):
            table.update(zip(row.tokens, row.tokens[1:], strict=False))

    def propose(self, rows, widths, verifier, noise):
        self.forwards += 1
        drafts = []
        for table, row, width in zip(self.read, rows, widths, strict=True):
            draft, last = [], row.tokens[-1]
            while len(draft) < width and last in table:
                last = table[last]
                draft.append(last)
            drafts.append(draft)
        width = max(map(len, drafts))
        tokens = torch.tensor([draft + [0] * (width - len(draft)) for draft in drafts], dtype=torch.long).reshape(
            len(rows), width
        )
        return hf_specgen.Proposal(tokens, torch.tensor([len(draft) for draft in drafts]))

    def drop(self, row):
        self.read[row] = self.read[-1]
        self.read.pop()


@pytest.mark.parametrize("lengths", [[7], [7, 4, 9]], ids=["one row", "ragged batch"])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.06}], ids=["bare", "repetition penalty"])
def test_custom_drafter_equals_plain(target, lengths, options):
    """In a ragged batch some rows have nothing to look up in a round: the others' penalties stay on their own rows."""
    batch, bare = prompts(lengths, seed=1), {"max_new_tokens": 40}
    got = spec(target, Bigrams(), **batch, **bare, **options)
    if options:
        without = spec(target, Bigrams(), **batch, **bare)
        assert (got.sequences != without.sequences).any(1).all(), "each row's text shows its own penalty"
    options = options | bare
    for b, length in enumerate(lengths):
        want = plain(target, **row_alone(batch, b), do_sample=False, **options)[0, length:].tolist()
        mine = got.sequences[b, max(lengths) :].tolist()
        assert mine == want + [0] * (len(mine) - len(want))
    assert got.spec_stats.accepted > 0


@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
def test_custom_drafter_with_sampling_runs_in_a_batch(target, strategy):
    batch = prompts([7, 4, 9])
    torch.manual_seed(2)
    out = spec(target, Bigrams(), strategy, **batch, max_new_tokens=20, do_sample=True, top_k=3, output_scores=True)
    scores = torch.stack(out.scores, 1)
    picked = scores.gather(2, out.sequences[:, 9:, None]).squeeze(2)
    for b, row in enumerate(out.spec_stats.rows):
        assert (picked[b, : row.emitted] > float("-inf")).all()


def test_our_drafters_serve_stock_assisted_decoding_at_batch_one(target, draft, prompt):
    """A Drafter is a CandidateGenerator: `get_candidates` / `update_candidate_strategy` round by round, for one row."""
    from hf_specgen.drafters import ModelDrafter

    text = plain(target, **prompt, **OPTIONS)[0].tolist()
    exact = ModelDrafter(noisy(target, 0), None, [EOS], torch.device("cpu"))
    for drafter in (exact, ModelDrafter(draft, None, [EOS], torch.device("cpu")), Bigrams()):
        ids = prompt["input_ids"]
        total = 0
        while ids.shape[1] < len(text):
            candidates, logits = drafter.get_candidates(ids)
            assert candidates.shape[0] == 1 and candidates[0, : ids.shape[1]].tolist() == ids[0].tolist()
            new = candidates[0, ids.shape[1] :].tolist()
            assert logits is None or logits.shape == (1, len(new), VOCAB)
            kept = 0
            while kept < len(new) and ids.shape[1] + kept < len(text) and new[kept] == text[ids.shape[1] + kept]:
                kept += 1
            if drafter is exact:
                left = len(text) - ids.shape[1]
                assert kept == min(len(new), left) and new, "an exact copy is right about everything"
            total += kept
            ids = torch.tensor([text[: ids.shape[1] + kept + 1]])
            drafter.update_candidate_strategy(ids, torch.zeros(1, len(new) + 1, VOCAB), kept)
        assert total > 0 or not isinstance(drafter, ModelDrafter)


# ---- pipelines ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["object", "everywhere"])
def test_text_generation_pipeline_takes_generate_kwargs(target, draft, way):
    tokenizer = toy_tokenizer()
    tokenizer.padding_side = "left"
    texts = ["hello the king", "abc"]
    want = pipeline("text-generation", model=target, tokenizer=tokenizer)
    plainly = [want(text, **OPTIONS)[0]["generated_text"] for text in texts]
    models = [target] if way == "object" else []
    hf_specgen.enable(*models)
    try:
        pipe = pipeline("text-generation", model=target, tokenizer=tokenizer)
        options = OPTIONS | DRAFTING | {"assistant_model": draft}
        with warnings.catch_warnings(), hf_specgen.collect_stats() as stats:
            warnings.simplefilter("error", UserWarning)
            assert pipe(texts[0], **options)[0]["generated_text"] == plainly[0]
            assert [out[0]["generated_text"] for out in pipe(texts, batch_size=2, **options)] == plainly
        assert stats.calls == 2 and stats.accepted > 0
    finally:
        hf_specgen.disable(*models)
