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
from agentir.appender import JsonlAppender, repair_tail
from agentir.drsynth.faults import FAULTS
from agentir.errors import ArtifactError
from agentir.jsonl import Rejects, loads, read_records
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

        num_damaged: lines of episodes.jsonl that cannot be read; their questions are asked again.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._ledger_path = folder / EPISODES, folder / FINISHED
        self._journals = JournalFolder(folder / OPEN)
        self._episodes = JsonlAppender(self._path)
        self._size = self._path.stat().st_size
        lines = _read_ledger(self._ledger_path, self._size)
        if lines is None:  # it does not fit episodes.jsonl, from which it can be made anew
            self._ledger_path.unlink()
        self._ledger = JsonlAppender(self._ledger_path)
        self.finished = {line.qid: line for line in lines or ()}
        self.num_damaged = 0
        self._enter_from(max((line.offset + line.size for line in lines or ()), default=0))
        for qid in self.finished:  # a kill may have come just before its journal was removed
            self._journals.remove(qid)
        self.open_usage = self._journals.usage()

    @property
    def spent(self) -> Usage:
        """What all episodes had taken when the store was opened, and those that finished since."""
        return sum((line.usage for line in self.finished.values()), self.open_usage)

    def _enter_from(self, offset: int) -> None:
        """Enters the episodes that the short lines lack, from a place in episodes.jsonl on."""
        with open(self._path, "rb") as file:
            file.seek(offset)
            for line in file:
                if (found := _qid_status_usage(line)) is None:
                    self.num_damaged += 1
                else:
                    qid, status, usage = found
                    self._enter(qid, status, offset, len(line), usage)
                offset += len(line)

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
        """The lines of finished episodes in the order of the questions, as they were written.

        Raises:
            ArtifactError: a line was damaged since it was written; the next start asks its question again.
        """
        with open(self._path, "rb") as file:
            for line in (self.finished[qid] for qid in qids if qid in self.finished):
                file.seek(line.offset)
                episode = file.read(line.size)
                found = _qid_status_usage(episode)
                if found is None or found[0] != line.qid:
                    self._ledger_path.unlink()
                    raise ArtifactError(
                        f"{self._path}: the episode of {line.qid} at byte {line.offset} was damaged; run the same command "
                        "again to keep the others and ask again what cannot be read"
                    )
                yield episode

    def close(self) -> None:
        """Closes the files."""
        self._ledger.close()
        self._episodes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _read_ledger(path: Path, size: int) -> list[FinishedEpisode] | None:
    """The short lines, None where they are damaged or do not fit a file of so many bytes without gaps."""
    if not path.exists():
        return []
    repair_tail(path)
    rejects = Rejects()
    lines = list(read_records(path, FinishedEpisode, rejects))
    ends = [0, *(line.offset + line.size for line in lines)]
    is_whole = all(line.offset == end for line, end in zip(lines, ends, strict=False)) and ends[-1] <= size
    return lines if is_whole and not rejects.items else None


def _qid_status_usage(line: bytes) -> tuple[str, str, Usage] | None:
    """What a short line holds of an episode's line, None where that cannot be read."""
    try:
        record = loads(line)
        return str(record["qid"]), str(record["status"]), Usage(**record["usage"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def remove_working_files(folder: Path) -> None:
    """Removes what a rollout needs only while it runs."""
    for name in (EPISODES, FINISHED, FAULTS):
        (folder / name).unlink(missing_ok=True)
    JournalFolder(folder / OPEN).clear()
