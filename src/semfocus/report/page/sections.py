"""Values for the page's template, section by section: text, numbers, lists and dictionaries."""

from __future__ import annotations

import json
import shlex
from functools import partial
from math import isinf
from typing import TYPE_CHECKING, Any

from semfocus.analysis.comparability import differing, setting_text
from semfocus.analysis.groups import Group, short_name
from semfocus.analysis.multiple import ALPHA
from semfocus.analysis.results import Results
from semfocus.analysis.tokens import TokenRace
from semfocus.measurements import Measurements
from semfocus.report.figures.gallery import base_group, main_groups
from semfocus.report.figures.heatmap import cell_texts, speed_cells, strength
from semfocus.report.figures.race import draw_race
from semfocus.report.figures.style import mechanism_style
from semfocus.report.page import rows
from semfocus.report.page.by_size import by_size_picture
from semfocus.report.page.markup import shown
from semfocus.report.page.payload import charts, metric_texts, shapes
from semfocus.report.page.pictures import PictureMaker, PictureSpec, digest
from semfocus.report.page.provenance import commands, commit, config_for_training, facts_of
from semfocus.report.page.samples import samples
from semfocus.report.page.summary import About, summary_text
from semfocus.report.race import race_table
from semfocus.report.text import at_odds, facts_text, rates_text, seeds_text
from semfocus.training.objective import CLASSIFICATION, LOSS

if TYPE_CHECKING:
    from semfocus.analysis.comparison import Arm
    from semfocus.analysis.verdicts import Verdict

Json = dict[str, Any]
MOST_ON_FIRST_SCREEN = 24  # groups in the heat map there
ROOMY = 6  # rows of a heat map, beyond which each has one line
MANY_SETTINGS = 4  # of a task, from which on a row is named by how it differs from the base
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


def title(results: Results, about: About | None) -> str:
    """The page's title where none is given: the study or the tasks, and the number of runs."""
    if about is not None:
        return f"{about.name}: {len(results.records)} runs"
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


def group(place: int, group: Group, mechanisms: list[str], picture: PictureMaker, measurements: Measurements) -> Json:
    """The section of one group: settings, findings, tables, configuration, and the command that trains it."""
    comparison = group.comparison
    tables = (rows.convergence(group), rows.accuracy(group))
    convergence, accuracy = ([_shown_row(row, mechanisms) for row in table] for table in tables)
    for row, arm in zip(convergence, comparison.arms, strict=True):
        row["unseen"] = "" if arm.unseen.median is None else f"{arm.unseen.median:.1%}"
    horizon = comparison.horizon
    strip_title, accuracy_titles = rows.accuracy_titles(group)
    return {
        "anchor": f"group-{place}",
        "place": place,
        "name": group.name,
        "details": group.details,
        "goal": comparison.learned.text(),
        "metrics": metric_texts([group]),
        "metric": comparison.learned.column if comparison.race is None else LOSS.column("heldout"),
        "race": None if comparison.race is None else _race(group, comparison.race, picture),
        "samples": samples(group, measurements),
        "level": comparison.learned.level(),
        "settings": "; ".join(setting_text(n, group.settings[n]) for n in HEADING_SETTINGS if group.settings.get(n)),
        "findings": summary_text(group),
        "facts": [*facts_text(group.comparison.facts), rates_text(record.config for record in group.records)],
        "curve_note": _curve_note(group),
        "by_size": by_size_picture(group, picture),
        "convergence": convergence,
        "convergence_titles": rows.CONVERGENCE,
        "epoch_ticks": [(rows.REACH * tick / horizon, f"{tick:g}") for tick in rows.ticks(horizon)],
        "unfinished": len(comparison.unfinished),
        "interval_note": _interval_note(group),
        "accuracy": accuracy,
        "accuracy_strips": strip_title,
        "accuracy_titles": accuracy_titles,
        "unseen_rows": "test rows" if comparison.is_tested else "rows not seen",
        "baselines": rows.baseline_marks(comparison.unseen_baselines),
        "share_ticks": [(share, f"{share} %") for share in (0, 50, 100)],
        "config": json.dumps(config_for_training(group.records[0].config), indent=2, ensure_ascii=False),
        "command": "\n".join(commands(group)),
    }


def _race(group: Group, race: TokenRace, picture: PictureMaker) -> Json:
    """Language models by tokens: the figure and the table."""
    table = race_table(race)
    curves = [[run.mechanism, run.seed, run.column("heldout_loss").tolist()] for run in group.records if run.metrics]
    spec = PictureSpec(
        "Held-out loss by tokens", "", partial(draw_race, group), digest("race", [group.name, str(curves)])
    )
    return {"heads": table.heads, "rows": table.rows, "note": table.note, "picture": picture(spec) if curves else None}


def _curve_note(group: Group) -> str:
    seeds = {len(group.runs(mechanism)) for mechanism in group.mechanisms}
    many = f"Median and quartiles over {seeds_text(seeds)}" if max(seeds) > 1 else "One seed"
    return (
        f"{many}; a run that stopped early keeps its last value, and where all have stopped the line is thin; the mark "
        "is where half of the seeds had learned."
    )


def _interval_note(group: Group) -> str:
    """Why an interval may leave out 1 beside a large p; empty where none does."""
    odd = [arm for arm in group.comparison.arms if at_odds(arm)]
    if not odd:
        return ""
    pairs = max(arm.speed_up.pairs for arm in odd if arm.speed_up is not None)
    others = sum(arm.speed_up is not None for arm in group.comparison.arms)
    least = min(1.0, others * 2.0 ** (1 - pairs))
    count = f"{pairs} seeds and {others} {'comparison' if others == 1 else 'comparisons'}"
    return (
        f"Where an interval leaves out 1 and p is above {ALPHA:g}, go by p: it is exact and counts all comparisons of "
        f"this table ({count} cannot give less than {least:.2g}); the interval takes the logarithms of the ratios as "
        "normal, and each mechanism alone."
    )


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
        cells = heat(own, groups, mechanisms) if 1 < len(own) < len(groups) else None  # else the one on top is the same
        entries.append({"name": task, "anchor": f"task-{len(entries)}", "groups": sections, "heat": cells})
    return entries


def first_screen(groups: list[Group], meant: list[Group]) -> list[Group]:
    """The groups at the top of the page: all, or of very many those that the headline means and each task's base."""
    if len(groups) <= MOST_ON_FIRST_SCREEN:
        return groups
    wanted = {id(group) for group in (*meant[:MOST_ON_FIRST_SCREEN], *main_groups(groups))}
    return [group for group in groups if id(group) in wanted]


def heat(shown_groups: list[Group], groups: list[Group], mechanisms: list[str]) -> Json:
    """A heat map of speed-ups over full attention: a row for each group shown, a column for each mechanism."""
    shown_groups = _bases_first([group for group in shown_groups if group.comparison.race is None])
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
    return {"mechanisms": shown_mechanisms, "rows": lines if names else [], "dense": len(lines) > ROOMY}


def _bases_first(groups: list[Group]) -> list[Group]:
    """Each task's base before its other groups, where rows are named by how they differ from it."""
    by_task: dict[str, list[Group]] = {}
    for group in groups:
        by_task.setdefault(group.task, []).append(group)
    ordered = []
    for own in by_task.values():
        base = base_group(own)
        ordered += own if len(own) < MANY_SETTINGS else [base, *(group for group in own if group is not base)]
    return ordered


def _heading(group: Group, among: list[Group]) -> str:
    """The settings of a row: of many under one task, those that differ from the base of the task's ablations."""
    own = [other for other in among if other.task == group.task]
    task = "" if len(own) == len(among) else f"{group.task}, "
    if len(own) < MANY_SETTINGS:
        return group.details if len(own) == len(among) > 1 else short_name(group, among)
    base = base_group(own)
    if group is base:
        return f"{task}base: {base.details}"
    changed = differing([base.settings, group.settings])
    return task + ", ".join(setting_text(name, group.settings.get(name)) for name in changed)


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


def made(results: Results, about: About | None) -> Json:
    """How the page and its runs were made, and the command that writes the page again."""
    from semfocus import __version__

    seeds = sorted({record.seed for record in results.records})
    here = commit()
    lines = [
        ("this page", f"semfocus {__version__}" + (f", commit {here}" if here else "")),
        ("runs as of", f"{results.as_of:%Y-%m-%d %H:%M:%S} UTC" if results.as_of else "no runs"),
        ("seeds", ", ".join(map(str, seeds)) or "none"),
    ]
    if about is not None:
        lines.insert(0, ("study", f"{about.name}; `semfocus run` with the same options writes its page again"))
    again = shlex.join(["semfocus", "report", shown(results.root.name) or ".", "--out", "report.html"])
    return {"lines": lines, "facts": facts_of(results.runs), "page_command": again}
