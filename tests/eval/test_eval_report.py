"""The program `agentir eval report`, over small evaluations."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agentir.artifacts import Artifact, read_manifest
from agentir.cli import run
from agentir.config import ProgramConfig
from agentir.errors import ArtifactError, ConfigError, InputError
from agentir.measures.query_values import QueryValues

HOSTILE = '</script><script>alert("1")</script> <img src=x onerror=alert(2)> | & \'"'
QUERIES = [(f"q{number}", turn) for number in range(8) for turn in range(1 + number % 3)]


class Settings(ProgramConfig):
    system: str
    seed: int | None = None


def evaluation(
    folder: Path, name: str, gain: float, *, seed: int | None = None, left_out: int = 0, extra_slice: str | None = None
) -> Path:
    """A finished evaluation of `QUERIES` (but for the last `left_out`), each value higher by `gain` on later turns."""
    for source in ("examples.jsonl", "questions.jsonl"):
        (folder / source).write_text(f"{source} of {left_out}\n")
    config = Settings(out=folder / f"{name}{seed or ''}", system=name, seed=seed)
    inputs = {"examples": folder / "examples.jsonl", "questions": folder / "questions.jsonl"}
    items = []
    for qid, turn in QUERIES[: len(QUERIES) - left_out]:
        slices = ["all", "later turns" if turn else "first turn", *([extra_slice] if extra_slice and turn == 1 else [])]
        value = 0.4 + 0.01 * int(qid[1:]) + (gain + 0.001 * turn * int(qid[1:]) if turn else 0.0)
        items.append(
            QueryValues(
                subqid=f"{qid}_turn{turn}",
                qid=qid,
                slices=tuple(slices),
                num_relevant=1,
                values={"nDCG@10": value, "Recall@5": 1.0 if gain > 0 else 0.5},
            )
        )
    with Artifact(config.out, "evaluation", config, inputs) as artifact:
        artifact.write("per_query.jsonl", items)
        artifact.finish(
            {
                "system": name,
                "seed": seed,
                "notes": [f"{len(items)} evaluated"],
                "left_out": [],
                "ms_per_query": 1.5,
                "encoder": {"name": name, "dim": 16},
                "machine": "a machine",
                "versions": {"agentir": "0.1.0"},
            }
        )
    return config.out


def toml(folder: Path, systems: dict[str, list[Path]], differences: list[list[str]], **settings: object) -> list[str]:
    """The arguments of a report."""
    values = {"out": str(folder / "report"), "measures": ["nDCG@10", "Recall@5"], "num_resamples": 500}
    values |= {"differences": differences, **settings} | ({} if systems else {"systems": []})
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    for name, paths in systems.items():
        lines += [
            "[[systems]]",
            f"name = {json.dumps(name)}",
            f"evaluations = {json.dumps([str(path) for path in paths])}",
        ]
    (folder / "report.toml").write_text("\n".join(lines))
    return ["eval", "report", "--config", str(folder / "report.toml")]


class Page(HTMLParser):
    """What a browser would make of the page: tags, texts, and the data its script reads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        (self.scripts if self._in_script else self.texts).append(data)

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "report" / "report.json").read_text(encoding="utf-8"))
    return rows


def test_rows_findings_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, better = evaluation(tmp_path, "plain", 0.0), evaluation(tmp_path, "better", 0.3)
    run(toml(tmp_path, {"with reasoning": [better], "query": [plain]}, [["with reasoning", "query"]]))
    rows = rows_of(tmp_path)
    assert all(list(row) == ["system", "slice", "measure", "mean", "low", "high", "num"] for row in rows)
    by_key = {(row["system"], row["slice"], row["measure"]): row for row in rows}
    assert len(by_key) == len(rows) == 3 * 3 * 2
    difference = by_key["with reasoning − query", "later turns", "nDCG@10"]
    assert difference["mean"] == pytest.approx(0.3)
    assert (difference["low"], difference["high"], difference["num"]) == (pytest.approx(0.3), pytest.approx(0.3), 7)
    assert by_key["with reasoning", "all", "Recall@5"]["mean"] == 1.0

    first, *further = read_manifest(tmp_path / "report", "report")["report"]["findings"]
    assert first.startswith("“with reasoning” is better than “query”: nDCG@10 0.5")
    assert first.endswith("over 15 sub-queries of 8 questions.")
    assert further == [
        "It is largest on “later turns”: +0.300 [+0.300, +0.300], 7 sub-queries.",
        "The interval holds 0 on “first turn”.",
    ]
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| later turns | 7 | +0.300 [+0.300, +0.300] |" in text
    page = Page(tmp_path / "report" / "report.html")
    assert first in page.texts
    [tally] = [each for each in page.data["tallies"] if (each["slice"], each["measure"]) == ("all", "nDCG@10")]
    assert (tally["wins"], tally["losses"], tally["ties"]) == (5, 0, 3)
    assert first in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gains", "differences", "start"),
    [
        ((0.0, 0.3), [["A", "B"]], "“A” is worse than “B”: nDCG@10 "),
        ((0.1, 0.1), [["A", "B"]], "No clear difference between “A” and “B”: nDCG@10 "),
        ((0.1, 0.3), [], "The highest mean: “B” reaches nDCG@10 "),
    ],
)
def test_the_headline_says_what_the_numbers_say(
    tmp_path: Path, gains: tuple[float, float], differences: list[list[str]], start: str
) -> None:
    folders = [evaluation(tmp_path, name, gain) for name, gain in zip("ab", gains, strict=True)]
    run(toml(tmp_path, {"A": folders[:1], "B": folders[1:]}, differences))
    assert read_manifest(tmp_path / "report")["report"]["findings"][0].startswith(start)


def test_one_system_alone_is_reported(tmp_path: Path) -> None:
    run(toml(tmp_path, {"A": [evaluation(tmp_path, "a", 0.1)]}, []))
    assert {row["system"] for row in rows_of(tmp_path)} == {"A"}
    assert read_manifest(tmp_path / "report")["report"]["findings"][0].startswith("“A” reaches nDCG@10 ")


def test_seeds_are_averaged_and_shown_each(tmp_path: Path) -> None:
    seeds = [evaluation(tmp_path, "a", gain, seed=seed) for seed, gain in ((1, 0.1), (2, 0.3))]
    alone = evaluation(tmp_path, "middle", 0.2)
    run(toml(tmp_path, {"A": seeds, "B": [alone]}, [["A", "B"]]))
    [row] = [
        row for row in rows_of(tmp_path) if (row["system"], row["slice"], row["measure"]) == ("A − B", "all", "nDCG@10")
    ]
    assert row["mean"] == pytest.approx(0.0)
    texts = Page(tmp_path / "report" / "report.html").texts
    assert {"A, evaluation 1", "A, evaluation 2", "B"} <= set(texts) and "B, evaluation 1" not in texts


def test_sub_queries_that_a_system_lacks_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, part = evaluation(tmp_path, "whole", 0.1), evaluation(tmp_path, "part", 0.2, left_out=2)
    run(toml(tmp_path, {"A": [whole], "B": [part]}, [["A", "B"]]))
    report = read_manifest(tmp_path / "report")["report"]
    assert report["num_subqueries"] == len(QUERIES) - 2
    assert report["cautions"] == [
        "A: 2 sub-queries left out, since another evaluation lacks them: q7_turn0, q7_turn1",
        "the evaluations were made from different examples files; only shared sub-queries are compared",
        "the evaluations were made from different questions files; only shared sub-queries are compared",
    ]
    assert "2 sub-queries left out" in capsys.readouterr().out
    for name in ("report.md", "report.html"):
        assert "2 sub-queries left out" in (tmp_path / "report" / name).read_text()


def test_evaluations_with_other_slices_are_refused(tmp_path: Path) -> None:
    one, two = evaluation(tmp_path, "one", 0.1), evaluation(tmp_path, "two", 0.2, extra_slice="mine")
    with pytest.raises(InputError, match="slices differs"):
        run(toml(tmp_path, {"A": [one], "B": [two]}, []))
    assert not (tmp_path / "report").exists()


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    folder = evaluation(tmp_path, "a", 0.1, extra_slice=HOSTILE)
    other = evaluation(tmp_path, "b", 0.2, extra_slice=HOSTILE)
    systems = {HOSTILE: [folder], "B": [other]}
    run(toml(tmp_path, systems, [[HOSTILE, "B"]], title=HOSTILE, notes=HOSTILE))
    page = Page(tmp_path / "report" / "report.html")
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not {"img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.data["systems"] == [HOSTILE, "B"]
    assert page.texts.count(HOSTILE) >= 3
    assert HOSTILE in [row["slice"] for row in rows_of(tmp_path)]
    lines = (tmp_path / "report" / "report.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("| all |")]
    assert all(
        len(re.findall(r"(?<!\\)\|", line)) == len(re.findall(r"(?<!\\)\|", lines[lines.index(line) - 1]))
        for line in table
    )
    assert "<" not in "".join(lines)


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    run(toml(tmp_path, {"A": [evaluation(tmp_path, "a", 0.1)]}, []))
    page = Page(tmp_path / "report" / "report.html")
    assert not [
        tag for tag, attributes in page.tags if tag in ("link", "img") or "src" in attributes or "href" in attributes
    ]
    text = (tmp_path / "report" / "report.html").read_text()
    assert not re.findall(r"url\(|@import|fetch\(|XMLHttpRequest", text)
    assert set(re.findall(r"https?://[^\"']+", text)) <= {"http://www.w3.org/2000/svg"}


def test_provenance_names_inputs_settings_and_machine(tmp_path: Path) -> None:
    folder = evaluation(tmp_path, "a", 0.1, seed=7)
    run(toml(tmp_path, {"A": [folder]}, []))
    texts = Page(tmp_path / "report" / "report.html").texts
    manifest = read_manifest(folder)
    for expected in (
        manifest["inputs"]["examples"]["fingerprint"],
        manifest["created"],
        str(folder),
        "a machine",
        "agentir 0.1.0",
    ):
        assert expected in texts


@pytest.mark.parametrize(
    ("systems", "differences", "settings", "text"),
    [
        ({"A": 1, "B": 1}, [["A", "C"]], {}, "unknown system 'C'; known: A, B"),
        ({"A": 1}, [["A", "A"]], {}, "'A' twice"),
        ({"A": 0}, [], {}, "'A': expected at least one evaluation"),
        ({}, [], {}, "expected at least one table"),
        ({"A": 1}, [], {"measures": ["nDCG@1O"]}, "nDCG@1O"),
        ({"A": 1}, [], {"num_resamples": 0}, "num_resamples"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, systems: dict[str, int], differences: list[list[str]], settings: dict[str, object], text: str
) -> None:
    folder = evaluation(tmp_path, "a", 0.1)
    with pytest.raises(ConfigError, match=text):
        run(toml(tmp_path, {name: [folder] * count for name, count in systems.items()}, differences, **settings))


def test_what_is_no_evaluation_or_lacks_a_measure_is_refused(tmp_path: Path) -> None:
    folder = evaluation(tmp_path, "a", 0.1)
    with pytest.raises(InputError, match="expected a value of MRR@10"):
        run(toml(tmp_path, {"A": [folder]}, [], measures=["MRR@10"]))
    run(toml(tmp_path, {"A": [folder]}, []))
    with pytest.raises(ArtifactError, match="evaluation artifact, found report"):
        run(toml(tmp_path, {"A": [tmp_path / "report"]}, [], out=str(tmp_path / "other")))
