"""What commands that draw share: every figure in light and in dark, and a line that says where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer


def both_themes(draw: Callable[[str, Any], list[Path]]) -> list[Path]:
    """Every figure in light and in dark; `draw` takes the end of a file's name, and the theme."""
    return [*draw("", "light"), *draw("-dark", "dark")]


def name_figures(written: Sequence[Path]) -> None:
    """Print where the figures are; nothing where none was drawn."""
    shown = [path for path in written if path.suffix == ".svg" and not path.stem.endswith("-dark")]
    if shown:
        typer.echo("\nfigures (also as .pdf and .png, and -dark): " + ", ".join(map(str, shown)))
