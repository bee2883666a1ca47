"""What the turns of a conversation share: both models' caches of the text so far, and what was learned of the pair."""

import copy
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from .cache.ragged import Piece, RaggedCache, Rolling
from .cache.reader import Reader, padded
from .errors import SpecUnsupportedError
from .lengths.knowledge import Knowledge


@dataclass
class Kept:
    """One model's cache, by row of the batch: the tokens that it has read, and what it holds of them."""

    model: torch.nn.Module
    version: tuple
    windows: list[int | None]
    rows: dict[int, tuple[list[int], list[Piece | None]]] = field(default_factory=dict)

    def take(self, cache: RaggedCache, row: int, index: int, tokens: list[int]) -> None:
        """Keep row `row` of `cache`, which has read `tokens`, as row `index` of the batch."""
        self.rows[index] = (list(tokens), cache.pieces(row, len(tokens)))

    def known(self, index: int, text: list[int]) -> int:
        """How many of the first tokens of `text` need not be read again; never the last: its logits are wanted."""
        if index not in self.rows:
            return 0
        tokens, pieces = self.rows[index]
        limit = min(len(tokens), len(text) - 1)
        count = next((i for i in range(limit) if tokens[i] != text[i]), limit)
        for window, piece in zip(self.windows, pieces, strict=True):
            if piece is not None and Rolling(window, []).visible_from(count) < piece.base:
                return 0  # a rolling layer has let go of what the next token has to see
        return count

    def resume(self, indices: list[int], texts: list[list[int]], room: int) -> RaggedCache:
        """A cache that holds the known beginning of each text."""
        known = [self.known(index, text) for index, text in zip(indices, texts, strict=True)]
        sample = next(iter(self.rows.values()))[1]

        def held(index: int, count: int) -> list[Piece | None]:
            if not count:
                return [p and Piece([x[:, :0] for x in p.tensors], 0) for p in sample]
            return [p and p.first(count) for p in self.rows[index][1]]

        rows = [held(index, count) for index, count in zip(indices, known, strict=True)]
        return RaggedCache.of_rows(self.windows, rows, known, room)


class SpecSession:
    """Keeps target's and draft's caches between calls, so that a turn reads only what is new.

    ```python
    session = hf_specgen.SpecSession()
    out = target.generate(**turn_1, assistant_model=draft, spec_strategy="rejection", spec_session=session)
    out = target.generate(**turn_2, assistant_model=draft, spec_strategy="rejection", spec_session=session)
    ```

    Each call passes its whole text. Row by row, the beginning that it shares with the row's last text is not read
    again: texts may be longer, equal, shorter (an answer taken back) or different. Rows go by their index. A call that
    raises leaves the session as it was. Changed weights and adapters are noticed (optimizers, `load_state_dict`, copies
    into `.data`, `set_adapter`). What `version_of` says it misses, such as a few rows of an embedding written through
    `.data`, is not: call `reset()` after it.

    What a call learns of costs and acceptance is there for the next (`save`, `load`): with sampling too, where a call
    by itself must not look at a clock. So with `"rejection"` and `"block"`, where the ids depend on how much is
    drafted, equal seeds give equal ids in a session's first call only; in all calls with `"coupled"`, or with a
    constant `num_assistant_tokens`.

    `copy.deepcopy` branches a conversation. One call at a time: a session belongs to one conversation, not to threads.
    """

    def __init__(self):
        self._kept: dict[str, Kept] = {}
        self.knowledge = Knowledge()

    def __deepcopy__(self, memo) -> "SpecSession":
        """A branch of the conversation: it goes on from the same caches, of the same models."""
        branch = SpecSession()
        branch.knowledge = copy.deepcopy(self.knowledge, memo)
        branch._kept = {role: replace(kept, rows=dict(kept.rows)) for role, kept in self._kept.items()}
        return branch

    def __getstate__(self) -> dict:
        return {"_kept": {}, "knowledge": self.knowledge}  # caches stay where their models are

    def reset(self) -> None:
        """Forget both caches. What was learned stays."""
        self._kept.clear()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learned of costs and acceptance (not the caches) as JSON."""
        Path(path).write_text(json.dumps(self.knowledge.to_dict(), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SpecSession":
        """A new session that knows what a saved one had learned.

        Raises:
            ValueError: the file holds something else.
        """
        session = cls()
        try:
            session.knowledge = Knowledge.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:  # json's own errors are some
            raise ValueError(f"{path}: {error}") from None
        return session

    def kept(self, role: str, model) -> Kept | None:
        """What the model of this role ("target", "draft") holds, if it still is that model.

        Raises:
            SpecUnsupportedError: the session is that of another target.
        """
        kept = self._kept.get(role)
        if kept is None or not kept.rows:
            return None
        if kept.model is not model:
            if role == "target":
                raise SpecUnsupportedError(
                    f"This spec_session holds the cache of another target ({type(kept.model).__name__}). "
                    "Use a new SpecSession, or call its reset()."
                )
            return None
        return kept if kept.version == version_of(model) else None

    def keep(self, role: str, kept: Kept | None) -> None:
        """Replace the rows of a role by those of a call that has ended well; others stay."""
        if kept is None or not kept.rows:
            return
        old = self._kept.get(role)
        if old is not None and old.model is kept.model and old.version == kept.version:
            kept.rows = {**old.rows, **kept.rows}
        self._kept[role] = kept


SAMPLED = 16
"""Values of each weight that are compared: an update in bfloat16 may leave most of a weight as it was."""


def version_of(model) -> tuple:
    """Changes when the model's weights do, its active adapters, or the precision that they are used in.

    Weights: as far as torch counts it (not what is written through `.data`, nor for models made in inference mode), and
    by a sample of values, which sees what is written all over a weight. It misses what goes past the count and leaves
    the middle of every weight as it was (a few rows of an embedding), or concerns only buffers, weights that are
    offloaded or sharded, and those of a class of their own (quantized ones).
    """
    weights = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters())
    adapters = tuple(
        (tuple(layer.active_adapters), layer.disable_adapters)
        for layer in model.modules()
        if isinstance(getattr(type(layer), "active_adapters", None), property)  # peft's layers
    )
    kind = model.device.type
    autocast = torch.get_autocast_dtype(kind) if kind != "meta" and torch.is_autocast_enabled(kind) else None
    return weights, _sampled(model), adapters, autocast


@torch.no_grad()
def _sampled(model) -> tuple[bytes, ...]:
    """The middle `SAMPLED` values of every weight, in one transfer per device and dtype."""
    samples: dict[tuple, list[torch.Tensor]] = {}
    for p in model.parameters():
        if type(p) is torch.nn.Parameter and p.device.type != "meta" and p.is_contiguous():
            count = min(SAMPLED, p.numel())
            middle = p.storage_offset() + (p.numel() - count) // 2
            samples.setdefault((p.device, p.dtype), []).append(p.as_strided((count,), (1,), middle))
    return tuple(torch.cat(found).cpu().view(torch.uint8).numpy().tobytes() for found in samples.values())


def resume(kept: Kept, indices: list[int], texts: list[list[int]], room: int, device: torch.device) -> Reader:
    """A model that has read the beginnings which it still holds."""
    return Reader(kept.model, kept.resume(indices, texts, room), device)


def read_rest(reader: Reader, texts: list[list[int]]) -> torch.Tensor:
    """Read what is left of each text; logits after each, `[rows, vocabulary]`."""
    left = [text[n:] for text, n in zip(texts, reader.lengths, strict=True)]
    if len({len(text) for text in left}) > 1:  # the last tokens apart, so that the head runs on one position per row
        reader.read(padded([text[:-1] for text in left], reader.device), [len(text) - 1 for text in left], keep=1)
        left = [text[-1:] for text in left]
    ids = torch.tensor(left, device=reader.device)
    return reader.read(ids, [ids.shape[1]] * len(ids), keep=1)[:, 0]
