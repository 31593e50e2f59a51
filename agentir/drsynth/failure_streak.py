"""A failure streak: pieces of work that fail one after the other of what will fail the rest, such as a wrong API key."""

from __future__ import annotations

from collections.abc import Collection

GIVE_UP_AFTER = 16
HOPELESS = frozenset({"refused", "connection", "tool", "context_overflow", "internal"})
"""Kinds of failures that say more of a server, its address, its key or the settings than of what was asked: "tool" is the
search, "context_overflow" one before the first turn, "internal" a fault of the program."""


class FailureStreak:
    """Watches the outcomes of a run, and says when no more is to be begun.

    Args:
        what: the pieces of work, in the plural.
        give_up_after: how many have to fail of what is hopeless without one that worked between them. Other failures, such
            as a timeout, count neither way.
        passed_over: those that failed in an earlier start and may be left out: their failures do not count, so that a run
            gets to its end although some always fail.
    """

    def __init__(self, what: str, give_up_after: int = GIVE_UP_AFTER, passed_over: Collection[str] = ()) -> None:
        self._what = what
        self._give_up_after = give_up_after
        self._passed_over = passed_over
        self._num_failed = 0

    def failed(self, key: str, kind: str, error: str) -> str:
        """Takes a failure; returns why no more is to be begun, empty where there is no reason.

        Args:
            key: what failed.
            kind: that of the `agentir.errors.ChatError`, or "tool".
            error: its text.
        """
        if kind not in HOPELESS or key in self._passed_over:
            return ""
        self._num_failed += 1
        if self._num_failed < self._give_up_after:
            return ""
        return f"{self._num_failed} {self._what} in a row failed, the last: {kind}: {error}; mend that"

    def worked(self) -> None:
        """Takes a piece of work that was finished."""
        self._num_failed = 0
