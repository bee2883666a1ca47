"""Streaming: token by token, one row or several, ended once whatever happens."""

from collections.abc import Callable, Sequence

import torch
from transformers.generation.streamers import BaseStreamer

from ..errors import SpecUnsupportedError


class Stream:
    """The caller's streamer (or None) in one call.

    A streamer with `put_row(row, ids)` gets several rows: first each row's prompt (int64 `[length]`, no padding), then
    its tokens one by one (`[1]`), and `end_row(row)` when it ends, if it has that. Any other gets one row, as plain
    decoding gives it: `put(prompt [1, columns])`, then `put(token [1])`. `end()` is called once, also after an error.
    Either kind may have `put_token(row, token, source)`, which then gets each new token in place of the above, with the
    source that drafted it ("draft", "lookup" …; None: the target's own).
    """

    def __init__(self, streamer):
        self.streamer = streamer
        self.by_row = hasattr(streamer, "put_row")
        self.by_token = hasattr(streamer, "put_token")
        self.ended = False

    def check(self, rows: int) -> None:
        if self.streamer is not None and rows > 1 and not self.by_row:
            raise SpecUnsupportedError(
                f"{type(self.streamer).__name__} shows one row, and this call has {rows}. Give each row its own: "
                "hf_specgen.RowStreamers(lambda row: TextStreamer(tokenizer)), or a streamer with put_row(row, ids)."
            )

        if hasattr(self.streamer, "check_rows"):
            self.streamer.check_rows(rows)

    @property
    def for_plain(self):
        """The streamer as plain decoding wants it."""
        return ByRow(self.streamer) if self.by_row and not hasattr(self.streamer, "put") else self.streamer

    def prompts(self, ids: torch.Tensor, rows: Sequence[torch.Tensor]) -> None:
        """`ids`: int64 `[rows, columns]` as the call has them; `rows`: each without its padding."""
        if self.by_row:
            for b, row in enumerate(rows):
                self.streamer.put_row(b, row.cpu())
        elif self.streamer is not None:
            self.streamer.put(ids.cpu())

    def token(self, row: int, token: int, source: str | None) -> None:
        if self.by_token:
            self.streamer.put_token(row, token, source)
        elif self.by_row:
            self.streamer.put_row(row, torch.tensor([token]))
        elif self.streamer is not None:
            self.streamer.put(torch.tensor([token]))

    def end_row(self, row: int) -> None:
        if hasattr(self.streamer, "end_row"):
            self.streamer.end_row(row)

    def end(self) -> None:
        if self.streamer is not None and not self.ended:
            self.ended = True
            self.streamer.end()


class RowStreamers(BaseStreamer):
    """One transformers streamer per row: text, iterator or async. Serves call after call, as they do.

    Args:
        streamers: a list with one streamer per row, or a function from the row's index to its streamer, called when
            the row's prompt arrives.
    """

    def __init__(self, streamers: Sequence[BaseStreamer] | Callable[[int], BaseStreamer]):
        self.make: Callable[[int], BaseStreamer] | None = None
        self.given: dict[int, BaseStreamer] = {}
        if callable(streamers):
            self.make = streamers
        else:
            self.given = dict(enumerate(streamers))
        self.open = dict(self.given)

    def check_rows(self, rows: int) -> None:
        """Raise a ValueError if there are too few streamers."""
        if self.make is None and rows > len(self.given):
            raise ValueError(
                f"This call has {rows} rows, but {len(self.given)} were given streamers. Give one per row."
            )

    def put_row(self, row: int, ids: torch.Tensor) -> None:
        if row not in self.open:
            self.open[row] = self.make(row) if self.make else self.given[row]
        self.open[row].put(ids)

    def end_row(self, row: int) -> None:
        if row in self.open:
            self.open.pop(row).end()

    def put(self, value: torch.Tensor) -> None:
        """What plain decoding gives: prompts `[rows, columns]`, then one token per row `[rows]`."""
        self.check_rows(len(value))
        for row, ids in enumerate(value):
            self.put_row(row, ids.reshape(-1))

    def end(self) -> None:
        """End every row, also if the streamer of one raises (the first exception is raised again)."""
        raised = None
        for row in sorted(self.open):
            try:
                self.end_row(row)
            except Exception as error:
                raised = raised or error
        self.open = dict(self.given)
        if raised is not None:
            raise raised


class ByRow(BaseStreamer):
    """Hands plain decoding's tokens to a streamer that knows rows only."""

    def __init__(self, streamer):
        self.streamer = streamer

    def put(self, value: torch.Tensor) -> None:
        for row, ids in enumerate(value):
            self.streamer.put_row(row, ids.reshape(-1))

    def end(self) -> None:
        self.streamer.end()
