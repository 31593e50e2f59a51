"""What every check of a model reads beside the data: a few texts of its own, and their vectors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from sentence_transformers import SentenceTransformer

from agentir.embed.encoder import Vectors
from agentir.embed.model import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, ModelEncoder, TorchForward
from agentir.embed.tokens import Tokenization
from agentir.records import Document, PastSearch, SearchQuery

ALIKE = 0.9999
"""Cosine above which vectors count as the same; last-token pooling that reads padding was seen to give 0.92 to 0.98."""
ALIKE_ROUNDED = 0.99
"""Likewise where weights or the computation have 16 bits; bfloat16 weights of small encoders were seen to give 0.997."""
_FACT = "Otto von Guericke showed the force of the vacuum in Magdeburg with two hemispheres and sixteen horses. "


def probe(query: str, context: str) -> SearchQuery:
    """A search whose context is in every slot that a template may show."""
    return SearchQuery(query=query, reasoning=context, question=context, history=(PastSearch(query=context),))


QUERIES = (probe("Lima", "Where is it?"), probe("Oslo", _FACT * 3))
DOCUMENTS = (Document(docid="short", text="Lima"), Document(docid="long", text=_FACT * 3))


def vectors_of(model: SentenceTransformer, tokenization: Tokenization, ids: Sequence[list[int]]) -> Vectors:
    """Unit vectors (texts, dim) of the model as it stands in memory.

    Raises:
        EncoderError: they are not finite.
    """
    encoder = ModelEncoder(
        name="the model in memory",
        tokenization=tokenization,
        forward=TorchForward(model),
        dim=int(model.get_embedding_dimension() or 0),
        space="",
        encodes_documents=True,
        backend="torch",
        batch_tokens=CPU_BATCH_TOKENS if model.device.type == "cpu" else GPU_BATCH_TOKENS,
    )
    with evaluating(model):
        return encoder.encode_ids(ids)


def is_float32(model: SentenceTransformer) -> bool:
    """Whether all of the model's parameters are."""
    return all(parameter.dtype == torch.float32 for parameter in model.parameters())


@contextlib.contextmanager
def evaluating(model: SentenceTransformer) -> Iterator[None]:
    """Without dropout."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
