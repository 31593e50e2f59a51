"""The program `agentir eval bench`, where it does not measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentir.errors import MissingExtraError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["psutil", "faiss"])
def test_what_the_dense_bench_needs_is_named(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from agentir.cli import main; main()"
    argv = [sys.executable, "-c", code, "eval", "bench", "dense"]
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (2, f"error: {MissingExtraError(package, 'dev')}\n")
