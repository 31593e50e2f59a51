"""The contrastive loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from torch.utils.checkpoint import checkpoint

from agentir.train.batches import MASKED, POSITIVE


class MaskedInfoNCE(nn.Module):
    r"""InfoNCE over all documents of a batch, with a mask that keeps false negatives out.

    For query :math:`i` with positive :math:`p_i` and the documents :math:`D_i` that are not masked for it,

    .. math:: L = -\frac{1}{|B'|} \sum_{i \in B'} \log
              \frac{\exp(q_i \cdot p_i / T)}{\sum_{d \in D_i} \exp(q_i \cdot d / T)}

    where all vectors have unit length and :math:`B'` are the rows with at least one negative: a softmax over a single
    document is 0 whatever the model does, so such rows would only dilute the mean. They are counted in
    `num_without_negative`.

    Reference values: queries (1,0), (.6,.8), documents (.8,.6), (0,1), (.6,.8), (1,0), positives the first and second:
    1.344038 at T = 1, 4.201183 at T = .05, 20.009075 at T = .01.

    Args:
        model: the embedder; encodes the queries, and the documents unless their vectors come with the batch (frozen).
        temperature: T; AgentIR uses 0.01 (texttron/AgentIR, training/train.sh).
        max_forward_tokens: tokens, padding included, of one forward pass whose activations are kept. Wider batches are
            encoded in parts, all but the last once more in the backward pass: the same loss and gradients in less memory.
            None: no limit. One text is always encoded whole.

    References: van den Oord et al., Representation Learning with Contrastive Predictive Coding, 2018; the parts: Gao et
    al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021.
    """

    def __init__(self, model: SentenceTransformer, temperature: float, max_forward_tokens: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.max_forward_tokens = max_forward_tokens
        self.num_without_negative = 0

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of a batch.

        Args:
            sentence_features: queries, then documents (token ids, or `sentence_embedding` where they are frozen).
            labels: relation matrix (queries, documents), see `agentir.train.batches.relations`.
        """
        queries, documents = sentence_features
        frozen = documents.get("sentence_embedding")
        document_vectors = _unit(frozen if frozen is not None else self.encode(documents))
        return self.from_vectors(_unit(self.encode(queries)), document_vectors, labels)

    def encode(self, features: dict[str, Any]) -> torch.Tensor:
        """Vectors (texts, dim) of tokenized texts, in parts where the limit asks for it."""
        ids, mask = features["input_ids"], features["attention_mask"]
        size = len(ids) if self.max_forward_tokens is None else max(self.max_forward_tokens // ids.shape[1], 1)
        parts = list(zip(ids.split(size), mask.split(size), strict=True))
        vectors = [checkpoint(self._encode_part, *part, use_reentrant=False) for part in parts[:-1]]
        return torch.cat([*vectors, self._encode_part(*parts[-1])])

    def _encode_part(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self.model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]
        return vectors

    def from_vectors(self, queries: torch.Tensor, documents: torch.Tensor, relations: torch.Tensor) -> torch.Tensor:
        """The mean loss of unit vectors (queries, dim) and (documents, dim)."""
        scores = (queries.float() @ documents.float().T) / self.temperature
        scores = scores.masked_fill(relations == MASKED, float("-inf"))
        losses = nn.functional.cross_entropy(scores, (relations == POSITIVE).int().argmax(dim=1), reduction="none")
        counted = (relations != MASKED).sum(dim=1) > 1
        self.num_without_negative += int((~counted).sum())
        return losses[counted].sum() / max(int(counted.sum()), 1)

    def get_config_dict(self) -> dict[str, Any]:
        """What the model card says of the loss."""
        return {"temperature": self.temperature, "max_forward_tokens": self.max_forward_tokens}


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    return nn.functional.normalize(vectors.float(), dim=-1)
