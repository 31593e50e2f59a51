"""Divides training rows by question, so that nothing of what is measured was trained on.

Rows of one question always stay together, and as far as that leaves parts of fair sizes, so do questions that share a
positive or gold document, directly or over others: a model that was trained to find a document finds it for another question,
too. Which side a question comes to depends on the seed and the questions, not on the order of the rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentir.errors import ConfigError
from agentir.train.data import TrainingRow

By = Literal["component", "question"]
"""What stays together: questions that share documents, or single questions only."""
MAX_SHARE = 0.5
"""A group with a larger share of all rows leaves no folds of fair sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Rows in parts, each in the order given; iterates over the parts.

    Attributes:
        parts: the folds, or the training and the development rows.
        by: what was kept together.
        num_questions: the questions of each part.
        num_components: groups of questions that share no document with one another.
        largest_component: rows of the largest of them.
        num_shared: documents that are a positive or gold in several parts; 0 where components were kept together.
    """

    parts: tuple[tuple[TrainingRow, ...], ...]
    by: By
    num_questions: tuple[int, ...]
    num_components: int
    largest_component: int
    num_shared: int

    def __iter__(self) -> Iterator[tuple[TrainingRow, ...]]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def rest(self, number: int) -> list[TrainingRow]:
        """The rows of all parts but one."""
        return [row for at, part in enumerate(self.parts) if at != number for row in part]

    def lines(self) -> list[str]:
        """What was done, for people."""
        sizes = ", ".join(
            f"{len(part)} rows of {questions} questions"
            for part, questions in zip(self.parts, self.num_questions, strict=True)
        )
        lines = [f"divided by {self.by} into {sizes}"]
        if self.by == "question":
            lines.append(
                f"  {self.largest_component} of {sum(map(len, self.parts))} rows are of questions linked by shared positives "
                f"or gold documents, too many to keep together; {self.num_shared} documents are on several sides"
            )
        return lines


def split_by_question(
    rows: Sequence[TrainingRow],
    dev_fraction: float,
    seed: int,
    *,
    keys: Mapping[str, str] | None = None,
    by: By = "component",
) -> Division:
    """Divides into training and development rows.

    Args:
        rows: all rows.
        dev_fraction: share of the rows to set apart, about.
        seed: of the draw.
        keys: docid -> key that documents of the same text share; an id without one stands for itself.
        by: what to keep together; components are given up where fewer than half of the rows asked for could be set apart.

    Raises:
        ConfigError: no question could be set apart, or none would be left.
    """
    groups = _groups(rows, keys or {})
    wanted = round(dev_fraction * len(rows))
    if by == "component":
        dev = _drawn(groups.by_component, wanted, seed)
        if 2 * sum(map(len, dev)) < wanted:
            by = "question"
    if by == "question":
        dev = _drawn(groups.by_question, wanted, seed)
    chosen = {number for group in dev for number in group}
    if not chosen or len(chosen) == len(rows):
        raise ConfigError(
            f"dev_fraction: expected a share that leaves questions on both sides, found {dev_fraction:g} for "
            f"{len(rows)} rows of {len(groups.by_question)} questions"
        )
    return groups.division([[number for number in range(len(rows)) if number not in chosen], sorted(chosen)], by)


def folds(
    rows: Sequence[TrainingRow],
    num_folds: int,
    seed: int,
    *,
    keys: Mapping[str, str] | None = None,
    by: By = "component",
) -> Division:
    """Divides into folds of about the same number of rows.

    Args:
        rows: all rows.
        num_folds: how many, 2 or more.
        seed: of the draw among groups of the same size.
        keys: docid -> key that documents of the same text share; an id without one stands for itself.
        by: what to keep together; components are given up where one has more than half of the rows, or where there are
            fewer than folds.

    Raises:
        ConfigError: there are fewer questions than folds, or fewer than 2 folds.
    """
    groups = _groups(rows, keys or {})
    if not 2 <= num_folds <= len(groups.by_question):
        raise ConfigError(
            f"folds: expected from 2 to the number of questions ({len(groups.by_question)}), found {num_folds}"
        )
    components = groups.by_component
    if by == "component" and (
        len(components) < num_folds or max(map(len, components.values())) > MAX_SHARE * len(rows)
    ):
        by = "question"
    kept = components if by == "component" else groups.by_question
    parts: list[list[int]] = [[] for _ in range(num_folds)]
    # The largest first, each to the smallest fold: the folds then differ by less than one of the last groups.
    for name in sorted(kept, key=lambda name: (-len(kept[name]), _rank(name, seed))):
        min(parts, key=len).extend(kept[name])
    return groups.division([sorted(part) for part in parts], by)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """The numbers of the rows by question, and by component (named by the first of its questions)."""

    rows: Sequence[TrainingRow]
    documents: Sequence[frozenset[str]]
    by_question: Mapping[str, list[int]]
    by_component: Mapping[str, list[int]]

    def division(self, parts: Sequence[Sequence[int]], by: By) -> Division:
        shared = Counter(key for part in parts for key in {key for number in part for key in self.documents[number]})
        return Division(
            parts=tuple(tuple(self.rows[number] for number in part) for part in parts),
            by=by,
            num_questions=tuple(len({self.rows[number].question for number in part}) for part in parts),
            num_components=len(self.by_component),
            largest_component=max(map(len, self.by_component.values())),
            num_shared=sum(count > 1 for count in shared.values()),
        )


def _groups(rows: Sequence[TrainingRow], keys: Mapping[str, str]) -> _Groups:
    parents: dict[tuple[str, str], tuple[str, str]] = {}

    def root(node: tuple[str, str]) -> tuple[str, str]:
        while (parent := parents.setdefault(node, node)) != node:
            parents[node] = parents[parent]
            node = parent
        return node

    documents = [frozenset(keys.get(docid, docid) for docid in (*row.positives, *row.gold)) for row in rows]
    for row, found in zip(rows, documents, strict=True):
        for key in found:
            parents[root(("document", key))] = root(("question", row.question))
    by_question: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        by_question.setdefault(row.question, []).append(number)
    names: dict[tuple[str, str], str] = {}
    by_component: dict[str, list[int]] = {}
    for question in sorted(by_question):
        name = names.setdefault(root(("question", question)), question)
        by_component.setdefault(name, []).extend(by_question[question])
    return _Groups(rows=rows, documents=documents, by_question=by_question, by_component=by_component)


def _drawn(groups: Mapping[str, Sequence[int]], wanted: int, seed: int) -> list[Sequence[int]]:
    """Whole groups, drawn until no further one fits."""
    drawn: list[Sequence[int]] = []
    for name in sorted(groups, key=lambda name: _rank(name, seed)):
        if len(groups[name]) <= wanted:
            wanted -= len(groups[name])
            drawn.append(groups[name])
    return drawn


def _rank(name: str, seed: int) -> str:
    """The place of a group in a draw, whatever other groups there are."""
    return hashlib.sha256(f"{seed}\x00{name}".encode()).hexdigest()
