"""Sentences of a text.

marks    lines of a paragraph are joined, and cut behind a full stop, question or exclamation mark before a capital
lines    each line is a sentence, as in prepared corpora such as the Penn Treebank's
none     a text stays whole
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

Rule = Literal["none", "marks", "lines"]
_PARAGRAPH = re.compile(rb"\n[ \t\r]*\n")
# A mark, quotes and brackets that close, white space; then a capital, a digit or what opens. Bytes from 0x80 on are
# letters of other scripts.
_BETWEEN = re.compile(rb"""(?<=[.!?])["')\]]*\s+(?=["'(\[]*[A-Z0-9\x80-\xff])""")


def cut(text: bytes, rule: Rule) -> Iterator[bytes]:
    """The sentences of a text, without those that are empty; with "none" the text itself."""
    if rule == "none":
        yield text
    elif rule == "lines":
        yield from (line for line in map(bytes.strip, text.splitlines()) if line)
    else:
        for paragraph in _PARAGRAPH.split(text):
            yield from _by_marks(b" ".join(paragraph.split()))


def _by_marks(paragraph: bytes) -> Iterator[bytes]:
    start = 0
    for match in _BETWEEN.finditer(paragraph):
        yield paragraph[start : match.end()].rstrip()
        start = match.end()
    if start < len(paragraph):
        yield paragraph[start:]
