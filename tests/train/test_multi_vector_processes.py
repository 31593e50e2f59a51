"""Late interaction over several processes; few imports, since each process makes them anew."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from agentir.train.batches import NEGATIVE, POSITIVE
from agentir.train.encoding import PartLimits, texts_of_process
from agentir.train.loss import MaskedInfoNCE
from agentir.train.multi_vector_loss import MaxSimScores


class Tokens(torch.nn.Module):
    """A vector a token id, whatever stands around it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        with torch.no_grad():
            self.table.weight.copy_(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))

    def forward(self, features: dict[str, torch.Tensor], task: str) -> dict[str, torch.Tensor]:
        return {"token_embeddings": self.table(features["input_ids"]), "attention_mask": features["attention_mask"]}


def gradient_of_share(rank: int, num_processes: int, folder: str) -> None:
    """Writes the loss and the gradient that a process computes of its share of a batch."""
    if num_processes > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store{num_processes}", rank=rank, world_size=num_processes
        )
    rng = np.random.default_rng(1)
    sides = [[rng.integers(1, 50, size).tolist() for size in sizes] for sizes in ((3, 12, 5), (4, 20, 9, 1, 7))]
    tokenizer = SimpleNamespace(pad_token_id=0, padding_side="right")
    queries, documents = (
        texts_of_process(ids, tokenizer, PartLimits(size=1, cached=True), rank, num_processes) for ids in sides
    )
    matrix = torch.full((3, 5), NEGATIVE)
    matrix[torch.arange(3), torch.arange(3)] = POSITIVE
    model = Tokens()
    loss = MaskedInfoNCE(0.1)(MaxSimScores(normalize=True)(model, queries, documents, cached=True), matrix)
    loss.backward()
    torch.save((loss.item(), model.table.weight.grad), f"{folder}/{num_processes}-{rank}.pt")


def test_processes_together_learn_what_one_would(tmp_path: Path) -> None:
    gradient_of_share(0, 1, str(tmp_path))
    torch.multiprocessing.spawn(gradient_of_share, (2, str(tmp_path)), nprocs=2)
    alone, gradient = torch.load(tmp_path / "1-0.pt")
    shares = [torch.load(tmp_path / f"2-{rank}.pt") for rank in range(2)]
    assert [loss for loss, _ in shares] == pytest.approx([alone, alone], abs=1e-5)
    assert float(gradient.abs().max()) > 0.01
    torch.testing.assert_close(shares[0][1] + shares[1][1], gradient, atol=1e-5, rtol=1e-4)
