"""What a page says and holds, and a name that would break one that does not take care."""

from __future__ import annotations

import json
import re
from html import unescape

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028'\"&amp;"


def text_of(page: str) -> str:
    """The words of the page, without tags, scripts and styles."""
    bare = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", bare)).split())


def data_of(page: str) -> dict:
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert script is not None
    return json.loads(script.group(1))


def first_screen(page: str) -> str:
    """The words above the first section below the lead."""
    lead = re.search(r'<section id="top".*?</section>', page, re.DOTALL)
    assert lead is not None
    return text_of(lead[0])
