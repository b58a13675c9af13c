"""Studies by name. The modules that declare them are imported when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from semfocus.config import RunConfig
from semfocus.errors import UsageError, unknown
from semfocus.experiments.files import is_study_file, read_study
from semfocus.experiments.study import Study

Runs = TypeVar("Runs", bound=Callable[..., list[RunConfig]])

_MODULES = ("paper_figures", "paper_checks")
_registered: dict[str, Study] = {}


def study(**about: Any) -> Callable[[Runs], Runs]:
    """Register a function that returns runs as the study of its name; `about` are the other fields of `Study`."""

    def register(runs: Runs) -> Runs:
        name = runs.__name__
        if name in _registered:
            raise UsageError(f"a study called {name!r} is registered already; choose another name")
        _registered[name] = Study(name=name, runs=runs, **about)
        return runs

    return register


def studies() -> list[Study]:
    """All of them: the paper's figures in order, then the further checks."""
    for module in _MODULES:
        import_module(f"semfocus.experiments.{module}")
    return list(_registered.values())


def get_study(name: str) -> Study:
    """The study registered under `name`."""
    known = {each.name: each for each in studies()}
    if name not in known:
        raise unknown("study", name, known, hint="; or the path of a study file, such as my_study.toml")
    return known[name]


def find_study(name: str) -> Study:
    """A registered study, or the one that a file declares."""
    return read_study(name) if is_study_file(name) else get_study(name)
