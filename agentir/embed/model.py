"""Encoders over a sentence-transformers model, computed by PyTorch or by OpenVINO.

Both take token ids from `agentir.embed.tokens` in batches of similar length under a token budget, and give unit vectors
in float32. What differs is only the `Forward` that runs the network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from agentir.artifacts import sha256_file, sha256_json
from agentir.embed.encoder import ContextSlot, EncodedQueries, Vectors
from agentir.embed.template import QueryTemplate
from agentir.embed.tokens import Tokenization
from agentir.errors import EncoderError
from agentir.records import Document, SearchQuery

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.model import BaseModel

CPU_BATCH_TOKENS, GPU_BATCH_TOKENS = 1024, 32768
"""Tokens of a batch, padding included. On CPUs small batches stay in the cache and are faster; GPUs want large ones."""


class Forward(Protocol):
    """Runs the network on padded batches."""

    def __call__(self, batches: Iterator[tuple[np.ndarray, np.ndarray]]) -> Iterator[Vectors]:
        """Unit vectors (rows, dim) of each (input ids, attention mask) pair, in order."""
        ...


class ModelEncoder:
    """The `agentir.embed.encoder.Encoder` over a model folder.

    Args:
        name: the model as the user named it.
        tokenization: template, tokenizer and limits.
        forward: runs the network.
        dim: length of the vectors.
        space: identifies the space of the document vectors.
        encodes_documents: False for a query encoder tuned against frozen passages of another model.
        backend: "torch" or "openvino", for the record.
        batch_tokens: tokens of a batch, padding included.
    """

    def __init__(
        self,
        *,
        name: str,
        tokenization: Tokenization,
        forward: Forward,
        dim: int,
        space: str,
        encodes_documents: bool,
        backend: str,
        batch_tokens: int = CPU_BATCH_TOKENS,
    ) -> None:
        self.name = name
        self.tokenization = tokenization
        self.dim = dim
        self.space = space
        self.encodes_documents = encodes_documents
        self.backend = backend
        self.batch_tokens = batch_tokens
        self._forward = forward

    @property
    def context_slot(self) -> ContextSlot | None:
        """What the template shows beside the query."""
        return self.tokenization.template.context_slot

    def describe(self) -> dict[str, Any]:
        """What an index manifest records of the encoder."""
        return {
            "name": self.name,
            "backend": self.backend,
            "dim": self.dim,
            "space": self.space,
            "normalized": True,
            "template_hash": self.tokenization.template.hash,
            "max_query_tokens": self.tokenization.max_query_tokens,
            "max_document_tokens": self.tokenization.max_document_tokens,
        }

    def encode_queries(self, queries: Sequence[SearchQuery]) -> EncodedQueries:
        """Unit vectors (queries, dim), and which queries had to be shortened; see `Encoder`."""
        tokenized = self.tokenization.queries(queries)
        return EncodedQueries(
            vectors=self.encode_ids([each.ids for each in tokenized]),
            shortened=tuple(each.shortened for each in tokenized),
        )

    def encode_documents(self, documents: Sequence[Document]) -> Vectors:
        """Unit vectors (documents, dim); see `Encoder`."""
        if not self.encodes_documents:
            raise EncoderError(
                f"{self.name}: this query encoder was tuned against frozen passages of another model; encode documents "
                "with that model"
            )
        return self.encode_ids(self.tokenization.documents(documents))

    def encode_ids(self, ids: Sequence[list[int]]) -> Vectors:
        """Unit vectors (len(ids), dim) of token id lists, in the order given."""
        vectors = np.zeros((len(ids), self.dim), dtype=np.float32)
        batches = token_batches([len(row) for row in ids], self.batch_tokens)
        pad, side = self.tokenization.tokenizer.pad_token_id, self.tokenization.tokenizer.padding_side
        padded = (pad_batch([ids[row] for row in rows], pad, side) for rows in batches)
        for rows, output in zip(batches, self._forward(padded), strict=True):
            vectors[rows] = output
        if not np.isfinite(vectors).all():
            raise EncoderError(f"{self.name}: the model gave vectors that are not finite")
        return vectors


def token_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Groups rows of similar length, longest first, each group within the budget once padded (or a single row)."""
    batches: list[list[int]] = []
    width = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if not batches or width * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
            width = max(lengths[row], 1)
        batches[-1].append(row)
    return batches


def pad_batch(rows: Sequence[list[int]], pad_id: int | None, side: str) -> tuple[np.ndarray, np.ndarray]:
    """Input ids and attention mask, both int64 (rows, longest row), padded on the tokenizer's side."""
    width = max(len(row) for row in rows)
    ids = np.full((len(rows), width), pad_id or 0, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for index, row in enumerate(rows):
        where = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[index, where] = row
        mask[index, where] = 1
    return ids, mask


class TorchForward:
    """Runs the model with PyTorch where it lies (CPU or GPU), in its own data type."""

    def __init__(self, model: SentenceTransformer) -> None:
        self.model = model

    def __call__(self, batches: Iterator[tuple[np.ndarray, np.ndarray]]) -> Iterator[Vectors]:
        """Unit vectors of each batch."""
        import torch

        for ids, mask in batches:
            with torch.inference_mode():
                features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
                features = {key: value.to(self.model.device) for key, value in features.items()}
                vectors = self.model(features)["sentence_embedding"].float()
                yield torch.nn.functional.normalize(vectors, dim=-1).cpu().numpy()


def vector_space(model: BaseModel, folder: str | Path, template: QueryTemplate) -> str:
    """Identifies the space of the document vectors that a model makes.

    It covers the weights, the tokenizer, the modules after the transformer (pooling, projections) and the document
    template; not the data type, the runtime and the token limits, which change vectors by rounding or only for some
    texts.
    """
    folder = Path(folder)
    weights = sorted(path for path in folder.rglob("*") if path.suffix in (".safetensors", ".bin", ".npy"))
    tokenizer = model.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = _lasting(backend.to_str()) if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    modules: list[tuple[str, dict[str, Any]]] = [
        (type(module).__name__, getattr(module, "get_config_dict", dict)()) for module in list(model)[1:]
    ]
    return sha256_json(
        {
            "weights": {str(path.relative_to(folder)): sha256_file(path) for path in weights},
            "vocabulary": hashlib.sha256(vocabulary.encode()).hexdigest(),
            "modules": [[name, {key: repr(value) for key, value in config.items()}] for name, config in modules],
            "document": [template.document_instruction, template.document],
        }
    )


def _lasting(tokenizer: str) -> str:
    """A fast tokenizer's JSON without how the last call cut and padded, which it keeps."""
    return json.dumps(
        {key: value for key, value in json.loads(tokenizer).items() if key not in ("truncation", "padding")}
    )


ForwardFactory = Callable[["SentenceTransformer"], Forward]
