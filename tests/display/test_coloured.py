"""A text by where its tokens came from: every token, the right origin, whole characters, HTML that is escaped."""

import re
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from stream_toys import says
from toys import batch_of, tiny, toy_tokenizer

import hf_specgen
from hf_specgen import demo
from hf_specgen.display.origins import DRAFT, LOOKUP, TARGET, origin
from hf_specgen.display.text import OriginText, OriginTexts


@pytest.fixture(scope="module")
def decoded():
    target, draft, tokenizer = demo.load()
    hf_specgen.enable(target)
    tokenizer.padding_side = "left"
    inputs = tokenizer(list(demo.PROMPTS), return_tensors="pt", padding=True)
    options = {"max_new_tokens": 24, "assistant_model": draft, "spec_strategy": "rejection", "num_assistant_tokens": 4}
    out = target.generate(**inputs, **options, spec_source="hybrid", return_dict_in_generate=True)
    return out, tokenizer, inputs["input_ids"].shape[1]


def test_all_tokens_have_the_origin_that_the_mask_says(decoded):
    out, tokenizer, _ = decoded
    texts = hf_specgen.coloured(out, tokenizer)
    for row, mask in zip(texts, out.draft_mask.tolist(), strict=True):
        assert [source is not None for _, source in row.pieces] == mask[: len(row.pieces)]
    drafted = out.spec_stats.by_source
    assert texts.counts()[DRAFT.source] <= drafted["draft"].accepted
    assert sum(texts.counts().values()) == out.spec_stats.emitted


def test_the_text_is_that_of_the_tokenizer(decoded):
    out, tokenizer, _ = decoded
    for row, ids in zip(hf_specgen.coloured(out, tokenizer), out.sequences, strict=True):
        assert str(row) == tokenizer.decode(ids, skip_special_tokens=True)


def test_terminal_and_notebook_show_the_same_text(decoded):
    out, tokenizer, _ = decoded
    texts = hf_specgen.coloured(out, tokenizer)
    shown = unescape(re.sub(r"<[^>]+>", "", re.search(r"<pre.*?</pre>", texts._repr_html_(), re.DOTALL)[0]))
    assert shown == str(texts[0])
    console = Console(width=200, color_system="standard", force_terminal=True, record=True)
    with console.capture() as captured:
        console.print(texts)
    assert "\x1b[32m" in captured.get() and "\x1b[1;33m" in captured.get()
    assert demo.PROMPTS[1].strip().splitlines()[0] in captured.get()


def test_a_source_of_ones_own_is_named():
    text = OriginText("a", (("b", "echo"),))
    assert ">echo</i>" in text._repr_html_() and origin("echo").label == "echo"
    assert {one.tag for one in (DRAFT, LOOKUP, TARGET)} == {"span", "u", "b"}, "told apart where styles are stripped"


def test_html_is_escaped():
    text = OriginTexts((OriginText("<script>x</script>", (("<b onload=1>&", "draft"), ("", None))),))
    seen = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            seen.append((tag, {name for name, _ in attrs}))

    Reader().feed(text._repr_html_())
    assert {tag for tag, _ in seen} <= {"div", "pre", "span", "b"}
    assert set().union(*(names for _, names in seen)) <= {"style", "title"}


def test_a_plain_call_is_all_the_targets():
    target, tokenizer = hf_specgen.enable(tiny()), toy_tokenizer()
    options = {"spec_strategy": "rejection", "spec_source": "none", "max_new_tokens": 5}
    out = target.generate(torch.tensor([[5, 6, 7]]), **options, return_dict_in_generate=True)
    assert hf_specgen.coloured(out, tokenizer).counts() == {None: 5}


def test_padding_behind_a_plainly_decoded_row_is_no_token_of_it():
    target, answers = hf_specgen.enable(tiny(eos_token_id=0)), ([5, 6, 7], [8, 9, 10, 11, 12, 13])
    options = {"spec_strategy": "rejection", "spec_source": "none", "max_new_tokens": 9}
    says_so = {"prefix_allowed_tokens_fn": says(*answers), "return_dict_in_generate": True}
    out = target.generate(**batch_of([[20, 21], [22, 23]]), **options, **says_so)
    texts = hf_specgen.coloured(out, toy_tokenizer())
    assert out.draft_mask.shape == (2, 7) and [row.counts() for row in texts] == [{None: 4}, {None: 7}]


@pytest.mark.parametrize(
    ("new", "own"),
    [([5, 6, 7, 8], 4), ([5, 6, 7, 63], 4), ([5, 63, 63, 63], 2), ([5, 63, 0, 0], 2), ([63, 0, 0, 0], 1)],
    ids=str,
)
def test_a_plainly_decoded_row_ends_with_its_end_of_text(new, own):
    stats, mask = hf_specgen.SpecStats(), torch.zeros(1, 4, dtype=torch.bool)
    out = SimpleNamespace(spec_stats=stats, draft_mask=mask, sequences=torch.tensor([[9, *new]]))
    assert hf_specgen.coloured(out, toy_tokenizer()).counts() == {None: own}


def test_the_legend_counts_and_each_origin_is_in_its_style():
    text = OriginText("a", (("b", "lookup"), ("c", "echo"), ("d", None), ("e", None)))
    legend = OriginTexts((text,)).legend()
    assert legend.plain == "prompt  text lookup (1)  target itself (2)  echo (1)"
    assert [str(span.style) for span in legend.spans] == [LOOKUP.terminal, TARGET.terminal, origin("echo").terminal]


def test_a_tensor_is_refused_with_what_to_do():
    with pytest.raises(TypeError, match="return_dict_in_generate=True, not a Tensor"):
        hf_specgen.coloured(torch.zeros(1, 3), toy_tokenizer())
