"""Contenders taking turns on the same prompts, one record per call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import torch

from .bare import Ideal, timed
from .calls import Answer, Call, Models, eos_of, settings_of
from .comparing import Reference
from .contenders import Contender, Plain
from .jobs import Job
from .machine import Peak
from .names import Entrant
from .record import Cell, Record
from .settings import Settings
from .store import Store

WARM_UP_TOKENS = 8
"""Decoded before anything is measured. What is compiled decodes all: the length of a static cache is part of it."""

Listener = Callable[[Record], None]
T = TypeVar("T")


class Runner:
    """Measures what a store lacks. `listener` is told each record when it is there."""

    def __init__(self, models: Models, entrants: list[Entrant], settings: Settings, store: Store, listener: Listener):
        self.models, self.entrants, self.settings = models, entrants, settings
        self.store, self.listener = store, listener
        self.contenders: dict[Entrant, Contender] = {}

    @torch.no_grad()
    def run(self, groups: list[list[Job]]) -> None:
        try:
            with _undisturbed(self.models):
                for group in groups:
                    self._run_group(group)
        finally:
            for contender in self.contenders.values():
                contender.close()

    def _run_group(self, group: list[Job]) -> None:
        """Warm up whoever has something to do here; then prompt by prompt and repetition by repetition, everybody once
        in each, another one first in each repetition."""
        known = self.store.known()
        turns = [(job, repeat) for job in group for repeat in range(self.settings.repeats)]
        missing = {turn: [e for e in self._order(*turn) if (turn[0].cell(e), turn[1]) not in known] for turn in turns}
        longest = self._call(max(group, key=lambda job: job.columns))
        active = dict.fromkeys(entrant for entrants in missing.values() for entrant in entrants)
        for entrant in sorted(active, key=lambda entrant: entrant.kind.compiles):  # last: from what the others leave
            self._warm_up(entrant, longest)
        for job in group:
            call = self._call(job)
            reference = Reference(Plain(self.models), call)
            for repeat in range(self.settings.repeats):
                ideal = Ideal(self.models, call.input_ids) if self.settings.ideal and job.batch == 1 else None
                for entrant in missing[job, repeat]:
                    record = self._measure(entrant, job.cell(entrant), repeat, call, reference, ideal)
                    self.store.add(record)
                    self.listener(record)

    def _order(self, job: Job, repeat: int) -> list[Entrant]:
        entrants = job.entrants(self.entrants)
        first = repeat % len(entrants)
        return entrants[first:] + entrants[:first]

    def _warm_up(self, entrant: Entrant, call: Call) -> None:
        """What fails here fails again when it is measured, and is recorded then."""
        tokens = call.max_new_tokens if entrant.kind.compiles else min(WARM_UP_TOKENS, call.max_new_tokens)
        _tried(lambda: self._contender(entrant).decode(replace(call, max_new_tokens=tokens)))

    def _measure(
        self, entrant: Entrant, cell: Cell, repeat: int, call: Call, reference: Reference, ideal: Ideal | None
    ) -> Record:
        """One call. A contender may raise anything: that is its record."""
        prompt_tokens = int(call.attention_mask.sum())
        torch.manual_seed(call.seed)
        peak = Peak(call.input_ids.device)
        done, error = _tried(lambda: timed(lambda: self._contender(entrant).decode(call)))
        if done is None:
            return Record(cell, repeat, prompt_tokens, error=error)
        seconds, answer = done
        record = _record(cell, repeat, prompt_tokens, seconds, answer, peak.bytes())
        if entrant.name == "plain":
            reference.ids = reference.ids or answer.ids
        elif not call.temperature and self._plain_takes_part:
            verdict, _ = _tried(lambda: reference.compare(answer))  # if plain fails, its own record says so
            same, at, gap = verdict or (None, None, None)
            record = replace(record, same_ids=same, diverged_at=at, gap=gap)
        if ideal is not None:
            record = replace(record, ideal_seconds=_tried(lambda: ideal.seconds(answer))[0])
        return record

    @property
    def _plain_takes_part(self) -> bool:
        return any(entrant.name == "plain" for entrant in self.entrants)

    def _contender(self, entrant: Entrant) -> Contender:
        if entrant not in self.contenders:
            self.contenders[entrant] = entrant.make(self.models)
        return self.contenders[entrant]

    def _call(self, job: Job) -> Call:
        eos = eos_of(self.models.target)
        pad = self.models.tokenizer.pad_token_id
        pad = pad if pad is not None else next(iter(eos), 0)
        ids, mask = torch.full((2, job.batch, job.columns), pad)
        mask[:] = 0
        for row, tokens in enumerate(job.rows):
            ids[row, job.columns - len(tokens) :] = torch.tensor(tokens)
            mask[row, job.columns - len(tokens) :] = 1
        device = self.models.target.get_input_embeddings().weight.device
        return Call(
            ids.to(device),
            mask.to(device),
            self.settings.max_new_tokens,
            job.temperature,
            self.settings.top_k,
            self.settings.top_p,
            eos,
            pad,
            job.seed,
        )


def _tried(function: Callable[[], T]) -> tuple[T | None, str | None]:
    """(result, None), or (None, what it raised)."""
    try:
        return function(), None
    except Exception as error:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # it may have been the memory
        reason = next(iter(str(error).strip().splitlines()), "")
        return None, f"{type(error).__name__}: {reason}"[:300]


def _record(cell: Cell, repeat: int, prompt_tokens: int, seconds: float, answer: Answer, peak: int | None) -> Record:
    figures = {}
    if answer.split is not None:
        figures |= zip(("draft_seconds", "verify_seconds", "rest_seconds"), answer.split, strict=True)
    if (stats := answer.stats) is not None:
        figures |= {"rounds": stats.rounds, "drafted": stats.drafted, "accepted": stats.accepted}
        figures["by_position"] = stats.acceptance_by_position.conditional
        figures["sources"] = {name: [of.drafted, of.accepted] for name, of in stats.by_source.items()} or None
    return Record(
        cell,
        repeat,
        prompt_tokens,
        new_tokens=sum(map(len, answer.ids)),
        seconds=seconds,
        first_token_seconds=answer.first_token_seconds,
        decode_seconds=answer.decode_seconds,
        peak_bytes=peak,
        **figures,
    )


@contextlib.contextmanager
def _undisturbed(models: Models) -> Iterator[None]:
    """Both models without sampling settings of their own; afterwards they and torch's generators are as before."""
    device = models.target.device
    forked = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(forked), settings_of(models.target), settings_of(models.draft):
        yield
