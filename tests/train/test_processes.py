"""Training in two processes, on CPUs over gloo: the loss, the gradients and the weights of one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from agentir.cli import run
from agentir.errors import ConfigError
from agentir.jsonl import write_jsonl
from agentir.train.batches import NEGATIVE, POSITIVE
from agentir.train.encoding import PartLimits, dot_scores, texts_of_process
from agentir.train.loss import Distillation, MaskedInfoNCE

CITIES = ["Lima", "Oslo", "Rome", "Kyiv", "Bern", "Doha", "Baku", "Riga", "Sofia", "Tunis", "Quito", "Accra"]


class Bag(torch.nn.Module):
    """Embeds a text as the mean of the vectors of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 8, dtype=torch.float64)
        with torch.no_grad():
            self.table.weight.copy_(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        mask = features["attention_mask"][..., None]
        return {"sentence_embedding": (self.table(features["input_ids"]) * mask).sum(1) / mask.sum(1)}


def write_gradient(rank: int, num_processes: int, folder: str, cached: bool) -> None:
    """Writes the loss and the gradient that a process computes of a batch; several share it."""
    if num_processes > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store-{cached}", rank=rank, world_size=num_processes
        )
    rng = np.random.default_rng(1)
    sides = [[rng.integers(1, 50, size).tolist() for size in sizes] for sizes in ((3, 12, 5), (4, 20, 9, 1, 7, 2, 6))]
    tokenizer = SimpleNamespace(pad_token_id=0, padding_side="left")
    limits = PartLimits(size=1 if cached else None, cached=cached)
    queries, documents = (texts_of_process(ids, tokenizer, limits, rank, num_processes) for ids in sides)
    relations = torch.full((3, 7), NEGATIVE)
    relations[torch.arange(3), torch.arange(3)] = POSITIVE
    ranks = torch.arange(7).repeat(3, 1)
    model = Bag()
    loss = MaskedInfoNCE(0.1, Distillation(weight=0.5))(dot_scores(model, queries, documents, cached), relations, ranks)
    loss.backward()
    torch.save((loss.item(), model.table.weight.grad), f"{folder}/{num_processes}-{rank}.pt")


@pytest.mark.parametrize("cached", [False, True])
def test_gradients_of_two_processes_sum_to_those_of_one(tmp_path: Path, cached: bool) -> None:
    write_gradient(0, 1, str(tmp_path), cached)
    torch.multiprocessing.spawn(write_gradient, (2, str(tmp_path), cached), nprocs=2)
    loss, gradient = torch.load(tmp_path / "1-0.pt")
    shares = [torch.load(tmp_path / f"2-{rank}.pt") for rank in range(2)]
    assert [share for share, _ in shares] == pytest.approx([loss, loss], abs=1e-6)
    assert gradient.abs().max() > 0.01
    assert not any(torch.allclose(share, gradient) for _, share in shares), "each does a part of the work"
    torch.testing.assert_close(shares[0][1] + shares[1][1], gradient, atol=1e-6, rtol=1e-5)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        {"query_id": f"q{n}", "query": f"capital {n % 5}", "positive": [f"{city} is a capital city"],
         "negative": [f"{CITIES[n - 1]} is no capital", "a longer text about something else altogether"]}
        for n, city in enumerate(CITIES)
    ]  # fmt: skip
    write_jsonl(tmp_path / "train.jsonl", rows)
    write_jsonl(tmp_path / "dev.jsonl", [{**row, "query_id": f"dev{n}"} for n, row in enumerate(rows[:4])])
    return tmp_path


def command(data: Path, model: Path, out: str, *more: str) -> list[str]:
    return [
        "-m", "agentir", "train", "--examples", str(data / "train.jsonl"), "--dev", str(data / "dev.jsonl"),
        "--model", str(model), "--input", "query", "--task", "", "--device", "cpu", "--precision", "float32",
        "--batch-size", "4", "--num-negatives", "2", "--epochs", "2", "--learning-rate", "1e-3",
        "--temperature", "0.05", "--eval-steps", "2", "--out", str(data / out), *more,
    ]  # fmt: skip


@pytest.mark.parametrize("more", [(), ("--lora.r", "4", "--lora.dropout", "0", "--mini-batch-size", "2")])
def test_two_processes_train_the_model_of_one(data: Path, tiny_qwen3: Path, more: tuple[str, ...]) -> None:
    subprocess.run([sys.executable, *command(data, tiny_qwen3, "one", *more)], check=True)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, *command(data, tiny_qwen3, "two", *more)], check=True, capture_output=True, text=True
    )
    assert done.stdout.count("trained query on 12 rows") == 1, "only the first process speaks"
    one, two = (load_file(data / name / "seed-1" / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=2e-5, rtol=1e-4)
    figures = [json.loads((data / name / "seed-1.json").read_text()) for name in ("one", "two")]
    assert figures[1]["loss"] == pytest.approx(figures[0]["loss"], abs=1e-5)
    assert figures[1]["dev_nDCG@10"] == figures[0]["dev_nDCG@10"]


def test_more_processes_than_rows_of_a_batch_are_refused(data: Path, tiny_qwen3: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, *command(data, tiny_qwen3, "refused", "--batch-size", "1")],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "batch_size: expected at least one row for each of 2 processes" in done.stderr
    assert not (data / "refused").exists()


def test_sharding_without_gpus_is_refused_since_nothing_would_be_sharded(data: Path, tiny_qwen3: Path) -> None:
    with pytest.raises(ConfigError, match=r"distributed\.fsdp: expected GPUs, found device cpu"):
        run(command(data, tiny_qwen3, "sharded", "--distributed.fsdp", "full_shard auto_wrap")[2:])
    assert not (data / "sharded").exists()
