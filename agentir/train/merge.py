"""Merge a LoRA adapter into its base: a model folder that can be served.

    agentir merge --adapter work/train/seed-1.adapter --out work/merged
    agentir merge --adapter tevatron-run/ --model Qwen/Qwen3-Embedding-4B --template agentir --out work/merged

Takes adapters of `agentir train` and those that PEFT wrote, such as Tevatron's. Merges in float32 on the CPU, so that the
result is the same everywhere, and writes what sentence-transformers, vLLM, `agentir index build` and `agentir index serve`
open. The query template is that stored with the adapter. One that stores none must be told how its texts were rendered in
training, since a model that is given other texts answers without an error, only worse: `--template agentir` (AgentIR's
published format), `--template base` (the prompts of the base), or `--input` with `--task`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentir.artifacts import LOCK, UNFINISHED, Artifact
from agentir.config import Field, Section
from agentir.embed.load import load_model, model_folder, read_encoder_file, template_of, token_limits
from agentir.embed.template import Input, Newline, QueryTemplate, agentir_template, template_for
from agentir.embed.tokens import Tokenization
from agentir.errors import ConfigError, EncoderError, MissingExtraError
from agentir.records import PastSearch, SearchQuery
from agentir.train.template_check import check_template

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

EARLIER = PastSearch(query="EARLIER QUERY", reasoning="EARLIER REASONING")
EXAMPLE = SearchQuery(query="QUERY", reasoning="REASONING", question="QUESTION", history=(EARLIER,))


class Config(Section):
    """What is merged, and how it is written."""

    adapter: Path
    """Folder with adapter_config.json and adapter_model.safetensors."""
    model: str | None = None
    """The base: model folder, packaged model, or hub id. Default: the one that the adapter names."""
    out: Path
    """The model folder to write."""
    template: Literal["agentir", "base"] | None = None
    """How texts were rendered in training, where the adapter does not store it: AgentIR's published format, or the prompts
    that the base itself names."""
    input: Input | None = None
    """Likewise by what the query side was given; documents are then rendered as title and text, as in Tevatron."""
    task: str | None = None
    """With input: the task of the instruction before the query ("Instruct: ..."); default: no instruction."""
    newline: Newline = "literal"
    """Separator inside the instruction: backslash and n, as AgentIR-4B was trained, or a line feed."""
    retemplate: bool = False
    """Write the template asked for although the adapter stores another."""
    max_query_tokens: int | None = Field(None, ge=8)
    """Limit of a rendered query. Default: that of training, where the adapter stores it, else the base's own."""
    max_document_tokens: int | None = Field(None, ge=8)
    """Limit of a document; default likewise."""
    pooling: Literal["lasttoken", "mean", "cls"] | None = None
    """How token vectors become one, for a base that does not say so itself (no modules.json)."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Of the written weights; default: float32 where the base has it, else float16, as AgentIR's own merge writes."""
    weight_names: Literal["auto_model", "causal_lm"] = "auto_model"
    """Names of the tensors: as in the released Qwen3-Embedding models, or with a leading `model.` as in language models."""


def main(config: Config) -> None:
    """Merges, and says where the model is."""
    try:
        from agentir.train.adapters import is_untrained, load_adapter, merged, read_adapter
        from agentir.train.export import save_checkpoint, transformer_of
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "peft", "train") from None

    lora, _ = read_adapter(config.adapter)
    base = config.model or lora.base_model_name_or_path
    if not base:
        raise ConfigError(f"model: missing; {config.adapter} does not name its base")
    check_decisions(config, base)
    inputs = {"adapter": config.adapter} | ({"model": Path(base)} if Path(base).is_dir() else {})
    with Artifact(config.out, "merged", config, inputs, facts={"base": base}) as artifact:
        if artifact.complete:
            print(f"{config.out}: already merged; nothing to do")
            return
        model = load_model(base, device="cpu", pooling=config.pooling)
        tokenization = tokenization_of(config, base, model)
        own_dtype = str(transformer_of(model).dtype).removeprefix("torch.")
        dtype = config.dtype or ("float32" if own_dtype == "float32" else "float16")
        load_adapter(model, config.adapter)
        if is_untrained(model):
            raise EncoderError(f"{config.adapter}: all B matrices are zero, so this adapter was never trained")
        stored = read_encoder_file(config.adapter)
        save_checkpoint(
            merged(model),
            config.out,
            tokenization,
            space=stored.get("space"),
            encodes_documents=stored.get("encodes_documents", True),
            dtype=dtype,
            weight_names=config.weight_names,
        )
        for path in sorted(config.out.iterdir()):
            if path.name not in (LOCK, UNFINISHED):
                artifact.include(path.name)
        artifact.finish(report(lora, tokenization, dtype))
    if lora.base_model_name_or_path not in (None, base):
        print(f"the adapter names {lora.base_model_name_or_path} as its base; merged into {base} as told")
    print(f"merged {config.adapter} (rank {lora.r}, alpha {lora.lora_alpha}) into {base}, written as {dtype}")
    print(f"query: {tokenization.template.render(EXAMPLE)!r}, at most {tokenization.max_query_tokens} tokens")
    print(f"model: {config.out}")


def report(lora: Any, tokenization: Tokenization, dtype: str) -> dict[str, Any]:
    """What the manifest tells of the merge."""
    return {
        "r": lora.r,
        "alpha": lora.lora_alpha,
        "target_modules": sorted(lora.target_modules or ()),
        "adapter_base": lora.base_model_name_or_path,
        "dtype": dtype,
        "template_hash": tokenization.template.hash,
    }


def check_decisions(config: Config, base: str) -> None:
    """Refuses what is not clear, before anything large is loaded.

    Raises:
        ConfigError: nobody says how texts were rendered or vectors pooled in training, or it is said twice.
    """
    if config.template is not None and (config.input is not None or config.task is not None):
        raise ConfigError(f"template: expected either template {config.template} or input and task, found both")
    if config.task is not None and config.input is None:
        raise ConfigError("task: say with input what the query side was given, such as --input reasoning+query")
    if config.template is None and config.input is None and QueryTemplate.load(config.adapter) is None:
        raise ConfigError(
            f"template: {config.adapter} does not store how its texts were rendered in training; say it with --template "
            "agentir (AgentIR's published format), --template base (the prompts of the base), or --input and --task"
        )
    if (model_folder(base) / "modules.json").is_file():
        if config.pooling is not None:
            raise ConfigError(f"pooling: {base} names its own, leave it out")
    elif config.pooling is None:
        raise ConfigError(
            f"pooling: {base} is a bare transformer; say how it was pooled in training, such as lasttoken for decoders"
        )


def tokenization_of(config: Config, base: str, model: SentenceTransformer) -> Tokenization:
    """Template and limits: as configured, else stored with the adapter, else (limits) those of the base.

    Raises:
        EncoderError: the adapter stores another template than is asked for.
    """
    stored, asked = QueryTemplate.load(config.adapter), asked_template(config, base, model)
    if stored is not None and asked is not None:
        check_template(stored, asked, str(config.adapter), retemplate=config.retemplate)
    template = asked or stored
    assert template is not None  # see check_decisions
    limits = read_encoder_file(config.adapter)
    query, document = token_limits(
        base,
        model,
        config.max_query_tokens or limits.get("max_query_tokens"),
        config.max_document_tokens or limits.get("max_document_tokens"),
    )
    return Tokenization(model.tokenizer, template, query, document)


def asked_template(config: Config, base: str, model: SentenceTransformer) -> QueryTemplate | None:
    """The template that the configuration asks for, None where it asks for none."""
    if config.template == "agentir":
        return agentir_template(config.newline)
    if config.template == "base":
        return template_of(base, model)
    if config.input is not None:
        return template_for(config.input, task=config.task or "", newline=config.newline)
    return None
