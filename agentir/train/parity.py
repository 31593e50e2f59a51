"""Whether a saved model gives the vectors of the trained one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from agentir.embed.encoder import Vectors
from agentir.embed.load import Backend, load_encoder, load_model, read_encoder_file
from agentir.embed.template import QueryTemplate
from agentir.embed.tokens import Tokenization
from agentir.errors import EncoderError
from agentir.records import Document, SearchQuery
from agentir.train.preflight import MAX_SHOWN, check_carried
from agentir.train.probes import ALIKE_ROUNDED, DOCUMENTS, QUERIES, is_float32, vectors_of

EXACT = 1e-5
"""Largest difference of a number between float32 vectors of the same model."""
ALIKE_OPENVINO = 0.999
"""Cosine above which OpenVINO's vectors, computed in bfloat16 where the processor has it, count as those of PyTorch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The vectors of a saved model under one runtime, against those of the trained model in memory.

    Attributes:
        runtime: what computed them.
        num_texts: texts that were compared.
        max_difference: largest difference of a number.
        min_cosine: smallest cosine of two vectors of a text.
        num_failed: texts that differ by more than rounding explains.
        worst: the beginning of the text that differs most.
    """

    runtime: str
    num_texts: int
    max_difference: float
    min_cosine: float
    num_failed: int
    worst: str

    def __str__(self) -> str:
        return (
            f"{self.runtime}: {self.num_texts} texts, numbers differ by at most {self.max_difference:.1e}, cosine at least "
            f"{self.min_cosine:.6f}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """How a saved model compares with the trained one.

    Attributes:
        comparisons: one a runtime.
        num_left_out: texts that sentence-transformers alone reads differently: it cuts long queries at their end, and takes
            names of special tokens inside a text for these.
    """

    comparisons: tuple[Comparison, ...]
    num_left_out: int

    def lines(self) -> list[str]:
        """The report for people."""
        lines = [f"preflight: saved model against the trained one, {comparison}" for comparison in self.comparisons]
        if self.num_left_out:
            lines[0] += (
                f" ({self.num_left_out} texts left out, which sentence-transformers alone cuts or reads otherwise)"
            )
        return lines


def check_parity(
    model: SentenceTransformer,
    folder: Path,
    tokenization: Tokenization,
    queries: Sequence[SearchQuery] = (),
    documents: Sequence[Document] = (),
) -> Parity:
    """A saved model gives the vectors of the trained one: under sentence-transformers alone, and as it is served.

    Numbers may differ by 1e-5; under OpenVINO cosines must be above 0.999, where weights are not float32 above 0.99.
    Documents are left out where the folder says that it encodes queries only. The model is loaded anew for each runtime, one
    after the other, on the device of the trained one.

    Args:
        model: the trained model in memory.
        folder: where it was saved.
        tokenization: with which it was trained.
        queries: some of the data, a few dozen.
        documents: likewise.

    Raises:
        EncoderError: vectors, template, limits or prompts differ; the folder is kept.
    """
    stored = read_encoder_file(folder)
    asked = [*QUERIES, *queries]
    read = [*DOCUMENTS, *documents] if stored.get("encodes_documents", True) else []
    template, device = tokenization.template, str(model.device)
    check_carried(folder, template, asked, read)
    for key in ("max_query_tokens", "max_document_tokens"):
        if stored.get(key) != getattr(tokenization, key):
            raise EncoderError(f"{folder}: {key}: expected {getattr(tokenization, key)}, found {stored.get(key)}")
    texts = [template.render(query) for query in asked] + [template.render_document(document) for document in read]
    ids = [each.ids for each in tokenization.queries(asked)] + tokenization.documents(read)
    expected = vectors_of(model, tokenization, ids)

    plain = load_model(str(folder), device=device)
    alike = _read_alike(tokenization, texts, ids)
    found = _plain_vectors(plain, template, texts, len(asked), folder)
    least = None if is_float32(model) and is_float32(plain) else ALIKE_ROUNDED
    comparisons = [
        _compare("sentence-transformers", least, found[alike], expected[alike], [texts[row] for row in alike])
    ]
    del plain  # large models do not fit several times
    backends: list[Backend] = ["auto"]
    for backend in backends:
        encoder = load_encoder(str(folder), backend=backend, device=device)
        if encoder.backend != "torch":
            backends.append("torch")
        found = encoder.encode_queries(asked).vectors
        if read:
            found = np.concatenate([found, encoder.encode_documents(read)])
        wanted = least or ALIKE_OPENVINO if encoder.backend == "openvino" else least
        comparisons.append(_compare(f"agentir with {encoder.backend}", wanted, found, expected, texts))
        del encoder
    if failed := [comparison for comparison in comparisons if comparison.num_failed]:
        details = [f"  {each}; {each.num_failed} differ, most of all {each.worst!r}" for each in failed]
        raise EncoderError(
            f"{folder}: expected the vectors of the trained model from the saved one, found others:\n"
            + "\n".join(details)
            + "\nthe folder is kept; do not use it where they differ, and compare the versions of the packages and what "
            "modules.json names with the model that training started from"
        )
    return Parity(comparisons=tuple(comparisons), num_left_out=len(texts) - len(alike))


def _read_alike(tokenization: Tokenization, texts: Sequence[str], ids: Sequence[list[int]]) -> list[int]:
    """The rows of texts that sentence-transformers, which knows one limit and no shortening, makes the same tokens of."""
    limit = max(tokenization.max_query_tokens, tokenization.max_document_tokens)
    plain: list[list[int]] = tokenization.tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"]
    return [row for row, (one, other) in enumerate(zip(plain, ids, strict=True)) if one == other]


def _plain_vectors(
    plain: SentenceTransformer, template: QueryTemplate, texts: Sequence[str], num_queries: int, folder: Path
) -> Vectors:
    """What sentence-transformers alone makes of rendered texts, the prompts being those of the folder.

    Raises:
        EncoderError: these are not the template's.
    """
    prompts = {"query": template.instruction, "document": template.document_instruction}
    for side, prompt in prompts.items():
        if (found := plain.prompts.get(side) or "") != prompt:
            raise EncoderError(
                f"{folder}: config_sentence_transformers.json: expected the {side} prompt {prompt!r}, found {found!r}"
            )
    queries = [text.removeprefix(template.instruction) for text in texts[:num_queries]]
    documents = [text.removeprefix(template.document_instruction) for text in texts[num_queries:]]
    vectors = [plain.encode_query(queries, normalize_embeddings=True, show_progress_bar=False)]
    if documents:
        vectors.append(plain.encode_document(documents, normalize_embeddings=True, show_progress_bar=False))
    joined: Vectors = np.concatenate(vectors).astype(np.float32)
    return joined


def _compare(
    runtime: str, least_cosine: float | None, found: Vectors, expected: Vectors, texts: Sequence[str]
) -> Comparison:
    """Compares vectors by their cosines, or number by number where None is given."""
    differences, cosines = np.abs(found - expected).max(axis=1), (found * expected).sum(axis=1)
    passed = differences <= EXACT if least_cosine is None else cosines > least_cosine
    return Comparison(
        runtime=runtime,
        num_texts=len(texts),
        max_difference=float(differences.max()),
        min_cosine=float(cosines.min()),
        num_failed=int((~passed).sum()),
        worst=texts[int(np.argmin(cosines))][:MAX_SHOWN],
    )
