"""Journals of what was paid for, so that an episode, or any chain of model calls, that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from agentir.appender import append_line, repair_tail
from agentir.errors import InputError
from agentir.jsonl import Rejects, dumps, read_records
from agentir.records import STRICT, Usage

T = TypeVar("T")
SPENT = "spent"
"""Kind of the steps that tell what was taken in vain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A line of a journal: what was done, what came of it, and a sum over the journal's key and all lines up to this one."""

    __pydantic_config__ = STRICT

    kind: str
    value: Any
    chain: str


class Journal:
    """Records the steps of an episode, and gives back those of an earlier, stopped start in order.

    Args:
        path: a JSON lines file, made with the first new step; None records nothing.
        key: what the journal is of.

    Attributes:
        recorded_usage: what was taken in earlier starts.

    Raises:
        InputError: the file is damaged other than by a torn last line, or is the journal of another key.
    """

    def __init__(self, path: Path | None = None, key: str = "") -> None:
        self._path = path
        self._chain = key
        self._steps = _read(path) if path is not None and path.exists() else []
        for number, step in enumerate(self._steps, start=1):
            self._chain = _chained(self._chain, step.kind, dumps(step.value))
            if step.chain != self._chain:
                raise InputError(f"{path}:{number}: does not follow what is before it: the file was changed; delete it")
        self.recorded_usage = sum((_taken(step, path) for step in self._steps), Usage())
        self._steps = [step for step in self._steps if step.kind != SPENT]
        self._next = 0
        self._unwritten: tuple[str, object] | None = None

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
            try:
                return adapter.validate_json(dumps(step.value))
            except ValidationError as error:
                fault = error.errors(include_url=False)[0]
                where = ".".join(map(str, (kind, *fault["loc"])))
                raise InputError(f"{self._path}:{self._next}: {where}: {fault['msg']}; delete the file") from None
        self.flush()
        value = await make()
        self._unwritten = (kind, value)
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

    def flush(self) -> None:
        """Writes the last step, which otherwise waits for the next one to begin.

        Where the whole outcome is kept as soon as the last step is there, and the journal removed, it need not be written: work
        of a single step then needs no file.
        """
        if self._unwritten is not None:
            unwritten, self._unwritten = self._unwritten, None
            self._record(*unwritten)

    def _record(self, kind: str, value: object) -> None:
        """Appends a step; the file is open only so long, as there may be more journals than files may be open."""
        self.flush()
        if self._path is not None:
            written = dumps(value)
            self._chain = _chained(self._chain, kind, written)
            append_line(self._path, f'{{"kind": "{kind}", "value": {written}, "chain": "{self._chain}"}}')


def _read(path: Path) -> list[Step]:
    repair_tail(path)
    rejects = Rejects()
    steps = list(read_records(path, Step, rejects))
    if rejects.items:
        raise InputError(f"{rejects.items[0]}; delete the file")
    return steps


def _chained(chain: str, kind: str, written: str) -> str:
    return hashlib.sha256(f"{chain}\n{kind}\n{written}".encode()).hexdigest()[:16]


def _taken(step: Step, path: Path | None) -> Usage:
    """What a step took."""
    try:
        return Usage(**(step.value if step.kind == SPENT else step.value["usage"] if step.kind == "generation" else {}))
    except (TypeError, KeyError):
        raise InputError(
            f"{path}: {step.kind}: expected its usage, found {step.value!r:.100}; delete the file"
        ) from None


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
        return Journal(self._path(key), key)

    def remove(self, key: str) -> None:
        """Removes the journal of a key, if there is one."""
        self._path(key).unlink(missing_ok=True)

    def usage(self) -> Usage:
        """What the generations in all journals took."""
        paths = sorted(self._folder.glob("*.jsonl"))
        return sum((_taken(step, path) for path in paths for step in _read(path)), Usage())

    def clear(self) -> None:
        """Removes all journals and the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
