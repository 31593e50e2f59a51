"""What every encoder offers, whatever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from agentir.errors import EncoderError
from agentir.records import Document, SearchQuery

Vectors = npt.NDArray[np.float32]
ContextSlot = Literal["reasoning", "question", "prior_queries", "prior_reasonings", "history"]
HISTORY_SLOTS: tuple[ContextSlot, ...] = ("prior_queries", "prior_reasonings", "history")
"""Those that need `SearchQuery.history`, which is known of recorded episodes only."""


class QueryTooLongError(EncoderError):
    """A query alone, without any context, exceeds the encoder's token limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedQueries:
    """Unit vectors of queries, shape (queries, dim), and of each query whether its context lost its oldest end."""

    vectors: Vectors
    shortened: tuple[bool, ...]


class Encoder(Protocol):
    """Turns queries and documents into unit vectors of one space.

    `space` identifies the vector space of the documents (weights, pooling, normalisation and document template of the
    model that encodes documents). Queries may only be compared with documents of the same space: a query encoder that
    was tuned against frozen passages keeps the space of the model that encoded them.

    An encoder need not be fit for several threads at once; those who use it take turns.
    """

    @property
    def name(self) -> str:
        """The model as the user named it."""
        ...

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        ...

    @property
    def space(self) -> str:
        """Hex digest that identifies the space of the document vectors."""
        ...

    @property
    def encodes_documents(self) -> bool:
        """False for a query encoder tuned against another model's frozen passages: its document vectors fit nothing."""
        ...

    @property
    def context_slot(self) -> ContextSlot | None:
        """What it reads of a `SearchQuery` beside the query."""
        ...

    def describe(self) -> dict[str, Any]:
        """What an index manifest records of it (JSON values).

        `name`, `dim` and `space` are needed. If `backend` and `max_document_tokens` are there, document vectors made under
        other values count as others.
        """
        ...

    def encode_queries(self, queries: Sequence[SearchQuery]) -> EncodedQueries:
        """The vectors of queries, in the order given.

        Raises:
            QueryTooLongError: a query alone exceeds the token limit.
        """
        ...

    def encode_documents(self, documents: Sequence[Document]) -> Vectors:
        """Unit vectors, shape (documents, dim), in the order given; documents over the limit are cut at their end."""
        ...


def check_space(encoder: Encoder, index_encoder: dict[str, Any], where: str) -> None:
    """Refuses an encoder whose queries do not live in the space of an index's vectors.

    Args:
        encoder: the query encoder.
        index_encoder: what `describe` gave for the encoder of the documents, from the index manifest.
        where: the index, for the error text.

    Raises:
        EncoderError: dimensions or spaces differ; the text names both models.
    """
    if encoder.dim != index_encoder["dim"]:
        raise EncoderError(
            f"{where}: dimensions differ: index {index_encoder['name']}/{index_encoder['dim']}, "
            f"query encoder {encoder.name}/{encoder.dim}"
        )
    if encoder.space != index_encoder["space"]:
        raise EncoderError(
            f"{where}: the vectors were made by {index_encoder['name']} (space {index_encoder['space'][:12]}), the "
            f"query encoder {encoder.name} belongs to space {encoder.space[:12]}; use the model that built the index, or one "
            "trained against its vectors, or build the index anew"
        )
