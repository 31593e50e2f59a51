"""Documents, looked up in an index folder or in the corpus that it was made from."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from agentir.artifacts import CURRENT
from agentir.corpus.loaders import read_sourced, repeated
from agentir.jsonl import Rejects
from agentir.records import Document
from agentir.search.index import BUILDING, Index


def find_documents(path: Path, docids: Collection[str], rejects: Rejects) -> dict[str, Document]:
    """The documents with these ids, in the order of the corpus; ids that it does not have are missing.

    Args:
        path: an index folder, a JSON lines file (also `.gz`) or a BEIR folder.
        docids: what is looked for; only these are kept in memory.
        rejects: takes the lines of a file that do not fit, and those that repeat an id looked for (the first stays).
    """
    if _is_index(path):
        with Index.open(path) as index:
            return {document.docid: document for document in index.pack.find(docids)}
    wanted = frozenset(docids)
    found: dict[str, Document] = {}
    lines: dict[str, int] = {}
    for sourced in read_sourced(path, rejects):
        docid = sourced.document.docid
        if docid in lines:
            rejects.items.append(repeated(sourced, lines[docid]))
        elif docid in wanted:
            lines[docid] = sourced.line
            found[docid] = sourced.document
    return found


def document_names(path: Path, rejects: Rejects) -> Iterator[tuple[str, str, str]]:
    """Docid, title and URL of every document of a corpus, in its order.

    Args:
        path: an index folder, a JSON lines file (also `.gz`) or a BEIR folder.
        rejects: takes the lines of a file that do not fit.
    """
    if _is_index(path):
        with Index.open(path) as index:
            yield from index.pack.names()
        return
    for sourced in read_sourced(path, rejects):
        yield sourced.document.docid, sourced.document.title, sourced.document.url


def _is_index(path: Path) -> bool:
    return (path / CURRENT).is_file() or (path / BUILDING).is_dir()
