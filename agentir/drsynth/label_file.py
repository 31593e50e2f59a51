"""A file of labels: an oracle's outcomes, one a line, found by their sub-query without being held in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import TypeAdapter

from agentir.agent.journal import JournalFolder
from agentir.appender import JsonlAppender
from agentir.drsynth.failure_streak import GIVE_UP_AFTER
from agentir.drsynth.oracle import LabelOutcome
from agentir.errors import AgentirError
from agentir.jsonl import read_records
from agentir.records import SubQuery, Usage

_OUTCOME = TypeAdapter(LabelOutcome)
_MAX_SHOWN = 200


class NoRankingsError(AgentirError):
    """The first lists that an oracle was shown gave no ranking, and neither will the others."""


class LabelReader:
    """The outcomes in a file; of one that stands there twice, the last.

    Args:
        path: the file.

    Attributes:
        usage: of all of them.

    Raises:
        InputError: a line does not fit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.usage = Usage()
        self._places: dict[str, tuple[int, int]] = {}
        for place, outcome in zip(_places(path), read_records(path, LabelOutcome), strict=True):
            self._places[label_key(outcome.ranking.subquery)] = place
            self.usage += outcome.usage

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, subquery: object) -> bool:
        return isinstance(subquery, SubQuery) and label_key(subquery) in self._places

    def read(self, subqueries: Iterable[SubQuery]) -> Iterator[LabelOutcome]:
        """The outcomes of these sub-queries in their order; those that have none are passed over."""
        with open(self.path, "rb") as file:
            for key in map(label_key, subqueries):
                if key in self._places:
                    start, size = self._places[key]
                    file.seek(start)
                    yield _OUTCOME.validate_json(file.read(size))


class LabelFile(LabelReader):
    """Outcomes that are being written; use as a context manager.

    Nothing is written before the first outcome that holds a ranking: lists that are longer than the model's context, or
    answers that nobody can read, are mended by other settings, and what was written would hold on to the old ones. What
    waits to be written is asked for again by the next start, as far as its journal does not have it.

    Args:
        path: the file, made where it is not there.
        journals: keep the answers for what is not written yet.
        shown: how the lists are shown, for the error: depth, passage_words, window.
        give_up_after: how many of the first outcomes may hold no ranking.
    """

    def __init__(
        self, path: Path, journals: JournalFolder, shown: str = "", give_up_after: int = GIVE_UP_AFTER
    ) -> None:
        self._appender = JsonlAppender(path)
        super().__init__(path)
        self.journals = journals
        self._size = path.stat().st_size
        self._shown = shown
        self._give_up_after = give_up_after
        self._waiting: list[LabelOutcome] = []
        self._completed = False
        for key in self._places:  # a kill may have come just before its journal was removed
            journals.remove(key)

    @property
    def spent(self) -> Usage:
        """What all outcomes took, and those that are not written yet as far as their journals say."""
        return self.usage + self.journals.usage()

    def append(self, outcome: LabelOutcome) -> None:
        """Takes an outcome, and drops the journal of what is written.

        Raises:
            NoRankingsError: none of the first ones holds a ranking.
        """
        if not self._places and outcome.failure and not outcome.ranking.ranked_count:
            self._waiting.append(outcome)
            if len(self._waiting) >= self._give_up_after:
                raise NoRankingsError(_explained(self._waiting, self._shown))
            return
        self._flush()
        self._write(outcome)

    def complete(self) -> None:
        """Writes what waits: no more is to come."""
        self._completed = True
        self._flush()

    def _flush(self) -> None:
        for outcome in self._waiting:
            self._write(outcome)
        self._waiting.clear()

    def _write(self, outcome: LabelOutcome) -> None:
        size = self._appender.append(outcome)
        key = label_key(outcome.ranking.subquery)
        self._places[key] = self._size, size
        self._size += size
        self.usage += outcome.usage
        self.journals.remove(key)

    def discard(self) -> None:
        """Drops what is not written, its journals too."""
        self._waiting.clear()
        self.journals.clear()

    def close(self) -> None:
        """Closes the file; an empty one is removed, unless it is complete, so that it binds nobody."""
        self._appender.close()
        if not self._places and not self._completed:
            self.path.unlink(missing_ok=True)
            if self.journals.usage() == Usage():
                self.journals.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def label_key(subquery: SubQuery) -> str:
    """What an outcome is found by: where the search stands, and what was searched for."""
    return f"{subquery.subqid} {subquery.query}"


def _places(path: Path) -> Iterator[tuple[int, int]]:
    """Start and size of each line that is not blank."""
    start = 0
    with open(path, "rb") as file:
        for line in file:
            if line.strip():
                yield start, len(line)
            start += len(line)


def _explained(outcomes: list[LabelOutcome], shown: str) -> str:
    """Why there is no ranking in any outcome, and what mends that."""
    failures = Counter(outcome.failure for outcome in outcomes)
    text = f"none of the first {len(outcomes)} lists gave a ranking"
    if failures["context_overflow"]:
        said = next(outcome.error for outcome in outcomes if outcome.failure == "context_overflow")
        text += (
            f"; {failures['context_overflow']} are longer than the model's context ({shown}; the server: {said}): set a "
            "smaller window (such as 20) or fewer passage_words or a smaller depth, or serve the model with a longer maximal "
            "length"
        )
    if failures["unparsable"]:
        vote = next(outcome.ranking.votes[-1] for outcome in outcomes if outcome.failure == "unparsable")
        text += (
            f"; the answers for {failures['unparsable']} cannot be read ({shown}; the first: "
            f"{vote.response[:_MAX_SHOWN]!r}): take another model, a larger model.max_tokens where answers are cut, form = "
            '"json", or a smaller window'
        )
    return text
