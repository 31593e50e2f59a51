"""Program configuration: a TOML file, read into a frozen pydantic model, then overridden from the command line.

    agentir synth build --config configs/demo/build.toml --num-negatives 5

A table on the command line is merged into that of the file, and single keys of it can be given by dotted names.
A program's config class derives from `ProgramConfig`; the docstring under a field is its help text. Fields marked
`RUNTIME` (threads, progress) may change between a run and its continuation; all others may not.
"""

from __future__ import annotations

import argparse
import difflib
import re
import tomllib
import types
import typing
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from agentir.errors import ConfigError

RUNTIME: Any = {"runtime": True}
"""`Field(json_schema_extra=RUNTIME)`: the value does not change what is made, so a run may continue under another."""


class Section(BaseModel):
    """A table inside a program's configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
    positional: ClassVar[tuple[str, ...]] = ()
    """Fields that are given on the command line by their place, without a name."""


class ProgramConfig(Section):
    """What every program that writes an artifact is told."""

    out: Path
    """The artifact folder to write; a folder begun under the same configuration is continued."""
    on_bad_line: Literal["stop", "set_aside"] = "stop"
    """What to do with input lines that do not fit: stop before any work, or set them aside in rejected.jsonl."""


C = TypeVar("C", bound=Section)


def identity(config: Section, ignore: Sequence[str] = ("out",)) -> dict[str, Any]:
    """The values that decide what a program makes, flattened to dotted keys; runtime fields are left out."""
    flat: dict[str, Any] = {}
    for key, info, value in _leaves(config):
        if key not in ignore and not (
            isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("runtime")
        ):
            flat[key] = value
    return flat


def _leaves(config: Section, prefix: str = "") -> Iterator[tuple[str, FieldInfo, Any]]:
    dumped = config.model_dump(mode="json")
    for name, info in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Section):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info, dumped[name]


def load_config(config_type: type[C], argv: Sequence[str], *, prog: str, description: str = "") -> C:
    """Builds a program's configuration from its arguments.

    Raises:
        ConfigError: a file, key or value does not fit; the text names the file, the key and what was expected.
    """
    given = _given(_parser(config_type, prog, description), config_type, argv)
    data: dict[str, Any] = {}
    source = "command line"
    if path := given.pop("config"):
        source = str(path)
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such configuration file") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: not a TOML file: {error}") from None
    overridden: set[str] = set()
    for dotted, raw in given.items():
        if raw is not None:
            _assign(data, dotted, raw)
            overridden.add(dotted)
    return validate_config(config_type, data, source, overridden)


def validate_config(
    config_type: type[C], data: dict[str, Any], source: str, overridden: Collection[str] = frozenset()
) -> C:
    """Builds a configuration from the values of a file.

    Args:
        config_type: the configuration's class.
        data: its values, tables as dicts.
        source: where they come from, for errors.
        overridden: dotted names that came from the command line instead.

    Raises:
        ConfigError: a key or value does not fit.
    """
    _check_texts(data, source)
    try:
        return config_type.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(config_type, error, source, overridden))) from None


def _check_texts(value: Any, where: str) -> None:
    """Refuses texts that no file name and no UTF-8 file can hold."""
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
            raise ConfigError(f"{where}: expected text in UTF-8 without NUL, found {value!r}")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_texts(item, f"{where}: {key}")
    elif isinstance(value, list | tuple):
        for item in value:
            _check_texts(item, where)


def _given(parser: argparse.ArgumentParser, config_type: type[Section], argv: Sequence[str]) -> dict[str, Any]:
    """The options by their dotted names, None where not given."""
    try:
        given, rest = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise ConfigError(f"{parser.prog}: {error}") from None
    rest, inside = _keys_of_tables(parser, config_type, rest)
    if rest:
        known = ["--config", *(f"--{name.replace('_', '-')}" for name, _ in _options(config_type))]
        hint = _hint(rest[0].partition("=")[0], known) or "; --help lists the options"
        raise ConfigError(f"{parser.prog}: unexpected argument {rest[0]!r}{hint}")
    return {**vars(given), **inside}


def _keys_of_tables(
    parser: argparse.ArgumentParser, config_type: type[Section], rest: Sequence[str]
) -> tuple[list[str], dict[str, Any]]:
    """Arguments that name a key of a field that is a table, `--label.depth 20`: what is left, and values by dotted names.

    The parser cannot know these keys. A value is TOML, and text where it is none.
    """
    tables = [name for name, info in _options(config_type) if _is_table(info)]
    waiting, left, inside = list(rest), list[str](), dict[str, Any]()
    while waiting:
        option, equals, raw = waiting.pop(0).partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if not option.startswith("--") or not any(name.startswith(f"{table}.") for table in tables):
            left.append(option + equals + raw)
            continue
        if not equals:
            if not waiting:
                raise ConfigError(f"{parser.prog}: argument {option}: expected one argument")
            raw = waiting.pop(0)
        try:
            inside[name] = _toml_value(raw)
        except (ValueError, RecursionError):
            inside[name] = raw
    return left, inside


def _is_table(info: FieldInfo) -> bool:
    return typing.get_origin(_without_none(info.annotation)) is dict


def _hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _assign(data: dict[str, Any], dotted: str, value: Any) -> None:
    *tables, last = dotted.split(".")
    for table in tables:
        data = data.setdefault(table, {})
        if not isinstance(data, dict):
            raise ConfigError(f"--{dotted}: {table} is not a table in the configuration file")
    data[last] = _merged(data.get(last), value)


def _merged(before: Any, value: Any) -> Any:
    """A table with its keys over those that were there; any other value as it is."""
    if not isinstance(before, dict) or not isinstance(value, dict):
        return value
    return {**before, **{key: _merged(before.get(key), one) for key, one in value.items()}}


def _explain(
    config_type: type[Section], error: ValidationError, source: str, overridden: Collection[str]
) -> Iterator[str]:
    known = [name for name, _ in _options(config_type)]
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"])
        given = any(f"{key}.".startswith(f"{name}.") for name in overridden)
        option = key.upper() if key in config_type.positional else f"--{key.replace('_', '-')}"
        where = option if given else f"{source}: {key}" if key else source
        if problem["type"] == "extra_forbidden":
            table = key.rpartition(".")[0]
            beside = list(
                dict.fromkeys(_below(name, table) for name in known if name.startswith(f"{table}." if table else ""))
            )
            hint = _hint(key, known) or _hint(key, beside)
            yield f"{where}: unknown key" + (hint or f"; known keys: {', '.join(beside)}")
        elif problem["type"] == "missing":
            yield f"{where}: missing; set it in the file or with {option}"
        elif problem["type"] == "value_error":
            yield f"{where}: {_expected(problem['msg'])}" + (f", found {problem['input']!r}" if key else "")
        else:
            yield f"{where}: expected {_expected(problem['msg'])}, found {problem['input']!r}"


def _below(name: str, table: str) -> str:
    """The key or table in a table that a dotted name goes through."""
    depth = len(table.split(".")) if table else 0
    return ".".join(name.split(".")[: depth + 1])


def _expected(message: str) -> str:
    """pydantic's text without its lead-in: 'Input should be a valid integer' becomes 'a valid integer'."""
    return re.sub(r"^(Input should be|Value error,) ", "", message)


def _options(config_type: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, info in config_type.model_fields.items():
        if (section := _section(info.annotation)) is not None:
            yield from _options(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info


def _section(annotation: Any) -> type[Section] | None:
    bare = _without_none(annotation)
    return bare if isinstance(bare, type) and issubclass(bare, Section) else None


def _without_none(annotation: Any) -> Any:
    """`X` for `X | None`, anything else as it is."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    rest = [option for option in typing.get_args(annotation) if option is not types.NoneType]
    return rest[0] if len(rest) == 1 else annotation


def _parser(config_type: type[Section], prog: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with the keys below; options override it")
    for dotted, info in _options(config_type):
        default = "required" if info.is_required() else f"default: {info.get_default(call_default_factory=True)}"
        text = f"{' '.join((info.description or '').split())} ({default})".replace("%", "%%").strip()
        names = [f"--{dotted.replace('_', '-')}"] + ([f"--{dotted}"] if "_" in dotted else [])
        annotation = _without_none(info.annotation)
        if dotted in config_type.positional:
            parser.add_argument(dotted, nargs="?", metavar=dotted.upper(), help=text)
        elif typing.get_origin(annotation) in (tuple, list):
            parser.add_argument(*names, dest=dotted, nargs="+", metavar="VALUE", help=text)
        elif annotation is bool:
            parser.add_argument(*names, dest=dotted, nargs="?", const="true", metavar="true|false", help=text)
        elif _is_table(info):
            parser.add_argument(*names, dest=dotted, type=_toml_table, metavar="{TOML}", help=text)
        else:
            parser.add_argument(*names, dest=dotted, metavar="VALUE", help=text)
    return parser


def _toml_table(raw: str) -> Any:
    try:
        return _toml_value(raw)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not a TOML inline table: {error}") from None


def _toml_value(raw: str) -> Any:
    return tomllib.loads(f"value = {raw}")["value"]


__all__ = ["RUNTIME", "Field", "ProgramConfig", "Section", "identity", "load_config", "validate_config"]
