"""Opening an index, and exact top-10 search against a bare FAISS flat index over the same vectors."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from agentir.benches.rows import BenchRow, in_turn
from agentir.embed.encoder import EncodedQueries, Vectors
from agentir.errors import MissingExtraError
from agentir.jsonl import write_jsonl
from agentir.records import Document, SearchQuery
from agentir.search.builder import build_index
from agentir.search.index import Index

NUM_VECTORS, DIM, TOP = 100_000, 384, 10
GOAL_OPEN_SECONDS, GOAL_RATIO = 0.2, 0.95


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
                    goal=f"ratio >= {GOAL_RATIO}",
                    met=ratio >= GOAL_RATIO,
                )
            )
        index.close()
    return rows
