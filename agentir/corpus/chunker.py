"""Divides a text into chunks that end where sentences end.

A sentence ends at `.`, `!` or `?` (with closing quotes and brackets) before white space, at a CJK full stop, and at a line
end. A full stop after an initial, a common abbreviation, or before a lower-case word ends nothing. A word is a run without
white space; in CJK text, which has no spaces, every character counts as a word.
"""

from __future__ import annotations

import re
from itertools import pairwise

from agentir.errors import ConfigError

CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Character ranges (for a regular expression's class) of the scripts that write words without spaces: Han and kana."""

_WORD = re.compile(rf"[{CJK}][\u3001-\u303f\uff01-\uff0f\uff1a-\uff20\uff61-\uff65]*|[^\s{CJK}]+")
"""A CJK character with the punctuation behind it, or a run of anything else without white space."""
_CLOSERS = "\"'\u2019\u201d\u00bb)\\]\u300d\u300f\uff09\u3011"
_END = re.compile(rf"[.!?]+[{_CLOSERS}]*(?=\s)\s*|[\u3002\uff01\uff1f\uff61]+[{_CLOSERS}]*\s*|\n\s*")
_LAST_WORD = re.compile(r"[^\s(\[\"'\u201c\u2018]+$")
_LOOK_BACK = 24
"""How many characters before a full stop are looked at; longer than any abbreviation."""
_ABBREVIATION_LIST = """
mr mrs ms dr prof st sr jr rev hon gen col capt lt sgt gov sen rep pres vs etc e.g i.e cf al et approx ca no nos vol vols
pp p fig figs eq eqs sec ch ed eds inc ltd co corp dept univ est jan feb mar apr jun jul aug sep sept oct nov dec mt ft ave
blvd
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())


def chunk_bounds(text: str, max_words: int = 250, overlap_sentences: int = 0) -> list[tuple[int, int]]:
    """Character offsets (start, end) of the chunks, in order; together they cover the text without a gap.

    Args:
        text: what to divide; an empty text has no chunks.
        max_words: the most words a chunk may hold; a longer sentence is divided between words.
        overlap_sentences: how many sentences of a chunk the next one repeats, as far as the limit leaves room.
    """
    if max_words < 1 or overlap_sentences < 0:
        raise ConfigError(
            f"expected max_words of at least 1 and overlap_sentences of at least 0, found {max_words} and {overlap_sentences}"
        )
    units = [unit for start, end in _sentences(text) for unit in _divided(text, start, end, max_words)]
    bounds: list[tuple[int, int]] = []
    first = 0
    while first < len(units):
        last, words = first, 0
        while last < len(units) and (last == first or words + units[last][2] <= max_words):
            words += units[last][2]
            last += 1
        bounds.append((units[first][0], units[last - 1][1]))
        if last == len(units):
            break
        first = max(first + 1, last - overlap_sentences)
        while first < last and sum(unit[2] for unit in units[first : last + 1]) > max_words:
            first += 1
    return bounds


def _sentences(text: str) -> list[tuple[int, int]]:
    """Offsets of the sentences; white space belongs to the sentence before it, at the beginning to the first one."""
    cuts = [0] if text else []
    lead = len(text) - len(text.lstrip())
    for match in _END.finditer(text, lead):
        if match.end() < len(text) and _ends_sentence(text, match):
            cuts.append(match.end())
    return list(pairwise([*cuts, len(text)]))


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    if match[0][0] != "." or "\n" in match[0]:
        return True
    if match[0].startswith(".."):
        return not text[match.end()].islower()
    before = _LAST_WORD.search(text, max(0, match.start() - _LOOK_BACK), match.start())
    word = before[0] if before else ""
    is_initial = len(word.rpartition(".")[2]) == 1 and word[-1:].isupper()
    return not (is_initial or word.lower() in _ABBREVIATIONS or text[match.end()].islower())


def _divided(text: str, start: int, end: int, max_words: int) -> list[tuple[int, int, int]]:
    """(start, end, number of words) of a sentence, or of its parts where it is longer than a chunk may be."""
    words = [match.start() for match in _WORD.finditer(text, start, end)]
    if len(words) <= max_words:
        return [(start, end, len(words))]
    cuts = [start, *words[max_words::max_words], end]
    counts = [min(max_words, len(words) - at) for at in range(0, len(words), max_words)]
    return [(left, right, count) for (left, right), count in zip(pairwise(cuts), counts, strict=True)]
