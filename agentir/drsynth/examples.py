"""Training examples: positives and hard negatives from rankings, without what must never be a negative."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentir.drsynth.pool import text_key
from agentir.drsynth.splits import SPLITS, Split
from agentir.records import QAItem, Ranking, TrainingExample

NUM_POSITIVES = 1
NUM_NEGATIVES = 7
"""AgentIR trains on the oracle's first and its last seven."""
Exclusion = Literal["own_gold", "heldout_gold", "dev_gold", "same_text_as_positive", "same_text_as_gold"]


class NegativeFilter:
    """Knows the documents that must not be negatives of a question.

    These are its own gold documents, the gold documents of every held-out and development question (else training would
    push down what the evaluation asks for), and documents with the text of one of these or of a positive.

    Args:
        questions: all questions, of every side.
        splits: the side of each.
        texts: the documents' texts by docid; one that is missing is like no other.
    """

    def __init__(self, questions: Iterable[QAItem], splits: Mapping[str, Split], texts: Mapping[str, str]) -> None:
        self._keys = {docid: text_key(text) for docid, text in texts.items()}
        self._own: dict[str, frozenset[str]] = {}
        guarded: dict[Split, set[str]] = {"train": set(), "dev": set(), "heldout": set()}
        for item in questions:
            self._own[item.qid] = frozenset(item.gold_docids)
            guarded[splits[item.qid]].update(item.gold_docids)
        self.heldout_gold = frozenset(guarded["heldout"])
        self.dev_gold = frozenset(guarded["dev"])
        self._guarded_keys = self._keys_of(self.heldout_gold | self.dev_gold)

    def exclusion(self, docid: str, qid: str, positives: Sequence[str]) -> Exclusion | None:
        """Why a document must not be a negative of a question, None where it may."""
        own, key = self._own[qid], self._keys.get(docid)
        if docid in own:
            return "own_gold"
        if docid in self.heldout_gold:
            return "heldout_gold"
        if docid in self.dev_gold:
            return "dev_gold"
        if not key:
            return None
        if key in self._keys_of(positives):
            return "same_text_as_positive"
        if key in self._guarded_keys or key in self._keys_of(own):
            return "same_text_as_gold"
        return None

    def _keys_of(self, docids: Iterable[str]) -> set[str]:
        return {key for docid in docids if (key := self._keys.get(docid))}


def make_example(
    ranking: Ranking,
    negatives: NegativeFilter,
    *,
    num_positives: int = NUM_POSITIVES,
    num_negatives: int = NUM_NEGATIVES,
) -> tuple[TrainingExample | None, Counter[Exclusion]]:
    """Takes the positives from the front and the hard negatives from the end of what the oracle truly ranked.

    Args:
        ranking: of a question that the filter knows.
        negatives: says what must not be one.
        num_positives: how many, at most.
        num_negatives: how many, at most; a document that must not be one is passed over, and the one before it is
            taken.

    Returns:
        The example, None where the oracle ranked nothing; and how many documents were passed over, by reason.
    """
    ranked = ranking.order[: ranking.ranked_count]
    positives, rest = ranked[:num_positives], ranked[num_positives:]
    passed_over: Counter[Exclusion] = Counter()
    if not positives:
        return None, passed_over
    chosen: list[str] = []
    for docid in reversed(rest):
        if len(chosen) == num_negatives:
            break
        if (exclusion := negatives.exclusion(docid, ranking.subquery.qid, positives)) is None:
            chosen.append(docid)
        else:
            passed_over[exclusion] += 1
    example = TrainingExample(
        subquery=ranking.subquery,
        positive_docids=positives,
        negative_docids=tuple(reversed(chosen)),
        oracle_order=ranked,
        num_gold_first=ranking.num_gold_first,
    )
    return example, passed_over


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSet:
    """Examples by the side of their question, with what was left out.

    Attributes:
        examples: in the order of the rankings.
        passed_over: documents that must not be negatives and stood where one would have been taken.
        counts: rankings without an example, by reason; lists of which the oracle ranked a part only; training examples
            whose positive is a gold document of a held-out question.
    """

    examples: dict[Split, list[TrainingExample]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    passed_over: dict[Split, Counter[Exclusion]] = field(default_factory=lambda: {split: Counter() for split in SPLITS})
    counts: Counter[str] = field(default_factory=Counter)


def make_examples(
    rankings: Iterable[Ranking],
    negatives: NegativeFilter,
    splits: Mapping[str, Split],
    *,
    num_positives: int = NUM_POSITIVES,
    num_negatives: int = NUM_NEGATIVES,
) -> ExampleSet:
    """Makes the examples of all rankings, see `make_example`.

    Args:
        rankings: those of questions without a side are counted and left out.
        negatives: says what must not be one.
        splits: the side of each question.
        num_positives: how many an example has, at most.
        num_negatives: how many an example has, at most.
    """
    made = ExampleSet()
    made.counts.update(
        rankings_of_unknown_questions=0, rerank_failed=0, partly_ranked_lists=0, heldout_gold_as_positive=0
    )
    for ranking in rankings:
        if (split := splits.get(ranking.subquery.qid)) is None:
            made.counts["rankings_of_unknown_questions"] += 1
            continue
        example, passed_over = make_example(
            ranking, negatives, num_positives=num_positives, num_negatives=num_negatives
        )
        if example is None:
            made.counts["rerank_failed"] += 1
            continue
        made.examples[split].append(example)
        made.passed_over[split].update(passed_over)
        made.counts["partly_ranked_lists"] += ranking.ranked_count < len(ranking.candidates)
        if split == "train":
            made.counts["heldout_gold_as_positive"] += not negatives.heldout_gold.isdisjoint(example.positive_docids)
    return made
