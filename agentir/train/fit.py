"""The final training of one model a seed, checked, saved and described; a run that was stopped continues."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from typing import Any

from sentence_transformers import SentenceTransformer

from agentir.artifacts import Artifact, sync_folder
from agentir.embed.tokens import Tokenization
from agentir.train.adapters import merged, save_adapter
from agentir.train.base import Base, scoring_of, settings_of
from agentir.train.config import Config
from agentir.train.data import TrainingRow
from agentir.train.evaluator import DevEvaluator
from agentir.train.export import save_checkpoint
from agentir.train.preflight import preflight
from agentir.train.processes import on_first
from agentir.train.trainer import train

CHECKED = 32
"""Rows whose texts the checks before and after training read."""


def train_seed(
    config: Config,
    seed: int,
    artifact: Artifact | None,
    base: Base,
    rows: Sequence[TrainingRow],
    tokenization: Tokenization,
    evaluator: DevEvaluator | None,
) -> dict[str, Any]:
    """Trains, checks and saves the model of one seed; a model that an earlier, stopped run saved is kept.

    Args:
        config: the configuration, with what the search chose.
        seed: of the run.
        artifact: the output folder; None in all processes but the first.
        base: what it starts from.
        rows: to train on.
        tokenization: template, tokenizer and limits.
        evaluator: measures on development rows, or None.

    Returns:
        the run's figures, see `agentir.train.trainer.train`.
    """
    name = f"seed-{seed}"
    folder, part, checkpoints, adapter = (
        config.out / f"{name}{suffix}" for suffix in ("", ".part", ".checkpoints", ".adapter")
    )
    figures_path = config.out / f"{name}.json"
    if artifact is not None:
        artifact.include(name)
        artifact.include(figures_path.name)
        if config.lora.r:
            artifact.include(adapter.name)
    if not on_first(folder.exists):
        settings = settings_of(config, base.model, seed)
        model = base.fresh(config, seed, keep=seed != config.seeds[-1])
        if settings.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        if isinstance(model, SentenceTransformer):
            check(model, rows, tokenization, base)
        print(f"{name}: learning rate {settings.learning_rate:g}, temperature {settings.temperature:g}", flush=True)
        figures = train(
            model,
            rows,
            tokenization,
            base.passages,
            settings,
            evaluator=evaluator,
            scoring=scoring_of(model),
            checkpoints=checkpoints,
            save_steps=config.save_steps,
            name=name,
        )
        if artifact is not None:
            artifact.write_text(figures_path.name, json.dumps(figures, indent=2) + "\n")
            frozen = base.index is not None
            space = base.index.encoder["space"] if base.index is not None and base.index.encoder is not None else None
            if config.lora.r:
                shutil.rmtree(adapter, ignore_errors=True)
                save_adapter(model, adapter, tokenization, base=config.model, space=space, encodes_documents=not frozen)
                model = merged(model)
            shutil.rmtree(part, ignore_errors=True)
            save_checkpoint(
                model, part, tokenization, space=space, encodes_documents=not frozen, dtype=config.save_dtype
            )
            os.replace(part, folder)
            sync_folder(config.out)
    if artifact is not None:
        shutil.rmtree(checkpoints, ignore_errors=True)
    saved: dict[str, Any] = on_first(lambda: json.loads(figures_path.read_text(encoding="utf-8")))
    return saved


def check(model: SentenceTransformer, rows: Sequence[TrainingRow], tokenization: Tokenization, base: Base) -> None:
    """Checks model and texts before the first step, and prints what was found."""
    checked = rows[:: max(len(rows) // CHECKED, 1)]
    documents = [base.passages.documents[row.positives[0]] for row in checked]
    print("\n".join(preflight(model, tokenization, [row.query for row in checked], documents).lines()))
