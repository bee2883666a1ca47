"""Whisper through its own generate(): every mode equals plain's, or is refused by name; nobody's config is touched."""

import copy
import warnings

import pytest
import torch
from toys import noisy, plain
from transformers.generation.utils import GenerateEncoderDecoderOutput
from whisper_toys import FRAMES, MELS, PREVIOUS, START, decoder_of, sound, whisper

import hf_specgen
from hf_specgen import SpecUnsupportedError

NOISE = 0.1
PROMPT = torch.tensor([PREVIOUS, 5, 6, 7])
EAGER = {"attn_implementation": "eager"}
ours_only = {"spec_stats", "draft_mask"}


@pytest.fixture(scope="module")
def pair():
    return whisper(), noisy(whisper(), NOISE)


@pytest.fixture(scope="module")
def eager_pair():
    """Token timestamps need attentions."""
    target = copy.deepcopy(whisper())
    target.set_attn_implementation("eager")
    return target, noisy(target, NOISE)


def long_form(batch: int = 3) -> dict:
    """Audios of 100, 70 and 30 frames (a segment is 40)."""
    mask = torch.ones(batch, 100, dtype=torch.long)
    for b, length in enumerate((100, 70, 30)[:batch]):
        mask[b, length:] = 0
    return {"input_features": sound(batch, 100), "attention_mask": mask, "return_timestamps": True}


def speculative(target, draft, strategy: str = "rejection", **kwargs):
    """What Whisper's generate returns, and the statistics of all its segments together."""
    hf_specgen.enable(target)
    try:
        with hf_specgen.collect_stats() as stats:
            out = target.generate(assistant_model=draft, spec_strategy=strategy, **{"num_assistant_tokens": 3} | kwargs)
        return out, stats
    finally:
        hf_specgen.disable(target)


def assert_same(ours, theirs, where: str = "out"):
    if isinstance(theirs, torch.Tensor):
        assert ours.shape == theirs.shape, where
        if not theirs.is_floating_point():
            assert ours.tolist() == theirs.tolist(), where
        else:
            assert torch.equal(ours.isfinite(), theirs.isfinite()), where
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4, msg=lambda m: f"{where}: {m}")
    elif isinstance(theirs, dict):
        assert set(ours) - ours_only == set(theirs), where
        for name in theirs:
            assert_same(ours[name], theirs[name], f"{where}.{name}")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(theirs, (int, float, str, type(None))):
        assert ours == theirs, where
    else:
        assert type(ours) is type(theirs), where


def check(pair, strategy: str = "rejection", **kwargs):
    """The call is plain's, it drafted well and badly, and left every config as it was."""
    target, draft = pair

    def configs():
        return [m.config.to_json_string() + m.generation_config.to_json_string() for m in (target, draft)]

    theirs = plain(target, **kwargs)
    before = configs()
    ours, stats = speculative(target, draft, strategy, **kwargs)
    assert configs() == before
    assert vars(draft.generation_config).get("force_unique_generate_call") is None
    assert_same(ours, theirs)
    assert 0 < stats.accepted < stats.drafted
    return ours, stats


# ---- one segment ----------------------------------------------------------------------------------------
SHORT = {
    "as it is": {},
    "timestamps": {"return_timestamps": True},
    "language and task": {"language": "de", "task": "translate"},
    "a language each": {"language": ["de", "en", "fr"], "task": "transcribe", "return_timestamps": True},
    "prompt": {"prompt_ids": PROMPT, "language": "en"},
    "prompt, timestamps": {"prompt_ids": PROMPT, "language": "fr", "return_timestamps": True},
    "few tokens": {"max_new_tokens": 9, "return_timestamps": True},
    "dict": {"return_dict_in_generate": True, "language": "en"},
    "scores": {"return_dict_in_generate": True, "output_scores": True, "output_logits": True},
    "dict, timestamps": {"return_dict_in_generate": True, "return_timestamps": True},
    "segments": {"return_segments": True, "return_timestamps": True},
    "repetition": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 3, "return_timestamps": True},
    "other suppressions": {"suppress_tokens": [4, 5, 46], "begin_suppress_tokens": [9], "language": "en"},
}
PORTABLE = ("timestamps", "dict", "prompt, timestamps")


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.parity) if c in PORTABLE else c for c in SHORT])
def test_short_form(pair, case):
    kwargs = SHORT[case]
    out, _ = check(pair, input_features=sound(3), **kwargs)
    if "return_dict_in_generate" in kwargs and not kwargs.get("return_timestamps"):
        assert isinstance(out, GenerateEncoderDecoderOutput)


@pytest.mark.parametrize("case", ["as it is", "prompt, timestamps", "scores"])
def test_one_audio(pair, case):
    check(pair, input_features=sound(1), **SHORT[case])


@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
def test_sampling_from_one_candidate_and_several_sequences(pair, strategy):
    kwargs = {"do_sample": True, "temperature": 1.0, "top_k": 1, "num_return_sequences": 2, "return_timestamps": True}
    check(pair, strategy, input_features=sound(3), **kwargs)


def test_coupled_text_depends_on_the_seed_alone(pair):
    target, draft = pair
    kwargs = {"input_features": sound(3), "temperature": 1.0, "do_sample": True, "language": "en"}

    def text(draft, seed=0, **more):
        generator = torch.Generator().manual_seed(seed)
        return speculative(target, draft, "coupled", **kwargs, generator=generator, **more)[0].tolist()

    first = text(draft)
    assert first == text(draft, num_assistant_tokens=1) == text(decoder_of(target)) == text(None)
    assert first != text(None, seed=1)


def test_rules_of_timestamps_and_suppression_hold():
    """Fails where Whisper's own processors get lost on the way."""
    target = whisper()
    out, _ = speculative(
        target, noisy(target, 0.5), input_features=sound(3), return_timestamps=True, return_segments=True
    )
    ids = out["sequences"]
    assert not torch.isin(ids, torch.tensor(target.generation_config.suppress_tokens)).any()
    for segments in out["segments"]:
        assert segments and all(0 <= s["start"] <= s["end"] <= 0.44 for s in segments)


# ---- longer than a segment ------------------------------------------------------------------------------
LONG = {
    "as it is": {},
    "segments": {"return_segments": True},
    "dict": {"return_dict_in_generate": True},
    "on what was said": {"condition_on_prev_tokens": True},
    "prompt": {"prompt_ids": PROMPT, "language": "en"},
    "prompt for all": {
        "prompt_ids": PROMPT,
        "prompt_condition_type": "all-segments",
        "condition_on_prev_tokens": True,
        "task": "transcribe",
    },
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.parity) if c == "on what was said" else c for c in LONG]
)
def test_long_form(pair, case):
    _, stats = check(pair, **long_form(), **LONG[case])
    assert stats.calls >= 3, "one call per segment of the longest"


def test_one_long_audio(pair):
    check(pair, **long_form(1), condition_on_prev_tokens=True)


def test_prompts_of_different_lengths_were_among_them(pair):
    target, _ = pair
    seen, prepare = [], type(target).prepare_inputs_for_generation

    def watch(self, *args, **kwargs):
        seen.append(kwargs.get("decoder_attention_mask"))
        return prepare(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(target), "prepare_inputs_for_generation", watch)
        plain(target, **long_form(), condition_on_prev_tokens=True)
    assert any(m is not None and len(m) > 1 and not m.all() for m in seen)


@pytest.mark.parametrize("ratio, logprob, again", [(0.98, None, 1), (9.0, -2.365, 2), (9.0, -9.0, 0)])
def test_temperature_fallback(pair, ratio, logprob, again):
    """Greedy, then sampling from one candidate, for the segments that miss a threshold."""
    kwargs = {"temperature": (0.0, 0.4), "top_k": 1, "compression_ratio_threshold": ratio}
    _, stats = check(pair, **long_form(), **kwargs, logprob_threshold=logprob)
    assert stats.calls == 3 + again


def test_no_speech_threshold(pair):
    kwargs = {"temperature": (0.0,), "logprob_threshold": -1.0, "no_speech_threshold": 0.015}
    check(pair, **long_form(1), **kwargs)
    target, draft = pair
    with pytest.raises(SpecUnsupportedError, match="no_speech_threshold"):
        speculative(target, draft, **long_form(3), **kwargs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out, _ = speculative(target, draft, **long_form(3), **kwargs, spec_fallback="plain")
    assert any("no_speech_threshold" in str(w.message) for w in caught)
    assert_same(out, plain(target, **long_form(3), **kwargs))


@pytest.mark.parametrize("kwargs", [{}, {"return_timestamps": True, "return_segments": True}, {"long": True}])
def test_token_timestamps(eager_pair, kwargs):
    kwargs = dict(kwargs)
    inputs = long_form() if kwargs.pop("long", False) else {"input_features": sound(3)}
    out, _ = check(eager_pair, **inputs, **kwargs, return_token_timestamps=True)
    assert "token_timestamps" in out


def test_attentions_and_hidden_states(eager_pair):
    kwargs = {f"output_{name}": True for name in ("attentions", "hidden_states", "scores")}
    check(eager_pair, input_features=sound(2), language="en", return_dict_in_generate=True, **kwargs)


# ---- forwards and drafts --------------------------------------------------------------------------------
def encoder_runs(models: dict, call):
    counts = dict.fromkeys(models, 0)

    def counter(name):
        def count(*_):
            counts[name] += 1

        return count

    handles = [m.model.encoder.register_forward_pre_hook(counter(n)) for n, m in models.items()]
    try:
        result = call()
    finally:
        for handle in handles:
            handle.remove()
    return counts, result


def test_each_encoder_runs_once_in_a_segment(pair):
    """The language is given: to find it Whisper runs its encoder once more."""
    target, draft = pair
    kwargs = long_form() | {"language": "en"}
    plainly, _ = encoder_runs({"target": target}, lambda: plain(target, **kwargs))
    counts, (_, stats) = encoder_runs({"target": target, "draft": draft}, lambda: speculative(*pair, **kwargs))
    assert counts == {"target": stats.calls, "draft": stats.calls}
    assert plainly["target"] == stats.calls


SHARING = {
    "decoder alone": lambda target: noisy(decoder_of(target), NOISE),
    "with the target's encoder": lambda target: with_encoder_of(noisy(target, NOISE), target),
}


def with_encoder_of(draft, target):
    draft.model.encoder = target.model.encoder
    return draft


@pytest.mark.parity
@pytest.mark.parametrize("how", SHARING)
def test_drafts_that_read_the_targets_encoder(how):
    target = whisper()
    draft = SHARING[how](target)
    kwargs = long_form() | {"language": "en"}
    _, stats = check((target, draft), **kwargs)
    counts, _ = encoder_runs({"target": target}, lambda: speculative(target, draft, **kwargs))
    assert counts == {"target": stats.calls}


def test_statistics_sum_over_segments(pair):
    out, stats = check(pair, **long_form(), return_segments=True)
    assert stats.calls == 3 and len(stats.rows) == 3 + 2 + 1, "audios that are still going on"
    assert stats.emitted >= out["sequences"].shape[1]
    assert stats.emitted == stats.accepted + stats.rounds - stats.trimmed


UNFIT = {
    "other mel bins": ({"num_mel_bins": 2 * MELS}, f"{2 * MELS} mel bins.*{MELS}"),
    "other width, decoder alone": ({"d_model": 16}, "width 16.*32"),
    "other length of a segment": ({"max_source_positions": FRAMES}, "encoder|max_source_positions|frames"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_unfit_draft_is_refused_before_the_first_token(case):
    settings, message = UNFIT[case]
    target, draft = whisper(), whisper(**settings)
    if "alone" in case:
        draft = decoder_of(draft)
    started = []
    handle = target.model.decoder.register_forward_pre_hook(lambda *_: started.append(1))
    try:
        with pytest.raises(SpecUnsupportedError, match=message):
            speculative(target, draft, input_features=sound(2), language="en")
    finally:
        handle.remove()
    assert not started


def test_draft_of_another_width_with_its_own_encoder():
    target = whisper()
    ours, stats = speculative(target, whisper(seed=5, d_model=16), **long_form())
    assert_same(ours, plain(target, **long_form()))
    assert stats.drafted > 0


class Log:
    def __init__(self):
        self.seen = []

    def put(self, value):
        self.seen.append(value.tolist())

    def end(self):
        pass


@pytest.mark.parametrize("inputs", [{"input_features": sound(1)}, long_form(1)], ids=["short", "long"])
def test_streamer_gets_what_plain_gives_it(pair, inputs):
    ours, theirs = Log(), Log()
    plain(pair[0], **inputs, streamer=theirs)
    speculative(*pair, **inputs, streamer=ours)
    assert ours.seen == theirs.seen and ours.seen[0][0][0] == START


class ByRow(Log):
    def put_row(self, row, ids):
        self.seen.append((row, ids.tolist()))


@pytest.mark.parametrize("what", ["generators", "streamer"])
def test_what_goes_by_row_is_refused_for_several_audios(pair, what):
    """Whisper drops audios that have ended, and the others move up."""
    stream = ByRow()
    kwargs = {"streamer": stream} if what == "streamer" else {"generator": [torch.Generator() for _ in range(3)]}
    decoded = []
    handle = pair[0].model.decoder.register_forward_pre_hook(lambda *_: decoded.append(1))
    with pytest.raises(SpecUnsupportedError, match="one"):
        speculative(*pair, **long_form(), language="en", do_sample=True, temperature=1.0, **kwargs)
    handle.remove()
    assert not stream.seen and not decoded


def test_beams_are_refused_and_fall_back(pair):
    with pytest.raises(SpecUnsupportedError, match="num_beams"):
        speculative(*pair, input_features=sound(2), num_beams=2)
    with pytest.warns(UserWarning, match="num_beams"):
        out, stats = speculative(*pair, input_features=sound(2), num_beams=2, spec_fallback="plain")
    assert_same(out, plain(pair[0], input_features=sound(2), num_beams=2))
    assert stats.fallback_reason
