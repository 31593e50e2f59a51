"""Splits of the questions, along which no gold document is shared."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from agentir.errors import InputError
from agentir.records import QAItem

Split = Literal["train", "dev", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "dev", "heldout")
MAX_NAMED = 10


def split_questions(
    items: Sequence[QAItem], *, heldout_fraction: float = 0.0, dev_fraction: float = 0.0, seed: int = 0
) -> dict[str, Split]:
    """Says for each qid on which side its question is.

    Questions that share gold documents, directly or over others, stay together: one without a `split` follows those
    that have one, and where none has, they are drawn together. Development questions are drawn from those then left for
    training.

    Args:
        items: the questions.
        heldout_fraction: share of the questions without a given split to hold out, at most.
        dev_fraction: share of the training questions to set apart for choosing between models, at most.
        seed: fixes the draws.

    Raises:
        InputError: a `split` has another name, or questions given to different sides share a gold document.
    """
    if unknown := sorted({item.split for item in items if item.split is not None} - set(SPLITS)):
        raise InputError(f"split: expected one of {', '.join(SPLITS)}, or none, found {', '.join(map(repr, unknown))}")
    components = question_components(items)
    splits: dict[str, Split] = {}
    free: list[list[QAItem]] = []
    for component in components:
        given = next((split for split in SPLITS if any(item.split == split for item in component)), None)
        if given is None:
            free.append(component)
        else:
            splits |= {item.qid: _side(item, given) for item in component}
    heldout = _draw(free, heldout_fraction, f"{seed} heldout")
    splits |= {item.qid: "heldout" if item.qid in heldout else "train" for component in free for item in component}
    _check_apart(items, splits)
    training = [component for component in components if splits[component[0].qid] == "train"]
    dev = _draw(training, dev_fraction, f"{seed} dev")
    return {item.qid: "dev" if item.qid in dev else splits[item.qid] for item in items}


def question_components(items: Iterable[QAItem]) -> list[list[QAItem]]:
    """The questions in groups that share no gold document with one another, each in the order given."""
    parents: dict[str, str] = {}

    def root(node: str) -> str:
        while (parent := parents.setdefault(node, node)) != node:
            parents[node] = parents[parent]
            node = parent
        return node

    components: dict[str, list[QAItem]] = {}
    items = list(items)
    for item in items:
        for docid in item.gold_docids:
            parents[root(f"doc {docid}")] = root(f"question {item.qid}")
    for item in items:
        components.setdefault(root(f"question {item.qid}"), []).append(item)
    return list(components.values())


def _side(item: QAItem, otherwise: Split) -> Split:
    return next((split for split in SPLITS if split == item.split), otherwise)


def _check_apart(items: Iterable[QAItem], splits: Mapping[str, Split]) -> None:
    """Refuses gold documents of questions on different sides."""
    sides: dict[str, dict[Split, str]] = {}
    for item in items:
        for docid in item.gold_docids:
            sides.setdefault(docid, {}).setdefault(splits[item.qid], item.qid)
    shared = [
        f"{docid} ({', '.join(f'{split} {qid}' for split, qid in by_side.items())})"
        for docid, by_side in sides.items()
        if len(by_side) > 1
    ]
    if shared:
        raise InputError(
            f"split: expected each gold document on one side, found {len(shared)} on several: "
            f"{'; '.join(shared[:MAX_NAMED])}; put the questions that share them on one side"
        )


def _draw(components: Sequence[Sequence[QAItem]], fraction: float, seed: str) -> set[str]:
    """The qids of whole components drawn until no further one fits into the fraction."""
    room = round(fraction * sum(map(len, components)))
    drawn: set[str] = set()
    shuffled = sorted(components, key=lambda component: min(item.qid for item in component))
    random.Random(seed).shuffle(shuffled)
    for component in shuffled:
        if len(component) <= room:
            room -= len(component)
            drawn.update(item.qid for item in component)
    return drawn
