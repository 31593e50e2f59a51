"""The documents of a pool or an example, looked up in an index folder or in the corpus it was made from."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from agentir.artifacts import CURRENT
from agentir.corpus.loaders import read_sourced
from agentir.jsonl import Rejects
from agentir.records import Document
from agentir.search.index import Index


def find_documents(corpus: Path, docids: Collection[str], rejects: Rejects) -> dict[str, Document]:
    """The documents with these ids; ids that the corpus does not have are missing from the answer.

    Args:
        corpus: an index folder, a JSON lines file (also `.gz`) or a BEIR folder.
        docids: what is looked for; only these are kept in memory.
        rejects: takes the lines of a file that do not fit, and second texts for an id.
    """
    if (corpus / CURRENT).is_file():
        with Index.open(corpus) as index:
            rows = {docid: row for docid in docids if (row := index.pack.row(docid)) is not None}
            return {docid: index.pack.document(row) for docid, row in rows.items()}
    wanted = frozenset(docids)
    found: dict[str, Document] = {}
    lines: dict[str, int] = {}
    for sourced in read_sourced(corpus, rejects):
        document = sourced.document
        if document.docid not in wanted:
            continue
        if found.setdefault(document.docid, document) != document:
            expected = f"one document for an id (line {lines[document.docid]} has another)"
            rejects.add(sourced.file, sourced.line, "docid", expected, document.docid)
        lines.setdefault(document.docid, sourced.line)
    return found
