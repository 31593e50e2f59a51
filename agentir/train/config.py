"""The configuration of `agentir train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from agentir.config import RUNTIME, Field, ProgramConfig, Section
from agentir.embed.template import Input, Newline


class SearchSection(Section):
    """A grid that is tried on the development questions before the real training."""

    learning_rates: tuple[Annotated[float, Field(gt=0, le=1)], ...] = ()
    """Learning rates to try; none: no search."""
    temperatures: tuple[Annotated[float, Field(gt=0, le=100)], ...] = ()
    """Temperatures to try; none: the one given above."""
    epochs: float = Field(default=1.0, gt=0, le=10_000)
    """Length of each trial, in epochs over the training rows (development questions left out)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the trials."""


class Config(ProgramConfig):
    """What `agentir train` is told."""

    examples: Path
    """Folder of `agentir synth build` (train.jsonl, dev.jsonl), or a JSON lines file of training rows."""
    dev: Path | None = None
    """Rows to evaluate on while training and to search on; default: dev.jsonl of the examples folder."""
    corpus: Path | None = None
    """Index folder or corpus file with the documents; not needed where the rows hold their texts."""
    model: str
    """Model folder, packaged model, or hub id to start from."""
    passages: Literal["joint", "frozen"] = "joint"
    """Encode passages with the trained model, or look their vectors up in the index and tune the query side only."""
    input: Input = "reasoning+query"
    """What the query side reads."""
    task: str | None = None
    """Task of the instruction before the query ("Instruct: ..."), empty for none; default: what the model has."""
    newline: Newline = "literal"
    """Separator inside the instruction: backslash and n, as AgentIR-4B was trained, or a line feed."""
    max_query_tokens: int | None = Field(None, ge=8)
    """Limit of a rendered query; the reasoning is shortened from its oldest end. Default: the model's own."""
    max_document_tokens: int | None = Field(None, ge=8)
    """Limit of a document, cut at its end. Default: the model's own."""
    num_negatives: int = Field(7, ge=0)
    """Hard negatives a row and epoch (AgentIR: 7)."""
    batch_size: int = Field(32, ge=1)
    """Rows a step; their documents are each other's negatives."""
    epochs: float = Field(2.0, gt=0, le=10_000)
    """Passes over the training rows (AgentIR: 2)."""
    learning_rate: float = Field(1e-4, gt=0, le=1)
    """Peak learning rate (AgentIR: 1e-4), after the search the best one found."""
    temperature: float | None = Field(None, gt=0, le=100)
    """Temperature of the softmax; default 0.01 for decoder embedders, 0.05 for bidirectional ones."""
    warmup_ratio: float = Field(0.1, ge=0, lt=1)
    """Share of the steps over which the learning rate rises (Tevatron: 0.1)."""
    weight_decay: float = Field(0.0, ge=0, le=1)
    """AdamW's weight decay."""
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field((1,), min_length=1)
    """One model is trained a seed."""
    train_on_dev: bool = False
    """Train on the development rows too after the search; the final models are then not evaluated on them."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """bf16 computes under autocast where the hardware has it; weights stay float32."""
    max_forward_tokens: int | None = Field(None, ge=1)
    """Tokens, padding included, of a forward pass whose activations are kept; wider batches are encoded in parts, all but
    the last twice. Same loss and gradients, less memory. Default: no limit."""
    gradient_checkpointing: bool = False
    """Keep no activations between layers: least memory, about half as fast."""
    save_steps: int = Field(0, json_schema_extra=RUNTIME, ge=0)
    """Steps between checkpoints that a stopped run continues from; 0: at the end of each epoch."""
    device: str | None = Field(None, json_schema_extra=RUNTIME)
    """cpu, cuda, ...; default: the best there is."""
    logging: str = Field("none", json_schema_extra=RUNTIME)
    """Where the trainer reports to: none, tensorboard, wandb."""
    preview: bool = Field(False, json_schema_extra=RUNTIME)
    """Only show what the model will read of the first row (query and positive document), and stop."""
    search: SearchSection = SearchSection()
    """Grid search on the development questions."""
