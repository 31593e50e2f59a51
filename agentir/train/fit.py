"""The final training of one model a seed, checked, saved and described; a run that was stopped continues."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.model import BaseModel

from agentir.artifacts import Artifact, sync_folder
from agentir.config import identity
from agentir.embed.tokens import Tokenization
from agentir.records import Document, SearchQuery
from agentir.train.adapters import merged, save_adapter
from agentir.train.base import Base, scoring_of, settings_of
from agentir.train.card import CardFacts, Measured, write_card
from agentir.train.config import Config
from agentir.train.data import TrainingRow
from agentir.train.evaluator import DevEvaluator
from agentir.train.export import save_checkpoint
from agentir.train.gradients import GradientCheck
from agentir.train.parity import check_parity
from agentir.train.preflight import preflight
from agentir.train.processes import on_first
from agentir.train.trainer import WHOLE_MODEL, train

CHECKED = 8
"""Rows whose texts the checks before and after training read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the models of all seeds have in common.

    Attributes:
        config: the configuration, with what the search chose.
        artifact: the output folder; None in all processes but the first.
        base: what training starts from.
        rows: to train on.
        tokenization: template, tokenizer and limits.
        evaluator: measures on development rows, or None.
        untrained: what it measured of the model before training.
        data: what the rows are like, for the model card.
        searched: whether the development rows chose settings.
    """

    config: Config
    artifact: Artifact | None
    base: Base
    rows: Sequence[TrainingRow]
    tokenization: Tokenization
    evaluator: DevEvaluator | None = None
    untrained: Mapping[str, float] = field(default_factory=dict)
    data: Sequence[str] = ()
    searched: bool = False

    def texts(self) -> tuple[list[SearchQuery], list[Document]]:
        """Queries and documents that the checks read."""
        checked = self.rows[:: max(len(self.rows) // CHECKED, 1)]
        return [row.query for row in checked], [self.base.passages.documents[row.positives[0]] for row in checked]


def train_seed(run: Run, seed: int) -> dict[str, Any]:
    """Trains, checks, saves and describes the model of one seed; one that an earlier, stopped run saved is kept.

    Returns:
        the run's figures, see `agentir.train.trainer.train`.
    """
    config, artifact = run.config, run.artifact
    name = f"seed-{seed}"
    folder, checkpoints = config.out / name, config.out / f"{name}.checkpoints"
    figures_path = config.out / f"{name}.json"
    if artifact is not None:
        for made in (name, figures_path.name, *([f"{name}.adapter"] if config.lora.r else [])):
            artifact.include(made)
    if not on_first(folder.exists):
        settings = settings_of(config, run.base.model, seed)
        model = run.base.fresh(config, seed, keep=seed != config.seeds[-1])
        if settings.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        if isinstance(model, SentenceTransformer):
            print("\n".join(preflight(model, run.tokenization, *run.texts()).lines()))
        print(f"{name}: learning rate {settings.learning_rate:g}, temperature {settings.temperature:g}", flush=True)
        gradients = GradientCheck()
        figures = train(
            model,
            run.rows,
            run.tokenization,
            run.base.passages,
            settings,
            evaluator=run.evaluator,
            scoring=scoring_of(model),
            callbacks=[gradients],
            checkpoints=checkpoints,
            save_steps=config.save_steps,
            name=name,
        )
        print("".join(f"{line}\n" for line in gradients.lines()), end="")
        if artifact is not None:
            if settings.sharded:
                model = SentenceTransformer(str(checkpoints / WHOLE_MODEL))
                if run.evaluator is not None:
                    figures |= {f"dev_{measure}": value for measure, value in run.evaluator(model).items()}
            artifact.write_text(figures_path.name, json.dumps(figures, indent=2) + "\n")
            save(run, artifact, model, folder, seed, figures)
    if artifact is not None:
        shutil.rmtree(checkpoints, ignore_errors=True)
    saved: dict[str, Any] = on_first(lambda: json.loads(figures_path.read_text(encoding="utf-8")))
    return saved


def save(run: Run, artifact: Artifact, model: BaseModel, folder: Path, seed: int, figures: Mapping[str, float]) -> None:
    """Saves a trained model, its adapter merged and also beside it, checks what was saved, and describes it.

    Raises:
        EncoderError: the saved model gives other vectors; it stays in the folder `seed-N.part`.
    """
    config, tokenization, index = run.config, run.tokenization, run.base.index
    space = None if index is None or index.encoder is None else index.encoder["space"]
    adapter, part = folder.with_suffix(".adapter"), folder.with_suffix(".part")
    if config.lora.r:
        shutil.rmtree(adapter, ignore_errors=True)
        save_adapter(model, adapter, tokenization, base=config.model, space=space, encodes_documents=index is None)
        model = merged(model)
    shutil.rmtree(part, ignore_errors=True)
    save_checkpoint(model, part, tokenization, space=space, encodes_documents=index is None, dtype=config.save_dtype)
    if isinstance(model, SentenceTransformer):
        parity = check_parity(model, part, tokenization, *run.texts()).lines()
        print("\n".join(parity), flush=True)
        write_card(part, card_facts(run, artifact, model, seed, figures, parity))
    os.replace(part, folder)
    sync_folder(config.out)


def card_facts(
    run: Run,
    artifact: Artifact,
    model: SentenceTransformer,
    seed: int,
    figures: Mapping[str, float],
    parity: Sequence[str],
) -> CardFacts:
    """What the model card tells."""
    config, evaluator = run.config, run.evaluator
    measured = None
    if evaluator is not None:
        where = (
            "all documents of the index" if run.base.index is not None else "all that the oracle ranked for these rows"
        )
        measured = Measured(
            values={key.removeprefix("dev_"): value for key, value in figures.items() if key.startswith("dev_")},
            base=run.untrained,
            num_rows=len(evaluator.rows),
            num_questions=len({row.question for row in evaluator.rows}),
            searched=where,
            chosen_on=run.searched or config.eval_steps > 0,
        )
    return CardFacts(
        base=config.model,
        template=run.tokenization.template,
        max_query_tokens=run.tokenization.max_query_tokens,
        max_document_tokens=run.tokenization.max_document_tokens,
        dim=int(model.get_embedding_dimension() or 0),
        passages=None if run.base.index is None else run.base.index.encoder_name,
        measured=measured,
        data=run.data,
        config=identity(config, ignore=("out", *artifact.inputs)),
        settings=asdict(settings_of(config, model, seed)),
        inputs=artifact.inputs,
        upstream=artifact.upstream,
        num_seeds=len(config.seeds),
        parity=parity,
    )
