from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentir.corpus.chunker import chunk_bounds
from agentir.errors import ConfigError

PIECES = ["Fox ", "den. ", "Mr. ", "U.S. ", "3.14 ", "x ", "\n", "! ", "。", "日本", "…", '?" ', "\u3000", "a", "... "]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join))


def parts(text: str, max_words: int, overlap_sentences: int = 0) -> list[str]:
    return [text[start:end] for start, end in chunk_bounds(text, max_words, overlap_sentences)]


@pytest.mark.parametrize(
    ("text", "max_words", "chunks"),
    [
        ("", 5, []),
        ("   \n ", 5, ["   \n "]),
        ("No end", 5, ["No end"]),
        ("One fox. Two dens!  Three?", 2, ["One fox. ", "Two dens!  ", "Three?"]),
        ("One fox. Two dens!  Three?", 4, ["One fox. Two dens!  ", "Three?"]),
        ('He said "no." Then he left.', 3, ['He said "no." ', "Then he left."]),
        ("Dr. J. R. Smith met the U.S. Army. Good.", 8, ["Dr. J. R. Smith met the U.S. Army. ", "Good."]),
        ("Pi is 3.14, approx. three, e.g. here. Yes.", 7, ["Pi is 3.14, approx. three, e.g. here. ", "Yes."]),
        ("Wait... what? Wait... What?", 2, ["Wait... what? ", "Wait... What?"]),
        ("Wait... what? Wait... What?", 1, ["Wait... ", "what? ", "Wait... ", "What?"]),
        ("Title here\n\nBody text\nmore of it", 3, ["Title here\n\n", "Body text\n", "more of it"]),
        ("\n\nLead line", 2, ["\n\nLead line"]),
        ("東京は首都です。「はい。」そう！", 7, ["東京は首都です。", "「はい。」そう！"]),
    ],
)
def test_chunks_end_where_sentences_end(text: str, max_words: int, chunks: list[str]) -> None:
    assert parts(text, max_words) == chunks


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("one two three four five six seven. Eight.", ["one two three ", "four five six ", "seven. Eight."]),
        ("東京は首都です。", ["東京は", "首都で", "す。"]),
        ("a" * 1000, ["a" * 1000]),
    ],
)
def test_long_sentences_are_divided_between_words(text: str, chunks: list[str]) -> None:
    assert parts(text, 3) == chunks


def test_overlap_repeats_sentences_as_far_as_the_limit_leaves_room() -> None:
    text = "A b. C d. E f. G h i j."
    assert parts(text, 4, overlap_sentences=1) == ["A b. C d. ", "C d. E f. ", "G h i j."]


@settings(deadline=None)
@given(text=TEXTS, max_words=st.integers(1, 12), overlap=st.integers(0, 3))
def test_chunks_cover_the_text_in_order_within_the_limit(text: str, max_words: int, overlap: int) -> None:
    bounds = chunk_bounds(text, max_words, overlap)
    assert [start for start, _ in bounds] == sorted({start for start, _ in bounds})
    assert [end for _, end in bounds] == sorted({end for _, end in bounds})
    assert (bounds[0][0], bounds[-1][1]) == (0, len(text)) if text else bounds == []
    for (_, end), (start, _) in pairwise(bounds):
        assert start == end if overlap == 0 else start <= end
    assert all(len(text[start:end].split()) <= max_words for start, end in bounds)


@pytest.mark.parametrize(("max_words", "overlap"), [(0, 0), (-1, 0), (5, -1)])
def test_limits_that_make_no_chunks_are_refused(max_words: int, overlap: int) -> None:
    with pytest.raises(ConfigError, match=f"found {max_words} and {overlap}"):
        chunk_bounds("text", max_words, overlap)
