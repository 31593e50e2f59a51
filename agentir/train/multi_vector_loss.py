r"""The score matrix of a batch under late interaction, differentiable and in bounded memory.

`MaxSimScores` gives what `agentir.train.loss.MaskedInfoNCE` takes: of :math:`q` with token vectors :math:`q_1, ..., q_m` and
:math:`d` with :math:`d_1, ..., d_n`, all of unit length,

.. math:: s = \sum_i \max_j q_i \cdot d_j, \quad \text{normalised:} \quad s / m.

Normalised scores lie in [-1, 1] like those of single vectors, so the same temperatures fit; sums grow with the length of the
query, and a temperature of 0.01 would leave a long query's softmax nothing to learn from. The batch is encoded as for single
vectors: in parts, with a cache, over several processes (`agentir.train.encoding`).

References: Khattab and Zaharia, ColBERT, 2020; the cache: Gao et al., Scaling Deep Contrastive Learning Batch Size under
Memory Limited Setup, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from agentir.embed.model import token_batches
from agentir.embed.multi_vector import QueryExpansion, Task, encode_padded, is_normalized
from agentir.train.encoding import gather

if TYPE_CHECKING:
    from sentence_transformers import MultiVectorEncoder

CPU_ELEMENTS, GPU_ELEMENTS = 1 << 22, 1 << 26
"""Token similarities that are held at once, and as many gradients in the backward pass: 16 MiB, which stay near the
processor, and 256 MiB."""


@dataclass(frozen=True, slots=True)
class MaxSimScores:
    """Scores a batch's queries and documents.

    Attributes:
        normalize: divide by the number of the query's tokens.
        expansion: how the model fills short queries up, if it does.
    """

    normalize: bool
    expansion: QueryExpansion | None = None

    @classmethod
    def of(cls, model: MultiVectorEncoder) -> MaxSimScores:
        """The scores that a model gives when it is used."""
        return cls(normalize=is_normalized(model), expansion=QueryExpansion.of(model))

    def __call__(
        self, model: nn.Module, queries: dict[str, Any], documents: dict[str, Any], cached: bool = False
    ) -> torch.Tensor:
        """The scores, float32 (queries, documents), of a batch.

        Args:
            model: a `MultiVectorEncoder`, or its distributed wrapper.
            queries: see `agentir.train.encoding.texts_of_process`.
            documents: likewise.
            cached: keep no activations but those of the last part.
        """
        query_vectors = encode_tokens(model, queries, "query", cached, self.expansion)
        document_vectors = encode_tokens(model, documents, "document", cached)
        return maxsim_scores(*query_vectors, *document_vectors, normalize=self.normalize)


def encode_tokens(
    model: nn.Module, texts: dict[str, Any], task: Task, cached: bool, expansion: QueryExpansion | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit token vectors (texts, tokens, dim) of all texts of a batch, in its order, and which count, (texts, tokens).

    Gradients flow into this process's own texts.

    Args:
        model: a `MultiVectorEncoder`, or its distributed wrapper.
        texts: see `agentir.train.encoding.texts_of_process`.
        task: what the texts are.
        cached: keep no activations but those of the last part.
        expansion: how the model fills short queries up, if it does.
    """
    parts = [(model, part["input_ids"], part["attention_mask"], task, expansion) for part in texts["parts"]]
    num_twice = len(parts) - 1 if cached else 0
    encoded = [checkpoint(encode_padded, *part, use_reentrant=False) for part in parts[:num_twice]]
    encoded += [encode_padded(*part) for part in parts[num_twice:]]
    sizes, num_repeated = texts["sizes"], texts["num_repeated"]
    repeated, encoded = encoded[:num_repeated], encoded[num_repeated:]
    width = _widest(max(vectors.shape[1] for vectors, _ in encoded), encoded[0][0].device, len(sizes))
    own = torch.cat([nn.functional.pad(vectors, (0, 0, 0, width - vectors.shape[1])) for vectors, _ in encoded])
    counts = torch.cat([nn.functional.pad(mask, (0, width - mask.shape[1])) for _, mask in encoded])
    for vectors, _ in repeated:  # they must take part in the backward pass too
        own = own + 0 * vectors.sum()
    inverse = torch.empty_like(texts["order"])
    inverse[texts["order"]] = torch.arange(len(inverse), device=inverse.device)
    return gather(own, sizes)[inverse], gather(counts, sizes)[inverse]


def _widest(width: int, device: torch.device, num_processes: int) -> int:
    """The largest width of any process, to which all must be padded before they are exchanged."""
    if num_processes == 1:
        return width
    widths = torch.tensor(width, device=device)
    torch.distributed.all_reduce(widths, op=torch.distributed.ReduceOp.MAX)
    return int(widths)


def maxsim_scores(
    queries: torch.Tensor,
    query_mask: torch.Tensor,
    documents: torch.Tensor,
    document_mask: torch.Tensor,
    *,
    normalize: bool = False,
    max_elements: int | None = None,
) -> torch.Tensor:
    """MaxSim of all queries with all documents, float32 (queries, documents), computed in float32.

    Texts of similar length are compared together, without the tokens that count in none of them. Of a block of
    similarities only the places of the maxima are kept for the backward pass.

    Args:
        queries: unit token vectors, (queries, tokens, dim).
        query_mask: which of them count, bool (queries, tokens).
        documents: unit token vectors, (documents, tokens, dim).
        document_mask: which of them count, bool (documents, tokens).
        normalize: divide by the number of the query's tokens.
        max_elements: token similarities that are held at once, default by device; one query and one document are always
            compared whole.
    """
    max_elements = max_elements or (CPU_ELEMENTS if queries.device.type == "cpu" else GPU_ELEMENTS)
    query_lengths, document_lengths = (mask.sum(dim=1).tolist() for mask in (query_mask, document_mask))
    query_groups = token_batches(query_lengths, max_elements // max(*document_lengths, 1))
    rows = []
    for group in query_groups:
        at = query_mask[group].any(dim=0)
        block, counts = queries[group][:, at], query_mask[group][:, at]
        document_groups = token_batches(document_lengths, max_elements // max(counts.numel(), 1))
        scores = [_block_scores(block, counts, documents, document_mask, each) for each in document_groups]
        rows.append(torch.cat(scores, dim=1)[:, _inverse(document_groups)])
    found = torch.cat(rows)[_inverse(query_groups)]
    return found / query_mask.sum(dim=1, keepdim=True).clamp(min=1) if normalize else found


def _block_scores(
    queries: torch.Tensor,
    query_mask: torch.Tensor,
    documents: torch.Tensor,
    document_mask: torch.Tensor,
    group: list[int],
) -> torch.Tensor:
    """Sums of the best similarities of some queries (queries, tokens, dim) with a group of the documents."""
    at = document_mask[group].any(dim=0)
    if not bool(at.any()):
        at[0] = True  # the maximum over no token is not defined; over one that is masked it is -1
    block, counts = documents[group][:, at], document_mask[group][:, at]
    with torch.autocast(queries.device.type, enabled=False):
        similarities = torch.einsum("qsd,ntd->qsnt", queries.float(), block.float())
    best = similarities.masked_fill_(~counts, -1).max(dim=3).values  # the lowest that unit vectors can reach
    return (best * query_mask[:, :, None]).sum(dim=1)


def _inverse(groups: list[list[int]]) -> list[int]:
    """Where each place went when the groups were put one after the other."""
    inverse = [0] * sum(len(group) for group in groups)
    for now, before in enumerate(place for group in groups for place in group):
        inverse[before] = now
    return inverse
