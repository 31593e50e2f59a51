"""Which documents count as one, because they have the same text."""

import pytest

from agentir.corpus.text_key import text_key
from agentir.records import Document


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [
        ("Lima  is", "lima is\n", True),
        ("STRASSE", "Straße", True),
        ("\u212bngstr\u00f6m", "a\u030angstro\u0308m", True),
        ("ﬁlm　１", "film 1", True),
        ("\u0130zmir", "i\u0307zmir", True),
        ("\U0001d400b", "ab", True),
        ("\u03aa\u0301", "\u0390", True),
        ("\ud800", "\ud800 ", True),
        ("Lima is", "Lima was", False),
        ("ab", "a b", False),
        ("Lima.", "Lima", False),
        ("", "", False),
        (" \n", "\u3000", False),
    ],
)
def test_case_white_space_and_compatible_forms_make_no_other_text(text: str, other: str, same: bool) -> None:
    first = Document(docid="a", text=text, title="One")
    second = Document(docid="b", text=other, title="Another")
    assert (text_key(first) == text_key(second)) is same
    assert text_key(first) == text_key(Document(docid="a", text=text))
