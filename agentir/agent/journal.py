"""The journal of one episode: what was paid for, so that an episode that was stopped goes on where it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from agentir.errors import InputError
from agentir.jsonl import JsonlAppender, dumps, read_records, repair_tail
from agentir.records import STRICT

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A line of a journal: what was done, and what came of it."""

    __pydantic_config__ = STRICT

    kind: str
    value: Any


class Journal:
    """Records the steps of an episode, and gives back those of an earlier, stopped start in order.

    Args:
        path: a JSON lines file, made with the first new step; None records nothing.

    Raises:
        InputError: the file is damaged other than by a torn last line.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._appender: JsonlAppender | None = None
        self._steps: list[Step] = []
        if path is not None and path.exists():
            repair_tail(path)
            self._steps = list(read_records(path, Step))
        self._next = 0

    @property
    def num_recorded(self) -> int:
        """Steps of an earlier start that were not given back yet."""
        return len(self._steps) - self._next

    async def step(self, kind: str, adapter: TypeAdapter[T], make: Callable[[], Awaitable[T]]) -> T:
        """The step's value: recorded before, or made now and recorded.

        Raises:
            InputError: the recorded step is another one.
        """
        if self._next < len(self._steps):
            step, self._next = self._steps[self._next], self._next + 1
            if step.kind != kind:
                raise InputError(
                    f"{self._path}:{self._next}: kind: expected {kind}, found {step.kind}; delete the file"
                )
            return adapter.validate_json(dumps(step.value))
        value = await make()
        if self._path is not None:
            if self._appender is None:
                self._appender = JsonlAppender(self._path)
            self._appender.append(Step(kind=kind, value=value))
        return value

    def close(self) -> None:
        """Closes the file."""
        if self._appender is not None:
            self._appender.close()
            self._appender = None
