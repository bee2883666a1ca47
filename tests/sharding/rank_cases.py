"""What two processes decode together: `torchrun --nproc_per_node 2 rank_cases.py FOLDER`, from test_tensor_parallel.py.

Each rank writes `rank0.json` or `rank1.json` into FOLDER, which holds the models `target` and `draft`.
"""

import contextlib
import datetime
import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from text_toys import fast, renumbered
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from toys import VOCAB, prompts, spec
from transformers import AutoModelForCausalLM, StoppingCriteriaList
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.generation.stopping_criteria import MaxTimeCriteria

from hf_specgen import Drafter, Proposal, SpecSession, SpecUnsupportedError
from hf_specgen.compat import CACHE_NAME
from hf_specgen.decoding.ranks import Ranks

SEED, NEW = 100, 16
BATCH = prompts([5, 9, 3])

CASES = {
    "greedy": ("rejection", {}),
    "rejection": ("rejection", {"do_sample": True}),
    "block": ("block", {"do_sample": True, "temperature": 0.8, "top_k": 20}),
    "coupled": ("coupled", {"do_sample": True}),
    "threshold": ("rejection", {"do_sample": True, "temperature": 0.3, "assistant_confidence_threshold": 0.35}),
    "text": ("rejection", {"do_sample": True, "repetition_penalty": 1.2, "num_return_sequences": 2}),
}
"""Strategy and arguments of calls that any pair of models can be given."""


def decode(target, draft, case: str, **more):
    """The result of a case, sampled with the generator that is set beforehand."""
    strategy, kwargs = CASES[case]
    kwargs = {"max_new_tokens": NEW, "num_assistant_tokens": 4} | BATCH | kwargs | more
    return spec(target, draft, strategy, **kwargs)


def renumbered_pair(draft) -> tuple:
    """The draft under other ids, and the tokenizers that say so."""
    moved = {i: (5 * i + 7) % VOCAB for i in range(VOCAB)}
    ours = [f"w{i}" for i in range(VOCAB)]
    theirs = sorted(ours, key=lambda word: moved[int(word[1:])])
    tokenizer, other = (
        fast(Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0])))
        for words in (ours, theirs)
    )
    return renumbered(draft, moved, VOCAB), {"tokenizer": tokenizer, "assistant_tokenizer": other}


def conversation(target, draft, carry: str) -> list | str:
    """The ids after two turns that share a session, or go on from the returned cache; or the refusal."""
    session, text, cache = SpecSession(), BATCH["input_ids"][:1, -4:], {}
    for turn in range(2):
        own = {"spec_session": session} if carry == "session" else cache
        torch.manual_seed(SEED + turn)
        try:
            out = spec(target, draft, "coupled", input_ids=text, max_new_tokens=6, do_sample=True, **own)
        except SpecUnsupportedError as error:
            return str(error)
        text, cache = torch.cat([out.sequences, torch.tensor([[7, 8, 9]])], dim=1), {CACHE_NAME: out[CACHE_NAME]}
    return out.sequences.tolist()


class Erratic(Drafter):
    """Proposes what only this rank thinks of: other tokens, other numbers of them, or nothing."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def _pick(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=self.generator)

    def propose(self, rows, widths, verifier, noise):
        width = int(self._pick(max(widths) + 1, 1))
        if not width:
            return None
        counts = torch.minimum(self._pick(width + 1, len(rows)), torch.tensor(widths))
        return Proposal(self._pick(64, len(rows), width), counts)


class EndsAt:
    """A stopping criterion that ends every row at this many columns."""

    def __init__(self, columns: int):
        self.columns = columns

    def __call__(self, ids, scores, **_):
        return torch.full((len(ids),), ids.shape[1] >= self.columns)


@contextlib.contextmanager
def off_by(model, rank: int):
    """On one rank, the model's logits are not quite what they are on the others."""
    noise = torch.Generator().manual_seed(rank)

    def add(_, args, kwargs, out):
        out.logits = out.logits + rank * torch.randn(out.logits.shape, generator=noise)

    hook = model.register_forward_hook(add, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def each_for_itself():
    """The negative control: nothing is agreed."""
    agree, Ranks.agree = Ranks.agree, lambda self, x: x
    try:
        yield
    finally:
        Ranks.agree = agree


def only_here(rank: int, target, draft) -> dict:
    """Calls in which each rank would have gone its own way."""
    found = {}
    torch.manual_seed(SEED + rank)
    with off_by(target, rank), off_by(draft, rank):
        found["other logits"] = decode(target, draft, "rejection").sequences.tolist()
    found["other drafts"] = decode(target, Erratic(rank), "greedy").sequences.tolist()
    renamed, tokenizers = renumbered_pair(draft)
    found["other vocabulary"] = decode(target, renamed, "greedy", **tokenizers).sequences.tolist()
    generators = [torch.Generator().manual_seed(rank), None, torch.Generator().manual_seed(5)]
    torch.manual_seed(SEED + rank)
    found["generators"] = decode(target, draft, "rejection", generator=generators).sequences.tolist()
    for late in (0, 1):
        clock = MaxTimeCriteria(1000, initial_timestamp=time.time() - (2000 if rank == late else 0))
        out = decode(target, draft, "greedy", stopping_criteria=StoppingCriteriaList([clock]))
        found[f"out of time on rank {late}"] = out.sequences.tolist()
    criterion = StoppingCriteriaList([EndsAt(14 + rank)])
    found["stops"] = decode(target, draft, "greedy", stopping_criteria=criterion).sequences.tolist()
    torch.manual_seed(SEED + rank)
    with each_for_itself():  # without a draft: rounds of equal width, so that nothing but the tokens can differ
        out = decode(target, None, "coupled", eos_token_id=None, max_new_tokens=6)
    found["nothing agreed"] = out.sequences.tolist()
    return found


def refused(target, draft, **kwargs) -> str:
    try:
        decode(target, draft, "greedy", **kwargs)
    except SpecUnsupportedError as error:
        return str(error)
    return "not refused"


def run(folder: Path, rank: int, found: dict) -> None:
    def load(name: str, **sizes):
        config = DistributedConfig(**sizes) if sizes else None
        return AutoModelForCausalLM.from_pretrained(folder / name, distributed_config=config)

    for kind in ("tp", "pp"):
        target = load("target", **{f"{kind}_size": 2})
        drafts = {"whole": load("draft"), "sharded": load("draft", **{f"{kind}_size": 2})}
        for where, draft in drafts.items():
            for case in CASES:
                torch.manual_seed(SEED + rank)
                out = decode(target, draft, case)
                stats = [[row.trace, row.emitted] for row in out.spec_stats.rows]
                found[f"{kind} {where} {case}"] = {"ids": out.sequences.tolist(), "stats": stats}
        for carry in ("session", "cache"):
            found[f"{kind} {carry}"] = conversation(target, drafts["whole"], carry)
        found |= {f"{kind} {name}": ids for name, ids in only_here(rank, target, drafts["whole"]).items()}
    found["sharded draft alone"] = decode(load("target"), load("draft", tp_size=2), "greedy").sequences.tolist()
    found["synced"] = refused(target, drafts["whole"], synced_gpus=True)
    found["fsdp target"] = refused(load("target", fsdp_size=2), drafts["whole"])
    found["fsdp target, out of step"] = refused(load("target", fsdp_size=2), drafts["whole"], synced_gpus=False)
    found["fsdp draft"] = refused(load("target"), load("draft", fsdp_size=2))
    for names in (("dp", "tp"), ("tp", "dp")):
        mesh = torch.distributed.init_device_mesh("cpu", (2, 1), mesh_dim_names=names)
        found[f"broadcast over {names[0]}"] = int(Ranks(mesh).agree(torch.tensor(rank)))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    found = {}
    try:
        run(folder, rank, found)
    except Exception:
        found["error"] = traceback.format_exc()
        raise
    finally:
        (folder / f"rank{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
