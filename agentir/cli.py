"""The command `agentir`: finds a program and runs it; a program is imported only when it is called.

    agentir synth rollout|extract|label|build|export   make training data from trajectories
    agentir train                                      fine-tune an embedder on it
    agentir merge                                      a LoRA adapter and its base into one model
    agentir index build|verify|search|serve
    agentir eval retrieval|report|bench
    agentir demo                                       all of it on the sample data

Every program takes `--config FILE` (TOML) and an option for each key; `agentir STAGE PROGRAM --help` lists them.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from agentir import __version__
from agentir.config import load_config
from agentir.errors import AgentirError

PROGRAMS: dict[str, dict[str, str]] = {
    "synth": {
        "run": "rollout, extract, label and build, one after the other",
        "rollout": "questions -> trajectories of a search agent",
        "extract": "trajectories -> (reasoning, sub-query) pairs",
        "label": "sub-queries and oracle answers -> rankings, or candidate lists to send to an oracle",
        "build": "rankings -> training examples",
        "export": "trajectories -> conversations to fine-tune an agent on",
    },
    "index": {
        "build": "corpus -> index folder",
        "verify": "check every sum of an index folder",
        "search": "search an index from the command line",
        "serve": "offer an index to agents over MCP and REST",
    },
    "eval": {
        "retrieval": "retrieval measures per sub-query",
        "report": "tables and one HTML page from evaluations",
        "bench": "speed against named baselines",
    },
}
TOP: dict[str, tuple[str, str]] = {
    "train": ("agentir.train.run", "fine-tune an embedder on training examples"),
    "merge": ("agentir.train.merge", "a LoRA adapter and its base -> a model that can be served"),
    "demo": ("agentir.demo", "the whole way on the sample data"),
}


def usage() -> str:
    """The text of `agentir --help`."""
    lines = [__doc__.split("\n\n")[0] if __doc__ else "", "", "usage: agentir [--version] STAGE PROGRAM [OPTIONS]", ""]
    for stage, programs in PROGRAMS.items():
        lines += [f"  {f'{stage} {name}':<18}{text}" for name, text in programs.items()]
    lines += [f"  {name:<18}{text}" for name, (_, text) in TOP.items()]
    lines += ["", "agentir STAGE PROGRAM --help shows a program's options; each also takes --config FILE (TOML)."]
    return "\n".join(lines)


def load_program(stage: str, program: str) -> ModuleType:
    """The module of a stage program: from the wheel, else from the checkout's folder beside the package."""
    wheel_name = f"agentir.stages.{stage}.{program}"
    try:
        return importlib.import_module(wheel_name)
    except ModuleNotFoundError as error:
        if error.name not in ("agentir.stages", f"agentir.stages.{stage}"):
            raise
    path = Path(__file__).resolve().parent.parent / stage / f"{program}.py"
    spec = importlib.util.spec_from_file_location(f"agentir_stage_{stage}_{program}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "true"}
"""Environment of the programs, unless set otherwise: they show their own progress, not that of loading a model."""


def run(argv: Sequence[str]) -> None:
    """Runs one program, or prints what was asked about all of them.

    Raises:
        AgentirError: the arguments, the configuration or the inputs do not fit.
    """
    first, rest = (argv[0], list(argv[1:])) if argv else ("--help", [])
    if first in ("-h", "--help") or (first in PROGRAMS and rest[:1] in (["-h"], ["--help"])):
        print(usage())
        return
    if first == "--version":
        print(f"agentir {__version__}")
        return
    if first in TOP:
        module, name = importlib.import_module(TOP[first][0]), first
    elif first in PROGRAMS:
        if not rest or rest[0] not in PROGRAMS[first]:
            found = f", found {rest[0]!r}" if rest and not rest[0].startswith("-") else ""
            raise AgentirError(f"agentir {first}: expected one of {', '.join(PROGRAMS[first])}{found}")
        module, name = load_program(first, rest[0]), f"{first} {rest.pop(0)}"
    else:
        raise AgentirError(f"agentir: expected one of {', '.join([*PROGRAMS, *TOP])}, found {first!r}")
    config = load_config(module.Config, rest, prog=f"agentir {name}", description=module.__doc__ or "")
    module.main(config)


def main() -> None:
    """Entry point: exit status 0, or 2 with one error text on standard error, 130 when interrupted."""
    try:
        run(sys.argv[1:])
        sys.stdout.flush()
    except AgentirError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (OSError, sqlite3.Error) as error:  # a full disk, no permission, a name that is too long
        if isinstance(error, BrokenPipeError):  # as with `| head`; what is left in the buffer must go somewhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; what is finished is kept, run the same command again to continue", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
