"""A bench: what it is to measure, checked; then run, kept and resumed."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from ..pairing.places import device_at
from .jobs import MIXED, groups, mixture
from .loading import Side, load
from .machine import default_device, device_name, versions
from .names import entrants, installed_peers
from .record import Record
from .runner import Listener, Runner
from .settings import Settings
from .store import ARGUMENTS, COMMANDS, LOADED_DTYPE, Store
from .tasks import Tasks, chosen, own_tasks, read_tasks

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Bench:
    """Made, it has checked what can be checked without weights; `run` loads and measures.

    Args:
        target, draft: folders, Hub ids or models.
        prompts: a file (see `tasks.read_tasks`); None: the package's own.
        tokenizer: the target's; None: the one beside its checkpoint.
        dtype, device, draft_quantization: as in `load_pair`, for what is not loaded yet.
        command: the shell's, for the manifest.
        out: a folder to keep everything in. With what an earlier run of the same bench has left there, only the rest
            is measured.

    Attributes:
        records: all there are, those of earlier runs first.

    Raises:
        ValueError, OSError, ImportError: what is wrong, before anything is loaded.
    """

    def __init__(
        self,
        target: PreTrainedModel | str | os.PathLike[str],
        draft: PreTrainedModel | str | os.PathLike[str] | None = None,
        settings: Settings | None = None,
        *,
        prompts: str | os.PathLike[str] | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        dtype: str = "auto",
        device: str | None = None,
        draft_quantization: str | None = None,
        out: str | os.PathLike[str] | None = None,
        command: str | None = None,
    ):
        self.settings, self.device, self.command = settings or Settings(), device, command
        names = self.settings.against
        if names is None:
            names = ("plain", "lookup") if draft is None else ("plain", "stock", "ours", *installed_peers())
        self.entrants = entrants(names, self.settings.ks, self.settings.strategies, draft is not None)
        tasks = chosen(own_tasks() if prompts is None else read_tasks(prompts), self.settings.tasks)
        home = device_at(device, "device") or default_device()
        self.target = Side("target", target, dtype)
        self.draft = None if draft is None else Side("draft", draft, dtype, draft_quantization)
        if draft is None and draft_quantization is not None:
            raise ValueError(f"draft_quantization={draft_quantization!r}, but there is no draft.")
        if device is not None and not self.target.named and (draft is None or not self.draft.named):
            raise ValueError(f"The models are loaded already, so device={device!r} would do nothing: leave it out.")
        self.tokenizer = tokenizer or self.target.tokenizer()
        self._check_contexts()
        self.groups = groups(tasks, self.settings, self.tokenizer)
        self._check_lengths()
        self.store = Store(out, self._manifest(tasks, home if self.target.named else self.target.given.device))

    @property
    def records(self) -> list[Record]:
        return self.store.records

    def missing(self) -> int:
        """Calls that are still to be made."""
        known = self.store.known()
        turns = (
            (job.cell(entrant), repeat)
            for group in self.groups
            for job in group
            for entrant in job.entrants(self.entrants)
            for repeat in range(self.settings.repeats)
        )
        return sum(turn not in known for turn in turns)

    def run(self, listener: Listener = lambda record: None) -> list[Record]:
        """Measure what is missing. What was measured stays in `records` and in the folder, also after Ctrl-C.

        Args:
            listener: is told each record when it is there. A contender that raises makes a record with its `error`.

        Raises:
            ValueError, OSError, ImportError: the models cannot be loaded.
        """
        if not self.missing():
            return self.records
        models = load(self.target, self.draft, self.tokenizer, self.device)
        for role, model in (("target", models.target), ("draft", models.draft)):
            if model is not None:
                self.store.manifest[role][LOADED_DTYPE] = str(model.dtype).removeprefix("torch.")
        self.store.open()
        try:
            Runner(models, self.entrants, self.settings, self.store, listener).run(self.groups)
        finally:
            self.store.close()
        return self.records

    def _check_contexts(self) -> None:
        """Before so much text is made."""
        room, longest = self.target.context_length(), max(self.settings.contexts)
        if longest and longest + self.settings.max_new_tokens > room:
            raise ValueError(
                f"A context of {longest} tokens and {self.settings.max_new_tokens} new ones do not fit into the "
                f"target's {room} positions: ask for less."
            )

    def _check_lengths(self) -> None:
        room = self.target.context_length()
        for job in (job for group in self.groups for job in group):
            if job.columns + self.settings.max_new_tokens > room:
                raise ValueError(
                    f"A prompt of {job.task!r} of {job.columns} tokens and {self.settings.max_new_tokens} new ones do "
                    f"not fit into the target's {room} positions: leave out the task, or ask for less."
                )

    def _manifest(self, tasks: Tasks, device: torch.device) -> dict[str, Any]:
        """What must be the same for two records to be comparable; and, for information, what was asked for."""
        prompts = {task: hash_of(texts) for task, texts in tasks.items()}
        if self.settings.concurrency is not None:
            prompts[MIXED] = hash_of(mixture(tasks, self.settings.concurrency))
        packages = sorted({entrant.kind.package for entrant in self.entrants if entrant.kind.package})
        lengths = {name: getattr(self.settings, name) for name in ("max_new_tokens", "top_k", "top_p")}
        return {
            "versions": versions(*packages),
            "device": device_name(device),
            "threads": torch.get_num_threads(),
            "target": self.target.fingerprint(),
            "draft": None if self.draft is None else self.draft.fingerprint(),
            "prompts": prompts,
            "settings": lengths,
            ARGUMENTS: asdict(self.settings),
            COMMANDS: [] if self.command is None else [self.command],
        }


def run_bench(
    target: PreTrainedModel | str | os.PathLike[str],
    draft: PreTrainedModel | str | os.PathLike[str] | None = None,
    *,
    prompts: str | os.PathLike[str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: str = "auto",
    device: str | None = None,
    draft_quantization: str | None = None,
    out: str | os.PathLike[str] | None = None,
    listener: Listener = lambda record: None,
    **settings: Any,
) -> list[Record]:
    """Measure a pair (`Bench` says what the arguments mean) against others: `run_bench(target, draft,
    against=("plain", "ours"), temperatures=(0.0, 1.0))`.

    Args:
        settings: those of `Settings`.
    """
    bench = Bench(
        target,
        draft,
        Settings(**settings),
        prompts=prompts,
        tokenizer=tokenizer,
        dtype=dtype,
        device=device,
        draft_quantization=draft_quantization,
        out=out,
    )
    return bench.run(listener)


def hash_of(prompts: list) -> str:
    """Of a task's prompts, for the manifest."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]
