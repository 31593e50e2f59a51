"""One training run on the sentence-transformers trainer."""

from __future__ import annotations

import ctypes
import gc
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from datasets import Dataset  # type: ignore[import-untyped]
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import DefaultBatchSampler
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import PrinterCallback, TrainerCallback

from agentir.embed.tokens import Tokenization
from agentir.records import Document
from agentir.train.batches import Collator, check_batches, length_batches
from agentir.train.data import TrainingRow
from agentir.train.evaluator import DevEvaluator
from agentir.train.loss import MaskedInfoNCE

M_MMAP_THRESHOLD = -3
"""The parameter's number in glibc's malloc.h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a single run is trained with; `epochs` may be a fraction."""

    learning_rate: float
    temperature: float
    epochs: float
    batch_size: int
    num_negatives: int
    seed: int
    warmup_ratio: float = 0.1
    weight_decay: float = 0.0
    bf16: bool = False
    max_forward_tokens: int | None = None
    gradient_checkpointing: bool = False
    logging: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passages:
    """Where the vectors of a batch's documents come from.

    `keys` maps a docid to a key that documents of the same text share. With `frozen` (docids -> unit vectors) they are
    looked up, otherwise `documents` are encoded by the model that is trained.
    """

    keys: Mapping[str, str]
    documents: Mapping[str, Document]
    frozen: Callable[[Sequence[str]], np.ndarray] | None = None


class _Trainer(SentenceTransformerTrainer):
    """The trainer with our batches, and without its automatic model card, which would describe row numbers."""

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Adds none."""

    def get_batch_sampler(self, dataset: Any, batch_size: int, *args: Any, **kwargs: Any) -> DefaultBatchSampler:
        """Batches of rows of similar length."""
        assert isinstance(self.data_collator, Collator)
        return _LengthBatchSampler(self.data_collator, batch_size)


class _LengthBatchSampler(DefaultBatchSampler):
    """Batches of rows of similar length, see `length_batches`, in the order of the collator's epoch."""

    def __init__(self, collator: Collator, batch_size: int) -> None:
        super().__init__(range(len(collator.rows)), batch_size=batch_size, drop_last=True, seed=collator.seed)
        self.collator = collator

    def __iter__(self) -> Iterator[list[int]]:
        lengths = [len(ids) for ids in self.collator.query_ids]
        return iter(length_batches(lengths, self.batch_size, self.seed, self.collator.epoch))


class _EpochCallback(TrainerCallback):
    """Tells the collator the epoch, so that positives, negatives and batches rotate, the same after a resume.

    The trainer's own way to do so does not reach a sampler that is wrapped to skip the steps done before a resume.
    """

    def __init__(self, collator: Collator, steps_per_epoch: int) -> None:
        self.collator = collator
        self.steps_per_epoch = steps_per_epoch

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.collator.epoch = state.global_step // self.steps_per_epoch


class _Progress(TrainerCallback):
    """A progress bar over the steps, with the last loss."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bar: tqdm[Any] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc=self.name, unit="step")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.bar is not None
        self.bar.update(state.global_step - self.bar.n)
        if args.use_cpu:
            trim_heap()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.bar is not None and "loss" in (logs or {}):
            self.bar.set_postfix(loss=f"{float(logs['loss']):.3f}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.bar is not None
        self.bar.close()


def train(
    model: SentenceTransformer,
    rows: Sequence[TrainingRow],
    tokenization: Tokenization,
    passages: Passages,
    settings: Settings,
    *,
    evaluator: DevEvaluator | None = None,
    checkpoints: Path | None = None,
    save_steps: int = 0,
    name: str = "train",
) -> dict[str, float]:
    """Trains a model in place.

    Args:
        model: the model to train.
        rows: what to train on.
        tokenization: template, tokenizer and limits; queries are tokenized once.
        passages: where the documents' vectors come from.
        settings: the run's settings.
        evaluator: measured at the end, if given.
        checkpoints: folder for checkpoints; a run that was stopped continues from the last one in it.
        save_steps: steps between checkpoints; 0 saves at the end of each epoch.
        name: what the progress bar calls the run.

    Returns:
        `loss` (the mean of all steps), `num_steps`, `resumed_from_step`, the `seconds` and `num_without_negative` since
        then, `num_shortened` queries, and the evaluator's measures as `dev_...`.

    Raises:
        ConfigError: there are fewer rows than one batch, or every batch would hold a single document.
    """
    check_batches(rows, settings.batch_size)
    return_large_blocks()
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    tokenized = tokenization.queries([row.query for row in rows])
    collator = Collator(
        rows=rows,
        query_ids=[query.ids for query in tokenized],
        keys=passages.keys,
        tokenization=tokenization,
        num_negatives=settings.num_negatives,
        seed=settings.seed,
        documents=passages.documents,
        frozen_vectors=passages.frozen,
    )
    saving = "no" if checkpoints is None else ("steps" if save_steps else "epoch")
    scratch = tempfile.TemporaryDirectory()
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(checkpoints or scratch.name),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup_ratio,
        weight_decay=settings.weight_decay,
        bf16=settings.bf16,
        dataloader_drop_last=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        eval_strategy="no",
        save_strategy=saving,
        save_steps=save_steps or 500,
        save_total_limit=2,
        logging_steps=1,
        report_to=settings.logging,
        disable_tqdm=True,
        seed=settings.seed,
        data_seed=settings.seed,
        use_cpu=model.device.type == "cpu",
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # otherwise the batch would silently be split over all GPUs
    loss = MaskedInfoNCE(model, settings.temperature, settings.max_forward_tokens)
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"row": list(range(len(rows)))}),
        loss=loss,
        data_collator=collator,  # type: ignore[arg-type]
        callbacks=[_EpochCallback(collator, len(rows) // settings.batch_size), _Progress(name)],
    )
    trainer.remove_callback(PrinterCallback)
    last = None if checkpoints is None else last_checkpoint(checkpoints)
    metrics = trainer.train(resume_from_checkpoint=last).metrics
    figures: dict[str, float] = {
        "loss": fmean(entry["loss"] for entry in trainer.state.log_history if "loss" in entry),
        "num_steps": trainer.state.global_step,
        "resumed_from_step": 0 if last is None else int(last.rsplit("-", 1)[1]),
        "seconds": round(metrics["train_runtime"], 1),
        "num_without_negative": loss.num_without_negative,
        "num_shortened": sum(query.shortened for query in tokenized),
    }
    if evaluator is not None:
        figures |= {f"dev_{name}": value for name, value in evaluator(model).items()}
    scratch.cleanup()
    del trainer
    free_memory()
    return figures


def free_memory() -> None:
    """Gives memory back to the system, so that trials do not add up.

    The trainer and its model refer to each other, and the C library keeps what PyTorch freed.
    """
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Gives free pages of the C library's heap back; steps of many widths otherwise leave holes that add up."""
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def return_large_blocks() -> None:
    """Lets the C library return what is larger than 4 MiB to the system as soon as it is free.

    The threshold of glibc adapts upward to the tensors of a step; batches of many widths then fragment the heap, which
    grew by a third over 50 steps of the small embedder.
    """
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 4 << 20)


def last_checkpoint(folder: Path) -> str | None:
    """The newest whole checkpoint; what a killed process left half-written is removed.

    The trainer writes `trainer_state.json` last.
    """
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]), reverse=True)
    for path in found:
        try:
            json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
            return str(path)
        except (OSError, ValueError):
            shutil.rmtree(path)
    return None
