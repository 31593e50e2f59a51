"""Where a test that skips would hide that nothing was tested, it fails instead: set AGENTIR_NO_SKIPS=1 (as CI does)."""

from __future__ import annotations

import lzma
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from scripted_server import Reply, ScriptedServer, Seen

NO_SKIPS = os.environ.get("AGENTIR_NO_SKIPS") == "1"


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if NO_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which AGENTIR_NO_SKIPS=1 forbids: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.fixture
def chat_server() -> Iterator[Callable[[Callable[[Seen], Reply]], ScriptedServer]]:
    """Starts real HTTP servers that play a script, and stops them."""
    servers: list[ScriptedServer] = []

    def start(script: Callable[[Seen], Reply]) -> ScriptedServer:
        servers.append(ScriptedServer(script))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder like Qwen3-Embedding's: the real Qwen3 tokenizer (left padding, <|endoftext|> at the end), last-token
    pooling, and a decoder of two small layers with random weights."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from tokenizers import Tokenizer
    from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing
    from transformers import Qwen2TokenizerFast, Qwen3Config, Qwen3Model

    folder = tmp_path_factory.mktemp("qwen3")
    source = Path(__file__).parent / "data" / "qwen3" / "tokenizer.json.xz"
    tokenizer = Tokenizer.from_str(lzma.decompress(source.read_bytes()).decode())
    end = TemplateProcessing(single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 151643)])
    tokenizer.post_processor = Sequence([ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False), end])
    fast = Qwen2TokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        padding_side="left",
        model_max_length=512,
    )
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=512,
    )
    Qwen3Model(config).save_pretrained(folder / "base")
    fast.save_pretrained(folder / "base")
    transformer = Transformer(str(folder / "base"), max_seq_length=512)
    model = SentenceTransformer(modules=[transformer, Pooling(16, "lasttoken"), Normalize()], device="cpu")
    model.save(str(folder / "model"), create_model_card=False)
    return folder / "model"
