"""Model folders that would load without a word and give wrong vectors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from agentir.embed.load import load_model
from agentir.errors import EncoderError


@pytest.fixture
def bare(tiny_qwen3: Path, tmp_path: Path) -> Path:
    """The transformer's own files, as a merge of the published training code leaves them."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for path in tiny_qwen3.iterdir():
        if path.is_file() and path.name != "modules.json":
            shutil.copy(path, folder)
    return folder


def test_decoder_that_names_no_pooling_is_refused_unless_it_is_said(bare: Path, tiny_qwen3: Path) -> None:
    with pytest.raises(EncoderError, match=r"bare: a bare decoder: .* mean would be taken"):
        load_model(str(bare), device="cpu")
    texts = ["a short text", "another text, somewhat longer"]
    pooled = load_model(str(bare), device="cpu", pooling="lasttoken")
    np.testing.assert_allclose(pooled.encode(texts), load_model(str(tiny_qwen3), device="cpu").encode(texts), atol=1e-6)


def test_released_model_is_known_to_pool_its_last_token(bare: Path, tiny_qwen3: Path) -> None:
    named = bare.rename(bare.parent / "AgentIR-4B")
    expected = load_model(str(tiny_qwen3), device="cpu").encode(["x y z"])
    np.testing.assert_allclose(load_model(str(named), device="cpu").encode(["x y z"]), expected, atol=1e-6)


def test_model_whose_weights_have_other_names_is_refused(tiny_qwen3: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_qwen3, tmp_path / "renamed"))
    path = folder / "model.safetensors"
    save_file({f"{name}.old": weight for name, weight in load_file(path).items()}, path, {"format": "pt"})
    with pytest.raises(EncoderError, match=r"of the model's \d+ tensors are not in its files"):
        load_model(str(folder), device="cpu")
    assert json.loads((folder / "modules.json").read_text())
