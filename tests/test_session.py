"""SpecSession: a turn reads only what is new, and says what plain `generate` says of the whole text.

Every call is compared with plain decoding of the row alone, whatever the session holds: texts that go on, are taken
back, differ, come in other numbers, after other weights, drafts, settings, or an error.
"""

import copy
import pickle
import random
import warnings

import pytest
import torch
from families import WINDOW, build, draft_of
from toys import (
    CACHE_NAME,
    assert_as_alone,
    batch_of,
    contrary,
    noisy,
    plain,
    prompts,
    reading,
    said,
    seeded,
    spec,
    text,
    tiny,
)
from transformers import Lfm2Config, MistralConfig

from hf_specgen import SpecSession, SpecUnsupportedError
from hf_specgen.session import version_of

NEW = 12
PORTABLE = {"llama", "gemma3_text", "bloom"}
FAMILIES = ["llama", "gpt2", "bloom", "mistral", "gemma3_text", "llama4_text"]
BY_FAMILY = [pytest.param(n, marks=pytest.mark.parity) if n in PORTABLE else n for n in FAMILIES]


def turn(session, target, draft, rows: list[list[int]], side: str = "left", new: int = NEW, **kwargs):
    """A call in the session, checked against plain. Returns its output, each row's whole text, and the shapes that
    target and draft were given to read."""
    batch = batch_of(rows, side)
    checks = {name: kwargs[name] for name in ("eos_token_id", "repetition_penalty") if name in kwargs}
    with reading(target) as seen, reading(draft or target) as drafted:
        out = said("ours", target, draft, new, **batch, **kwargs, spec_session=session, output_logits=True)
    assert_as_alone(target, out, batch, new, **checks)
    spoken = zip(out.sequences[:, -out.draft_mask.shape[1] :].tolist(), out.spec_stats.rows, strict=True)
    texts = [old + ids[: row.emitted] for old, (ids, row) in zip(rows, spoken, strict=True)]
    return out, texts, (seen, drafted)


# ---- what it saves ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", BY_FAMILY)
def test_a_conversation_reads_only_what_is_new(name):
    """The last token said, which nobody has read yet, and the user's; the draft reads up to four of the answer."""
    target, draft, session = build(name), draft_of(name), SpecSession()
    _, rows, _ = turn(session, target, draft, [text(20)], num_assistant_tokens=3)
    for n in (1, 2, 7):
        rows = [rows[0] + text(n)]
        _, rows, (seen, drafted) = turn(session, target, draft, rows, num_assistant_tokens=3)
        assert seen[0] == (1, 1 + n)
        assert max(width for _, width in seen[1:]) <= 1 + 3
        assert max(width for _, width in drafted) <= 4 + n


def test_a_round_of_figures_counts_one_forward_less_than_without():
    """What a turn costs with everything kept: the same rounds, and a first forward over five tokens, not over 100."""
    target, draft = build("llama"), draft_of("llama")
    session, rows = SpecSession(), [text(100)]
    first, rows, _ = turn(session, target, draft, rows)
    rows = [rows[0] + text(4)]
    kept, _, _ = turn(session, target, draft, rows)
    fresh = said("ours", target, draft, **batch_of(rows))
    assert kept.spec_stats.rows[0].trace == fresh.spec_stats.rows[0].trace
    assert kept.spec_stats.target_forwards == fresh.spec_stats.target_forwards
    assert kept.spec_stats.emitted == first.spec_stats.emitted == NEW


def read_first(session, target, draft, rows):
    """The shape of the first forwards of target and draft in a call with these rows (and checks the call)."""
    _, _, (seen, drafted) = turn(session, target, draft, rows)
    return seen[0], drafted[0]


def test_equal_shorter_and_other_texts_read_what_they_do_not_share():
    target, draft, session = build("llama"), draft_of("llama"), SpecSession()
    base = text(30)
    _, (whole,), _ = turn(session, target, draft, [base])
    assert read_first(session, target, draft, [base])[0] == (1, 1), "equal: the last token, for its logits"
    assert read_first(session, target, draft, [whole[:35]])[0] == (1, 1), "the answer's beginning"
    assert read_first(session, target, draft, [base[:10]])[0] == (1, 1), "taken back"
    assert read_first(session, target, draft, [base[:10] + text(9, seed=4)])[0] == (1, 9)
    assert read_first(session, target, draft, [text(8, seed=5)]) == ((1, 8), (1, 9)), "and what was said"
    session.reset()
    assert read_first(session, target, draft, [text(8, seed=5)]) == ((1, 8), (1, 9))


def test_rows_go_by_their_index_and_stay_when_they_are_away():
    target, draft, session = build("llama"), draft_of("llama"), SpecSession()
    _, rows, _ = turn(session, target, draft, [text(20, seed=b) for b in range(3)])
    assert read_first(session, target, draft, [rows[0] + [7]])[0] == (1, 2)
    assert read_first(session, target, draft, [[*row, 9] for row in rows])[0] == (3, 1), "all were kept"
    assert read_first(session, target, draft, [rows[1], rows[0]])[0] == (2, len(rows[0])), "changed places"
    assert read_first(session, target, draft, [*rows, text(20, seed=9)])[0][0] == 4


# ---- parity whatever comes -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", BY_FAMILY)
def test_ragged_turns(name):
    side = "right" if name in PORTABLE else "left"
    target, draft, session = build(name), draft_of(name), SpecSession()
    _, rows, _ = turn(session, target, draft, [text(n) for n in (3, 11, 6)], side)
    _, rows, _ = turn(session, target, draft, [row + text(1 + 4 * b) for b, row in enumerate(rows)], side)
    rows = [rows[0] + text(30), rows[1][:14], text(5, seed=8)]
    turn(session, target, draft, rows, side)


@pytest.mark.parametrize("kind", ["exact", "contrary", "none"])
@pytest.mark.parametrize("name", ["mistral"])
def test_any_draft(name, kind):
    target, session = build(name), SpecSession()
    draft = {"exact": lambda: noisy(target, 0), "contrary": lambda: contrary(target), "none": lambda: None}[kind]()
    rows = [text(4), text(13)]
    for n in range(3):
        _, rows, _ = turn(session, target, draft, rows, strategy="coupled")
        rows = [row + text(2 + n) for row in rows]


@pytest.mark.parametrize("name", ["mistral", "gemma3_text"])
def test_the_way_back_in_a_text_far_beyond_the_window(name):
    """A prompt of 70 leaves its last seven positions in a rolling layer: only from 71 on can a text go on from them."""
    target, draft = build(name), draft_of(name)
    long = [text(70), text(70, seed=1)]
    for n in (99, 72, 71, 70, 69, 30, WINDOW, 1):
        session = SpecSession()
        before = said("ours", target, draft, 30, **batch_of(long), spec_session=session).sequences.tolist()
        rows = [before[0][:n], [*before[1][: n - 1], 3]]  # the second row has a token more to read for the draft
        _, _, (seen, _) = turn(session, target, draft, rows, new=6)
        assert seen[0] == (2, 1 if n > 70 else n), n
        turn(session, target, draft, before, new=1)


def test_windows_of_target_and_draft_differ():
    target = tiny(MistralConfig, sliding_window=WINDOW, eos_token_id=None)
    draft = tiny(MistralConfig, sliding_window=5, eos_token_id=None)
    session, rows = SpecSession(), [text(60), text(20)]
    for n in (2, 40, 3):
        out, rows, _ = turn(session, target, draft, rows)
        assert 0 < out.spec_stats.accepted < out.spec_stats.drafted
        rows = [rows[0] + text(n), rows[1][: 15 + n]]


def edited(row, dice):
    """The row gone on with, taken back, left alone, or taken back and gone on with otherwise."""
    more, kept = text(dice.randint(1, 12), seed=dice.randint(0, 9)), dice.randint(1, len(row))
    return dice.choice([row + more, row[:kept], row, row[: kept - 1] + more])


@pytest.mark.parametrize("seed", range(6))
def test_random_walks(seed):
    """Longer, shorter, other, swapped, more and fewer rows, any draft, rule and K, in any order."""
    dice = random.Random(seed)
    name = ["llama", "mistral", "gemma3_text", "bloom", "gpt2", "gemma2"][seed]
    target, session = build(name), SpecSession()
    drafts = [draft_of(name), noisy(target, 0.2, seed=7), contrary(target)]
    rows = [text(dice.randint(1, 30), seed=b) for b in range(3)]
    for step in range(5):
        ends = {"eos_token_id": dice.randrange(2, 60)} if dice.random() < 0.5 else {}
        _, rows, _ = turn(
            session,
            target,
            dice.choice(drafts),
            rows,
            dice.choice(["left", "right"]),
            new=dice.randint(1, 9),
            strategy=dice.choice(["rejection", "block", "coupled"]),
            num_assistant_tokens=dice.randint(1, 6),
            **ends,
        )
        rows = [edited(row, dice) for row in rows]
        dice.shuffle(rows) if dice.random() < 0.2 else None
        rows = [*rows, text(9, seed=step)][: dice.randint(1, 4)]


def test_masked_columns_are_no_text():
    target, draft, session = build("llama"), draft_of("llama"), SpecSession()
    batch = prompts([12, 12])
    batch["attention_mask"][1, 3:6] = 0
    for _ in range(2):
        out = said("ours", target, draft, **batch, spec_session=session)
        assert_as_alone(target, out, batch)
        batch["attention_mask"][0, 4] = 0


# ---- other models, other weights -------------------------------------------------------------------------------------
def test_another_draft_reads_the_text_itself():
    target, session = build("llama"), SpecSession()
    drafts = [draft_of("llama"), build("gpt2"), noisy(target, 0)]
    rows = [text(20)]
    for draft in (*drafts, *drafts):
        _, rows, (_, drafted) = turn(session, target, draft, rows)
        assert drafted[0] == (1, len(rows[0]) - NEW + 1)


@torch.no_grad()
def moved(model):
    for p in model.parameters():
        p.add_(0.3 * p.std() * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))


@torch.no_grad()
def copied_into(model):
    """As weights come from a trainer: past torch's count, at the same address."""
    for p, other in zip(model.parameters(), noisy(model, 0.5).parameters(), strict=True):
        p.data.copy_(other)


CHANGES = {
    "in place": moved,
    "load_state_dict": lambda model: model.load_state_dict(noisy(model, 0.5).state_dict()),
    "another parameter": lambda model: setattr(model.model.norm, "weight", torch.nn.Parameter(torch.rand(32))),
    "an optimizer's step": lambda model: step(model),
    "copied into .data": copied_into,
    "a delta merged into one weight": lambda model: model.model.layers[0].mlp.up_proj.weight.data.mul_(-1),
}


def step(model):
    with torch.enable_grad():
        optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
        model(**prompts([9]), labels=prompts([9])["input_ids"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("whose", ["target", "draft"])
@pytest.mark.parametrize("change", CHANGES)
def test_weights_changed_in_between_are_read_anew(change, whose):
    models = {"target": tiny(eos_token_id=None), "draft": noisy(tiny(eos_token_id=None))}
    session, pair = SpecSession(), (models["target"], models["draft"])
    before = plain(pair[0], **prompts([20]), max_new_tokens=NEW, do_sample=False)
    turn(session, *pair, prompts([20])["input_ids"].tolist())
    CHANGES[change](models[whose])
    first = read_first(session, *pair, prompts([20])["input_ids"].tolist())
    if whose == "target":
        assert first[0] == (1, 20) and first[1][1] <= 2
    else:
        assert first == ((1, 1), (1, 21))
    after = plain(pair[0], **prompts([20]), max_new_tokens=NEW, do_sample=False)
    assert torch.equal(before, after) == (whose == "draft"), "else the change was too small to see"


def test_another_adapter_is_another_model():
    peft = pytest.importorskip("peft")
    target, draft, session = tiny(eos_token_id=None), noisy(tiny(eos_token_id=None)), SpecSession()
    settings = peft.LoraConfig(r=2, target_modules=["up_proj"], init_lora_weights=False)
    wrapped = peft.get_peft_model(target, settings, adapter_name="one").eval()
    wrapped.add_adapter("two", settings)
    texts, rows = [], [text(20)]
    for name in ("one", "two", "none"):
        wrapped.set_adapter(name) if name != "none" else wrapped.disable_adapter_layers()
        assert read_first(session, target, draft, rows)[0] == (1, 20)
        assert read_first(session, target, draft, rows)[0] == (1, 1)
        texts.append(str(plain(target, **batch_of(rows), max_new_tokens=NEW, do_sample=False)))
    assert len(set(texts)) == 3


def test_some_values_of_a_weight_are_enough_and_few_are_read():
    """One update of bfloat16 weights, of which it changes one in forty."""
    model = tiny(eos_token_id=None).to(torch.bfloat16)
    before = version_of(model)
    assert version_of(model) == before
    dice = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data.mul_(1 + 0.1 * (torch.rand(p.shape, generator=dice) < 1 / 40))
    assert version_of(model) != before


def test_another_precision_is_another_model():
    target, draft, session = tiny(eos_token_id=None), noisy(tiny(eos_token_id=None)), SpecSession()
    turn(session, target, draft, [text(20)])
    target.double()
    out = said("ours", target, draft, **batch_of([text(20)]), spec_session=session)
    assert torch.equal(out.sequences, plain(target, **batch_of([text(20)]), max_new_tokens=NEW, do_sample=False))


def test_autocast_is_another_precision():
    target, draft, session = build("llama"), draft_of("llama"), SpecSession()
    turn(session, target, draft, [text(20)])
    with torch.autocast("cpu", torch.bfloat16), reading(target) as seen:
        said("ours", target, draft, **batch_of([text(20)]), spec_session=session)
    assert seen[0] == (1, 20)
    assert read_first(session, target, draft, [text(20)])[0] == (1, 20)


@torch.inference_mode()
def test_models_made_in_inference_mode_keep_their_caches():
    target, draft, session = tiny(eos_token_id=None), noisy(tiny(eos_token_id=None)), SpecSession()
    _, rows, _ = turn(session, target, draft, [text(20)])
    assert read_first(session, target, draft, [rows[0] + text(3)])[0] == (1, 4)


# ---- errors ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("after, error", [(0, KeyError), (6, KeyboardInterrupt)])
@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_an_error_on_the_way_leaves_the_session_as_it_was(name, after, error):
    target, draft, session = build(name), draft_of(name), SpecSession()
    _, rows, _ = turn(session, target, draft, [text(20), text(7)])
    calls = []

    def fails(ids, scores):
        calls.append(1)
        if len(calls) > after:
            raise error("on the way")
        return torch.zeros(len(ids), dtype=torch.bool)

    longer = [row + text(5) for row in rows]
    with pytest.raises(error):
        said("ours", target, draft, **batch_of(longer), spec_session=session, stopping_criteria=[fails])
    assert read_first(session, target, draft, longer)[0] == (2, 6)


def test_a_refused_call_leaves_the_session_as_it_was():
    target, draft, session = build("llama"), draft_of("llama"), SpecSession()
    _, rows, _ = turn(session, target, draft, [text(20)])
    with pytest.raises(SpecUnsupportedError, match="num_beams"):
        said("ours", target, draft, **batch_of(rows), spec_session=session, num_beams=2)
    with pytest.warns(UserWarning, match="without the draft"):
        out = said("ours", target, draft, **batch_of(rows), spec_session=session, num_beams=2, spec_fallback="plain")
    assert torch.equal(out.sequences, plain(target, **batch_of(rows), num_beams=2, max_new_tokens=12, do_sample=False))
    assert read_first(session, target, draft, [rows[0] + [5]])[0] == (1, 2)


def test_states_that_cannot_go_back_are_refused():
    sizes = {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8, "tie_word_embeddings": False}
    target = tiny(Lfm2Config, eos_token_id=None, **sizes)
    with pytest.raises(SpecUnsupportedError, match="spec_session with a Lfm2ForCausalLM: its states"):
        said("ours", target, noisy(target), **prompts([9]), spec_session=SpecSession())


def test_a_row_beyond_the_drafts_context_goes_on_without():
    target, draft = build("llama"), tiny(max_position_embeddings=40, eos_token_id=None)
    session, rows = SpecSession(), [text(20), text(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            out, rows, _ = turn(session, target, draft, rows)
            rows = [rows[0], rows[1][:20]]
    assert out.spec_stats.rows[0].drafted == 0 < out.spec_stats.rows[1].drafted


# ---- with everything else --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_the_coupled_text_does_not_depend_on_the_session(name):
    target, session = build(name), SpecSession()
    rows = [text(n) for n in (3, 11, 6)]
    for n, draft in enumerate((draft_of(name), contrary(target), None, noisy(target, 0))):
        options = batch_of(rows) | {"strategy": "coupled"}
        wanted = said("ours", target, None, **options, **seeded(n)).sequences
        got = said("ours", target, draft, **options, **seeded(n), spec_session=session, num_assistant_tokens=1 + n)
        assert got.sequences.tolist() == wanted.tolist()
        rows = [row + text(2, seed=n) for row in wanted[0, 11 - 3 :][None].tolist() + wanted[1:2].tolist() + [rows[2]]]


def test_processors_stops_and_sequences():
    target, draft, session = build("llama"), draft_of("llama"), SpecSession()
    rows = [text(9), text(4)]
    for n in range(3):
        options = {"repetition_penalty": 1.5, "eos_token_id": [9, 17, 30]}
        _, rows, _ = turn(session, target, draft, rows, **options)
        rows = [[*row, 5 + n] for row in rows]
    sampled = {"do_sample": True, "top_k": 1, "num_return_sequences": 2}
    out = said("ours", target, draft, **batch_of(rows), **sampled, spec_session=session)
    assert_as_alone(target, out, batch_of([row for row in rows for _ in range(2)]))


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_the_cache_that_a_turn_returns_is_plains(name):
    target, draft, session = build(name), draft_of(name), SpecSession()
    _, rows, _ = turn(session, target, draft, [text(12), text(5)])
    rows = [row + text(3) for row in rows]
    out, rows, _ = turn(session, target, draft, rows)
    batch = batch_of([row + text(2) for row in rows])
    on = plain(target, **batch, max_new_tokens=NEW, do_sample=False, **{CACHE_NAME: out[CACHE_NAME]})
    assert torch.equal(on, plain(target, **batch, max_new_tokens=NEW, do_sample=False))


def test_two_sessions_do_not_mix():
    target, draft = build("llama"), draft_of("llama")
    sessions, rows = [SpecSession(), SpecSession()], [[text(15)], [text(15, seed=1)]]
    for _ in range(3):
        for i in range(2):
            _, rows[i], _ = turn(sessions[i], target, draft, rows[i])


def test_a_copy_branches_the_conversation():
    target, draft, session = build("llama"), draft_of("llama"), SpecSession()
    _, (row,), _ = turn(session, target, draft, [text(15)])
    branch = copy.deepcopy(session)
    assert read_first(branch, target, draft, [row + text(3)])[0] == (1, 4)
    assert read_first(session, target, draft, [row + text(5, seed=1)])[0] == (1, 6), "nothing of the branch"
    assert read_first(branch, target, draft, [row + text(3) + [7]])[0] == (1, 1), "nothing of the trunk"
    anew = pickle.loads(pickle.dumps(session))
    assert read_first(anew, target, draft, [row])[0] == (1, len(row)), "caches are not pickled"


def test_plain_tensors_are_returned_and_nothing_is_kept_of_the_output():
    target, draft, session = build("llama"), draft_of("llama"), SpecSession()
    ids = prompts([9])
    for _ in range(2):
        out = spec(target, draft, **ids, max_new_tokens=NEW, spec_session=session, return_dict_in_generate=False)
        assert torch.equal(out, plain(target, **ids, max_new_tokens=NEW, do_sample=False))
        out.fill_(0)
