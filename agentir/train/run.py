"""Fine-tune an embedder on training examples.

    agentir train --config configs/demo/train-reasoning.toml

Reads the examples of `agentir synth build` (or Tevatron/AgentIR JSON lines) and a corpus, optionally looks for the best
learning rate and temperature on development questions, trains once a seed, and writes a folder with `seed-N/` model
folders that sentence-transformers, `agentir index build` and `agentir index serve` open. The query template is stored
in each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentir.artifacts import Artifact
from agentir.corpus.loaders import read_documents
from agentir.embed.load import load_model, own_template
from agentir.embed.template import template_for
from agentir.embed.tokens import Tokenization
from agentir.errors import ConfigError, InputError
from agentir.jsonl import Rejects
from agentir.records import Document
from agentir.search.index import Index
from agentir.train.config import Config
from agentir.train.data import TrainingRow, document_keys, read_rows, refuse_dangling

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from agentir.train.evaluator import DevEvaluator
    from agentir.train.trainer import Passages


def main(config: Config) -> None:
    """Trains, and says where the models are."""
    rejects = Rejects(set_aside=config.on_bad_line == "set_aside")
    documents: dict[str, Document] = {}
    train_file, dev_file = row_files(config)
    rows = read_rows(train_file, rejects, documents)
    dev_rows = read_rows(dev_file, rejects, documents) if dev_file else []
    if not rows and not rejects.items:
        raise InputError(f"{train_file}: expected training rows, found none")
    index = open_index(config)
    add_corpus(config, index, rejects, documents, rows + dev_rows)
    rejects.check()
    refuse_dangling(rows + dev_rows, documents, str(config.corpus or train_file))

    inputs = {"examples": config.examples} | {
        name: path for name in ("dev", "corpus") if (path := getattr(config, name))
    }
    with Artifact(config.out, "model", config, inputs) as artifact:
        if artifact.complete:
            print(f"{config.out}: already trained; nothing to do")
            return
        from agentir.train.fit import search, settings_of, train_seed

        model = load_model(config.model, device=config.device)
        template = replace(
            template_for(config.input, task=config.task, newline=config.newline),
            document_instruction=own_template(model).document_instruction,
        )
        tokenization = Tokenization(model.tokenizer, template, *token_limits(config, model))
        passages = make_passages(config, index, documents)
        evaluator = make_evaluator(dev_rows, tokenization, index, passages)
        start = settings_of(config, model)
        points = search(config, artifact, model, rows, tokenization, passages, start, evaluator)
        best = max(points, key=lambda point: point.measures["nDCG@10"], default=None)
        if best is not None:
            start = settings_of(config, model, learning_rate=best.learning_rate, temperature=best.temperature)
        final_rows = rows + dev_rows if config.train_on_dev else rows
        figures = {}
        for seed in config.seeds:
            figures[f"seed-{seed}"] = train_seed(
                config,
                artifact,
                model,
                final_rows,
                tokenization,
                passages,
                settings_of(config, model, learning_rate=start.learning_rate, temperature=start.temperature, seed=seed),
                None if config.train_on_dev else evaluator,
                index,
            )
        report = {
            "num_rows": len(final_rows),
            "num_dev_rows": len(dev_rows),
            "learning_rate": start.learning_rate,
            "temperature": start.temperature,
            "search": [asdict(point) for point in points],
            "models": figures,
        }
        artifact.finish(report, rejects)
    print(
        f"trained {config.input} on {len(final_rows)} rows, {len(config.seeds)} seed(s), learning rate "
        f"{start.learning_rate:g}, temperature {start.temperature:g}"
    )
    if rejects.items:
        print(f"set aside: {len(rejects.items)} lines, see {config.out / 'rejected.jsonl'}")
    print(f"models: {', '.join(str(config.out / name) for name in figures)}")


def row_files(config: Config) -> tuple[Path, Path | None]:
    """The files of training and development rows."""
    if not config.examples.is_dir():
        return config.examples, config.dev
    dev = config.dev or config.examples / "dev.jsonl"
    has_dev = config.dev is not None or (dev.is_file() and dev.stat().st_size > 0)
    return config.examples / "train.jsonl", dev if has_dev else None


def open_index(config: Config) -> Index | None:
    """The index of the corpus, where the corpus is one; frozen passages need one with vectors."""
    is_index = config.corpus is not None and config.corpus.is_dir() and not (config.corpus / "corpus.jsonl").exists()
    index = Index.open(config.corpus) if is_index and config.corpus is not None else None
    if config.passages == "frozen" and (index is None or not index.has_vectors):
        raise ConfigError(f"corpus: frozen passages need an index folder with vectors, found {config.corpus}")
    return index


def add_corpus(
    config: Config, index: Index | None, rejects: Rejects, documents: dict[str, Document], rows: Sequence[TrainingRow]
) -> None:
    """Adds the documents that the rows name, from the index or the corpus file."""
    named = {docid for row in rows for docid in (*row.positives, *row.negatives, *row.pool)}
    if index is not None:
        found = {docid: row for docid in named if (row := index.pack.row(docid)) is not None}
        documents.update((docid, index.pack.document(row)) for docid, row in found.items())
    elif config.corpus is not None:
        documents.update((doc.docid, doc) for doc in read_documents(config.corpus, rejects) if doc.docid in named)


def token_limits(config: Config, model: SentenceTransformer) -> tuple[int, int]:
    """Limits of queries and documents: given, else the model's own."""
    own = int(model.max_seq_length or model.tokenizer.model_max_length)
    return config.max_query_tokens or own, config.max_document_tokens or own


def make_passages(config: Config, index: Index | None, documents: Mapping[str, Document]) -> Passages:
    """Where the trainer takes passage vectors from."""
    from agentir.train.trainer import Passages

    keys = dict(document_keys(documents.values()))
    if config.passages == "joint" or index is None:
        return Passages(keys=keys, documents=documents)
    rows = {docid: row for docid in documents if (row := index.pack.row(docid)) is not None}
    vectors = index.vectors
    return Passages(keys=keys, documents=documents, frozen=lambda docids: vectors[[rows[docid] for docid in docids]])


def make_evaluator(
    dev_rows: Sequence[TrainingRow], tokenization: Tokenization, index: Index | None, passages: Passages
) -> DevEvaluator | None:
    """Evaluation on the development rows: over the whole index where passages are frozen, else over the ranked pool."""
    from agentir.train.evaluator import DevEvaluator

    if not dev_rows:
        return None
    if passages.frozen is not None and index is not None:
        docids = [index.pack.docid(row) for row in range(len(index.pack))]
        return DevEvaluator(dev_rows, tokenization, docids, frozen=index.vectors)
    pool = dict.fromkeys(docid for row in dev_rows for docid in (*row.positives, *row.negatives, *row.pool))
    return DevEvaluator(
        dev_rows, tokenization, [docid for docid in pool if docid in passages.documents], documents=passages.documents
    )
