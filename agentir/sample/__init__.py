"""A small real data set that travels with the package: multi-hop questions, agent trajectories and oracle answers.

| name | lines | what |
|---|---|---|
| `corpus` | 17,526 | passages: docid, title, text, source, num_words |
| `questions` | 733 | qid, dataset, split, question, answer, num_hops, gold_docids; 558 train and 175 heldout |
| `trajectories` | 334 | one episode a question (275 train, 59 heldout) as OpenAI chat messages, 1,073 searches in all |
| `oracle_answers` | 1,073 | one listwise answer a search (879 train, 194 heldout) over 20 candidates at most |

No gold passage is on both sides of the split. 93 questions (data set `hard`) are worded indirectly, in the style of
browsing benchmarks. In 305 of the oracle's lists the gold passages stood in front (`num_gold_first`), the others were
shuffled. What to know before drawing conclusions, and the licences, are in `LICENSES.md` beside this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Name = Literal["corpus", "questions", "trajectories", "oracle_answers"]


def path(name: Name) -> Path:
    """Where a file of the sample lies: gzipped JSON lines, which every program of agentir reads as they are."""
    return Path(__file__).with_name(f"{name}.jsonl.gz")
