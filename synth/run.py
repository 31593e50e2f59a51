r"""The whole of DR-Synth: rollout, extract, label and build, one after the other.

    agentir synth run --config configs/synth/qwen3.toml --questions questions.jsonl --index runs/index --out runs/synth

Runs the four programs with the tables of the same names, in folders of the same names below `out`. Stopped anywhere, by an
error, a budget, Ctrl-C or a kill, it goes on where it was when started again; what is finished is kept. Any key of a program
is set in its table, or as `--label.depth 20`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from agentir.artifacts import MANIFEST, read_manifest
from agentir.chat.settings import ModelSection
from agentir.cli import load_program
from agentir.config import RUNTIME, Field, ProgramConfig, Section, validate_config
from agentir.errors import AgentirError, ConfigError
from agentir.records import Usage

Program = Literal["rollout", "extract", "label", "build"]
PROGRAMS: tuple[Program, ...] = ("rollout", "extract", "label", "build")


class Config(ProgramConfig):
    """What all four programs are told, and a table for each."""

    questions: Path
    """The questions with their answers and gold documents."""
    index: Path
    """The index folder that the agent searches, and that holds the candidates."""
    searcher: Literal["bm25", "dense"] = "bm25"
    """What searches the index, for the agent and for candidates: bm25, or dense."""
    encoder: str | None = None
    """The query encoder of a dense search; default: the one that built the index."""
    model: ModelSection
    """The agent's language model; without an oracle it ranks, too, and its budget is that of both."""
    oracle: ModelSection | None = None
    """The language model that ranks, with a budget of its own; default: the agent's."""
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
    if config.oracle is not None and "oracle" in config.rollout:
        raise ConfigError(
            "oracle, rollout.oracle: expected one of the two; that of the rollout ranks while the agent works"
        )
    programs = {name: load_program("synth", name) for name in PROGRAMS}
    configs: dict[str, Any] = {name: settings(config, name, programs[name].Config) for name in PROGRAMS}
    for number, name in enumerate(PROGRAMS, start=1):
        print(f"[{number}/{len(PROGRAMS)}] synth {name}", flush=True)
        if name == "label" and config.oracle is None and "oracle" not in config.rollout:
            configs[name] = with_budget_left(config, configs[name])
        programs[name].main(configs[name])
    print(f"training examples: {config.out / 'build'}; next: agentir train --examples {config.out / 'build'} ...")


def with_budget_left(config: Config, label: Any) -> Any:
    """The configuration of the label program with what the rollout left of the budget that they share.

    Raises:
        AgentirError: nothing is left.
    """
    if (label.out / MANIFEST).exists():
        return label
    report = read_manifest(config.out / "rollout")["report"]
    spent = Usage(**report["usage"]) + Usage(**report["usage_of_failed"])
    left: dict[str, float] = {}
    for name, used in (("calls", spent.num_calls), ("tokens", spent.total_tokens), ("cost", spent.cost)):
        limit = getattr(config.model.budget, f"max_{name}")
        if limit is not None and used >= limit:
            raise AgentirError(
                f"budget used up: the rollout took {used:g} of max_{name} {limit:g}; raise it and run the same command again "
                "to continue"
            )
        if limit is not None:
            left[f"max_{name}"] = limit - used
    budget = config.model.budget.model_copy(update=left)
    return label.model_copy(update={"model": label.model.model_copy(update={"budget": budget})})


def settings(config: Config, name: Program, config_type: type[Section]) -> Section:
    """The configuration of one program: what all share, what it reads of the one before, and its table.

    Raises:
        ConfigError: the table holds a key that this program sets itself, or one that does not fit.
    """
    out = config.out
    shared: dict[str, Any] = {"out": out / name, "on_bad_line": config.on_bad_line, "questions": config.questions}
    live: dict[str, Any] = {"index": config.index, "on_failure": config.on_failure}
    live |= {key: getattr(config, key) for key in ("searcher", "encoder") if key in config.model_fields_set}
    model = config.model.model_dump(exclude_unset=True)
    oracle = model
    if config.oracle is not None:  # without an address of its own it is on the agent's server
        oracle = {"base_url": config.model.base_url, **config.oracle.model_dump(exclude_unset=True)}
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
