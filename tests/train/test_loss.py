"""The contrastive loss against numpy."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from agentir.train.batches import MASKED, NEGATIVE, POSITIVE
from agentir.train.loss import MaskedInfoNCE

CASE = json.loads((Path(__file__).parents[1] / "data" / "cases" / "T01" / "batch.json").read_text())


def loss_of(temperature: float, queries: np.ndarray, documents: np.ndarray, relations: np.ndarray) -> float:
    loss = MaskedInfoNCE(torch.nn.Identity(), temperature)  # type: ignore[arg-type]
    vectors = (torch.tensor(queries), torch.tensor(documents))
    return float(loss.from_vectors(*vectors, torch.tensor(relations)))


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 1.344038), (0.05, 4.201183), (0.01, 20.009075)])
def test_reference_values(temperature: float, expected: float) -> None:
    relations = np.full((2, 4), NEGATIVE)
    for index, column in enumerate(CASE["positive_index"]):
        relations[index, column] = POSITIVE
    found = loss_of(temperature, np.array(CASE["q"], float), np.array(CASE["docs"], float), relations)
    assert found == pytest.approx(expected, abs=1e-4)


def test_random_masks_equal_numpy() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        queries, documents = (
            vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            for vectors in (rng.normal(size=(5, 8)), rng.normal(size=(9, 8)))
        )
        relations = rng.choice([MASKED, NEGATIVE], size=(5, 9))
        positives = rng.integers(0, 9, 5)
        relations[np.arange(5), positives] = POSITIVE
        losses = []
        for index in range(5):
            scores = documents @ queries[index] / 0.1
            kept = scores[relations[index] != MASKED]
            if len(kept) > 1:
                losses.append(np.log(np.exp(kept).sum()) - scores[positives[index]])
        assert loss_of(0.1, queries, documents, relations) == pytest.approx(np.mean(losses), abs=1e-5)


def test_rows_without_a_negative_are_left_out_and_counted() -> None:
    vectors = torch.eye(2)
    relations = torch.tensor([[POSITIVE, MASKED], [NEGATIVE, POSITIVE]])
    loss = MaskedInfoNCE(torch.nn.Identity(), 1.0)  # type: ignore[arg-type]
    assert float(loss.from_vectors(vectors, vectors, relations)) == pytest.approx(np.log(1 + np.exp(-1)))
    assert loss.num_without_negative == 1


def test_batch_in_which_nothing_can_be_learnt_gives_zero_and_no_gradient() -> None:
    queries = torch.eye(2, requires_grad=True)
    relations = torch.tensor([[POSITIVE, MASKED], [MASKED, POSITIVE]])
    loss = MaskedInfoNCE(torch.nn.Identity(), 0.01)  # type: ignore[arg-type]
    value = loss.from_vectors(queries, torch.eye(2), relations)
    value.backward()
    assert value.item() == 0 and queries.grad is not None and not queries.grad.any()
