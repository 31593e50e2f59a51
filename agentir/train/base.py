"""What every run of a configuration starts from: model, tokenization, passages, settings and evaluation."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.model import BaseModel

from agentir.artifacts import CURRENT
from agentir.corpus.text_key import text_key
from agentir.embed.load import load_model, model_folder, space_of, template_of, token_limits
from agentir.embed.multi_vector import load_multi_vector, multi_vector_tokenization
from agentir.embed.template import QueryTemplate, instruction
from agentir.embed.tokens import Tokenization
from agentir.errors import ConfigError, EncoderError, InputError
from agentir.records import Document
from agentir.search.index import Index
from agentir.train.adapters import LoraSettings, add_adapter
from agentir.train.collator import Passages
from agentir.train.config import Config
from agentir.train.data import TrainingRow
from agentir.train.encoding import Scoring, dot_scores
from agentir.train.evaluator import Condition, DevEvaluator, MultiVectorDevEvaluator
from agentir.train.loss import Distillation
from agentir.train.multi_vector_loss import MaxSimScores
from agentir.train.template_check import check_template
from agentir.train.trainer import Settings, has_bf16

LLM_TEMPERATURE = 0.01
"""Default for decoder embedders: AgentIR's (texttron/AgentIR, training/train.sh)."""
SMALL_TEMPERATURE = 0.05
"""Default for bidirectional encoders, whose scores lie closer together: sentence-transformers' scale of 20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The untrained model and the passages; `index` holds the vectors of frozen ones, None for joint training."""

    model: BaseModel
    passages: Passages
    index: Index | None

    def fresh(self, config: Config, seed: int, *, keep: bool = True) -> BaseModel:
        """The model that a run trains: all its weights, or an adapter on it.

        Args:
            config: of the run.
            seed: of the adapter's first values.
            keep: leave the untrained model as it is; False saves the memory of a copy, for the last run.
        """
        model = copy.deepcopy(self.model) if keep else self.model
        if config.lora.r:
            lora = config.lora
            settings = LoraSettings(
                r=lora.r, alpha=lora.alpha, dropout=lora.dropout, target_modules=lora.target_modules or None
            )
            add_adapter(model, settings, seed)
        return model


def load_base(config: Config) -> BaseModel:
    """The model that training starts from.

    Raises:
        ConfigError: all weights would be trained in less than float32, in which AdamW's small updates are lost.
    """
    if config.base_dtype != "float32" and not config.lora.r:
        raise ConfigError(
            f"base_dtype: expected float32 where all weights are trained, found {config.base_dtype}; precision makes the "
            "computation bfloat16, or set lora.r"
        )
    if config.kind == "multi-vector":
        return load_multi_vector(config.model, device=config.device, dim=config.dim, dtype=config.base_dtype)
    return load_model(
        config.model,
        device=config.device,
        dtype=config.base_dtype,
        attention=attention_of(config),
        pooling=config.pooling,
    )


def attention_of(config: Config) -> str | None:
    """The implementation of attention to ask transformers for; None for its own choice."""
    if config.attention != "auto":
        return config.attention
    half = config.base_dtype != "float32"
    wanted = half and torch.cuda.is_available() and config.device != "cpu"
    return "flash_attention_2" if wanted and importlib.util.find_spec("flash_attn") is not None else None


def tokenization_of(config: Config, model: BaseModel) -> Tokenization:
    """How the model is given texts under a configuration."""
    template = template_of(config.model, model, config.input)
    if config.task is not None:
        template = replace(template, instruction=instruction(config.task, config.newline) if config.task else "")
    stored = QueryTemplate.load(model_folder(config.model))
    if stored is not None:
        check_template(stored, template, config.model, retemplate=config.retemplate)
    limits = config.max_query_tokens, config.max_document_tokens
    if isinstance(model, MultiVectorEncoder):
        return multi_vector_tokenization(
            config.model, model, template=template, max_tokens=limits[0], document_max_tokens=limits[1]
        )
    return Tokenization(model.tokenizer, template, *token_limits(config.model, model, *limits))


def scoring_of(model: BaseModel) -> Scoring:
    """How the model scores the texts of a batch."""
    return MaxSimScores.of(model) if isinstance(model, MultiVectorEncoder) else dot_scores


def check_sharding(config: Config, model: BaseModel) -> None:
    """Raises:
    ConfigError: sharding is asked for where accelerate would train without it, or a search under it.
    """
    asked = [name for name in ("deepspeed", "fsdp") if getattr(config.distributed, name)]
    if not asked:
        return
    if model.device.type == "cpu":
        raise ConfigError(f"distributed.{asked[0]}: expected GPUs, found device cpu, on which nothing would be sharded")
    if config.search.trials or config.search.learning_rates or config.search.temperatures:
        raise ConfigError(f"search: expected none under distributed.{asked[0]}; search on one device, then train")
    if config.kind != "embedding":
        raise ConfigError(f"distributed.{asked[0]}: expected kind embedding, found {config.kind}")


def check_dropout(config: Config, tokenization: Tokenization) -> None:
    """Raises:
    ConfigError: rows would lose all that the template shows.
    """
    template = tokenization.template
    if config.reasoning_dropout and (template.context_slot is None or not template.shows_query):
        raise ConfigError(
            f"reasoning_dropout: expected 0 for the input {config.input}, which shows no query beside its context, or nothing "
            f"but the query; found {config.reasoning_dropout}"
        )


def settings_of(config: Config, model: BaseModel, seed: int) -> Settings:
    """The settings of one run."""
    default = LLM_TEMPERATURE if model.tokenizer.padding_side == "left" else SMALL_TEMPERATURE
    distillation = config.distillation
    return Settings(
        learning_rate=config.learning_rate,
        temperature=config.temperature or default,
        epochs=config.epochs,
        batch_size=config.batch_size,
        batch_tokens=config.batch_tokens,
        question_exclusive=config.question_exclusive,
        mask_positives=config.mask_positives,
        mask_same_question=config.mask_same_question,
        group_by_length=config.group_by_length,
        gradient_accumulation=config.gradient_accumulation,
        num_negatives=config.num_negatives,
        index_negatives=config.index_negatives,
        reasoning_dropout=config.reasoning_dropout,
        distillation=Distillation(
            weight=distillation.weight, rank_scale=distillation.rank_scale, temperature=distillation.temperature
        ),
        num_listed=distillation.num_listed,
        false_negative_margin=config.false_negative_margin,
        seed=seed,
        warmup_ratio=config.warmup_ratio,
        weight_decay=config.weight_decay,
        bf16=config.precision == "bf16" or (config.precision == "auto" and has_bf16(model)),
        fp16=config.precision == "fp16",
        mini_batch_size=config.mini_batch_size,
        mini_batch_tokens=config.mini_batch_tokens,
        gradient_checkpointing=config.gradient_checkpointing,
        eval_steps=config.eval_steps,
        num_workers=config.num_workers,
        deepspeed=None if config.distributed.deepspeed is None else str(config.distributed.deepspeed),
        fsdp=config.distributed.fsdp,
        fsdp_config=None if config.distributed.fsdp_config is None else str(config.distributed.fsdp_config),
        logging=config.logging,
    )


def open_index(config: Config) -> Index | None:
    """The index that holds the frozen passages, None for joint training."""
    if config.passages == "joint":
        return None
    if config.kind == "multi-vector":
        raise ConfigError("passages: a multi-vector model encodes its passages: expected 'joint', found 'frozen'")
    if config.corpus is not None and (config.corpus / CURRENT).is_file():
        index = Index.open(config.corpus)
        if index.has_vectors:
            return index
    raise ConfigError(f"corpus: frozen passages need an index folder with vectors, found {config.corpus}")


def check_base(config: Config, index: Index, model: BaseModel, template: QueryTemplate) -> None:
    """Refuses to tune a query encoder against the vectors of another model.

    Raises:
        EncoderError: the index was not encoded by the model that training starts from.
    """
    assert isinstance(model, SentenceTransformer)
    dim, space = int(model.get_embedding_dimension() or 0), space_of(config.model, model, template)
    assert index.encoder is not None
    if (dim, space) != (index.encoder["dim"], index.encoder["space"]):
        raise EncoderError(
            f"{config.corpus}: its vectors were made by {index.encoder['name']}, of {index.encoder['dim']} dimensions; "
            f"expected {config.model}, of {dim}, from which training starts: build the index with it, or train jointly"
        )


def make_passages(index: Index | None, documents: Mapping[str, Document], *, whole_index: bool = False) -> Passages:
    """Where the trainer takes passage vectors from.

    Args:
        index: holds the frozen vectors; None to encode `documents` with the model that is trained.
        documents: those that rows name.
        whole_index: let batches draw negatives from the whole index.

    Raises:
        InputError: a document has no vector in the index.
    """
    keys = {docid: text_key(document) for docid, document in documents.items()}
    if index is None:
        return Passages(keys=keys, documents=documents)
    rows = {docid: row for docid in documents if (row := index.pack.row(docid)) is not None}
    if outside := documents.keys() - rows.keys():
        raise InputError(
            f"{index.folder}: {len(outside)} documents of the training rows have no vector in the index, the first is "
            f"{min(outside)!r}; frozen passages must all be in it: index them, or train jointly"
        )
    if whole_index:
        everything = index.pack.documents(0, len(index.pack))
        keys |= {document.docid: text_key(document) for document in everything}
        rows |= {document.docid: row for row, document in enumerate(everything)}
    vectors = index.vectors
    return Passages(
        keys=keys,
        documents=documents,
        frozen=lambda docids: vectors[[rows[docid] for docid in docids]],
        index=list(rows) if whole_index else (),
    )


def draws_from_index(config: Config) -> bool:
    """Whether any run draws negatives from the index.

    Raises:
        ConfigError: it would, but passages are not frozen.
    """
    draws = config.index_negatives > 0 or any(trial.index_negatives for trial in config.search.trials)
    if draws and config.passages != "frozen":
        raise ConfigError("index_negatives: expected passages = 'frozen', whose vectors are at hand; found 'joint'")
    return draws


def make_evaluator(
    dev_rows: Sequence[TrainingRow],
    tokenization: Tokenization,
    base: Base,
    conditions: Sequence[Condition] = ("without reasoning",),
) -> DevEvaluator | None:
    """Evaluation on development rows: over the whole index where passages are frozen, else over the ranked pool."""
    if not dev_rows:
        return None
    index, passages = base.index, base.passages
    if index is not None:
        docids = [index.pack.docid(row) for row in range(len(index.pack))]
        return DevEvaluator(dev_rows, tokenization, docids, frozen=index.vectors, conditions=conditions)
    pool = dict.fromkeys(docid for row in dev_rows for docid in (*row.positives, *row.negatives, *row.pool))
    kind = MultiVectorDevEvaluator if isinstance(base.model, MultiVectorEncoder) else DevEvaluator
    return kind(
        dev_rows,
        tokenization,
        [docid for docid in pool if docid in passages.documents],
        documents=passages.documents,
        conditions=conditions,
    )


def local_model(name: str) -> Path | None:
    """The folder of a model that lies on this machine; it may change, so it is an input."""
    return Path(name) if Path(name).is_dir() else None
