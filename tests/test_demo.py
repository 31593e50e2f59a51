"""The demo's plan: its configuration files fit the programs, and its small sample hangs together."""

import gzip
import json
import os
from pathlib import Path

import pytest

from agentir.cli import TOP, load_program
from agentir.config import load_config
from agentir.demo import SMALL_EPISODES, configs_folder, stages, write_sample
from agentir.errors import ArtifactError


@pytest.mark.parametrize("small", [False, True])
def test_every_stage_is_a_program_with_a_configuration_that_fits_it(small: bool) -> None:
    planned = stages(os.path.relpath(configs_folder()), small=small)
    outs = []
    for stage in planned:
        first, *rest = stage.arguments
        if first in TOP:
            from agentir.train import run as module
        else:
            module = load_program(first, rest.pop(0))
        outs.append(str(load_config(module.Config, rest, prog=stage.name).out))
    assert len(set(outs)) == len(planned), "every stage writes a folder of its own"
    evaluated = {out for out in outs if out.startswith("evaluations/")}
    report = (configs_folder() / "report.toml").read_text()
    assert len(evaluated) == 6 and all(f'"{out}"' in report for out in evaluated)


def test_trained_systems_differ_in_what_they_read_only() -> None:
    texts = [
        [
            line
            for line in (configs_folder() / f"train-{kind}.toml").read_text().splitlines()
            if not line.startswith("#")
        ]
        for kind in ("query", "question", "reasoning")
    ]
    differing = {line.split(" = ")[0] for other in texts[1:] for line in set(other) ^ set(texts[0])}
    assert differing == {"input", "out"}


def test_small_sample_holds_whole_episodes_and_what_they_need(tmp_path: Path) -> None:
    write_sample(tmp_path / "sample", small=True)
    data = {}
    for name in ("corpus", "questions", "trajectories", "oracle_answers"):
        with gzip.open(tmp_path / "sample" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            data[name] = [json.loads(line) for line in file]
    splits = [question["split"] for question in data["questions"]]
    assert {split: splits.count(split) for split in set(splits)} == SMALL_EPISODES
    qids = {question["qid"] for question in data["questions"]}
    assert {episode["qid"] for episode in data["trajectories"]} == qids
    docids = {document["docid"] for document in data["corpus"]}
    assert all(docid in docids for answer in data["oracle_answers"] for docid in answer["candidates"])
    assert all(docid in docids for question in data["questions"] for docid in question["gold_docids"])
    write_sample(tmp_path / "sample", small=True)
    with pytest.raises(ArtifactError, match="holds the small demo; name another out folder"):
        write_sample(tmp_path / "sample", small=False)
