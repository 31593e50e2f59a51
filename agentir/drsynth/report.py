"""What a set of training examples is like, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, quantiles
from typing import Any

from agentir.measures.slices import contains
from agentir.records import QAItem, TrainingExample


def describe_examples(
    examples: Sequence[TrainingExample], questions: Mapping[str, QAItem], ranked_shares: Sequence[float] = ()
) -> dict[str, Any]:
    """Counts positives and negatives, examples a question, positives a turn, the reasonings' lengths, how far the
    oracle's votes agree and how much of its lists it ranked, and examples that leak the answer.

    An example leaks where its query or reasoning holds the answer: then a retriever may learn to look for it instead of
    for what the agent still has to find out.

    Args:
        examples: what is described.
        questions: by qid.
        ranked_shares: of the oracle's lists, the share that was truly ranked, where it is known.
    """
    agreements = [example.agreement for example in examples if example.agreement is not None]
    subqueries = [example.subquery for example in examples]
    answers = [questions[subquery.qid].answers for subquery in subqueries]
    in_query = [_holds(subquery.query, accepted) for subquery, accepted in zip(subqueries, answers, strict=True)]
    in_reasoning = [
        _holds(subquery.reasoning, accepted) for subquery, accepted in zip(subqueries, answers, strict=True)
    ]
    positives = [
        (example, docid in questions[example.subquery.qid].gold_docids)
        for example in examples
        for docid in example.positive_docids
    ]
    return {
        "examples": len(examples),
        "questions": len({subquery.qid for subquery in subqueries}),
        "examples_by_question": _spread(list(Counter(subquery.qid for subquery in subqueries).values())),
        "positives": len(positives),
        "different_positives": len({docid for example in examples for docid in example.positive_docids}),
        "positives_that_are_gold": sum(is_gold for _, is_gold in positives),
        "positives_from_lists_with_gold_first": sum(example.num_gold_first > 0 for example, _ in positives),
        "positives_by_turn": dict(sorted(Counter(example.subquery.turn for example, _ in positives).items())),
        "negatives": sum(len(example.negative_docids) for example in examples),
        "negatives_by_example": dict(sorted(Counter(len(example.negative_docids) for example in examples).items())),
        "empty_reasonings": sum(not subquery.reasoning for subquery in subqueries),
        "reasoning_words": _spread([len(subquery.reasoning.split()) for subquery in subqueries if subquery.reasoning]),
        "agreement": _spread(agreements, digits=4),
        "without_agreement": len(examples) - len(agreements),
        "ranked_share": _spread(ranked_shares, digits=4),
        "leaks_in_query": _rate(in_query),
        "leaks_in_reasoning": _rate(in_reasoning),
        "leaks": _rate([query or reasoning for query, reasoning in zip(in_query, in_reasoning, strict=True)]),
    }


def _holds(text: str, answers: Iterable[str]) -> bool:
    return any(contains(text, answer) for answer in answers)


def _rate(flags: Sequence[bool]) -> float | None:
    return round(mean(flags), 4) if flags else None


def _spread(numbers: Sequence[float], digits: int = 1) -> dict[str, float] | None:
    if not numbers:
        return None
    tenths = quantiles(numbers, n=10, method="inclusive") if len(numbers) > 1 else [numbers[0]] * 9
    return {
        "min": min(numbers),
        "p10": round(tenths[0], digits),
        "median": round(tenths[4], digits),
        "mean": round(mean(numbers), digits),
        "p90": round(tenths[8], digits),
        "max": max(numbers),
    }
