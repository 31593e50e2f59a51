"""The README's Python for DR-Synth, run as it stands there against a real server."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from scripted_server import Reply, ScriptedServer, Seen, completion

from agentir.jsonl import write_jsonl
from agentir.records import Document
from agentir.search.builder import build_index

README = Path(__file__).parents[2] / "README.md"


def test_the_readmes_python_makes_examples(
    chat_server: Callable[[Callable[[Seen], Reply]], ScriptedServer], tmp_path: Path
) -> None:
    documents = [Document(docid=f"d{n}", text=f"Mill {n} was built in {1800 + n}.") for n in range(30)]
    write_jsonl(tmp_path / "corpus.jsonl", documents)
    build_index(tmp_path / "runs" / "index", tmp_path / "corpus.jsonl")
    questions = [
        {"qid": f"q{n}", "question": f"When was mill {n} built?", "answer": str(1800 + n), "gold_docids": [f"d{n}"]}
        for n in range(3)
    ]
    write_jsonl(tmp_path / "questions.jsonl", questions)

    def script(seen: Seen) -> Reply:
        asked = seen.body["messages"][-1]
        if "Correct answer" in asked["content"]:
            year = re.search(r"Correct answer: (\d+)", asked["content"])
            numbers = re.findall(r"^\[(\d+)\].* in (\d+)\.", asked["content"], re.MULTILINE)
            assert year is not None
            numbers.sort(key=lambda number: number[1] != year[1])
            return Reply(completion(" > ".join(f"[{number}]" for number, _ in numbers)))
        if asked["role"] == "tool":
            return Reply(completion("</think>It is in the results."))
        call = ("search", json.dumps({"query": asked["content"]}))
        return Reply(completion(f"<think>I need: {asked['content']}</think>", calls=[call]))

    server = chat_server(script)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "synthesize" in block)
    code = code.replace("http://127.0.0.1:6008/v1", server.url)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"I need: When was mill {n} built? | When was mill {n} built? -> ('d{n}',)" for n in range(3)
    ]
