"""transformers pipelines with speculation: the texts of the plain pipeline, from code that may know nothing of drafts.

Two ways in: `pipeline(..., assistant_model=, spec_strategy=)`, and `enable(model, assistant_model=, spec_strategy=)`.
With a number of tokens: by itself, a draft as large as its target rests.
"""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel
from toys import noisy
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer, TextStreamer, pipeline
from transformers.pipelines.pt_utils import KeyDataset

import hf_specgen
from hf_specgen import RowStreamers, demo

NEW = 16
PROMPTS = [*demo.PROMPTS, "def main(", "import "]
CHAT = [{"role": "system", "content": "# café"}, {"role": "user", "content": "class Reader(object):"}]
OTHER_CHAT = [{"role": "user", "content": "def close(self):\n    return"}]
TEMPLATE = (
    "{% for m in messages %}# {{ m['role'] }}\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def pair():
    """The embedded draft, here as a quick target that writes text, and a noisy copy of it."""
    _, target, _ = demo.load()
    return target, noisy(target)


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(demo.PAIR / "target", local_files_only=True)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(scope="module")
def plain(pair, tokenizer):
    """The plain pipeline, on the same model while it is not enabled."""
    pipe = pipeline("text-generation", model=pair[0], tokenizer=tokenizer)

    def call(*args, **kwargs):
        hf_specgen.disable(pair[0])
        return pipe(*args, **kwargs)

    return call


@pytest.fixture(params=["arguments", "defaults"])
def ours(request, pair, tokenizer):
    """Our pipeline; speculates in every call, or the test fails."""
    target, draft = pair

    def call(*args, speculates=True, **kwargs):
        if request.param == "arguments":
            hf_specgen.enable(target)
            more = {"assistant_model": draft, "spec_strategy": "rejection", "num_assistant_tokens": 3}
        else:
            hf_specgen.enable(target, assistant_model=draft, spec_strategy="rejection", num_assistant_tokens=3)
            more = {}
        with hf_specgen.collect_stats() as stats:
            out = pipeline("text-generation", model=target, tokenizer=tokenizer, **more)(*args, **kwargs)
            out = out if isinstance(out, list) else list(out)
        assert bool(stats.accepted) == speculates
        return out

    yield call
    hf_specgen.disable(target)


GREEDY = {"max_new_tokens": NEW, "do_sample": False}


# ---- text-generation ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "asked",
    [PROMPTS[0], [PROMPTS[1]], PROMPTS[:3], CHAT, [CHAT, OTHER_CHAT], [*CHAT, {"role": "assistant", "content": "  x"}]],
    ids=["a prompt", "a list of one", "a list", "a chat", "chats", "a chat to be continued"],
)
def test_prompts_and_chats(plain, ours, asked):
    assert ours(asked, **GREEDY) == plain(asked, **GREEDY)


@pytest.mark.parametrize("asked", [PROMPTS, [CHAT, OTHER_CHAT, CHAT]], ids=["prompts", "chats"])
def test_batches_of_two(plain, ours, asked):
    assert ours(asked, batch_size=2, **GREEDY) == plain(asked, **GREEDY)


def test_the_pipelines_own_defaults(plain, ours):
    """They sample, with temperature: a seed gives a text, and it is no longer than asked for."""
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        runs.append(ours(PROMPTS[0], max_new_tokens=NEW))
    assert runs[0] == runs[1] != plain(PROMPTS[0], **GREEDY)


@pytest.mark.parametrize(
    "options",
    [
        {"return_full_text": False},
        {"return_tensors": True},
        {"num_return_sequences": 3, "do_sample": True, "top_k": 1},
        {"max_new_tokens": None, "max_length": 40},
        {"stop_sequence": ":"},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
        {"generate_kwargs": {"min_new_tokens": 5}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options(plain, ours, options):
    options = GREEDY | options
    options |= options.pop("generate_kwargs", {})
    got, want = (call(PROMPTS[2], **options) for call in (ours, plain))
    assert got == want


def test_stop_strings(plain, ours, tokenizer):
    asked, options = PROMPTS[:3], GREEDY | {"return_full_text": False}
    whole = [x[0]["generated_text"] for x in plain(asked, **options)]
    options |= {"stop_strings": [text[len(text) // 2 :][:3] for text in whole], "tokenizer": tokenizer}
    got, want = ours(asked, batch_size=2, **options), plain(asked, **options)
    assert got == want and all(len(x[0]["generated_text"]) < len(text) for x, text in zip(got, whole, strict=True))


def test_a_generator_and_a_dataset_are_read_one_by_one(plain, ours):
    want = plain(PROMPTS, **GREEDY)
    assert ours((prompt for prompt in PROMPTS), **GREEDY) == want
    rows = [{"text": prompt, "other": i} for i, prompt in enumerate(PROMPTS)]
    assert ours(KeyDataset(rows, "text"), batch_size=2, **GREEDY) == want


def test_a_text_streamer_prints_what_plain_prints(plain, ours, tokenizer, capsys):
    printed = []
    for call in (plain, ours):
        call(PROMPTS[:2], streamer=TextStreamer(tokenizer, skip_prompt=True), **GREEDY)
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and printed[0].count("\n") >= 2


def test_row_streamers_serve_every_batch(plain, ours, tokenizer):
    want = [x[0]["generated_text"] for x in plain(PROMPTS[:4], return_full_text=False, **GREEDY)]
    each = [TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=5, skip_special_tokens=True) for _ in range(2)]
    ours(PROMPTS[:4], batch_size=2, streamer=RowStreamers(each), **GREEDY)
    assert ["".join(each[n % 2]) for n in range(4)] == want


def test_statistics_and_mask_come_with_the_records(pair, ours, plain):
    got = ours(PROMPTS[0], return_dict_in_generate=True, **GREEDY)
    assert got[0]["generated_text"] == plain(PROMPTS[0], **GREEDY)[0]["generated_text"]
    assert np.size(got[0]["draft_mask"]) == NEW and np.any(got[0]["draft_mask"])


def test_what_is_refused_is_told_or_decoded_plainly(plain, ours):
    options = GREEDY | {"num_beams": 2}
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="num_beams=2"):
        ours(PROMPTS[0], **options)
    with pytest.warns(UserWarning, match="Decoding without the draft"):
        got = ours(PROMPTS[0], speculates=False, spec_fallback="plain", **options)
    assert got == plain(PROMPTS[0], **options)


# ---- drafts with another vocabulary ------------------------------------------------------------------
@pytest.fixture
def moved(tmp_path):
    """The draft, in a folder whose tokenizer has two words' ids swapped."""
    folder = shutil.copytree(demo.PAIR / "draft", tmp_path / "draft")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    (a, b) = [word for word, i in vocabulary.items() if i in (300, 301)]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    path.write_text(json.dumps(content))
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("way", ["arguments", "defaults"])
def test_a_draft_with_a_few_ids_moved(pair, tokenizer, moved, way):
    wanted = pipeline("text-generation", model=pair[0], tokenizer=tokenizer)(PROMPTS[0], **GREEDY)
    more = {"assistant_model": moved, "spec_strategy": "rejection", "num_assistant_tokens": 3}
    hf_specgen.enable(pair[0], **more if way == "defaults" else {})
    pipe = pipeline("text-generation", model=pair[0], tokenizer=tokenizer, **more if way == "arguments" else {})
    try:
        with hf_specgen.collect_stats() as stats:
            assert pipe(PROMPTS[0], **GREEDY) == wanted
    finally:
        hf_specgen.disable(pair[0])
    assert stats.accepted > 0


def test_a_draft_with_a_vocabulary_of_its_own(pair, tokenizer):
    from toys import tiny, toy_tokenizer

    wanted = pipeline("text-generation", model=pair[0], tokenizer=tokenizer)(PROMPTS[0], **GREEDY)
    hf_specgen.enable(pair[0])
    more = {"assistant_model": tiny(), "assistant_tokenizer": toy_tokenizer(), "spec_strategy": "rejection"}
    more["num_assistant_tokens"] = 3
    pipe = pipeline("text-generation", model=pair[0], tokenizer=tokenizer, **more)
    try:
        with hf_specgen.collect_stats() as stats:
            assert pipe(PROMPTS[0], **GREEDY) == wanted
    finally:
        hf_specgen.disable(pair[0])
    assert stats.drafted > 0


# ---- speech -------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def whisper():
    """A random Whisper of one second, English only, whose text depends on what it hears; tokenizer and extractor."""
    words = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|translate|>", "<|startoflm|>"]
    words += ["<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    times = [f"<|{i * 0.02:.2f}|>" for i in range(52)]
    vocabulary = {piece: i for i, piece in enumerate([*sorted(ByteLevel.alphabet()), *words, *times])}
    tokenizer = transformers.WhisperTokenizer(
        vocab=vocabulary, merges=[], pad_token=words[0], additional_special_tokens=words[1:]
    )
    ids = {"pad_token_id": 256, "bos_token_id": 256, "eos_token_id": 256, "decoder_start_token_id": 257}
    sizes = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in (("layers", 1), ("ffn_dim", 64))}
    sizes |= {"d_model": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8}
    sizes |= {"max_source_positions": 50, "max_target_positions": 64, "vocab_size": len(vocabulary)}
    off = {"suppress_tokens": None, "begin_suppress_tokens": None, "tie_word_embeddings": False}
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(**sizes, **ids, **off, init_std=0.1)
    ).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4 if p.dim() >= 2 else 1)
    model.generation_config = transformers.GenerationConfig(
        **ids, no_timestamps_token_id=264, is_multilingual=False, max_length=40, max_initial_timestamp_index=50
    )
    return model, tokenizer, transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"return_timestamps": True}], ids=str)
def test_speech_is_transcribed_as_plainly(whisper, options):
    """`num_beams=1`, for this pipeline's default is five beams."""
    model, tokenizer, extractor = whisper
    sounds = [np.random.default_rng(0).standard_normal(16000).astype(np.float32) * 0.1, np.sin(np.arange(12000.0) / 20)]
    options = options | {"generate_kwargs": {"num_beams": 1, "do_sample": False, "temperature": 0.0}}
    pipe = pipeline("automatic-speech-recognition", model=model, tokenizer=tokenizer, feature_extractor=extractor)
    want = pipe([x.copy() for x in sounds], **options)
    draft = noisy(model)
    hf_specgen.enable(model, assistant_model=draft, spec_strategy="rejection", num_assistant_tokens=5)
    try:
        with hf_specgen.collect_stats() as stats:
            assert pipe([x.copy() for x in sounds], **options) == want
    finally:
        hf_specgen.disable(model)
    assert stats.accepted > 10 and want[0]["text"] != want[1]["text"]
