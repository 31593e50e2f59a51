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

from agentir.artifacts import CURRENT, Artifact
from agentir.corpus.text_key import text_key
from agentir.embed.load import load_model, space_of, template_of, token_limits
from agentir.embed.template import QueryTemplate, instruction
from agentir.embed.tokens import Tokenization
from agentir.errors import ConfigError, EncoderError, InputError, MissingExtraError
from agentir.jsonl import Rejects
from agentir.records import Document
from agentir.search.documents import find_documents
from agentir.search.index import Index
from agentir.train.batches import check_batches
from agentir.train.config import Config
from agentir.train.data import TrainingRow, read_rows, refuse_dangling

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
    if config.corpus is not None:
        named = {docid for row in rows + dev_rows for docid in (*row.positives, *row.negatives, *row.gold, *row.pool)}
        documents |= find_documents(config.corpus, named - documents.keys(), rejects)
    rejects.check()
    refuse_dangling(rows + dev_rows, documents, str(config.corpus or train_file))

    if config.preview:
        preview(load_base(config)[1], rows[0], documents)
        return
    check_batches(rows, config.batch_size)
    given = {"dev": config.dev, "corpus": config.corpus, "model": local_model(config.model)}
    inputs = {"examples": config.examples} | {name: path for name, path in given.items() if path is not None}
    with Artifact(config.out, "model", config, inputs) as artifact:
        if artifact.complete:
            print(f"{config.out}: already trained; nothing to do")
            return
        try:
            from agentir.train.fit import search, settings_of, train_seed
        except ModuleNotFoundError as error:
            raise MissingExtraError(error.name or "sentence-transformers", "train") from None

        model, tokenization = load_base(config)
        if index is not None:
            check_base(config, index, model, tokenization.template)
        passages = make_passages(index, documents)
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
    if num_left_out := len(final_rows) % config.batch_size:
        print(f"left out of each epoch: {num_left_out} rows, others each time, that do not fill a batch")
    print(
        f"trained {config.input} on {len(final_rows)} rows, {len(config.seeds)} seed(s), learning rate "
        f"{start.learning_rate:g}, temperature {start.temperature:g}"
    )
    if rejects.items:
        print(f"set aside: {len(rejects.items)} lines, see {config.out / 'rejected.jsonl'}")
    print(f"models: {', '.join(str(config.out / name) for name in figures)}")


def load_base(config: Config) -> tuple[SentenceTransformer, Tokenization]:
    """The model that training starts from, and how it is given texts."""
    # float32 whatever the checkpoint holds: AdamW's small updates would be lost in bfloat16 weights
    model = load_model(config.model, device=config.device, dtype="float32")
    template = template_of(config.model, model, config.input)
    if config.task is not None:
        template = replace(template, instruction=instruction(config.task, config.newline) if config.task else "")
    limits = token_limits(config.model, model, config.max_query_tokens, config.max_document_tokens)
    return model, Tokenization(model.tokenizer, template, *limits)


def preview(tokenization: Tokenization, row: TrainingRow, documents: Mapping[str, Document]) -> None:
    """Prints what the model reads of a row: the texts, their tokens, and what was shortened."""
    (query,) = tokenization.queries([row.query])
    document = documents[row.positives[0]]
    (ids,) = tokenization.documents([document])
    decode = tokenization.tokenizer.decode
    print(f"template {tokenization.template.hash[:12]}, row {row.rowid}")
    print(f"query as text: {tokenization.template.render(row.query)!r}")
    print(f"query as read{' (shortened)' if query.shortened else ''}, {len(query.ids)} tokens: {decode(query.ids)!r}")
    print(f"document as text: {tokenization.template.render_document(document)!r}")
    print(f"document as read, {len(ids)} tokens: {decode(ids)!r}")


def row_files(config: Config) -> tuple[Path, Path | None]:
    """The files of training and development rows."""
    if not config.examples.is_dir():
        return config.examples, config.dev
    dev = config.dev or config.examples / "dev.jsonl"
    has_dev = config.dev is not None or (dev.is_file() and dev.stat().st_size > 0)
    return config.examples / "train.jsonl", dev if has_dev else None


def local_model(name: str) -> Path | None:
    """The folder of a model that lies on this machine; it may change, so it is an input."""
    return Path(name) if Path(name).is_dir() else None


def open_index(config: Config) -> Index | None:
    """The index that holds the frozen passages, None for joint training."""
    if config.passages == "joint":
        return None
    if config.corpus is not None and (config.corpus / CURRENT).is_file():
        index = Index.open(config.corpus)
        if index.has_vectors:
            return index
    raise ConfigError(f"corpus: frozen passages need an index folder with vectors, found {config.corpus}")


def check_base(config: Config, index: Index, model: SentenceTransformer, template: QueryTemplate) -> None:
    """Refuses to tune a query encoder against the vectors of another model.

    Raises:
        EncoderError: the index was not encoded by the model that training starts from.
    """
    dim, space = int(model.get_embedding_dimension() or 0), space_of(config.model, model, template)
    assert index.encoder is not None
    if (dim, space) != (index.encoder["dim"], index.encoder["space"]):
        raise EncoderError(
            f"{config.corpus}: its vectors were made by {index.encoder['name']}, of {index.encoder['dim']} dimensions; "
            f"expected {config.model}, of {dim}, from which training starts: build the index with it, or train jointly"
        )


def make_passages(index: Index | None, documents: Mapping[str, Document]) -> Passages:
    """Where the trainer takes passage vectors from."""
    from agentir.train.trainer import Passages

    keys = {docid: text_key(document) for docid, document in documents.items()}
    if index is None:
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
