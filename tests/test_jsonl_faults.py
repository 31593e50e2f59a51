"""Faults of JSON lines: values that do not fit, raised or noted."""

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from agentir.errors import InputError
from agentir.jsonl import Misfit, Rejects, add_validation_faults
from agentir.records import Turn


def test_what_validation_finds_in_a_line_is_noted_with_its_field() -> None:
    turn = {"index": "2", "reasoning": "", "text": "", "calls": [{"call_id": "a", "name": 1}], "results": [], "x": 0}
    rejects = Rejects()
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(Turn).validate_json(json.dumps(turn))
    add_validation_faults(rejects, Path("f.jsonl"), 4, raised.value)
    assert [str(item) for item in rejects.items] == [
        "f.jsonl:4: index: expected a valid integer, found '2'",
        "f.jsonl:4: calls.0.name: expected a valid string, found 1",
        "f.jsonl:4: calls.0.arguments: expected a value, found <nothing>",
        "f.jsonl:4: x: expected only known fields, found <an unknown one>",
    ]


@pytest.mark.parametrize(
    ("found", "shown"),
    [(3, "3"), ("<no such field>", "<no such field>"), ("x" * 999, "'" + "x" * 116 + "...")],
)
def test_a_value_that_does_not_fit_reads_the_same_raised_or_noted(found: object, shown: str) -> None:
    misfit = Misfit("query", "a text", found)
    assert isinstance(misfit, InputError)
    assert str(misfit) == f"query: expected a text, found {shown}"
    rejects = Rejects()
    rejects.add("f.jsonl", 4, *misfit.args)
    assert str(rejects.items[0]) == f"f.jsonl:4: {misfit}"
