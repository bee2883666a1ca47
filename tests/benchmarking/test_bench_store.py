"""The folder of a bench: what is kept, what is read again, what is refused."""

import json

import pytest

from hf_specgen.benchmarking.record import Cell, Record
from hf_specgen.benchmarking.store import Store, read_records

MANIFEST = {
    "versions": {"torch": "2.13.0"},
    "target": {"name": "large", "config": "abc", "dtype": "auto"},
    "draft": None,
    "prompts": {"code": "1"},
    "settings": {"max_new_tokens": 64},
    "arguments": {"repeats": 1},
}


def record(repeat=0, contender="plain", **figures) -> Record:
    return Record(Cell(contender, "code", 0), repeat, 3, 4, **{"seconds": 0.5} | figures)


def filled(folder, *records, manifest=MANIFEST) -> Store:
    store = Store(folder, manifest)
    store.open()
    for one in records:
        store.add(one)
    store.close()
    return store


def test_records_are_on_disk_as_they_come(tmp_path):
    store = Store(tmp_path / "new" / "bench", MANIFEST)
    assert not (tmp_path / "new").exists()
    store.open()
    store.add(record())
    assert read_records(tmp_path / "new" / "bench") == [record()]
    assert json.loads((tmp_path / "new" / "bench" / "manifest.json").read_text()) == MANIFEST


def test_a_second_run_goes_on(tmp_path):
    filled(tmp_path, record(), record(by_position=[0.5, None], sources={"draft": [2, 1]}, repeat=1))
    store = filled(tmp_path, record(2))
    assert [one.repeat for one in store.records] == [0, 1, 2] == [one.repeat for one in read_records(tmp_path)]
    assert (record().cell, 1) in store.known()


def test_failed_calls_are_made_again(tmp_path):
    filled(tmp_path, record(), record(1, error="OSError: no room", seconds=None))
    store = filled(tmp_path)
    assert [one.repeat for one in store.records] == [0] == [one.repeat for one in read_records(tmp_path)]


def test_a_line_cut_off_by_a_kill_does_not_count(tmp_path):
    filled(tmp_path, record(), record(1))
    path = tmp_path / "records.jsonl"
    path.write_text(path.read_text()[:-20])
    assert [one.repeat for one in filled(tmp_path, record(2)).records] == [0, 2]
    assert [one.repeat for one in read_records(tmp_path)] == [0, 2]


def test_more_of_the_same_bench_may_be_asked_for(tmp_path):
    filled(tmp_path, record())
    more = MANIFEST | {"prompts": {"qa": "2"}, "versions": {"peer": "1.0"}, "arguments": {"repeats": 5}}
    manifest = filled(tmp_path, manifest=more).manifest
    assert manifest["prompts"] == {"code": "1", "qa": "2"} and manifest["arguments"] == {"repeats": 5}
    assert manifest["versions"] == {"torch": "2.13.0", "peer": "1.0"} and manifest["settings"] == MANIFEST["settings"]


@pytest.mark.parametrize(
    "other, said",
    [
        ({"versions": {"torch": "2.14.0"}}, 'versions.torch was "2.13.0", and is "2.14.0"'),
        ({"target": MANIFEST["target"] | {"config": "abd"}}, 'target.config was "abc", and is "abd"'),
        ({"draft": {"name": "small", "config": "a", "dtype": "auto"}}, "draft was null, and is small"),
        ({"prompts": {"code": "2"}}, 'prompts.code was "1", and is "2"'),
        ({"settings": {"max_new_tokens": 65}}, "settings.max_new_tokens was 64, and is 65"),
    ],
)
def test_another_bench_is_refused(tmp_path, other, said):
    filled(tmp_path, record())
    with pytest.raises(ValueError) as error:
        Store(tmp_path, MANIFEST | other)
    assert said in str(error.value) and "Pass a new folder" in str(error.value)
    assert read_records(tmp_path) == [record()]


@pytest.mark.parametrize(
    "place, value",
    [
        ("seconds", "fast"),
        ("seconds", -1.0),
        ("seconds", float("nan")),
        ("seconds", True),
        ("new_tokens", None),
        ("new_tokens", 10**400),
        ("repeat", 1.5),
        ("same_ids", 1),
        ("by_position", 0.5),
        ("by_position", [0.5, "x"]),
        ("sources", {"draft": 3}),
        ("error", ["killed"]),
        ("gap", float("inf")),
        ("cell.task", ["code"]),
        ("cell.temperature", "hot"),
        ("cell.k", 2.0),
        ("cell.contender", None),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_line(tmp_path, place, value):
    """Never a traceback, and never a figure that is silently wrong."""
    data = record(1).to_dict()
    *cell, name = place.split(".")
    (data["cell"] if cell else data)[name] = value
    path = tmp_path / "copied.txt"
    path.write_text("".join(json.dumps(one) + "\n" for one in (record().to_dict(), data)))
    with pytest.raises(ValueError) as error:
        read_records(path)
    assert str(error.value).startswith(f"{path}, line 2: This is not a record of this version's bench: ")
    assert f"{name!r} is {value!r:.60}." in str(error.value)


def test_what_is_missing_or_unknown_is_named():
    data = record().to_dict()
    without = {name: value for name, value in data.items() if name != "repeat"}
    empty = data | {"cell": {}}
    for wrong, said in (
        (without, "'repeat' is missing"),
        (empty, "'contender' is missing"),
        (data | {"speed": 3}, "'speed' is none of its fields"),
        ([data], r"bench: \[\{'cell'"),
    ):
        with pytest.raises(ValueError, match=said):
            Record.from_dict(wrong)


def test_whole_numbers_and_gaps_below_zero_are_values():
    whole = record(gap=-0.5, seconds=2)
    assert Record.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole


def test_foreign_folders_and_lines(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"not empty, and not a bench's"):
        Store(tmp_path, MANIFEST)
    with pytest.raises(ValueError, match=r"not empty, and not a bench's"):
        Store(tmp_path / "notes.txt", MANIFEST)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(ValueError, match=r"manifest.json is not a bench's"):
        Store(tmp_path, MANIFEST)
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "records.jsonl").write_text('{"cell": {}}\n')
    with pytest.raises(ValueError, match=r"records.jsonl, line 1: This is not a record"):
        Store(tmp_path, MANIFEST)
