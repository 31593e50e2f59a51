r"""The whole of DR-Synth: rollout, extract, label and build, one after the other.

    agentir synth run --config configs/synth/run.toml --questions questions.jsonl --index runs/index --out runs/synth

Runs the four programs with the tables of the same names, in folders of the same names below `out`. Stopped anywhere, by an
error, a budget, Ctrl-C or a kill, it goes on where it was when started again; what is finished is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from agentir.chat.settings import ModelSection
from agentir.cli import load_program
from agentir.config import RUNTIME, Field, ProgramConfig, Section, validate_config
from agentir.errors import ConfigError

Program = Literal["rollout", "extract", "label", "build"]
PROGRAMS: tuple[Program, ...] = ("rollout", "extract", "label", "build")


class Config(ProgramConfig):
    """What all four programs are told, and a table for each."""

    questions: Path
    """The questions with their answers and gold documents."""
    index: Path
    """The index folder that the agent searches, and that holds the candidates."""
    model: ModelSection
    """The agent's language model."""
    oracle: ModelSection | None = None
    """The language model that ranks; default: the agent's."""
    rollout: dict[str, Any] = Field(default_factory=dict)
    """Further keys of `agentir synth rollout`; with an `oracle` in it, its rankings are the labels."""
    extract: dict[str, Any] = Field(default_factory=dict)
    """Further keys of `agentir synth extract`."""
    label: dict[str, Any] = Field(default_factory=dict)
    """Further keys of `agentir synth label`."""
    build: dict[str, Any] = Field(default_factory=dict)
    """Further keys of `agentir synth build`."""
    on_failure: Literal["retry", "leave_out"] = Field("retry", json_schema_extra=RUNTIME)
    """What becomes of episodes and labels that failed at last: the next start tries them again, or they are left out."""


def main(config: Config) -> None:
    """Checks the settings of all programs, then runs them."""
    programs = {name: load_program("synth", name) for name in PROGRAMS}
    configs = {name: settings(config, name, programs[name].Config) for name in PROGRAMS}
    for number, name in enumerate(PROGRAMS, start=1):
        print(f"[{number}/{len(PROGRAMS)}] synth {name}", flush=True)
        programs[name].main(configs[name])
    print(f"training examples: {config.out / 'build'}; next: agentir train --examples {config.out / 'build'} ...")


def settings(config: Config, name: Program, config_type: type[Section]) -> Section:
    """The configuration of one program: what all share, what it reads of the one before, and its table.

    Raises:
        ConfigError: the table holds a key that this program sets itself, or one that does not fit.
    """
    out = config.out
    shared: dict[str, Any] = {"out": out / name, "on_bad_line": config.on_bad_line, "questions": config.questions}
    live: dict[str, Any] = {"index": config.index, "on_failure": config.on_failure}
    model = config.model.model_dump(exclude_unset=True)
    oracle = model if config.oracle is None else config.oracle.model_dump(exclude_unset=True)
    label = {"labelled": out / "rollout"} if "oracle" in config.rollout else {**live, "model": oracle}
    own: dict[str, Any] = {
        "rollout": {**live, "model": model},
        "extract": {"trajectories": [out / "rollout"]},
        "label": {"subqueries": out / "extract", **label},
        "build": {"rankings": out / "label", "corpus": config.index},
    }[name]
    table: dict[str, Any] = getattr(config, name)
    if double := sorted(table.keys() & (shared | own).keys()):
        raise ConfigError(
            f"{name}.{double[0]}: set by synth run itself; set it at the top, or run the programs one by one"
        )
    return validate_config(config_type, {**shared, **own, **table}, name)
