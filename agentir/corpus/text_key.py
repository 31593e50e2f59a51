"""When two documents have the same text, and so are one to whoever reads them."""

from __future__ import annotations

import hashlib
import unicodedata

from agentir.records import Document


def text_key(document: Document) -> str:
    """A key that documents with the same text have in common, whatever their titles and docids.

    Case, white space and the forms that Unicode holds for compatible (NFKC: full width, ligatures, composed accents) make
    no other text. A blank text is like no other: its key is the docid's own.
    """
    if not (words := folded(document.text)):
        return f"blank {document.docid}"
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()


def folded(text: str) -> str:
    """The text without what makes no other one: case, white space, and the forms that Unicode holds for compatible."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())
