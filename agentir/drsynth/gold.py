"""Gold documents that questions name by title or URL, found in a corpus."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from agentir.corpus.text_key import folded
from agentir.jsonl import Rejects
from agentir.records import QAItem
from agentir.search.documents import document_names

_HOST = re.compile(r"(?:(?:[a-z][a-z0-9+.-]*:)?//)?(?:www\.)?([^/?]*)(.*)", re.IGNORECASE | re.DOTALL)


def resolve_gold(items: Sequence[QAItem], corpus: Path, rejects: Rejects) -> tuple[list[QAItem], dict[str, int]]:
    """Gives questions that name their gold documents by title or URL the docids that these have in a corpus.

    Titles are the same up to case, white space and the forms that Unicode holds for compatible; URLs as `url_key` says.
    Where several documents have a title or URL, all of them are gold. Questions that have gold docids are left as they
    are; where no other names gold documents, the corpus is not read.

    Args:
        items: the questions.
        corpus: an index folder, a JSON lines file (also `.gz`) or a BEIR folder; of its documents only the docids of
            those looked for are kept in memory.
        rejects: takes the lines of a corpus file that do not fit.

    Returns:
        The questions in their order, and counts, empty where nothing was looked for: questions of which gold documents
        were found, questions of which none was, titles and URLs that no document has, and those that several have.
    """
    titles: dict[str, dict[str, None]] = {}
    urls: dict[str, dict[str, None]] = {}
    for item in items:
        if not item.gold_docids:
            titles |= {folded(title): {} for title in item.gold_titles}
            urls |= {url_key(url): {} for url in item.gold_urls}
    if not titles and not urls:
        return list(items), {}
    for docid, title, url in document_names(corpus, rejects):
        if titles and title and (found := titles.get(folded(title))) is not None:
            found[docid] = None
        if urls and url and (found := urls.get(url_key(url))) is not None:
            found[docid] = None
    resolved: list[QAItem] = []
    num_found = num_not_found = 0
    for item in items:
        if not item.gold_docids and (item.gold_titles or item.gold_urls):
            docids = dict.fromkeys(docid for title in item.gold_titles for docid in titles[folded(title)])
            docids |= dict.fromkeys(docid for url in item.gold_urls for docid in urls[url_key(url)])
            item = replace(item, gold_docids=tuple(docids))
            num_found, num_not_found = num_found + bool(docids), num_not_found + (not docids)
        resolved.append(item)
    return resolved, {
        "questions_with_gold_found_by_name": num_found,
        "questions_with_no_gold_found_by_name": num_not_found,
        "gold_titles_not_in_corpus": sum(not docids for docids in titles.values()),
        "gold_urls_not_in_corpus": sum(not docids for docids in urls.values()),
        "gold_names_of_several_documents": sum(len(docids) > 1 for docids in (*titles.values(), *urls.values())),
    }


def url_key(url: str) -> str:
    """What URLs of the same page have in common.

    Scheme, `www.`, fragment, slashes at the end and the case of the host make no other page, nor does how characters are
    written: percent-encoded or not, a blank or an underscore, composed or not.
    """
    match = _HOST.fullmatch(url.strip().partition("#")[0])
    host, rest = match.groups() if match else ("", url)
    return unicodedata.normalize("NFC", host.lower() + unquote(rest)).replace(" ", "_").rstrip("/")
