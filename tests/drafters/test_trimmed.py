"""draft_vocab_size: the draft computes some of its logits, and says them as its whole head would; all else stays."""

import itertools
import threading

import pytest
import torch
import transformers
from laws import distance, emitted_law, every_draft, product_law
from text_toys import fast, renumbered
from tokenizers import Tokenizer, models
from toys import EOS, VOCAB, assert_as_alone, noisy, plain, prompts, reading, row_alone, seeded, spec, tiny

import hf_specgen
from hf_specgen import SpecUnsupportedError
from hf_specgen.drafters import ModelDrafter
from hf_specgen.drafters.trimmed import Trimmed
from hf_specgen.verifiers import STRATEGIES

SIZE = 12
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4}
HEADS = {
    "llama": ("Llama", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True}),
    "logits capped": ("Gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0}),
    "logits scaled": ("Cohere", {"logit_scale": 0.3}),
    "logits divided": ("Granite", {"logits_scaling": 4.0}),
    "gpt2": ("GPT2", GPT2),
    "gpt_neox": ("GPTNeoX", {}),
    "bias": ("Phi", {}),
    "nested, bias": ("Bert", {"is_decoder": True}),
}


def family(name: str):
    kind, settings = HEADS[name]
    model = tiny(getattr(transformers, f"{kind}Config"), num_hidden_layers=2, **settings)
    head = model.get_output_embeddings()
    if head.bias is not None:
        torch.nn.init.normal_(head.bias)
    return model


@pytest.fixture(scope="module")
def pair():
    """The draft is an exact copy: what is rejected is rejected for want of tokens."""
    target = tiny(eos_token_id=None)
    return target, noisy(target, 0)


def own_ids(batch, b: int) -> set[int]:
    return set(row_alone(batch, b)["input_ids"][0].tolist())


# -- the logits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
@torch.no_grad()
def test_the_logits_are_the_whole_heads_where_tokens_are_kept(name):
    model, ids = family(name), torch.tensor([[5, 40, 2, 7], [9, 9, 33, 3]])
    trimmed = Trimmed.of(model, SIZE)
    logits = trimmed.begin(ids.tolist())(input_ids=ids).logits[:, -1]
    assert logits.shape[1] < 20
    got, whole = trimmed.expand(logits, [0, 1]), model(input_ids=ids).logits[:, -1]
    for b, own in enumerate([{40}, {33}]):
        kept = sorted({*range(SIZE), EOS, *own})
        torch.testing.assert_close(got[b, kept], whole[b, kept], rtol=1e-4, atol=1e-4)
        assert got[b].isneginf().nonzero().flatten().tolist() == sorted(set(range(VOCAB)) - set(kept))


@torch.no_grad()
def test_a_list_of_ids_keeps_those():
    model, ids, kept = family("bias"), torch.tensor([[5, 40, 2, 7]]), [3, 50, 11]
    trimmed = Trimmed.of(model, kept, ends=[20])
    logits = trimmed.begin(ids.tolist())(input_ids=ids).logits[:, -1]
    got, whole = trimmed.expand(logits, [0]), model(input_ids=ids).logits[:, -1]
    kept = sorted({*kept, 20, 0, 1, EOS, 2, 5, 7, 40})  # and the ends, the special ones, the prompt's
    torch.testing.assert_close(got[:, kept], whole[:, kept])
    assert got.isfinite().sum() == len(kept)


def test_added_tokens_behind_the_ends_are_kept_and_the_first_rows_are_no_copy():
    model = tiny(vocab_size=1000, eos_token_id=990, bos_token_id=980)
    head = Trimmed.of(model, 100).begin([[500, 7], [500, 600]]).get_output_embeddings()
    assert head.out_features == 100 + 20 + 2 and len(head.more_weight) == 22
    assert head.weight.data_ptr() == model.get_output_embeddings().weight.data_ptr()


@pytest.mark.parametrize("size", [VOCAB, 10**9, list(range(VOCAB)), EOS])
def test_the_whole_vocabulary_is_not_trimmed(pair, size):
    assert Trimmed.of(pair[1], size, ends=[EOS]) is None


# -- what is decoded ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 8, 30, [5, 6, 7, 40]], ids=str)
def test_greedy_ids_are_plains(pair, size):
    batch = prompts([5, 9, 3])
    out = spec(*pair, **batch, max_new_tokens=20, output_logits=True, draft_vocab_size=size)
    assert_as_alone(pair[0], out, batch, new=20)
    assert 0 < out.spec_stats.acceptance_rate < 1  # all of it with the whole vocabulary


def test_a_whole_vocabulary_is_accepted_whole(pair):
    out = spec(*pair, **prompts([5, 9]), max_new_tokens=20, draft_vocab_size=VOCAB)
    assert out.spec_stats.acceptance_rate == 1.0


@pytest.mark.parametrize("sampled", [False, True])
def test_a_row_is_drafted_kept_tokens_and_those_of_its_own_prompt(pair, monkeypatch, sampled):
    batch, seen = prompts([5, 9, 3]), [set(), set(), set()]
    propose = ModelDrafter.propose

    def watched(self, rows, *args):
        proposal = propose(self, rows, *args)
        for row, tokens, count in zip(rows, proposal.tokens.tolist(), proposal.counts.tolist(), strict=True):
            seen[row.index].update(tokens[:count])
        return proposal

    monkeypatch.setattr(ModelDrafter, "propose", watched)
    options = seeded() | {"temperature": 9.0, "top_k": 0} if sampled else {}
    spec(*pair, **batch, max_new_tokens=60, draft_vocab_size=SIZE, **options)
    for b in range(3):
        allowed = {*range(SIZE), *own_ids(batch, b)}
        assert seen[b] <= allowed
        others = set().union(*(own_ids(batch, c) for c in range(3) if c != b)) - allowed
        assert others  # which the head computes logits for
    assert not sampled or any(seen[b] & own_ids(batch, b) - {*range(SIZE)} for b in range(3))


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_a_row_is_sampled_as_if_alone(pair, strategy, monkeypatch):
    """Rows leave at different times; what neighbours brought is not theirs to draft."""
    batch = prompts([5, 9, 3, 7])
    options = {"do_sample": True, "temperature": 4.0, "top_k": 0, "max_new_tokens": 24, "draft_vocab_size": SIZE}
    options |= {"eos_token_id": [2, 3]}

    def seeds():
        return [torch.Generator().manual_seed(s) for s in range(4)]

    alone = [
        spec(*pair, strategy, **row_alone(batch, b), generator=seeds()[b : b + 1], **options).sequences[0]
        for b in range(4)
    ]

    def same_together() -> list[bool]:
        together = spec(*pair, strategy, **batch, generator=seeds(), **options).sequences
        columns = batch["input_ids"].shape[1]
        news = [row[len(own_text(b)) :] for b, row in enumerate(alone)]
        return [torch.equal(together[b, columns : columns + len(new)], new) for b, new in enumerate(news)]

    def own_text(b):
        return row_alone(batch, b)["input_ids"][0]

    assert len({len(row) - len(own_text(b)) for b, row in enumerate(alone)}) > 1
    assert all(same_together())
    begin = Trimmed.begin

    def unbarred(self, texts):
        model = begin(self, texts)
        self.barred = None
        return model

    monkeypatch.setattr(Trimmed, "begin", unbarred)
    assert not all(same_together())


@pytest.mark.parametrize("strategy", ["rejection", "block"])
@torch.no_grad()
def test_the_sampled_law_is_the_targets(strategy):
    """By enumeration; and a draft that draws from some tokens but is counted with all of them is seen."""
    target = tiny(vocab_size=4, scale=3.0, eos_token_id=None).double()
    draft, prompt = noisy(target, 0.5), [0, 1, 1]
    trimmed = Trimmed.of(draft, 2)
    network = trimmed.begin([prompt])

    tables: list[dict] = [{}, {}, {}]
    for length in range(5):
        texts = list(itertools.product(range(4), repeat=length))
        ids = torch.tensor([[*prompt, *text] for text in texts])
        own, whole, part = (model(input_ids=ids).logits[:, -1] for model in (target, draft, network))
        for table, scores in zip(tables, (own, whole, trimmed.expand(part, [0] * len(texts))), strict=True):
            table.update(zip(texts, scores.softmax(-1), strict=True))
    p, whole, q = (table.__getitem__ for table in tables)
    assert all((law[2:] == 0).all() for law in tables[2].values())

    def law(accounted):
        drafts = lambda prefix: every_draft(q, prefix, 2, lambda *_: False)  # noqa: E731
        return emitted_law(STRATEGIES[strategy](), p, drafts, accounted, 2, 3)

    assert distance(law(q), product_law(p, 3)) < 1e-9
    assert distance(law(whole), product_law(p, 3)) > 0.01


def test_coupled_ids_do_not_depend_on_it(pair):
    options = {**prompts([5, 9]), "max_new_tokens": 20}
    wanted = spec(pair[0], None, "coupled", **options, **seeded()).sequences
    assert torch.equal(spec(*pair, "coupled", **options, **seeded(), draft_vocab_size=SIZE).sequences, wanted)


def test_processors_that_leave_no_kept_token(pair):
    """Only tokens that the draft has no logits for: nothing is drafted, nothing breaks."""
    options = {
        **prompts([5]),
        "max_new_tokens": 10,
        "do_sample": False,
        "suppress_tokens": [*range(50), *range(53, 64)],
    }
    out = spec(*pair, **options, draft_vocab_size=SIZE)
    assert torch.equal(out.sequences, plain(pair[0], **options))
    assert not out.spec_stats.drafted


def test_a_session_goes_on_with_the_next_turns_ids(pair):
    session = hf_specgen.SpecSession()
    text = prompts([6])["input_ids"]
    for turn in range(2):
        options = {"input_ids": text, "attention_mask": torch.ones_like(text), "max_new_tokens": 12}
        out = spec(*pair, **options, draft_vocab_size=SIZE, spec_session=session)
        assert torch.equal(out.sequences, plain(pair[0], **options, do_sample=False))
        assert turn == 0 or out.spec_stats.accepted
        text = torch.cat([out.sequences, torch.tensor([[44, 45]])], dim=1)


WORDS = [f"w{i}" for i in range(64)]
MOVED = {i: (5 * i + 7) % 64 for i in range(64)}


def words(names):
    return fast(Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=names[0])))


def test_a_draft_with_ids_of_its_own(pair):
    """Token by token; the kept ids are the draft's."""
    names = [name for _, name in sorted((MOVED[i], name) for i, name in enumerate(WORDS))]
    tokenizers = {"tokenizer": words(WORDS), "assistant_tokenizer": words(names)}
    batch = prompts([5, 9, 3])
    out = spec(pair[0], renumbered(pair[0], MOVED, 64), **batch, max_new_tokens=20, draft_vocab_size=30, **tokenizers)
    for b in range(3):
        wanted = plain(pair[0], **row_alone(batch, b), max_new_tokens=20, do_sample=False)[0, -20:]
        assert torch.equal(out.sequences[b, -20:], wanted)
        drafted = out.sequences[b, -20:][out.draft_mask[b]].tolist()
        assert all(MOVED[i] < 30 or i in own_ids(batch, b) or MOVED[i] >= EOS for i in drafted)
    assert 0 < out.spec_stats.acceptance_rate < 1


# -- no side effects ---------------------------------------------------------------------------------------------------


def state(model):
    modules = {name: (id(module), dict(vars(module))) for name, module in model.named_modules()}
    for name, (id_, attributes) in modules.items():
        children = attributes.pop("_modules")
        modules[name] = (id_, {k: id(v) for k, v in attributes.items()}, {k: id(v) for k, v in children.items()})
    return modules, {name: (x.data_ptr(), x._version) for name, x in model.state_dict().items()}


def test_the_callers_draft_is_never_changed(pair, monkeypatch):
    """Not even during the call: another thread that runs the draft gets its own logits."""
    target, draft = pair
    before, seen, propose = state(draft), [], ModelDrafter.propose

    @torch.no_grad()
    def run():
        seen.append(draft(input_ids=torch.tensor([[5, 6, 7]])).logits)

    def beside(self, *args):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        run()
        return propose(self, *args)

    monkeypatch.setattr(ModelDrafter, "propose", beside)
    run()
    spec(target, draft, **prompts([5, 9]), max_new_tokens=8, draft_vocab_size=SIZE)
    run()
    assert len(seen) > 3 and all(torch.equal(logits, seen[0]) for logits in seen)
    assert state(draft) == before


def test_a_draft_compiled_in_place_is_not_asked_through_what_was_compiled(pair):
    draft = noisy(pair[0], 0)

    def compiled(*_, **__):
        raise AssertionError("this computes the whole head")

    draft._compiled_call_impl = compiled
    network = Trimmed.of(draft, SIZE).begin([[2]])
    assert network(input_ids=torch.tensor([[2]])).logits.shape[-1] < 20


# -- refused before any work -------------------------------------------------------------------------------------------


def quantized(draft):
    class PackedLinear(torch.nn.Linear):
        pass

    draft.lm_head.__class__ = PackedLinear


def hooked(draft):
    draft.lm_head.register_forward_hook(lambda *_: None)


def patched(draft):
    draft.forward = draft.forward


def offloaded(draft):
    accelerate = pytest.importorskip("accelerate")
    accelerate.cpu_offload(draft, execution_device=torch.device("cpu"))


def odd(draft):
    """A model that asks its head for its weight only."""

    class Odd(type(draft)):
        def forward(self, input_ids, **kwargs):
            out = super().forward(input_ids=input_ids, **kwargs)
            out.logits = out.logits + torch.zeros(VOCAB)
            return out

    draft.__class__ = Odd


@pytest.mark.parametrize(
    "change, told",
    [
        (quantized, "PackedLinear"),
        (hooked, "hooks on its output layer"),
        (patched, "a patch or torch.compile"),
        (offloaded, "accelerate"),
        (odd, "for some tokens only: its forward raises"),
    ],
)
def test_drafts_that_cannot_be_trimmed(pair, change, told):
    draft = noisy(pair[0], 0)
    change(draft)
    with reading(pair[0]) as shapes, pytest.raises(SpecUnsupportedError, match=told) as error:
        spec(pair[0], draft, **prompts([5]), max_new_tokens=4, draft_vocab_size=SIZE)
    assert not shapes and "Leave out draft_vocab_size" in str(error.value)


def test_encoder_decoders_are_refused():
    settings = {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 1, "num_heads": 4, "vocab_size": VOCAB}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**settings))
    with pytest.raises(SpecUnsupportedError, match="T5ForConditionalGeneration is an encoder-decoder"):
        Trimmed.of(model, SIZE)


@pytest.mark.parametrize(
    "size, told", [(0, "=0"), (-3, "=-3"), ([3, 64], "the id 64"), ([-1], "the id -1"), ([], "empty")], ids=str
)
def test_wrong_sizes_are_told(pair, size, told):
    with pytest.raises(SpecUnsupportedError, match=told):
        Trimmed.of(pair[1], size)
