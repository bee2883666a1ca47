"""The candidates of one temperature, taking turns on the prompts: round after round, with fewer and better ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..benchmarking.calls import Models
from ..benchmarking.jobs import Job
from ..benchmarking.names import Entrant
from ..benchmarking.record import Record
from ..benchmarking.runner import Runner
from ..benchmarking.settings import Settings
from ..benchmarking.store import Store
from ..benchmarking.summary import PLAIN
from ..lengths import Knowledge
from . import candidates as trying
from .candidates import PLAIN_DECODING, Candidate
from .choosing import Scope, fastest, rates_of, survivors
from .survey import Survey, knowledge_of, with_draft_costs

Listener = Callable[[str, int, int], None]
"""Is told what was decoded last, how many calls were made, and how many there will be, as far as one knows."""

SURVEY = 0.25
"""Share of the time after which the survey has seen enough."""
TRIMMED_PROMPTS = 2
"""On which, at least, a draft with a smaller vocabulary is surveyed: only its steps are new."""


class _OutOfTime(Exception):
    pass


class _Turns(Runner):
    """One round. Ids are not compared with plain's, and nobody is warmed up twice."""

    _plain_takes_part = False
    warm: set[str]

    def _warm_up(self, entrant, call):
        if entrant.name not in self.warm:
            self.warm.add(entrant.name)
            super()._warm_up(entrant, call)


@dataclass
class Race:
    """
    Attributes:
        jobs: of one temperature; of one or several batch sizes, which all candidates are tried at.
        tokens: of the draft's vocabulary, where it may be trimmed; else 0.
        deadline: on `time.monotonic`'s clock. What has begun by then ends.
        apart: of which winners are asked for apart.
        records: what was measured.
        tried: by name, those that took part; the default is the first.
        surveys: (task, what one call has told).
        refused: name → why it could not be tried.
    """

    models: Models
    jobs: list[Job]
    settings: Settings
    tokens: int
    deadline: float
    apart: Sequence[Scope]
    listener: Listener

    def __post_init__(self):
        self.sizes = sorted({job.batch for job in self.jobs})
        self.records: list[Record] = []
        self.tried: dict[str, Candidate] = {}
        self.surveys: list[tuple[str, Survey]] = []
        self.refused: dict[str, str] = {}
        self.seen: set[int] = set()
        self.warm: set[str] = set()
        self.done, self.expected = 0, len(self.jobs)

    @property
    def default(self) -> str:
        return next(iter(self.tried))

    def knowledge(self, task: str | None = None) -> Knowledge:
        return knowledge_of(call for of, call in self.surveys if task in (None, of))

    def run(self) -> None:
        """
        Raises:
            ValueError: decoding fails.
        """
        with_draft = self.models.draft is not None
        end, now = self.deadline, time.monotonic()
        self.deadline = now + SURVEY * (end - now)
        self.surveys = self._survey("survey", self.jobs, spec_source="hybrid" if with_draft else "lookup")
        self.deadline = end
        known = self.knowledge()
        entrants = trying.sources(with_draft, known, self.seen)
        entrants += trying.constants(known, self.seen, self.sizes) if with_draft else []
        self.tried = {one.name: one for one in entrants}
        running: list[Entrant] = [PLAIN_DECODING, *entrants]
        for number in range(self.settings.repeats):
            self.expected = self.done + (self.settings.repeats - number) * len(self.jobs) * len(running)
            if number and self._late():
                break
            self.records += [replace(record, repeat=number) for record in self._turns(running, number)]
            self._require_default()
            if number == 0 and self.settings.repeats > 1 and not self._late():
                running = [PLAIN_DECODING, *self._next(known)]

    def _next(self, known: Knowledge) -> list[Candidate]:
        """Who is worth another round, and what can be changed about the best of those that draft."""
        rates = rates_of(self.records)
        kept = survivors(rates, [PLAIN, self.default])
        for scope in self.apart:
            kept |= survivors(rates_of(self.records, scope), [])
        going = [one for name, one in self.tried.items() if name in kept]
        best = fastest(rates, (one.name for one in going if one.drafts))
        new = self._variations(self.tried[best], known) if best is not None else []
        self.tried |= {one.name: one for one in new}
        return going + new

    def _variations(self, best: Candidate, known: Knowledge) -> list[Candidate]:
        found, few = [], self.jobs[: max(TRIMMED_PROMPTS, len(self.sizes))]
        for size in trying.vocabulary_sizes(self.tokens):
            ids = trying.kept_ids(size, self.seen, self.tokens)
            label = f"{size:,}+{len(ids) - size} draft tokens"
            try:
                calls = self._survey(label, few, spec_source="draft", draft_vocab_size=ids)
            except ValueError as error:  # its head cannot be taken apart
                self.refused[label] = str(error)
                break
            costs = with_draft_costs(known, (call for _, call in calls))
            knowledge = {"knowledge": costs} if best.config.knowledge is not None else {}
            found.append(best.but(label, draft_vocab_size=ids, **knowledge))
        if self.jobs[0].temperature:
            found.append(best.but("block", spec_strategy="block"))
        return found

    def _survey(self, label: str, jobs: list[Job], **settings) -> list[tuple[str, Survey]]:
        survey, found = Survey(), []
        entrant = trying.candidate(label, self.seen, num_assistant_tokens_schedule=survey, **settings)

        def note(record: Record) -> None:
            calls = [call for call in survey.calls if call.target]  # the last one's: others warmed up
            found.extend((record.cell.task, call) for call in calls[-1:] if record.error is None)
            survey.calls.clear()

        records = self._turns([entrant], 0, jobs, note)
        if not found:
            failed = (record.error for record in records if record.error)
            raise ValueError(f"{label}: {next(failed, 'every answer ended with its first token')}")
        return found

    def _turns(
        self,
        entrants: list[Entrant],
        number: int,
        jobs: list[Job] | None = None,
        note: Callable[[Record], None] = lambda record: None,
    ) -> list[Record]:
        """Each job once by each, another one first in each round."""
        first = number % len(entrants)
        store = Store(None, {})

        def listen(record: Record) -> None:
            note(record)
            self.done += 1
            self.expected = max(self.expected, self.done)
            self.listener(record.cell.contender, self.done, self.expected)
            if self._late() and len(store.records) % len(entrants) == 0:
                raise _OutOfTime

        order = entrants[first:] + entrants[:first]
        turns = _Turns(self.models, order, replace(self.settings, repeats=1), store, listen)
        turns.warm = self.warm
        with contextlib.suppress(_OutOfTime):
            turns.run([jobs or self.jobs])
        return store.records

    def _late(self) -> bool:
        return time.monotonic() > self.deadline

    def _require_default(self) -> None:
        for name in (PLAIN, self.default):
            failed = [record.error for record in self.records if record.cell.contender == name]
            if failed and all(failed):
                raise ValueError(f"{name}: {failed[0]}")
