"""The recipes that come with the project."""

from pathlib import Path

import pytest

from agentir.config import load_config
from agentir.embed.template import agentir_template, instruction
from agentir.train.config import Config

FOLDER = Path(__file__).parents[2] / "configs" / "train"
RECIPES = sorted(path.name for path in FOLDER.glob("*.toml"))


def load(name: str) -> Config:
    return load_config(Config, ["--config", str(FOLDER / name)], prog="agentir train")


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_valid_and_says_how_it_is_run(name: str) -> None:
    load(name)
    first = (FOLDER / name).read_text().splitlines()
    assert first[0].startswith("# ") and any(f"configs/train/{name}" in line for line in first[:5])


def test_published_recipe_is_agentirs_to_the_last_value() -> None:
    config = load("agentir-4b.toml")
    assert config.task is not None
    assert instruction(config.task, config.newline) == agentir_template("literal").instruction
    assert (config.model, config.input) == ("Qwen/Qwen3-Embedding-4B", "reasoning+query")
    assert (config.max_query_tokens, config.max_document_tokens) == (8192, 4096)
    assert (config.batch_size, config.gradient_accumulation, config.num_negatives) == (4, 2, 7)
    assert (config.learning_rate, config.temperature, config.epochs, config.warmup_ratio) == (1e-4, 0.01, 2, 0.1)
    lora = config.lora
    assert (lora.r, lora.alpha, lora.dropout, len(lora.target_modules)) == (16, 64, 0.1, 7)
    assert (config.precision, config.save_dtype, config.gradient_checkpointing) == ("fp16", "float16", True)
    assert not config.mask_positives and not config.mask_same_question and config.distillation.weight == 0
    assert config.distributed.deepspeed is not None
    assert (FOLDER / config.distributed.deepspeed.name).is_file()
