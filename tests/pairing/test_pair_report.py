"""The verdict on a pair: what is exact, what is usable, what is refused, and what each says."""

import json

import pytest
from pairing_toys import WORDS, make_model, make_tokenizer
from transformers import T5Config, T5ForConditionalGeneration

from hf_specgen.errors import SpecUnsupportedError
from hf_specgen.pairing import check_pair, require_usable


def check(target_words=WORDS, draft_words=WORDS, target_rows=64, draft_rows=64, **draft_config):
    return check_pair(
        make_model(target_rows),
        make_model(draft_rows, **draft_config),
        tokenizer=make_tokenizer(target_words),
        assistant_tokenizer=make_tokenizer(draft_words),
    )


def swapped(first, second):
    words = list(WORDS)
    words[first], words[second] = words[second], words[first]
    return words


def test_same_vocabulary_is_exact():
    report = check()
    assert (report.verdict, report.usable, report.reasons, report.shared) == ("exact", True, (), 1.0)
    assert (report.target_tokens, report.draft_tokens, report.target_rows, report.differing_count) == (64, 64, 64, 0)


def test_permuted_ids_are_another_vocabulary_all_of_it_shared():
    report = check(draft_words=WORDS[::-1])
    assert report.verdict == "cross-vocabulary" and report.usable
    assert (report.shared, report.differing_count, report.mapped, report.alike) == (0.0, 64, 64, 1.0)
    assert report.differing == tuple((i, f"w{i}", f"w{63 - i}") for i in range(10))
    assert "0.00 % of all ids agree" in report.reasons[0] and "token by token" in report.reasons[0]


def test_nothing_in_common_is_refused():
    report = check(draft_words=[f"v{i}" for i in range(64)])
    assert report.verdict == "refused" and not report.usable
    assert "64 of the 64 ids" in report.reasons[0]
    assert "No token stands for the same text in both" in report.reasons[-1]


def test_one_special_token_differs_is_mappable_and_named():
    report = check(draft_words=[*WORDS[:39], "<special>", *WORDS[40:]])
    assert (report.verdict, report.usable, report.mapped) == ("mappable", True, 63)
    assert report.differing == ((39, "w39", "<special>"),)
    assert "1 of the 64 ids known to both tokenizers mean different strings (39); 98.43 %" in report.reasons[0]


def test_a_few_ids_that_have_moved_are_mapped():
    report = check(draft_words=swapped(3, 4))
    assert (report.verdict, report.mapped) == ("mappable", 64)
    assert "2 of them mapped" in report.reasons[-1]


def test_one_tenth_of_the_ids_is_still_a_few():
    words = [f"w{i}" for i in range(100)]

    def verdict(differing):
        theirs = [f"v{i}" for i in range(differing)] + words[differing:]
        return check(words, theirs, target_rows=100, draft_rows=100).verdict

    assert (verdict(10), verdict(11)) == ("mappable", "cross-vocabulary")


def test_share_is_never_rounded_up_to_all():
    words = [f"t{i}" for i in range(100_001)]
    report = check(words, [*words[:-1], "other"], target_rows=100_001, draft_rows=100_001)
    assert "99.99 %" in report.reasons[0]


def test_tokens_added_to_the_target_only_are_usable_and_named():
    report = check(target_words=[*WORDS, "<tool>", "<image>"], target_rows=66)
    assert report.verdict == "mappable"
    assert report.shared == pytest.approx(64 / 66)
    assert "the draft has none for ids from 64 on" in report.reasons[0]
    assert "Known only to the target: 2 tokens (64 '<tool>', 65 '<image>')" in report.reasons[1]


def test_tokens_added_to_the_draft_only_are_usable_and_named():
    report = check(draft_words=[*WORDS, "<tool>"], draft_rows=65)
    assert report.verdict == "mappable"
    assert "Known only to the draft: 1 token (64 '<tool>')" in report.reasons[1]


def test_added_token_without_a_row_cannot_occur():
    """A tokenizer may know more ids than the model has rows: no logit ever names them."""
    assert check(target_words=[*WORDS, "<a>"], draft_words=[*WORDS, "<b>"]).verdict == "exact"


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(72, 64), (64, 72), (128, 80)])
def test_padding_rows_on_either_side(target_rows, draft_rows):
    report = check(target_rows=target_rows, draft_rows=draft_rows)
    assert (report.verdict, report.shared) == ("exact-with-padding", 1.0)
    assert f"ids from {min(target_rows, draft_rows)} on" in report.reasons[0]


def test_equal_padding_is_exact():
    assert check(target_rows=80, draft_rows=80).verdict == "exact"


@pytest.mark.parametrize("draft_rows", [64, 72, 40])
def test_without_tokenizers_toy_models_are_usable(draft_rows):
    report = check_pair(make_model(), make_model(draft_rows))
    assert (report.verdict, report.usable, report.shared) == ("unknown", True, None)
    assert "assistant_tokenizer=" in report.reasons[0]


def test_with_one_tokenizer_only_the_missing_one_is_named():
    report = check_pair(make_model(), make_model(), tokenizer=make_tokenizer())
    assert report.verdict == "unknown"
    assert "for the draft" in report.reasons[0] and "for the target" not in report.reasons[0]


@pytest.mark.parametrize(
    ("target_rows", "draft_rows", "verdict"), [(151936, 152064, "unknown"), (32000, 151936, "refused")]
)
def test_without_tokenizers_rows_may_differ_by_padding(tmp_path, target_rows, draft_rows, verdict):
    for name, rows in (("target", target_rows), ("draft", draft_rows)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"vocab_size": rows}))
    report = check_pair(tmp_path / "target", tmp_path / "draft")
    assert report.verdict == verdict
    assert "assistant_tokenizer=" in report.reasons[0]


def test_other_eos_is_a_reason_not_a_refusal():
    report = check(eos_token_id=5)
    assert (report.verdict, report.target_eos, report.draft_eos) == ("exact", (2,), (5,))
    assert "The EOS ids differ (target [2], draft [5])" in report.reasons[0]


def test_require_usable_raises_with_reasons_and_strings():
    report = check()
    assert require_usable(report) is report
    with pytest.raises(SpecUnsupportedError, match=r"64 of the 64 ids.*0 'w0' / 'v0', 1 'w1' / 'v1'"):
        require_usable(check(draft_words=[f"v{i}" for i in range(64)]))


def test_report_reads_and_serialises():
    report = check(draft_words=swapped(3, 4))
    assert "verdict  mappable" in str(report) and "id 3: target 'w3', draft 'w4'" in str(report)
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["usable"] is True and plain["differing"][0] == {"id": 3, "target": "w3", "draft": "w4"}


def test_models_and_tokenizers_are_left_alone():
    models, tokenizers = (make_model(), make_model()), (make_tokenizer(), make_tokenizer())
    before = [set(vars(thing)) for thing in (*models, *tokenizers, models[0].config)]
    check_pair(*models, tokenizer=tokenizers[0], assistant_tokenizer=tokenizers[1])
    assert [set(vars(thing)) for thing in (*models, *tokenizers, models[0].config)] == before


def test_two_tokenizers_alone():
    report = check_pair(make_tokenizer(), make_tokenizer(swapped(3, 4)))
    assert (report.verdict, report.target_rows, report.mapped) == ("mappable", None, 64)
    assert check_pair(make_tokenizer(), make_model()).verdict == "unknown"
    with pytest.raises(TypeError, match="not 'words'"):
        check_pair(make_model(), make_model(), tokenizer="words")


def test_an_encoder_decoder_cannot_draft_for_a_decoder():
    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    report = check_pair(make_model(), T5ForConditionalGeneration(config))
    assert report.verdict == "refused" and "is an encoder-decoder and the target is not" in report.reasons[0]
    assert check_pair(T5ForConditionalGeneration(config), make_model()).usable
