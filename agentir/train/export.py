"""Checkpoints: model folders that sentence-transformers, transformers, vLLM and this library's own programs open alike."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
import transformers
from sentence_transformers.base.model import BaseModel
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from agentir.embed.load import write_encoder_file
from agentir.embed.tokens import Tokenization
from agentir.errors import ConfigError, EncoderError
from agentir.train.layout import complete_config, write_layout

Dtype = Literal["float32", "bfloat16", "float16"]
WeightNames = Literal["auto_model", "causal_lm"]
SHARD_SIZE = "5GB"
"""Of a weights file; that of the released Qwen3-Embedding models."""


def save_checkpoint(
    model: BaseModel,
    folder: Path,
    tokenization: Tokenization,
    *,
    space: str | None = None,
    encodes_documents: bool = True,
    dtype: Dtype | None = None,
    weight_names: WeightNames = "auto_model",
) -> None:
    """Saves a model with its template, its limits and, if its passages were frozen, the space they live in.

    The model itself stays as it is. The weights are written last: a folder whose writing was stopped cannot be loaded.

    A decoder that pools its last token is declared as the released Qwen3-Embedding models are: the architecture
    `...ForCausalLM`, which vLLM and SGLang know and turn into an embedder by what `modules.json` says, with the tensor
    names of the bare model (`layers.0...`), no `lm_head`. With `causal_lm` the names begin with `model.`; all of
    transformers, sentence-transformers and vLLM read both, some converters and vLLM without its pooling runner only these.

    Args:
        model: the model, adapters merged.
        folder: where to.
        tokenization: template and limits.
        space: the space of the passages that a query encoder was tuned against; None where its own weights make it.
        encodes_documents: False for such a query encoder.
        dtype: of the weights; None for that of the model.
        weight_names: see above.

    Raises:
        ConfigError: the model is no decoder that pools its last token, so that `causal_lm` names do not exist.
        EncoderError: a weight does not fit the data type, or an adapter is not merged.
    """
    auto = transformer_of(model)
    if getattr(auto, "_hf_peft_config_loaded", False):
        raise EncoderError(
            "model: expected plain weights, found an adapter on them; merge it first with `agentir merge`"
        )
    architecture = causal_architecture(model)
    if weight_names == "causal_lm" and architecture is None:
        raise ConfigError(
            f"weight_names: expected auto_model for {type(auto).__name__}, which is no decoder that pools its last token; "
            "found causal_lm"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenization(folder, tokenization, space=space, encodes_documents=encodes_documents)
    write_layout(model, folder, tokenization)
    _write_weights(auto, folder, auto.dtype if dtype is None else getattr(torch, dtype), architecture, weight_names)


def _write_weights(
    auto: PreTrainedModel, folder: Path, dtype: torch.dtype, architecture: str | None, names: WeightNames
) -> None:
    """Writes weights and `config.json`."""
    prefix = f"{getattr(transformers, str(architecture)).base_model_prefix}." if names == "causal_lm" else ""
    state = {prefix + name: _cast(name, tensor, dtype) for name, tensor in auto.state_dict().items()}
    # transformers would write the names under which weights were last loaded: those of an adapter, or with a prefix
    loaded_as, auto._weight_conversions = getattr(auto, "_weight_conversions", None), None  # type: ignore[assignment]
    try:
        auto.save_pretrained(folder, state_dict=state, max_shard_size=SHARD_SIZE)
    finally:
        auto._weight_conversions = loaded_as  # type: ignore[assignment]
    complete_config(folder, architecture=architecture, dtype=str(dtype).removeprefix("torch."))


def write_tokenization(folder: Path, tokenization: Tokenization, *, space: str | None, encodes_documents: bool) -> None:
    """Stores how texts were rendered and cut, which loading a model folder goes by."""
    tokenization.template.save(folder)
    write_encoder_file(
        folder,
        space=space,
        encodes_documents=encodes_documents,
        max_query_tokens=tokenization.max_query_tokens,
        max_document_tokens=tokenization.max_document_tokens,
    )


def transformer_of(model: BaseModel) -> PreTrainedModel:
    """The transformers model inside.

    Raises:
        EncoderError: there is none, as in a model of static word vectors.
    """
    auto = getattr(model[0], "auto_model", None)
    if not isinstance(auto, PreTrainedModel):
        raise EncoderError(f"expected a model that begins with a transformer, found {type(model[0]).__name__}")
    return auto


def causal_architecture(model: BaseModel) -> str | None:
    """The class of language model whose body a decoder embedder is, such as Qwen3ForCausalLM; None for encoders."""
    auto = transformer_of(model)
    name: str | None = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(auto.config.model_type)
    last_token = any(isinstance(module, Pooling) and module.pooling_mode == "lasttoken" for module in model)
    return name if last_token and name == type(auto).__name__.removesuffix("Model") + "ForCausalLM" else None


def _cast(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    cast = tensor.to(dtype)
    if not torch.isfinite(cast).all():
        raise EncoderError(
            f"{name}: not all values are finite as {str(dtype).removeprefix('torch.')}; largest found "
            f"{tensor.abs().max().item():g}; write bfloat16 or float32"
        )
    return cast
