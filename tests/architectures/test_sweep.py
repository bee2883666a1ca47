"""`verdicts.json` is complete and good enough, and a rotating part of it is found again."""

import datetime
import json
import os

import pytest
import transformers

from .build import architectures
from .sweep import VERDICTS, chosen, judge_safely

RECORD = json.loads(VERDICTS.read_text())
ENTRIES = RECORD["architectures"]
SAME_VERSION = RECORD["transformers"] == transformers.__version__
BATCHED = ("ragged", "groups")
PARTS = 10
WANTED_SHARE = 0.9


def test_every_registered_architecture_has_an_entry():
    if not SAME_VERSION:
        pytest.skip(f"verdicts.json is of transformers {RECORD['transformers']}")
    assert sorted(ENTRIES) == architectures()


def test_none_is_wrong():
    assert not {name: entry["reason"] for name, entry in ENTRIES.items() if entry["verdict"] == "WRONG"}


def test_most_are_decoded_in_ragged_batches():
    possible = [e for e in ENTRIES.values() if e["verdict"] not in ("not built", "plain fails")]
    batched = [e for e in possible if e["verdict"] in BATCHED]
    assert len(batched) >= WANTED_SHARE * len(possible), f"{len(batched)} of {len(possible)}"


def test_drafts_are_accepted():
    """A noisy copy often, an exact one always: where it is not, a cache has drifted."""
    decoded = {name: e for name, e in ENTRIES.items() if "accepted" in e}
    assert not [name for name, e in decoded.items() if e["accepted"] == 0]
    assert not [name for name, e in decoded.items() if e["copy_accepted"] < 1]


PART = os.environ.get("HF_SPECGEN_SWEEP_SLICE") or f"{datetime.date.today().timetuple().tm_yday % PARTS}/{PARTS}"
CHOSEN = [name for name in chosen(None, PART) if name in ENTRIES]


@pytest.mark.parametrize("name", CHOSEN)
def test_verdict_is_found_again(name):
    """A tenth of them, another one each day (`HF_SPECGEN_SWEEP_SLICE="I/N"` chooses). Other versions of transformers
    may support other things, but nothing may be wrong on them."""
    if ENTRIES[name]["verdict"] == "not built":
        pytest.skip("whether it can be built depends on what else is installed")
    entry = judge_safely(name)
    if SAME_VERSION:
        assert entry["verdict"] == ENTRIES[name]["verdict"], entry
    else:
        assert entry["verdict"] != "WRONG", entry
