"""Checks before the first step, of what otherwise goes wrong without a word and shows in the quality only.

    print(*preflight(model, tokenization, queries, documents).lines(), sep="\\n")

Beside the texts of the data every check reads a few of its own: a short and a long one, and some beyond the limits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from agentir.embed.model import TorchForward, pad_batch
from agentir.embed.template import TEMPLATE_FILE, QueryTemplate
from agentir.embed.tokens import Tokenization
from agentir.errors import EncoderError
from agentir.records import Document, SearchQuery
from agentir.train.adapters import trainable
from agentir.train.gradients import check_trainable, freeze_unused, named
from agentir.train.probes import ALIKE, ALIKE_ROUNDED, DOCUMENTS, QUERIES, evaluating, is_float32, probe, vectors_of

MAX_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What the checks before the first step found.

    Attributes:
        padding_side: of the tokenizer.
        final_token: what the tokenizer puts at the end of every text, with its id; None for nothing.
        instruction: what every query begins with.
        template_hash: of the template that the checkpoint will carry.
        num_trainable: parameters that are trained.
        num_parameters: all parameters.
        unused: names of the parameters that no text gives a gradient, and that are therefore left as they are.
        batch_cosine: smallest cosine of a text's vector in a batch with that of the text alone.
        text_cosine: smallest cosine of the vectors of two texts.
        warnings: what may be meant so.
    """

    padding_side: str
    final_token: str | None
    instruction: str
    template_hash: str
    num_trainable: int
    num_parameters: int
    unused: tuple[str, ...]
    batch_cosine: float
    text_cosine: float
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """The report for people."""
        share = self.num_trainable / self.num_parameters
        found = [
            f"pads on the {self.padding_side}, texts end with {self.final_token or 'no special token'}",
            f"template {self.template_hash[:12]}, {describe_instruction(self.instruction)}",
            f"{self.num_trainable:,} of {self.num_parameters:,} parameters are trained ({share:.2%})",
        ]
        if self.unused:
            found.append(
                f"{len(self.unused)} tensors without influence on any vector stay as they are: {named(self.unused)}"
            )
        found.append(
            f"vectors alone and in a batch: cosine at least {self.batch_cosine:.6f}; of two texts: from {self.text_cosine:.4f}"
        )
        return [f"preflight: {line}" for line in (*found, *(f"warning: {warning}" for warning in self.warnings))]


def preflight(
    model: SentenceTransformer,
    tokenization: Tokenization,
    queries: Sequence[SearchQuery] = (),
    documents: Sequence[Document] = (),
) -> Preflight:
    """All checks before the first step, once adapters and gradient checkpointing are set up.

    Parameters that no text gives a gradient are frozen, see `freeze_unused`; nothing else of the model is changed.

    Args:
        model: the model that is about to be trained.
        tokenization: template, tokenizer and limits.
        queries: some of the data, a few dozen.
        documents: likewise.

    Raises:
        EncoderError: tokenizer, template or vectors are not what training needs.
        ConfigError: nothing, or next to nothing, would be trained.
    """
    final_token = check_tokenizer(model, tokenization, queries, documents)
    warnings = check_rendering(tokenization, queries, documents)
    check_trainable(model)
    unused = freeze_unused(model, tokenization)
    num_trainable, num_parameters = trainable(model)
    text_cosine = check_vectors(model, tokenization, queries, documents)
    return Preflight(
        padding_side=tokenization.tokenizer.padding_side,
        final_token=final_token,
        instruction=tokenization.template.instruction,
        template_hash=tokenization.template.hash,
        num_trainable=num_trainable,
        num_parameters=num_parameters,
        unused=tuple(unused),
        batch_cosine=check_batching(model, tokenization),
        text_cosine=text_cosine,
        warnings=tuple(warnings),
    )


def describe_instruction(text: str) -> str:
    """An instruction with its escapes, and in words how its lines are separated."""
    if not text:
        return "no instruction"
    kinds = [("\\n", "a backslash and an n"), ("\n", "a line feed")]
    found = " and ".join(words for separator, words in kinds if separator in text)
    return f"instruction {text!r}" + (f", separated by {found}" if found else "")


def final_token_of(tokenization: Tokenization) -> int | None:
    """The id of what the tokenizer puts at the end of every text, None for nothing."""
    (whole,) = tokenization.ids(["Lima"])
    plain: list[int] = tokenization.tokenizer("Lima", add_special_tokens=False)["input_ids"]
    return whole[-1] if whole[-1] != plain[-1] else None


def check_tokenizer(
    model: SentenceTransformer,
    tokenization: Tokenization,
    queries: Sequence[SearchQuery] = (),
    documents: Sequence[Document] = (),
) -> str | None:
    """Every text is within its limit and ends with the tokenizer's final token, once, also where it had to be cut.

    Returns:
        the final token and its id, None where the tokenizer has none and the model does not need one.

    Raises:
        EncoderError: it is not so, or a model that pools the last token has no final token.
    """
    tokenizer, template = tokenization.tokenizer, tokenization.template
    final = final_token_of(tokenization)
    if final is None:
        if tokenizer.padding_side == "left" or _pools_last_token(model):
            raise EncoderError(
                "tokenizer: expected a special token at the end of every text, whose state is the vector, found none; take "
                "the tokenizer of the embedding model (that of Qwen3-Embedding adds <|endoftext|>), or give it a post-processor"
            )
        return None
    name = tokenizer.convert_ids_to_tokens(final)
    if name == "<|im_end|>":
        raise EncoderError(
            f"tokenizer: expected <|endoftext|> at the end of every text, found <|im_end|> ({final}), which ends a turn of a "
            "chat; take the tokenizer of the embedding model and append nothing to it"
        )
    beyond_query = "Lima " * (tokenization.max_query_tokens + 1)
    beyond_document = Document(docid="cut", text="Lima " * (tokenization.max_document_tokens + 1))
    asked = [*QUERIES, *queries] + ([probe("Lima", beyond_query)] if template.context_slot is not None else [])
    read = [*DOCUMENTS, *documents, beyond_document]
    query_ids = [each.ids for each in tokenization.queries(asked)]
    document_ids = tokenization.documents(read)
    texts = [query.query for query in asked] + [document.text for document in read]
    limits = [tokenization.max_query_tokens] * len(asked) + [tokenization.max_document_tokens] * len(read)
    for text, ids, limit in zip(texts, query_ids + document_ids, limits, strict=True):
        if len(ids) > limit or ids[-1] != final or ids.count(final) != 1:
            raise EncoderError(
                f"tokenizer: expected at most {limit} tokens that end with {name} ({final}), once; found {len(ids)}, of which "
                f"{ids.count(final)} are it and the last is {tokenizer.convert_ids_to_tokens(ids[-1])} ({ids[-1]}), in "
                f"{text[:MAX_SHOWN]!r}; use the tokenizer as the model's authors published it"
            )
    cut, whole = document_ids[-1], tokenization.ids([template.render_document(beyond_document)])[0]
    if cut[:-1] != whole[: len(cut) - 1]:
        raise EncoderError(
            "tokenizer: expected that a long document loses its end, found that it loses its beginning; set truncation_side "
            "to right"
        )
    return f"{name} ({final})"


def check_rendering(
    tokenization: Tokenization, queries: Sequence[SearchQuery] = (), documents: Sequence[Document] = ()
) -> list[str]:
    """Queries are read with their instruction, documents without, and a checkpoint carries the same bytes.

    Returns:
        warnings.

    Raises:
        EncoderError: it is not so.
    """
    template, final = tokenization.template, final_token_of(tokenization)
    asked, read = [*QUERIES, *queries], [*DOCUMENTS, *documents]
    with tempfile.TemporaryDirectory() as folder:
        template.save(folder)
        check_carried(Path(folder), template, asked, read)
    if not template.instruction:
        return []
    opening = tokenization.ids([template.instruction])[0]
    opening = opening[: -1 if final is None else -2]  # the last token may merge with what follows
    for query, tokenized in zip(asked, tokenization.queries(asked), strict=True):
        if tokenized.ids[: len(opening)] != opening:
            raise EncoderError(
                f"template: expected {describe_instruction(template.instruction)} before the query "
                f"{query.query[:MAX_SHOWN]!r}, found {tokenization.tokenizer.decode(tokenized.ids[: len(opening)])!r}"
            )
    if not template.document_instruction.startswith(template.instruction):
        return []
    if template.instruction.startswith("Instruct:"):
        raise EncoderError(
            f"template: expected the instruction before queries only, found {template.document_instruction!r} before "
            "documents; remove the prompt for documents from the model's config_sentence_transformers.json"
        )
    return [f"documents are read with the instruction of queries, {template.document_instruction!r}, as the model says"]


def check_carried(
    folder: Path, template: QueryTemplate, queries: Sequence[SearchQuery], documents: Sequence[Document]
) -> None:
    """The template in a folder renders texts, byte for byte, as it was meant to.

    Raises:
        EncoderError: it does not, or there is none.
    """
    stored = QueryTemplate.load(folder)
    if stored is None or stored.hash != template.hash:
        raise EncoderError(
            f"{folder / TEMPLATE_FILE}: expected the template of training ({template.hash[:12]}), found "
            f"{'none' if stored is None else stored.hash[:12]}"
        )
    rendered = [(stored.render(query), template.render(query)) for query in queries]
    rendered += [(stored.render_document(document), template.render_document(document)) for document in documents]
    for found, expected in rendered:
        if found.encode() != expected.encode():
            raise EncoderError(f"{folder / TEMPLATE_FILE}: expected to render {expected!r}, found {found!r}")


def check_batching(model: SentenceTransformer, tokenization: Tokenization) -> float:
    """A text has the same vector alone and in a batch, where the shorter ones are padded.

    Returns:
        the smallest cosine.

    Raises:
        EncoderError: it has not, so that the pooling reads padding.
    """
    ids = tokenization.documents(DOCUMENTS)
    tokenizer = tokenization.tokenizer
    batches = [
        pad_batch(rows, tokenizer.pad_token_id, tokenizer.padding_side) for rows in (ids, *([each] for each in ids))
    ]
    with evaluating(model):
        together, *alone = TorchForward(model)(iter(batches))
    cosine = float((together * np.concatenate(alone)).sum(axis=1).min())
    if not cosine > (ALIKE if is_float32(model) else ALIKE_ROUNDED):
        pooling = ", ".join(type(module).__name__ for module in list(model)[1:]) or "none"
        raise EncoderError(
            f"model: expected the same vector for a text alone and in a batch, found a cosine of {cosine:.4f}; the modules "
            f"after the transformer ({pooling}) or its attention read padding, which is on the "
            f"{tokenization.tokenizer.padding_side}: take the last token by the attention mask, as the Pooling of "
            "sentence-transformers with lasttoken does, and pad on the side that the model was trained with"
        )
    return cosine


def check_vectors(
    model: SentenceTransformer,
    tokenization: Tokenization,
    queries: Sequence[SearchQuery] = (),
    documents: Sequence[Document] = (),
) -> float:
    """Vectors are finite, and not all the same.

    Returns:
        the smallest cosine of two texts.

    Raises:
        EncoderError: it is not so.
    """
    query_ids = [each.ids for each in tokenization.queries([*QUERIES, *queries])]
    try:
        vectors = np.concatenate(
            [
                vectors_of(model, tokenization, query_ids),
                vectors_of(model, tokenization, tokenization.documents([*DOCUMENTS, *documents])),
            ]
        )
    except EncoderError as error:
        raise EncoderError(
            f"{error}; its weights are damaged, or too large for {model.dtype}: load another or float32"
        ) from None
    cosine = float((vectors @ vectors.T).min())
    if not cosine < ALIKE:
        raise EncoderError(
            f"model: expected different vectors for different texts, found the cosine {cosine:.6f} for all of them; the model "
            "has collapsed, or its pooling takes a token that sees nothing of the text: start from another model"
        )
    return cosine


def _pools_last_token(model: SentenceTransformer) -> bool:
    return any(isinstance(module, Pooling) and "lasttoken" in module.pooling_mode for module in model)
