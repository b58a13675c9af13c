"""All the figures of a store as files: SVG, PDF and PNG, light and dark.

write_figures(Path("runs"), Path("figures"))
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from semfocus.analysis.groups import Group, short_name
from semfocus.analysis.results import Results
from semfocus.report.figures.ablations import ablations, main_groups
from semfocus.report.figures.curves import draw_columns, draw_waiting
from semfocus.report.figures.drawing import FORMATS, caption, drawing, heading, legend, save
from semfocus.report.figures.heatmap import draw_heatmap, speed_cells
from semfocus.report.figures.style import Theme

ACROSS = 4  # panels side by side, as in the paper


def write_figures(
    store_root: Path, directory: Path, formats: Sequence[str] = FORMATS, themes: Sequence[Theme] = ("light", "dark")
) -> list[Path]:
    """Draw everything the runs have values for; the name of a dark figure ends in `-dark`."""
    groups = [group for group in Results.load(store_root).groups if _measured(group)]
    written: list[Path] = []
    for theme in themes:
        end = "-dark" if theme == "dark" else ""
        written += draw_all(groups, directory, end, formats, theme)
    return written


def draw_all(
    groups: Sequence[Group], directory: Path, end: str = "", formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw curves and convergence with tasks side by side, the heat map, and a figure for each ablation."""
    written: list[Path] = []
    main = main_groups(groups)
    sheets = [main[i : i + ACROSS] for i in range(0, len(main), ACROSS)]
    for number, sheet in enumerate(sheets, start=1):
        columns = [(short_name(group, main), group) for group in sheet]
        place = f"-{number}" if len(sheets) > 1 else ""
        written += draw_columns(columns, directory / f"curves{place}{end}", formats=formats, theme=theme)
        written += draw_convergence(columns, directory / f"convergence{place}{end}", formats=formats, theme=theme)
    if any(arm is not None for row in speed_cells(groups)[1] for arm in row):
        written += draw_heatmap(groups, directory / f"speed-up{end}", formats=formats, theme=theme)
    for ablation in ablations(groups):
        stem = directory / f"ablation-{_slug(ablation.title)}{end}"
        columns = [(name, group.only(ablation.mechanisms)) for name, group in ablation.columns]
        written += draw_columns(columns, stem, title=ablation.title, formats=formats, theme=theme)
    return written


def draw_convergence(
    columns: Sequence[tuple[str, Group]], stem: Path, *, formats: Sequence[str] = FORMATS, theme: Theme = "light"
) -> list[Path]:
    """Draw Kaplan-Meier curves side by side."""
    from matplotlib.figure import Figure

    with drawing(theme):
        figure = Figure(figsize=(max(4.2, 0.9 + 2.75 * len(columns)), 3.4), layout="constrained")
        axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        for (name, group), panel in zip(columns, axes, strict=True):
            draw_waiting(panel, group.comparison, theme)
            heading(panel, name)
            panel.set_xlabel("\n".join(["epoch", *_never(group)]))
        learned = columns[0][1].comparison.learned
        axes[0].set_ylabel(f"seeds below {learned.level('')}")
        caption(figure, f"Share of seeds whose {learned.label} has not reached {learned.level('')} (Kaplan-Meier)")
        legend(figure, list(axes))
        return save(figure, stem, formats)


def _measured(group: Group) -> bool:
    return any(record.metrics for record in group.records)


def _never(group: Group) -> list[str]:
    """The mechanisms with which no seed converged, as text: their lines lie on one another."""
    names = [arm.mechanism for arm in group.comparison.arms if len(arm.times) and not arm.reached]
    return textwrap.wrap(f"never: {', '.join(names)}", 42) if len(names) > 1 else []


def _slug(title: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in title.lower()).replace("--", "-").strip("-")
