"""Journals of what was paid for, so that an episode, or any chain of model calls, that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from agentir.errors import InputError
from agentir.jsonl import JsonlAppender, dumps, read_records, repair_tail
from agentir.records import STRICT, Usage

T = TypeVar("T")
SPENT = "spent"
TAKING = ("generation", SPENT)
"""Kinds of steps that tell what was taken."""


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

    Attributes:
        recorded_usage: what was taken in earlier starts.

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
        taken = [
            step.value if step.kind == SPENT else step.value.get("usage", {})
            for step in self._steps
            if step.kind in TAKING
        ]
        self.recorded_usage = sum((Usage(**usage) for usage in taken), Usage())
        self._steps = [step for step in self._steps if step.kind != SPENT]
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
        self._record(kind, value)
        return value

    def decision(self, kind: str, make: Callable[[], str]) -> str:
        """What was decided at this point, empty for nothing: as recorded before, or made now and recorded if not empty.

        What depends on the clock or on the server's faults is so decided once.
        """
        if self._next < len(self._steps):
            step = self._steps[self._next]
            if step.kind != kind:
                return ""
            self._next += 1
            return str(step.value)
        if made := make():
            self._record(kind, made)
        return made

    def spent(self, usage: Usage) -> None:
        """Records what was taken in vain."""
        if usage != Usage():
            self._record(SPENT, usage)

    def _record(self, kind: str, value: object) -> None:
        if self._path is not None:
            if self._appender is None:
                self._appender = JsonlAppender(self._path)
            self._appender.append(Step(kind=kind, value=value))

    def close(self) -> None:
        """Closes the file; it is not forced to the disk, which would hold up all other work in this process."""
        if self._appender is not None:
            self._appender.close(sync=False)
            self._appender = None


class JournalFolder:
    """The journals of all work under way, one for each key.

    Args:
        folder: made with the first journal.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.jsonl"

    def open(self, key: str) -> Journal:
        """The journal of a key, with what an earlier start recorded."""
        self._folder.mkdir(exist_ok=True)
        return Journal(self._path(key))

    def remove(self, key: str) -> None:
        """Removes the journal of a key, if there is one."""
        self._path(key).unlink(missing_ok=True)

    def usage(self) -> Usage:
        """What the generations in all journals took."""
        return sum((Journal(path).recorded_usage for path in sorted(self._folder.glob("*.jsonl"))), Usage())

    def clear(self) -> None:
        """Removes all journals and the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
