"""Greedy text and raw logits equal plain `generate` of the row alone: every family, layout, draft and end of a text."""

import copy
import warnings

import pytest
import torch
from families import FAMILIES, alone, build, draft_of
from toys import EOS, batch_of, contrary, new_tokens, noisy, plain, row_alone, spec, text, tiny
from transformers import GPT2Config, LlamaConfig, MistralConfig, OPTConfig

NEW = 50
RAGGED = (3, 11, 6, 1)
PORTABLE = {
    "llama",
    "qwen2_sliding",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "deepseek_v3",
    "falcon",
    "gpt2",
    "bloom",
    "llama4_text",
}
BY_FAMILY = [pytest.param(n, marks=pytest.mark.parity) if n in PORTABLE else n for n in FAMILIES]
STRATEGIES = ("rejection", "block", "coupled")


def assert_as_alone(out, rows, name: str, new: int = NEW):
    """Each row's new ids, and its logits to 1e-4 of their spread, are those of the row alone."""
    for b, row in enumerate(rows):
        ids, logits = alone(name, tuple(row), new)
        assert out.sequences[b, -new:].tolist() == ids, f"row {b}"
        got = torch.stack([step[b] for step in out.logits])
        assert ((got - logits).abs().max() / logits.std()).item() < 1e-4, f"row {b}"


def assert_plain_text(target, draft, batch, new: int, **kwargs):
    """Ids of a speculative call equal plain decoding of each row alone. Returns the speculative output."""
    out = spec(target, draft, **{"num_assistant_tokens": 4} | kwargs, **batch, max_new_tokens=new)
    columns, end = batch["input_ids"].shape[1], target.generation_config.eos_token_id
    for b, got in enumerate(new_tokens(out.sequences, columns, eos=end)):
        row = row_alone(batch, b)
        wanted = plain(target, **row, max_new_tokens=new, do_sample=False)[0, row["input_ids"].shape[1] :]
        assert got == wanted.tolist(), f"row {b}"
    return out


def decoded(name, rows, side, k):
    """The family's noisy pair on these rows, with the raw logits."""
    batch = batch_of(rows, side)
    return spec(build(name), draft_of(name), **batch, max_new_tokens=NEW, num_assistant_tokens=k, output_logits=True)


# ---- families -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", BY_FAMILY)
@pytest.mark.parametrize(
    "lengths, side, k",
    [((11,), "left", 4), (RAGGED, "left", 4), (RAGGED, "right", 1), ((6, 6, 6), "left", 4)],
    ids=["alone", "ragged-left", "ragged-right", "equal"],
)
def test_family_decodes_every_row_as_if_alone(name, lengths, side, k):
    rows = [text(n, seed=b if len(set(lengths)) == 1 else 0) for b, n in enumerate(lengths)]
    out = decoded(name, rows, side, k)
    assert_as_alone(out, rows, name)
    stats = out.spec_stats
    assert 0 < stats.accepted < stats.drafted, "a draft that is always right or always wrong hides faults"
    shared = stats.target_forwards == max(row.rounds for row in stats.rows)
    assert shared == (len(rows) == 1 or not FAMILIES[name].grouped), "rows in one forward, unless the family cannot"


@pytest.mark.parametrize("side, k", [("left", 1), ("right", 4), ("right", 9)])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text"])
def test_any_draft_length_on_either_side(name, side, k):
    rows = [text(n) for n in RAGGED]
    out = decoded(name, rows, side, k)
    assert_as_alone(out, rows, name)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "qwen2_sliding", "gpt2", "falcon"])
def test_attention_implementations(name, implementation):
    target = build(name, attn_implementation=implementation)
    assert target.config._attn_implementation == implementation
    assert_plain_text(target, noisy(target), batch_of([text(n) for n in RAGGED]), 24)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_long_text_rolls_its_window_and_grows_its_buffers(name):
    """160 tokens: past every initial capacity and several rollings of a window of 8."""
    rows = [text(5), text(120)]
    out = spec(
        build(name), draft_of(name), **batch_of(rows), max_new_tokens=160, num_assistant_tokens=4, output_logits=True
    )
    assert_as_alone(out, rows, name, new=160)


# ---- pairs ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target_window, draft_window", [(8, None), (None, 8), (8, 5)])
def test_windows_of_target_and_draft_may_differ(target_window, draft_window):
    target = tiny(MistralConfig, sliding_window=target_window, eos_token_id=None)
    draft = tiny(MistralConfig, sliding_window=draft_window, eos_token_id=None)  # the same weights
    out = assert_plain_text(target, draft, batch_of([text(n) for n in RAGGED]), NEW)
    assert 0 < out.spec_stats.accepted < out.spec_stats.drafted


@pytest.mark.parametrize("draft", ["mistral", "gpt2", "bloom", "deepseek_v3"])
def test_draft_of_another_family(draft):
    assert_plain_text(build("llama"), build(draft), batch_of([text(n) for n in RAGGED]), 30)


def resized(model, vocabulary: int):
    """A noisy copy with another number of ids."""
    draft = noisy(model, 0.03)
    torch.manual_seed(0)
    draft.resize_token_embeddings(vocabulary, mean_resizing=False)
    with torch.no_grad():  # ids that the target lacks are what this draft likes best
        draft.get_output_embeddings().weight[model.config.vocab_size :] *= 50
    return draft


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "top_k=1"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("vocabulary", [72, 40])
def test_draft_with_more_or_fewer_ids(vocabulary, strategy, sampled):
    """Sampling from one candidate has one outcome: plain greedy text."""
    target = build("llama")
    options = {"do_sample": True, "top_k": 1} if sampled else {}
    out = assert_plain_text(
        target, resized(target, vocabulary), batch_of([text(n) for n in RAGGED]), 30, strategy=strategy, **options
    )
    new = out.sequences[:, -30:]
    assert new.max() < 64
    assert new.max() >= 40, "the text has to use ids that the small draft lacks"
    assert new[out.draft_mask].max() < vocabulary
    assert out.spec_stats.accepted > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("vocabulary", [72, 40])
def test_sampled_text_has_only_the_targets_ids(vocabulary, strategy):
    target = build("llama")
    draft, batch = resized(target, vocabulary), batch_of([text(n) for n in RAGGED])
    first, second = (
        spec(
            target,
            draft,
            strategy,
            **batch,
            max_new_tokens=30,
            do_sample=True,
            generator=torch.Generator().manual_seed(3),
        )
        for _ in range(2)
    )
    assert first.sequences.tolist() == second.sequences.tolist()
    new = first.sequences[:, -30:]
    assert new.max() < 64
    assert new[first.draft_mask].max() < vocabulary
    if strategy == "coupled":  # the text depends on the seed alone
        undrafted = spec(
            target,
            None,
            strategy,
            **batch,
            max_new_tokens=30,
            do_sample=True,
            generator=torch.Generator().manual_seed(3),
        )
        assert first.sequences.tolist() == undrafted.sequences.tolist()


# ---- drafts at their best and worst ---------------------------------------------------------------------
@pytest.mark.parametrize(
    "name, k, lengths", [("llama", 4, (7,)), ("llama", 4, RAGGED), ("mistral", 7, RAGGED), ("bloom", 5, (7,))]
)
def test_exact_copy_is_accepted_in_every_round(name, k, lengths):
    target = build(name)
    out = assert_plain_text(
        target, copy.deepcopy(target), batch_of([text(n) for n in lengths]), 200, num_assistant_tokens=k
    )
    assert out.spec_stats.acceptance_rate == 1.0
    for row in out.spec_stats.rows:
        assert row.rounds == 1 + -(-199 // (k + 1))  # the prefill gives one token, every round k + 1
        assert row.trimmed == 0


def constant_draft(model, token: int):
    """A draft that proposes one token for ever."""
    draft = copy.deepcopy(model)
    draft.lm_head = torch.nn.Linear(draft.config.hidden_size, draft.config.vocab_size)
    with torch.no_grad():
        draft.lm_head.weight.zero_()
        draft.lm_head.bias.zero_()[token] = 9.0
    return draft


ADVERSARIES = {
    "constant": lambda target: constant_draft(target, 5),
    "constant pad": lambda target: constant_draft(target, 0),
    "constant eos": lambda target: constant_draft(target, EOS),
    "unrelated": lambda target: tiny(seed=99, num_hidden_layers=2),
    "always wrong": contrary,
}


@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("lengths", [(7,), RAGGED], ids=["alone", "ragged"])
def test_adversarial_draft_changes_nothing(adversary, lengths, eos):
    target = build("llama", eos)
    out = assert_plain_text(target, ADVERSARIES[adversary](target), batch_of([text(n) for n in lengths]), 30)
    if adversary == "always wrong":
        assert out.spec_stats.accepted == 0
        assert [row.rounds for row in out.spec_stats.rows] == [row.emitted for row in out.spec_stats.rows]


# ---- where a text begins and ends -----------------------------------------------------------------------
@pytest.mark.parametrize("new", range(1, 8))
@pytest.mark.parametrize("lengths", [(5,), (3, 11)], ids=["alone", "ragged"])
def test_few_new_tokens_around_the_draft_length(lengths, new):
    target = build("llama")
    out = assert_plain_text(
        target, copy.deepcopy(target), batch_of([text(n) for n in lengths]), new, num_assistant_tokens=5
    )
    assert out.sequences.shape[1] == max(lengths) + new
    assert [row.trimmed for row in out.spec_stats.rows] == [0] * len(lengths)


@pytest.mark.parametrize("lengths", [(1,), (1, 1, 1), (40, 1, 2)])
@pytest.mark.parametrize("name", ["llama", "mistral", "bloom"])
def test_prompts_of_one_token(name, lengths):
    rows = [text(n, seed=b) for b, n in enumerate(lengths)]
    out = spec(
        build(name), draft_of(name), **batch_of(rows), max_new_tokens=NEW, num_assistant_tokens=4, output_logits=True
    )
    assert_as_alone(out, rows, name)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("lengths", [(12,), (3, 12, 1)], ids=["alone", "ragged"])
@pytest.mark.parametrize(
    "config, size",
    [
        (GPT2Config, {"n_embd": 32, "n_layer": 2, "n_head": 4, "max_position_embeddings": 40}),
        (OPTConfig, {"ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 40}),
    ],
)
def test_text_up_to_the_last_position_of_a_learned_table(config, size, lengths, side):
    """One position more would be out of the table. Reference without padding limits: the row alone, equally long."""
    target = tiny(config, eos_token_id=None, **size)
    assert_plain_text(target, copy.deepcopy(target), batch_of([text(n) for n in lengths], side), 28)
    assert_plain_text(target, noisy(target), batch_of([text(n) for n in lengths], side), 28)


@pytest.mark.parametrize("side", ["left", "right"])
def test_row_beyond_the_drafts_context_goes_on_without_drafts(side):
    target = tiny(GPT2Config, n_embd=32, n_layer=2, n_head=4, max_position_embeddings=128, eos_token_id=None)
    draft = tiny(GPT2Config, n_embd=32, n_layer=2, n_head=4, max_position_embeddings=24, eos_token_id=None)
    with torch.no_grad():  # the same weights as far as they go
        for ours, theirs in zip(draft.parameters(), target.parameters(), strict=True):
            ours.copy_(theirs[: ours.shape[0]])
    batch = batch_of([text(30), text(2), text(20)], side)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = assert_plain_text(target, draft, batch, 18)
    told = [w for w in caught if "context" in str(w.message)]
    assert len(told) == 1
    beyond, short, crossing = out.spec_stats.rows
    assert beyond.drafted == 0
    assert "row 0" in beyond.fallback_reason and "context" in beyond.fallback_reason
    assert short.fallback_reason is None and short.acceptance_rate == 1.0 and short.drafted > 10
    assert crossing.drafted > 0 and "row 2" in crossing.fallback_reason
    assert out.spec_stats.fallback_reason in (beyond.fallback_reason, crossing.fallback_reason)


# ---- knobs that must not matter -------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_several_sequences_per_prompt(strategy):
    """With one candidate per token, every sequence is the prompt's greedy text."""
    rows = [text(n) for n in RAGGED[:3]]
    out = spec(
        build("llama"),
        draft_of("llama"),
        strategy,
        **batch_of(rows),
        max_new_tokens=30,
        do_sample=True,
        top_k=1,
        num_return_sequences=2,
    )
    assert len(out.sequences) == 6
    for b, sequence in enumerate(out.sequences):
        assert sequence[-30:].tolist() == alone("llama", tuple(rows[b // 2]), NEW)[0][:30]


def test_several_sequences_per_prompt_draw_independently_and_undrafted_text():
    batch = batch_of([text(n) for n in RAGGED[:2]])
    drafted, undrafted = (
        spec(
            build("llama"),
            draft,
            "coupled",
            **batch,
            max_new_tokens=30,
            do_sample=True,
            num_return_sequences=3,
            generator=torch.Generator().manual_seed(5),
        ).sequences.tolist()
        for draft in (draft_of("llama"), None)
    )
    assert drafted == undrafted
    assert len({tuple(row) for row in drafted}) == 6


@pytest.mark.parametrize("schedule", ["constant", "heuristic"])
@pytest.mark.parametrize("threshold", [None, 0.0, 0.055, 1.0])
def test_schedules_and_thresholds(schedule, threshold):
    rows = [text(n) for n in RAGGED]
    out = spec(
        build("llama"),
        draft_of("llama"),
        **batch_of(rows),
        max_new_tokens=NEW,
        num_assistant_tokens_schedule=schedule,
        assistant_confidence_threshold=threshold,
        output_logits=True,
    )
    assert_as_alone(out, rows, "llama")
    least, most = {0.055: (20, 150), 1.0: (0, 0)}.get(threshold, (150, 400))  # the toy is sure of a token by 4 to 9 %
    assert least <= out.spec_stats.drafted <= most


def test_heuristic_schedule_drafts_more_after_success_and_less_after_failure():
    target = build("llama")
    batch = batch_of([text(6)])
    good = spec(
        target,
        copy.deepcopy(target),
        **batch,
        max_new_tokens=60,
        num_assistant_tokens=2,
        num_assistant_tokens_schedule="heuristic",
    )
    assert [d for d, _ in good.spec_stats.rows[0].trace][:6] == [0, 2, 4, 6, 8, 10]
    bad = spec(
        target,
        contrary(target),
        **batch,
        max_new_tokens=9,
        num_assistant_tokens=4,
        num_assistant_tokens_schedule="heuristic",
    )
    assert [d for d, _ in bad.spec_stats.rows[0].trace][:6] == [0, 4, 3, 2, 1, 1]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_unpadded_and_maskless_calls_agree(kv_heads):
    target = tiny(LlamaConfig, num_key_value_heads=kv_heads, eos_token_id=None)
    ids = torch.tensor([text(9, seed=s) for s in range(3)])
    out = spec(target, noisy(target), input_ids=ids, max_new_tokens=30, pad_token_id=0)
    assert out.sequences.tolist() == plain(target, input_ids=ids, max_new_tokens=30, do_sample=False).tolist()
