"""The code of the pages that begin runs as it stands, and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.compile(r"```python\n(?P<code>.*?)```[^`]*?```text\n(?P<output>.*?)```", flags=re.DOTALL)
PAGES = ("index.md", "concepts/k-best-keys.md", "concepts/dispersion.md", "guides/choose-k.md")


def examples(page: str) -> list[tuple[str, str]]:
    """(code, what the page says that it prints) in order."""
    return [(match["code"], match["output"]) for match in BLOCKS.finditer((DOCS / page).read_text(encoding="utf-8"))]


def printed(code: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "page", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own pages
    return output.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_code_that_trains_nothing_prints_what_the_page_shows(page: str) -> None:
    shown = [(code, output) for code, output in examples(page) if "compare(" not in code]
    assert shown, f"{page} has no example"
    assert [printed(code) for code, _ in shown] == [output for _, output in shown]


@pytest.mark.slow
def test_the_ten_lines_of_the_first_page_print_as_many_seeds_as_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ((code, output),) = [(code, output) for code, output in examples("index.md") if "compare(" in code]
    number = re.compile(r"\d+(?:\.\d+)?")  # epochs differ from one kind of machine to the next
    assert number.sub("0", printed(code)) == number.sub("0", output)
