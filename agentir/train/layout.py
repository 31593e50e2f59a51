"""The files around the weights of a model folder: modules, pooling, prompts, limits, tokenizer and configuration.

transformers 5 and sentence-transformers 5.4 renamed what they write, and read the older names too. Other readers know the
older ones only, and where they find none they take a default without a word: vLLM then pools as the architecture does by
default, transformers 4 and what builds on it take a RoPE base of 10,000 or fail on the tokenizer. So what is written here
are the names that all of them read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import SentenceTransformer, __version__
from sentence_transformers.base.model import BaseModel
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from torch import nn

from agentir.artifacts import write_text_atomically
from agentir.embed.tokens import Tokenization

OLD_NAMES: tuple[type[nn.Module], ...] = (Transformer, Pooling, Normalize, Dense)
"""Modules that every version finds as `sentence_transformers.models.NAME`."""
POOLING_MODES = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
PLAIN_TEXT = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
"""What the transformer module says of itself if it reads texts and gives token vectors, which older versions imply."""


def write_layout(model: BaseModel, folder: Path, tokenization: Tokenization) -> None:
    """Writes all but the weights and their configuration.

    The prompts are the template's instructions, so that `encode_query` and `encode_document` of sentence-transformers
    need only be given what stands after them. Vectors are of unit length, as everywhere here.
    """
    transformer = model[0]
    assert isinstance(transformer, Transformer)
    limit = max(tokenization.max_query_tokens, tokenization.max_document_tokens)
    single = isinstance(model, SentenceTransformer)
    modules = [*model, Normalize()] if single and not isinstance(model[-1], Normalize) else [*model]
    entries = []
    for index, module in enumerate(modules):
        path = f"{index}_{type(module).__name__}" if index else ""
        (folder / path).mkdir(parents=True, exist_ok=True)
        if index == 0:
            _write_transformer(transformer, folder, limit)
        else:
            module.save(str(folder / path))
        if isinstance(module, Pooling) and isinstance(module.pooling_mode, str):
            write_json(folder / path / "config.json", _pooling(module))
        entries.append({"idx": index, "name": str(index), "path": path, "type": _type_name(module)})
    write_json(folder / "modules.json", entries)
    template = tokenization.template
    described = {
        "__version__": {
            "sentence_transformers": __version__,
            "transformers": transformers.__version__,
            "pytorch": torch.__version__,
        },
        "model_type": type(model).__name__,
        "prompts": {"query": template.instruction, "document": template.document_instruction},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if single else model.similarity_fn_name,
    }
    write_json(folder / "config_sentence_transformers.json", described)


def complete_config(folder: Path, *, architecture: str | None, dtype: str) -> None:
    """Adds to a saved `config.json` what older readers look for.

    Args:
        folder: the model folder.
        architecture: the class that servers are to take, None for the one that transformers wrote.
        dtype: of the weights.
    """
    config: dict[str, Any] = read_json(folder / "config.json")
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        config["rope_theta"] = rope["rope_theta"]
        if rope.get("rope_type", "default") != "default":
            config["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    if architecture is not None:
        config["architectures"] = [architecture]
    config["dtype"] = config["torch_dtype"] = dtype
    write_json(folder / "config.json", config)


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file."""
    write_text_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _write_transformer(module: Transformer, folder: Path, limit: int) -> None:
    """The tokenizer and the transformer module's own settings."""
    backend = getattr(module.tokenizer, "backend_tokenizer", None)
    if backend is not None:  # the last call's limits would be stored; the tokenizer sets them anew at each call
        backend.no_truncation()
        backend.no_padding()
    module.processor.save_pretrained(folder)
    config: dict[str, Any] = read_json(folder / "tokenizer_config.json")
    config["model_max_length"] = limit
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    write_json(folder / "tokenizer_config.json", config)
    own = module.get_config_dict()
    limits = {"max_seq_length": limit, "do_lower_case": bool(module.do_lower_case)}
    write_json(folder / "sentence_bert_config.json", limits if own == PLAIN_TEXT else own | limits)


def _pooling(module: Pooling) -> dict[str, Any]:
    modes = {key: mode == module.pooling_mode for mode, key in POOLING_MODES.items()}
    return {
        "word_embedding_dimension": module.embedding_dimension,
        **modes,
        "include_prompt": module.include_prompt,
    }


def _type_name(module: nn.Module) -> str:
    kind = type(module)
    return (
        f"sentence_transformers.models.{kind.__name__}" if kind in OLD_NAMES else f"{kind.__module__}.{kind.__name__}"
    )
