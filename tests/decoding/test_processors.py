"""Logits processors: whatever `generate` can build, or a caller can pass, acts on every slot of a drafted block as it
acts token by token in plain decoding, and a caller's own object ends as plain decoding would leave it."""

import copy

import pytest
import torch
from toys import EOS, VOCAB, noisy, plain, prompts, row_alone, spec, tiny, toy_tokenizer
from transformers import LogitsProcessor, LogitsProcessorList, SynthIDTextWatermarkingConfig, WatermarkingConfig
from transformers.generation.logits_process import MinLengthLogitsProcessor

import hf_specgen

NEW = 20
LENGTHS = [9, 4, 6]


@pytest.fixture(scope="module")
def target():
    return tiny()


@pytest.fixture(scope="module")
def draft(target):
    return noisy(target)


@pytest.fixture(scope="module")
def batch():
    return prompts(LENGTHS)


@pytest.fixture(scope="module")
def text(target, batch):
    """What the target says after the first prompt when nothing interferes."""
    return plain(target, **row_alone(batch, 0), max_new_tokens=NEW, do_sample=False)[0, LENGTHS[0] :].tolist()


BUILT_IN = {
    "repetition_penalty": lambda t: {"repetition_penalty": 1.7},
    "repetition_penalty below one": lambda t: {"repetition_penalty": 0.6},
    "no_repeat_ngram_size 1": lambda t: {"no_repeat_ngram_size": 1},
    "no_repeat_ngram_size 2": lambda t: {"no_repeat_ngram_size": 2, "repetition_penalty": 0.6},
    "encoder_repetition_penalty": lambda t: {"encoder_repetition_penalty": 3.0},
    "encoder_no_repeat_ngram_size": lambda t: {"encoder_no_repeat_ngram_size": 1, "repetition_penalty": 0.6},
    "bad_words_ids": lambda t: {"bad_words_ids": [[t[2]], [t[4], t[5]]]},
    "bad_words_ids of three tokens": lambda t: {"bad_words_ids": [t[3:6]]},
    "sequence_bias": lambda t: {"sequence_bias": [[[t[1]], -60.0], [t[4:6], -60.0], [[7, 9], 30.0], [[7], 4.0]]},
    "suppress_tokens": lambda t: {"suppress_tokens": t[2:4]},
    "begin_suppress_tokens": lambda t: {"begin_suppress_tokens": t[:1]},
    "forced_eos_token_id": lambda t: {"forced_eos_token_id": 7},
    "exponential_decay_length_penalty": lambda t: {"exponential_decay_length_penalty": (4, 1.6)},
    "watermark selfhash": lambda t: {"watermarking_config": WatermarkingConfig(bias=8.0, seeding_scheme="selfhash")},
    "watermark lefthash": lambda t: {"watermarking_config": WatermarkingConfig(bias=8.0, context_width=2)},
    "several at once": lambda t: {
        "repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "suppress_tokens": [t[5]], "min_new_tokens": 6,
        "eos_token_id": [t[3], EOS], "renormalize_logits": True, "exponential_decay_length_penalty": (8, 1.3),
    },
}  # fmt: skip


@pytest.mark.parametrize("k", [1, 6])
@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_processor_equals_plain_alone_and_in_a_ragged_batch(target, draft, batch, text, name, k):
    options = {"max_new_tokens": NEW, "num_assistant_tokens": k} | BUILT_IN[name](text)
    without_k = {key: value for key, value in options.items() if key != "num_assistant_tokens"}
    alone = [
        plain(target, **row_alone(batch, b), do_sample=False, **without_k)[0, length:].tolist()
        for b, length in enumerate(LENGTHS)
    ]
    assert alone[0] != text, "the option changes nothing: the test would prove nothing"

    got = spec(target, draft, **row_alone(batch, 0), **options).sequences[0, LENGTHS[0] :].tolist()
    assert got == alone[0]

    rows = spec(target, draft, **batch, **options).sequences[:, max(LENGTHS) :].tolist()
    for row, wanted in zip(rows, alone, strict=True):
        assert row == wanted + [0] * (len(row) - len(wanted))


SYNTHID = SynthIDTextWatermarkingConfig(ngram_len=3, keys=[5, 9, 3, 11, 2, 8], context_history_size=16)


@pytest.mark.parametrize("k", [1, 6])
def test_synthid_watermark_equals_plain_and_its_state_follows_the_true_text(target, draft, batch, text, k):
    options = {"max_new_tokens": NEW, "watermarking_config": SYNTHID, "output_scores": True, "do_sample": False}
    for b in range(3):
        want = plain(target, **row_alone(batch, b), return_dict_in_generate=True, **options)
        got = spec(target, draft, **row_alone(batch, b), num_assistant_tokens=k, **options)
        assert got.sequences.tolist() == want.sequences.tolist()
        torch.testing.assert_close(torch.cat(got.scores), torch.cat(want.scores), atol=1e-3, rtol=1e-4)
    rows = spec(target, draft, **batch, num_assistant_tokens=k, **options).sequences
    for b, length in enumerate(LENGTHS):
        want = plain(target, **row_alone(batch, b), **options)[0, length:]
        assert rows[b, max(LENGTHS) :].tolist() == want.tolist()


def test_repetition_inside_one_block_is_seen_by_the_later_slots_of_that_block(target, batch):
    """A draft that proposes one token six times: the penalty has to grow inside the block."""

    class Stutter(hf_specgen.Drafter):
        def propose(self, rows, widths, verifier, noise):
            (width,) = widths
            self.forwards += 1
            tokens = torch.full((1, width), self.token)
            return hf_specgen.Proposal(tokens, torch.tensor([width]))

    stuck = {"sequence_bias": [[[11], 40.0]], "repetition_penalty": 1.25, "max_new_tokens": 16}
    want = plain(target, **row_alone(batch, 0), do_sample=False, **stuck)[0].tolist()
    assert want[LENGTHS[0] :].count(11) > 2, "the target has to like the repeated token"
    stutter = Stutter()
    stutter.token = 11
    got = spec(target, stutter, **row_alone(batch, 0), num_assistant_tokens=6, **stuck)
    assert got.sequences[0].tolist() == want
    assert got.spec_stats.accepted > 2


@pytest.mark.parametrize("minimum", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("k", [1, 6])
@pytest.mark.parametrize("absolute", [False, True], ids=["min_new_tokens", "min_length"])
def test_minimum_length_around_the_step_where_eos_appears(target, draft, batch, text, minimum, k, absolute):
    """EOS = the target's third token: a minimum of 2 or less lets it end there, a larger one does not."""
    eos = text[2]
    assert eos not in text[:2]
    for b, length in enumerate(LENGTHS):
        option = {"min_length": length + minimum} if absolute else {"min_new_tokens": minimum}
        options = {"max_new_tokens": 12, "eos_token_id": eos} | option
        want = plain(target, **row_alone(batch, b), do_sample=False, **options)
        got = spec(target, draft, **row_alone(batch, b), num_assistant_tokens=k, **options).sequences
        assert got.tolist() == want.tolist()
        if b == 0:
            assert (want.shape[1] == length + 3) == (minimum <= 2), "EOS is not counted by the minimum"


@pytest.mark.parametrize("minimum", [2, 3, 4, 5])
def test_min_new_tokens_counts_a_short_rows_own_tokens_in_a_ragged_batch(target, draft, minimum):
    """With the padded width, `min_new_tokens=3` would still ban EOS many tokens later in the short row."""
    batch = prompts([14, 3])
    short = plain(target, **row_alone(batch, 1), max_new_tokens=12, do_sample=False)[0, 3:].tolist()
    options = {"max_new_tokens": 12, "eos_token_id": short[3], "min_new_tokens": minimum}
    rows = spec(target, draft, **batch, **options).sequences[:, 14:].tolist()
    for b, length in enumerate([14, 3]):
        want = plain(target, **row_alone(batch, b), do_sample=False, **options)[0, length:].tolist()
        assert rows[b] == want + [0] * (len(rows[b]) - len(want))


def test_absolute_min_length_counts_columns_of_the_padded_input_as_plain_does(target, draft):
    batch = prompts([14, 3])
    short = plain(target, **row_alone(batch, 1), max_new_tokens=12, do_sample=False)[0, 3:].tolist()
    options = {"max_new_tokens": 12, "eos_token_id": short[3], "min_length": 14 + 4}
    want = plain(target, **batch, do_sample=False, **options)
    assert spec(target, draft, **batch, **options).sequences.tolist() == want.tolist()
    assert short[3] in want[1, 14:].tolist(), "the short row ends at its EOS once the columns suffice"


def test_min_length_with_drafts_gives_no_warning_and_keeps_drafting(target, draft, batch, recwarn):
    out = spec(
        target, draft, **row_alone(batch, 0), max_new_tokens=NEW, min_length=LENGTHS[0] + 10, num_assistant_tokens=3
    )
    assert not [str(w.message) for w in recwarn if "min" in str(w.message).lower()]
    without = spec(target, draft, **row_alone(batch, 0), max_new_tokens=NEW, num_assistant_tokens=3)
    assert out.spec_stats.drafted == without.spec_stats.drafted > 0
    assert out.spec_stats.target_forwards == without.spec_stats.target_forwards < NEW


@pytest.mark.parametrize("k", [1, 6])
def test_forced_bos_after_a_prompt_of_one_token(target, draft, k):
    one = prompts([1])
    options = {"max_new_tokens": 8, "forced_bos_token_id": 17, "begin_suppress_tokens": [3]}
    want = plain(target, **one, do_sample=False, **options)
    assert want[0, 1] == 17
    assert spec(target, draft, **one, num_assistant_tokens=k, **options).sequences.tolist() == want.tolist()
    ragged = prompts([5, 1])
    rows = spec(target, draft, **ragged, num_assistant_tokens=k, **options).sequences[:, 5:]
    want = plain(target, **row_alone(ragged, 1), do_sample=False, **options)
    assert rows[1].tolist() == want[0, 1:].tolist()
    assert rows[0, 0] != 17, "a longer row is not at its beginning"


@pytest.mark.parametrize("new", [1, 2, 5, 6, 7, 8])
def test_forced_eos_lands_on_the_last_token_whatever_the_block(target, draft, batch, new):
    options = {"max_new_tokens": new, "forced_eos_token_id": 7}
    for draft_or_copy in (draft, noisy(target, 0)):
        got = spec(target, draft_or_copy, **row_alone(batch, 0), num_assistant_tokens=5, **options).sequences
        assert got.tolist() == plain(target, **row_alone(batch, 0), do_sample=False, **options).tolist()
        assert got[0, -1] == 7 and got.shape[1] == LENGTHS[0] + new


def test_renormalized_scores_are_log_probabilities_as_in_plain(target, draft, batch):
    options = {"max_new_tokens": 10, "renormalize_logits": True, "output_scores": True, "repetition_penalty": 1.3}
    want = plain(target, **row_alone(batch, 0), do_sample=False, return_dict_in_generate=True, **options)
    got = spec(target, draft, **row_alone(batch, 0), **options)
    torch.testing.assert_close(torch.cat(got.scores), torch.cat(want.scores), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.cat(got.scores).logsumexp(-1), torch.zeros(10), atol=1e-4, rtol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_remove_invalid_values_decodes_past_a_head_that_returns_them(target, batch, value):
    broken = copy.deepcopy(target)
    with torch.no_grad():
        broken.lm_head.weight[20] = value
    draft = noisy(target)
    options = {"max_new_tokens": 10, "remove_invalid_values": True}
    want = plain(broken, **row_alone(batch, 0), do_sample=False, **options)
    for d in (draft, copy.deepcopy(broken)):
        assert spec(broken, d, **row_alone(batch, 0), **options).sequences.tolist() == want.tolist()


# ---- sampling: the processed scores are plain's on the same text --------------------------------------
SAMPLING = {
    "temperature": {"temperature": 2.5},
    "top_k": {"top_k": 4, "temperature": 3.0},
    "top_p": {"top_p": 0.6, "temperature": 3.0},
    "min_p": {"min_p": 0.2, "temperature": 3.0},
    "typical_p": {"typical_p": 0.5, "temperature": 3.0},
    "top_h": {"top_h": 0.4, "temperature": 3.0},
    "epsilon_cutoff": {"epsilon_cutoff": 0.05, "temperature": 3.0},
    "eta_cutoff": {"eta_cutoff": 0.05, "temperature": 3.0},
    "all with penalties": {
        "top_k": 20, "top_p": 0.9, "min_p": 0.02, "temperature": 2.5, "repetition_penalty": 1.4,
        "no_repeat_ngram_size": 2, "renormalize_logits": True,
    },
    "watermark": {"watermarking_config": WatermarkingConfig(bias=4.0), "top_k": 9, "temperature": 3.0},
    "synthid": {"watermarking_config": SYNTHID, "temperature": 3.0},
}  # fmt: skip


@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("name", SAMPLING)
def test_sampled_scores_are_those_of_plain_on_the_same_text(target, draft, batch, name, strategy, monkeypatch):
    options = {"max_new_tokens": 12, "do_sample": True, "top_k": 0, "output_scores": True, "output_logits": True}
    options |= SAMPLING[name]
    prompt = row_alone(batch, 0)
    torch.manual_seed(3)
    got = spec(target, draft, strategy, **prompt, num_assistant_tokens=4, **options)
    said = iter(got.sequences[0, LENGTHS[0] :].tolist())
    monkeypatch.setattr(torch, "multinomial", lambda probs, num_samples: torch.tensor([[next(said)]]))
    want = plain(target, **prompt, return_dict_in_generate=True, **options)
    assert want.sequences.tolist() == got.sequences.tolist()
    torch.testing.assert_close(torch.cat(got.logits), torch.cat(want.logits), atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(torch.cat(got.scores), torch.cat(want.scores), atol=1e-3, rtol=1e-3)
    for scores, token in zip(got.scores, got.sequences[0, LENGTHS[0] :], strict=True):
        assert scores[0, token] > float("-inf"), "a token outside the processed support"


@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
def test_nothing_outside_the_nucleus_is_ever_sampled_even_with_a_flat_draft(target, strategy):
    flat = noisy(target)
    with torch.no_grad():
        flat.lm_head.weight.zero_()
    ids = prompts([6])["input_ids"]
    torch.manual_seed(0)
    options = {"do_sample": True, "top_p": 0.3, "top_k": 0, "temperature": 4.0, "num_return_sequences": 64}
    out = spec(
        target, flat, strategy, input_ids=ids, max_new_tokens=8, output_scores=True, num_assistant_tokens=3, **options
    )
    scores = torch.stack(out.scores, dim=1)  # [rows, steps, vocabulary]
    picked = scores.gather(2, out.sequences[:, 6:, None]).squeeze(2)
    alive = (out.sequences[:, 6:] != 0) | (out.sequences[:, 6:].cumsum(1) == 0)
    assert (picked[alive] > float("-inf")).all()
    assert (scores == float("-inf")).any(-1)[alive].float().mean() > 0.9, "the nucleus has to cut something"


# ---- custom processors --------------------------------------------------------------------------------
class Stateful(LogitsProcessor):
    """Pushes another token at every call: a call too many or too few changes the text."""

    def __init__(self, log=None):
        self.calls = 0
        self.last_length = None
        self.lengths = []
        self.log = [] if log is None else log

    def __call__(self, input_ids, scores):
        self.calls += 1
        self.last_length = input_ids.shape[1]
        self.lengths.append(input_ids.shape)
        self.log.append(int(input_ids[0, -1]))
        scores = scores.clone()
        scores[:, (7 * self.calls + 2) % (VOCAB - 3)] += 25.0 * (self.calls % 3 == 0)
        return scores


class AfterToken(LogitsProcessor):
    """Grammar-like: once `trigger` has appeared, only even ids are allowed, from the very next token. Keeps a flag."""

    def __init__(self, trigger):
        self.trigger, self.active = trigger, False

    def __call__(self, input_ids, scores):
        self.active = self.active or int(input_ids[0, -1]) == self.trigger
        if self.active:
            scores = scores.clone()
            scores[:, 1::2] = float("-inf")
        return scores


class Unshareable(torch.nn.Linear):
    def __deepcopy__(self, memo):
        raise AssertionError("a neural module was copied")


class WithModule(LogitsProcessor):
    """Holds a network and a tokenizer, and keeps a count beside them."""

    def __init__(self, tokenizer):
        torch.manual_seed(5)
        self.network = Unshareable(VOCAB, VOCAB, bias=False)
        self.tokenizer = tokenizer
        self.nested = {"networks": [self.network]}
        self.count = 0

    @torch.no_grad()
    def __call__(self, input_ids, scores):
        self.count += 1
        assert self.nested["networks"][0] is self.network
        assert isinstance(self.tokenizer.decode(input_ids[0]), str)
        seen = torch.nn.functional.one_hot(input_ids[:, -2:], VOCAB).float().sum(1)
        return scores + 20 * self.network(seen) + 5.0 * (self.count % 2)


def lean(input_ids, scores):
    """A plain function: leans on the token two back."""
    scores = scores.clone()
    scores.scatter_add_(1, (input_ids[:, -2:-1] + 5) % (VOCAB - 2), torch.full((len(scores), 1), 14.0))
    return scores


@pytest.fixture(params=["stateful", "after token", "with module", "function"])
def make_processor(request, text):
    tokenizer = toy_tokenizer()
    return {
        "stateful": Stateful,
        "after token": lambda: AfterToken(text[3]),
        "with module": lambda: WithModule(tokenizer),
        "function": lambda: lean,
    }[request.param]


@pytest.mark.parametrize("noise", [0, 0.05, 0.4])
@pytest.mark.parametrize("k", [1, 6])
def test_custom_processor_equals_plain_and_ends_in_plains_state(target, batch, text, make_processor, noise, k):
    theirs, ours = make_processor(), make_processor()
    want = plain(target, **row_alone(batch, 0), do_sample=False, max_new_tokens=NEW, logits_processor=[theirs])[
        0
    ].tolist()
    assert want[LENGTHS[0] :] != text
    passed = LogitsProcessorList([ours])
    got = spec(
        target,
        noisy(target, noise),
        **row_alone(batch, 0),
        max_new_tokens=NEW,
        logits_processor=passed,
        num_assistant_tokens=k,
    )
    assert got.sequences[0].tolist() == want
    assert passed == [ours] and passed[0] is ours
    if ours is not lean:
        hidden = ("network", "tokenizer", "nested")
        assert {n: v for n, v in vars(ours).items() if n not in hidden} == {
            n: v for n, v in vars(theirs).items() if n not in hidden
        }


@pytest.mark.parametrize("k", [1, 6])
def test_custom_processor_in_a_batch_each_row_as_alone_and_the_callers_object_untouched(
    target, draft, batch, make_processor, k
):
    ours = make_processor()
    before = copy.copy(vars(ours)) if ours is not lean else None
    out = spec(target, draft, **batch, max_new_tokens=NEW, logits_processor=[ours], num_assistant_tokens=k)
    for b, length in enumerate(LENGTHS):
        want = plain(
            target, **row_alone(batch, b), do_sample=False, max_new_tokens=NEW, logits_processor=[make_processor()]
        )
        want = want[0, length:].tolist()
        assert out.sequences[b, max(LENGTHS) :].tolist() == want + [0] * (NEW - len(want))
    if before is not None:
        assert vars(ours) == before


def test_callers_list_attribute_keeps_its_identity_and_holds_one_entry_per_emitted_token(target, batch):
    log = ["before"]
    ours = Stateful(log)
    out = spec(
        target,
        noisy(target, 0.2),
        **row_alone(batch, 0),
        max_new_tokens=NEW,
        logits_processor=[ours],
        num_assistant_tokens=5,
    )
    assert ours.log is log
    assert log == ["before", *out.sequences[0, LENGTHS[0] - 1 : -1].tolist()]
    assert ours.lengths == [(1, LENGTHS[0] + i) for i in range(NEW)]
    assert out.spec_stats.accepted < out.spec_stats.drafted, "some drafts have to be rejected for this to mean anything"


def test_stateful_processor_sees_nothing_beyond_a_stop_in_the_middle_of_a_block(target, batch):
    theirs, ours = Stateful(), Stateful()
    options = {"max_new_tokens": NEW, "do_sample": False}
    said = plain(target, **row_alone(batch, 0), logits_processor=[Stateful()], **options)[0, LENGTHS[0] :].tolist()
    stop = next(i for i in range(3, NEW) if said[i] not in said[:i])
    options["eos_token_id"] = said[stop]
    want = plain(target, **row_alone(batch, 0), logits_processor=[theirs], **options)
    got = spec(
        target, noisy(target, 0), **row_alone(batch, 0), logits_processor=[ours], num_assistant_tokens=12, **options
    )
    assert got.sequences.tolist() == want.tolist()
    assert vars(ours) == vars(theirs) and ours.calls == stop + 1


def test_a_state_machine_becomes_active_right_after_a_token_in_the_middle_of_an_accepted_block(target, batch, text):
    """The trigger is the fourth token; an exact-copy draft would propose what was said without the grammar."""
    for draft in (noisy(target, 0), noisy(target, 0.1)):
        for k in (2, 5, 12):
            out = spec(
                target,
                draft,
                **row_alone(batch, 0),
                max_new_tokens=NEW,
                logits_processor=[AfterToken(text[3])],
                num_assistant_tokens=k,
            )
            said = out.sequences[0, LENGTHS[0] :].tolist()
            first = said.index(text[3])
            assert all(token % 2 == 0 for token in said[first + 1 :])
            assert said[:first] == text[:first]


def test_processors_of_both_kinds_keep_plains_order(target, draft, batch):
    """A built-in one before, sampling's warpers after the custom one; a watermark last."""
    options = {"max_new_tokens": NEW, "do_sample": False, "repetition_penalty": 1.5, "suppress_tokens": [7]}
    options |= {"watermarking_config": WatermarkingConfig(bias=5.0), "renormalize_logits": True}
    want = plain(target, **row_alone(batch, 0), logits_processor=[Stateful(), lean], **options)
    got = spec(target, draft, **row_alone(batch, 0), logits_processor=[Stateful(), lean], **options)
    assert got.sequences.tolist() == want.tolist()


def test_a_processor_that_cannot_be_copied_is_refused_by_name_before_the_first_token(target, draft, batch):
    class Handle(LogitsProcessor):
        calls = 0

        def __deepcopy__(self, memo):
            raise TypeError("an open connection")

        def __call__(self, input_ids, scores):
            type(self).calls += 1
            return scores

    with pytest.raises(hf_specgen.SpecUnsupportedError, match=r"Handle.*an open connection"):
        spec(target, draft, **row_alone(batch, 0), max_new_tokens=4, logits_processor=[Handle()])
    assert Handle.calls == 0


@pytest.mark.parametrize("how", ["option", "object"])
def test_classifier_free_guidance_is_refused_by_name(target, draft, batch, how):
    from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

    given = (
        {"guidance_scale": 1.5}
        if how == "option"
        else {"logits_processor": [UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, target)]}
    )
    with pytest.raises(hf_specgen.SpecUnsupportedError, match=r"guidance_scale"):
        spec(target, draft, **row_alone(batch, 0), max_new_tokens=4, **given)


@pytest.mark.parametrize("also_as_option", [False, True])
def test_a_processor_object_that_generate_also_builds_takes_its_place(target, draft, batch, text, also_as_option):
    minimum = LENGTHS[0] + 6
    options = {"max_new_tokens": NEW, "eos_token_id": text[2]} | (
        {"min_length": LENGTHS[0] + 2} if also_as_option else {}
    )

    def given():
        return [MinLengthLogitsProcessor(minimum, text[2])]

    want = plain(target, **row_alone(batch, 0), do_sample=False, logits_processor=given(), **options)
    assert want.shape[1] >= minimum and text[2] not in want[0, LENGTHS[0] : minimum]
    got = spec(target, draft, **row_alone(batch, 0), logits_processor=given(), **options)
    assert got.sequences.tolist() == want.tolist()


# ---- prefix_allowed_tokens_fn -------------------------------------------------------------------------
def test_prefix_constraint_equals_plain(target, draft, batch, text):
    """Only (ab)*, then anything ≡ the last token mod 3: the draft wants otherwise."""

    def allowed(batch_id, sent):
        return [i for i in range(VOCAB) if i % 3 == (int(sent[-1]) + 1) % 3]

    want = plain(target, **row_alone(batch, 0), do_sample=False, max_new_tokens=NEW, prefix_allowed_tokens_fn=allowed)
    assert want[0, LENGTHS[0] :].tolist() != text
    for k in (1, 6):
        got = spec(
            target,
            draft,
            **row_alone(batch, 0),
            max_new_tokens=NEW,
            prefix_allowed_tokens_fn=allowed,
            num_assistant_tokens=k,
        )
        assert got.sequences.tolist() == want.tolist()


@pytest.mark.parametrize("copies", [1, 2])
def test_prefix_constraint_gets_plains_batch_id_for_every_row(target, draft, copies):
    """The function allows a single token, by batch id and length: the text shows which id each row was given."""
    batch = prompts([5, 5, 5])
    seen: dict[str, set] = {"plain": set(), "spec": set()}

    def allowed_for(who):
        def allowed(batch_id, sent):
            seen[who].add((int(batch_id), tuple(sent.tolist())))
            assert sent.dim() == 1
            return [2 + (11 * int(batch_id) + 3 * len(sent)) % 60]

        return allowed

    options = {
        "max_new_tokens": 9,
        "num_return_sequences": copies,
        "do_sample": copies > 1,
        "eos_token_id": 2 + (11 + 3 * 8) % 60,
    }
    want = plain(target, **batch, prefix_allowed_tokens_fn=allowed_for("plain"), **options)
    assert len({tuple(row) for row in want.tolist()}) == 3
    got = spec(target, draft, **batch, prefix_allowed_tokens_fn=allowed_for("spec"), num_assistant_tokens=4, **options)
    assert got.sequences.tolist() == want.tolist(), "row 1 ends early: the others keep their ids"
    assert {i for i, _ in seen["spec"]} == {0, 1, 2}
    alive = {(i, sent) for i, sent in seen["plain"] if not {0, options["eos_token_id"]} & {*sent[5:]}}
    assert alive <= seen["spec"]


def test_prefix_constraint_sees_the_unpadded_row_in_a_ragged_batch(target, draft):
    batch = prompts([8, 3])
    starts = [row_alone(batch, b)["input_ids"][0].tolist() for b in range(2)]

    def allowed(batch_id, sent):
        assert sent.tolist()[: len(starts[batch_id])] == starts[batch_id]
        return list(range(2 + batch_id, 60, 2))

    out = spec(target, draft, **batch, max_new_tokens=10, prefix_allowed_tokens_fn=allowed).sequences[:, 8:]
    assert (out[0] % 2 == 0).all() and (out[1] % 2 == 1).all()


# ---- scores and logits --------------------------------------------------------------------------------
@pytest.mark.parametrize("k", [1, 6])
def test_scores_and_logits_are_plains_with_processors_on_and_a_stop_in_the_middle_of_a_block(target, draft, batch, k):
    options = {
        "repetition_penalty": 1.4,
        "suppress_tokens": [9],
        "max_new_tokens": NEW,
        "output_scores": True,
        "output_logits": True,
    }
    options |= {"logits_processor": [lean], "do_sample": False}
    said = plain(target, **row_alone(batch, 0), **options)[0, LENGTHS[0] :].tolist()
    stop = next(i for i in range(3, NEW) if said[i] not in said[:i])
    options["eos_token_id"] = said[stop]
    want = plain(target, **row_alone(batch, 0), return_dict_in_generate=True, **options)
    for d in (draft, noisy(target, 0)):
        got = spec(target, d, **row_alone(batch, 0), num_assistant_tokens=k, **options)
        assert len(got.scores) == len(got.logits) == len(want.scores) == stop + 1
        torch.testing.assert_close(torch.cat(got.scores), torch.cat(want.scores), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(torch.cat(got.logits), torch.cat(want.logits), atol=1e-4, rtol=1e-4)
        assert not torch.equal(torch.cat(got.scores), torch.cat(got.logits))


def test_scores_and_logits_of_a_ragged_batch_are_each_rows_own(target, draft, batch):
    options = {"repetition_penalty": 1.4, "max_new_tokens": 10, "output_scores": True, "output_logits": True}
    got = spec(target, draft, **batch, **options)
    for b in range(3):
        want = plain(target, **row_alone(batch, b), do_sample=False, return_dict_in_generate=True, **options)
        for name in ("scores", "logits"):
            mine = torch.stack([step[b] for step in got[name]])
            torch.testing.assert_close(mine, torch.cat(want[name]), atol=1e-3, rtol=1e-4)


def test_asking_for_neither_scores_nor_logits_returns_none(target, draft, batch):
    got = spec(target, draft, **batch, max_new_tokens=4)
    assert got.scores is None and got.logits is None
