"""spec_config.json: what goes in comes out, and whatever else is in it is told."""

import json
from dataclasses import replace

import pytest
import torch

import hf_specgen
from hf_specgen import SpecConfig, SpecUnsupportedError
from hf_specgen.lengths import ConstantLength, Knowledge
from hf_specgen.lengths.acceptance import Acceptance
from hf_specgen.tuning.file import NAME, from_dict, to_dict
from hf_specgen.tuning.tuned import Entry, Tuned

LEARNED = Acceptance()
LEARNED.learn("draft", 0, 3, 2, [0.9, 0.5, 0.4])
KNOWLEDGE = Knowledge({"target": [[1, 1, 0.2], [1, 3, 0.25]], "draft": [[1, 0.02]]}, LEARNED)
GREEDY = SpecConfig("rejection", spec_source="hybrid", num_assistant_tokens_schedule="goodput", knowledge=KNOWLEDGE)
WARM = SpecConfig("block", spec_source="draft", num_assistant_tokens=3, draft_vocab_size=[0, 1, 2, 3, 9])
OFF = SpecConfig("rejection", spec_source="none", off_reason="nothing pays")
TUNED = replace(
    GREEDY,
    tuned=Tuned(
        target={"name": "big", "layers": 3},
        draft={"name": "small", "layers": 1},
        entries=(
            Entry(0.0, GREEDY, None, None, 1.5, "the default"),
            Entry(0.0, WARM, "code", None, 1.7, "better"),
            Entry(0.0, OFF, None, 8, 1.0, "nothing pays here"),
            Entry(1.0, OFF, None, None, 1.0, "nothing pays"),
        ),
        tasks=("code", "qa"),
        batch_sizes=(1, 8),
        measured={"threads": 1},
    ),
)


@pytest.mark.parametrize("config", [GREEDY, WARM, OFF, TUNED], ids=["knowledge", "ids", "off", "tuned"])
def test_what_is_saved_is_loaded(tmp_path, config):
    path = config.save_pretrained(tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / NAME and [*path.parent.iterdir()] == [path]
    for place in (path, path.parent, str(path.parent)):
        again = SpecConfig.from_pretrained(place)
        assert to_dict(again) == to_dict(config)
    assert again.draft_vocab_size == config.draft_vocab_size and again.off_reason == config.off_reason


@pytest.mark.parametrize(
    "schedule, length",
    [
        ("target-rate", {"initial": 5, "rate": 0.7}),
        ({"name": "target-rate", "rate": 0.8, "maximum": 9}, {"initial": 5, "rate": 0.8, "maximum": 9}),
        ({"name": "goodput", "longest": 4}, {"longest": 4}),
    ],
)
def test_schedules_with_and_without_arguments(tmp_path, schedule, length):
    SpecConfig("rejection", num_assistant_tokens_schedule=schedule).save_pretrained(tmp_path)
    found = vars(SpecConfig.from_pretrained(tmp_path).length)
    assert {name: found[name] for name in length} == length


def test_the_nearest_temperature_that_was_tuned():
    assert [TUNED.at(t).spec_source for t in (0.0, 0.3, 0.5, 0.51, 1.0, 1.7)] == ["hybrid"] * 3 + ["none"] * 3
    assert TUNED.at(0.0).knowledge.costs == KNOWLEDGE.costs and TUNED.at(1.0).off_reason == "nothing pays"
    assert WARM.at(0.7) is WARM


def test_the_nearest_number_of_rows_that_was_tuned():
    """But sampled rows must not depend on their neighbours, whatever the nearest temperature."""
    assert [TUNED.at(0.0, rows).spec_source for rows in (1, 2, 4, 5, 8, 64)] == ["hybrid"] * 3 + ["none"] * 3
    assert {TUNED.at(0.3, rows).spec_source for rows in (1, 8)} == {"hybrid"}
    assert WARM.at(0.0, 8) is WARM


def test_tasks(tmp_path):
    TUNED.save_pretrained(tmp_path)
    code, qa = (SpecConfig.from_pretrained(tmp_path, task=task) for task in ("code", "qa"))
    assert code.at(0.0).spec_strategy == "block" and code.at(1.0).spec_source == "none"
    assert qa.at(0.0).spec_source == "hybrid" and code.spec_strategy == "block"
    assert {each.at(0.0, 8).spec_source for each in (code, qa)} == {"none"}, "what was found for a batch holds for all"
    with pytest.raises(SpecUnsupportedError, match=r"task='math': It knows code, qa\. Leave task= out"):
        SpecConfig.from_pretrained(tmp_path, task="math")
    WARM.save_pretrained(tmp_path)
    with pytest.raises(SpecUnsupportedError, match="task='code': it was not tuned"):
        SpecConfig.from_pretrained(tmp_path, task="code")


def test_an_older_file_is_replaced_whole(tmp_path, monkeypatch):
    before = TUNED.save_pretrained(tmp_path).read_text()
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        WARM.save_pretrained(tmp_path)
    assert (tmp_path / NAME).read_text() == before
    monkeypatch.undo()
    WARM.save_pretrained(tmp_path)
    assert SpecConfig.from_pretrained(tmp_path).spec_strategy == "block" and len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"generator": torch.Generator()}, "generator= belongs to a call"),
        ({"spec_session": hf_specgen.SpecSession()}, "spec_session= belongs to a call"),
        ({"num_assistant_tokens_schedule": ConstantLength(3)}, "A ConstantLength cannot be saved"),
    ],
)
def test_what_belongs_to_a_call_is_not_saved(tmp_path, settings, told):
    with pytest.raises(SpecUnsupportedError, match=told):
        SpecConfig("rejection", **settings).save_pretrained(tmp_path)
    assert not [*tmp_path.iterdir()]


# ---- broken files -------------------------------------------------------------------------------------
def entry(**changes):
    return {"format": 1, "settings": [{"spec_strategy": "rejection", **changes}]}


def tuned(**changes):
    return to_dict(TUNED) | changes


WRONG = {
    "empty": ({}, "this is no spec_config. Make one: hf-specgen tune TARGET DRAFT"),
    "a list": ([1], "this is no spec_config"),
    "another format": ({"format": 2, "settings": []}, "it is of format 2, and this version of hf-specgen reads 1"),
    "unknown part": (entry() | {"speed": 3}, "it holds 'speed', which is none of format, settings, target"),
    "no settings": ({"format": 1}, "its 'settings' is None"),
    "empty settings": ({"format": 1, "settings": []}, r"its 'settings' are \[\]"),
    "unknown setting": (entry(spec_sauce=1), r"settings\[0\] holds 'spec_sauce', which is none of"),
    "a generator": (entry(generator=1), r"settings\[0\] holds 'generator'"),
    "no strategy": ({"format": 1, "settings": [{}]}, r"settings\[0\] names no spec_strategy"),
    "unknown strategy": (entry(spec_strategy="luck"), r"settings\[0\]: spec_strategy='luck': choose one of"),
    "unknown source": (entry(spec_source="tree"), r"settings\[0\]: spec_source='tree': choose one of hybrid"),
    "K of nothing": (entry(num_assistant_tokens=0), "num_assistant_tokens=0"),
    "a schedule without a name": (entry(num_assistant_tokens_schedule={"rate": 0.8}), 'give it a "name"'),
    "an argument that it has not": (
        entry(num_assistant_tokens_schedule={"name": "target-rate", "speed": 1}),
        "target-rate takes no 'speed'. It takes initial, minimum",
    ),
    "an argument of another kind": (
        entry(num_assistant_tokens_schedule={"name": "target-rate", "rate": "high"}),
        "'rate' is 'high'. Pass a number",
    ),
    "a rate that cannot be": (entry(num_assistant_tokens_schedule={"name": "target-rate", "rate": 2}), "rate=2 must"),
    "half of a vocabulary": (entry(draft_vocab_size={"first": 3}), r"draft_vocab_size is \{'first': 3\}, not a number"),
    "broken knowledge": (entry(knowledge={"costs": None}), r"settings\[0\]: its knowledge is broken"),
    "broken costs": (
        entry(knowledge={"costs": {"target": [[1, 2]], "draft": []}, "acceptance": Acceptance().to_dict()}),
        "its knowledge is broken",
    ),
    "several untuned": ({"format": 1, "settings": entry()["settings"] * 2}, "its 'target' is None"),
    "no target": (tuned(target=None), "its 'target' is None"),
    "a draft that is none": (tuned(draft="small"), "its 'draft' is 'small'"),
    "no temperature": (tuned(settings=entry()["settings"]), r"settings\[0\] is for temperature=None, task=None"),
    "unknown task": (tuned(tasks=[]), r"settings\[1\] is for temperature=0\.0, task='code', batch=None"),
    "unknown batch": (tuned(batch_sizes=[1, 4]), r"settings\[2\] is for temperature=0\.0, task=None, batch=8"),
    "no batch sizes": (tuned(batch_sizes=[]), r"its 'batch_sizes' is \[\]"),
    "a batch of none": (tuned(batch_sizes=[0, 8]), r"its 'batch_sizes' is \[0, 8\]"),
    "tasks alone": (tuned(settings=to_dict(TUNED)["settings"][1:2]), "it holds settings of tasks or batch sizes alone"),
}


@pytest.mark.parametrize("content, told", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_told_by_its_name(tmp_path, content, told):
    (tmp_path / NAME).write_text(json.dumps(content))
    with pytest.raises(SpecUnsupportedError, match=told) as error:
        SpecConfig.from_pretrained(tmp_path)
    assert str(error.value).startswith(str(tmp_path / NAME)) and len(str(error.value)) < 600


@pytest.mark.parametrize(
    "content", [b"", b'{"format": 1, "settings": [', b"\xff\xfe"], ids=["empty", "cut off", "bytes"]
)
def test_what_is_not_json(tmp_path, content):
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(SpecUnsupportedError, match=NAME):
        SpecConfig.from_pretrained(tmp_path)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"there is no {tmp_path}/gone\. Make one: hf-specgen tune TARGET"):
        SpecConfig.from_pretrained(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=NAME):
        SpecConfig.from_pretrained(tmp_path)


def test_the_file_is_readable(tmp_path):
    """A line per setting; the ids of a vocabulary by their first gap."""
    lines = TUNED.save_pretrained(tmp_path).read_text().splitlines()
    assert '  "spec_strategy": "block",' in lines and '  "draft_vocab_size": {"first": 4, "others": [9]}' in lines
    assert from_dict(json.loads("\n".join(lines))).tuned.entries[1].settings.draft_vocab_size == [0, 1, 2, 3, 9]
