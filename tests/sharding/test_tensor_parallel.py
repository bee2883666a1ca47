"""Two processes hold the models together: both decode what one process with the first one's seed would."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rank_cases import BATCH, CASES, NEW, SEED, EndsAt, conversation, decode
from toys import noisy, plain, tiny
from transformers import StoppingCriteriaList

from hf_specgen.decoding.ranks import Ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
KINDS = ["tp", "pp"]


@pytest.fixture(scope="module")
def target():
    return tiny()


@pytest.fixture(scope="module")
def draft(target):
    return noisy(target)


@pytest.fixture(scope="module")
def wanted(target):
    """One process's plain greedy ids (under pp, stock decoding reads padding on the later stages)."""
    return plain(target, **BATCH, max_new_tokens=NEW, do_sample=False).tolist()


@pytest.fixture(scope="module")
def found(target, draft, tmp_path_factory):
    """What the two ranks found; one launch for all tests."""
    folder = tmp_path_factory.mktemp("ranks")
    target.save_pretrained(folder / "target")
    draft.save_pretrained(folder / "draft")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = Path(__file__).with_name("rank_cases.py")
    run = subprocess.run(
        [*launch, script, folder],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert all((folder / f"rank{rank}.json").exists() for rank in (0, 1)), run.stderr
    of_ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert run.returncode == 0, [of_rank.get("error") for of_rank in of_ranks]
    return of_ranks


def both(found, case: str):
    """What the ranks found; the same."""
    first, second = (of_rank[case] for of_rank in found)
    assert first == second, case
    return first


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("where", ["whole", "sharded"])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_decode_as_one_process_does(found, target, draft, kind, where, case):
    torch.manual_seed(SEED)
    alone = decode(target, draft, case)
    got = both(found, f"{kind} {where} {case}")
    assert got["ids"] == alone.sequences.tolist()
    assert got["stats"] == [[list(map(list, row.trace)), row.emitted] for row in alone.spec_stats.rows]
    assert 0 < alone.spec_stats.accepted < alone.spec_stats.drafted


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_plain(found, wanted, kind):
    assert both(found, f"{kind} whole greedy")["ids"] == wanted


def test_a_sharded_draft_of_a_whole_target(found, wanted):
    assert both(found, "sharded draft alone") == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_that_ranks_do_not_share(found, wanted, kind):
    assert both(found, f"{kind} other drafts") == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_with_another_vocabulary(found, wanted, kind):
    assert both(found, f"{kind} other vocabulary") == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_logits_that_ranks_do_not_share(found, target, draft, kind):
    torch.manual_seed(SEED)
    assert both(found, f"{kind} other logits") == decode(target, draft, "rejection").sequences.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_ranks_generators_count(found, target, draft, kind):
    torch.manual_seed(SEED)
    generators = [torch.Generator().manual_seed(0), None, torch.Generator().manual_seed(5)]
    alone = decode(target, draft, "rejection", generator=generators)
    assert both(found, f"{kind} generators") == alone.sequences.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_rank_says_when_rows_end(found, wanted, target, draft, kind):
    columns = BATCH["input_ids"].shape[1]
    assert both(found, f"{kind} out of time on rank 1") == wanted
    assert all(len(ids) == columns + 1 for ids in both(found, f"{kind} out of time on rank 0"))
    criterion = StoppingCriteriaList([EndsAt(14)])
    ended = decode(target, draft, "greedy", stopping_criteria=criterion).sequences.tolist()
    assert both(found, f"{kind} stops") == ended and len(ended[0]) == 14


@pytest.mark.parametrize("kind", KINDS)
def test_conversations(found, target, draft, kind):
    assert both(found, f"{kind} session") == conversation(target, draft, "session")


def test_a_cache_in_shards_goes_on(found, target, draft):
    assert both(found, "tp cache") == conversation(target, draft, "cache")


def test_a_cache_in_stages_is_refused(found):
    """In plain decoding it is read wrongly: the later stages' first layers hold nothing."""
    assert "pipeline-parallel" in both(found, "pp cache")


@pytest.mark.parametrize("kind", KINDS)
def test_without_agreement_ranks_part(found, kind):
    """The negative control: these tests would notice."""
    first, second = (of_rank[f"{kind} nothing agreed"] for of_rank in found)
    assert first != second


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        ("synced", "synced_gpus"),
        ("fsdp target", "target is sharded by FSDP"),
        ("fsdp target, out of step", "target is sharded by FSDP"),
        ("fsdp draft", "draft is sharded by FSDP"),
    ],
)
def test_ranks_with_texts_of_their_own_are_refused(found, case, cause):
    assert cause in both(found, case)


def test_only_ranks_of_one_model_are_told(found):
    """Data-parallel ranks decode other texts."""
    assert [of_rank["broadcast over dp"] for of_rank in found] == [0, 1]
    assert both(found, "broadcast over tp") == 0


def test_one_process_agrees_with_itself_at_no_cost(target):
    x, rows = torch.tensor([3]), [object()]
    ranks = Ranks.of(target, None)
    ranks.begin(rows)  # touches nothing
    assert ranks.agree(x) is x
    assert ranks.proposal(rows, x, [2]) == (x, [2])
