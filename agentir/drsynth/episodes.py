"""The folder of a running rollout: finished episodes, and journals of those that are under way.

    episodes.jsonl   one trajectory a line, in the order in which they finished
    finished.jsonl   a short line for each: question, status, place in episodes.jsonl, usage
    faults.json      what failed in earlier starts, see `agentir.drsynth.faults`
    open/            a journal for each episode that is not finished

A kill at any moment loses at most the calls in flight: an episode whose short line was not written any more is found in
episodes.jsonl, one that was under way goes on from its journal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agentir.agent.journal import Journal, JournalFolder
from agentir.drsynth.faults import FAULTS
from agentir.errors import ArtifactError
from agentir.jsonl import JsonlAppender, loads, read_records, repair_tail
from agentir.records import STRICT, Trajectory, Usage

EPISODES, FINISHED, OPEN = "episodes.jsonl", "finished.jsonl", "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEpisode:
    """A line of finished.jsonl; `offset` and `size` are bytes in episodes.jsonl."""

    __pydantic_config__ = STRICT

    qid: str
    status: str
    offset: int
    size: int
    usage: Usage


class EpisodeStore:
    """Keeps what a rollout has done; opening it reads the short lines only. Use as a context manager.

    Args:
        folder: the artifact's folder.

    Attributes:
        finished: by qid.
        open_usage: what the episodes under way had taken when the store was opened.

    Raises:
        ArtifactError: finished.jsonl and episodes.jsonl do not belong together.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / EPISODES
        self._journals = JournalFolder(folder / OPEN)
        repair_tail(self._path)
        self._size = self._path.stat().st_size if self._path.exists() else 0
        self._ledger = JsonlAppender(folder / FINISHED)
        self.finished = {line.qid: line for line in read_records(folder / FINISHED, FinishedEpisode)}
        self._episodes = JsonlAppender(self._path)
        self._recover()
        for qid in self.finished:  # a kill may have come just before its journal was removed
            self._journals.remove(qid)
        self.open_usage = self._journals.usage()

    @property
    def spent(self) -> Usage:
        """What all episodes had taken when the store was opened, and those that finished since."""
        return sum((line.usage for line in self.finished.values()), self.open_usage)

    def _recover(self) -> None:
        """Enters the episodes that were written just before a kill."""
        known = max((line.offset + line.size for line in self.finished.values()), default=0)
        if known > self._size:
            raise ArtifactError(
                f"{self._path}: expected at least {known} bytes, as {FINISHED} says, found {self._size}; the file was cut: "
                "delete the folder to make it anew"
            )
        with open(self._path, "rb") as file:
            file.seek(known)
            for line in file:
                record = loads(line)
                usage = Usage(**record["usage"])
                self._enter(record["qid"], record["status"], known, len(line), usage)
                known += len(line)

    def _enter(self, qid: str, status: str, offset: int, size: int, usage: Usage) -> None:
        line = FinishedEpisode(qid=qid, status=status, offset=offset, size=size, usage=usage)
        self._ledger.append(line)
        self.finished[qid] = line
        self._journals.remove(qid)

    def journal(self, qid: str) -> Journal:
        """The journal of an episode, with what an earlier start recorded."""
        return self._journals.open(qid)

    def finish(self, trajectory: Trajectory) -> None:
        """Keeps a finished episode, and drops its journal."""
        size = self._episodes.append(trajectory)
        self._enter(trajectory.qid, trajectory.status, self._size, size, trajectory.usage)
        self._size += size

    def usage_besides(self, qids: Collection[str]) -> Usage:
        """What was taken besides the finished episodes of these questions: by failed ones, and those of other questions."""
        others = (line.usage for line in self.finished.values() if line.qid not in qids)
        return sum(others, self._journals.usage())

    def in_order(self, qids: Sequence[str]) -> Iterator[bytes]:
        """The lines of finished episodes in the order of the questions, as they were written."""
        with open(self._path, "rb") as file:
            for line in (self.finished[qid] for qid in qids if qid in self.finished):
                file.seek(line.offset)
                yield file.read(line.size)

    def close(self) -> None:
        """Closes the files."""
        self._ledger.close()
        self._episodes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def remove_working_files(folder: Path) -> None:
    """Removes what a rollout needs only while it runs."""
    for name in (EPISODES, FINISHED, FAULTS):
        (folder / name).unlink(missing_ok=True)
    JournalFolder(folder / OPEN).clear()
