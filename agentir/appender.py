"""JSON lines, appended safely.

Whole lines are written with one system call each. A tail that a killed process left half-written is cut off when the file is
opened again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from agentir.jsonl import dumps


def repair_tail(path: str | Path) -> int:
    """Cuts off a last line that a killed writer left incomplete; returns the number of bytes cut.

    A last line that only lacks its line feed but is a whole JSON object is kept.
    """
    path = Path(path)
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with open(path, "r+b") as file:
        tail = _last_line(file)
        if tail.endswith(b"\n"):
            return 0
        size = file.seek(0, os.SEEK_END)
        try:
            whole = isinstance(json.loads(tail), dict)
        except (ValueError, RecursionError):
            whole = False
        if whole:
            file.write(b"\n")
        else:
            file.truncate(size - len(tail))
        file.flush()
        os.fsync(file.fileno())
        return 0 if whole else len(tail)


def _last_line(file: IO[bytes]) -> bytes:
    """The bytes after the last line feed but one, read backwards in blocks."""
    size = file.seek(0, os.SEEK_END)
    block, start = b"", size
    while start > 0:
        step = min(65536, start)
        start -= step
        file.seek(start)
        block = file.read(step) + block
        if (cut := block.rfind(b"\n", 0, len(block) - 1)) >= 0:
            return block[cut + 1 :]
    return block


def append_line(path: Path, line: str) -> None:
    """Appends a line to a file whose tail is whole; it survives the death of this process."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        _append(fd, line)
    finally:
        os.close(fd)


def _append(fd: int, line: str) -> int:
    data = line.encode("utf-8") + b"\n"
    size = len(data)
    while data:
        data = data[os.write(fd, data) :]
    return size


class JsonlAppender:
    """Appends records to a JSON lines file, one system call a line, after repairing its tail.

    Use as a context manager; `num_cut` is the number of bytes that the repair cut off.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.num_cut = repair_tail(self.path)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, record: Any) -> int:
        """Writes one line; it survives the death of this process, and after `sync` that of the machine.

        Returns:
            The number of bytes, line end included.
        """
        return _append(self._fd, dumps(record))

    def sync(self) -> None:
        """Forces what was appended to the disk."""
        os.fsync(self._fd)

    def close(self, *, sync: bool = True) -> None:
        """Closes, and syncs before unless what was appended need not outlive the machine's death."""
        if sync:
            self.sync()
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
