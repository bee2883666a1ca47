"""`spec_config=`: what a call takes from it, what comes before it, and whose it is."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from toys import noisy, plain, prompts, tiny
from transformers import AutoModelForCausalLM, GenerationConfig

import hf_specgen
from hf_specgen import SpecConfig, SpecUnsupportedError
from hf_specgen.config import ARGUMENTS, rows_of, take_settings, temperature_of
from hf_specgen.lengths import GoodputLength, Knowledge
from hf_specgen.lengths.acceptance import Acceptance, Count
from hf_specgen.tuning.fingerprint import fingerprint
from hf_specgen.tuning.tuned import Entry, Tuned

NEW = 16
K3 = SpecConfig("rejection", spec_source="draft", num_assistant_tokens=3, num_assistant_tokens_schedule="constant")
OFF = SpecConfig("rejection", spec_source="none", off_reason="nothing pays: 0.9× plain")


@pytest.fixture(scope="module")
def draft():
    return noisy(tiny())


@pytest.fixture
def target():
    model = hf_specgen.enable(tiny())
    yield model
    hf_specgen.disable(model)


@pytest.fixture(scope="module")
def batch():
    return prompts([7, 4])


def saved(folder, target, draft, **settings_by_temperature) -> str:
    """A tuned file for this pair: {"T0": SpecConfig, …}."""
    entries = tuple(Entry(float(name[1:]), config) for name, config in settings_by_temperature.items())
    tuned = Tuned(fingerprint(target), fingerprint(draft), entries)
    return str(replace(entries[0].settings, tuned=tuned).save_pretrained(folder).parent)


def call(model, batch, **options):
    """A greedy call: its ids, and its statistics."""
    options = {**batch, "max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True} | options
    with hf_specgen.collect_stats() as stats:
        out = model.generate(**options)
    return out.sequences.tolist(), stats


def widest(stats) -> int:
    return max((drafted for row in stats.rows for drafted, _ in row.trace), default=0)


def greedy(model, batch):
    return plain(model, **batch, max_new_tokens=NEW, do_sample=False).tolist()


# ---- what a call takes from it ------------------------------------------------------------------------
def test_a_call_needs_nothing_else(target, draft, batch, tmp_path):
    wanted = greedy(target, batch)
    folder = saved(tmp_path, target, draft, T0=K3)
    for given in (folder, tmp_path, tmp_path / "spec_config.json", SpecConfig.from_pretrained(folder), K3):
        ids, stats = call(target, batch, assistant_model=draft, spec_config=given)
        assert ids == wanted and widest(stats) == 3 and stats.accepted > 0
    ids, stats = call(target, batch, spec_config=None)
    assert ids == wanted and not stats.calls
    ids, stats = call(target, batch, spec_config=folder, spec_strategy=None)
    assert ids == wanted and not stats.calls


def test_the_temperature_of_the_call_chooses(target, draft, batch, tmp_path):
    folder = saved(tmp_path, target, draft, T0=K3, T1=replace(K3, spec_strategy="block", num_assistant_tokens=2))
    options = {"assistant_model": draft, "spec_config": folder}

    def found(**sampling):
        stats = call(target, batch, **options, **sampling)[1]
        return stats.strategy, widest(stats)

    assert found() == found(do_sample=True, temperature=0.4) == ("rejection", 3)
    assert found(do_sample=True) == found(do_sample=True, temperature=0.6) == ("block", 2)
    target.generation_config.do_sample, target.generation_config.temperature = True, 1.2
    assert found(do_sample=None) == ("block", 2)
    given = GenerationConfig(do_sample=True, temperature=0.2)
    assert found(do_sample=None, generation_config=given) == ("rejection", 3)


def test_the_rows_of_a_greedy_call_choose(target, draft, batch, tmp_path):
    """Those of a sampled one do not: a row's ids would depend on its neighbours."""
    entries = (Entry(0.0, K3), Entry(0.0, replace(K3, num_assistant_tokens=2), batch=4))
    tuned = Tuned(fingerprint(target), fingerprint(draft), entries, batch_sizes=(1, 4))
    folder = replace(K3, tuned=tuned).save_pretrained(tmp_path).parent
    for rows in ({}, {"do_sample": True, "num_return_sequences": 2}):
        assert widest(call(target, batch, assistant_model=draft, spec_config=folder, **rows)[1]) == 3
    ids, stats = call(target, prompts([7, 4, 6]), assistant_model=draft, spec_config=folder)
    assert ids == greedy(target, prompts([7, 4, 6])) and widest(stats) == 2


def test_how_many_rows_there_are():
    ids = torch.zeros(3, 5, dtype=torch.long)
    assert [rows_of({name: ids}) for name in ("inputs", "input_ids", "inputs_embeds")] == [3] * 3
    assert rows_of({}) == rows_of({"input_ids": None}) == 1


def test_what_the_temperature_is():
    own, given = GenerationConfig(do_sample=True, temperature=0.7), GenerationConfig(do_sample=False)
    assert temperature_of({}, None, own) == 0.7 and temperature_of({}, given, own) == 0.0
    assert temperature_of({"temperature": 0.3}, None, own) == 0.3 and temperature_of({"temperature": 0.3}) == 0.0
    assert temperature_of({"do_sample": True}) == 1.0
    assert temperature_of({"do_sample": True, "temperature": (0.0, 0.2)}) == 1.0  # Whisper's list of fallbacks


def test_its_vocabulary_is_used(target, draft, batch, tmp_path):
    ids = [*range(30), 63]
    folder = saved(tmp_path, target, draft, T0=replace(K3, draft_vocab_size=ids))
    whole = call(target, batch, assistant_model=draft, spec_config=K3)
    trimmed = call(target, batch, assistant_model=draft, spec_config=folder)
    assert trimmed[0] == whole[0] and trimmed[1].accepted < whole[1].accepted


def test_in_pipelines_and_whatever_knows_only_the_model(target, draft, batch, tmp_path):
    folder = saved(tmp_path, target, draft, T0=K3)
    hf_specgen.enable(target, assistant_model=draft, spec_config=folder)
    (tmp_path / "spec_config.json").unlink()  # read once
    wanted = greedy(target, batch)
    ids, stats = call(target, batch)
    assert ids == wanted and widest(stats) == 3
    assert call(target, batch, spec_strategy=None)[1].calls == 0
    for again in (copy.deepcopy(target), pickle.loads(pickle.dumps(target))):
        ids, stats = call(again, batch)
        assert ids == wanted and widest(stats) == 3


# ---- what comes before it -----------------------------------------------------------------------------
def test_precedence(target, draft, batch):
    """call > its spec_config > a given GenerationConfig > enable's arguments > enable's spec_config > the model's."""

    def k(number):
        return {"num_assistant_tokens": number, "num_assistant_tokens_schedule": "constant"}

    target.generation_config.update(**k(6))
    assert widest(call(target, batch, assistant_model=draft, spec_strategy="rejection")[1]) == 6
    hf_specgen.enable(target, assistant_model=draft, spec_config=replace(K3, num_assistant_tokens=5))
    assert widest(call(target, batch)[1]) == 5
    enabled = {"assistant_model": draft, "spec_config": replace(K3, num_assistant_tokens=5)}
    hf_specgen.enable(target, **enabled, **k(4))
    assert widest(call(target, batch)[1]) == 4
    given = {"generation_config": GenerationConfig(**k(2), pad_token_id=0, eos_token_id=63)}
    assert widest(call(target, batch, **given)[1]) == 2
    assert widest(call(target, batch, **given, spec_config=K3)[1]) == 3
    assert widest(call(target, batch, **given, spec_config=K3, num_assistant_tokens=1)[1]) == 1


def test_a_calls_own_comes_before_all_that_enable_has(target, draft, batch):
    hf_specgen.enable(target, assistant_model=draft, spec_strategy="coupled", spec_config=OFF)
    stats = call(target, batch, spec_config=K3)[1]
    assert stats.strategy == "rejection" and widest(stats) == 3 and stats.off_reason is None
    assert call(target, batch, spec_config=K3, spec_strategy="block")[1].strategy == "block"
    assert call(target, batch)[1].strategy == "coupled"


def test_generation_configs_are_not_asked_for_what_is_ours():
    given = GenerationConfig(num_assistant_tokens=2)
    given.spec_source, given.spec_strategy = "lookup", "block"
    settings = take_settings({}, given, K3)
    assert (settings.spec_source, settings.spec_strategy, settings.num_assistant_tokens) == ("draft", "rejection", 2)


def test_knowledge_is_taken_and_only_from_there():
    known = replace(K3, knowledge=Knowledge())
    assert take_settings({}, None, known).knowledge is known.knowledge and "knowledge" not in ARGUMENTS


# ---- knowledge and seeds ------------------------------------------------------------------------------
def knowing(draft_step: float, acceptance: float) -> SpecConfig:
    """Of a target whose step takes a second."""
    learned = Acceptance()
    learned.classes["draft", 0] = Count(48 * acceptance, 48)
    costs = {"target": [[1, width, 1.0] for width in range(1, 10)], "draft": [[1, draft_step]]}
    return SpecConfig("rejection", spec_source="draft", knowledge=Knowledge(costs, learned))


def test_costs_and_acceptance_are_known_before_the_first_round(target, draft, batch):
    """A draft as large as its target is left alone, unless the file knows that it is cheap."""
    sampled = {"do_sample": True, "assistant_model": draft}
    rests = call(target, batch, **sampled, spec_config=knowing(0.9, 0.5))[1]
    drafts = call(target, batch, **sampled, spec_config=knowing(0.01, 0.9))[1]
    assert rests.drafted == 0 and "no acceptance makes it pay" in rests.off_reason
    assert drafts.drafted > 0 and drafts.off_reason is None


def test_equal_seeds_give_equal_ids(target, draft, batch, tmp_path):
    folder = saved(tmp_path, target, draft, T1=knowing(0.01, 0.9))
    options = {"do_sample": True, "assistant_model": draft, "spec_config": folder}

    def decoded(rows, *seeds):
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return call(target, rows, **options, generator=generators)[0]

    first = decoded(batch, 1, 2)
    assert decoded(batch, 1, 2) == first != decoded(batch, 3, 4)
    alone = {name: x[:1] for name, x in batch.items()}
    assert decoded(alone, 1)[0] == first[0][: len(decoded(alone, 1)[0])]


def test_a_session_that_has_learned_knows_better(target, draft, batch, monkeypatch):
    known = []
    monkeypatch.setattr(GoodputLength, "start", _noting(known, GoodputLength.start))
    session, config = hf_specgen.SpecSession(), knowing(0.01, 0.9)
    for _ in range(2):
        call(target, batch, assistant_model=draft, spec_config=config, spec_session=session)
    assert known == [config.knowledge, session.knowledge]


def _noting(known, start):
    def noting(self, terms):
        known.append(terms.knowledge)
        start(self, terms)

    return noting


# ---- off ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("with_draft", [True, False])
def test_where_nothing_pays_a_call_is_plain_and_says_why(target, draft, batch, tmp_path, with_draft):
    folder = saved(tmp_path, target, draft, T0=OFF, T1=OFF)
    options = {"spec_config": folder} | ({"assistant_model": draft} if with_draft else {})
    ids, stats = call(target, batch, **options)
    assert ids == greedy(target, batch) and stats.off_reason == OFF.off_reason and not stats.draft_forwards
    torch.manual_seed(4)
    wanted = plain(target, **batch, max_new_tokens=NEW, do_sample=True).tolist()
    torch.manual_seed(4)
    assert call(target, batch, **options, do_sample=True)[0] == wanted  # plain decoding itself
    assert "nothing pays" in str(stats) and stats.advice()[0].rule == "off"


def test_without_drafts_generators_and_sessions_mean_what_they_do_with_them(target, draft, batch):
    def decoded(**options):
        generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
        return call(target, batch, spec_config=OFF, do_sample=True, generator=generators, **options)

    ids, stats = decoded(assistant_model=draft)
    assert decoded()[0] == ids and stats.off_reason == OFF.off_reason and widest(stats) == 0
    assert stats.emitted == stats.rounds
    wanted = call(target, batch, spec_config=OFF, spec_strategy="coupled", generator=torch.Generator().manual_seed(1))[
        0
    ]
    assert wanted == greedy(target, batch)


def test_none_is_a_source_like_the_others(target, draft, batch):
    ids, stats = call(target, batch, assistant_model=draft, spec_strategy="rejection", spec_source="none")
    assert ids == greedy(target, batch) and stats.off_reason == 'spec_source="none" was asked for'
    ids, stats = call(
        target, batch, assistant_model=draft, spec_config=OFF, spec_source="draft", num_assistant_tokens=2
    )
    assert widest(stats) == 2 and stats.off_reason is None


def test_a_streamer_sees_a_call_without_drafts(target, batch):
    class Shown:
        def __init__(self):
            self.values, self.ended = [], 0

        def put(self, value):
            self.values += value.flatten().tolist()

        def end(self):
            self.ended += 1

    shown, one = Shown(), prompts([7])
    ids, _ = call(target, one, spec_config=OFF, streamer=shown)
    assert shown.values == ids[0] and shown.ended == 1


# ---- whose it is --------------------------------------------------------------------------------------
def test_another_pair_is_told_before_the_first_token(target, draft, batch, tmp_path):
    folder = saved(tmp_path, target, draft, T0=K3)
    other = tiny(num_hidden_layers=1)
    for fallback in ({}, {"spec_fallback": "plain"}):
        with pytest.raises(SpecUnsupportedError, match=r"another draft.*layers 3 there and 1 here.*hf-specgen tune"):
            call(target, batch, assistant_model=other, spec_config=folder, **fallback)
    with pytest.raises(SpecUnsupportedError, match="another draft"):
        hf_specgen.enable(target, assistant_model=other, spec_config=folder)
    hf_specgen.enable(other)
    with pytest.raises(SpecUnsupportedError, match="another target"):
        call(other, batch, assistant_model=draft, spec_config=folder)


def test_a_pair_from_its_folders_is_the_pair_in_memory(target, draft, batch, tmp_path):
    folder = saved(tmp_path, target, draft, T0=K3)
    for name, model in (("target", hf_specgen.disable(target)), ("draft", draft)):
        model.save_pretrained(tmp_path / name)
    loaded = [AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("target", "draft")]
    hf_specgen.enable(loaded[0])
    ids, stats = call(loaded[0], batch, assistant_model=loaded[1], spec_config=folder)
    assert ids == greedy(target, batch) and stats.accepted > 0


@pytest.mark.parametrize("given", [3, {"spec_strategy": "rejection"}, GenerationConfig(), SpecConfig], ids=str)
def test_what_is_no_configuration(target, draft, batch, given):
    with pytest.raises(SpecUnsupportedError, match="pass a SpecConfig, or the folder that holds one"):
        call(target, batch, assistant_model=draft, spec_config=given)
    with pytest.raises(SpecUnsupportedError, match="spec_config="):
        hf_specgen.enable(target, assistant_model=draft, spec_config=given)


def test_wrong_files_and_missing_drafts(target, draft, batch, tmp_path):
    with pytest.raises(FileNotFoundError, match="Make one: hf-specgen tune"):
        call(target, batch, assistant_model=draft, spec_config=tmp_path)
    (tmp_path / "spec_config.json").write_text("{")
    with pytest.raises(SpecUnsupportedError, match=str(tmp_path)):
        call(target, batch, assistant_model=draft, spec_config=tmp_path, spec_fallback="plain")
    with pytest.raises(SpecUnsupportedError, match="needs a draft"):
        call(target, batch, spec_config=K3)
    with pytest.raises(TypeError, match=r"without a model or a spec_strategy"):
        hf_specgen.enable(target, assistant_model=draft)
