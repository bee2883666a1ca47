"""How far the writing of a quantized copy has come."""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[str, int, int], None]
"""Is told what comes next, how many steps are done, and of how many, as far as one knows."""


class Steps:
    """
    Attributes:
        expected: steps in all, as far as one knows.
    """

    def __init__(self, listener: Listener = lambda *step: None, expected: int = 0):
        self.listener, self.expected = listener, expected
        self._begun = 0

    def begin(self, what: str) -> None:
        """All that was begun before is done."""
        self.listener(what, self._begun, self.expected)
        self._begun += 1
