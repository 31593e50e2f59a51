r"""Has an oracle rank each sub-query's candidates: a model that is asked now, recorded answers, or requests to be sent.

    agentir synth label --subqueries data/subqueries --index index/ --questions questions.jsonl --out data/rankings \
        --model.name Qwen3-32B --model.base-url http://127.0.0.1:8000/v1
    agentir synth label --subqueries data/subqueries --index index/ --questions questions.jsonl --out data/requests
    agentir synth label --subqueries data/subqueries --answers answers.jsonl --out data/rankings

The first form retrieves candidates by the query alone, adds the gold documents and asks the model, which is told the
correct answer, for their order. Each answer is written to labels.jsonl at once; started again, the program asks only for
what is missing. The second form, without a model, writes requests.jsonl: send the `messages` of each line to any model and
add its text to the line as `response`. Such a file of answers is what the third form reads.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from tqdm import tqdm  # type: ignore[import-untyped]

from agentir.artifacts import Artifact, read_manifest
from agentir.chat.endpoint import Endpoint
from agentir.chat.settings import ModelSection
from agentir.config import RUNTIME, Field, ProgramConfig
from agentir.corpus.qa import read_questions
from agentir.drsynth.labelling import LabelCounts, label_all
from agentir.drsynth.labels import read_labels
from agentir.drsynth.oracle import ANSWER_RETRIES, LabelOutcome, Oracle, OracleSettings
from agentir.drsynth.pool import POOL_SIZE, Placement, candidate_pool
from agentir.drsynth.requests import PASSAGE_WORDS, OracleTask, make_request, make_task
from agentir.embed.encoder import QueryTooLongError
from agentir.embed.load import load_encoder
from agentir.errors import AgentirError, ConfigError
from agentir.jsonl import JsonlAppender, Rejects, read_records
from agentir.records import QAItem, SearchQuery, SubQuery, Usage
from agentir.rerank import AnswerForm
from agentir.search.index import Index
from agentir.search.protocol import Searcher

NUM_SHOWN = 5
LABELS = "labels.jsonl"


class Config(ProgramConfig):
    """What is labelled, how candidates are chosen, and who ranks them."""

    subqueries: Path
    """The artifact of `agentir synth extract`."""
    answers: tuple[Path, ...] = ()
    """Files of recorded oracle answers, JSON lines with qid, turn, call, candidates, num_gold_first, response."""
    questions: Path | None = None
    """The questions with their answers and gold documents; without it only recorded answers can be read."""
    index: Path | None = None
    """The index folder in which candidates are searched; not for recorded answers."""
    searcher: Literal["bm25", "dense"] = "bm25"
    """How they are searched, by the query alone: by its words, or by vectors."""
    encoder: str | None = None
    """The query encoder of a dense search, a model folder or name; default is the model that built the index."""
    depth: int = Field(default=POOL_SIZE, ge=1)
    """How many candidates the oracle ranks, gold documents among them; not for recorded answers."""
    placement: Placement = "shuffle"
    """Where gold documents stand: mixed in (shuffle), at the end (append), or in front as AgentIR has them
    (gold_first), which anchors the oracle; not for recorded answers."""
    passage_words: int = Field(default=PASSAGE_WORDS, ge=1)
    """How many words of a candidate the oracle sees, about AgentIR's 512 tokens; not for recorded answers."""
    seed: int = 0
    """Fixes the shuffle, and the order in which further votes see the list; not for recorded answers."""
    form: AnswerForm = "brackets"
    """How the oracle writes rankings: [2] > [1] (brackets), or as JSON by a schema that the server is given (json)."""
    model: ModelSection = Field(default_factory=lambda: ModelSection.model_validate({}))
    """The model to ask; without a name none is asked."""
    window: int | None = Field(default=None, ge=2)
    """How many candidates the model sees at once, for lists beyond its context; default: all of them."""
    step: int | None = Field(default=None, ge=1)
    """How far the window moves to the front, less than its size; default: half of it."""
    votes: int = Field(default=1, ge=1)
    """How often the model ranks each list; further votes see it in another order, except with gold_first."""
    answer_retries: int = Field(default=ANSWER_RETRIES, ge=0)
    """How often an answer that cannot be read, or was cut, is asked for again before the vote is dropped."""
    on_failure: Literal["retry", "leave_out"] = Field(default="retry", json_schema_extra=RUNTIME)
    """What becomes of sub-queries that the model's server gave no answer for: the next start asks for them again, or they
    are left out and listed."""


FOR_LISTS = ("index", "searcher", "encoder", "depth", "placement", "passage_words", "seed", "form")
FOR_MODEL = ("model", "window", "step", "votes", "answer_retries", "on_failure")


def main(config: Config) -> None:
    """Reads the sub-queries, then makes rankings of recorded answers, asks a model, or makes requests."""
    _check(config)
    read_manifest(config.subqueries, "subqueries")
    subqueries = list(read_records(config.subqueries / "subqueries.jsonl", SubQuery))
    rejects = Rejects(set_aside=config.on_bad_line == "set_aside")
    questions = read_questions(config.questions, rejects) if config.questions else []
    if config.answers:
        _read_answers(config, subqueries, questions, rejects)
        return
    if config.index is None or config.questions is None:
        missing = " and ".join(name for name in ("index", "questions") if getattr(config, name) is None)
        raise ConfigError(f"{missing}: missing; set answers to make rankings, or index and questions to make requests")
    rejects.check()
    inputs = {"subqueries": config.subqueries, "index": config.index, "questions": config.questions}
    if config.searcher == "dense" and config.encoder is not None and Path(config.encoder).is_dir():
        inputs["encoder"] = Path(config.encoder)
    kind = "rankings" if config.model.name else "requests"
    with Index.open(config.index) as index, Artifact(config.out, kind, config, inputs=inputs) as artifact:
        if artifact.complete:
            print(f"{config.out}: complete already")
            return
        lists = CandidateLists(config, index, subqueries, {item.qid: item for item in questions})
        if config.model.name:
            _ask_model(config, artifact, lists, rejects)
        else:
            _write_requests(config, artifact, lists, rejects)


def _check(config: Config) -> None:
    """Refuses settings that contradict each other, and names those that have no effect."""
    given = config.model_fields_set
    if "model" in given and not config.model.name and not config.answers:
        raise ConfigError("model.name: missing; set it to ask the model, or leave all of model out to make requests")
    if config.step is not None and (config.window is None or config.step >= config.window):
        found = "no window" if config.window is None else f"step {config.step}, window {config.window}"
        raise ConfigError(f"step: expected less than window, found {found}")
    if config.answers:
        reason, ignored = "answers are given", [name for name in (*FOR_LISTS, *FOR_MODEL) if name in given]
    elif not config.model.name:
        reason, ignored = "no model is named", [name for name in FOR_MODEL if name in given]
    else:
        reason, ignored = "", []
    if ignored:
        warnings.warn(f"{reason}, so {', '.join(ignored)} has no effect", stacklevel=2)
    if config.encoder is not None and config.searcher == "bm25" and not config.answers:
        warnings.warn("candidates are searched with BM25, so encoder has no effect", stacklevel=2)


def _read_answers(
    config: Config, subqueries: Sequence[SubQuery], questions: Sequence[QAItem], rejects: Rejects
) -> None:
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


class CandidateLists:
    """The lists that an oracle is to rank, made one by one, and counts of the sub-queries without one.

    Attributes:
        subqueries: those that can be asked about: their question is known and has an answer.
        left_out: how many others there are, by reason, as far as lists were made.
    """

    def __init__(
        self, config: Config, index: Index, subqueries: Sequence[SubQuery], questions: Mapping[str, QAItem]
    ) -> None:
        self.num_subqueries = len(subqueries)
        self.left_out: Counter[str] = Counter()
        self.subqueries: list[SubQuery] = []
        self._config, self._index, self._questions = config, index, questions
        for subquery in subqueries:
            item = questions.get(subquery.qid)
            if item is None or not item.answers:
                self.left_out["of_unknown_questions" if item is None else "of_questions_without_answer"] += 1
            else:
                self.subqueries.append(subquery)

    def make(self, done: Mapping[str, object]) -> Iterator[OracleTask]:
        """Retrieves by the query alone and adds the gold documents, for each sub-query that is not done."""
        config, pack = self._config, self._index.pack
        searcher: Searcher = self._index.bm25() if config.searcher == "bm25" else self._dense()
        for subquery in self.subqueries:
            if subquery.subqid in done:
                continue
            item = self._questions[subquery.qid]
            try:
                hits = searcher.search([SearchQuery(query=subquery.query)], config.depth)[0]
            except QueryTooLongError:
                self.left_out["query_too_long"] += 1
                continue
            looked_for = (*(hit.docid for hit in hits), *item.gold_docids)
            documents = {document.docid: document for document in pack.find(looked_for)}
            pool = candidate_pool(
                hits,
                [docid for docid in item.gold_docids if docid in documents],
                config.placement,
                size=config.depth,
                documents=documents,
                seed=f"{config.seed} {subquery.subqid}",
            )
            if not pool.candidates:
                self.left_out["without_candidates"] += 1
                continue
            yield make_task(subquery, item, pool, documents, config.passage_words)

    def _dense(self) -> Searcher:
        return self._index.dense(load_encoder(self._config.encoder or self._index.encoder_name))


def _write_requests(config: Config, artifact: Artifact, lists: CandidateLists, rejects: Rejects) -> None:
    counts: Counter[str] = Counter()

    def counted(tasks: Iterator[OracleTask]) -> Iterator[OracleTask]:
        for task in tqdm(tasks, desc="requests", unit="sub-query", total=len(lists.subqueries)):
            counts["gold_not_in_index"] += task.num_gold_not_in_index
            counts["gold_cut"] += task.pool.num_gold_cut
            counts["same_text"] += task.pool.num_same_text
            counts["lists_without_gold"] += all(one.source != "gold" for one in task.pool.candidates)
            yield task

    num_requests = artifact.write(
        "requests.jsonl", (make_request(task, config.form) for task in counted(lists.make(done={})))
    )
    counts += lists.left_out
    artifact.finish({"subqueries": lists.num_subqueries, "requests": num_requests, **counts}, rejects)
    print(f"{num_requests} requests for {lists.num_subqueries} sub-queries -> {config.out}")
    _tell(counts, rejects)
    print("next: add a `response` to each line of requests.jsonl, then give the file as --answers")


def _ask_model(config: Config, artifact: Artifact, lists: CandidateLists, rejects: Rejects) -> None:
    with artifact.append_to(LABELS) as journal:
        before = {one.ranking.subquery.subqid: one.usage for one in read_records(journal.path, LabelOutcome)}
        spent = sum(before.values(), Usage())
        with tqdm(desc="labels", unit="sub-query", total=len(lists.subqueries), initial=len(before)) as bar:
            run = asyncio.run(_label(config, lists.make(done=before), journal, spent, bar))
    found = {one.ranking.subquery.subqid: one for one in read_records(artifact.folder / LABELS, LabelOutcome)}
    outcomes = [found[subquery.subqid] for subquery in lists.subqueries if subquery.subqid in found]
    print(f"{run.num_labelled} sub-queries labelled now, {len(before)} before, of {lists.num_subqueries}")
    for kind, count in run.failed.items():
        print(f"  failed: {count} ({kind}; the first: {run.first_errors[kind]})")
    if run.budget:
        raise AgentirError(
            f"{config.out}: unfinished: {run.budget}; raise it and run the same command again to continue"
        )
    if run.failed and config.on_failure == "retry":
        raise AgentirError(
            f"{config.out}: unfinished: the model gave no answer for {run.failed.total()} of {len(lists.subqueries)} "
            "sub-queries; run the same command again to ask for these only, or with --on-failure leave_out to finish "
            "without them"
        )
    artifact.write("rankings.jsonl", (outcome.ranking for outcome in outcomes))
    report = _describe(outcomes)
    unanswered = [subquery.subqid for subquery in lists.subqueries if subquery.subqid not in found]
    artifact.finish(
        {
            "subqueries": lists.num_subqueries,
            **report,
            **lists.left_out,
            "failed": dict(run.failed),
            "subqueries_without_answer": len(unanswered),
            "without_answer": unanswered,
        },
        rejects,
    )
    _tell_rankings(config, report, lists, len(unanswered), rejects)


def _describe(outcomes: Sequence[LabelOutcome]) -> dict[str, Any]:
    """Counts of what the oracle's answers came to, and what they took."""
    rankings = [outcome.ranking for outcome in outcomes]
    votes = [vote for ranking in rankings for vote in ranking.votes]
    agreements = [ranking.agreement for ranking in rankings if ranking.agreement is not None]
    failures = Counter(outcome.failure for outcome in outcomes)
    return {
        "rankings": sum(ranking.ranked_count > 0 for ranking in rankings),
        "rerank_failed": sum(ranking.ranked_count == 0 for ranking in rankings),
        "partly_ranked": sum(0 < ranking.ranked_count < len(ranking.candidates) for ranking in rankings),
        "votes": len(votes),
        "dropped_votes": sum(not vote.parsed for vote in votes),
        "with_unparsable_votes": failures["unparsable"],
        "context_overflow": failures["context_overflow"],
        "repaired": sum(outcome.num_repaired for outcome in outcomes),
        "mean_agreement": round(mean(agreements), 4) if agreements else None,
        "lists_with_gold_first": sum(ranking.num_gold_first > 0 for ranking in rankings),
        "lists_without_gold": sum(all(one.source != "gold" for one in ranking.candidates) for ranking in rankings),
        "gold_not_in_index": sum(outcome.num_gold_not_in_index for outcome in outcomes),
        "gold_cut": sum(outcome.num_gold_cut for outcome in outcomes),
        "same_text": sum(outcome.num_same_text for outcome in outcomes),
        "requests": sum(outcome.num_requests for outcome in outcomes),
        "usage": asdict(sum((outcome.usage for outcome in outcomes), Usage())),
    }


def _tell_rankings(
    config: Config, report: Mapping[str, Any], lists: CandidateLists, num_unanswered: int, rejects: Rejects
) -> None:
    usage = report["usage"]
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    print(f"{report['rankings']} rankings of {lists.num_subqueries} sub-queries -> {config.out}")
    print(f"  sub-queries without a ranking (kept, but no labels): {report['rerank_failed']}")
    print(f"  of these longer than the model's context: {report['context_overflow']}")
    print(f"  partly ranked: {report['partly_ranked']}; answers with numbers repeated or missing: {report['repaired']}")
    print(f"  votes dropped: {report['dropped_votes']} of {report['votes']}; agreement: {report['mean_agreement']}")
    print(f"  requests: {report['requests']}, tokens: {tokens:,}, cost: {usage['cost']:.2f}")
    print(f"  sub-queries that the model gave no answer for: {num_unanswered}")
    _tell(lists.left_out, rejects)


def _tell(counts: Mapping[str, int], rejects: Rejects) -> None:
    for name, count in counts.items():
        if count:
            print(f"  {name.replace('_', ' ')}: {count}")
    print(f"  lines set aside: {len(rejects.items)}")


async def _label(
    config: Config, tasks: Iterator[OracleTask], journal: JsonlAppender, spent: Usage, bar: Any
) -> LabelCounts:
    """Asks the model about all tasks."""
    settings = OracleSettings(
        form=config.form,
        window=config.window,
        step=config.step,
        votes=config.votes,
        answer_retries=config.answer_retries,
        seed=config.seed,
    )
    async with Endpoint(config.model, spent=spent) as endpoint:

        def show(counts: LabelCounts) -> None:
            failed = [f"{count} failed: {kind}" for kind, count in counts.failed.items()]
            bar.set_postfix_str(", ".join([*failed, endpoint.status()]), refresh=False)
            bar.update()

        oracle = Oracle(endpoint, settings)
        return await label_all(tasks, oracle, journal, concurrency=config.model.concurrency, on_progress=show)
