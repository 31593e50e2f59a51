"""LoRA adapters: added to a model, saved, loaded and merged into its weights.

    add_adapter(model, LoraSettings(), seed=1)    then train
    save_adapter(model, folder, tokenization, base="Qwen/Qwen3-Embedding-4B")
    save_checkpoint(merged(model), folder, tokenization)

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021; by PEFT.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, TaskType
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.torch import load_file
from sentence_transformers.base.model import BaseModel
from torch import nn

from agentir.embed.load import model_folder
from agentir.embed.tokens import Tokenization
from agentir.errors import ConfigError, EncoderError, InputError
from agentir.train.export import transformer_of, write_tokenization
from agentir.train.layout import read_json, write_json, write_layout

DECODER_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""All projections of Qwen3, Llama and their like: AgentIR's (texttron/AgentIR, training/train.sh)."""
ENCODER_LAYERS = ("query", "key", "value", "intermediate.dense", "output.dense")
"""All linear layers of BERT, RoBERTa and their like but the pooler's, whose output no token vector depends on."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE_FILE = "agentir_base.json"
"""In a saved adapter: what identifies the weights that it belongs to."""
_NAMES = re.compile(r"base_model\.model\.(?:model\.)?(.+)\.(?:lora_[AB]\.weight|lora_magnitude_vector(?:\.weight)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """Rank, scale (alpha / r), dropout and layers of an adapter; defaults are Tevatron's, with which AgentIR was trained.

    `target_modules` are names of linear layers, or ends of them; None for those of the model's family.
    """

    r: int = 16
    alpha: int = 64
    dropout: float = 0.1
    target_modules: tuple[str, ...] | None = None


def add_adapter(model: BaseModel, settings: LoraSettings, seed: int) -> None:
    """Puts a fresh adapter, in float32, on a model and freezes everything else.

    The embeddings' output asks for gradients, without which layers under gradient checkpointing would stay untrained.

    Raises:
        ConfigError: the layers are not in the model, or its family is not known and none are named; or the model carries
            an adapter already.
    """
    auto = transformer_of(model)
    if has_adapter(model):
        raise ConfigError("model: it carries an adapter already; merge that one first with `agentir merge`")
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(target_modules(auto, settings.target_modules)),
        task_type=TaskType.FEATURE_EXTRACTION,
    )
    model.requires_grad_(False)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        auto.add_adapter(config)
    for parameter in auto.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    auto.enable_input_require_grads()  # type: ignore[no-untyped-call]


def target_modules(auto: nn.Module, named: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """The linear layers that get an adapter: those named, else those of the model's family.

    Raises:
        ConfigError: see `add_adapter`; the text lists the model's linear layers.
    """
    linear = [name for name, module in auto.named_modules() if isinstance(module, nn.Linear)]
    there = ", ".join(dict.fromkeys(re.sub(r"\.\d+\.", ".N.", name) for name in linear))

    def missing(ends: tuple[str, ...]) -> list[str]:
        return [end for end in ends if not any(f".{name}".endswith(f".{end}") for name in linear)]

    if named is not None:
        if absent := missing(named):
            raise ConfigError(
                f"target_modules: the model has no linear layer {', '.join(absent)}; it has {there or 'none'}"
            )
        return named
    for family in (DECODER_LAYERS, ENCODER_LAYERS):
        if not missing(family):
            return family
    raise ConfigError(
        f"target_modules: no default for {type(auto).__name__}; name some of its linear layers: {there or 'it has none'}"
    )


def trainable(model: BaseModel) -> tuple[int, int]:
    """Numbers of parameters: those that are trained, and all."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, wanted in sizes if wanted), sum(size for size, _ in sizes)


def has_adapter(model: BaseModel) -> bool:
    """Whether an adapter is on the model, not merged."""
    return any(isinstance(module, LoraLayer) for module in model.modules())


def merged(model: BaseModel) -> BaseModel:
    """Merges a model's adapter into its weights, in place and in float32; returns the model, plain and all trainable.

    Raises:
        EncoderError: merged weights are not finite.
    """
    auto = transformer_of(model).float()  # type: ignore[no-untyped-call]
    for name, layer in [(name, module) for name, module in auto.named_modules() if isinstance(module, LoraLayer)]:
        try:
            layer.merge(safe_merge=True)
        except ValueError as error:
            raise EncoderError(f"{name}: the adapter cannot be merged: {error}") from None
        parent, _, child = name.rpartition(".")
        setattr(auto.get_submodule(parent), child, layer.get_base_layer())
    if getattr(auto, "_hf_peft_config_loaded", False):  # by which transformers and sentence-transformers tell
        del auto.peft_config
        auto._hf_peft_config_loaded = False
    auto.disable_input_require_grads()
    return model.requires_grad_(True)


def save_adapter(
    model: BaseModel,
    folder: Path,
    tokenization: Tokenization,
    *,
    base: str,
    space: str | None = None,
    encodes_documents: bool = True,
) -> None:
    """Saves the adapter alone, for PEFT and for `SentenceTransformer(folder)`, with the template and limits it goes with.

    Args:
        model: has an adapter.
        folder: where to.
        tokenization: template and limits.
        base: the model under the adapter, as the user named it.
        space: see `agentir.train.export.save_checkpoint`.
        encodes_documents: likewise.
    """
    auto = transformer_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenization(folder, tokenization, space=space, encodes_documents=encodes_documents)
    write_layout(model, folder, tokenization)
    write_json(folder / BASE_FILE, {"base": base, "digest": base_digest(model)})
    auto.save_pretrained(folder)
    config: dict[str, Any] = read_json(folder / ADAPTER_CONFIG)
    config["base_model_name_or_path"] = _loadable(base)
    config["inference_mode"] = True
    config["target_modules"] = sorted(config["target_modules"])  # PEFT writes a set, in an order that changes
    write_json(folder / ADAPTER_CONFIG, config)


def load_adapter(model: BaseModel, folder: Path, *, trainable: bool = False) -> None:
    """Puts a saved adapter on its base: one of `save_adapter`, or one that PEFT wrote, as Tevatron's trainer does.

    Args:
        model: the base.
        folder: the adapter.
        trainable: training goes on; the base is frozen.

    Raises:
        InputError: no adapter is there, it is damaged, or it is no LoRA.
        EncoderError: it belongs to another model.
    """
    auto = transformer_of(model)
    config, weights = read_adapter(folder)
    _check_shapes(auto, weights, folder)
    model.requires_grad_(False)
    try:
        loaded = auto.load_adapter(
            peft_config=config,  # type: ignore[arg-type]
            adapter_state_dict=weights,
            is_trainable=trainable,
        )
    except ValueError as error:  # such as target modules that the model does not have
        raise EncoderError(f"{folder}: does not fit {type(auto).__name__}: {error}") from None
    if unplaced := sorted({*loaded.missing_keys, *loaded.unexpected_keys}):
        raise EncoderError(f"{folder}: {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS} disagree about {unplaced[0]}")
    _check_base(model, folder)
    if trainable:
        auto.enable_input_require_grads()  # type: ignore[no-untyped-call]


def read_adapter(folder: Path) -> tuple[LoraConfig, dict[str, torch.Tensor]]:
    """The configuration and weights of a saved adapter.

    Raises:
        InputError: see `load_adapter`.
    """
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (folder / name).is_file():
            found = "adapter_model.bin, a pickle" if (folder / "adapter_model.bin").is_file() else "none"
            raise InputError(
                f"{folder}: expected an adapter with {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}, found {found}"
            )
    try:
        config = PeftConfig.from_pretrained(str(folder))
        weights = load_file(folder / ADAPTER_WEIGHTS)
    except (ValueError, TypeError, KeyError, OSError, SafetensorError) as error:
        raise InputError(f"{folder}: not a readable adapter: {error}") from None
    if not isinstance(config, LoraConfig):
        kind = getattr(config.peft_type, "value", config.peft_type)
        raise InputError(f"{folder / ADAPTER_CONFIG}: expected peft_type LORA, found {kind}")
    return config, weights


def is_untrained(model: BaseModel) -> bool:
    """Whether the adapter changes nothing: its B matrices are all zero, as they begin."""
    return not any(bool(weights.any()) for name, weights in model.named_parameters() if ".lora_B." in name)


def base_digest(model: BaseModel) -> str:
    """Identifies the weights under an adapter: the first row of each layer it changes, as bfloat16.

    Rounded, so that it does not depend on the data type a base was loaded in.
    """
    digest = hashlib.sha256()
    for name, layer in transformer_of(model).named_modules():
        if isinstance(layer, LoraLayer):
            row = layer.get_base_layer().get_parameter("weight")[0].detach().to("cpu", torch.bfloat16)
            digest.update(name.encode() + row.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def _check_base(model: BaseModel, folder: Path) -> None:
    """Compares the weights under an adapter with those it was trained on, where it says which."""
    if not (folder / BASE_FILE).is_file():
        return
    stored = read_json(folder / BASE_FILE)
    if base_digest(model) != stored["digest"]:
        raise EncoderError(
            f"{folder}: this adapter was trained on other weights, those of {stored['base']}; name that model"
        )


def _check_shapes(auto: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
    modules = dict(auto.named_modules())
    for name, tensor in weights.items():
        match = _NAMES.fullmatch(name)
        if match is None:
            raise EncoderError(
                f"{folder / ADAPTER_WEIGHTS}: expected LoRA matrices of linear layers only, found {name}"
            )
        layer = modules.get(match[1])
        if not isinstance(layer, nn.Linear):
            raise EncoderError(
                f"{folder}: trained on another model: {type(auto).__name__} has no linear layer {match[1]}"
            )
        given, expected = _sizes(name, tensor, layer)
        if given != expected:
            raise EncoderError(
                f"{folder}: trained on another model: {name} is for {given} features of {match[1]}, which has {expected}"
            )


def _sizes(name: str, tensor: torch.Tensor, layer: nn.Linear) -> tuple[int, int]:
    """The number of features that an adapter's tensor is for, and that of the layer."""
    if ".lora_A." in name:
        return tensor.shape[-1], layer.in_features
    return tensor.shape[0], layer.out_features


def _loadable(base: str) -> str:
    """A name that PEFT and sentence-transformers find the base by: a hub id, or the path of a folder."""
    return base if base.count("/") == 1 and not Path(base).is_dir() else str(model_folder(base).resolve())
