"""How fast an endpoint may be asked: requests and tokens a minute, and the pauses that it asks for."""

from __future__ import annotations

import asyncio
import random
import time

JITTER = 0.25
"""Seconds over which requests that were held back together set out again."""


class Pace:
    """Spaces requests evenly, holds them back while tokens are overdrawn, and all of them during a pause.

    Args:
        requests_per_minute: None for no limit.
        tokens_per_minute: None for no limit. An estimate is booked before a request, and settled after its reply.
    """

    def __init__(self, requests_per_minute: float | None = None, tokens_per_minute: float | None = None) -> None:
        self._interval = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._seconds_per_token = 60.0 / tokens_per_minute if tokens_per_minute else 0.0
        self._next_slot = self._paid_until = self._paused_until = 0.0

    async def wait(self, num_tokens: int = 0) -> None:
        """Waits until a request of about so many tokens may be sent, and takes its place."""
        while True:
            now = time.monotonic()
            held = max(self._paid_until, self._paused_until)
            if held <= now:
                start = max(now, self._next_slot)
                self._next_slot = start + self._interval
                self.charge(num_tokens)
                if start <= now:
                    return
                await asyncio.sleep(start - now)
                if self._paused_until <= time.monotonic():
                    return
                self.charge(-num_tokens)  # a pause came in between: queue again
            else:
                await asyncio.sleep(held - now + random.uniform(0, JITTER))

    def charge(self, num_tokens: int) -> None:
        """Books tokens, or gives back what was booked too much (a negative number)."""
        self._paid_until = max(self._paid_until, time.monotonic()) + num_tokens * self._seconds_per_token

    def pause(self, seconds: float) -> None:
        """Holds all requests back, as a server asks with `Retry-After`."""
        self._paused_until = max(self._paused_until, time.monotonic() + seconds)
