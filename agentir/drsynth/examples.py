"""Training examples: positives and hard negatives from rankings, without what must never be a negative."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentir.corpus.text_key import text_key
from agentir.drsynth.splits import SPLITS, Split
from agentir.records import Document, QAItem, Ranking, TrainingExample

NUM_POSITIVES = 1
NUM_NEGATIVES = 7
"""AgentIR trains on the oracle's first and its last seven."""
Exclusion = Literal["own_gold", "heldout_gold", "dev_gold", "same_text_as_positive", "same_text_as_gold", "better_half"]


class GoldGuard:
    """Knows the gold documents, and so what must not be a negative of a question, nor a positive to train on.

    No negatives are the question's own gold documents, the gold documents of every held-out and development question
    (else training would push down what the evaluation asks for), and documents with the text of one of these or of a
    positive. No positives to train on are the gold documents of questions that a split is evaluated with, see `guards`
    (else training would learn what the evaluation asks for).

    Args:
        questions: all questions, of every side.
        splits: the side of each.
        documents: by docid; the text of one that is missing is like no other.
    """

    def __init__(
        self, questions: Iterable[QAItem], splits: Mapping[str, Split], documents: Mapping[str, Document]
    ) -> None:
        self._keys = {docid: text_key(document) for docid, document in documents.items()}
        self._own: dict[str, tuple[str, ...]] = {}
        gold: dict[Split, set[str]] = {split: set() for split in SPLITS}
        for item in questions:
            self._own[item.qid] = item.gold_docids
            gold[splits[item.qid]].update(item.gold_docids)
        self._heldout, self._dev = frozenset(gold["heldout"]), frozenset(gold["dev"])
        self._heldout_keys = self._keys_of(self._heldout)
        self._guarded_keys = self._heldout_keys | self._keys_of(self._dev)

    def gold(self, qid: str) -> tuple[str, ...]:
        """The gold documents of a question."""
        return self._own[qid]

    def guards(self, docid: str, split: Split) -> bool:
        """Whether a document is gold that a split must not train to find, or has the text of such a one.

        That is held-out gold for the training and the development questions (which may be trained on in the end), and
        the gold of development questions for the training questions.
        """
        if split == "heldout":
            return False
        gold = self._heldout | self._dev if split == "train" else self._heldout
        keys = self._guarded_keys if split == "train" else self._heldout_keys
        return docid in gold or self._keys.get(docid) in keys

    def exclusion(self, docid: str, qid: str, positives: Sequence[str]) -> Exclusion | None:
        """Why a document must not be a negative of a question, None where it may."""
        own, key = self._own[qid], self._keys.get(docid)
        if docid in own:
            return "own_gold"
        if docid in self._heldout:
            return "heldout_gold"
        if docid in self._dev:
            return "dev_gold"
        if key in self._keys_of(positives):
            return "same_text_as_positive"
        if key in self._guarded_keys or key in self._keys_of(own):
            return "same_text_as_gold"
        return None

    def _keys_of(self, docids: Iterable[str]) -> frozenset[str]:
        return frozenset(self._keys[docid] for docid in docids if docid in self._keys)


def make_example(
    ranking: Ranking,
    guard: GoldGuard,
    *,
    num_positives: int = NUM_POSITIVES,
    num_negatives: int = NUM_NEGATIVES,
) -> tuple[TrainingExample | None, Counter[Exclusion]]:
    """Takes the positives from the front and the hard negatives from the end of what the oracle truly ranked.

    Where the oracle ranked a part of the list only, a negative stands in the worse half of what was shown: of an answer
    that was cut off after the best documents, the last ones are no negatives.

    Args:
        ranking: of a question that the guard knows.
        guard: says what must not be a negative.
        num_positives: how many, at most.
        num_negatives: how many, at most; a document that must not be one is passed over, and the one before it is
            taken.

    Returns:
        The example, None where the oracle ranked nothing; and how many documents were passed over, by reason;
        "better_half" counts those that would have been taken but for the half that they stand in.
    """
    ranked = ranking.order[: ranking.ranked_count]
    positives = ranked[:num_positives]
    better_half = (len(ranking.candidates) + 1) // 2 if len(ranked) < len(ranking.candidates) else 0
    passed_over: Counter[Exclusion] = Counter()
    if not positives:
        return None, passed_over
    qid = ranking.subquery.qid
    chosen: list[str] = []
    for rank in range(len(ranked) - 1, len(positives) - 1, -1):
        if len(chosen) + passed_over["better_half"] == num_negatives:
            break
        exclusion = guard.exclusion(ranked[rank], qid, positives) or ("better_half" if rank < better_half else None)
        if exclusion is None:
            chosen.append(ranked[rank])
        else:
            passed_over[exclusion] += 1
    example = TrainingExample(
        subquery=ranking.subquery,
        positive_docids=positives,
        negative_docids=tuple(reversed(chosen)),
        oracle_order=ranked,
        num_gold_first=ranking.num_gold_first,
        gold_docids=guard.gold(qid),
    )
    return example, passed_over


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSet:
    """Examples by the side of their question, with what was left out.

    Attributes:
        examples: in the order of the rankings.
        passed_over: documents that must not be negatives and stood where one would have been taken.
        counts: rankings without an example, by reason ("positive_is_heldout_gold": what they would train to find is
            what the evaluation asks for); lists of which the oracle ranked a part only.
    """

    examples: dict[Split, list[TrainingExample]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    passed_over: dict[Split, Counter[Exclusion]] = field(default_factory=lambda: {split: Counter() for split in SPLITS})
    counts: Counter[str] = field(default_factory=Counter)


def make_examples(
    rankings: Iterable[Ranking],
    guard: GoldGuard,
    splits: Mapping[str, Split],
    *,
    num_positives: int = NUM_POSITIVES,
    num_negatives: int = NUM_NEGATIVES,
) -> ExampleSet:
    """Makes the examples of all rankings, see `make_example`.

    Args:
        rankings: those of questions without a side are counted and left out.
        guard: says what must be neither a negative nor a positive to train on.
        splits: the side of each question.
        num_positives: how many an example has, at most.
        num_negatives: how many an example has, at most.
    """
    made = ExampleSet()
    made.counts.update(
        rankings_of_unknown_questions=0, rerank_failed=0, positive_is_heldout_gold=0, partly_ranked_lists=0
    )
    for ranking in rankings:
        if (split := splits.get(ranking.subquery.qid)) is None:
            made.counts["rankings_of_unknown_questions"] += 1
            continue
        example, passed_over = make_example(ranking, guard, num_positives=num_positives, num_negatives=num_negatives)
        if example is None:
            made.counts["rerank_failed"] += 1
            continue
        if any(guard.guards(docid, split) for docid in example.positive_docids):
            made.counts["positive_is_heldout_gold"] += 1
            continue
        made.examples[split].append(example)
        made.passed_over[split].update(passed_over)
        made.counts["partly_ranked_lists"] += ranking.ranked_count < len(ranking.candidates)
    return made
