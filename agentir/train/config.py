"""The configuration of `agentir train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from agentir.config import RUNTIME, Field, ProgramConfig, Section
from agentir.embed.template import Input, Newline


class LoraSection(Section):
    """A low-rank adapter, trained instead of all weights; the saved model has it merged, and it is kept beside."""

    r: int = Field(default=0, ge=0)
    """Rank (AgentIR: 16); 0: train all weights."""
    alpha: int = Field(default=64, ge=1)
    """Scale, divided by the rank (AgentIR: 64)."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on the adapter's input (AgentIR: 0.1)."""
    target_modules: tuple[str, ...] = ()
    """Names of linear layers, or ends of them; default: all of a decoder's or encoder's layers (AgentIR: the seven
    projections of Qwen3)."""


class DistributedSection(Section):
    """How weights and optimizer are divided over the processes of `torchrun` or `accelerate launch`."""

    deepspeed: Path | None = None
    """DeepSpeed configuration, a JSON file; needs the package deepspeed."""
    fsdp: str = ""
    """Fully sharded data parallel, by transformers' names ("full_shard auto_wrap"); default: each process holds all."""
    fsdp_config: Path | None = None
    """Its options, a JSON file, see transformers' TrainingArguments."""


class DistillationSection(Section):
    """The oracle's order as a second target, beside the positive."""

    weight: float = Field(default=0.0, ge=0, le=100)
    """Factor of the listwise KL divergence from the oracle's order; 0: off."""
    rank_scale: float = Field(default=2.0, gt=0, le=1000)
    """Ranks over which the teacher's weight of a document falls by e."""
    temperature: float | None = Field(default=None, gt=0, le=100)
    """Of the student's scores; default: that of the contrastive term."""
    num_listed: int = Field(default=8, ge=0)
    """Further documents of the oracle's list, a row and epoch, beside the positive and the hard negatives."""


class Trial(Section):
    """Values that a trial of the search changes; what is not given stays as it is in the configuration."""

    name: str = ""
    """What the trial is called; default: the values that it changes."""
    input: Input | None = None
    learning_rate: float | None = Field(default=None, gt=0, le=1)
    temperature: float | None = Field(default=None, gt=0, le=100)
    epochs: float | None = Field(default=None, gt=0, le=10_000)
    batch_size: int | None = Field(default=None, ge=1)
    num_negatives: int | None = Field(default=None, ge=0)
    index_negatives: int | None = Field(default=None, ge=0)
    question_exclusive: bool | None = None
    reasoning_dropout: float | None = Field(default=None, ge=0, lt=1)
    max_query_tokens: int | None = Field(default=None, ge=8)
    false_negative_margin: float | None = Field(default=None, ge=-2, le=2)
    mask_same_question: bool | None = None
    weight_decay: float | None = Field(default=None, ge=0, le=1)
    distillation: DistillationSection | None = None

    def changes(self) -> dict[str, Any]:
        """The values that are given, by name of the configuration's field."""
        return {key: value for key, value in self if key != "name" and value is not None}


class SearchSection(Section):
    """Trials before the real training: a grid, or named sets of values, measured on questions not trained on."""

    learning_rates: tuple[Annotated[float, Field(gt=0, le=1)], ...] = ()
    """Learning rates to try; none: no grid."""
    temperatures: tuple[Annotated[float, Field(gt=0, le=100)], ...] = ()
    """Temperatures to try; none: the one given above."""
    trials: tuple[Trial, ...] = ()
    """Sets of values to try, beside the grid."""
    epochs: float | None = Field(default=None, gt=0, le=10_000)
    """Length of each trial, in epochs over the training rows; default: of the real training."""
    folds: int = Field(default=0, ge=0, le=100)
    """Cross-validation over the questions of all rows (the development rows too) with so many folds; 0: measure on the
    development rows."""
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0,), min_length=1)
    """Seeds of each trial."""
    only: bool = False
    """Stop after the search."""


class Config(ProgramConfig):
    """What `agentir train` is told."""

    examples: Path
    """Folder of `agentir synth build` (train.jsonl, dev.jsonl), or a JSON lines file of training rows."""
    dev: Path | None = None
    """Rows to evaluate on while training and to search on; default: dev.jsonl of the examples folder."""
    corpus: Path | None = None
    """Index folder or corpus file with the documents; not needed where the rows hold their texts."""
    dev_fraction: float = Field(0.0, ge=0, lt=1)
    """Share of the training rows set apart for development, by question, where no development rows are given."""
    history: Path | None = None
    """Sub-queries (folder of `agentir synth extract`) that tell what was searched before; for inputs with earlier
    searches."""
    model: str
    """Model folder, packaged model, or hub id to start from."""
    pooling: Literal["lasttoken", "mean", "cls"] | None = None
    """How a bare transformer, which names no pooling, makes one vector of a text; decoders need it."""
    kind: Literal["embedding", "multi-vector"] = "embedding"
    """One vector a text, or one a token (late interaction), scored by MaxSim."""
    dim: int | None = Field(None, ge=1)
    """Length of the token vectors of a multi-vector model made from an encoder; default: 128."""
    passages: Literal["joint", "frozen"] = "joint"
    """Encode passages with the trained model, or look their vectors up in the index and tune the query side only."""
    input: Input = "reasoning+query"
    """What the query side reads."""
    task: str | None = None
    """Task of the instruction before the query ("Instruct: ..."), empty for none; default: what the model has."""
    newline: Newline = "literal"
    """Separator inside the instruction: backslash and n, as AgentIR-4B was trained, or a line feed."""
    retemplate: bool = False
    """Give a checkpoint that was trained with another template this configuration's."""
    max_query_tokens: int | None = Field(None, ge=8)
    """Limit of a rendered query; the reasoning is shortened from its oldest end. Default: the model's own."""
    max_document_tokens: int | None = Field(None, ge=8)
    """Limit of a document, cut at its end. Default: the model's own."""
    num_negatives: int = Field(7, ge=0)
    """Hard negatives a row and epoch (AgentIR: 7)."""
    index_negatives: int = Field(0, ge=0)
    """Documents of the index that every batch holds as further negatives, with frozen passages (they cost no encoding);
    as many as the index has, or more: all of it."""
    batch_size: int = Field(32, ge=1)
    """Rows a batch; their documents are each other's negatives. Several processes share a batch."""
    batch_tokens: int | None = Field(None, ge=1)
    """Close a batch before its queries would hold more tokens, padding included."""
    question_exclusive: bool = False
    """No two rows of a question in a batch. They are masked for each other in any case."""
    group_by_length: bool = True
    """Batches of queries of similar length: less padding."""
    mask_positives: bool = True
    """Mask, for each row, the other positives and the gold documents of its question (AgentIR: no)."""
    mask_same_question: bool = True
    """Mask what other rows of the same question brought, and the oracle's unlabelled candidates of the row."""
    gradient_accumulation: int = Field(1, ge=1)
    """Batches a step; each is a softmax of its own."""
    reasoning_dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the rows of an epoch that are shown without their reasoning, so that bare queries are learnt too."""
    false_negative_margin: float | None = Field(None, ge=-2, le=2)
    """Mask negatives of other rows that score above the positive by more than this; default: none."""
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
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    """bf16 (where the hardware has it) and fp16 (GPU only) compute under autocast; weights stay float32."""
    mini_batch_tokens: int | None = Field(None, ge=1)
    """Encode a batch in parts of at most so many tokens, padding included, keeping the vectors only (GradCache): the same
    loss and gradients in the memory of one part; all parts but one are encoded twice. Default: keep everything."""
    mini_batch_size: int | None = Field(None, ge=1)
    """Likewise in parts of at most so many texts."""
    base_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the frozen weights under an adapter; what is trained is float32."""
    save_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the saved weights (AgentIR: float16)."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """Attention of the model; auto: flash attention where its package, a GPU and half precision are there."""
    gradient_checkpointing: bool = False
    """Keep no activations between layers: least memory, about half as fast."""
    eval_steps: int = Field(0, ge=0)
    """Steps between evaluations on the development rows, of which the best step is kept; 0: only at the end."""
    save_steps: int = Field(0, json_schema_extra=RUNTIME, ge=0)
    """Steps between checkpoints that a stopped run continues from; 0: at the end of each epoch."""
    num_workers: int = Field(0, json_schema_extra=RUNTIME, ge=0)
    """Processes that make batches ahead of the step."""
    device: str | None = Field(None, json_schema_extra=RUNTIME)
    """cpu, cuda, ...; default: the best there is."""
    logging: str = Field("none", json_schema_extra=RUNTIME)
    """Where the trainer reports to: none, tensorboard, wandb."""
    preview: bool = Field(False, json_schema_extra=RUNTIME)
    """Only show what the model will read of the first row (query and positive document), and stop."""
    lora: LoraSection = LoraSection()
    """A low-rank adapter."""
    distributed: DistributedSection = DistributedSection()
    """Sharding over several processes."""
    distillation: DistillationSection = DistillationSection()
    """The oracle's order as a second target."""
    search: SearchSection = SearchSection()
    """Trials before the real training."""
