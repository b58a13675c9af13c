"""Studies for people: what each asks, how many runs it takes, and the table of them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semfocus.experiments.study import Study

COLUMNS = ("study", "paper", "runs", "tasks", "mechanisms", "title")


def described(study: Study) -> dict[str, Any]:
    """A study as plain values, by its own seeds, recipe and scale."""
    configs = study.runs()
    return {
        "study": study.name,
        "title": study.title,
        "asks": study.asks,
        "paper": _figures(study.figures),
        "runs": len(configs),
        "tasks": list(dict.fromkeys(config.task.name for config in configs)),
        "mechanisms": list(dict.fromkeys(config.attention.mechanism for config in configs)),
        "seeds": len({config.seed for config in configs}),
        "recipe": study.recipe,
        "panels": [panel.title for panel in study.panels],
        "measures": list(study.measures),
    }


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table of studies: lists are counted."""
    return [str(len(row[name])) if isinstance(row[name], list) else str(row[name]) for name in COLUMNS]


def markdown_table(rows: Sequence[dict[str, Any]]) -> str:
    """The table of studies, as the guide shows it."""
    lines = [list(COLUMNS), ["---:" if name in ("runs", "tasks", "mechanisms") else "---" for name in COLUMNS]]
    lines += [[f"`{name}`", *rest] for name, *rest in map(cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _figures(names: Sequence[str]) -> str:
    """`Fig. 1`, `Fig. 5, 23-27`, `Table 6`; nothing for a study that the paper has no figure of."""
    return ("Fig. " if names and names[0][0].isdigit() else "") + ", ".join(names)
