"""Studies by name, and what each is, as plain values. Modules that declare them are imported when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeVar

from semfocus.config import RunConfig
from semfocus.experiments.files import is_study_file, read_study
from semfocus.experiments.study import Study
from semfocus.registry import Registry

COLUMNS = ("study", "paper", "runs", "tasks", "mechanisms", "title")
Runs = TypeVar("Runs", bound=Callable[..., list[RunConfig]])

_MODULES = ("paper_figures", "paper_text", "paper_checks", "interventions", "open_questions", "language_models")
_studies: Registry[Study] = Registry("study", hint="; or the path of a study file, such as my_study.toml")


def study(**about: Any) -> Callable[[Runs], Runs]:
    """Register a function that returns runs as the study of its name; `about` are the other fields of `Study`."""

    def register(runs: Runs) -> Runs:
        _studies.register(Study(name=runs.__name__, runs=runs, **about))
        return runs

    return register


def studies() -> list[Study]:
    """All of them: the paper's figures in order, then further checks, interventions, open questions; then others'."""
    names = [import_module(f"semfocus.experiments.{module}").__name__ for module in _MODULES]
    places = {name: place for place, name in enumerate(names)}  # whichever was imported first
    return sorted(_studies.entries(), key=lambda study: places.get(study.runs.__module__, len(places)))


def get_study(name: str) -> Study:
    """The study registered under `name`."""
    studies()  # the modules that declare the paper's
    return _studies.get(name)


def find_study(name: str) -> Study:
    """A registered study, or the one that a file declares."""
    return read_study(name) if is_study_file(name) else get_study(name)


def described(study: Study) -> dict[str, Any]:
    """A study as plain values, by its own seeds, recipe and scale."""
    configs = study.experiment().configs
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
        "claims": list(study.claims),
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
