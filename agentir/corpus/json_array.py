"""A file that is one JSON array of objects, as HotpotQA and 2WikiMultihopQA are published."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from agentir.errors import InputError
from agentir.jsonl import Rejects, iter_lines, loads, parse_objects

_SPACE = re.compile(r"[ \t\r\n]*")
_SCANNER = json.JSONDecoder(parse_int=str, parse_float=str)
"""Finds where an item ends; its value is read more strictly after that."""


def is_array(path: str | Path) -> bool:
    """Whether a file is one array, and not JSON lines of which the first happens to hold an array."""
    first, *others = [line for _, line in islice(iter_lines(path), 2)] or [b""]
    if not first.lstrip().startswith(b"["):
        return False
    if not others:
        return True
    try:
        loads(first)
    except (ValueError, RecursionError):
        return True
    return False


def iter_items(path: str | Path, rejects: Rejects) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, object) of the items; the file's text is held in memory, its values one by one.

    Args:
        path: the file, also `.gz`.
        rejects: takes the items that are no JSON objects, with the item's number for a line.

    Raises:
        InputError: the array is broken or cut off, so that the items after that place cannot be told apart.
    """
    return parse_objects(path, _split(path), rejects, unit="item")


def _split(path: str | Path) -> Iterator[tuple[int, bytes]]:
    # Bytes that are no UTF-8 pass through this, so that only the item which holds them is refused.
    text = b"\n".join(line for _, line in iter_lines(path)).decode("utf-8", "surrogateescape")
    number, at = 0, _skip(text, _skip(text, 0) + 1)
    closed = text.startswith("]", at)
    while not closed:
        number += 1
        try:
            end = _SCANNER.raw_decode(text, at)[1]
        except json.JSONDecodeError as error:
            raise _broken(path, f"item {number}: {error.msg}", text, error.pos) from None
        except RecursionError:
            raise _broken(path, f"item {number}: nested too deeply", text, at) from None
        yield number, text[at:end].encode("utf-8", "surrogateescape")
        at = _skip(text, end)
        closed = text.startswith("]", at)
        if not closed and not text.startswith(",", at):
            raise _broken(path, f"item {number}: expected a comma or ] after it", text, at)
        at = at if closed else _skip(text, at + 1)
    if (rest := _skip(text, at + 1)) < len(text):
        raise _broken(path, "expected the end of the file after it", text, rest)


def _skip(text: str, at: int) -> int:
    """The place of the next character that is not blank."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _broken(path: str | Path, fault: str, text: str, at: int) -> InputError:
    found = text[at : at + 40].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return InputError(f"{path}: broken JSON array: {fault}, found {repr(found) if found else 'the end of the file'}")
