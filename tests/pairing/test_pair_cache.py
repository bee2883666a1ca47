"""A kept verdict is never a stale one."""

import gc
import json
import os
from concurrent.futures import ThreadPoolExecutor

from pairing_toys import WORDS, make_model, make_tokenizer

from hf_specgen.pairing import check_pair, pair_up
from hf_specgen.pairing.check import _judge


def test_second_call_is_answered_from_the_cache():
    models, tokenizers = (make_model(), make_model()), (make_tokenizer(), make_tokenizer())
    reports = [check_pair(*models, tokenizer=tokenizers[0], assistant_tokenizer=tokenizers[1]) for _ in range(3)]
    assert reports[0] is reports[1] is reports[2]


def test_tokens_added_after_the_first_call():
    models, ours, theirs = (make_model(72), make_model(72)), make_tokenizer(), make_tokenizer()

    def verdict():
        return check_pair(*models, tokenizer=ours, assistant_tokenizer=theirs).verdict

    assert verdict() == "exact"
    ours.add_tokens(["<a>"])
    assert verdict() == "mappable"
    theirs.add_tokens(["<a>"])
    assert verdict() == "exact"


def test_tokens_added_to_a_vocabulary_with_holes():
    """Here an added token may land in a hole: counted anew on every call."""
    models, ours, theirs = (make_model(), make_model()), make_tokenizer(), make_tokenizer()
    theirs.backend_tokenizer.model = type(theirs.backend_tokenizer.model)({"w0": 0, "w60": 60}, unk_token="w0")
    assert check_pair(*models, tokenizer=ours, assistant_tokenizer=theirs).differing == ()
    theirs.add_tokens(["<a>"])
    assert check_pair(*models, tokenizer=ours, assistant_tokenizer=theirs).differing == ((2, "w2", "<a>"),)


def test_model_inside_a_tokenizer_replaced():
    models, ours, theirs = (make_model(), make_model()), make_tokenizer(), make_tokenizer()
    assert check_pair(*models, tokenizer=ours, assistant_tokenizer=theirs).verdict == "exact"
    theirs.backend_tokenizer.model = make_tokenizer(WORDS[::-1]).backend_tokenizer.model
    assert check_pair(*models, tokenizer=ours, assistant_tokenizer=theirs).verdict == "cross-vocabulary"


def test_a_new_tokenizer_at_a_dead_ones_address():
    target, draft, ours = make_model(), make_model(), make_tokenizer()
    for i in range(6):  # an id() comes back quickly; the verdict must not
        words = WORDS if i % 2 else (*WORDS[:5], "x", *WORDS[6:])
        verdict = check_pair(target, draft, tokenizer=ours, assistant_tokenizer=make_tokenizer(words)).verdict
        assert verdict == ("exact" if i % 2 else "mappable")
        gc.collect()


def test_another_end_of_text():
    models, ours, theirs = (make_model(), make_model()), make_tokenizer(), make_tokenizer(WORDS[::-1])
    ours.eos_token, theirs.eos_token = "w3", "w4"
    first = pair_up(*models, ours, theirs)
    assert pair_up(*models, ours, theirs) is first
    theirs.eos_token = "w5"
    assert pair_up(*models, ours, theirs) is not first


def test_resized_embeddings():
    target, draft = make_model(), make_model()
    before = check_pair(target, draft)
    draft.resize_token_embeddings(80)
    after = check_pair(target, draft)
    assert (before.draft_rows, after.draft_rows) == (64, 80)


def test_edited_folder(folder):
    target, draft = folder("target", tokenizer=make_tokenizer()), folder("draft", tokenizer=make_tokenizer())
    assert check_pair(target, draft).verdict == "exact"
    file = draft / "tokenizer.json"
    stat = file.stat()
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    vocab["w10"], vocab["w11"] = vocab["w11"], vocab["w10"]
    file.write_text(json.dumps(content))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert [id_ for id_, *_ in check_pair(target, draft).differing] == [10, 11]


def test_many_threads_and_a_bounded_memory():
    target, draft, tokenizer = make_model(), make_model(), make_tokenizer()

    def verdict(i):
        words = WORDS if i % 2 else WORDS[::-1]
        return check_pair(target, draft, tokenizer=tokenizer, assistant_tokenizer=make_tokenizer(words)).verdict

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(verdict, range(200))) == ["cross-vocabulary", "exact"] * 100
    assert _judge.cache_info().currsize <= 16
