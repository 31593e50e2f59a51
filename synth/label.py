"""Turns an oracle's listwise answers into rankings; without answers, makes the requests to send to an oracle.

    agentir synth label --subqueries data/subqueries --index index/ --questions questions.jsonl --out data/requests
    agentir synth label --subqueries data/subqueries --answers answers.jsonl --out data/rankings

The first form retrieves candidates by the query alone and writes requests.jsonl: send the `messages` of each line to a
language model and add its text to the line as `response`. Such a file of answers is what the second form reads.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from agentir.artifacts import Artifact, read_manifest
from agentir.config import Field, ProgramConfig
from agentir.corpus.qa import read_questions
from agentir.drsynth.labels import read_labels
from agentir.drsynth.pool import POOL_SIZE, Placement, candidate_pool
from agentir.drsynth.requests import PASSAGE_WORDS, OracleRequest, make_request
from agentir.errors import ConfigError
from agentir.jsonl import Rejects, read_records
from agentir.records import QAItem, SearchQuery, SubQuery
from agentir.search.index import Index

NUM_SHOWN = 5


class Config(ProgramConfig):
    """What is labelled, and how candidates are chosen."""

    subqueries: Path
    """The artifact of `agentir synth extract`."""
    answers: tuple[Path, ...] = ()
    """Files of recorded oracle answers, JSON lines with qid, turn, call, candidates, num_gold_first, response."""
    questions: Path | None = None
    """The questions with their answers and gold documents; needed for requests, with answers it tells what is gold."""
    index: Path | None = None
    """The index folder in which candidates are searched (BM25); for requests only."""
    depth: int = Field(default=POOL_SIZE, ge=1)
    """How many candidates the oracle sees, gold documents among them; for requests only."""
    placement: Placement = "shuffle"
    """Where gold documents stand: mixed in (shuffle), at the end (append), or in front as AgentIR has them
    (gold_first), which anchors the oracle; for requests only."""
    passage_words: int = Field(default=PASSAGE_WORDS, ge=1)
    """How many words of a candidate the oracle sees, about AgentIR's 512 tokens; for requests only."""
    seed: int = 0
    """Fixes the shuffle; for requests only."""


FOR_REQUESTS = ("index", "depth", "placement", "passage_words", "seed")


def main(config: Config) -> None:
    """Reads the sub-queries, then makes rankings of answers, or requests."""
    read_manifest(config.subqueries, "subqueries")
    subqueries = list(read_records(config.subqueries / "subqueries.jsonl", SubQuery))
    rejects = Rejects(set_aside=config.on_bad_line == "set_aside")
    questions = read_questions(config.questions, rejects) if config.questions else []
    if config.answers:
        _rank(config, subqueries, questions, rejects)
    else:
        _request(config, subqueries, {item.qid: item for item in questions}, rejects)


def _rank(config: Config, subqueries: Sequence[SubQuery], questions: Sequence[QAItem], rejects: Rejects) -> None:
    if ignored := [name for name in FOR_REQUESTS if name in config.model_fields_set]:
        warnings.warn(f"answers are given, so {', '.join(ignored)} has no effect", stacklevel=2)
    gold = {item.qid: item.gold_docids for item in questions}
    labels = read_labels(config.answers, subqueries, rejects, gold)
    rejects.check()
    inputs: dict[str, Path] = {"subqueries": config.subqueries}
    inputs |= {f"answers[{n}]" if n else "answers": path for n, path in enumerate(config.answers)}
    if config.questions:
        inputs["questions"] = config.questions
    with Artifact(config.out, "rankings", config, inputs=inputs) as artifact:
        if artifact.complete:
            print(f"{config.out}: complete already")
            return
        artifact.write("rankings.jsonl", labels.rankings)
        report: dict[str, Any] = {
            "subqueries": len(subqueries),
            **labels.counts,
            "lists_with_gold_first": sum(ranking.num_gold_first > 0 for ranking in labels.rankings),
            "subqueries_without_answer": len(labels.unanswered),
            "without_answer": labels.unanswered,
        }
        artifact.finish(report, rejects)
    print(f"{labels.counts['rankings']} rankings of {len(subqueries)} sub-queries -> {config.out}")
    print(f"  answers without a ranking (kept, but no labels): {labels.counts['rerank_failed']}")
    print(f"  rankings with numbers repeated, invalid or missing: {labels.counts['repaired']}")
    shown = ", ".join(labels.unanswered[:NUM_SHOWN]) + (", ..." if len(labels.unanswered) > NUM_SHOWN else "")
    print(f"  sub-queries without an answer: {len(labels.unanswered)}{f' ({shown})' if shown else ''}")
    print(f"  lines set aside: {len(rejects.items)}")


def _request(config: Config, subqueries: Sequence[SubQuery], questions: Mapping[str, QAItem], rejects: Rejects) -> None:
    if config.index is None or config.questions is None:
        missing = " and ".join(name for name in ("index", "questions") if getattr(config, name) is None)
        raise ConfigError(f"{missing}: missing; set answers to make rankings, or index and questions to make requests")
    rejects.check()
    inputs = {"subqueries": config.subqueries, "index": config.index, "questions": config.questions}
    with Index.open(config.index) as index, Artifact(config.out, "requests", config, inputs=inputs) as artifact:
        if artifact.complete:
            print(f"{config.out}: complete already")
            return
        counts: Counter[str] = Counter(subqueries=len(subqueries))
        requests = _make_requests(config, subqueries, questions, index, counts)
        counts["requests"] = artifact.write("requests.jsonl", requests)
        artifact.finish(counts, rejects)
    print(f"{counts['requests']} requests for {len(subqueries)} sub-queries -> {config.out}")
    for name, count in counts.items():
        if count and name not in ("subqueries", "requests"):
            print(f"  {name.replace('_', ' ')}: {count}")
    print(f"  lines set aside: {len(rejects.items)}")
    print("next: add a `response` to each line of requests.jsonl, then give the file as --answers")


def _make_requests(
    config: Config, subqueries: Sequence[SubQuery], questions: Mapping[str, QAItem], index: Index, counts: Counter[str]
) -> Iterator[OracleRequest]:
    """Retrieves by the query alone, adds the gold documents, and puts the list before the oracle."""
    searcher = index.bm25()
    for subquery in tqdm(subqueries, desc="requests", unit="sub-query"):
        item = questions.get(subquery.qid)
        if item is None or not item.answers:
            counts["of_unknown_questions" if item is None else "of_questions_without_answer"] += 1
            continue
        hits = searcher.search([SearchQuery(query=subquery.query)], config.depth)[0]
        looked_for = (*(hit.docid for hit in hits), *item.gold_docids)
        documents = {document.docid: document for document in index.pack.find(looked_for)}
        gold = [docid for docid in item.gold_docids if docid in documents]
        pool = candidate_pool(
            hits,
            gold,
            config.placement,
            size=config.depth,
            documents=documents,
            seed=f"{config.seed} {subquery.subqid}",
        )
        counts["gold_not_in_index"] += len(item.gold_docids) - len(gold)
        counts["gold_cut"] += pool.num_gold_cut
        counts["same_text"] += pool.num_same_text
        if not pool.candidates:
            counts["without_candidates"] += 1
            continue
        counts["lists_without_gold"] += not gold
        yield make_request(subquery, item, pool, documents, config.passage_words)
