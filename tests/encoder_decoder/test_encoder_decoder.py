"""Encoder-decoders: text equals plain's, every family, layout, draft and end; what a draft reads, and how often."""

import copy
import itertools

import pytest
import torch
from encoder_toys import FAMILIES, START, VOCAB, build, draft_of, written
from laws import chi_square
from toys import noisy, plain, prompts, row_alone, spec, tiny
from transformers import (
    BartConfig,
    BartForCausalLM,
    BartForConditionalGeneration,
    FSMTConfig,
    FSMTForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    ProphetNetConfig,
    ProphetNetForConditionalGeneration,
)

import hf_specgen
from hf_specgen import SpecUnsupportedError

NEW = 24
SOURCES = (7, 4, 9)
STARTS = [[START, 5, 6], [START, 11], [START, 7, 8]]  # the decoder's prompts: the first and the last are read together
PORTABLE = {"t5", "bart", "marian"}
BY_FAMILY = [pytest.param(n, marks=pytest.mark.parity) if n in PORTABLE else n for n in FAMILIES]
STRATEGIES = ("rejection", "block", "coupled")


def sources(lengths=SOURCES, seed: int = 0):
    """What the encoder reads: ragged, padded on the right as tokenizers of encoder-decoders do."""
    return prompts(list(lengths), seed=seed, side="right")


def decoder_prompts(side: str) -> dict:
    width = max(map(len, STARTS))
    ids = [[0] * (width - len(p)) + p if side == "left" else p + [0] * (width - len(p)) for p in STARTS]
    ones = [[1] * len(p) for p in STARTS]
    mask = [[0] * (width - len(o)) + o if side == "left" else o + [0] * (width - len(o)) for o in ones]
    return {"decoder_input_ids": torch.tensor(ids), "decoder_attention_mask": torch.tensor(mask)}


def assert_plain(target, draft, batch, strategy="rejection", new=NEW, **kwargs):
    """Ids equal plain's of the same call, and of every row alone (a single start token cannot be padded)."""
    out = spec(target, draft, strategy, **batch, max_new_tokens=new, **{"num_assistant_tokens": 3} | kwargs)
    wanted = plain(target, **batch, max_new_tokens=new, do_sample=False)
    assert out.sequences.tolist() == wanted.tolist()
    return out


class Log:
    """A streamer."""

    def __init__(self):
        self.seen = []

    def put(self, value):
        self.seen.append(value)

    def end(self):
        pass


class Spy:
    """Counts the forwards of modules while it is open."""

    def __init__(self, **modules):
        self.calls = dict.fromkeys(modules, 0)
        self.handles = [m.register_forward_pre_hook(self._counter(name)) for name, m in modules.items()]

    def _counter(self, name):
        def count(*_):
            self.calls[name] += 1

        return count

    def __enter__(self):
        return self.calls

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()


def decoder_alone(target, width: int = 32) -> BartForCausalLM:
    """BART's decoder as a model of its own (its config says that it is no encoder-decoder)."""
    config = copy.deepcopy(target.config)
    config.d_model = width
    model = BartForCausalLM(config).eval()
    if width == target.config.d_model:
        model.model.decoder.load_state_dict(target.model.decoder.state_dict())
        model.lm_head.load_state_dict(target.lm_head.state_dict())
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model


def sharing(name: str, how: str):
    """A noisy draft that reads the target's encoder: the module itself, or its weights in a module of its own."""
    target, draft = build(name), copy.deepcopy(draft_of(name))
    holder = draft.model if hasattr(draft, "model") else draft
    if how == "module":
        holder.encoder = target.get_encoder()
    else:
        for ours, theirs in zip(draft.get_encoder().modules(), target.get_encoder().modules(), strict=True):
            ours._parameters.update(theirs._parameters)
        assert draft.get_encoder() is not target.get_encoder()
    return draft


# ---- families -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lengths", [(8,), SOURCES], ids=["alone", "ragged"])
@pytest.mark.parametrize("name", BY_FAMILY)
def test_family_decodes_every_row_as_if_alone(name, lengths):
    target, batch = build(name), sources(lengths)
    out = assert_plain(target, draft_of(name), batch)
    for b in range(len(lengths)):
        assert out.sequences[b, 1:].tolist() == written(target, batch, b, NEW), f"row {b}"
    stats = out.spec_stats
    assert 0 < stats.accepted < stats.drafted, "a draft that is always right or always wrong hides faults"
    if len(lengths) > 1:
        assert len({tuple(row) for row in out.sequences.tolist()}) == len(lengths), "texts depend on the sources"


@pytest.mark.parametrize(
    "name, side",
    [
        pytest.param("t5", "right", marks=pytest.mark.parity),
        pytest.param("bart", "left", marks=pytest.mark.parity),
        *[("bart", "right"), ("t5gemma", "left"), ("marian", "left"), ("led", "left"), ("m2m", "left")],
    ],
)
def test_decoder_prompts_of_different_lengths(name, side):
    """Reference: each row alone, without padding (plain's learned positions count it)."""
    target, batch, starts = build(name), sources(), decoder_prompts(side)
    out = spec(target, draft_of(name), **batch, **starts, max_new_tokens=NEW, num_assistant_tokens=3)
    assert out.sequences[:, :3].tolist() == starts["decoder_input_ids"].tolist()
    for b, prompt in enumerate(STARTS):
        assert out.sequences[b, 3:].tolist() == written(target, batch, b, NEW, prompt), f"row {b}"
    assert out.spec_stats.accepted > 0


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("start", [[[2, 5, 6], [2, 9, 11], [2, 3, 3]], [[5, 6], [9, 11], [3, 3]]])
def test_decoder_prompts_of_one_length_with_or_without_the_start_token(name, start):
    """transformers puts the start token in front where it is missing."""
    target, start = build(name), torch.tensor(start)
    out = assert_plain(target, draft_of(name), sources() | {"decoder_input_ids": start})
    assert out.sequences[:, 1:3].tolist() == start[:, -2:].tolist()


# ---- drafts ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["t5", "bart", "t5gemma"])
def test_exact_copy_is_accepted_in_every_round(name):
    target = build(name)
    out = assert_plain(target, copy.deepcopy(target), sources(), num_assistant_tokens=4)
    assert out.spec_stats.acceptance_rate == 1.0
    assert [row.rounds for row in out.spec_stats.rows] == [1 + -(-(NEW - 1) // 5)] * 3
    assert out.spec_stats.target_forwards == 6, "rows of one length share every forward"


@pytest.mark.parametrize(
    "target, draft, strategy",
    [
        ("bart", "flan_t5", "rejection"),
        ("t5", "bart", "block"),
        ("marian", "led", "coupled"),
        ("bart", "t5gemma", "block"),
    ],
)
def test_draft_of_another_family_with_its_own_encoder(target, draft, strategy):
    assert_plain(build(target), build(draft), sources(), strategy)


DECODER_ONLY = {
    "llama": lambda: tiny(eos_token_id=None),
    "gpt2 of the same width": lambda: tiny(GPT2Config, n_embd=32, n_layer=2, n_head=4, eos_token_id=None),
    "gpt2 of another width": lambda: tiny(GPT2Config, hidden_size=48, n_layer=2, n_head=4, eos_token_id=None),
}


@pytest.mark.parametrize("kind", DECODER_ONLY)
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_language_model_without_cross_attention_drafts_from_the_text_alone(name, kind):
    draft = DECODER_ONLY[kind]()
    out = assert_plain(build(name), draft, sources())
    assert out.spec_stats.drafted > 0
    assert_plain(build(name), draft, sources() | {"decoder_input_ids": torch.tensor([[2, 5, 6]] * 3)})


@pytest.mark.parity
@pytest.mark.parametrize("lengths", [(8,), SOURCES], ids=["alone", "ragged"])
def test_decoder_alone_reads_the_targets_encoder(lengths):
    target = build("bart")
    out = assert_plain(target, decoder_alone(target), sources(lengths))
    assert out.spec_stats.acceptance_rate == 1.0, "the same weights, the same encoder outputs, the same mask"
    out = assert_plain(target, noisy(decoder_alone(target), 0.1), sources(lengths))
    assert 0 < out.spec_stats.accepted < out.spec_stats.drafted


# ---- forwards -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("copies", [1, 2])
def test_each_encoder_runs_once(name, copies):
    target, draft = build(name), draft_of(name)
    kwargs = {"do_sample": True, "top_k": 1, "num_return_sequences": copies} if copies > 1 else {}
    with Spy(target=target.get_encoder(), draft=draft.get_encoder()) as calls:
        out = spec(target, draft, **sources(), max_new_tokens=NEW, num_assistant_tokens=3, **kwargs)
    assert calls == {"target": 1, "draft": 1}
    for b, row in enumerate(out.sequences.tolist()):
        assert row[1:] == written(target, sources(), b // copies, NEW)
    assert out.spec_stats.accepted > 0


@pytest.mark.parametrize("how", ["module", "weights"])
@pytest.mark.parametrize("name", ["bart", pytest.param("t5", marks=pytest.mark.parity)])
def test_shared_encoder_runs_once_for_both(name, how):
    target, draft = build(name), sharing(name, how)
    with Spy(target=target.get_encoder()) as calls:
        handle = (
            draft.get_encoder().register_forward_pre_hook(lambda *_: calls.update(draft=1)) if how != "module" else 0
        )
        out = assert_plain(target, draft, sources())
    if handle:
        handle.remove()
    assert calls == {"target": 2}, "one for plain decoding, one for ours, none for the draft"
    assert out.spec_stats.accepted > 0


def test_decoder_forwards_are_what_the_statistics_say_and_no_more_than_plains():
    target, draft = build("bart"), draft_of("bart")
    with Spy(decoder=target.get_decoder(), draft=draft.get_decoder()) as calls:
        stats = spec(target, draft, **sources((8,)), max_new_tokens=NEW, num_assistant_tokens=3).spec_stats
    assert calls == {"decoder": stats.target_forwards, "draft": stats.draft_forwards}
    assert stats.target_forwards < NEW / 2
    with Spy(decoder=target.get_decoder()) as calls:
        stats = spec(target, draft, **sources(), max_new_tokens=NEW, num_assistant_tokens=3).spec_stats
    assert calls["decoder"] == stats.target_forwards
    assert stats.target_forwards <= sum(row.rounds for row in stats.rows)


# ---- ends, sampling, several sequences ------------------------------------------------------------------
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_rows_that_end_at_different_times(name, strategy):
    target, batch = build(name), sources()
    texts = [written(target, batch, b, NEW) for b in range(3)]
    places = {t: sorted(text.index(t) if t in text else NEW for text in texts) for t in set(texts[0] + texts[1])}
    eos = max(places, key=lambda t: (len(set(places[t])), -places[t][0]))
    assert len(set(places[eos])) > 1
    draft = draft_of(name)
    out = spec(target, draft, strategy, **batch, max_new_tokens=NEW, eos_token_id=eos, num_assistant_tokens=3)
    wanted = plain(target, **batch, max_new_tokens=NEW, eos_token_id=eos, do_sample=False)
    assert out.sequences.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    "make", [copy.deepcopy, lambda target: decoder_alone(target)], ids=["encoder", "decoder alone"]
)
def test_row_that_ends_with_its_first_token(make):
    """The draft never hears of it: the others' encoder outputs must stay theirs."""
    target, batch, starts = build("bart"), sources((5, 9, 7)), [[START, 5], [START, 9], [START, 30]]
    eos = written(target, batch, 0, 1, starts[0])[0]
    texts = [written(target, batch, b, NEW, starts[b], eos_token_id=eos) for b in range(3)]
    assert len(texts[0]) == 1 < min(map(len, texts[1:]))
    kwargs = {"max_new_tokens": NEW, "eos_token_id": eos, "num_assistant_tokens": 3}
    out = spec(target, make(target), **batch, decoder_input_ids=torch.tensor(starts), **kwargs)
    assert [row[2 : 2 + len(text)] for row, text in zip(out.sequences.tolist(), texts, strict=True)] == texts
    assert out.spec_stats.rows[0].drafted == 0 and out.spec_stats.acceptance_rate > 0.9


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_coupled_text_depends_on_the_seed_alone(name):
    target, batch = build(name), sources()
    sampled = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "max_new_tokens": 16}

    def text(draft, inputs=batch, seeds=(5, 6, 7), **kwargs):
        generators = [torch.Generator().manual_seed(s) for s in seeds]
        return spec(target, draft, "coupled", **inputs, **sampled, generator=generators, **kwargs).sequences.tolist()

    first = text(draft_of(name), num_assistant_tokens=3)
    assert first == text(draft_of(name), num_assistant_tokens=1) == text(copy.deepcopy(target)) == text(None)
    assert first == text(tiny(eos_token_id=None))
    for b, seed in enumerate((5, 6, 7)):
        assert text(draft_of(name), row_alone(batch, b), [seed]) == [first[b]]
    assert first != text(None, seeds=(8, 9, 10))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sampled_text_follows_the_targets_law(strategy):
    """Every text of three tokens, each one of three: 1200 sampled rows against the enumerated law."""
    target, draft, batch, rows = build("bart"), noisy(build("bart"), 0.3), sources((5,)), 1200
    out = spec(
        target,
        draft,
        strategy,
        **batch,
        do_sample=True,
        top_k=3,
        max_new_tokens=3,
        num_assistant_tokens=2,
        num_return_sequences=rows,
        generator=torch.Generator().manual_seed(11),
    )
    assert 0 < out.spec_stats.accepted < out.spec_stats.drafted

    def follows(ids):  # the law of the token after these, by the model itself
        decoder = torch.tensor([[START, *ids]])
        best = target(**batch, decoder_input_ids=decoder).logits[0, -1].topk(3)
        return zip(best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True)

    law = {}
    for a, pa in follows([]):
        for b, pb in follows([a]):
            law.update({(a, b, c): pa * pb * pc for c, pc in follows([a, b])})
    texts = [tuple(row) for row in out.sequences[:, 1:].tolist()]
    counts = torch.tensor([texts.count(text) for text in law])
    assert counts.sum() == rows, "no text that the law does not know"
    assert chi_square(counts, torch.tensor(list(law.values()))) > 1e-3


# ---- what has no place here -----------------------------------------------------------------------------
def prophetnet():
    sizes = {"hidden_size": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "ngram": 2, "vocab_size": VOCAB}
    sizes |= {f"num_{side}_{what}": 2 for side, what in itertools.product(("encoder", "decoder"), ("layers",))}
    sizes |= {"num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "max_position_embeddings": 96}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 63, "decoder_start_token_id": START}
    model = ProphetNetForConditionalGeneration(ProphetNetConfig(**sizes, **ids)).eval()
    model.generation_config = GenerationConfig(**ids)
    return model


def fsmt():
    """Its cached forward lets a token see those after it."""
    sizes = {k: v for k, v in FAMILIES["bart"].settings.items() if "forced" not in k}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 63, "decoder_start_token_id": START}
    config = FSMTConfig(langs=["en", "de"], src_vocab_size=VOCAB, tgt_vocab_size=VOCAB, **sizes, **ids)
    model = FSMTForConditionalGeneration(config).eval()
    model.generation_config = GenerationConfig(**ids)
    return model


REFUSED = {
    "target without a causal mask": (fsmt, lambda: build("bart"), "FSMT"),
    "decoder of another width": (lambda: build("bart"), lambda: decoder_alone(build("bart"), 64), r"width 64.*32"),
    "encoder-decoder for a decoder": (lambda: tiny(), lambda: build("bart"), "BartForConditionalGeneration.*causal"),
    "target that reads one token at a time": (prophetnet, lambda: noisy(build("bart")), "ProphetNet"),
    "draft that reads one token at a time": (lambda: build("bart"), prophetnet, "ProphetNet"),
    "no draft": (lambda: build("bart"), lambda: None, "needs a draft"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_comes_before_the_first_token_and_says_why(case):
    make_target, make_draft, message = REFUSED[case]
    target, draft = make_target(), make_draft()
    batch = sources((8,))
    stream = Log()
    with pytest.raises(SpecUnsupportedError, match=message):
        spec(target, draft, **batch, max_new_tokens=8, streamer=stream)
    assert not stream.seen
    with pytest.warns(UserWarning, match="without the draft"):
        out = spec(target, draft, **batch, max_new_tokens=8, spec_fallback="plain")
    assert out.sequences.tolist() == plain(target, **batch, max_new_tokens=8, do_sample=False).tolist()
    assert out.spec_stats.fallback_reason


def test_session_is_refused_for_an_encoder_decoder():
    with pytest.raises(SpecUnsupportedError, match="spec_session"):
        spec(build("bart"), draft_of("bart"), **sources(), max_new_tokens=4, spec_session=hf_specgen.SpecSession())


def test_draft_with_fewer_ids_reads_what_it_knows():
    config = BartConfig(**{**build("bart").config.to_dict(), "vocab_size": 40})
    torch.manual_seed(0)
    small = BartForConditionalGeneration(config).eval()
    small.generation_config = GenerationConfig(pad_token_id=0)
    batch = sources()
    assert batch["input_ids"].max() >= 40
    assert_plain(build("bart"), small, batch)
