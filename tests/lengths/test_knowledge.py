"""What a session has learned: from call to call, into a file and back, and files that hold something else."""

import copy
import json
import pickle

import pytest
from length_toys import Machine, chance, play
from toys import noisy, plain, prompts, spec, tiny

from hf_specgen import SpecSession
from hf_specgen.lengths import GoodputLength, Knowledge


def learned() -> Knowledge:
    rule, knowledge = GoodputLength(), Knowledge()
    play(rule, Machine(0.1), chance(0.8), 60, tops=lambda row, n, place: 0.1 * (n % 10), rows=2)
    rule.teach(knowledge)
    return knowledge


@pytest.fixture
def session():
    found = SpecSession()
    found.knowledge = learned()
    return found


def test_what_is_saved_is_loaded(session, tmp_path):
    session.save(tmp_path / "learned.json")
    again = SpecSession.load(tmp_path / "learned.json")
    assert again.knowledge.to_dict() == session.knowledge.to_dict()
    assert session.knowledge.costs["target"] and session.knowledge.acceptance.bins
    again.save(str(tmp_path / "again.json"))
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "learned.json").read_bytes()


def test_a_new_session_is_saved_and_loaded_too(tmp_path):
    SpecSession().save(tmp_path / "empty.json")
    assert SpecSession.load(tmp_path / "empty.json").knowledge.to_dict() == Knowledge().to_dict()


def test_decisions_after_loading_are_those_before(session, tmp_path):
    session.save(tmp_path / "learned.json")
    knowledges = session.knowledge, SpecSession.load(tmp_path / "learned.json").knowledge
    for free in (True, False):
        runs = [
            play(GoodputLength(), Machine(0.1), chance(0.6, 4), 50, free=free, knowledge=known).drafted()
            for known in knowledges
        ]
        assert runs[0] == runs[1] and any(runs[0])


BROKEN = {
    "empty": "",
    "no JSON": "costs: 3",
    "half a file": '{"costs": null, "acceptance": {"classes": [["draft", 0, 1',
    "a list": "[]",
    "a number": "7",
    "something else": '{"model_type": "llama"}',
    "no acceptance": '{"costs": null}',
    "acceptance of another kind": '{"costs": null, "acceptance": 0.7}',
    "counts that are none": '{"costs": null, "acceptance": {"classes": [["draft", 0]], "places": [], "bins": []}}',
    "counts of words": '{"costs": null, "acceptance": {"classes": [["draft", 0, "a", 1]], "places": [], "bins": []}}',
    "costs of another kind": '{"costs": 3, "acceptance": {"classes": [], "places": [], "bins": []}}',
    "costs of words": '{"costs": {"target": [[1, 1, "x"]], "draft": []}, "acceptance": {"classes": [], "places": [], '
    '"bins": []}}',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named(content, tmp_path):
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="broken"):
        SpecSession.load(path)


def test_a_file_of_bytes_is_named(tmp_path):
    (tmp_path / "weights.bin").write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match="weights"):
        SpecSession.load(tmp_path / "weights.bin")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        SpecSession.load(tmp_path / "nowhere.json")


# ---- in calls --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def pair():
    target = tiny(num_hidden_layers=8, eos_token_id=None)
    return target, noisy(tiny(num_hidden_layers=1, eos_token_id=None))


def call(pair, session, **kwargs):
    settings = {"num_assistant_tokens": None, "max_new_tokens": 16, "spec_session": session} | kwargs
    return spec(*pair, **prompts([7, 4]), **settings)


def test_calls_teach_their_session(pair):
    session = SpecSession()
    call(pair, session)
    first = json.dumps(session.knowledge.to_dict())
    call(pair, session)
    assert session.knowledge.costs["target"] and json.dumps(session.knowledge.to_dict()) != first


def test_a_call_that_raises_teaches_nothing(pair):
    session = SpecSession()

    def fails(ids, scores, **_):
        if ids.shape[1] > 12:
            raise KeyError("on purpose")
        return ids[:, 0] < 0

    with pytest.raises(KeyError):
        call(pair, session, stopping_criteria=[fails])
    assert session.knowledge.to_dict() == Knowledge().to_dict()


def test_what_was_learned_stays_when_the_caches_go(pair):
    session = SpecSession()
    call(pair, session)
    learned_, twin = session.knowledge.to_dict(), pickle.loads(pickle.dumps(session))
    session.reset()
    assert session.knowledge.to_dict() == learned_ == twin.knowledge.to_dict()


def test_a_branch_learns_for_itself(pair):
    session = SpecSession()
    call(pair, session)
    branch, before = copy.deepcopy(session), session.knowledge.to_dict()
    call(pair, branch)
    assert session.knowledge.to_dict() == before != branch.knowledge.to_dict()


def test_a_loaded_session_decodes_as_any_other(pair, session, tmp_path):
    session.save(tmp_path / "learned.json")
    out = call(pair, SpecSession.load(tmp_path / "learned.json"))
    assert out.sequences.tolist() == plain(pair[0], **prompts([7, 4]), max_new_tokens=16, do_sample=False).tolist()
