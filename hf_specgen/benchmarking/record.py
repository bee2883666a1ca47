"""One measured call: the line of a bench's JSON Lines file that everything else (table, plots, cost) is made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Cell:
    """What was run. Two records with equal cells differ by their repetition only.

    Attributes:
        contender: who decoded: "plain", "compiled", "stock", "stock-k4", "ours", "ours-k4", "draft", "lookup", a peer.
        task, prompt: name of the task, index of the (first) prompt in it.
        temperature: 0 is greedy.
        batch: rows decoded together.
        context: tokens the prompt was filled up to, 0: as it is.
        k: constant number of drafted tokens, None where the contender chooses.
        strategy: acceptance rule, None where there is none to choose.
    """

    contender: str
    task: str
    prompt: int
    temperature: float = 0.0
    batch: int = 1
    context: int = 0
    k: int | None = None
    strategy: str | None = None


@dataclass(frozen=True)
class Record:
    """One call. Seconds; bytes; counts are sums over the rows. None: not measured.

    Attributes:
        repeat: which interleaved repetition.
        prompt_tokens, new_tokens: read and emitted.
        seconds: the whole call.
        first_token_seconds: until the first new token was there (time to first token).
        decode_seconds: after both models' prefills (stock: extrapolated from the rate after its first hand-over).
        draft_seconds, verify_seconds, rest_seconds: parts of `decode_seconds`.
        rounds, drafted, accepted: as `SpecStats` defines them.
        by_position: conditional acceptance by position.
        sources: drafted and accepted tokens by where they came from: {"draft": [drafted, accepted], …}.
        ideal_seconds: what the two models' bare forwards of this call would have taken, prefills included.
        peak_bytes: largest memory in use.
        same_ids: whether the ids equal plain's of the same prompt; None when sampled.
        diverged_at, gap: first other token, and plain's logit gap between the two there (0: a tie).
        error: the reason, where the call failed; all figures are then None or 0.
    """

    cell: Cell
    repeat: int
    prompt_tokens: int = 0
    new_tokens: int = 0
    seconds: float | None = None
    first_token_seconds: float | None = None
    decode_seconds: float | None = None
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    rest_seconds: float | None = None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    by_position: list[float | None] | None = None
    sources: dict[str, list[int]] | None = field(default=None)
    ideal_seconds: float | None = None
    peak_bytes: int | None = None
    same_ids: bool | None = None
    diverged_at: int | None = None
    gap: float | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Record:
        """Raises ValueError, naming what is missing or unknown."""
        cell, rest = data.get("cell"), {k: v for k, v in data.items() if k != "cell"}
        names, cells = {f.name for f in fields(cls)}, {f.name for f in fields(Cell)}
        if not isinstance(cell, dict) or set(cell) - cells or set(rest) - names:
            unknown = sorted(set(cell or ()) - cells | set(rest) - names) if isinstance(cell, dict) else "no cell"
            raise ValueError(f"This is not a record of this version's bench: {unknown}.")
        try:
            return cls(Cell(**cell), **rest)
        except TypeError as error:
            raise ValueError(f"This is not a record of this version's bench: {error}.") from None
