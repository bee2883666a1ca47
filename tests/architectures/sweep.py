"""What the package makes of every registered architecture: `python -m tests.architectures.sweep [--only NAME ...]
[--slice I/N] [--write]`.

A verdict per architecture, of ragged prompts decoded greedily against each row alone in plain `generate`, with every
alternative read (`alternatives` says whether the target can) and the weights of all linear layers first:

    ragged         exact, and rows at different positions share the target's forwards
    groups         exact, in groups of rows at equal positions
    equal lengths  ragged prompts are refused, prompts of one length and single prompts are exact
    refused        SpecUnsupportedError before the first token, always
    plain fails    transformers' own `generate` raises, or gives different text from run to run
    not built      no tiny model of it here
    WRONG          anything else
"""

import argparse
import contextlib
import json
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent.parent))

from toys import Doubting, weights_first

import hf_specgen
from hf_specgen.cache.reader import Reader

from .build import VOCAB, NotBuilt, architectures, build, noisy_copy

VERDICTS = Path(__file__).with_name("verdicts.json")
LENGTHS = [5, 9, 14]
NEW = 16
DRAFTED = 3
NOISES = (0.05, 0.01)  # of the draft's weights: the second where the first is accepted never
TIE = 1e-4  # two best scores closer than this: either may win
TOLERANCE = 1e-3
PATIENCE = 120  # seconds for one architecture


class Wrong(Exception):
    """Decoded, but not to what plain decoding gives."""


def texts(lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(2, VOCAB - 2, (length,), generator=generator).tolist() for length in lengths]


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def greedy(generate, inputs, **kwargs):
    """New ids `[rows, NEW]` and their scores `[rows, NEW, vocabulary]`; and the statistics, if there are any."""
    settings = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0, "return_dict_in_generate": True}
    out = generate(**inputs, output_scores=True, **settings, **kwargs)
    ids = out.sequences[:, inputs["input_ids"].shape[1] :]
    return ids, torch.stack(out.scores, 1), getattr(out, "spec_stats", None)


def oracle(model, rows: list[list[int]]):
    """Each row alone, by transformers itself: (ids, scores) per row. Raises what it raises, or `Wrong`."""
    found = []
    for row in rows:
        runs = [greedy(lambda **k: type(model).generate(model, **k), padded([row])) for _ in range(2)]
        if not torch.equal(runs[0][0], runs[1][0]):
            raise Wrong("differs from run to run")
        if not runs[0][1].isfinite().any(-1).all() or runs[0][1].isnan().any():
            raise Wrong("its scores are not finite")
        found.append((runs[0][0][0], runs[0][1][0]))
    return found


def compare(ids, scores, wanted) -> None:
    """Raises `Wrong` where a row is not what it is alone; after a tie, texts may part."""
    for b, (own_ids, own_scores) in enumerate(wanted):
        for i in range(len(own_ids)):
            low = own_scores[i].isinf() & scores[b, i].isinf()
            difference = (scores[b, i] - own_scores[i]).masked_fill(low, 0).abs().max().item()
            scale = max(1.0, own_scores[i][~low].abs().max().item())
            if not difference <= TOLERANCE * scale:
                raise Wrong(f"row {b}, new token {i}: scores differ by {difference:.2g}")
            if ids[b, i] != own_ids[i]:
                best = own_scores[i].topk(2).values
                if best[0] - best[1] < TIE:
                    break
                raise Wrong(f"row {b}, new token {i}: {ids[b, i]} instead of {own_ids[i]}")


@contextlib.contextmanager
def watch_readers():
    """The readers made inside."""
    made, original = [], Reader.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        made.append(self)

    Reader.__init__ = init
    try:
        yield made
    finally:
        Reader.__init__ = original


def speculative(model, draft, rows):
    """Greedy ids, scores and statistics of the rows as a left-padded batch; whether the target ran them together, and
    whether it could read alternatives."""
    hf_specgen.enable(model)
    try:
        with watch_readers() as readers, weights_first():
            out = greedy(
                model.generate,
                padded(rows),
                assistant_model=draft,
                spec_strategy="rejection",
                num_assistant_tokens_schedule=Doubting(DRAFTED),
            )
        own = [r for r in readers if r.model is model]
        return *out, any(r.ragged_together for r in own), any(r.reads_alternatives for r in own)
    finally:
        hf_specgen.disable(model)


def _share(stats) -> float:
    return round(stats.accepted / stats.drafted, 2) if stats.drafted else 0.0


def _decoded(model, rows, wanted) -> tuple[bool, dict]:
    """With a noisy draft: whether rows ran together, and the share of drafted tokens that was accepted."""
    for noise in NOISES:
        ids, scores, stats, together, beside = speculative(model, noisy_copy(model, noise), rows)
        compare(ids, scores, wanted)
        if stats.accepted:
            break
    return together, {"accepted": _share(stats), "alternatives": beside}


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200]


def judge(name: str) -> dict:
    """The entry of one architecture in `verdicts.json`."""
    try:
        model = build(name)
    except NotBuilt as error:
        return {"verdict": "not built", "reason": str(error)}
    rows = texts(LENGTHS)
    try:
        wanted = oracle(model, rows)
    except Exception as error:
        return {"verdict": "plain fails", "reason": str(error) if isinstance(error, Wrong) else _sentence(error)}
    same = texts([max(LENGTHS)] * len(LENGTHS))
    attempts = [("ragged", rows, wanted), ("equal lengths", same, None), ("equal lengths", same[:1], None)]
    verdict = reason = None
    for kind, batch, expected in attempts:
        expected = oracle(model, batch) if expected is None else expected
        try:
            together, seen = _decoded(model, batch, expected)
            entry = {"verdict": kind} | seen
            if kind == "ragged" and not together:
                entry["verdict"] = "groups"
            if reason:
                entry["reason"] = reason
            copied = speculative(model, noisy_copy(model, 0), batch)
            compare(*copied[:2], expected)
            return entry | {"copy_accepted": _share(copied[2])}
        except hf_specgen.SpecUnsupportedError as error:
            verdict, reason = "refused", reason or str(error).split(". ")[0]
        except Wrong as error:
            return {"verdict": "WRONG", "reason": str(error)}
        except Exception as error:
            return {"verdict": "WRONG", "reason": _sentence(error)}
    return {"verdict": verdict, "reason": reason}


def _late(*_):
    raise TimeoutError(f"more than {PATIENCE} s")


def judge_safely(name: str) -> dict:
    """`judge`, whatever happens: an architecture that hangs or breaks does not end the sweep."""
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(PATIENCE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return judge(name)
    except Exception as error:
        return {"verdict": "WRONG", "reason": _sentence(error)}
    finally:
        signal.alarm(0)


def chosen(only: list[str] | None, part: str | None) -> list[str]:
    """The architectures named, or every N-th from the I-th on (`part` = "I/N", from 0), or all."""
    names = only or architectures()
    if part:
        i, n = map(int, part.split("/"))
        names = names[i % n :: n]
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--slice", metavar="I/N")
    parser.add_argument("--write", action="store_true", help="write verdicts.json (with --only or --slice: update it)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    results = {}
    for name in chosen(args.only, args.slice):
        results[name] = entry = judge_safely(name)
        shares = " ".join(f"{entry.get(k, ''):4}" for k in ("accepted", "copy_accepted"))
        print(f"{name:26} {entry['verdict']:13} {shares:9} {entry.get('reason', '')}", flush=True)
    counts = Counter(entry["verdict"] for entry in results.values())
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    if args.write:
        if args.only or args.slice:
            results = json.loads(VERDICTS.read_text())["architectures"] | results
        content = {"transformers": transformers.__version__, "architectures": dict(sorted(results.items()))}
        VERDICTS.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
