"""Values for the page's template, section by section: text, numbers, lists and dictionaries."""

from __future__ import annotations

import json
import shlex
from math import isinf
from typing import TYPE_CHECKING, Any

from semfocus.analysis.comparability import setting_text
from semfocus.analysis.groups import Group, short_name
from semfocus.analysis.multiple import ALPHA
from semfocus.analysis.results import Results
from semfocus.report.figures.heatmap import cell_texts, speed_cells, strength
from semfocus.report.figures.style import mechanism_style
from semfocus.report.page import rows
from semfocus.report.page.markup import shown
from semfocus.report.page.payload import charts, metric_texts, shapes
from semfocus.report.page.provenance import command, commit, config_for_training, facts_of
from semfocus.report.page.summary import summary_text
from semfocus.report.text import facts_text
from semfocus.training.objective import CLASSIFICATION

if TYPE_CHECKING:
    from semfocus.analysis.comparison import Arm
    from semfocus.analysis.verdicts import Verdict

Json = dict[str, Any]
# The settings in a group's heading, in this order; its configuration on the page has all of them.
HEADING_SETTINGS = (
    "task.options.length", "task.train_rows", "model.blocks", "model.heads", "model.d_model", "model.activation",
    "training.optimizer", "training.lr", "training.decay", "training.batch_size", "training.epochs",
    "training.stop_accuracy",
    "model.padding_visible", "precision",
)  # fmt: skip
MARKS = {
    "holds": ("✓", "holds"),
    "mixed": ("◐", "part"),
    "does not hold": ("✗", "not"),
    "not decided": ("?", "unknown"),
}


def title(results: Results) -> str:
    """The page's title where none is given: tasks and the number of runs."""
    tasks = list(dict.fromkeys(group.task for group in results.groups))
    many = ", ".join(tasks[:4]) + (f" and {len(tasks) - 4} more" if len(tasks) > 4 else "")
    return f"{many or 'no runs'}: {len(results.records)} runs"


def data(results: Results, mechanisms: list[str]) -> Json:
    """What the page's script reads: charts, mechanisms, and the configuration of every run."""
    entries = charts(results.groups, mechanisms)
    for chart, group in zip(entries, results.groups, strict=True):
        chart["config"] = config_for_training(group.records[0].config)
        learned = group.comparison.learned
        plain = [name for name, metric in group.records[0].objective.columns.items() if not metric.is_share]
        if plain != ["train_loss", "heldout_loss"]:
            chart["plain"] = plain
        if learned != CLASSIFICATION.learned:
            goal = {"metric": learned.column, "threshold": learned.threshold, "level": learned.level()}
            chart["learned"] = goal
    return {
        "threshold": CLASSIFICATION.learned.threshold,
        "metrics": metric_texts(results.groups),
        "mechanisms": shapes(mechanisms),
        "groups": entries,
        "runs": {
            record.id: {
                "seed": str(record.seed),  # JavaScript rounds numbers beyond 2^53
                "mechanism": record.mechanism,
                "state": record.state,
                "label": str(record.config.get("label", "")),
                "task": {name: record.config["task"].get(name) for name in ("name", "options")},
            }
            for group in results.groups
            for record in group.records
        },
    }


def group(place: int, group: Group, mechanisms: list[str]) -> Json:
    """The section of one group: settings, findings, tables, configuration, and the command that trains it."""
    comparison = group.comparison
    tables = (rows.convergence(group), rows.accuracy(group))
    convergence, accuracy = ([_shown_row(row, mechanisms) for row in table] for table in tables)
    horizon = comparison.horizon
    return {
        "anchor": f"group-{place}",
        "place": place,
        "name": group.name,
        "details": group.details,
        "goal": comparison.learned.text(),
        "metrics": metric_texts([group]),
        "metric": comparison.learned.column,
        "level": comparison.learned.level(),
        "settings": "; ".join(setting_text(n, group.settings[n]) for n in HEADING_SETTINGS if group.settings.get(n)),
        "findings": summary_text(group),
        "facts": facts_text(group.comparison.facts),
        "curve_note": _curve_note(group),
        "convergence": convergence,
        "convergence_titles": rows.CONVERGENCE,
        "epoch_ticks": [(rows.REACH * tick / horizon, f"{tick:g}") for tick in rows.ticks(horizon)],
        "unfinished": len(comparison.unfinished),
        "accuracy": accuracy,
        "accuracy_titles": rows.ACCURACY,
        "baselines": rows.baseline_marks(group.baselines),
        "share_ticks": [(share, f"{share} %") for share in (0, 25, 50, 75, 100)],
        "config": json.dumps(config_for_training(group.records[0].config), indent=2, ensure_ascii=False),
        "command": command(group),
    }


def _curve_note(group: Group) -> str:
    seeds = group.comparison.seeds
    many = f"Median and quartiles over {seeds} seeds" if seeds > 1 else "One seed"
    return f"{many}; a run that stopped early keeps its last value; the mark is where half of the seeds had learned."


def _shown_row(row: rows.Row, mechanisms: list[str]) -> Json:
    place = mechanisms.index(row.mechanism)
    spoken = "; ".join(dot.title for dot in row.dots)
    return {
        **_mechanism(row.mechanism, place),
        "cells": row.cells,
        "dots": row.dots,
        "middle": row.middle,
        "spoken": spoken,
    }


def _mechanism(name: str, place: int) -> Json:
    return {
        "name": name,
        "place": place,
        "css": f"m{place}",
        "dash": " ".join(f"{d:g}" for d in mechanism_style(name).dash),
    }


def tasks(groups: list[Group], described: list[Json], mechanisms: list[str]) -> list[Json]:
    """Each task with its groups, and a heat map of them where there are several."""
    entries = []
    for task in dict.fromkeys(group.task for group in groups):
        own = [group for group in groups if group.task == task]
        sections = [described[groups.index(group)] for group in own]
        cells = heat(own, groups, mechanisms) if len(own) > 1 else None
        entries.append({"name": task, "anchor": f"task-{len(entries)}", "groups": sections, "heat": cells})
    return entries


def heat(shown_groups: list[Group], groups: list[Group], mechanisms: list[str]) -> Json:
    """A heat map of speed-ups over full attention: a row for each group shown, a column for each mechanism."""
    names, table = speed_cells(shown_groups)
    lines = [
        {
            "name": _heading(group, shown_groups),
            "anchor": f"group-{groups.index(group)}",
            "cells": [_heat_cell(arm) for arm in arms],
        }
        for group, arms in zip(shown_groups, table, strict=True)
    ]
    shown_mechanisms = [_mechanism(name, mechanisms.index(name)) for name in names]
    return {"mechanisms": shown_mechanisms, "rows": lines if names else []}


def _heading(group: Group, among: list[Group]) -> str:
    one_task = len({other.task for other in among}) == 1 and len(among) > 1
    return group.details if one_task else short_name(group, among)


def _heat_cell(arm: Arm | None) -> Json:
    if arm is None or arm.speed_up is None:
        return {"css": "", "large": ""}
    large, small = cell_texts(arm)
    amount = strength(arm.speed_up.ratio.value)
    step = round(4 * abs(amount))
    css = "s0" if step == 0 else f"{'f' if amount > 0 else 'l'}{step}"
    return {"css": css, "large": large, "small": small, "bold": arm.p is not None and arm.p <= ALPHA}


def verdict(verdict: Verdict) -> Json:
    """One verdict, with its numbers as text."""
    mark, css = MARKS[verdict.outcome]
    ends = None if verdict.interval is None else [_end(end) for end in verdict.interval]
    return {
        "decided": verdict.outcome != "not decided",
        "claim": verdict.claim, "statement": verdict.statement, "rule": verdict.rule, "outcome": verdict.outcome_text,
        "mark": mark, "css": css, "effect": verdict.effect, "because": verdict.because, "runs": verdict.runs,
        "interval": None if ends is None else f"{ends[0]} to {ends[1]}",
        "p": None if verdict.p is None else f"{verdict.p:.2g}",
    }  # fmt: skip


def _end(value: float) -> str:
    return ("∞" if value > 0 else "-∞") if isinf(value) else f"{value:.3g}"


def runs(results: Results) -> list[Json]:
    """The list of runs, group by group."""
    return [
        {
            "id": record.id, "group": place, "name": group.name, "mechanism": record.mechanism, "seed": record.seed,
            "state": record.state, "cells": rows.run_cells(record), "label": str(record.config.get("label", "")),
        }
        for place, group in enumerate(results.groups)
        for record in group.records
    ]  # fmt: skip


def made(results: Results) -> Json:
    """How the page and its runs were made, and the command that writes the page again."""
    from semfocus import __version__

    seeds = sorted({record.seed for record in results.records})
    here = commit()
    lines = [
        ("this page", f"semfocus {__version__}" + (f", commit {here}" if here else "")),
        ("runs as of", f"{results.as_of:%Y-%m-%d %H:%M:%S} UTC" if results.as_of else "no runs"),
        ("seeds", ", ".join(map(str, seeds)) or "none"),
    ]
    again = shlex.join(["semfocus", "report", shown(results.root.name) or ".", "--out", "report.html"])
    return {"lines": lines, "facts": facts_of(results.runs), "page_command": again}
