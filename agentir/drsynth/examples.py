"""Training examples: positives and hard negatives from rankings, without what must never be a negative."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeVar

from agentir.config import Field, Section
from agentir.corpus.text_key import text_key
from agentir.drsynth.splits import SPLITS, Split
from agentir.records import Document, QAItem, Ranking, TrainingExample

NUM_POSITIVES = 1
NUM_NEGATIVES = 7
"""AgentIR trains on the oracle's first and its last seven."""
Exclusion = Literal[
    "own_gold",
    "heldout_gold",
    "dev_gold",
    "same_text_as_positive",
    "same_text_as_gold",
    "same_document_as_positive",
    "score_above_ratio",
    "better_half",
    "rank_gap",
]
T = TypeVar("T")
_CHUNKID = re.compile(r"(.+)#\d+", re.DOTALL)


class ExampleRules(Section):
    """Which rankings become examples, and which of their documents positives and negatives."""

    num_positives: int = Field(default=NUM_POSITIVES, ge=1)
    """How many documents from the front of a ranking are positives."""
    num_negatives: int = Field(default=NUM_NEGATIVES, ge=0)
    """How many documents from its end are hard negatives, at most; those of a partly ranked list stand in its worse half."""
    min_rank_gap: int = Field(default=0, ge=0)
    """How many ranks a negative must stand behind the last positive, at least."""
    max_negative_score_ratio: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Passes over what the retriever scored above this share of the positive's score (as NV-Retriever does, with 0.95);
    where one of the two scores is not known, or the positive's is not above 0, the rule does not apply."""
    exclude_same_document: bool = True
    """Whether other chunks of a positive's document (ids `docid#n`) are passed over; false where ids merely look so."""
    min_agreement: float | None = Field(default=None, ge=-1, le=1, allow_inf_nan=False)
    """Leaves out rankings whose votes agree less (from -1 to 1); those with fewer than two readable votes are kept."""
    max_per_question: int | None = Field(default=None, ge=1)
    """How many examples of a question are kept, at most: drawn, spread over its turns."""
    seed: int = 0
    """Fixes what is drawn: the questions of each side, and the examples of a question that has too many."""


def document_of(docid: str) -> str:
    """The document that an id belongs to: of a chunk's `docid#n` that is `docid`, any other id stands for itself."""
    match = _CHUNKID.fullmatch(docid)
    return match[1] if match else docid


class GoldGuard:
    """Knows the gold documents, and so what must not be a negative of a question, nor a positive to train on.

    No negatives are the question's own gold documents, the gold documents of every held-out and development question
    (else training would push down what the evaluation asks for), and documents with the text of one of these or of a
    positive. No positives to train on are the gold documents of questions that a split is evaluated with, see `guards`
    (else training would learn what the evaluation asks for). A chunk `docid#n` of a gold document is gold, too.

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
        return _among(docid, gold) or self._keys.get(docid) in keys

    def exclusion(self, docid: str, qid: str, positives: Sequence[str]) -> Exclusion | None:
        """Why a document must not be a negative of a question, None where it may."""
        own, key = self._own[qid], self._keys.get(docid)
        if _among(docid, own):
            return "own_gold"
        if _among(docid, self._heldout):
            return "heldout_gold"
        if _among(docid, self._dev):
            return "dev_gold"
        if key in self._keys_of(positives):
            return "same_text_as_positive"
        if key in self._guarded_keys or key in self._keys_of(own):
            return "same_text_as_gold"
        return None

    def _keys_of(self, docids: Iterable[str]) -> frozenset[str]:
        return frozenset(self._keys[docid] for docid in docids if docid in self._keys)


def _among(docid: str, gold: Sequence[str] | frozenset[str]) -> bool:
    return docid in gold or document_of(docid) in gold


DEFAULT_RULES = ExampleRules()


def make_example(
    ranking: Ranking, guard: GoldGuard, rules: ExampleRules = DEFAULT_RULES
) -> tuple[TrainingExample | None, Counter[Exclusion]]:
    """Takes the positives from the front and the hard negatives from the end of what the oracle truly ranked.

    Where the oracle ranked a part of the list only, a negative stands in the worse half of what was shown: of an answer
    that was cut off after the best documents, the last ones are no negatives.

    Args:
        ranking: of a question that the guard knows.
        guard: says what must not be a negative.
        rules: how many of both, and what else must not be a negative; such a document is passed over, and the one before
            it is taken.

    Returns:
        The example, None where the oracle ranked nothing; and how many documents were passed over, by reason;
        "better_half" and "rank_gap" count those that would have been taken but for the rank that they have.
    """
    ranked = ranking.order[: ranking.ranked_count]
    positives = ranked[: rules.num_positives]
    passed_over: Counter[Exclusion] = Counter()
    if not positives:
        return None, passed_over
    chosen: list[str] = []
    for rank in range(len(ranked) - 1, len(positives) - 1, -1):
        if len(chosen) + passed_over["better_half"] + passed_over["rank_gap"] == rules.num_negatives:
            break
        exclusion = (
            guard.exclusion(ranked[rank], ranking.subquery.qid, positives)
            or _exclusion_by_rule(ranked[rank], positives, ranking, rules)
            or _exclusion_by_rank(rank, len(positives), ranking, rules)
        )
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
        gold_docids=guard.gold(ranking.subquery.qid),
        agreement=ranking.agreement,
    )
    return example, passed_over


def _exclusion_by_rule(docid: str, positives: Sequence[str], ranking: Ranking, rules: ExampleRules) -> Exclusion | None:
    if rules.exclude_same_document and document_of(docid) in {document_of(positive) for positive in positives}:
        return "same_document_as_positive"
    if rules.max_negative_score_ratio is not None:
        ratio = _score_ratio(docid, positives, ranking)
        if ratio is not None and ratio > rules.max_negative_score_ratio:
            return "score_above_ratio"
    return None


def _exclusion_by_rank(rank: int, num_positives: int, ranking: Ranking, rules: ExampleRules) -> Exclusion | None:
    if ranking.ranked_count < len(ranking.candidates) and rank < (len(ranking.candidates) + 1) // 2:
        return "better_half"
    return "rank_gap" if rank - (num_positives - 1) < rules.min_rank_gap else None


def _score_ratio(docid: str, positives: Sequence[str], ranking: Ranking) -> float | None:
    """The retriever's score of a document as a share of the lowest among the positives, None where it is not known."""
    scores = {candidate.docid: candidate.score for candidate in ranking.candidates}
    known = [score for positive in positives if (score := scores.get(positive)) is not None and score > 0]
    score = scores.get(docid)
    return score / min(known) if known and score is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSet:
    """Examples by the side of their question, with what was left out.

    Attributes:
        examples: in the order of the rankings.
        ranked_shares: of the list of each example, the share that the oracle truly ranked.
        passed_over: documents that must not be negatives and stood where one would have been taken.
        counts: rankings without an example, by reason ("positive_is_heldout_gold": what they would train to find is
            what the evaluation asks for); lists of which the oracle ranked a part only; rankings without an agreement
            of votes, and negatives without a known score, on which a rule about these had no say.
    """

    examples: dict[Split, list[TrainingExample]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    ranked_shares: dict[Split, list[float]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    passed_over: dict[Split, Counter[Exclusion]] = field(default_factory=lambda: {split: Counter() for split in SPLITS})
    counts: Counter[str] = field(default_factory=Counter)


def make_examples(
    rankings: Iterable[Ranking],
    guard: GoldGuard,
    splits: Mapping[str, Split],
    rules: ExampleRules = DEFAULT_RULES,
) -> ExampleSet:
    """Makes the examples of all rankings, see `make_example`.

    Args:
        rankings: those of questions without a side are counted and left out.
        guard: says what must be neither a negative nor a positive to train on.
        splits: the side of each question.
        rules: which rankings become examples, and how.
    """
    made = ExampleSet()
    made.counts.update(
        rankings_of_unknown_questions=0,
        rerank_failed=0,
        below_min_agreement=0,
        positive_is_heldout_gold=0,
        over_max_per_question=0,
        partly_ranked_lists=0,
        without_agreement=0,
        negatives_of_unknown_score=0,
    )
    usable: list[tuple[Ranking, TrainingExample, Counter[Exclusion]]] = []
    for ranking in rankings:
        if (split := splits.get(ranking.subquery.qid)) is None:
            made.counts["rankings_of_unknown_questions"] += 1
            continue
        example, passed_over = make_example(ranking, guard, rules)
        if example is None:
            made.counts["rerank_failed"] += 1
        elif _below(ranking.agreement, rules.min_agreement):
            made.counts["below_min_agreement"] += 1
        elif any(guard.guards(docid, split) for docid in example.positive_docids):
            made.counts["positive_is_heldout_gold"] += 1
        else:
            usable.append((ranking, example, passed_over))
    kept = _thinned(usable, rules)
    made.counts["over_max_per_question"] = len(usable) - len(kept)
    for ranking, example, passed_over in kept:
        split = splits[ranking.subquery.qid]
        made.examples[split].append(example)
        made.ranked_shares[split].append(ranking.ranked_count / len(ranking.candidates))
        made.passed_over[split].update(passed_over)
        made.counts["partly_ranked_lists"] += ranking.ranked_count < len(ranking.candidates)
        made.counts["without_agreement"] += ranking.agreement is None
        if rules.max_negative_score_ratio is not None:
            made.counts["negatives_of_unknown_score"] += sum(
                _score_ratio(docid, example.positive_docids, ranking) is None for docid in example.negative_docids
            )
    return made


def _below(agreement: float | None, least: float | None) -> bool:
    return agreement is not None and least is not None and agreement < least


def _thinned(
    usable: Sequence[tuple[Ranking, TrainingExample, Counter[Exclusion]]], rules: ExampleRules
) -> list[tuple[Ranking, TrainingExample, Counter[Exclusion]]]:
    """At most so many of each question, in the order given."""
    if rules.max_per_question is None:
        return list(usable)
    places: dict[str, dict[int, list[int]]] = {}
    for place, (ranking, _, _) in enumerate(usable):
        places.setdefault(ranking.subquery.qid, {}).setdefault(ranking.subquery.turn, []).append(place)
    kept = {
        place
        for qid, by_turn in places.items()
        for place in spread_over_turns(by_turn, rules.max_per_question, f"{rules.seed} {qid}")
    }
    return [one for place, one in enumerate(usable) if place in kept]


def spread_over_turns(by_turn: Mapping[int, Sequence[T]], number: int, seed: str) -> list[T]:
    """Draws so many, or all where there are fewer: one of every turn before a second of any.

    Where not every turn can give one more, the turns are divided into as many stretches as are still wanted, and each
    stretch gives one.

    Args:
        by_turn: what is drawn from, by turn.
        number: how many, at most.
        seed: fixes the draw.
    """
    rng = random.Random(seed)
    shuffled = [rng.sample(list(by_turn[turn]), len(by_turn[turn])) for turn in sorted(by_turn)]
    drawn: list[T] = []
    for nth in range(max(map(len, shuffled), default=0)):
        offered = [one[nth] for one in shuffled if nth < len(one)]
        wanted = min(number - len(drawn), len(offered))
        bounds = [len(offered) * part // wanted for part in range(wanted + 1)] if wanted else []
        drawn += [rng.choice(offered[start:end]) for start, end in pairwise(bounds)]
    return drawn
