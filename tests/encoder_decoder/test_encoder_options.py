"""Encoder-decoders under generate()'s options: processors, stops, streams, outputs, caches, encoder outputs given."""

import copy

import pytest
import torch
from encoder_toys import START, VOCAB, build, draft_of, written
from toys import plain, prompts, row_alone, spec, toy_tokenizer
from transformers import EncoderDecoderCache
from transformers.generation.utils import GenerateEncoderDecoderOutput

from hf_specgen import SpecUnsupportedError, collect_stats

NEW = 20
NAMES = ["t5", "bart"]
EAGER = {"attn_implementation": "eager"}


def sources(lengths=(7, 4, 9)):
    return prompts(list(lengths), side="right")


def equal_to_plain(name, batch, new=NEW, **kwargs):
    target = build(name)
    out = spec(target, draft_of(name), **batch, max_new_tokens=new, num_assistant_tokens=3, **kwargs)
    assert out.sequences.tolist() == plain(target, **batch, max_new_tokens=new, do_sample=False, **kwargs).tolist()
    return out


# ---- processors -----------------------------------------------------------------------------------------
PROCESSORS = {
    "repetition": {"repetition_penalty": 1.7},
    "ngrams": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[9], [22, 20], [30]]},
    "min new": {"min_new_tokens": 6, "eos_token_id": [20, 43, 55]},
    "forced first": {"forced_bos_token_id": 11},
    "forced last": {"forced_eos_token_id": 12},
    "suppressed": {"suppress_tokens": [20, 43], "begin_suppress_tokens": [0, 7]},
    "bias": {"sequence_bias": [[[20], -8.0], [[34, 17], 4.0]]},
}
READS_THE_SOURCE = {
    "encoder repetition": {"encoder_repetition_penalty": 3.0},
    "encoder ngrams": {"encoder_no_repeat_ngram_size": 1},
    "both": {"encoder_repetition_penalty": 0.5, "encoder_no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
}


@pytest.mark.parametrize("case", PROCESSORS)
@pytest.mark.parametrize("name", NAMES)
def test_processors(name, case):
    out = equal_to_plain(name, sources(), **PROCESSORS[case])
    assert out.spec_stats.accepted > 0


@pytest.mark.parametrize("name, case", [*(("bart", case) for case in READS_THE_SOURCE), ("t5", "both")])
def test_processors_that_read_the_source_see_the_rows_own_without_padding(name, case):
    """Plain decoding of a batch penalizes the pad id as well, for rows that have padding: the reference is the row."""
    target, batch, kwargs = build(name), sources(), READS_THE_SOURCE[case]
    out = spec(target, draft_of(name), **batch, max_new_tokens=NEW, num_assistant_tokens=3, **kwargs)
    changed = []
    for b in range(3):
        wanted = written(target, batch, b, NEW, **kwargs)
        assert out.sequences[b, 1:].tolist() == wanted, f"row {b}"
        changed.append(wanted != written(target, batch, b, NEW))
    assert any(changed), "the penalty has to matter"


def test_source_processors_with_several_sequences():
    target, batch = build("bart"), sources()
    kwargs = READS_THE_SOURCE["both"] | {"do_sample": True, "top_k": 1, "num_return_sequences": 2}
    out = spec(target, draft_of("bart"), **batch, max_new_tokens=NEW, num_assistant_tokens=3, **kwargs)
    for b, row in enumerate(out.sequences.tolist()):
        assert row[1:] == written(target, batch, b // 2, NEW, **READS_THE_SOURCE["both"])


def test_prefix_constraint():
    def allowed(batch_id, ids):
        return [(int(ids[-1]) * 7 + batch_id + i) % VOCAB for i in range(9)]

    equal_to_plain("bart", sources(), prefix_allowed_tokens_fn=allowed)


# ---- stops and streams ----------------------------------------------------------------------------------
def test_stop_strings():
    """Reference: the rows alone (without an EOS, plain decoding goes on in a row that has stopped)."""
    target, batch, tokenizer = build("bart"), sources(), toy_tokenizer()
    stop = tokenizer.decode(written(target, batch, 0, NEW))[9:11]
    kwargs = {"stop_strings": [stop], "tokenizer": tokenizer}
    out = spec(target, draft_of("bart"), **batch, **kwargs, max_new_tokens=NEW, num_assistant_tokens=3)
    for b, row in enumerate(out.spec_stats.rows):
        wanted = written(target, batch, b, NEW, **kwargs)
        assert out.sequences[b, 1 : 1 + row.emitted].tolist() == wanted
    assert out.spec_stats.rows[0].emitted == 5 and out.spec_stats.rows[1].emitted == NEW


class Log:
    def __init__(self):
        self.seen, self.ends = [], 0

    def put(self, value):
        self.seen.append(value.tolist())

    def end(self):
        self.ends += 1


def test_streamer_gets_what_plain_gives_it():
    target, batch = build("bart"), sources((8,))
    ours, theirs = Log(), Log()
    spec(target, draft_of("bart"), **batch, max_new_tokens=NEW, num_assistant_tokens=3, streamer=ours)
    plain(target, **batch, max_new_tokens=NEW, do_sample=False, streamer=theirs)
    assert (ours.seen, ours.ends) == (theirs.seen, 1)


# ---- outputs --------------------------------------------------------------------------------------------
def compare(ours, theirs, where: str):
    """Nested tuples of tensors: the same shapes, finite at the same places, values to 1e-4."""
    if not isinstance(theirs, torch.Tensor):
        assert len(ours) == len(theirs), where
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            compare(a, b, f"{where}[{i}]")
        return
    assert ours.shape == theirs.shape, where
    assert torch.equal(ours.isfinite(), theirs.isfinite()), where
    gap = (ours - theirs).masked_fill(~theirs.isfinite(), 0).abs().max().item()
    assert gap < 1e-4 * max(1.0, theirs[theirs.isfinite()].abs().max().item()), where


OUTPUTS = ["scores", "logits", "encoder_attentions", "encoder_hidden_states", "decoder_attentions"]
OUTPUTS += ["cross_attentions", "decoder_hidden_states"]
ALL = {f"output_{name}": True for name in ("scores", "logits", "attentions", "hidden_states")}


@pytest.mark.parametrize("lengths", [(8,), (7, 4, 9)], ids=["alone", "ragged"])
@pytest.mark.parametrize("name", [*NAMES, "t5gemma"])
def test_everything_that_plain_returns(name, lengths):
    target, batch = build(name, **EAGER), sources(lengths)
    kwargs = {**batch, "max_new_tokens": 12, "repetition_penalty": 1.2, **ALL}
    ours = spec(target, draft_of(name, **EAGER), **kwargs, num_assistant_tokens=3)
    theirs = plain(target, **kwargs, do_sample=False, return_dict_in_generate=True)
    assert isinstance(ours, GenerateEncoderDecoderOutput)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert set(ours) - set(theirs) == {"spec_stats", "draft_mask"} and set(theirs) <= set(ours)
    for output in OUTPUTS:
        compare(ours[output], theirs[output], output)
    assert ours.draft_mask.shape == (len(lengths), 12)
    assert ours.draft_mask.sum() == ours.spec_stats.accepted


@pytest.mark.parametrize("name", NAMES)
def test_outputs_after_decoder_prompts_of_different_lengths(name):
    """Values as those of the rows alone."""
    target, batch = build(name, **EAGER), sources()
    starts = [[START, 5, 6], [START, 9], [START, 7, 8]]
    ids = torch.tensor([[0] * (3 - len(s)) + s for s in starts])
    mask = torch.tensor([[0] * (3 - len(s)) + [1] * len(s) for s in starts])
    kwargs = {"max_new_tokens": 10, **ALL}
    prompt = {"decoder_input_ids": ids, "decoder_attention_mask": mask}
    ours = spec(target, draft_of(name, **EAGER), **batch, **prompt, **kwargs, num_assistant_tokens=3)
    for b, start in enumerate(starts):
        row = row_alone(batch, b) | {"decoder_input_ids": torch.tensor([start])}
        alone = plain(target, **row, **kwargs, do_sample=False, return_dict_in_generate=True)
        assert ours.sequences[b, 3:].tolist() == alone.sequences[0, len(start) :].tolist()
        compare([x[b : b + 1] for x in ours.logits], alone.logits, f"logits of row {b}")
        for step in range(1, 10):
            mine, theirs = ours.decoder_hidden_states[step], alone.decoder_hidden_states[step]
            compare([x[b : b + 1] for x in mine], theirs, f"hidden states of row {b}, step {step}")
            mine = [x[b : b + 1, ..., 3 - len(start) :] for x in ours.decoder_attentions[step]]
            compare(mine, alone.decoder_attentions[step], f"attentions of row {b}, step {step}")


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_ended_have_zeros(name):
    target, batch = build(name, **EAGER), sources()
    texts = [written(target, batch, b, NEW) for b in range(3)]
    eos = next(t for t in texts[0] if len({text.index(t) if t in text else NEW for text in texts}) > 1)
    kwargs = {**batch, "max_new_tokens": NEW, "eos_token_id": eos, **ALL}
    out = spec(target, draft_of(name, **EAGER), **kwargs, num_assistant_tokens=3)
    wanted = plain(target, **kwargs, do_sample=False, return_dict_in_generate=True)
    assert out.sequences.tolist() == wanted.sequences.tolist()
    assert len(out.logits) == len(out.cross_attentions) == len(wanted.logits)
    for b, row in enumerate(out.spec_stats.rows):
        for step in range(row.emitted, len(out.logits)):
            assert not out.logits[step][b].any()
            assert not any(x[b].any() for x in out.decoder_hidden_states[step])


@pytest.mark.parametrize("name", NAMES)
def test_the_cache_returned_is_plains(name):
    target, batch = build(name), sources()
    out = spec(target, draft_of(name), **batch, max_new_tokens=NEW, num_assistant_tokens=3)
    wanted = plain(target, **batch, max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True)
    field = "cache" if "cache" in wanted else "past_key_values"
    ours, theirs = out[field], wanted[field]
    assert isinstance(ours, EncoderDecoderCache)
    assert ours.get_seq_length() == theirs.get_seq_length()
    for kind in ("self_attention_cache", "cross_attention_cache"):
        for a, b in zip(getattr(ours, kind).layers, getattr(theirs, kind).layers, strict=True):
            compare(a.keys, b.keys, kind)
            compare(a.values, b.values, kind)


# ---- what the encoder reads -----------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["inputs=", "no mask", "encoder outputs and ids"])
@pytest.mark.parametrize("name", NAMES)
def test_other_ways_to_pass_the_source(name, how):
    batch = sources()
    if how == "inputs=":
        batch["inputs"] = batch.pop("input_ids")
    elif how == "no mask":
        batch = {"input_ids": torch.randint(2, 60, (2, 6), generator=torch.Generator().manual_seed(0))}
    else:
        batch["encoder_outputs"] = build(name).get_encoder()(**batch)
    out = equal_to_plain(name, batch)
    assert out.spec_stats.accepted > 0


@pytest.mark.parametrize("given", ["encoder_outputs", "inputs_embeds"])
@pytest.mark.parametrize("name", NAMES)
def test_a_draft_with_its_own_encoder_has_nothing_to_read(name, given):
    target, batch = build(name), sources()
    ids = batch.pop("input_ids")
    if given == "encoder_outputs":
        batch[given] = target.get_encoder()(input_ids=ids, **batch)
    else:
        batch[given] = target.get_input_embeddings()(ids)
    with pytest.raises(SpecUnsupportedError, match="encoder"):
        spec(target, draft_of(name), **batch, max_new_tokens=4)
    shares = copy.deepcopy(draft_of(name))
    (shares.model if name == "bart" else shares).encoder = target.get_encoder()
    for draft, strategy in ((shares, "rejection"), (None, "coupled")):
        out = spec(target, draft, strategy, **batch, max_new_tokens=NEW, num_assistant_tokens=3)
        assert out.sequences.tolist() == plain(target, **batch, max_new_tokens=NEW, do_sample=False).tolist()


def test_statistics_of_calls_that_return_a_tensor():
    target = build("bart")
    with collect_stats() as stats:
        for _ in range(2):
            out = spec(target, draft_of("bart"), **sources(), max_new_tokens=8, return_dict_in_generate=False)
            assert isinstance(out, torch.Tensor)
    assert stats.calls == 2 and len(stats.rows) == 6 and stats.accepted > 0


def test_beams_are_refused_and_fall_back_with_their_own_output():
    target, batch = build("bart"), sources()
    with pytest.raises(SpecUnsupportedError, match="num_beams"):
        spec(target, draft_of("bart"), **batch, max_new_tokens=4, num_beams=2)
    with pytest.warns(UserWarning, match="num_beams"):
        kwargs = {"num_beams": 2, "output_scores": True, "spec_fallback": "plain"}
        out = spec(target, draft_of("bart"), **batch, max_new_tokens=4, **kwargs)
    assert out.sequences_scores is not None and out.spec_stats.fallback_reason
