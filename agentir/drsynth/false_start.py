"""A false start: a run whose first pieces of work all fail of what will fail the others, such as a wrong API key."""

from __future__ import annotations

GIVE_UP_AFTER = 16
HOPELESS = frozenset({"refused", "connection"})
"""Kinds of `agentir.errors.ChatError` that say more of the server, its address or its key than of what it was asked."""


class FalseStart:
    """Watches the first outcomes of a run.

    Args:
        what: the pieces of work, in the plural.
        give_up_after: how many have to fail, with nothing else among them; None: it never gives up.
    """

    def __init__(self, what: str, give_up_after: int | None = GIVE_UP_AFTER) -> None:
        self._what = what
        self._give_up_after = give_up_after
        self._num_failed = 0

    def failed(self, kind: str, error: str) -> str:
        """Takes a failure; returns why no more is to be begun, empty where there is no reason."""
        if kind not in HOPELESS:
            self.worked()
        self._num_failed += 1
        if self._num_failed != self._give_up_after:
            return ""
        return f"the first {self._num_failed} {self._what} all failed: {kind}: {error}; mend that"

    def worked(self) -> None:
        """Takes any other outcome, after which there is nothing to watch for."""
        self._give_up_after = None
