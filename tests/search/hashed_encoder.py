"""A small deterministic encoder: each word has a fixed random direction, a text is the sum of its words."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import numpy as np

from agentir.embed.encoder import EncodedQueries, Vectors
from agentir.records import Document, SearchQuery


class HashedEncoder:
    """`described` is what it says of itself beside name, dim and space; `num_encoded` counts documents."""

    context_slot: Literal["reasoning"] = "reasoning"

    def __init__(self, name: str = "hashed", dim: int = 16, encodes_documents: bool = True, **described: Any) -> None:
        self.name = name
        self.dim = dim
        self.space = hashlib.sha256(f"hashed/{dim}".encode()).hexdigest()
        self.encodes_documents = encodes_documents
        self.described = described
        self.num_encoded = 0

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "dim": self.dim, "space": self.space, **self.described}

    def encode_queries(self, queries: Sequence[SearchQuery]) -> EncodedQueries:
        vectors = np.stack([self._encode(f"{query.reasoning} {query.query}") for query in queries])
        return EncodedQueries(vectors=vectors, shortened=(False,) * len(queries))

    def encode_documents(self, documents: Sequence[Document]) -> Vectors:
        self.num_encoded += len(documents)
        return np.stack([self._encode(f"{document.title} {document.text}") for document in documents])

    def _encode(self, text: str) -> Vectors:
        total = np.zeros(self.dim)
        for word in text.lower().split():
            total += direction(word, self.dim)
        return (total / (np.linalg.norm(total) or 1.0)).astype(np.float32)


@cache
def direction(word: str, dim: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
    return np.random.default_rng(seed).standard_normal(dim)
