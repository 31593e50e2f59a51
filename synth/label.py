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
from typing import Any, Literal

from tqdm import tqdm  # type: ignore[import-untyped]

from agentir.agent.journal import JournalFolder
from agentir.artifacts import Artifact, read_manifest
from agentir.chat.endpoint import Endpoint
from agentir.chat.settings import ModelSection
from agentir.config import RUNTIME, Field, ProgramConfig
from agentir.corpus.qa import read_questions
from agentir.drsynth.candidates import CandidateLists, ListMaker
from agentir.drsynth.failure_streak import FailureStreak
from agentir.drsynth.faults import Faults
from agentir.drsynth.gold import resolve_gold
from agentir.drsynth.label_file import LabelFile, LabelReader, NoRankingsError
from agentir.drsynth.label_report import LabelReport
from agentir.drsynth.labelling import LabelCounts, label_all
from agentir.drsynth.labels import read_labels
from agentir.drsynth.oracle import Oracle
from agentir.drsynth.oracle_options import OracleOptions
from agentir.drsynth.requests import OracleTask, make_request
from agentir.embed.load import load_encoder
from agentir.errors import AgentirError, ConfigError
from agentir.jsonl import Rejects, read_records
from agentir.records import QAItem, Ranking, SubQuery
from agentir.search.index import Index
from agentir.search.protocol import Searcher

NUM_SHOWN = 5
LABELS, OPEN = "labels.jsonl", "open"


class Config(ProgramConfig, OracleOptions):
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
    on_failure: Literal["retry", "leave_out"] = Field(default="retry", json_schema_extra=RUNTIME)
    """What becomes of sub-queries that the model's server gave no answer for: the next start asks for them again, or they
    are left out and listed. Where many in a row fail because the server refuses them or is away, the run stops in either
    case; a next start that leaves out does not count those that had failed before."""


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
    facts = {"prompt_sha256": config.prompt_sha256}
    with Index.open(config.index) as index, Artifact(config.out, kind, config, inputs, facts) as artifact:
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
        labels, counted = LabelReader(labelled / LABELS), LabelReport()

        def rankings() -> Iterator[Ranking]:
            for subquery, outcome in zip(found, labels.read(found), strict=True):
                # the extracted reasoning counts: it may have been dropped there
                yield replace(counted.take(outcome), subquery=subquery)

        found = [subquery for subquery in subqueries if subquery in labels]
        artifact.write("rankings.jsonl", rankings())
        report = counted.as_dict()
        unanswered = [subquery.subqid for subquery in subqueries if subquery not in labels]
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
    faults, run, counted = Faults(artifact.folder), LabelCounts(), LabelReport()
    with LabelFile(artifact.include(LABELS), JournalFolder(artifact.folder / OPEN), config.shown) as labels:
        num_before = len(labels)
        try:
            asyncio.run(_label(config, lists, labels, faults, run))
        except NoRankingsError:
            labels.discard()  # so that the folder can go on under the settings that mend it
            raise
        finally:
            if not len(labels):
                faults.remove()
        print(f"{run.num_labelled} sub-queries labelled now, {num_before} before, of {lists.num_subqueries}")
        for kind, count in run.failed.items():
            print(f"  failed: {count} ({kind}; the first: {run.first_errors[kind]})")
        if run.stopped:
            raise AgentirError(f"{config.out}: unfinished: {run.stopped} and run the same command again to continue")
        if run.unanswered and (config.on_failure == "retry" or not run.num_labelled + num_before):
            raise AgentirError(
                f"{config.out}: unfinished: the model gave no answer for {len(run.unanswered)} of "
                f"{len(lists.subqueries)} sub-queries; run the same command again to ask for these only"
                + (", or with --on-failure leave_out to finish without them" if run.num_labelled + num_before else "")
            )
        labels.complete()
        usage_of_failed = labels.journals.usage()
        artifact.write("rankings.jsonl", map(counted.take, labels.read(lists.subqueries)))
        unanswered = [subquery.subqid for subquery in lists.subqueries if subquery not in labels]
    report = counted.as_dict()
    artifact.finish(
        {
            "subqueries": lists.num_subqueries,
            **report,
            "usage_of_failed": asdict(usage_of_failed),
            "retries": dict(faults.retries),
            **lists.left_out,
            **lists.gold,
            "failed": dict(run.failed),
            "subqueries_without_answer": len(unanswered),
            "without_answer": unanswered,
        },
        rejects,
    )
    labels.journals.clear()
    faults.remove()
    _tell_rankings(config, report, lists.num_subqueries, {**lists.left_out, **lists.gold}, len(unanswered), rejects)


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


async def _label(config: Config, lists: CandidateLists, labels: LabelFile, faults: Faults, run: LabelCounts) -> None:
    """Asks the model about all lists that were not labelled before, under a progress bar."""
    # Where others worked, those to be left out may be all that is left.
    passed_over = faults.failed if config.on_failure == "leave_out" and len(labels) else ()
    with tqdm(desc="labels", unit="sub-query", total=len(lists.subqueries), initial=len(labels)) as bar:
        async with Endpoint(config.model, spent=labels.spent) as endpoint:

            def show(counts: LabelCounts) -> None:
                failed = [f"{count} failed: {kind}" for kind, count in counts.failed.items()]
                bar.set_postfix_str(", ".join([*failed, endpoint.status()]), refresh=False)
                bar.update()

            try:
                await label_all(
                    lists.make(done=labels),
                    Oracle(endpoint, config.settings),
                    labels,
                    concurrency=config.model.concurrency,
                    streak=FailureStreak("sub-queries", passed_over=passed_over),
                    counts=run,
                    on_progress=show,
                )
            finally:
                faults.add(run.unanswered, endpoint.retries)
