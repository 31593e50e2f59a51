"""Ranking measures, computed by trec_eval's own code (pytrec_eval).

Values come a query first; means are made from them. The main mean is over all queries of the qrels, as `trec_eval -c`
makes it: a query that the run lacks counts 0. Other means exist only under other names. Gain is linear, grades below 1
gain nothing, unjudged documents count as not relevant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytrec_eval

from agentir.errors import ConfigError, InputError
from agentir.measures.runs import Qrels, Run, check_run, name_some, tied_queries, trec_order

MEASURES = ("nDCG@10", "Recall@5", "MRR@10")
_NAMES = {"ndcg": "nDCG", "recall": "Recall", "r": "Recall", "mrr": "MRR", "rr": "MRR", "map": "MAP", "ap": "MAP"}
_NAMES |= {"p": "P", "precision": "P", "judged": "Judged"}
_CORE = {"nDCG": "ndcg", "Recall": "set_recall", "MRR": "recip_rank", "MAP": "map"}
_CORE_CUT = {"nDCG": "ndcg_cut", "Recall": "recall", "MAP": "map_cut", "P": "P"}


@dataclass(frozen=True, slots=True, order=True)
class Measure:
    """A measure as shown to users: nDCG, Recall, MRR, MAP, P or Judged, with a cutoff or (where None) without."""

    name: str
    cutoff: int | None

    def __str__(self) -> str:
        return self.name if self.cutoff is None else f"{self.name}@{self.cutoff}"


def parse_measure(text: str) -> Measure:
    """Reads a measure's name, such as "nDCG@10", "R@5" or "MAP".

    Raises:
        ConfigError: no such measure.
    """
    match = re.fullmatch(r"([A-Za-z]+)(?:@([1-9][0-9]{0,8}))?", text)
    name = _NAMES.get(match[1].lower()) if match else None
    cutoff = int(match[2]) if match and match[2] else None
    if name is None or (cutoff is None and name in ("P", "Judged")):
        raise ConfigError(
            f"measure {text!r}: expected nDCG, Recall, MRR or MAP, with @k or without, or P@k or Judged@k"
        )
    return Measure(name, cutoff)


def measure_names(texts: Sequence[str]) -> tuple[str, ...]:
    """The measures under the names shown to users, each once.

    Raises:
        ConfigError: no such measure, or none at all.
    """
    if not texts:
        raise ConfigError("measures: expected at least one, found none")
    return tuple(dict.fromkeys(str(parse_measure(text)) for text in texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What was measured, a query at a time, and what a reader must know about it.

    Attributes:
        values: measure -> qid -> value, for every query of the qrels.
        without_positives: queries of the qrels that have no relevant document; they count 0.
        missing: queries of the qrels for which the run lists nothing; they count 0.
        unjudged_topics: queries of the run that the qrels lack; they are ignored.
        tied: judged queries with equal scores in the run; trec_eval's order (docid descending) is used.
    """

    values: Mapping[str, Mapping[str, float]]
    without_positives: tuple[str, ...]
    missing: tuple[str, ...]
    unjudged_topics: tuple[str, ...]
    tied: tuple[str, ...]

    @property
    def num_evaluated(self) -> int:
        """Number of queries in every value table: all of the qrels."""
        return len(next(iter(self.values.values())))

    def mean(self, measure: str) -> float:
        """The main number: the mean over all queries of the qrels."""
        return self._mean(measure, ())

    def mean_over_answered(self, measure: str) -> float | None:
        """The mean over the queries for which the run lists something; None where there are none."""
        return self._mean(measure, self.missing) if len(self.missing) < self.num_evaluated else None

    def mean_over_with_positives(self, measure: str) -> float | None:
        """The mean over the queries that have a relevant document; None where there are none."""
        left_out = self.without_positives
        return self._mean(measure, left_out) if len(left_out) < self.num_evaluated else None

    def _mean(self, measure: str, left_out: Sequence[str]) -> float:
        skip = set(left_out)
        kept = [value for qid, value in self.values[measure].items() if qid not in skip]
        return math.fsum(kept) / len(kept)

    def notes(self) -> list[str]:
        """The counts in words, with ids: how many were evaluated, and what was treated in a special way."""
        texts = [f"{self.num_evaluated} evaluated"]
        if self.without_positives:
            texts.append(f"no relevant document (count 0) in {name_some(self.without_positives)}")
        if self.missing:
            texts.append(f"missing from the run (count 0): {name_some(self.missing)}")
        if self.unjudged_topics:
            texts.append(f"in the run but not in the qrels (ignored): {name_some(self.unjudged_topics)}")
        if self.tied:
            texts.append(f"equal scores, ordered by docid descending as trec_eval does, in {name_some(self.tied)}")
        return texts


def evaluate(run: Run, qrels: Qrels, measures: Sequence[str] = MEASURES, *, relevance_level: int = 1) -> Evaluation:
    """Measures a run against qrels.

    Args:
        run: hits a query, in any order.
        qrels: grades a query.
        measures: see `parse_measure`.
        relevance_level: the least grade that counts as relevant; nDCG takes every grade as its gain, whatever this is.

    Raises:
        InputError: no qrels, a document twice in a query, or a score that is not finite.
        ConfigError: no such measure.
    """
    wanted = {name: parse_measure(name) for name in measure_names(measures)}
    if not qrels:
        raise InputError("qrels: expected judgements of at least one query, found none")
    check_run(run)
    judged = {qid: hits for qid in qrels if (hits := run.get(qid))}
    core = _trec_eval(judged, qrels, set(wanted.values()), relevance_level)
    values = {
        name: {qid: _value(measure, qid, judged, qrels, core.get(qid)) for qid in qrels}
        for name, measure in wanted.items()
    }
    return Evaluation(
        values=values,
        without_positives=tuple(
            qid for qid, grades in qrels.items() if max(grades.values(), default=0) < relevance_level
        ),
        missing=tuple(qid for qid in qrels if qid not in judged),
        unjudged_topics=tuple(qid for qid in run if qid not in qrels),
        tied=tied_queries(judged),
    )


def _core_name(measure: Measure) -> str | None:
    """trec_eval's name; MRR@k is made from its recip_rank, which knows no cutoff, and Judged@k is not one of its measures."""
    if measure.name == "Judged":
        return None
    if measure.cutoff is None or measure.name == "MRR":
        return _CORE[measure.name]
    return f"{_CORE_CUT[measure.name]}.{measure.cutoff}"


def _trec_eval(run: Run, qrels: Qrels, measures: set[Measure], relevance_level: int) -> dict[str, dict[str, float]]:
    names = {name for measure in measures if (name := _core_name(measure)) is not None}
    if not names or not run:
        return {}
    evaluator = pytrec_eval.RelevanceEvaluator(
        {qid: dict(grades) for qid, grades in qrels.items()}, names, relevance_level=relevance_level
    )
    scores = {qid: {hit.docid: float(hit.score) for hit in hits} for qid, hits in run.items()}
    results: dict[str, dict[str, float]] = evaluator.evaluate(scores)
    return results


def _value(measure: Measure, qid: str, run: Run, qrels: Qrels, core: Mapping[str, float] | None) -> float:
    if measure.name == "Judged":
        assert measure.cutoff is not None
        top = trec_order(run.get(qid, ()))[: measure.cutoff]
        return sum(hit.docid in qrels[qid] for hit in top) / len(top) if top else 0.0
    if core is None:
        return 0.0
    name = _core_name(measure)
    assert name is not None
    value = core[name.replace(".", "_")]
    if measure.name == "MRR" and measure.cutoff is not None and value < 1 / measure.cutoff:
        return 0.0
    return value
