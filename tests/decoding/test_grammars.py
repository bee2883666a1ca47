"""Grammars that know nothing of a forbidden text, nor of one behind its end, and say so: plain decoding never asks them
about one, and drafted tokens do not either. Ids are plain's."""

import pytest
import torch
from text_toys import fast, renumbered
from tokenizers import Tokenizer, models
from toys import EOS, VOCAB, noisy, plain, prompts, row_alone, seeded, spec, tiny, toy_tokenizer
from transformers import LogitsProcessor

from hf_specgen import Drafter, Proposal

DEPTH = 11
NEW = 15
LENGTHS = [24, 15, 19]
ASKED_IN_VAIN = []  # texts that a grammar was shown and knows nothing of


def following(text: list[int]) -> list[int]:
    """What may follow the prompt's last token and the new ones; nothing where the text is forbidden or has ended."""
    allowed = _step(text[0], 0)
    for i, token in enumerate(text[1:], 1):
        if token not in allowed:
            allowed = []
            break
        allowed = [] if token == EOS else _step(token, i)
    if not allowed:
        ASKED_IN_VAIN.append(text)
    return allowed


def _step(last: int, depth: int) -> list[int]:
    if depth == DEPTH:
        return [EOS]
    first = 40 if depth % 3 == 2 else 2  # at times nothing that a small draft has
    return sorted({first + (7 * last + 5 * k) % 12 for k in range(4)})


def trie(lengths):
    """A `prefix_allowed_tokens_fn` for prompts of these lengths: [] is an error to transformers."""
    return {"prefix_allowed_tokens_fn": lambda row, ids: following(ids.tolist()[lengths[row] - 1 :])}


class Automaton(LogitsProcessor):
    def __init__(self):
        self.start = None

    def __call__(self, input_ids, scores):
        text = input_ids[0].tolist()
        self.start = self.start or len(text)
        allowed = following(text[self.start - 1 :])
        assert allowed, f"an illegal text: {text}"
        return torch.full_like(scores, float("-inf")).index_copy(1, torch.tensor(allowed), scores[:, allowed])


def automaton(lengths):
    return {"logits_processor": [Automaton()]}


class Wild(Drafter):
    """Two right tokens, then an EOS and others."""

    def __init__(self, texts):
        self.texts = texts

    def propose(self, rows, widths, verifier, noise):
        right = [self.texts[row.index][row.length : row.length + 2] for row in rows]
        ids = [[*two, EOS, 9, EOS, 60][:w] for two, w in zip(right, widths, strict=True)]
        width = max(map(len, ids))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in ids], dtype=torch.long)
        return Proposal(tokens.view(len(rows), width), torch.tensor(list(map(len, ids))))


@pytest.fixture(scope="module")
def target():
    return tiny(num_hidden_layers=2)


@pytest.fixture(scope="module")
def batch():
    return prompts(LENGTHS, vocab=20)


@pytest.fixture
def source(request, target, monkeypatch):
    """`(draft, options)` of a call, from the texts that plain decoding gives."""
    if request.param == "as text":
        from hf_specgen.pairing import vocabulary

        monkeypatch.setattr(vocabulary, "ALIKE", 2.0)

    def words(order):
        names = [""] * VOCAB
        for i, j in order.items():
            names[j] = f"w{i}"
        return fast(Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=names[0])))

    def make(texts):
        moved = {i: (5 * i + 7) % VOCAB for i in range(VOCAB)}
        return {
            "an exact copy": lambda: (noisy(target, 0), {}),
            "draft": lambda: (noisy(target, 0.3), {}),
            "small draft": lambda: (tiny(vocab_size=30, num_hidden_layers=1, eos_token_id=None), {}),
            "lookup": lambda: (None, {"spec_source": "lookup"}),
            "hybrid": lambda: (noisy(target, 0.1), {"spec_source": "hybrid"}),
            "custom": lambda: (Wild(texts), {}),
            "as text": lambda: (
                renumbered(noisy(target, 0.1), moved, VOCAB),
                {"tokenizer": words(dict(zip(moved, moved, strict=True))), "assistant_tokenizer": words(moved)},
            ),
        }[request.param]()

    return make


SOURCES = ["an exact copy", "draft", "small draft", "lookup", "hybrid", "custom", "as text"]


@pytest.mark.parametrize("strategy", ["greedy", "rejection", "block"])
@pytest.mark.parametrize("grammar", [trie, automaton])
@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_ids_are_plains_and_nothing_is_asked_in_vain(target, batch, source, grammar, strategy):
    """Sampled with the best token alone left over."""
    sampled = {"do_sample": True, "top_k": 1} if strategy != "greedy" else {"do_sample": False}
    options = {"max_new_tokens": NEW} | sampled
    rows = [row_alone(batch, b) for b in range(3)]
    texts = [plain(target, **row, **options, **grammar([n]))[0].tolist() for row, n in zip(rows, LENGTHS, strict=True)]
    assert all(text[-1] == EOS and len(text) == n + DEPTH + 1 for text, n in zip(texts, LENGTHS, strict=True))
    ASKED_IN_VAIN.clear()
    strategy = "rejection" if strategy == "greedy" else strategy
    draft, how = source(texts)
    options |= {"num_assistant_tokens": 5} | how
    out = spec(target, draft, strategy, **rows[0], **options, **grammar(LENGTHS))
    assert out.sequences[0].tolist() == texts[0]
    draft, _ = source(texts)
    out = spec(target, draft, strategy, **batch, **options, **grammar(LENGTHS))
    for got, text, n in zip(out.sequences.tolist(), texts, LENGTHS, strict=True):
        assert got[max(LENGTHS) :] == text[n:]
    assert out.spec_stats.drafted > 0 and ASKED_IN_VAIN == []


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_coupled_text_is_the_one_without_a_draft(target, batch, source):
    options = {"max_new_tokens": NEW, "top_k": 0, "temperature": 3.0, **batch, **trie(LENGTHS)}
    want = spec(target, None, "coupled", **options, **seeded()).sequences
    ASKED_IN_VAIN.clear()
    draft, how = source([[0] * n + new[max(LENGTHS) :] for n, new in zip(LENGTHS, want.tolist(), strict=True)])
    got = spec(target, draft, "coupled", **options | how, num_assistant_tokens=5, **seeded()).sequences
    assert got.tolist() == want.tolist() and ASKED_IN_VAIN == []


@pytest.mark.parametrize("source", ["an exact copy", "lookup", "custom"], indirect=True)
@pytest.mark.parametrize("stop", range(1, 9, 2))
def test_a_grammar_that_ends_where_a_stop_string_does(target, batch, source, stop):
    """Which nothing but the stopping criteria knows."""
    tokenizer, row = toy_tokenizer(), row_alone(batch, 0)
    said = plain(target, **row, do_sample=False, max_new_tokens=NEW, eos_token_id=None)[0].tolist()
    new = said[LENGTHS[0] :]
    end = next(i for i in range(stop, NEW) if new[i] not in new[:i])

    def allowed(_, ids):
        return [] if new[end] in ids[LENGTHS[0] :].tolist() else list(range(VOCAB))

    options = {"max_new_tokens": NEW, "eos_token_id": None, "prefix_allowed_tokens_fn": allowed}
    options |= {"stop_strings": [tokenizer.decode(new[end])], "tokenizer": tokenizer}
    want = plain(target, **row, do_sample=False, **options)[0].tolist()
    assert want == said[: LENGTHS[0] + end + 1]
    draft, how = source([said])
    assert spec(target, draft, **row, **options, **how, num_assistant_tokens=5).sequences[0].tolist() == want


@pytest.mark.parametrize("source", ["an exact copy", "draft", "custom"], indirect=True)
@pytest.mark.parametrize("after", [1, 4, 6])
def test_an_error_about_the_true_text_is_raised(target, batch, source, after):
    row = row_alone(batch, 0)
    said = plain(target, **row, do_sample=False, max_new_tokens=NEW, eos_token_id=None)[0].tolist()

    def allowed(_, ids):
        return list(range(VOCAB)) if len(ids) < LENGTHS[0] + after else []

    draft, how = source([said])
    with pytest.raises(ValueError, match="prefix_allowed_tokens_fn"):
        spec(target, draft, **row, **how, max_new_tokens=NEW, eos_token_id=None, prefix_allowed_tokens_fn=allowed)
