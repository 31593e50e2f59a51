"""Late-interaction models: sentence-transformers' `MultiVectorEncoder`s, given texts as every other encoder here is.

Texts are rendered and tokenized as for single vectors (`agentir.embed.template`, `agentir.embed.tokens`), so that a long
reasoning is shortened and the query never is; each token that counts becomes a unit vector. Queries are filled up with
further tokens (ColBERT's expansion) only where the model was trained so. Whether its scores are normalised by the length
of the query is stored in the model, as `similarity_fn_name`: "maxsim" or "meanmaxsim", see `agentir.embed.maxsim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from agentir.embed.encoder import ContextSlot
from agentir.embed.load import is_multi_vector, load_model, model_folder, read_encoder_file, template_of, token_limits
from agentir.embed.markers import MarkedTokenization, split_marker
from agentir.embed.maxsim import MultiVectorTexts, TokenVectors
from agentir.embed.model import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, pad_batch, token_batches
from agentir.embed.template import Input, QueryTemplate
from agentir.embed.tokens import Tokenization
from agentir.errors import EncoderError, MissingExtraError
from agentir.records import Document, SearchQuery

if TYPE_CHECKING:
    import torch
    from sentence_transformers import MultiVectorEncoder

Task = Literal["query", "document"]
DIM = 128
"""Length of the token vectors of a new projection, as in ColBERT."""


def load_multi_vector(
    name: str,
    device: str | None = None,
    *,
    dim: int | None = None,
    seed: int = 0,
    skip_words: Sequence[str] = (),
    dtype: str | None = None,
) -> MultiVectorEncoder:
    """A late-interaction model: as it lies in a folder, or made from any encoder with a new projection of its tokens.

    The projection has orthonormal rows, so that token similarities of the encoder are about kept; it must be trained
    before the model is of use. What else follows the transformer (pooling, heads) is dropped.

    Args:
        name: see `agentir.embed.load.model_folder`.
        device: "cpu", "cuda", ...; None for the best that is there.
        dim: length of the token vectors; None for the model's own, 128 for a new projection.
        seed: of a new projection.
        skip_words: tokens of documents that take no part in MaxSim (such as punctuation), for a new projection.
        dtype: "float32", "bfloat16", "float16"; None for the checkpoint's own.

    Raises:
        EncoderError: no such model, it reads other things than text, it has another dimension, or `skip_words` are no
            tokens of it.
    """
    try:
        from sentence_transformers import MultiVectorEncoder
        from sentence_transformers.base.modules import Transformer
    except ModuleNotFoundError:
        raise MissingExtraError("sentence-transformers", "cpu") from None
    folder = model_folder(name)
    if not is_multi_vector(folder):
        return _projected(name, device, dim or DIM, seed, skip_words, dtype)
    try:
        model = MultiVectorEncoder(str(folder), device=device, model_kwargs={"dtype": dtype} if dtype else {})
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EncoderError(f"{name}: not a model that sentence-transformers can load: {error}") from None
    if not isinstance(model[0], Transformer) or model[0].transformer_task != "feature-extraction":
        raise EncoderError(f"{name}: expected one transformer that reads text, found a model of another kind")
    if dim not in (None, model.get_embedding_dimension()):
        raise EncoderError(f"{name}: expected token vectors of {dim} numbers, found {model.get_embedding_dimension()}")
    if skip_words:
        raise EncoderError(f"{name}: skip_words: the model has its own list; expected none, found {list(skip_words)}")
    return model


def _projected(
    name: str, device: str | None, dim: int, seed: int, skip_words: Sequence[str], dtype: str | None
) -> MultiVectorEncoder:
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    base = load_model(name, device=device, dtype=dtype)
    transformer = base[0]
    if not isinstance(transformer, Transformer):
        raise EncoderError(
            f"{name}: expected a transformer, which has token vectors, found {type(transformer).__name__}"
        )
    vocabulary = base.tokenizer.get_vocab()
    if unknown := [word for word in skip_words if word not in vocabulary]:
        raise EncoderError(f"{name}: skip_words: expected tokens of its vocabulary, found {unknown}")
    hidden = transformer.get_embedding_dimension()
    weight = torch.empty(dim, hidden)
    torch.nn.init.orthogonal_(weight, generator=torch.Generator().manual_seed(seed))
    projection = Dense(
        in_features=hidden,
        out_features=dim,
        bias=False,
        activation_function=torch.nn.Identity(),
        init_weight=weight.to(next(transformer.parameters()).dtype),
        module_input_name="token_embeddings",
    )
    model = MultiVectorEncoder(
        modules=[
            transformer,
            projection,
            MultiVectorMask(skiplist_words=list(skip_words)),
            Normalize(module_input_name="token_embeddings"),
        ],
        device=str(base.device),
        prompts={task: text for task, text in (base.prompts or {}).items() if text},
        similarity_fn_name="meanmaxsim",
    )
    return model.eval()


def is_normalized(model: MultiVectorEncoder) -> bool:
    """Whether the model's scores are divided by the number of the query's tokens."""
    return model.similarity_fn_name == "meanmaxsim"


@dataclass(frozen=True, slots=True)
class QueryExpansion:
    """ColBERT's query expansion: short queries are filled up with a token whose vectors count."""

    length: int
    token_id: int
    attend: bool

    @classmethod
    def of(cls, model: MultiVectorEncoder) -> QueryExpansion | None:
        """What a model was trained with, None for most.

        Raises:
            EncoderError: its tokenizer pads on the left, where expansion has no well-defined place.
        """
        stored: dict[str, Any] | None = getattr(model[0], "query_expansion", None)
        if stored is None:
            return None
        tokenizer = model.tokenizer
        if tokenizer.padding_side == "left":
            raise EncoderError(
                "query expansion: expected a tokenizer that pads on the right, found one of the left side"
            )
        token_id = tokenizer.mask_token_id if tokenizer.mask_token_id is not None else tokenizer.eos_token_id
        if stored.get("token") is not None:
            token_id = tokenizer.convert_tokens_to_ids(stored["token"])
        return cls(length=stored["length"], token_id=token_id, attend=bool(stored.get("attend")))

    def features(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """The model's inputs for right-padded queries (queries, tokens)."""
        import torch

        missing = (0, max(self.length - ids.shape[1], 0))
        ids, mask = torch.nn.functional.pad(ids, missing), torch.nn.functional.pad(mask, missing)
        positions = (mask == 0) & (torch.arange(ids.shape[1], device=ids.device) < self.length)
        return {
            "input_ids": ids.masked_fill(positions, self.token_id),
            "attention_mask": mask.masked_fill(positions, 1) if self.attend else mask,
            "query_expansion_positions": positions,
        }


def encode_padded(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, task: Task, expansion: QueryExpansion | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit token vectors (texts, tokens, dim) in float32, and which of them count, bool (texts, tokens).

    Args:
        model: a `MultiVectorEncoder`, or its distributed wrapper.
        ids: token ids, int64 (texts, tokens).
        mask: 1 where they are no padding, int64 (texts, tokens).
        task: documents lose the tokens of the model's skip list, if it has one.
        expansion: see `QueryExpansion.of`.
    """
    import torch

    features = {"input_ids": ids, "attention_mask": mask}
    if task == "query" and expansion is not None:
        features = expansion.features(ids, mask)
    output = model(features, task=task)
    return torch.nn.functional.normalize(output["token_embeddings"].float(), dim=-1), output["attention_mask"].bool()


def multi_vector_tokenization(
    name: str,
    model: MultiVectorEncoder,
    *,
    template: QueryTemplate | None = None,
    input: Input | None = None,
    max_tokens: int | None = None,
    document_max_tokens: int | None = None,
) -> Tokenization:
    """How a model is given texts.

    Args:
        name: the model as the user named it.
        model: the model.
        template: how texts are rendered, instead of all that the model itself says of it.
        input: what the query side is given; None for what the template shows.
        max_tokens: limit of a rendered query; None for what the checkpoint was trained with, else the model's own.
        document_max_tokens: limit of a document; None likewise.

    Raises:
        EncoderError: a limit is beyond what the model can read.
    """
    # Both read only what the two kinds of models share.
    template = template or template_of(name, model, input)
    transformer: Any = model[0]
    if not read_encoder_file(model_folder(name)):
        max_tokens = max_tokens or transformer.query_length
        document_max_tokens = document_max_tokens or transformer.document_length
    limits = token_limits(name, model, max_tokens, document_max_tokens)
    expansion = transformer.query_expansion
    if expansion is not None and expansion["strategy"] == "fixed":
        width = expansion["length"]
        if (max_tokens or 0) > width:
            raise EncoderError(
                f"{name}: max_query_tokens: expected at most {width}, the width of all its queries, found {max_tokens}"
            )
        limits = min(limits[0], width), limits[1]
    prompts = (template.instruction, template.document_instruction)
    marked = any(split_marker(model.tokenizer, prompt)[0] for prompt in prompts)
    return (MarkedTokenization if marked else Tokenization)(model.tokenizer, template, *limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiVectorQueries:
    """The token vectors of queries, and of each query whether its context lost its oldest end."""

    texts: MultiVectorTexts
    shortened: tuple[bool, ...]


class TokenEncoder:
    """Turns queries and documents into token vectors.

    Args:
        name: the model as the user named it.
        model: the model; it may be one that is being trained.
        tokenization: template, tokenizer and limits, see `multi_vector_tokenization`.
        dtype: of the vectors; float16 takes half the room and moves scores by about 1e-4.
    """

    def __init__(
        self,
        name: str,
        model: MultiVectorEncoder,
        tokenization: Tokenization,
        *,
        dtype: Literal["float32", "float16"] = "float32",
    ) -> None:
        self.name = name
        self.model = model
        self.tokenization = tokenization
        self.dtype = dtype
        self.dim = int(model.get_embedding_dimension() or 0)
        self.normalize = is_normalized(model)
        self._expansion = QueryExpansion.of(model)
        self._batch_tokens = CPU_BATCH_TOKENS if model.device.type == "cpu" else GPU_BATCH_TOKENS

    @property
    def context_slot(self) -> ContextSlot | None:
        """What the template shows beside the query."""
        return self.tokenization.template.context_slot

    def describe(self) -> dict[str, Any]:
        """What a report says of the model (JSON values)."""
        return {
            "name": self.name,
            "kind": "multi-vector",
            "dim": self.dim,
            "similarity": self.model.similarity_fn_name,
            "template_hash": self.tokenization.template.hash,
            "max_query_tokens": self.tokenization.max_query_tokens,
            "max_document_tokens": self.tokenization.max_document_tokens,
        }

    def encode_queries(self, queries: Sequence[SearchQuery]) -> MultiVectorQueries:
        """The token vectors of queries, in the order given.

        Raises:
            QueryTooLongError: a query alone exceeds the token limit.
        """
        tokenized = self.tokenization.queries(queries)
        return MultiVectorQueries(
            texts=self.encode_ids([each.ids for each in tokenized], "query"),
            shortened=tuple(each.shortened for each in tokenized),
        )

    def encode_documents(self, documents: Sequence[Document]) -> MultiVectorTexts:
        """The token vectors of documents, in the order given; documents over the limit are cut at their end."""
        return self.encode_ids(self.tokenization.documents(documents), "document")

    def encode_ids(self, ids: Sequence[list[int]], task: Task) -> MultiVectorTexts:
        """The token vectors of token id lists, in the order given."""
        import torch

        tokenizer = self.tokenization.tokenizer
        texts: list[TokenVectors] = [np.zeros((0, self.dim), dtype=self.dtype)] * len(ids)
        was_training = self.model.training
        self.model.eval()
        for rows in token_batches([len(each) for each in ids], self._batch_tokens):
            batch = pad_batch([ids[row] for row in rows], tokenizer.pad_token_id, tokenizer.padding_side)
            with torch.inference_mode():
                token_ids, mask = (torch.from_numpy(each).to(self.model.device) for each in batch)
                vectors, counts = encode_padded(self.model, token_ids, mask, task, self._expansion)
                if not bool(vectors[counts].isfinite().all()):
                    raise EncoderError(f"{self.name}: the model gave vectors that are not finite")
                for row, text, counted in zip(rows, vectors.cpu().numpy(), counts.cpu().numpy(), strict=True):
                    texts[row] = text[counted].astype(self.dtype)
        self.model.train(was_training)
        return MultiVectorTexts.join(texts, self.dim)


def load_token_encoder(
    name: str,
    *,
    max_tokens: int | None = None,
    document_max_tokens: int | None = None,
    input: Input | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> TokenEncoder:
    """The token encoder of a trained late-interaction model.

    Args:
        name: a model folder (such as a checkpoint of `agentir train`) or hub id.
        max_tokens: limit of a rendered query; None for what the checkpoint was trained with, else the model's own.
        document_max_tokens: limit of a document; None likewise.
        input: what the query side is given; None for what the template of the checkpoint shows.
        device: "cpu", "cuda", ...; None for the best that is there.
        dtype: data type of the weights.

    Raises:
        EncoderError: no such model, it is not of this kind, or a limit is beyond what it can read.
    """
    if not is_multi_vector(model_folder(name)):
        raise EncoderError(
            f"{name}: expected a multi-vector (late-interaction) model, found one of another kind; train one of it first"
        )
    model = load_multi_vector(name, device, dtype=dtype)
    tokenization = multi_vector_tokenization(
        name, model, input=input, max_tokens=max_tokens, document_max_tokens=document_max_tokens
    )
    return TokenEncoder(name, model, tokenization)
