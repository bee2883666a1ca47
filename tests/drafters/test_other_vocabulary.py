"""Drafts whose ids are not the target's: exact with any draft, and a perfect one under other ids is accepted whole."""

import warnings

import pytest
import torch
from laws import chi_square
from text_toys import OTHER, byte_level, fast, renumbered, sentencepiece
from tokenizers import Tokenizer, decoders, models
from toys import assert_as_alone, noisy, plain, prompts, row_alone, spec, tiny
from transformers import GPT2Config

import hf_specgen
from hf_specgen import SpecUnsupportedError
from hf_specgen.drafters.reading import MappedIds
from hf_specgen.pairing import check_pair, vocabulary

pytestmark = pytest.mark.parity
WORDS = [f"w{i}" for i in range(64)]
MOVED = {i: (5 * i + 7) % 64 for i in range(64)}  # another numbering of the same words
NEW = 14


def words(names):
    return fast(Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=names[0])))


def as_moved(moved=MOVED):
    names = [""] * 64
    for i, j in moved.items():
        names[j] = WORDS[i]
    return words(names)


@pytest.fixture(scope="module")
def target():
    return tiny(eos_token_id=None)


def call(target, draft, ours, theirs, batch, strategy="rejection", **kwargs):
    options = {"num_assistant_tokens": 4, "max_new_tokens": NEW, "output_logits": True} | kwargs
    return spec(target, draft, strategy, tokenizer=ours, assistant_tokenizer=theirs, **options, **batch)


# -- a perfect draft under other ids -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[6], [3, 9, 5, 1]])
def test_the_target_renumbered_is_accepted_in_every_round(target, how, lengths):
    batch = prompts(lengths)
    out = call(target, renumbered(target, MOVED, 64), words(WORDS), as_moved(), batch)
    assert_as_alone(target, out, batch, new=NEW)
    assert out.spec_stats.acceptance_rate == 1.0
    assert all(row.accepted == row.drafted > 0 for row in out.spec_stats.rows)


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_the_target_renumbered_is_accepted_when_sampling(target, strategy):
    out = call(
        target,
        renumbered(target, MOVED, 64),
        words(WORDS),
        as_moved(),
        prompts([3, 9, 5]),
        strategy,
        do_sample=True,
        generator=torch.Generator().manual_seed(1),
    )
    assert out.spec_stats.acceptance_rate > 0.999  # q equals p up to rounding


def test_a_few_ids_that_have_moved(target):
    """Two ids have changed places, one means something else: read and written by their string, or not at all."""
    moved = {i: i for i in range(64)} | {3: 4, 4: 3}
    names = ["w0", "w1", "w2", "w4", "w3", *WORDS[5:20], "<other>", *WORDS[21:]]
    draft, theirs = renumbered(target, moved, 64), words(names)
    batch = prompts([3, 9, 5, 1])
    assert check_pair(target, draft, tokenizer=words(WORDS), assistant_tokenizer=theirs).verdict == "mappable"
    out = call(target, draft, words(WORDS), theirs, batch)
    assert_as_alone(target, out, batch, new=NEW)
    with_20 = [20 in row for row in out.sequences.tolist()]
    assert out.spec_stats.acceptance_rate == 1.0 or any(with_20)
    assert out.spec_stats.acceptance_rate > 0.7


# -- drafts that do not know everything --------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.4, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_a_part_shared_greedy(target, how, share, seed):
    known = int(64 * share)
    names = [name if i < known else f"v{i}" for i, name in enumerate(WORDS)]
    draft = renumbered(noisy(target, 0.03, seed=seed), {i: 63 - i for i in range(64)}, 64)
    batch = prompts([4, 11, 1, 7], seed=seed)
    out = call(target, draft, words(WORDS), words(names[::-1]), batch)
    assert_as_alone(target, out, batch, new=NEW)
    proposed = out.sequences[:, -NEW:][out.draft_mask]
    assert (proposed < known).all() and out.spec_stats.drafted > 0


def test_only_shared_tokens_are_ever_proposed(target, monkeypatch):
    seen = []
    original = hf_specgen.drafters.ModelDrafter.propose

    def watched(self, *args):
        proposal = original(self, *args)
        seen.extend(proposal.tokens[proposal.drafted()].tolist())
        return proposal

    monkeypatch.setattr(hf_specgen.drafters.ModelDrafter, "propose", watched)
    names = [name if i < 30 else f"v{i}" for i, name in enumerate(WORDS)]
    draft = renumbered(noisy(target), {i: 63 - i for i in range(64)}, 64)
    options = {"do_sample": True, "generator": torch.Generator().manual_seed(0)}
    call(target, draft, words(WORDS), words(names[::-1]), prompts([4, 11, 1]), **options)
    assert seen and max(seen) < 30


# -- real spellings ----------------------------------------------------------------------------------------------------

SPELLINGS = {
    "bytes to bytes": lambda: (byte_level(340), byte_level(300, OTHER)),
    "bytes to pieces": lambda: (byte_level(340), sentencepiece(150)),
    "pieces to bytes": lambda: (sentencepiece(150), byte_level(300, OTHER)),
    "pieces to pieces": lambda: (sentencepiece(150), sentencepiece(120, OTHER)),
}
PROMPTS = ["def merge(a, b):\n    return", "  two  spaces\n\n", "Übermäßig 😀 schöne", "x", "日本"]


@pytest.fixture(scope="module", params=SPELLINGS)
def spelled(request):
    ours, theirs = (fast(t, pad_token=t.id_to_token(0)) for t in SPELLINGS[request.param]())
    target = tiny(vocab_size=len(ours) + 8, eos_token_id=None)  # with padding rows
    draft = tiny(vocab_size=len(theirs) + 3, seed=3, eos_token_id=None)
    ours.padding_side = "left"
    return target, draft, ours, theirs


def test_texts_of_every_kind_greedy(spelled, how):
    target, draft, ours, theirs = spelled
    batch = dict(ours(PROMPTS, return_tensors="pt", padding=True))
    batch.pop("token_type_ids", None)
    out = call(target, draft, ours, theirs, batch, max_new_tokens=20)
    for b in range(len(PROMPTS)):
        wanted = plain(target, **row_alone(batch, b), max_new_tokens=20, do_sample=False)[0, -20:]
        assert torch.equal(out.sequences[b, -20:], wanted)
    assert out.spec_stats.drafted > 0


def test_what_the_draft_reads_is_the_targets_text(spelled, how, monkeypatch):
    """Of every row, at every round, in the bytes that both stand for."""
    target, draft, ours, theirs = spelled
    texts = []
    original = hf_specgen.drafters.ModelDrafter.settle

    def watched(self, rows, *args):
        original(self, rows, *args)
        reading = self.reading
        for row in rows:
            read, said = reading.text(row), b"".join(map(reading.map.target.bytes_of, row.tokens))
            texts.append((b"".join(map(reading.map.draft.bytes_of, read)), said))

    monkeypatch.setattr(hf_specgen.drafters.ModelDrafter, "settle", watched)
    batch = dict(ours(PROMPTS, return_tensors="pt", padding=True))
    batch.pop("token_type_ids", None)
    call(target, draft, ours, theirs, batch, max_new_tokens=20)
    assert len(texts) > 20
    for read, said in texts:
        assert read == said


def test_a_beginning_of_text_is_read_once_and_only_in_front(spelled):
    target, draft, ours, theirs = spelled
    batch = dict(ours(["def merge"], return_tensors="pt"))
    reads = hf_specgen.pairing.pair_up(target, draft, ours, theirs)
    reading = hf_specgen.drafters.OtherVocabulary(reads, torch.device("cpu"))
    row = type("Row", (), {"index": 0, "tokens": batch["input_ids"][0].tolist()})
    text = list(reading.text(row))
    start = theirs.backend_tokenizer.token_to_id("<s>")
    assert (text.count(start), text[0] == start) == ((1, True) if start is not None else (0, False))
    row.tokens = row.tokens + ours(" Liège", add_special_tokens=False)["input_ids"]
    assert reading.text(row)[: len(text)] == text and reading.text(row).count(start) == text.count(start)


def test_texts_that_are_beyond_the_drafts_positions_in_its_own_tokens(how):
    """A table of 24 positions, and a tokenizer that splits finer: rows drop out by the draft's count."""
    ours, theirs = (fast(byte_level(size), pad_token="<end>", padding_side="left") for size in (340, 260))
    target, sizes = tiny(vocab_size=len(ours), eos_token_id=None), {"n_embd": 32, "n_layer": 1, "n_head": 4}
    draft = tiny(GPT2Config, vocab_size=len(theirs), max_position_embeddings=24, eos_token_id=None, **sizes)
    texts = ["def merge(a, b):\n    return sorted(a", "x", "schöne Straßen"]
    batch = dict(ours(texts, return_tensors="pt", padding=True))
    mine = batch["attention_mask"].sum(1).tolist()
    split = [len(theirs(text)["input_ids"]) for text in texts]
    assert mine[0] < 24 < split[0] and split[1] < mine[2] < split[2] < 24
    with pytest.warns(UserWarning, match=r"row 0: its text \(\d+ tokens\) is beyond the draft's context"):
        out = call(target, draft, ours, theirs, batch, max_new_tokens=20)
    assert_as_alone(target, out, batch, new=20)
    beyond, short, crossing = out.spec_stats.rows
    assert beyond.drafted == 0 and "row 0" in beyond.fallback_reason and "context" in beyond.fallback_reason
    assert crossing.drafted > 0 and "row 2" in crossing.fallback_reason
    assert short.drafted > crossing.drafted


# -- the law -----------------------------------------------------------------------------------------------------------

SMALL = {"vocab_size": 6, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"num_key_value_heads": 1, "eos_token_id": None, "max_position_embeddings": 64}
PROMPT = torch.tensor([[3, 5, 3]])


def sampled_law(strategy, rows=4000):
    """Empirical counts and the exact law of two tokens, of a draft that knows three of the target's six words."""
    target, draft = tiny(seed=0, scale=9.0, **SMALL), tiny(seed=5, scale=9.0, **SMALL)
    names = [f"w{i}" for i in range(6)]
    out = spec(
        target,
        draft,
        strategy,
        input_ids=PROMPT,
        attention_mask=torch.ones_like(PROMPT),
        tokenizer=words(names),
        assistant_tokenizer=words(["w5", "x", "w3", "y", "w1", "z"]),
        do_sample=True,
        top_k=0,
        num_return_sequences=rows,
        num_assistant_tokens=2,
        max_new_tokens=4,
        generator=torch.Generator().manual_seed(0),
    )
    assert 0.1 < out.spec_stats.acceptance_rate < 0.95
    new = out.sequences[:, 3:6]
    counts = torch.zeros(6, 6, 6).index_put(tuple(new.T), torch.ones(rows), accumulate=True)
    law = torch.zeros(6, 6, 6, dtype=torch.float64)
    texts = torch.cartesian_prod(torch.arange(6), torch.arange(6))
    with torch.no_grad():
        first = target(PROMPT).logits[0, -1].double().softmax(-1)
        ids = torch.cat([PROMPT.expand(36, -1), texts], 1)
        rest = target(ids).logits.double().softmax(-1)
    for (a, b), p in zip(texts.tolist(), rest, strict=True):
        law[a, b] = first[a] * p[3, b] * p[4]
    return counts, law


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_sampled_law_is_the_targets(strategy):
    counts, law = sampled_law(strategy)
    assert chi_square(counts, law) > 1e-4


def test_a_draft_that_is_accounted_for_with_tokens_it_may_not_draw_is_seen(monkeypatch):
    """q of all the draft's tokens, those the target does not have left out but not made up for."""
    original = hf_specgen.verifiers.RejectionVerifier.accept

    def accept(self, proposal, scores, noise):
        if proposal.q is not None:
            proposal.q = proposal.q * 0.5
        return original(self, proposal, scores, noise)

    monkeypatch.setattr(hf_specgen.verifiers.RejectionVerifier, "accept", accept)
    assert chi_square(*sampled_law("rejection")) < 1e-4


def test_a_draft_read_under_wrong_ids_still_keeps_the_text(target, monkeypatch):
    monkeypatch.setattr(MappedIds, "own", lambda self, tokens: [0 for _ in tokens])
    batch = prompts([4, 9])
    draft = renumbered(target, {i: 63 - i for i in range(64)}, 64)
    out = call(target, draft, words(WORDS), words(WORDS[::-1]), batch)
    assert_as_alone(target, out, batch, new=NEW)


# -- in generate() -----------------------------------------------------------------------------------------------------


def test_another_vocabulary_that_was_not_asked_for_is_told(target, tmp_path):
    draft = renumbered(target, MOVED, 64)
    as_moved().save_pretrained(tmp_path)
    draft.config.name_or_path = str(tmp_path)
    with pytest.warns(UserWarning, match="another vocabulary"):
        spec(target, draft, tokenizer=words(WORDS), max_new_tokens=4, **prompts([3]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(target, draft, words(WORDS), as_moved(), prompts([3]))


def test_the_drafts_end_ends_a_row_only_if_the_target_says_so(target):
    """The draft's end of text is the target's, whatever either calls it."""
    names = [*WORDS[:10], "<stop>", *WORDS[11:]]
    ours = fast(words(WORDS).backend_tokenizer, eos_token="w10")
    theirs = fast(words(names[::-1]).backend_tokenizer, eos_token="<stop>")
    batch = prompts([4, 9, 2])
    text = plain(target, **row_alone(batch, 0), max_new_tokens=NEW, do_sample=False)[0, 4:].tolist()
    pairs = hf_specgen.pairing.pair_up(target, target, ours, theirs).pairs
    assert pairs[53] == 10
    draft = renumbered(target, {i: 63 - i for i in range(64)}, 64)
    end = text[5]
    out = call(target, draft, ours, theirs, batch, eos_token_id=end)
    assert out.sequences[0, -NEW:].tolist()[: text.index(end) + 1] == text[: text.index(end) + 1]
    assert out.spec_stats.acceptance_rate == 1.0


def test_a_session_goes_on_from_the_drafts_own_ids(target):
    draft, session = renumbered(target, MOVED, 64), hf_specgen.SpecSession()
    batch = prompts([6, 3])
    first = call(target, draft, words(WORDS), as_moved(), batch, spec_session=session, output_logits=False)
    ids = torch.cat([first.sequences, torch.tensor([[7, 8], [9, 10]])], 1)
    mask = torch.cat([batch["attention_mask"], torch.ones(2, NEW + 2, dtype=torch.long)], 1)
    again = {"input_ids": ids, "attention_mask": mask}
    second = call(target, draft, words(WORDS), as_moved(), again, spec_session=session)
    assert_as_alone(target, second, again, new=NEW)
    assert second.spec_stats.acceptance_rate == 1.0


def test_an_encoder_that_would_have_to_read_another_vocabulary_is_refused():
    from transformers import T5Config, T5ForConditionalGeneration

    settings = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    target, draft = (T5ForConditionalGeneration(T5Config(**settings, decoder_start_token_id=0)).eval() for _ in "ab")
    with pytest.raises(SpecUnsupportedError, match="another vocabulary than the target and an encoder of its own"):
        call(target, draft, words(WORDS), as_moved(), {"input_ids": torch.tensor([[3, 4, 5]])}, output_logits=False)


# -- what a fresh reader broke -----------------------------------------------------------------------------------------


def automaton(follows: dict[int, int], rows: int):
    """A model whose greedy text is told: `follows[token]` comes after a token."""
    model = tiny(vocab_size=rows, hidden_size=64, num_hidden_layers=1, tie_word_embeddings=False, eos_token_id=None)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.zero_()
        model.get_input_embeddings().weight.copy_(torch.eye(rows, 64))
        model.get_output_embeddings().weight.zero_()
        for token, after in follows.items():
            model.get_output_embeddings().weight[after, token] = 1.0
    return model


def pairs_of_letters(pieces, merges):
    """Byte-level, with just these tokens."""
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    backend.decoder = decoders.ByteLevel()
    return fast(backend)


TWO = ["<p>", *"abcdefgh", "ab", "cd", "ef", "gh"]
MERGES = [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")]


@pytest.mark.parametrize("rows", [[[9, 10]], [[2], [9, 10]], [[9, 10], [2]]])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_draft_whose_tokens_are_longer_than_the_targets(rows, k, monkeypatch):
    """What it has written can be more than all that the row says now: it still reads the last token anew."""
    monkeypatch.setattr(vocabulary, "ALIKE", 2.0)
    four = [*TWO, "abcd", "efgh"]
    target = automaton({9: 10, 10: 11, 11: 12, 12: 9, 2: 3, 3: 1}, 13)
    draft = automaton({13: 14, 14: 13, 9: 10, 10: 14, 11: 12, 12: 13}, 15)
    width = max(map(len, rows))
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    batch = {"input_ids": torch.tensor([[0] * (width - len(row)) + row for row in rows]), "attention_mask": mask}
    theirs = pairs_of_letters(four, [*MERGES, ("ab", "cd"), ("ef", "gh")])
    out = call(target, draft, pairs_of_letters(TWO, MERGES), theirs, batch, num_assistant_tokens=k, eos_token_id=1)
    assert_as_alone(target, out, batch, new=NEW, eos_token_id=1)
    longest = out.spec_stats.rows[[len(row) for row in rows].index(2)]
    assert longest.accepted == longest.drafted > 0  # a perfect draft
    assert out.spec_stats.draft_forwards <= 2 * out.spec_stats.rounds + 1  # it stops when it has written enough


@pytest.mark.parametrize("special", ["unk_token", "pad_token"])
def test_a_token_added_without_resizing_the_draft(special):
    target, draft = (automaton({i: (i + 1) % rows for i in range(rows)}, rows) for rows in (60, 62))
    ours = words([*WORDS[:59], "other"])
    theirs = words(WORDS[:62])
    theirs.add_special_tokens({special: "[NEW]"})
    batch = {"input_ids": torch.tensor([[55, 56]]), "attention_mask": torch.ones(1, 2, dtype=torch.long)}
    out = call(target, draft, ours, theirs, batch)
    assert_as_alone(target, out, batch, new=NEW)


def test_tokenizers_that_know_more_ids_than_their_models(how):
    ours, theirs = fast(byte_level(300)), fast(byte_level(420, OTHER))
    target, draft = tiny(vocab_size=len(ours) - 12, eos_token_id=None), tiny(vocab_size=len(theirs) - 20, seed=4)
    ids = [i for i in ours("def merge(a, b): über")["input_ids"] if i < len(ours) - 12]
    batch = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    out = call(target, draft, ours, theirs, batch)
    assert_as_alone(target, out, batch, new=NEW)
