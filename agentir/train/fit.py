"""The search for a learning rate and temperature, and the final training of one model a seed; both continue."""

from __future__ import annotations

import copy
import itertools
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from agentir.artifacts import Artifact, sync_folder
from agentir.embed.load import write_encoder_file
from agentir.embed.tokens import Tokenization
from agentir.errors import ConfigError
from agentir.jsonl import read_records
from agentir.search.index import Index
from agentir.train.config import Config
from agentir.train.data import TrainingRow
from agentir.train.evaluator import DevEvaluator
from agentir.train.trainer import Passages, Settings, train

LLM_TEMPERATURE = 0.01
"""Default for decoder embedders: AgentIR's (texttron/AgentIR, training/train.sh)."""
SMALL_TEMPERATURE = 0.05
"""Default for bidirectional encoders, whose scores lie closer together: sentence-transformers' scale of 20."""
POINTS = "search.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One trial of the grid and what it reached on the development questions."""

    learning_rate: float
    temperature: float
    epochs: float
    seed: int
    measures: dict[str, float]
    seconds: float


def settings_of(
    config: Config,
    model: SentenceTransformer,
    *,
    learning_rate: float | None = None,
    temperature: float | None = None,
    epochs: float | None = None,
    seed: int | None = None,
) -> Settings:
    """The settings of one run: the configuration's, with what is given changed."""
    default = LLM_TEMPERATURE if model.tokenizer.padding_side == "left" else SMALL_TEMPERATURE
    return Settings(
        learning_rate=learning_rate or config.learning_rate,
        temperature=temperature or config.temperature or default,
        epochs=epochs or config.epochs,
        batch_size=config.batch_size,
        num_negatives=config.num_negatives,
        seed=config.seeds[0] if seed is None else seed,
        warmup_ratio=config.warmup_ratio,
        weight_decay=config.weight_decay,
        bf16=config.precision == "bf16" or (config.precision == "auto" and has_bf16(model)),
        max_forward_tokens=config.max_forward_tokens,
        gradient_checkpointing=config.gradient_checkpointing,
        logging=config.logging,
    )


def has_bf16(model: SentenceTransformer) -> bool:
    """Whether the model's device computes bfloat16 natively."""
    if model.device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return model.device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())


def search(
    config: Config,
    artifact: Artifact,
    model: SentenceTransformer,
    rows: Sequence[TrainingRow],
    tokenization: Tokenization,
    passages: Passages,
    start: Settings,
    evaluator: DevEvaluator | None,
) -> list[Point]:
    """Tries the grid on the development questions; trials that an earlier, stopped run finished are kept."""
    grid = list(itertools.product(config.search.learning_rates, config.search.temperatures or (start.temperature,)))
    if not grid:
        return []
    if evaluator is None:
        raise ConfigError(
            "search: needs development rows; make them with `agentir synth build --dev-fraction 0.2`, or give dev"
        )
    path = artifact.include(POINTS)
    with artifact.append_to(POINTS) as log:
        points = list(read_records(path, Point))
        done = {(point.learning_rate, point.temperature) for point in points}
        for learning_rate, temperature in grid:
            if (learning_rate, temperature) in done:
                continue
            trial = settings_of(
                config,
                model,
                learning_rate=learning_rate,
                temperature=temperature,
                epochs=config.search.epochs,
                seed=config.search.seed,
            )
            name = f"trial {len(points) + 1} of {len(grid)}"
            figures = train(copy.deepcopy(model), rows, tokenization, passages, trial, evaluator=evaluator, name=name)
            measures = {key.removeprefix("dev_"): value for key, value in figures.items() if key.startswith("dev_")}
            point = Point(
                learning_rate=learning_rate,
                temperature=temperature,
                epochs=trial.epochs,
                seed=trial.seed,
                measures=measures,
                seconds=figures["seconds"],
            )
            log.append(point)
            points.append(point)
            reached = ", ".join(f"{measure} {value:.4f}" for measure, value in measures.items())
            print(f"{name}, learning rate {learning_rate:g}, temperature {temperature:g}: {reached}", flush=True)
    return points


def train_seed(
    config: Config,
    artifact: Artifact,
    model: SentenceTransformer,
    rows: Sequence[TrainingRow],
    tokenization: Tokenization,
    passages: Passages,
    settings: Settings,
    evaluator: DevEvaluator | None,
    index: Index | None,
) -> dict[str, Any]:
    """Trains and saves the model of one seed; a model that an earlier, stopped run saved is kept."""
    name = f"seed-{settings.seed}"
    folder, part, checkpoints = (artifact.folder / f"{name}{suffix}" for suffix in ("", ".part", ".checkpoints"))
    artifact.include(name)
    figures_name = f"{name}.json"
    figures_path = artifact.include(figures_name)
    if not folder.exists():
        tuned = copy.deepcopy(model)
        print(f"{name}: learning rate {settings.learning_rate:g}, temperature {settings.temperature:g}", flush=True)
        figures = train(
            tuned,
            rows,
            tokenization,
            passages,
            settings,
            evaluator=evaluator,
            checkpoints=checkpoints,
            save_steps=config.save_steps,
            name=name,
        )
        artifact.write_text(figures_name, json.dumps(figures, indent=2) + "\n")
        shutil.rmtree(part, ignore_errors=True)
        save_model(tuned, part, tokenization, None if passages.frozen is None else index)
        os.replace(part, folder)
        sync_folder(artifact.folder)
    shutil.rmtree(checkpoints, ignore_errors=True)
    saved: dict[str, Any] = json.loads(figures_path.read_text(encoding="utf-8"))
    return saved


def save_model(model: SentenceTransformer, folder: Path, tokenization: Tokenization, frozen_in: Index | None) -> None:
    """Saves a model with its template, its limits and, if its passages were frozen, the space they live in."""
    model.max_seq_length = max(tokenization.max_query_tokens, tokenization.max_document_tokens)
    model.save(str(folder), create_model_card=False)
    tokenization.template.save(folder)
    write_encoder_file(
        folder,
        space=None if frozen_in is None or frozen_in.encoder is None else frozen_in.encoder["space"],
        encodes_documents=frozen_in is None,
        max_query_tokens=tokenization.max_query_tokens,
        max_document_tokens=tokenization.max_document_tokens,
    )
