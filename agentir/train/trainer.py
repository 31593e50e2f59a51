"""One training run on the sentence-transformers trainer."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel  # type: ignore[import-untyped]
from datasets import Dataset  # type: ignore[import-untyped]
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.model import BaseModel
from torch.utils.data import DataLoader
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import PrinterCallback, Trainer, TrainerCallback

from agentir.embed.tokens import Tokenization
from agentir.errors import ConfigError
from agentir.train.collator import BatchOptions, Passages, PlannedBatches
from agentir.train.config import Config
from agentir.train.data import TrainingRow
from agentir.train.encoding import CPU_PART_TOKENS, GPU_PART_TOKENS, PartLimits, Scoring, dot_scores, encode
from agentir.train.evaluator import DevEvaluator
from agentir.train.loss import NO_DISTILLATION, Distillation, MaskedInfoNCE
from agentir.train.memory import HEAP
from agentir.train.plan import check_size, num_left_out, plan_batches
from agentir.train.processes import is_first, on_first, rank, world_size

WHOLE_MODEL = "whole"
"""Folder, beside the checkpoints, of what a sharded training made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a single run is trained with; `epochs` may be a fraction. See `agentir.train.config.Config`."""

    learning_rate: float
    temperature: float
    epochs: float
    batch_size: int
    num_negatives: int
    seed: int
    batch_tokens: int | None = None
    question_exclusive: bool = False
    mask_positives: bool = True
    mask_same_question: bool = True
    group_by_length: bool = True
    gradient_accumulation: int = 1
    index_negatives: int = 0
    reasoning_dropout: float = 0.0
    distillation: Distillation = NO_DISTILLATION
    num_listed: int = 0
    false_negative_margin: float | None = None
    warmup_ratio: float = 0.1
    weight_decay: float = 0.0
    bf16: bool = False
    fp16: bool = False
    mini_batch_size: int | None = None
    mini_batch_tokens: int | None = None
    gradient_checkpointing: bool = False
    eval_steps: int = 0
    num_workers: int = 0
    logging: str = "none"
    deepspeed: str | None = None
    fsdp: str = ""
    fsdp_config: str | None = None

    @property
    def sharded(self) -> bool:
        """Whether no process holds the whole model."""
        return bool(self.deepspeed or self.fsdp)

    def part_limits(self, device: str) -> PartLimits:
        """How large the parts are that a batch is encoded in."""
        if self.mini_batch_size or self.mini_batch_tokens:
            return PartLimits(size=self.mini_batch_size, tokens=self.mini_batch_tokens, cached=True)
        return PartLimits(tokens=CPU_PART_TOKENS if device == "cpu" else GPU_PART_TOKENS)


class _Trainer(SentenceTransformerTrainer):
    """The trainer with our batches and loss, and without its automatic model card, which would describe row numbers."""

    def __init__(self, batches: PlannedBatches, loss: MaskedInfoNCE, scoring: Scoring, **kwargs: Any) -> None:
        self.batches = batches
        self.scoring = scoring
        self.contrastive_loss = loss
        super().__init__(train_dataset=Dataset.from_dict({"step": range(len(batches))}), loss=loss, **kwargs)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Adds none."""

    def get_optimizer_cls_and_kwargs(self, args: Any, model: Any = None) -> Any:  # type: ignore[override]
        """The optimizer over the model's weights; the base class looks for them in the loss, which has none."""
        return Trainer.get_optimizer_cls_and_kwargs(args, model)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The planned batches, one a step; each process makes its own share of them."""
        return DataLoader(self.batches, batch_size=1, collate_fn=_only, num_workers=self.args.dataloader_num_workers)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of the whole batch, times the number of processes, over which gradients will be averaged."""
        cached = self.batches.options.limits.cached
        if "vectors" in inputs:
            scores = encode(model, inputs["queries"], cached) @ inputs["vectors"].T
        else:
            scores = self.scoring(model, inputs["queries"], inputs["documents"], cached)
        loss = self.contrastive_loss(scores, inputs["relations"], inputs["ranks"]) * self.batches.num_processes
        return (loss, {}) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One step; gives the loss as one process would see it."""
        return super().training_step(*args, **kwargs) / self.batches.num_processes


def _only(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    (item,) = items
    return item


class _Progress(TrainerCallback):
    """A progress bar over the steps, with the last loss."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bar: tqdm[Any] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar = tqdm(
            total=state.max_steps, initial=state.global_step, desc=self.name, unit="step", disable=not is_first()
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.bar is not None
        self.bar.update(state.global_step - self.bar.n)
        if args.use_cpu:
            HEAP.trim()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.bar is not None and "loss" in (logs or {}):
            self.bar.set_postfix(loss=f"{float(logs['loss']):.3f}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.bar is not None
        self.bar.close()


def train(
    model: BaseModel,
    rows: Sequence[TrainingRow],
    tokenization: Tokenization,
    passages: Passages,
    settings: Settings,
    *,
    evaluator: DevEvaluator | None = None,
    scoring: Scoring = dot_scores,
    callbacks: Sequence[TrainerCallback] = (),
    checkpoints: Path | None = None,
    save_steps: int = 0,
    name: str = "train",
) -> dict[str, float]:
    """Trains a model in place; of a sharded one, each process has a part, and the whole is saved under `WHOLE_MODEL`.

    Args:
        model: the model to train.
        rows: what to train on.
        tokenization: template, tokenizer and limits; queries are tokenized once.
        passages: where the documents' vectors come from.
        settings: the run's settings.
        evaluator: measured at the end, if given, and every `settings.eval_steps` steps; the best step is then kept.
        scoring: of a batch whose passages are encoded.
        callbacks: further ones of the trainer.
        checkpoints: folder for checkpoints; a run that was stopped continues from the last one in it.
        save_steps: steps between checkpoints; 0 saves at each evaluation, or at the end of each epoch.
        name: what the progress bar calls the run.

    Returns:
        `loss` (the mean of all steps), `num_steps`, `resumed_from_step`, the `seconds` and `num_without_negative` since
        then, `num_shortened` queries, `num_left_out` (rows an epoch that fill no batch), `num_filtered` (cells that the
        margin filter masked), and the evaluator's measures as `dev_...`.

    Raises:
        ConfigError: there are fewer rows than one batch, or every batch would hold a single document.
    """
    check_batches(rows, settings)
    limits = settings.part_limits(model.device.type)
    longest = max(tokenization.max_query_tokens, tokenization.max_document_tokens)
    HEAP.prepare(limits.tokens or (limits.size or settings.batch_size) * longest)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    batches = make_batches(model, rows, tokenization, passages, settings)
    scratch = tempfile.TemporaryDirectory()
    arguments = training_arguments(model, batches, settings, checkpoints, save_steps, scratch.name, evaluator)
    loss = MaskedInfoNCE(settings.temperature, settings.distillation, settings.false_negative_margin)
    callbacks = [_Progress(name), *callbacks]
    trainer = _Trainer(batches, loss, scoring, model=model, args=arguments, evaluator=evaluator, callbacks=callbacks)
    trainer.remove_callback(PrinterCallback)
    last = None if checkpoints is None else on_first(lambda: last_checkpoint(checkpoints))
    metrics = trainer.train(resume_from_checkpoint=last).metrics
    # otherwise autocast stays on the model, and what is measured and saved after training would differ
    extract_model_from_parallel(model, keep_fp32_wrapper=False)
    figures: dict[str, float] = {
        "loss": fmean(entry["loss"] for entry in trainer.state.log_history if "loss" in entry),
        "num_steps": trainer.state.global_step,
        "resumed_from_step": 0 if last is None else int(last.rsplit("-", 1)[1]),
        "seconds": round(metrics["train_runtime"], 1),
        "num_without_negative": loss.num_without_negative,
        "num_shortened": batches.num_shortened,
        "num_left_out": num_left_out(batches.plan, len(rows), settings.epochs),
        "num_filtered": loss.num_filtered,
    }
    if settings.sharded and checkpoints is not None:
        trainer.save_model(str(checkpoints / WHOLE_MODEL))
    elif evaluator is not None:
        figures |= {f"dev_{name}": value for name, value in evaluator(model).items()}
    scratch.cleanup()
    del trainer
    HEAP.free()
    return figures


def check_batches(rows: Sequence[TrainingRow], settings: Settings | Config) -> None:
    """Raises:
    ConfigError: there are fewer rows than one batch, or every batch would hold a single document.
    """
    if settings.batch_tokens is None:
        check_size(len(rows), settings.batch_size)
    if settings.batch_size == 1 and not settings.index_negatives and not any(row.negatives for row in rows):
        raise ConfigError("batch_size: a batch of one row without negatives has nothing to learn from; use 2 or more")


def make_batches(
    model: BaseModel,
    rows: Sequence[TrainingRow],
    tokenization: Tokenization,
    passages: Passages,
    settings: Settings,
) -> PlannedBatches:
    """The batches of a run, planned to the last."""
    options = BatchOptions(
        seed=settings.seed,
        num_negatives=settings.num_negatives,
        num_listed=settings.num_listed if settings.distillation.weight else 0,
        index_negatives=settings.index_negatives,
        reasoning_dropout=settings.reasoning_dropout,
        mask_positives=settings.mask_positives,
        mask_same_question=settings.mask_same_question,
        limits=settings.part_limits(model.device.type),
    )
    batches = PlannedBatches(
        plan=(),
        rows=rows,
        tokenization=tokenization,
        passages=passages,
        options=options,
        rank=rank(),
        num_processes=world_size(),
    )
    batches.plan = plan_batches(
        [row.question for row in rows],
        batches.lengths() if settings.group_by_length or settings.batch_tokens else [0] * len(rows),
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        seed=settings.seed,
        batch_tokens=settings.batch_tokens,
        exclusive=settings.question_exclusive,
    )
    return batches


def training_arguments(
    model: BaseModel,
    batches: PlannedBatches,
    settings: Settings,
    checkpoints: Path | None,
    save_steps: int,
    scratch: str,
    evaluator: DevEvaluator | None,
) -> SentenceTransformerTrainingArguments:
    """What the sentence-transformers trainer is told; a whole run is one of its epochs, since the plan is one list."""
    evaluates = evaluator is not None and settings.eval_steps > 0
    steps_per_epoch = math.ceil(sum(batch.epoch == 0 for batch in batches.plan) / settings.gradient_accumulation)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(checkpoints or scratch),
        num_train_epochs=1,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=settings.gradient_accumulation,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup_ratio,
        weight_decay=settings.weight_decay,
        bf16=settings.bf16,
        fp16=settings.fp16,
        dataloader_pin_memory=False,
        dataloader_num_workers=settings.num_workers,
        deepspeed=settings.deepspeed,
        fsdp=settings.fsdp,
        fsdp_config=settings.fsdp_config,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=settings.eval_steps or None,
        load_best_model_at_end=evaluates,
        metric_for_best_model=f"eval_{evaluator.primary_metric}" if evaluates and evaluator is not None else None,
        greater_is_better=True,
        save_strategy="no" if checkpoints is None and not evaluates else "steps",
        save_steps=save_steps or settings.eval_steps or steps_per_epoch,
        save_total_limit=2,
        logging_steps=1,
        report_to=settings.logging,
        disable_tqdm=True,
        seed=settings.seed,
        data_seed=settings.seed,
        use_cpu=model.device.type == "cpu",
        ddp_broadcast_buffers=False,
        ddp_find_unused_parameters=False,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # otherwise the batch would silently be split over all GPUs
    return arguments


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


def has_bf16(model: BaseModel) -> bool:
    """Whether the model's device computes bfloat16 natively."""
    if model.device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return model.device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())
