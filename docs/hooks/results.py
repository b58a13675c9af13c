"""Brings results/ into the site: its files where pages link to them, and verdicts and figures into evidence.md.

Pages link to `../results/...`, which is right in the repository too. The verdict table and the figures are those that
`semfocus rebuild results/paper` writes; without them the page says that there are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

RESULTS = Path(__file__).parents[2] / "results"
SHOWN = {".txt", ".json", ".svg", ".png", ".csv"}
VERDICTS, FIGURES, LEVELS = "<!-- verdicts -->", "<!-- figures -->", "<!-- levels -->"
LEVELS_TITLE = "Speed-up by level of training accuracy"
NO_VERDICTS = """\
!!! warning "No verdicts yet"

    `results/paper` holds no published runs in this version, so that no verdict is given here. Runs at the paper's size
    are published by `semfocus publish`, and `make verdicts` makes this table and the figures from them.
"""
NO_FIGURES = "There are none yet."


def on_files(files: Any, config: Any) -> None:
    for path in sorted(RESULTS.rglob("*")):
        if path.suffix in SHOWN:
            name = f"results/{path.relative_to(RESULTS).as_posix()}"
            files.append(File.generated(config, name, abs_src_path=str(path)))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    to_root = "../" * page.file.src_uri.count("/")
    markdown = markdown.replace(f"](../{to_root}results/", f"]({to_root}results/")
    if page.file.src_uri == "evidence.md":
        markdown = markdown.replace(VERDICTS, lowered(RESULTS / "paper" / "verdicts.md") or NO_VERDICTS)
        markdown = markdown.replace(LEVELS, lowered(RESULTS / "paper" / "levels.md") or NO_FIGURES)
        markdown = markdown.replace(FIGURES, figures(RESULTS / "paper" / "figures"))
    return markdown


def lowered(path: Path) -> str:
    """A file without its title, its headings one level lower; empty where there is none."""
    if not path.exists():
        return ""
    _title, _, text = path.read_text(encoding="utf-8").partition("\n")
    return re.sub(r"^#", "##", text, flags=re.MULTILINE).strip()


def figures(folder: Path) -> str:
    """Every figure with its study's title; a figure drawn for a dark ground is shown on one."""
    return "\n\n".join(_pictures(folder)) or NO_FIGURES


def _pictures(folder: Path) -> Iterator[str]:
    from semfocus.experiments.registry import studies

    titles = {study.name: study.title for study in studies()}
    for path in sorted(folder.glob("*.svg")):
        if path.stem.endswith("-dark"):
            continue
        named = [name for name in titles if path.stem == name or path.stem.startswith(f"{name}-")]
        by_level = path.stem == "levels" or path.stem.startswith("levels-")
        title = LEVELS_TITLE if by_level else titles[max(named, key=len)] if named else path.stem
        address = f"results/paper/figures/{path.stem}"
        dark = path.with_name(f"{path.stem}-dark.svg").exists()
        yield f"### {title}"
        if dark:
            yield f"![{title}]({address}.svg#only-light)![{title}]({address}-dark.svg#only-dark)"
        else:
            yield f"![{title}]({address}.svg)"
        yield f"`{path.stem}`; `semfocus studies {max(named, key=len)}` says what it shows." if named else ""
