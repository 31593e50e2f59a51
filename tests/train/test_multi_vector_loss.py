"""MaxSim scores that can be trained on: against loops, against autograd of the plain formula, and in a short training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from torch.utils._python_dispatch import TorchDispatchMode

from agentir.embed.maxsim import MultiVectorTexts, maxsim
from agentir.embed.multi_vector import (
    TokenEncoder,
    load_multi_vector,
    load_token_encoder,
    multi_vector_tokenization,
)
from agentir.embed.template import template_for
from agentir.records import Document, SearchQuery
from agentir.train.batches import NEGATIVE, POSITIVE, UNRANKED
from agentir.train.encoding import PartLimits, texts_of_process
from agentir.train.loss import MaskedInfoNCE
from agentir.train.multi_vector_loss import MaxSimScores, encode_tokens, maxsim_scores

TOPICS = ("opera house", "rye bread", "vacuum pump", "polar bear", "steam engine", "tide table")
QUERIES = [
    SearchQuery(query=f"find the {topic}", reasoning=f"The question is about number {place}. " * (place + 1))
    for place, topic in enumerate(TOPICS)
]
DOCUMENTS = [
    Document(docid=str(place), text=f"Pages on the {topic}, part {place}. " * (len(TOPICS) - place))
    for place, topic in enumerate(TOPICS)
]


def padded(lengths: list[int], width: int, side: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors (texts, width, 6) whose padding would win every maximum, and which are none."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.nn.functional.normalize(torch.randn(len(lengths), width, 6, generator=generator), dim=-1)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    mask = mask if side == "right" else mask.flip(1)
    return torch.where(mask[:, :, None], vectors, 9.0), mask


def loop(queries: Any, query_mask: Any, documents: Any, document_mask: Any) -> np.ndarray:
    scores = np.zeros((len(queries), len(documents)))
    for row, column in np.ndindex(scores.shape):
        document = documents[column][document_mask[column]].numpy()
        for token in queries[row][query_mask[row]].numpy():
            scores[row, column] += max((float(token @ other) for other in document), default=-1.0)
    return scores


@pytest.mark.parametrize("max_elements", [1, 60, 300, None])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_texts_equal_a_loop_over_tokens(side: str, max_elements: int | None) -> None:
    queries, query_mask = padded([4, 7, 1, 0], 7, side, seed=1)
    documents, document_mask = padded([2, 9, 0, 5, 9], 11, side, seed=2)
    document_mask[1, 5] = False  # a skip word
    expected = loop(queries, query_mask, documents, document_mask)
    found = maxsim_scores(queries, query_mask, documents, document_mask, max_elements=max_elements)
    assert found.shape == (4, 5) and found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    normalized = maxsim_scores(queries, query_mask, documents, document_mask, normalize=True, max_elements=max_elements)
    np.testing.assert_allclose(normalized, expected / [[4], [7], [1], [1]], atol=1e-5)
    ragged = [
        MultiVectorTexts.join([text[counts].numpy() for text, counts in zip(*side, strict=True)], 6)
        for side in ((queries, query_mask), (documents, document_mask))
    ]
    np.testing.assert_allclose(found, maxsim(*ragged), atol=1e-5)


def test_gradients_equal_those_of_the_plain_formula() -> None:
    queries, query_mask = padded([4, 7, 2], 7, "right", seed=3)
    documents, document_mask = padded([2, 9, 5, 8], 11, "left", seed=4)
    weights = torch.randn(3, 4, generator=torch.Generator().manual_seed(5))
    gradients = []
    for blocked in (True, False):
        leaves = queries.clone().requires_grad_(), documents.clone().requires_grad_()
        if blocked:
            scores = maxsim_scores(leaves[0], query_mask, leaves[1], document_mask, normalize=True, max_elements=100)
        else:
            similarities = leaves[0][:, None, :, None] @ leaves[1][None, :, None].transpose(-1, -2)
            similarities = similarities[:, :, :, 0].masked_fill(~document_mask[None, :, None], float("-inf"))
            best = similarities.amax(dim=-1) * query_mask[:, None]
            scores = best.sum(dim=-1) / query_mask.sum(dim=1, keepdim=True)
        (scores * weights).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for mine, plain in zip(*gradients, strict=True):
        assert mine is not None and plain is not None and float(plain.abs().max()) > 0.1
        torch.testing.assert_close(mine, plain, atol=1e-6, rtol=1e-5)


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation gives."""

    num_elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        for each in output if isinstance(output, tuple | list) else (output,):
            if isinstance(each, torch.Tensor):
                self.num_elements = max(self.num_elements, each.numel())
        return output


def test_memory_stays_within_the_bound_in_both_passes() -> None:
    queries, query_mask = padded([30] * 8, 30, "right", seed=6)
    documents, document_mask = padded([50] * 20, 50, "right", seed=7)
    queries.requires_grad_()
    documents.requires_grad_()
    with Largest() as largest:
        scores = maxsim_scores(queries, query_mask, documents, document_mask, max_elements=12_000)
        scores.sum().backward()
    assert largest.num_elements <= 12_000 < 8 * 30 * 20 * 50


@pytest.fixture(scope="module")
def encoder(tiny_qwen3: Path) -> TokenEncoder:
    model = load_multi_vector(str(tiny_qwen3), "cpu", dim=8, dtype="float32")
    tokenization = multi_vector_tokenization(str(tiny_qwen3), model, template=template_for("reasoning+query"))
    return TokenEncoder("tiny", model, tokenization)


def batch(encoder: TokenEncoder, limits: PartLimits) -> tuple[dict[str, Any], dict[str, Any]]:
    tokenization = encoder.tokenization
    query_ids = [each.ids for each in tokenization.queries(QUERIES)]
    document_ids = tokenization.documents(DOCUMENTS)
    queries, documents = (texts_of_process(ids, tokenization.tokenizer, limits) for ids in (query_ids, document_ids))
    return queries, documents


def relations() -> tuple[torch.Tensor, torch.Tensor]:
    matrix = torch.full((6, 6), NEGATIVE)
    matrix[torch.arange(6), torch.arange(6)] = POSITIVE
    return matrix, torch.full((6, 6), UNRANKED)


def test_batch_scores_are_those_of_the_encoder(encoder: TokenEncoder) -> None:
    scores = MaxSimScores.of(encoder.model)
    found = scores(encoder.model, *batch(encoder, PartLimits(size=4)))
    expected = maxsim(
        encoder.encode_queries(QUERIES).texts, encoder.encode_documents(DOCUMENTS), normalize=encoder.normalize
    )
    np.testing.assert_allclose(found.detach(), expected, atol=1e-5)
    vectors, counts = encode_tokens(encoder.model, batch(encoder, PartLimits(size=4))[1], "document", False)
    assert counts.sum(dim=1).tolist() == [len(ids) for ids in encoder.tokenization.documents(DOCUMENTS)]
    assert vectors.shape[:2] == counts.shape


def test_a_cache_changes_neither_loss_nor_gradients(encoder: TokenEncoder) -> None:
    model, loss = encoder.model, MaskedInfoNCE(0.05)
    losses, gradients = [], []
    for limits in (
        PartLimits(),
        PartLimits(size=2),
        PartLimits(size=2, cached=True),
        PartLimits(tokens=60, cached=True),
    ):
        model.zero_grad()
        scores = MaxSimScores.of(model)(model, *batch(encoder, limits), limits.cached)
        value = loss(scores, *relations())
        value.backward()
        losses.append(value.item())
        gradients.append([each.grad.clone() for each in model.parameters()])
    assert losses[1:] == pytest.approx(losses[:1] * 3, abs=1e-5)
    assert max(float(each.abs().max()) for each in gradients[0]) > 1e-3
    for others in gradients[1:]:
        for mine, plain in zip(others, gradients[0], strict=True):
            torch.testing.assert_close(mine, plain, atol=1e-5, rtol=1e-3)


def test_training_lowers_the_loss_and_the_saved_model_is_the_trained_one(encoder: TokenEncoder, tmp_path: Path) -> None:
    model = encoder.model
    scores, loss, (queries, documents) = MaxSimScores.of(model), MaskedInfoNCE(0.05), batch(encoder, PartLimits(size=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        value = loss(scores(model, queries, documents), *relations())
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.3 * losses[0]
    with torch.no_grad():
        assert model.eval() and scores(model, queries, documents).argmax(dim=1).tolist() == [0, 1, 2, 3, 4, 5]

    template = encoder.tokenization.template
    model.save(str(tmp_path / "model"), create_model_card=False)
    template.save(tmp_path / "model")
    trained = encoder.encode_queries(QUERIES).texts, encoder.encode_documents(DOCUMENTS)
    reloaded = load_token_encoder(str(tmp_path / "model"), device="cpu")
    for mine, again in zip(
        trained, (reloaded.encode_queries(QUERIES).texts, reloaded.encode_documents(DOCUMENTS)), strict=True
    ):
        np.testing.assert_array_equal(mine.ends, again.ends)
        np.testing.assert_allclose(mine.vectors, again.vectors, atol=1e-6)
    plain = MultiVectorEncoder(str(tmp_path / "model"), device="cpu")
    plain_queries = plain.encode_query([template.render(query) for query in QUERIES], convert_to_numpy=True)
    plain_documents = plain.encode_document([each.text for each in DOCUMENTS], convert_to_numpy=True)
    np.testing.assert_allclose(trained[0].vectors, np.concatenate(plain_queries), atol=1e-5)
    np.testing.assert_allclose(trained[1].vectors, np.concatenate(plain_documents), atol=1e-5)
    similarity = plain.similarity(plain_queries, plain_documents).numpy()
    np.testing.assert_allclose(similarity, maxsim(*trained, normalize=reloaded.normalize), atol=1e-5)
