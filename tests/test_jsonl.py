"""JSON lines: strict reading, appending that survives a kill."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentir.appender import JsonlAppender, repair_tail
from agentir.errors import InputError
from agentir.jsonl import (
    MAX_DEPTH,
    MAX_SHOWN,
    Rejects,
    clean_text,
    dumps,
    iter_lines,
    iter_objects,
    read_records,
    write_jsonl,
)
from agentir.records import Document, Hit, QAItem, ToolCall, Turn

CASES = Path(__file__).parent / "data" / "cases"


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def objects(path: Path) -> list[tuple[int, dict[str, Any]]]:
    rejects = Rejects()
    rows = list(iter_objects(path, rejects))
    rejects.check()
    return rows


def the_fault(path: Path) -> str:
    rejects = Rejects()
    assert list(iter_objects(path, rejects)) == []
    (fault,) = rejects.items
    return str(fault).removeprefix(f"{path}:")


# What is read


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        pytest.param(b'{"a": 1}\n{"a": 2}\n', [(1, {"a": 1}), (2, {"a": 2})], id="plain"),
        pytest.param(b'{"a": 1}\n{"a": 2}', [(1, {"a": 1}), (2, {"a": 2})], id="no final line feed"),
        pytest.param(b'\xef\xbb\xbf{"a": 1}\n', [(1, {"a": 1})], id="byte order mark"),
        pytest.param(b'{"a": "x"}\r\n{"a": "y"}\r\n', [(1, {"a": "x"}), (2, {"a": "y"})], id="CRLF"),
        pytest.param(b'\n  \t\n{"a": 1}\n\r\n{"a": 2}\n\n', [(3, {"a": 1}), (5, {"a": 2})], id="blank lines count"),
        pytest.param(b'\xef\xbb\xbf\r\n{"a": 1}', [(2, {"a": 1})], id="byte order mark on a line of its own"),
        pytest.param(
            '{"a": "x\u2028y\u2029\x85z"}\n'.encode(), [(1, {"a": "x\u2028y\u2029\x85z"})], id="U+2028 splits no line"
        ),
        pytest.param(b'{"a": "one\\ntwo"}\n', [(1, {"a": "one\ntwo"})], id="escaped line feed"),
        pytest.param(b'{"a": "nul \\u0000 here"}\n', [(1, {"a": "nul \0 here"})], id="NUL is kept"),
        pytest.param(b'{"a": "\\ud83d\\ude00"}\n', [(1, {"a": "\U0001f600"})], id="surrogate pair"),
        pytest.param(
            b'{"a": ["\\ud800x", {"\\uDFff": 1}]}\n', [(1, {"a": ["\ufffdx", {"\ufffd": 1}]})], id="lone surrogates"
        ),
        pytest.param(b'{"a": 12345678901234567890123}\n', [(1, {"a": 12345678901234567890123})], id="long integer"),
        pytest.param(b"", [], id="empty file"),
        pytest.param(b"\xef\xbb\xbf", [], id="only a byte order mark"),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_reads(tmp_path: Path, data: bytes, rows: list[tuple[int, object]], packed: bool) -> None:
    path = write(tmp_path / ("f.jsonl.gz" if packed else "f.jsonl"), gzip.compress(data) if packed else data)
    assert objects(path) == rows


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "expected a JSON object (column 8: Expecting ',' delimiter), found '{\"a\": 1'"),
        (b"[1, 2]", "expected a JSON object, found [1, 2]"),
        (b'"text"', "expected a JSON object, found 'text'"),
        (b"null", "expected a JSON object, found None"),
        (b'{"a": 1}{"a": 2}', 'expected a JSON object (column 9: Extra data), found \'{"a": 1}{"a": 2}\''),
        (b'{"a": NaN}', "expected a JSON object (NaN is not JSON), found '{\"a\": NaN}'"),
        (b'{"a": -Infinity}', "expected a JSON object (-Infinity is not JSON), found '{\"a\": -Infinity}'"),
        (b'{"a": -1e999}', "expected a JSON object (-1e999 is out of range), found '{\"a\": -1e999}'"),
        (b'{"a": "\xff"}', "expected UTF-8 text, found <byte 0xff at column 8>"),
        ('{"a": "é"}'.encode("latin-1"), "expected UTF-8 text, found <byte 0xe9 at column 8>"),
        ('{"a": 1}'.encode("utf-16"), "expected UTF-8 text, found <byte 0xff at column 1>"),
    ],
)
def test_names_line_expected_and_found(tmp_path: Path, line: bytes, message: str) -> None:
    path = write(tmp_path / "f.jsonl", b"\n\n" + line)
    assert the_fault(path) == f"3: {message}"


@pytest.mark.parametrize("opened", [MAX_DEPTH + 1, 900, 50_000])
@pytest.mark.parametrize("text", ["x", "\\ud800"])
def test_deep_nesting_is_a_fault_not_a_crash(tmp_path: Path, opened: int, text: str) -> None:
    path = write(tmp_path / "f.jsonl", f'{{"t": "{text}", "a": {"[" * opened}{"]" * opened}}}')
    assert the_fault(path).startswith(f"1: expected a JSON object (nested deeper than {MAX_DEPTH}), found ")


def test_what_is_read_can_be_written_and_read_again(tmp_path: Path) -> None:
    depth = MAX_DEPTH - 1
    path = write(
        tmp_path / "f.jsonl",
        f'{{"docid": "d", "text": "\\udead", "metadata": {{"a": {"[" * (depth - 1)}1{"]" * (depth - 1)}}}}}',
    )
    ((_, row),) = objects(path)
    write_jsonl(tmp_path / "g.jsonl", [row])
    (document,) = read_records(tmp_path / "g.jsonl", Document)
    assert document.text == "\ufffd"
    assert document.metadata == row["metadata"]


def test_many_brackets_side_by_side_are_not_deep(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", dumps({"a": [[] for _ in range(10 * MAX_DEPTH)]}))
    assert len(objects(path)) == 1


def test_long_faults_are_shown_short(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", "x" * 1_000_000)
    assert len(the_fault(path)) < 250


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("absent.jsonl", None, "no such file"),
        ("cut.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 1000, mtime=0)[:-9], "broken gzip stream after line "),
        ("plain.jsonl.gz", b'{"a": 1}\n', "broken gzip stream after line 0: "),
        ("flipped.jsonl.gz", gzip.compress(b'{"a": 1}\n', mtime=0)[:-8] + b"\0" * 8, "broken gzip stream after line "),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    path = tmp_path / name
    if data is not None:
        write(path, data)
    with pytest.raises(InputError) as caught:
        list(iter_lines(path))
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a file, found a folder"):
        list(iter_lines(tmp_path))


# Case T13: byte order mark, CRLF, a blank line, a bad line, no final line feed


def test_case_t13_stops_by_default_and_names_the_line() -> None:
    path = CASES / "T13" / "train.jsonl"
    rejects = Rejects()
    list(iter_objects(path, rejects))
    with pytest.raises(InputError) as caught:
        rejects.check()
    first, advice = str(caught.value).splitlines()
    assert first.startswith(
        f"{path}:4: expected a JSON object (column 37: Expecting property name enclosed in double quotes), found "
    )
    assert advice == 'nothing was written; mend the lines, or set on_bad_line = "set_aside"'


def test_case_t13_sets_one_line_aside_and_reads_the_others() -> None:
    path = CASES / "T13" / "train.jsonl"
    rejects = Rejects(set_aside=True)
    rows = [row for _, row in iter_objects(path, rejects)]
    rejects.check()
    assert rows == [
        {"query": "q1", "positive": ["p1"], "negatives": ["n1"]},
        {"query": "q2", "positive": ["p2"], "negatives": ["n2"]},
        {"query": "q4", "positive": ["p4"], "negatives": ["n4"]},
    ]
    assert rejects.counts() == {str(path): 1}


# Records


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ('{"docid": 3, "text": "x"}', ["docid: expected a valid string, found 3"]),
        ('{"docid": "3"}', ["text: expected a value, found <nothing>"]),
        ('{"docid": "3", "text": "x", "txt": 1}', ["txt: expected only known fields, found <an unknown one>"]),
        ('{"docid": null}', ["docid: expected a valid string, found None", "text: expected a value, found <nothing>"]),
        (
            '{"docid": "3", "text": "\\ud800"}',
            ["expected a JSON object (unexpected end of hex escape at column 31), found "],
        ),
        ('{"docid": "3", "text": "x",}', ['expected a JSON object (trailing comma at column 28), found \'{"docid"']),
        ('{"docid": "3", "text": "x", "metadata": {"a": NaN}}', ["expected a JSON object (NaN is not JSON), found "]),
        (
            '{"docid": "3", "text": "x", "metadata": {"a": 1e400}}',
            ["expected a JSON object (1e400 is out of range), found "],
        ),
        ("[]", ["expected an object, found []"]),
    ],
)
def test_records_that_do_not_fit(tmp_path: Path, line: str, faults: list[str]) -> None:
    path = write(
        tmp_path / "f.jsonl",
        f'{{"docid": "1", "text": "NaN, Infinity and 1e400"}}\n{line}\n{{"docid": "2", "text": ""}}\n',
    )
    rejects = Rejects(set_aside=True)
    assert [document.docid for document in read_records(path, Document, rejects)] == ["1", "2"]
    assert len(rejects.items) == len(faults)
    for item, fault in zip(rejects.items, faults, strict=True):
        assert str(item).startswith(f"{path}:2: {fault}")
    assert rejects.counts() == {str(path): 1}, "a line with two faults is one line"


@pytest.mark.parametrize("score", ["NaN", "-Infinity", "1e309"])
def test_scores_are_finite(tmp_path: Path, score: str) -> None:
    path = write(tmp_path / "f.jsonl", f'{{"docid": "d", "score": {score}}}')
    with pytest.raises(InputError, match=r"f\.jsonl:1: "):
        list(read_records(path, Hit))


def test_a_text_is_not_a_list_of_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", '{"qid": "q", "question": "?", "answers": "Otto"}')
    with pytest.raises(InputError, match=r"f\.jsonl:1: answers: expected a valid array, found 'Otto'"):
        list(read_records(path, QAItem))


def test_without_rejects_the_first_fault_raises_after_the_good_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", '{"docid": "1", "score": 1.5}\n{"docid": "2"}\n')
    reader = read_records(path, Hit)
    assert next(reader) == Hit(docid="1", score=1.5)
    with pytest.raises(InputError, match=r"f\.jsonl:2: score: expected a value, found <nothing>"):
        next(reader)


def test_nested_records_keep_order_and_types(tmp_path: Path) -> None:
    calls = (
        ToolCall(call_id="007", name="search", arguments={"query": "ü"}),
        ToolCall(call_id="", name="", arguments=None, raw_arguments="{"),
    )
    turn = Turn(index=2, reasoning="r\n", text="", calls=calls, results=())
    assert write_jsonl(tmp_path / "f.jsonl", [turn]) == 1
    assert (tmp_path / "f.jsonl").read_text(encoding="utf-8") == (
        '{"index": 2, "reasoning": "r\\n", "text": "", "calls": ['
        '{"call_id": "007", "name": "search", "arguments": {"query": "ü"}, "raw_arguments": ""}, '
        '{"call_id": "", "name": "", "arguments": null, "raw_arguments": "{"}], "results": [], '
        '"finish": "", "usage": {"num_calls": 0, '
        '"num_attempts": 0, "prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0, "reasoning_tokens": 0, '
        '"cost": 0.0}, "latency": 0.0, "raw": null, "notes": [], "prompted": ""}\n'
    )
    assert list(read_records(tmp_path / "f.jsonl", Turn)) == [turn]
    assert not list(tmp_path.glob("*.part"))


@given(st.lists(st.builds(Document, docid=st.text(min_size=1), text=st.text(st.characters()), title=st.text())))
def test_any_text_survives_the_way_through_a_file(
    tmp_path_factory: pytest.TempPathFactory, documents: list[Document]
) -> None:
    path = tmp_path_factory.mktemp("any") / "f.jsonl"
    write_jsonl(path, documents)
    assert list(read_records(path, Document)) == [replace(d, text=clean_text(d.text)) for d in documents]


def test_lone_surrogates_are_written_as_replacement_characters() -> None:
    assert dumps(Document(docid="d", text="a\ud800b")).encode() == dumps(Document(docid="d", text="a\ufffdb")).encode()
    assert clean_text("\udfff\U0001f600") == "\ufffd\U0001f600"


def test_numbers_that_are_not_finite_are_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(Hit(docid="d", score=float("nan")))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", '{"a": 1}\n')
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_jsonl(path, [{"a": 2}, {"a": float("inf")}])
    assert objects(path) == [(1, {"a": 1})]


# Faults together


def test_all_faults_are_listed_up_to_a_limit() -> None:
    rejects = Rejects()
    for line in range(1, MAX_SHOWN + 4):
        rejects.add("f.jsonl", line, "query", "a text", line)
    with pytest.raises(InputError) as caught:
        rejects.check()
    lines = str(caught.value).splitlines()
    assert lines[0] == "f.jsonl:1: query: expected a text, found 1"
    assert lines[MAX_SHOWN] == "... and 3 more"
    assert len(lines) == MAX_SHOWN + 2


def test_no_faults_no_error() -> None:
    Rejects().check()
    assert Rejects().counts() == {}


# Appending

LINES = [{"n": 0, "text": "ä\u2028"}, {"n": 1, "text": "two"}, {"n": 2, "list": [1, {"a": "}"}]}]


def test_every_torn_tail_is_cut_and_nothing_before_it(tmp_path: Path) -> None:
    whole = [dumps(line).encode() + b"\n" for line in LINES]
    kept, last = b"".join(whole[:-1]), whole[-1]
    path = tmp_path / "f.jsonl"
    for size in range(len(last) + 1):
        write(path, kept + last[:size])
        complete = size >= len(last) - 1
        with JsonlAppender(path) as appender:
            assert appender.num_cut == (0 if complete else size)
            appender.append({"n": 3})
        assert [row for _, row in objects(path)] == [*LINES[: 3 if complete else 2], {"n": 3}]


@pytest.mark.parametrize(
    ("data", "num_cut", "left"),
    [
        (b"", 0, b""),
        (b'{"a"', 4, b""),
        (b'{"a": 1}', 0, b'{"a": 1}\n'),
        (b"17", 2, b""),
        (b'{"a": 1}\n\0\0\0', 3, b'{"a": 1}\n'),
        (b'{"a": 1}\n{"a": "\xc3', 8, b'{"a": 1}\n'),
        (b'{"a": 1}\n' + b"[" * 200_000, 200_000, b'{"a": 1}\n'),
        (b'{"a": 1}\n{"a": "' + b"x" * 200_000, 200_007, b'{"a": 1}\n'),
        (b'{"a": 1}\n\n', 0, b'{"a": 1}\n\n'),
    ],
)
def test_repair(tmp_path: Path, data: bytes, num_cut: int, left: bytes) -> None:
    path = write(tmp_path / "f.jsonl", data)
    assert repair_tail(path) == num_cut
    assert path.read_bytes() == left
    assert repair_tail(path) == 0


def test_repair_of_an_absent_file_makes_none(tmp_path: Path) -> None:
    assert repair_tail(tmp_path / "f.jsonl") == 0
    assert not (tmp_path / "f.jsonl").exists()


APPEND_FOREVER = """
import sys
from agentir.appender import JsonlAppender
with JsonlAppender(sys.argv[1]) as appender:
    for n in range(10**9):
        appender.append({"n": n, "text": "ä" * (n % 5000)})
"""


def test_kill_9_while_appending_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    for round_ in range(4):
        before = path.stat().st_size if path.exists() else 0
        process = subprocess.Popen([sys.executable, "-c", APPEND_FOREVER, str(path)])
        deadline = time.monotonic() + 30
        while not path.exists() or path.stat().st_size < before + 100_000:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001 * (1 + round_))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with JsonlAppender(path):
            pass
        assert path.read_bytes().endswith(b"\n")
        numbers = [row["n"] for _, row in objects(path)]
        starts = [position for position, number in enumerate(numbers) if number == 0]
        assert len(starts) == round_ + 1
        for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
            assert numbers[start:end] == list(range(end - start))


def test_what_was_appended_is_there_before_close(tmp_path: Path) -> None:
    with JsonlAppender(tmp_path / "f.jsonl") as appender:
        appender.append({"a": "x\ud800"})
        appender.sync()
        assert json.loads((tmp_path / "f.jsonl").read_bytes()) == {"a": "x\ufffd"}


def test_threads_that_append_to_one_file_do_not_mix_lines(tmp_path: Path) -> None:
    with JsonlAppender(tmp_path / "f.jsonl") as appender, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: appender.append({"n": n, "text": "x" * (n % 3000)}), range(2000)))
    assert sorted(row["n"] for _, row in objects(tmp_path / "f.jsonl")) == list(range(2000))
