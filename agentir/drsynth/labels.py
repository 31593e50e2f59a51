"""Labels: recorded answers of the oracle, matched with their sub-queries and read as rankings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentir.jsonl import Misfit, Rejects, as_id, iter_objects
from agentir.records import Candidate, Ranking, SubQuery
from agentir.rerank import ParsedAnswer, parse_listwise

Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What the oracle's answers came to.

    Attributes:
        rankings: in the order of the sub-queries; where an answer held no ranking, the order shown, none of it ranked.
        unanswered: ids of the sub-queries without an answer.
        counts: answers of each kind, and what was mended in them.
    """

    rankings: tuple[Ranking, ...]
    unanswered: tuple[str, ...]
    counts: dict[str, int]


def read_labels(
    paths: Iterable[Path],
    subqueries: Sequence[SubQuery],
    rejects: Rejects,
    gold: Mapping[str, Sequence[str]] | None = None,
) -> Labels:
    """Reads answers of the oracle: JSON lines with `qid`, `turn`, `call` (0 where it is missing), `candidates` (the
    docids in the order shown), `num_gold_first` (0 where it is missing) and `response` (the oracle's text, null where
    it gave none); `question` and `query` are compared where they are given, other fields are left.

    Args:
        paths: files of answers.
        subqueries: what they answer.
        rejects: takes the lines that do not fit a sub-query, and second answers for one.
        gold: gold documents by qid, to tell them from retrieved candidates; without it only those put in front are
            known.
    """
    by_key = {(subquery.qid, subquery.turn, subquery.call): subquery for subquery in subqueries}
    found: dict[Key, tuple[ParsedAnswer, Ranking]] = {}
    lines: dict[Key, str] = {}
    for path in paths:
        for line, row in iter_objects(path, rejects):
            try:
                key = _key(row)
                if key not in by_key:
                    raise Misfit("qid, turn, call", "a sub-query of the artifact", "{}, {}, {}".format(*key))
                if key in lines:
                    raise Misfit("qid, turn, call", f"one answer a sub-query (first: {lines[key]})", row["qid"])
                found[key] = _read(row, by_key[key], gold or {})
            except Misfit as misfit:
                rejects.add(path, line, *misfit.args)
                continue
            lines[key] = f"{path}:{line}"
    ordered = [found[key] for key in by_key if key in found]
    return Labels(
        rankings=tuple(ranking for _, ranking in ordered),
        unanswered=tuple(subquery.subqid for key, subquery in by_key.items() if key not in found),
        counts=_count([answer for answer, _ in ordered]),
    )


def _key(row: Mapping[str, Any]) -> Key:
    if (qid := as_id(row.get("qid"))) is None:
        raise Misfit("qid", "an id (a text or an integer)", row.get("qid"))
    return qid, _number(row, "turn"), _number(row, "call", 0)


def _number(row: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = row.get(name, default)
    if type(value) is not int or value < 0:
        raise Misfit(name, "an integer from 0", value)
    return value


def _read(
    row: Mapping[str, Any], subquery: SubQuery, gold: Mapping[str, Sequence[str]]
) -> tuple[ParsedAnswer, Ranking]:
    for name, expected in (("query", subquery.query), ("question", subquery.question)):
        if row.get(name) is not None and row[name] != expected:
            raise Misfit(name, f"that of the sub-query, {expected!r}", row[name])
    if "response" not in row or not isinstance(row["response"], str | None):
        raise Misfit("response", "a text or null", row.get("response", "<no such field>"))
    given = row.get("candidates")
    docids = [as_id(docid) for docid in given] if isinstance(given, list) else []
    shown = [docid for docid in docids if docid is not None]
    if not shown or len(shown) != len(docids):
        raise Misfit("candidates", "a list of ids (texts or integers)", given)
    if len(set(shown)) < len(shown):
        raise Misfit("candidates", "each id once", Counter(shown).most_common(1)[0][0])
    num_gold_first = _number(row, "num_gold_first", 0)
    if num_gold_first > len(shown):
        raise Misfit("num_gold_first", f"at most the {len(shown)} candidates", num_gold_first)
    golden = {*gold.get(subquery.qid, ()), *shown[:num_gold_first]}
    answer = parse_listwise(row["response"], len(shown))
    return answer, Ranking(
        subquery=subquery,
        candidates=tuple(Candidate(docid=docid, source="gold" if docid in golden else "retrieved") for docid in shown),
        votes=(answer.vote,),
        order=tuple(shown[position] for position in answer.vote.order),
        ranked_count=answer.vote.ranked_count,
        num_gold_first=num_gold_first,
    )


def _count(answers: Sequence[ParsedAnswer]) -> dict[str, int]:
    parsed = [answer for answer in answers if answer.vote.parsed]
    return {
        "answers": len(answers),
        "rankings": len(parsed),
        "rerank_failed": len(answers) - len(parsed),
        "repaired": sum(answer.repaired for answer in parsed),
        "repeated_numbers": sum(answer.num_repeated for answer in parsed),
        "invalid_numbers": sum(answer.num_invalid for answer in parsed),
        "missing_numbers": sum(answer.num_missing for answer in parsed),
    }
