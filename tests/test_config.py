"""Configurations: a TOML file, overridden from the command line, refused with the key's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import model_validator

from agentir.config import RUNTIME, Field, ProgramConfig, Section, identity, load_config
from agentir.errors import ConfigError


class EncoderConfig(Section):
    """A table."""

    model: str = "minilm"
    """Name or folder of the model."""
    max_length: int = 224
    """Token limit."""


class FilterConfig(Section):
    """A table that may be absent."""

    facet: str
    """Which facet."""


class Config(ProgramConfig):
    """A program's configuration with every form of value."""

    qa: Path
    """Questions to read."""
    num_negatives: int = 7
    """Hard negatives an example, 100 % of them."""
    temperature: float = 0.05
    """Of the loss."""
    pooling: Literal["mean", "last"] = "mean"
    """How token vectors become one."""
    masked: bool = True
    """Whether positives of the same question are masked."""
    cutoffs: tuple[int, ...] = (5, 10)
    """Ranks to measure at."""
    splits: tuple[str, ...] | None = None
    """Only these splits."""
    prefixes: dict[str, str] = Field(default_factory=lambda: {"query": "Query: "})
    """Texts put in front."""
    encoder: EncoderConfig = EncoderConfig()
    filter: FilterConfig | None = None
    num_threads: int = Field(default=1, json_schema_extra=RUNTIME)
    """Threads."""

    @model_validator(mode="after")
    def _fits(self) -> Config:
        if self.num_negatives > 9 and self.pooling == "last":
            raise ValueError("num_negatives over 9 needs pooling mean")
        return self


NEEDED = ["--out", "o", "--qa", "qa.jsonl"]


def load(*argv: str) -> Config:
    return load_config(Config, argv, prog="agentir synth build")


def refusal(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*argv)
    return str(caught.value)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "build.toml"
    path.write_text(
        'out = "made"\nqa = "qa.jsonl"\nnum_negatives = 5\ncutoffs = [1, 3]\n'
        '[encoder]\nmodel = "qwen"\n[prefixes]\ndocument = "D: "\n',
        encoding="utf-8",
    )
    return path


# What is taken


def test_defaults() -> None:
    config = load(*NEEDED)
    assert config == Config(out=Path("o"), qa=Path("qa.jsonl"))
    assert config.prefixes == {"query": "Query: "}


def test_file_then_options(toml: Path) -> None:
    config = load("--config", str(toml), "--num-negatives", "3", "--encoder.max-length", "512")
    assert (config.out, config.num_negatives, config.cutoffs) == (Path("made"), 3, (1, 3))
    assert config.encoder == EncoderConfig(model="qwen", max_length=512)
    assert config.prefixes == {"document": "D: "}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--prefixes", '{query = "Q: "}'], {"document": "D: ", "query": "Q: "}),
        (["--prefixes.query", "Q: "], {"document": "D: ", "query": "Q: "}),
        (["--prefixes.document=E:=", "--prefixes.a-b", '"5"'], {"document": "E:=", "a_b": "5"}),
        (["--prefixes", '{query = "Q: "}', "--prefixes.query", "R: "], {"document": "D: ", "query": "R: "}),
    ],
)
def test_a_table_is_merged_into_that_of_the_file(toml: Path, argv: list[str], expected: dict[str, str]) -> None:
    assert load("--config", str(toml), *argv).prefixes == expected


class Tables(Section):
    """A table of any depth."""

    label: dict[str, Any] = Field(default_factory=dict)
    """Further keys."""


def test_tables_are_merged_at_every_depth_and_values_are_toml(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[label]\ndepth = 5\n[label.model]\nname = "m"\nextra = { a = 1 }\n')
    argv = ["--label", "{model = {extra = {b = true}}}", "--label.depth", "20", "--label.placement", "gold_first"]
    config = load_config(Tables, ["--config", str(tmp_path / "c.toml"), *argv], prog="p")
    model = {"name": "m", "extra": {"a": 1, "b": True}}
    assert config.label == {"depth": 20, "placement": "gold_first", "model": model}


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--temperature", "1e-2"], "temperature", 0.01),
        (["--pooling=last"], "pooling", "last"),
        (["--masked", "false"], "masked", False),
        (["--masked=true"], "masked", True),
        (["--masked"], "masked", True),
        (["--cutoffs", "1", "20"], "cutoffs", (1, 20)),
        (["--splits", "dev", "test"], "splits", ("dev", "test")),
        (["--splits", "dev"], "splits", ("dev",)),
        (["--prefixes", '{query = "Q: ", "other key" = ""}'], "prefixes", {"query": "Q: ", "other key": ""}),
        (["--filter.facet", "year"], "filter", FilterConfig(facet="year")),
        (["--num_negatives", "2"], "num_negatives", 2),
        (["--num-threads", "4"], "num_threads", 4),
        (["--on-bad-line", "set_aside"], "on_bad_line", "set_aside"),
        (["--qa", "Ordner für alles/q a.jsonl"], "qa", Path("Ordner für alles/q a.jsonl")),
    ],
)
def test_options(argv: list[str], name: str, value: object) -> None:
    assert getattr(load(*NEEDED, *argv), name) == value


# What is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_negative = 5", "{file}: num_negative: unknown key; did you mean num_negatives?"),
        ("[encoder]\nmax_len = 5", "{file}: encoder.max_len: unknown key; did you mean encoder.max_length?"),
        (
            "num_negatives = 'many'",
            "{file}: num_negatives: expected a valid integer, unable to parse string as an integer, found 'many'",
        ),
        ("cutoffs = 5", "{file}: cutoffs: expected a valid tuple, found 5"),
        (
            "cutoffs = [5, 'x']",
            "{file}: cutoffs.1: expected a valid integer, unable to parse string as an integer, found 'x'",
        ),
        ("pooling = 'max'", "{file}: pooling: expected 'mean' or 'last', found 'max'"),
        (
            "encoder = 'minilm'",
            "{file}: encoder: expected a valid dictionary or instance of EncoderConfig, found 'minilm'",
        ),
        ("masked = 'perhaps'", "{file}: masked: expected a valid boolean, unable to interpret input, found 'perhaps'"),
        ("num_negatives = 10\npooling = 'last'", "{file}: num_negatives over 9 needs pooling mean"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text('out = "o"\nqa = "q"\n' + text + "\n", encoding="utf-8")
    assert refusal("--config", str(path)) == message.replace("{file}", str(path))


def test_an_unknown_table_lists_the_known_keys(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[zzz]\na = 1\n", encoding="utf-8")
    lines = refusal("--config", str(path), *NEEDED).splitlines()
    assert lines == [
        f"{path}: zzz: unknown key; known keys: out, on_bad_line, qa, num_negatives, temperature, pooling, masked, cutoffs, "
        "splits, prefixes, encoder, filter, num_threads"
    ]


def test_a_key_that_begins_like_a_given_option_belongs_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('output = "x"\n', encoding="utf-8")
    assert refusal("--config", str(path), *NEEDED).startswith(f"{path}: output: unknown key")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--num-negative", "5"],
            "agentir synth build: unexpected argument '--num-negative'; did you mean --num-negatives?",
        ),
        (
            ["--confg=x.toml"],
            "agentir synth build: unexpected argument '--confg=x.toml'; did you mean --config?",
        ),
        (["--zzz", "1"], "agentir synth build: unexpected argument '--zzz'; --help lists the options"),
        (["stray"], "agentir synth build: unexpected argument 'stray'; --help lists the options"),
        (
            ["--num-negatives", "x"],
            "--num-negatives: expected a valid integer, unable to parse string as an integer, found 'x'",
        ),
        (
            ["--cutoffs", "5", "x"],
            "--cutoffs.1: expected a valid integer, unable to parse string as an integer, found 'x'",
        ),
        (["--num-negatives"], "agentir synth build: argument --num-negatives/--num_negatives: expected one argument"),
        (["--prefixes", "{query"], "agentir synth build: argument --prefixes: not a TOML inline table: "),
        (["--prefixes.query"], "agentir synth build: argument --prefixes.query: expected one argument"),
        (["--prefixes", "5"], "--prefixes: expected a valid dictionary, found 5"),
    ],
)
def test_options_that_do_not_fit(argv: list[str], message: str) -> None:
    assert refusal(*NEEDED, *argv).startswith(message)


def test_all_that_is_missing_is_named_at_once() -> None:
    assert refusal("--filter.facet", "x") == (
        "command line: out: missing; set it in the file or with --out\n"
        "command line: qa: missing; set it in the file or with --qa"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [(None, "no such configuration file"), (b"out = ", "not a TOML file: "), (b'out = "\xff"', "not a TOML file: ")],
)
def test_a_file_that_is_no_toml(tmp_path: Path, data: bytes | None, message: str) -> None:
    path = tmp_path / "c.toml"
    if data is not None:
        path.write_bytes(data)
    assert refusal("--config", str(path)).startswith(f"{path}: {message}")


def test_an_option_of_a_table_that_the_file_makes_a_value(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('encoder = "minilm"\n', encoding="utf-8")
    assert refusal("--config", str(path), "--encoder.model", "x") == (
        "--encoder.model: encoder is not a table in the configuration file"
    )


class Bench(Section):
    """A configuration with a value that is given by its place."""

    positional: ClassVar[tuple[str, ...]] = ("name",)

    name: Literal["encode", "dense"]
    """Which."""
    runs: int = 5
    """How often."""


@pytest.mark.parametrize("argv", [["dense", "--runs", "7"], ["--runs", "7", "dense"]])
def test_a_value_given_by_its_place(argv: list[str]) -> None:
    assert load_config(Bench, argv, prog="agentir eval bench") == Bench(name="dense", runs=7)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "command line: name: missing; set it in the file or with NAME"),
        (["sparse"], "NAME: expected 'encode' or 'dense', found 'sparse'"),
        (["dense", "encode"], "agentir eval bench: unexpected argument 'encode'; --help lists the options"),
    ],
)
def test_a_place_that_does_not_fit(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(Bench, argv, prog="agentir eval bench")
    assert str(caught.value) == message


# What it is known by


def test_identity_is_flat_and_leaves_out_runtime_values_and_places() -> None:
    assert identity(load(*NEEDED, "--num-threads", "8"), ignore=("out", "qa")) == {
        "on_bad_line": "stop",
        "num_negatives": 7,
        "temperature": 0.05,
        "pooling": "mean",
        "masked": True,
        "cutoffs": [5, 10],
        "splits": None,
        "prefixes": {"query": "Query: "},
        "encoder.model": "minilm",
        "encoder.max_length": 224,
        "filter": None,
    }
    assert identity(load(*NEEDED, "--filter.facet", "year"))["filter.facet"] == "year"


# Help


def test_help_lists_every_key_with_its_text_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_config(
            Config, ["--help"], prog="agentir synth build", description="Builds examples.\n\n    a line as it is"
        )
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "Builds examples.\n\n    a line as it is" in text
    for expected in (
        "--qa VALUE            Questions to read. (required)",
        "Hard negatives an example, 100 % of them. (default: 7)",
        "--encoder.max-length VALUE, --encoder.max_length VALUE",
        "--cutoffs VALUE [VALUE ...]",
        "--splits VALUE [VALUE ...]",
        "--masked [true|false]",
        "Texts put in front. (default: {'query': 'Query: '})",
    ):
        assert expected in text
