"""Slices: the groups of sub-queries on which systems are compared.

Titles and answers are looked for as whole words, whatever their case, width or punctuation. In scripts that put no spaces
between words every character counts as a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

from agentir.errors import ConfigError
from agentir.records import QAItem, TrainingExample

ALL = "all"
FIRST_TURN = "first turn"
LATER_TURNS = "later turns"
NO_TITLE = "gold title not in query"
NO_LEAK = "no leak"
SHUFFLED = "shuffled list"
GOLD_FIRST = "gold first list"
BUILT_IN = (ALL, FIRST_TURN, LATER_TURNS, NO_TITLE, NO_LEAK, SHUFFLED, GOLD_FIRST)
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
"""Thai, Lao, Burmese, Khmer, kana and Han."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_PARENTHESIS = re.compile(r"\s*\([^()]*\)\s*\Z")


def normalized(text: str) -> str:
    """The words of a text, casefolded and in NFKC, each between single spaces."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return f" {' '.join(_WORD.findall(folded))} "


def contains(text: str, phrase: str) -> bool:
    """Whether the words of the phrase occur in the text, one after the other; a phrase without words occurs nowhere."""
    words = normalized(phrase)
    return bool(words.strip()) and words in normalized(text)


def contains_title(text: str, title: str) -> bool:
    """Whether a title occurs in the text, with or without what stands in parentheses at its end ("Dys (Band)")."""
    return contains(text, title) or contains(text, _PARENTHESIS.sub("", title))


def slice_names(
    metadata_slices: Mapping[str, Mapping[str, str]], intersections: Sequence[Sequence[str]]
) -> tuple[str, ...]:
    """Every slice there can be, in the order of reports.

    Raises:
        ConfigError: a metadata slice has the name of a built-in one or no condition, or an intersection names fewer than
            two slices or an unknown one.
    """
    for name, conditions in metadata_slices.items():
        if name in BUILT_IN:
            raise ConfigError(f"slices: {name!r} is a built-in slice; name yours differently")
        if not conditions:
            raise ConfigError(f"slices: {name!r}: expected at least one metadata field and its value, found none")
    known = (*BUILT_IN, *metadata_slices)
    for parts in intersections:
        if len(parts) < 2:
            raise ConfigError(f"intersections: expected two slices or more, found {list(parts)}")
        if unknown := [part for part in parts if part not in known]:
            raise ConfigError(f"intersections: unknown slice {unknown[0]!r}; known: {', '.join(known)}")
    return (*known, *(_intersection_name(parts) for parts in intersections))


def slices_of(
    example: TrainingExample,
    qa: QAItem,
    titles_of_relevant: Sequence[str],
    metadata_slices: Mapping[str, Mapping[str, str]] | None = None,
    intersections: Sequence[Sequence[str]] = (),
) -> tuple[str, ...]:
    """The slices a sub-query belongs to, in the order of `slice_names`.

    The first search of a trajectory is turn 0, call 0; later turns have seen results. Further parallel calls of turn 0 are
    in neither. An empty title occurs nowhere.

    Args:
        example: the sub-query with its relevant documents.
        qa: its question.
        titles_of_relevant: the titles of `example.positive_docids`.
        metadata_slices: slice -> metadata field -> the value it must have.
        intersections: groups of slice names; a sub-query is in the intersection if it is in all of a group.
    """
    subquery = example.subquery
    seen = f"{subquery.query}\n{subquery.reasoning}"
    leaks = any(contains_title(seen, title) for title in titles_of_relevant) or any(
        contains(seen, answer) for answer in qa.answers
    )
    member = {
        ALL: True,
        FIRST_TURN: subquery.turn == 0 and subquery.call == 0,
        LATER_TURNS: subquery.turn > 0,
        NO_TITLE: not any(contains_title(subquery.query, title) for title in titles_of_relevant),
        NO_LEAK: not leaks,
        SHUFFLED: example.num_gold_first == 0,
        GOLD_FIRST: example.num_gold_first > 0,
    }
    for name, conditions in (metadata_slices or {}).items():
        member[name] = all(qa.metadata.get(field) == value for field, value in conditions.items())
    for parts in intersections:
        member[_intersection_name(parts)] = all(member[part] for part in parts)
    return tuple(name for name, holds in member.items() if holds)


def _intersection_name(parts: Sequence[str]) -> str:
    return " & ".join(parts)
