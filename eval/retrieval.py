r"""Retrieval measures per sub-query.

    agentir eval retrieval --config configs/demo/evaluate.toml
    agentir eval retrieval --examples runs/examples/heldout.jsonl --questions questions.jsonl --index runs/index \
        --system "reasoning + query" --encoder runs/model/seed-1 --out runs/eval/reasoning

Searches an index with every held-out sub-query and measures where the relevant documents came. Writes an evaluation:
run.txt and qrels.txt (TREC), per_query.jsonl (the values and slices of each sub-query), and a manifest with the means.
Numbers are trec_eval's; means are over all sub-queries, those without any hit count 0. `agentir eval report` compares
several evaluations.

With `--run results.trec` nothing is searched: the rankings are those of a TREC run that another system made, whose query ids
are the ids of the sub-queries (`q1_turn0`, see qrels.txt of any evaluation).
"""

from __future__ import annotations

import os
import platform
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm  # type: ignore[import-untyped]

from agentir import __version__
from agentir.appender import JsonlAppender
from agentir.artifacts import MANIFEST, UNFINISHED, Artifact, read_manifest
from agentir.config import ProgramConfig
from agentir.corpus.qa import read_questions
from agentir.embed.encoder import HISTORY_SLOTS, Encoder
from agentir.embed.history import Histories, search_query
from agentir.embed.load import Backend, load_encoder
from agentir.embed.multi_vector import TokenEncoder, load_token_encoder
from agentir.embed.template import Input
from agentir.errors import ConfigError, InputError
from agentir.jsonl import MAX_SHOWN, Rejects, read_records
from agentir.measures.query_values import FILE, QueryValues
from agentir.measures.ranking import MEASURES, Evaluation, evaluate, measure_names
from agentir.measures.runs import Qrels, Run, RunFile, fits_trec, read_run, write_qrels, write_run
from agentir.measures.slices import slice_names, slices_of
from agentir.records import STRICT, Hit, QAItem, SearchQuery, SubQuery, TrainingExample
from agentir.search.index import Index
from agentir.search.protocol import Searcher
from agentir.search.reranked import MaxSimReranker, RerankedSearcher

BATCH = 32
FOUND = "found.jsonl"
"""Hits of the sub-queries searched so far; removed when the evaluation is complete."""
PACKAGES = ("numpy", "pytrec_eval-terrier", "bm25s", "faiss-cpu", "sentence-transformers", "torch", "openvino")


class Config(ProgramConfig):
    """What to evaluate, and on what."""

    examples: Path
    """JSON lines of training examples: held-out sub-queries with their relevant documents (positive_docids). A folder
    stands for the one JSON lines file in it."""
    questions: Path
    """JSON lines of the questions, with answers and the fields that slices are made of."""
    index: Path
    """The index folder to search; it also holds the titles that slices are made of."""
    system: str
    """The name of what is evaluated, as reports show it."""
    run: Path | None = None
    """A TREC run to evaluate instead of searching the index."""
    searcher: Literal["dense", "bm25"] = "dense"
    """How to search: by vectors, or by the words of the query (BM25)."""
    encoder: str | None = None
    """Query encoder, a model folder or name; default is the model that built the index."""
    input: Input | None = None
    """What the encoder is given, behind its own instruction; default is what its own template says."""
    history: Path | None = None
    """For encoders that read the episode's earlier searches: the sub-queries that the examples were made of, the folder
    that `agentir synth extract` wrote or a file of such lines."""
    max_tokens: int | None = None
    """Limit of a rendered query; default is the encoder's own."""
    backend: Backend = "auto"
    """What computes the encoder."""
    reranker: str | None = None
    """Multi-vector model that orders the best hits anew by exact MaxSim."""
    rerank_depth: int = 100
    """How many hits of the first stage it scores (at least k)."""
    k: int = 100
    """How many documents to find for a sub-query."""
    measures: tuple[str, ...] = MEASURES
    """nDCG, Recall, MRR, MAP, P or Judged, each with @k."""
    seed: int | None = None
    """The seed the encoder was trained with: a label, so that reports can tell several runs of one system apart."""
    slices: dict[str, dict[str, str]] = {}
    """Further slices by fields of the question, such as {"hard questions" = {dataset = "hard"}}."""
    intersections: tuple[tuple[str, ...], ...] = ()
    """Groups of slices whose common part is a slice too, such as [["hard questions", "gold title not in query"]]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found for a sub-query, and its share of the seconds of its batch (encoding and searching)."""

    __pydantic_config__ = STRICT

    subqid: str
    hits: tuple[Hit, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a system found for the sub-queries, and what is known of how.

    Attributes:
        run: the hits, by sub-query id.
        tag: names the maker in run.txt.
        seconds: of encoding and searching, None for a run that was made elsewhere.
        encoder: the description of the query encoder, None where there is none.
        notes: what a reader must know before trusting numbers from the run.
    """

    run: Run
    tag: str
    seconds: float | None = None
    encoder: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()


def main(config: Config) -> None:
    """Evaluates one system."""
    names = slice_names(config.slices, config.intersections)
    measures = measure_names(config.measures)
    if config.k < 1:
        raise ConfigError(f"k: expected 1 or more, found {config.k}")
    examples_file = find_examples(config.examples)
    inputs = {"examples": examples_file, "questions": config.questions, "index": config.index}
    warn_of_ignored(config)
    if config.run is not None:
        inputs["run"] = config.run
    elif config.searcher == "dense" and config.encoder is not None and Path(config.encoder).is_dir():
        inputs["encoder"] = Path(config.encoder)
    if config.run is None and config.reranker is not None and Path(config.reranker).is_dir():
        inputs["reranker"] = Path(config.reranker)
    rejects = Rejects(set_aside=config.on_bad_line == "set_aside")
    histories = None
    if config.history is not None and config.run is None and (config.searcher == "dense" or config.reranker):
        inputs["history"] = config.history
        histories = Histories.read(config.history, rejects)
    examples = list(read_records(examples_file, TrainingExample, rejects))
    questions = {item.qid: item for item in read_questions(config.questions, rejects)}
    given = None if config.run is None else read_run(config.run, rejects)
    rejects.check()
    with Index.open(config.index) as index:
        examples, left_out = keep_usable(examples, questions, index, set_aside=rejects.set_aside)
        refuse_unfit_ids(index, given)
        slices = {
            example.subquery.subqid: slices_of(
                example,
                questions[example.subquery.qid],
                titles(index, example.positive_docids),
                config.slices,
                config.intersections,
            )
            for example in examples
        }
        with Artifact(config.out, "evaluation", config, inputs) as artifact:
            if artifact.complete:
                print(f"{config.out}: already complete")
                return
            qrels = {example.subquery.subqid: dict.fromkeys(example.positive_docids, 1) for example in examples}
            if given is None:
                subqueries = [example.subquery for example in examples]
                answers = search(config, index, subqueries, histories, artifact.folder / FOUND)
            else:
                answers = taken_over(given, qrels, index)
            evaluation = evaluate(answers.run, qrels, measures)
            write_run(artifact.include("run.txt"), answers.run, tag=answers.tag)
            write_qrels(artifact.include("qrels.txt"), qrels)
            artifact.write(FILE, per_query(examples, evaluation, qrels, slices))
            counts = Counter(name for members in slices.values() for name in members)
            report = {
                "system": config.system,
                "seed": config.seed,
                "num_subqueries": len(examples),
                "num_questions": len({example.subquery.qid for example in examples}),
                "means": {measure: evaluation.mean(measure) for measure in measures},
                "slices": {name: counts[name] for name in names},
                "notes": [*evaluation.notes(), *answers.notes],
                "left_out": left_out,
                "seconds": None if answers.seconds is None else round(answers.seconds, 3),
                "ms_per_query": None if answers.seconds is None else round(1000 * answers.seconds / len(examples), 3),
                "encoder": answers.encoder,
                "machine": machine(),
                "versions": versions(),
            }
            artifact.finish(report, rejects)
            (artifact.folder / FOUND).unlink(missing_ok=True)
    tell(config, report, rejects)


def warn_of_ignored(config: Config) -> None:
    """Warns of settings that say how to search where they decide nothing."""
    names, reason = ["encoder", "input", "history", "max_tokens", "backend"], "BM25 reads the words of the query only"
    if config.run is not None:
        names, reason = ["searcher", *names, "reranker", "k"], "the run was made elsewhere"
    elif config.searcher == "dense":
        return
    elif config.reranker is not None:
        names = ["encoder", "backend"]
    for name in names:
        if name in config.model_fields_set:
            warnings.warn(f"{name}: ignored, {reason}", stacklevel=2)


def find_examples(path: Path) -> Path:
    """The file of examples; in a folder, the only JSON lines file."""
    file = path
    if path.is_dir():
        files = sorted(each for each in path.glob("*.jsonl") if each.name != "rejected.jsonl")
        if len(files) != 1:
            shown = ", ".join(each.name for each in files) or "none"
            raise InputError(f"{path}: expected one JSON lines file of examples, found {shown}; name the file")
        file = files[0]
    if (file.parent / UNFINISHED).is_file() and not (file.parent / MANIFEST).is_file():
        read_manifest(file.parent)  # raises, and says how to finish the folder
    return file


def keep_usable(
    examples: Sequence[TrainingExample], questions: dict[str, QAItem], index: Index, *, set_aside: bool
) -> tuple[list[TrainingExample], list[str]]:
    """The sub-queries that can be evaluated, and a text for each of the others."""
    kept: dict[str, TrainingExample] = {}
    faults = []
    for example in examples:
        subqid = example.subquery.subqid
        missing = [docid for docid in example.positive_docids if index.pack.row(docid) is None]
        if subqid in kept:
            faults.append(f"sub-query {subqid!r}: listed twice")
        elif unfit := [name for name in (subqid, *example.positive_docids) if not fits_trec(name)]:
            faults.append(
                f"sub-query {subqid!r}: TREC files cannot hold the id {unfit[0]!r}, since it is empty or has white space"
            )
        elif example.subquery.qid not in questions:
            faults.append(f"sub-query {subqid!r}: its question {example.subquery.qid!r} is not in the questions file")
        elif missing:
            faults.append(f"sub-query {subqid!r}: its relevant document {missing[0]!r} is not in the index")
        else:
            kept[subqid] = example
    if faults and not set_aside:
        more = [f"... and {len(faults) - MAX_SHOWN} more"] if len(faults) > MAX_SHOWN else []
        advice = 'give the examples, questions and index that belong together, or set on_bad_line = "set_aside"'
        raise InputError("\n".join([*faults[:MAX_SHOWN], *more, advice]))
    if not kept:
        raise InputError(f"expected sub-queries to evaluate, found none among {len(examples)} examples")
    return list(kept.values()), faults


def refuse_unfit_ids(index: Index, given: RunFile | None) -> None:
    """Refuses ids that run.txt could not hold; which of an index's documents will be found is not known before."""
    if given is None:
        where = "the index"
        ids = (index.pack.docid(row) for row in range(len(index.pack)))
    else:
        where = "the run"
        ids = (name for qid, hits in given.run.items() for name in (qid, *(hit.docid for hit in hits)))
    if unfit := [name for name in ids if not fits_trec(name)]:
        raise InputError(
            f"{where}: TREC files separate columns by white space, so ids must be non-empty and hold none; found "
            f"{len(unfit)} others: {', '.join(map(repr, unfit[:MAX_SHOWN]))}; rename them"
        )


def titles(index: Index, docids: Sequence[str]) -> list[str]:
    """The titles of documents of the index."""
    rows = [row for docid in docids if (row := index.pack.row(docid)) is not None]
    return index.pack.titles(rows)


def open_searcher(config: Config, index: Index) -> tuple[Searcher, list[Encoder | TokenEncoder]]:
    """What searches the index, and the encoders of its stages."""
    searcher, encoders = first_stage(config, index)
    if config.reranker is None:
        return searcher, [*encoders]
    reader = load_token_encoder(config.reranker, max_tokens=config.max_tokens, input=config.input)
    reranked = RerankedSearcher(searcher, MaxSimReranker(reader, index.pack.find), config.rerank_depth)
    return reranked, [*encoders, reader]


def first_stage(config: Config, index: Index) -> tuple[Searcher, list[Encoder]]:
    """What finds documents in the index, and its query encoder."""
    if config.searcher == "bm25":
        return index.bm25(), []
    encoder = load_encoder(
        config.encoder or index.encoder_name,
        backend=config.backend,
        max_tokens=config.max_tokens,
        input=config.input,
    )
    return index.dense(encoder), [encoder]


def search(
    config: Config, index: Index, subqueries: Sequence[SubQuery], histories: Histories | None, path: Path
) -> Answers:
    """Searches the index with every sub-query; `path` keeps what was found, see `search_all`."""
    searcher, encoders = open_searcher(config, index)
    readers = [encoder.name for encoder in encoders if encoder.context_slot in HISTORY_SLOTS]
    if readers and histories is None:
        raise ConfigError(
            f"history: missing; {readers[0]} reads the episode's earlier searches: give the sub-queries that the "
            "examples were made of, as `agentir synth extract` wrote them"
        )
    if encoders and histories is not None and not readers:
        warnings.warn(f"history: ignored, {encoders[0].name} does not read it", stacklevel=2)
    queries = {sub.subqid: search_query(sub, histories if readers else None) for sub in subqueries}
    found = search_all(searcher, queries, config.k, config.system, path)
    return Answers(
        run={subqid: item.hits for subqid, item in found.items()},
        tag="agentir",
        seconds=sum(item.seconds for item in found.values()),
        encoder=encoders[-1].describe() if encoders else None,
    )


def taken_over(given: RunFile, qrels: Qrels, index: Index) -> Answers:
    """What a run made elsewhere lists; ties and unknown query ids are for the evaluation to note."""
    notes = replace(given, tied=()).warnings()
    docids = dict.fromkeys(hit.docid for qid in qrels for hit in given.run.get(qid, ()))
    if unknown := [docid for docid in docids if index.pack.row(docid) is None]:
        notes.append(
            f"documents of the run that the index does not hold (not relevant): {len(unknown)}, the first is {unknown[0]!r}"
        )
    return Answers(run=given.run, tag="external", notes=tuple(notes))


def search_all(
    searcher: Searcher, queries: Mapping[str, SearchQuery], k: int, name: str, path: Path
) -> dict[str, Found]:
    """Searches with every query that an earlier start did not finish, by id; `path` keeps what was found."""
    with JsonlAppender(path) as appender:
        found = {item.subqid: item for item in read_records(path, Found)}
        waiting = [subqid for subqid in queries if subqid not in found]
        with tqdm(total=len(queries), initial=len(found), desc=name, unit="query") as bar:
            for start in range(0, len(waiting), BATCH):
                batch = waiting[start : start + BATCH]
                began = time.perf_counter()
                lists = searcher.search([queries[subqid] for subqid in batch], k)
                seconds = (time.perf_counter() - began) / len(batch)
                for subqid, hits in zip(batch, lists, strict=True):
                    found[subqid] = Found(subqid=subqid, hits=tuple(hits), seconds=seconds)
                    appender.append(found[subqid])
                bar.update(len(batch))
    return found


def per_query(
    examples: Sequence[TrainingExample], evaluation: Evaluation, qrels: Qrels, slices: dict[str, tuple[str, ...]]
) -> Iterable[QueryValues]:
    """The lines of per_query.jsonl, in the order of the examples."""
    for example in examples:
        subqid = example.subquery.subqid
        yield QueryValues(
            subqid=subqid,
            qid=example.subquery.qid,
            slices=slices[subqid],
            num_relevant=len(qrels[subqid]),
            values={measure: values[subqid] for measure, values in evaluation.values.items()},
        )


def machine() -> str:
    """Where this runs, in a few words."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"


def versions() -> dict[str, str]:
    """The versions of what numbers depend on, as far as it is installed."""
    found = {"agentir": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def tell(config: Config, report: dict[str, Any], rejects: Rejects) -> None:
    """Prints what was measured, what was left out, and where the result is."""
    print(f"{config.system}: {report['num_subqueries']} sub-queries of {report['num_questions']} questions")
    print("  " + "  ".join(f"{measure} {mean:.4f}" for measure, mean in report["means"].items()))
    for note in report["notes"][1:]:
        print(f"  {note}")
    for text in report["left_out"]:
        print(f"  left out: {text}")
    for file, count in rejects.counts().items():
        print(f"  set aside: {count} lines of {file}")
    speed = f"{report['ms_per_query']:.1f} ms a query (in batches of {BATCH}) " if config.run is None else ""
    print(f"  {speed}-> {config.out}")
