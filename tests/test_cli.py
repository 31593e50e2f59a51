"""The command: quick help, plain errors, exit statuses, and stage programs that all have the same form."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentir import __version__
from agentir.cli import PROGRAMS, TOP, load_program, run
from agentir.config import ProgramConfig, Section
from agentir.errors import AgentirError

ROOT = Path(__file__).parent.parent
STAGE_PROGRAMS = [(stage, program) for stage, programs in PROGRAMS.items() for program in programs]


def agentir(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentir", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["index", "--help"]])
def test_help_names_every_program(argv: list[str]) -> None:
    done = agentir(*argv)
    assert (done.returncode, done.stderr) == (0, "")
    for stage, program in STAGE_PROGRAMS:
        assert f"  {stage} {program} " in done.stdout
    for name in TOP:
        assert f"  {name} " in done.stdout


def test_help_imports_nothing_heavy() -> None:
    script = "import sys; sys.argv[1:] = ['--help']; from agentir.cli import main; main(); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stderr.split()}
    assert imported & {"torch", "numpy", "faiss", "transformers", "sentence_transformers", "openvino", "mcp"} == set()
    assert "pydantic" in imported, "the list of modules is the real one"


def test_version() -> None:
    done = agentir("--version")
    assert (done.returncode, done.stdout) == (0, f"agentir {__version__}\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["indx", "build"], "agentir: expected one of synth, index, eval, train, merge, demo, found 'indx'"),
        (["index"], "agentir index: expected one of build, verify, search, serve"),
        (["index", "biuld"], "agentir index: expected one of build, verify, search, serve, found 'biuld'"),
        (["index", "--out", "x"], "agentir index: expected one of build, verify, search, serve"),
        (
            ["index", "verify", "--nonsense"],
            "agentir index verify: unexpected argument '--nonsense'; --help lists the options",
        ),
        (["index", "verify", "--config", "absent.toml"], "absent.toml: no such configuration file"),
    ],
)
def test_errors_are_one_text_without_traceback(argv: list[str], message: str) -> None:
    done = agentir(*argv)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")


def test_a_closed_pipe_is_no_error_text() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe:
        done = subprocess.run([sys.executable, "-m", "agentir", "--help"], stdout=pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"")


def test_errors_can_be_caught_by_callers() -> None:
    with pytest.raises(AgentirError, match="found 'nonsense'"):
        run(["nonsense"])


# The form of the stage programs


@pytest.mark.parametrize(("stage", "program"), STAGE_PROGRAMS)
def test_each_program_has_a_text_a_described_configuration_and_main(stage: str, program: str) -> None:
    module = load_program(stage, program)
    assert module.__doc__
    assert f"agentir {stage} {program}" in module.__doc__
    assert callable(module.main)
    assert issubclass(module.Config, Section)
    undescribed = [
        name
        for name, info in module.Config.model_fields.items()
        if not info.description and not isinstance(info.default, Section)
    ]
    assert undescribed == []
    if (out := module.Config.model_fields.get("out")) and out.is_required():
        assert issubclass(module.Config, ProgramConfig), "what writes an artifact is configured alike"


def test_stage_folders_hold_what_the_command_offers_and_nothing_else() -> None:
    found = {stage: sorted(path.stem for path in (ROOT / stage).glob("*.py")) for stage in PROGRAMS}
    assert found == {stage: sorted(programs) for stage, programs in PROGRAMS.items()}


@pytest.mark.parametrize(("stage", "program"), STAGE_PROGRAMS)
def test_stage_programs_import_no_other_stage(stage: str, program: str) -> None:
    tree = ast.parse((ROOT / stage / f"{program}.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    assert imports
    for node in imports:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]
        assert not {name.partition(".")[0] for name in names} & {*PROGRAMS, ""}, ast.unparse(node)
        assert not any(name.startswith("agentir.stages") for name in names), ast.unparse(node)
