"""Warns of every public name that no page of the reference shows, or that has no docstring; a strict build then fails.

A name is public when a module of the package lists it in `__all__`. The source is read, not imported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import griffe

SOURCE = Path(__file__).parents[2] / "src"
log = logging.getLogger("mkdocs.hooks.public_names")


def on_post_build(config: Any) -> None:
    shown = set(config.plugins["mkdocstrings"].handlers.inventory)
    for fault in faults(load("semfocus", SOURCE), shown):
        log.warning(fault)


def load(package: str, source: Path) -> griffe.Module:
    """The package as its source says, with names that modules take from one another."""
    loader = griffe.GriffeLoader(search_paths=[source])
    module = loader.load(package)
    loader.resolve_aliases()
    assert isinstance(module, griffe.Module)
    return module


def faults(package: griffe.Module, shown: Iterable[str]) -> list[str]:
    """What is wrong with the public names, where `shown` are the full names that pages show."""
    known = set(shown)
    found = []
    for module in public_modules(package):
        for name in module.exports or ():
            full = f"{module.path}.{name}"
            thing = module.members.get(str(name))
            if thing is None:
                found.append(f"{full} is in __all__ but nowhere defined")
                continue
            if full not in known:
                found.append(f"{full} is public but on no page of docs/reference")
            if thing.docstring is None or not thing.docstring.value.strip():
                found.append(f"{full} is public but has no docstring")
    return found


def public_modules(module: griffe.Module) -> Iterator[griffe.Module]:
    """Every module that says what it offers, from the top."""
    if module.exports is not None:
        yield module
    for name, part in module.modules.items():
        if not part.is_alias and not name.startswith("_"):
            yield from public_modules(part)
