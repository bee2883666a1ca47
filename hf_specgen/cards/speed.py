"""A bench as a card tells it: tables per setting, and results for the Hub's metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..benchmarking.bench import hash_of
from ..benchmarking.jobs import MIXED
from ..benchmarking.store import ARGUMENTS, COMMANDS, LOADED_DTYPE
from ..benchmarking.summary import PLAIN, Contender, Spread, Summary, labels, summarize
from ..benchmarking.tasks import own_tasks
from .commands import block
from .measured import OURS
from .parts import Section, table

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from .measured import BenchRun

ABSENT, ALL = "–", "all tasks"
NOT_MEASURED = (
    "Not measured for this card. What a pair gains depends on the machine: `hf-specgen bench` measures it there."
)


def speed(run: BenchRun | None) -> Section:
    if run is None:
        return Section("Speed", NOT_MEASURED)
    by_task, pooled = summarize(run.records), summarize(run.records, by_task=False)
    names = labels(summary.contender for summary in by_task)
    settings = sorted({summary.setting for summary in pooled})
    parts = [block(run.manifest[COMMANDS]) or _arguments(run.manifest), _where(run)]
    for setting in settings:
        here, all_tasks = ([one for one in some if one.setting == setting] for some in (by_task, pooled))
        parts += [f"**{str(setting).capitalize()}**", _speeds(here, all_tasks, names), _figures(all_tasks, names)]
        parts += _notes(all_tasks, names)
    return Section("Speed", "\n\n".join(parts))


def results(run: BenchRun | None) -> list[EvalResult]:
    """Our speed-ups over plain decoding, by task and setting, as the Hub lists results."""
    from huggingface_hub import EvalResult

    summaries = [] if run is None else summarize(run.records)
    names = labels(summary.contender for summary in summaries)
    where = "" if run is None else f"{_dtype(run.manifest)} on {run.manifest['device']}"
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type="hf-specgen-bench",
            dataset_name=f"hf-specgen bench, {one.task}",
            dataset_config=one.task,  # what tells results apart, for the Hub
            metric_type="speedup",
            metric_name=f"speed-up over plain decoding ({names[one.contender]}, {one.setting}; {where})",
            metric_value=round(one.speedup.median, 2),
        )
        for one in summaries
        if one.contender.family in OURS and one.speedup is not None
    ]


def _where(run: BenchRun) -> str:
    manifest, done = run.manifest, [record for record in run.records if record.error is None]
    versions = ", ".join(f"{package} {version}" for package, version in manifest["versions"].items())
    new = manifest["settings"].get("max_new_tokens", ABSENT)
    own = {task: hash_of(texts) for task, texts in own_tasks().items()}
    foreign = [task for task, told in manifest["prompts"].items() if task != MIXED and own.get(task) != told]
    prompts = len({(record.cell.task, record.cell.prompt) for record in done})
    whose = "the package's own" if not foreign else f"of {', '.join(foreign)}: the maker's own"
    return (
        f"On {manifest['device']}, {manifest['threads']} threads, {_dtype(manifest)}, {versions}. {prompts} prompts "
        f"({whose}), at most {new} new tokens, {len({record.repeat for record in done})} interleaved repetitions. A "
        "speed-up is tokens per second of whole calls, prefills included, over those of plain decoding's call of the "
        "same prompt and repetition; given are medians, and the quartiles in brackets."
    )


def _dtype(manifest: dict[str, Any]) -> str:
    """The target's, as it was loaded; of a bench that did not say so, as it was asked for."""
    target = manifest["target"]
    return target.get(LOADED_DTYPE) or f"dtype {target.get('dtype')}"


def _arguments(manifest: dict[str, Any]) -> str:
    told = json.dumps(manifest.get(ARGUMENTS), sort_keys=True)
    return f"Measured from Python, `hf_specgen.benchmarking.run_bench`, with `{told}`."


def _speeds(by_task: list[Summary], pooled: list[Summary], names: dict[Contender, str]) -> str:
    """Rows: contenders; columns: tasks and all of them."""
    tasks = list(dict.fromkeys(one.task for one in by_task))
    cells = {(one.contender, one.task): one.speedup for one in by_task}
    rows = [
        [names[one.contender], *(_ratio(cells.get((one.contender, task))) for task in tasks), _ratio(one.speedup)]
        for one in pooled
        if one.contender.name != PLAIN
    ]
    return table(["speed-up over plain", *tasks, ALL], rows)


def _figures(pooled: list[Summary], names: dict[Contender, str]) -> str:
    head = [ALL, "tokens/s", "drafts accepted", "tokens per forward", "first token", "ids as plain's"]
    return table(
        head,
        (
            [
                names[one.contender],
                ABSENT if one.tokens_per_second is None else f"{one.tokens_per_second.median:.1f}",
                ABSENT if one.acceptance_rate is None else f"{one.acceptance_rate:.0%}",
                ABSENT if one.tokens_per_forward is None else f"{one.tokens_per_forward:.2f}",
                ABSENT if one.first_token_seconds is None else f"{one.first_token_seconds.median * 1000:.0f} ms",
                f"{one.same} of {one.compared}" if one.compared else ABSENT,
            ]
            for one in pooled
        ),
    )


def _notes(pooled: Iterable[Summary], names: dict[Contender, str]) -> Iterator[str]:
    """Where ids parted from plain's, and what failed."""
    lines = []
    for one in pooled:
        for part in one.partings:
            gap = "" if part.gap is None else f", where plain's two logits differ by {part.gap:.2g}"
            lines.append(
                f"- {names[one.contender]}: {part.task} {part.prompt} parts from plain's at token {part.at}{gap}."
            )
        for reason, calls in one.errors.items():
            lines.append(f"- {names[one.contender]}: {calls} failed: {' '.join(reason.split())}")
    if lines:
        yield "\n".join(lines)


def _ratio(spread: Spread | None) -> str:
    if spread is None:
        return ABSENT
    return f"{spread.median:.2f}×" + ("" if spread.low == spread.high else f" ({spread.low:.2f}–{spread.high:.2f})")
