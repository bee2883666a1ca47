"""Inputs beside the ids: embeddings, token types, positions, masks with holes, arguments of a model's own.

Each reaches every forward, the row it belongs to, and only that; the oracle is plain `generate` of the row alone.
"""

import pytest
import torch
from families import build
from toys import (
    CACHE_NAME,
    Scripted,
    assert_as_alone,
    batch_of,
    contrary,
    noisy,
    plain,
    prompts,
    read_into_cache,
    row_alone,
    said,
    seeded,
    spec,
    text,
    tiny,
)
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM, StoppingCriteriaList

from hf_specgen import SpecUnsupportedError

NEW = 12
RAGGED = (3, 11, 6)


class Steered(LlamaForCausalLM):
    """Adds `strength` times what `steer` `[rows, 2, hidden]` holds of a row to all of its embeddings, `tilt` to all."""

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        cache=None,
        past_key_values=None,
        inputs_embeds=None,
        use_cache=None,
        logits_to_keep=0,
        steer=None,
        tilt=None,
        strength=1.0,
        **kwargs,
    ):
        x = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        if steer is not None:
            assert len(steer) == len(x), "one vector per row of this forward"
            x = x + strength * steer.sum(1, keepdim=True)
        x = x if tilt is None else x + tilt
        kwargs |= {CACHE_NAME: cache if cache is not None else past_key_values}
        return super().forward(
            inputs_embeds=x,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            **kwargs,
        )


def steered():
    model = tiny(LlamaConfig, eos_token_id=None)
    model.__class__ = Steered
    return model


def random(*shape, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def embeddings(model, batch):
    return {"inputs_embeds": model.get_input_embeddings()(batch["input_ids"]).detach()}


def soft(model, batch):
    """The first three tokens of each row's text are no token's embeddings."""
    found = embeddings(model, batch)["inputs_embeds"].clone()
    for b, mask in enumerate(batch["attention_mask"]):
        first = mask.nonzero().flatten()[:3]
        found[b, first] = random(3, found.shape[-1], seed=b, scale=found.std().item())[: len(first)]
    return {"inputs_embeds": found}


def types(model, batch):
    """Two kinds of token; rows end with different ones."""
    places = batch["attention_mask"].cumsum(-1) // 2
    return {"token_type_ids": 50 + (places + torch.arange(len(places))[:, None]) % 2}


def positions(change):
    def of(model, batch):
        mask = batch["attention_mask"]
        return {"position_ids": change((mask.cumsum(-1) - 1).clamp(min=0), torch.arange(len(mask))[:, None]) * mask}

    return of


def steer(model, batch):
    """Different for every row, also for rows of equal text."""
    rows = len(batch["input_ids"])
    return {"steer": random(rows, 2, 32, scale=1.5), "strength": 0.8}


WITHOUT_IDS = {"embeddings alone", "soft prompt"}
KINDS = {
    "embeddings alone": (lambda: build("llama"), embeddings),
    "embeddings and ids": (lambda: build("gemma3_text"), embeddings),
    "embeddings of a learned table": (lambda: build("gpt2"), embeddings),
    "embeddings, sliding": (lambda: build("mistral"), embeddings),
    "embeddings, read apart": (lambda: build("bloom"), embeddings),
    "soft prompt": (lambda: build("qwen3"), soft),
    "soft prompt and ids": (lambda: build("llama"), soft),
    "token types": (lambda: build("gpt2"), types),
    "steered": (steered, steer),
    "shifted positions": (lambda: build("llama"), positions(lambda p, row: p + 7 + 3 * row)),
    "shifted positions, sliding": (lambda: build("mistral"), positions(lambda p, row: p + 5)),
    "shifted positions, learned": (lambda: build("gpt2"), positions(lambda p, row: p + 40 * row)),
    "stretched positions": (lambda: build("llama"), positions(lambda p, row: (2 + row) * p)),
    "positions that stand still": (lambda: build("gpt2"), positions(lambda p, row: p // 2)),
}
PORTABLE = {"embeddings alone", "soft prompt and ids", "token types", "steered", "shifted positions"}
BY_KIND = [pytest.param(n, marks=pytest.mark.parity) if n in PORTABLE else n for n in KINDS]
CORE = [
    "embeddings alone",
    "embeddings, read apart",
    "soft prompt and ids",
    "token types",
    "steered",
    "shifted positions, learned",
    "stretched positions",
]
MATTERS = {n for n in KINDS if not n.startswith("embeddings") and n != "shifted positions" and "sliding" not in n}


def setting(kind: str, lengths=RAGGED, side: str = "left"):
    """The target, and a batch with its inputs: all of it also what `row_alone` takes apart."""
    make, inputs = KINDS[kind]
    target, batch = make(), batch_of([text(n) for n in lengths], side)
    batch = batch | inputs(target, batch)
    shared = {name: batch.pop(name) for name in ("strength",) if name in batch}
    if kind in WITHOUT_IDS:
        del batch["input_ids"]
    return target, batch, shared


# ---- each of them ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lengths, side", [(RAGGED, "left"), (RAGGED, "right")], ids=str)
@pytest.mark.parametrize("kind", BY_KIND)
def test_every_row_is_decoded_with_its_inputs(kind, lengths, side):
    target, batch, shared = setting(kind, lengths, side)
    before = {name: x.clone() for name, x in batch.items()}
    out = said("ours", target, noisy(target), **batch, **shared, output_logits=True)
    assert_as_alone(target, out, batch, **shared)
    assert all(torch.equal(batch[name], x) for name, x in before.items()), "the caller's tensors stay"
    ids = batch.get("input_ids")
    assert out.sequences[:, :-NEW].tolist() == ([[]] * len(lengths) if ids is None else ids.tolist())
    if kind in MATTERS:
        without = said("ours", target, noisy(target), **batch_of([text(n) for n in lengths], side))
        assert (without.sequences[:, -NEW:] != out.sequences[:, -NEW:]).any(1).sum() >= len(lengths) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_its_own(kind):
    target, batch, shared = setting(kind, (9,))
    out = said("ours", target, noisy(target), **batch, **shared, output_logits=True)
    assert_as_alone(target, out, batch, **shared)


@pytest.mark.parametrize("kind", CORE)
def test_right_and_wrong_drafts(kind):
    """A drafter that knows the text, right for a while and wrong then; and one that is always wrong."""
    target, batch, shared = setting(kind)
    given = [0 if kind in WITHOUT_IDS else n for n in RAGGED]
    truth = []
    for b, n in enumerate(RAGGED):
        ids = said("plain", target, **row_alone(batch, b), **shared).sequences[0].tolist()
        truth.append(ids[-NEW - given[b] :])
        assert len(truth[-1]) == given[b] + NEW and n
    out = said("ours", target, Scripted(truth, [(4, 1, 2), (0, 3), (2, 4)]), **batch, **shared, output_logits=True)
    assert_as_alone(target, out, batch, **shared)
    assert [row.trace[1] for row in out.spec_stats.rows] == [(4, 4), (4, 0), (4, 2)]
    assert_as_alone(target, said("ours", target, contrary(target), **batch, **shared), batch, **shared)


@pytest.mark.parametrize("kind", CORE)
def test_rows_leave_with_their_inputs(kind):
    """The first row ends first; the last takes its place."""
    target, batch, shared = setting(kind)
    first = said("plain", target, **row_alone(batch, 0), **shared).sequences[0, -NEW:].tolist()
    options = shared | {"eos_token_id": first[2]}
    out = said("ours", target, noisy(target), **batch, **options, output_logits=True)
    assert_as_alone(target, out, batch, **options)
    assert out.spec_stats.rows[0].emitted <= 3 < max(row.emitted for row in out.spec_stats.rows)


@pytest.mark.parametrize("kind", CORE)
def test_several_sequences_per_prompt(kind):
    target, batch, shared = setting(kind)
    out = said("ours", target, noisy(target), **batch, **shared, do_sample=True, top_k=1, num_return_sequences=2)
    each = {name: x.repeat_interleave(2, 0) for name, x in batch.items()}
    assert_as_alone(target, out, each, **shared)


@pytest.mark.parametrize("kind", CORE)
def test_the_coupled_text_depends_on_the_inputs_and_not_on_the_draft(kind):
    target, batch, shared = setting(kind)
    wanted, *others = (
        said("ours", target, draft, strategy="coupled", **batch, **shared, **seeded()).sequences.tolist()
        for draft in (None, noisy(target), contrary(target))
    )
    assert others == [wanted] * 2
    right = setting(kind, side="right")[1]
    moved = said("ours", target, noisy(target), strategy="coupled", **right, **shared, **seeded()).sequences
    assert moved[:, -NEW:].tolist() == [row[-NEW:] for row in wanted]


@pytest.mark.parametrize("kind", [n for n in KINDS if n.startswith("embeddings")])
def test_the_coupled_text_is_that_of_the_ids(kind):
    target, batch, _ = setting(kind)
    ids = batch_of([text(n) for n in RAGGED])
    got, wanted = (
        said("ours", target, noisy(target), strategy="coupled", **given, **seeded()).sequences[:, -NEW:].tolist()
        for given in (batch, ids)
    )
    assert got == wanted


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("kind", ["token types", "steered", "shifted positions", "stretched positions"])
def test_a_prefill_in_chunks(kind, chunk):
    target, batch, shared = setting(kind)
    options = batch | shared | {"prefill_chunk_size": chunk}
    wanted = said("plain", target, **options).sequences
    assert said("ours", target, noisy(target), **options).sequences.tolist() == wanted.tolist()


@pytest.mark.parametrize("kind", [n for n in KINDS if n not in WITHOUT_IDS and "soft" not in n and "apart" not in n])
def test_a_turn_that_goes_on_from_a_cache(kind):
    target, batch, shared = setting(kind, (6, 11, 8))
    first = {name: x[:, :7] if x.shape[1:2] == (11,) else x for name, x in batch.items()}
    if "inputs_embeds" in first:
        del first["input_ids"]
    given = read_into_cache(target, first, **shared)
    out = said("ours", target, noisy(target), **batch, **shared, **given, output_logits=True)
    assert_as_alone(target, out, batch, **shared)


@pytest.mark.parametrize("kind", CORE)
def test_hidden_states_come_with_them(kind):
    target, batch, shared = setting(kind)
    options = batch | shared | {"output_hidden_states": True, "output_logits": True}
    got, wanted = said("ours", target, noisy(target), **options), said("plain", target, **options)
    assert got.sequences[:, -NEW:].tolist() == wanted.sequences[:, -NEW:].tolist()
    for ours, theirs in zip(got.hidden_states, wanted.hidden_states, strict=True):
        for x, y in zip(ours, theirs, strict=True):
            assert x.shape == y.shape and ((x - y)[:, -1].abs().max() / y.std()).item() < 1e-3


# ---- some of them ----------------------------------------------------------------------------------------------------
def test_all_at_once():
    target = build("gpt2")
    batch = batch_of([text(n) for n in RAGGED])
    batch |= soft(target, batch) | types(target, batch) | positions(lambda p, row: p + 9 * row)(target, batch)
    options = {"repetition_penalty": 1.3, "min_new_tokens": 4, "eos_token_id": [5, 9, 20]}
    out = said("ours", target, noisy(target), **batch, **options, output_logits=True)
    assert_as_alone(target, out, batch, **options)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
@pytest.mark.parametrize("length", [{"max_length": 20}, {"max_new_tokens": 9}, {"min_length": 14}, {}], ids=str)
@pytest.mark.parametrize("ids", [True, False])
def test_lengths_are_counted_as_plain_counts_them(ids, length):
    target = tiny()
    batch = prompts([9, 9])
    given = embeddings(target, batch) | (batch if ids else {"attention_mask": batch["attention_mask"]})
    options = {"return_dict_in_generate": True, "eos_token_id": [3, 8, 21, 40, 55]} | length
    wanted = plain(target, **given, do_sample=False, **options).sequences
    assert spec(target, noisy(target), **given, **options).sequences.tolist() == wanted.tolist()


def test_one_row_of_positions_serves_the_batch():
    target = build("llama")
    batch = prompts([8, 8, 8])
    shared = {"position_ids": 3 * torch.arange(8)[None]}
    out = said("ours", target, noisy(target), **batch, **shared, output_logits=True)
    assert_as_alone(target, out, batch, **shared)


def test_positions_that_count_the_padding():
    """As old code passes them: arange over the columns, whatever the mask."""
    target = build("gpt2")
    batch = batch_of([text(n) for n in RAGGED])
    batch["position_ids"] = torch.arange(11).expand(3, -1).contiguous()
    assert_as_alone(target, said("ours", target, noisy(target), **batch, output_logits=True), batch)


def test_shifted_positions_never_reach_past_the_targets_table():
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "eos_token_id": None, "scale": 3.0}
    target = tiny(GPT2Config, max_position_embeddings=24, **sizes)
    criteria = StoppingCriteriaList([lambda ids, scores: torch.tensor([ids.shape[1] >= 17])])
    options = prompts([5]) | {"max_new_tokens": 100, "stopping_criteria": criteria}
    options["position_ids"] = torch.arange(5)[None] + 5
    wanted = plain(target, **options, do_sample=False)
    draft = tiny(GPT2Config, max_position_embeddings=64, **sizes)
    assert spec(target, draft, **options, num_assistant_tokens=9).sequences.tolist() == wanted.tolist()


def test_a_tensor_that_is_not_the_batchs_goes_to_every_forward_as_it_is():
    target = steered()
    shared = {"tilt": random(32, seed=3)}
    out = said("ours", target, noisy(target), **prompts([5, 8]), **shared, output_logits=True)
    assert_as_alone(target, out, prompts([5, 8]), **shared)


class Biased(LlamaForCausalLM):
    """Says nothing of what it hands on: transformers makes no position_ids for it."""

    def forward(self, input_ids=None, *args, bias=None, **kwargs):
        out = super().forward(input_ids, *args, **kwargs)
        if bias is not None:
            out.logits = out.logits + bias[:, None]
        return out


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_forward_that_hands_on_what_it_is_given(side):
    target = tiny(eos_token_id=None)
    target.__class__ = Biased
    batch = batch_of([text(n) for n in RAGGED], side) | {"bias": random(3, 64, scale=2.0)}
    assert_as_alone(target, said("ours", target, noisy(target), **batch, output_logits=True), batch)


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "bloom", "falcon_alibi"])
def test_a_mask_with_holes(name, side):
    target = build(name)
    batch = prompts([12, 9, 12], side="left" if side == "both" else side)
    batch["attention_mask"][0, [4, 5, 8]] = 0
    batch["attention_mask"][1, 6] = 0
    if side == "both":
        batch["attention_mask"][2, -2:] = 0
    out = said("ours", target, noisy(target), **batch, output_logits=True)
    assert_as_alone(target, out, batch)
    assert out.sequences[:, :12].tolist() == batch["input_ids"].tolist()


def test_what_a_model_does_not_take_is_told_as_ever():
    target = build("llama")
    with pytest.raises(ValueError, match="steer"):
        said("ours", target, noisy(target), **prompts([5]), steer=random(1, 2, 32))


def test_a_right_padded_mask_of_other_columns_than_the_ids_is_refused():
    target = build("llama")
    turn = prompts([9, 6], side="right")
    given = read_into_cache(target, {key: x[:, :4] for key, x in turn.items()})
    with pytest.raises(SpecUnsupportedError, match="ends with padding"):
        said("ours", target, noisy(target), **turn | {"input_ids": turn["input_ids"][:, 4:]}, **given)
