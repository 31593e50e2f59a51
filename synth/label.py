r"""Has an oracle rank each sub-query's candidates: a model that is asked now, recorded answers, or requests to be sent.

    agentir synth label --subqueries data/subqueries --index index/ --questions questions.jsonl --out data/rankings \
        --model.name Qwen3-32B --model.base-url http://127.0.0.1:8000/v1
    agentir synth label --subqueries data/subqueries --index index/ --questions questions.jsonl --out data/requests
    agentir synth label --subqueries data/subqueries --answers answers.jsonl --out data/rankings
    agentir synth label --subqueries data/subqueries --labelled data/rollout --out data/rankings

The first form retrieves candidates by the query alone, adds the gold documents and asks the model, which is told the
correct answer, for their order. Each answer is kept at once, in labels.jsonl or, while its sub-query needs more of them, in
the folder open; started again, the program asks only for what is missing. The second form, without a model, writes
requests.jsonl: send the `messages` of each line to any model and add its text to the line as `response`. Such a file of
answers is what the third form reads.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from tqdm import tqdm  # type: ignore[import-untyped]

from agentir.agent.journal import JournalFolder
from agentir.artifacts import Artifact, read_manifest
from agentir.chat.endpoint import Endpoint
from agentir.chat.settings import ModelSection
from agentir.config import RUNTIME, Field, ProgramConfig
from agentir.corpus.qa import read_questions
from agentir.drsynth.candidates import CandidateLists, ListMaker, ListOptions
from agentir.drsynth.false_start import GIVE_UP_AFTER
from agentir.drsynth.gold import resolve_gold
from agentir.drsynth.labelling import LabelCounts, label_all
from agentir.drsynth.labels import read_labels
from agentir.drsynth.oracle import ANSWER_RETRIES, LabelOutcome, Oracle, OracleSettings
from agentir.drsynth.requests import OracleTask, make_request
from agentir.embed.load import load_encoder
from agentir.errors import AgentirError, ConfigError
from agentir.jsonl import JsonlAppender, Rejects, read_records
from agentir.records import QAItem, SubQuery, Usage
from agentir.search.index import Index
from agentir.search.protocol import Searcher

NUM_SHOWN = 5
LABELS, OPEN = "labels.jsonl", "open"


class Config(ProgramConfig, ListOptions):
    """What is labelled, how candidates are chosen, and who ranks them."""

    subqueries: Path
    """The artifact of `agentir synth extract`."""
    answers: tuple[Path, ...] = ()
    """Files of recorded oracle answers, JSON lines with qid, turn, call, candidates, num_gold_first, response."""
    labelled: Path | None = None
    """The artifact of an `agentir synth rollout` with an oracle: its rankings are taken, and nothing is asked."""
    questions: Path | None = None
    """The questions with their answers and gold documents, in any layout that `synth extract` reads; without it only
    recorded answers can be read."""
    index: Path | None = None
    """The index folder in which candidates are searched; not for recorded answers."""
    searcher: Literal["bm25", "dense"] = "bm25"
    """How they are searched, by the query alone: by its words, or by vectors."""
    encoder: str | None = None
    """The query encoder of a dense search, a model folder or name; default is the model that built the index."""
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
    if config.labelled:
        rejects.check()
        _take_labelled(config, config.labelled, subqueries, rejects)
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
            JournalFolder(config.out / OPEN).clear()
            return
        questions, gold = resolve_gold(questions, config.index, rejects)
        searcher = index.bm25() if config.searcher == "bm25" else _dense(config, index)
        maker = ListMaker(index.pack, searcher, config)
        lists = CandidateLists(maker, subqueries, {item.qid: item for item in questions}, gold)
        if config.model.name:
            _ask_model(config, artifact, lists, rejects)
        else:
            _write_requests(config, artifact, lists, rejects)


def _dense(config: Config, index: Index) -> Searcher:
    return index.dense(load_encoder(config.encoder or index.encoder_name))


def _check(config: Config) -> None:
    """Refuses settings that contradict each other, and names those that have no effect."""
    given = config.model_fields_set
    if "model" in given and not (config.model.name or config.answers or config.labelled):
        raise ConfigError("model.name: missing; set it to ask the model, or leave all of model out to make requests")
    if config.step is not None and (config.window is None or config.step >= config.window):
        found = "no window" if config.window is None else f"step {config.step}, window {config.window}"
        raise ConfigError(f"step: expected less than window, found {found}")
    if config.answers and config.labelled:
        raise ConfigError("answers, labelled: expected one of the two")
    if config.answers or config.labelled:
        reason = "answers are given" if config.answers else "labelled is given"
        ignored = [name for name in (*FOR_LISTS, *FOR_MODEL) if name in given]
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


def _take_labelled(config: Config, labelled: Path, subqueries: Sequence[SubQuery], rejects: Rejects) -> None:
    """Takes the rankings of a rollout's oracle for the sub-queries that were extracted."""
    read_manifest(labelled, "trajectories")
    if not (labelled / LABELS).is_file():
        raise ConfigError(f"labelled: expected a rollout with an oracle, found none in {labelled}")
    inputs = {"subqueries": config.subqueries, "labelled": labelled}
    if config.questions:
        inputs["questions"] = config.questions
    with Artifact(config.out, "rankings", config, inputs=inputs) as artifact:
        if artifact.complete:
            print(f"{config.out}: complete already")
            return
        known = {subquery.subqid: subquery for subquery in subqueries}
        found = {
            one.ranking.subquery.subqid: one
            for one in read_records(labelled / LABELS, LabelOutcome)
            if (same := known.get(one.ranking.subquery.subqid)) and same.query == one.ranking.subquery.query
        }
        # the extracted reasoning counts: it may have been dropped there
        outcomes = [
            replace(found[subqid], ranking=replace(found[subqid].ranking, subquery=subquery))
            for subqid, subquery in known.items()
            if subqid in found
        ]
        artifact.write("rankings.jsonl", (outcome.ranking for outcome in outcomes))
        report = _describe(outcomes)
        unanswered = [subqid for subqid in known if subqid not in found]
        counts = {"subqueries_without_answer": len(unanswered), "without_answer": unanswered}
        artifact.finish({"subqueries": len(subqueries), **report, **counts}, rejects)
    _tell_rankings(config, report, len(subqueries), {}, len(unanswered), rejects)


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
    counts.update(lists.gold)
    artifact.finish({"subqueries": lists.num_subqueries, "requests": num_requests, **counts}, rejects)
    print(f"{num_requests} requests for {lists.num_subqueries} sub-queries -> {config.out}")
    _tell(counts, rejects)
    print("next: add a `response` to each line of requests.jsonl, then give the file as --answers")


def _ask_model(config: Config, artifact: Artifact, lists: CandidateLists, rejects: Rejects) -> None:
    journals = JournalFolder(artifact.folder / OPEN)
    with artifact.append_to(LABELS) as labels:
        before = {one.ranking.subquery.subqid: one.usage for one in read_records(labels.path, LabelOutcome)}
        for subqid in before:  # a kill may have come just before its journal was removed
            journals.remove(subqid)
        with tqdm(desc="labels", unit="sub-query", total=len(lists.subqueries), initial=len(before)) as bar:
            run = asyncio.run(_label(config, lists, before, labels, journals, bar))
    found = {one.ranking.subquery.subqid: one for one in read_records(artifact.folder / LABELS, LabelOutcome)}
    outcomes = [found[subquery.subqid] for subquery in lists.subqueries if subquery.subqid in found]
    print(f"{run.num_labelled} sub-queries labelled now, {len(before)} before, of {lists.num_subqueries}")
    for kind, count in run.failed.items():
        print(f"  failed: {count} ({kind}; the first: {run.first_errors[kind]})")
    if run.stopped:
        raise AgentirError(f"{config.out}: unfinished: {run.stopped} and run the same command again to continue")
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
            **lists.gold,
            "failed": dict(run.failed),
            "subqueries_without_answer": len(unanswered),
            "without_answer": unanswered,
        },
        rejects,
    )
    journals.clear()
    _tell_rankings(config, report, lists.num_subqueries, {**lists.left_out, **lists.gold}, len(unanswered), rejects)


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
    config: Config,
    report: Mapping[str, Any],
    num_subqueries: int,
    left_out: Mapping[str, int],
    num_unanswered: int,
    rejects: Rejects,
) -> None:
    usage = report["usage"]
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    print(f"{report['rankings']} rankings of {num_subqueries} sub-queries -> {config.out}")
    print(f"  sub-queries without a ranking (kept, but no labels): {report['rerank_failed']}")
    print(f"  of these longer than the model's context: {report['context_overflow']}")
    print(f"  partly ranked: {report['partly_ranked']}; answers with numbers repeated or missing: {report['repaired']}")
    print(f"  votes dropped: {report['dropped_votes']} of {report['votes']}; agreement: {report['mean_agreement']}")
    print(f"  requests: {report['requests']}, tokens: {tokens:,}, cost: {usage['cost']:.2f}")
    print(f"  sub-queries that the model gave no answer for: {num_unanswered}")
    _tell(left_out, rejects)


def _tell(counts: Mapping[str, int], rejects: Rejects) -> None:
    for name, count in counts.items():
        if count:
            print(f"  {name.replace('_', ' ')}: {count}")
    print(f"  lines set aside: {len(rejects.items)}")


async def _label(
    config: Config,
    lists: CandidateLists,
    before: Mapping[str, Usage],
    labels: JsonlAppender,
    journals: JournalFolder,
    bar: Any,
) -> LabelCounts:
    """Asks the model about all lists that were not labelled before."""
    settings = OracleSettings(
        form=config.form,
        window=config.window,
        step=config.step,
        votes=config.votes,
        answer_retries=config.answer_retries,
        seed=config.seed,
    )
    spent = sum(before.values(), journals.usage())
    async with Endpoint(config.model, spent=spent) as endpoint:

        def show(counts: LabelCounts) -> None:
            failed = [f"{count} failed: {kind}" for kind, count in counts.failed.items()]
            bar.set_postfix_str(", ".join([*failed, endpoint.status()]), refresh=False)
            bar.update()

        oracle = Oracle(endpoint, settings)
        return await label_all(
            lists.make(done=before),
            oracle,
            labels,
            journals=journals,
            concurrency=config.model.concurrency,
            # Where others worked, those to be left out may be all that is left.
            give_up_after=None if config.on_failure == "leave_out" and before else GIVE_UP_AFTER,
            on_progress=show,
        )
