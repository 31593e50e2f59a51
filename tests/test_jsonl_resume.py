import json
import shutil
from pathlib import Path

from agentir.appender import JsonlAppender

CASES = Path(__file__).parent / "data" / "cases"


def test_a_torn_last_line_is_cut_and_only_what_is_missing_is_run(tmp_path: Path) -> None:
    """Case S20."""
    out = tmp_path / "out.jsonl"
    shutil.copyfile(CASES / "S20" / "out.jsonl", out)
    before = out.read_bytes()
    todo = json.loads((CASES / "S20" / "todo.json").read_text(encoding="utf-8"))
    with JsonlAppender(out) as appender:
        done = {json.loads(line)["qid"] for line in out.read_text(encoding="utf-8").splitlines()}
        assert done == {"q1", "q2"}
        assert before[-appender.num_cut :] == b'{"qid":"q3","subquer'
        for qid in todo:
            if qid not in done:
                appender.append({"qid": qid, "subquery": qid, "positives": []})
    assert out.read_bytes().endswith(b"\n")
    assert out.read_bytes().startswith(before[: -appender.num_cut])
    assert [json.loads(line)["qid"] for line in out.read_text(encoding="utf-8").splitlines()] == todo
