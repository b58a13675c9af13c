"""Everything that follows from published runs, made again without training: verdicts, the studies' figures, the page.

    rebuilt = rebuild(Path("results/paper"), Path("build/paper"))

The runs come back into a store (`build/paper/runs`), from which analysis reads as from any other. Verdicts and figures
are written beside the tables. A study is drawn with the tasks of which all its runs exist, and it is said how many do.
Beside 95 % training accuracy, by which verdicts judge, levels.md and figures/levels show how soon others are reached.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from semfocus.analysis.comparison import BASE
from semfocus.analysis.gaps import fewer_seeds, gaps
from semfocus.analysis.groups import Group
from semfocus.analysis.multiple import pairs_needed
from semfocus.analysis.results import Results
from semfocus.analysis.verdicts.settings import STOPS_EARLY
from semfocus.archive.tables import read_published
from semfocus.experiments.experiment import Experiment, config_key
from semfocus.experiments.registry import studies
from semfocus.experiments.run import Plan, plan
from semfocus.recipes import Scale
from semfocus.report import levels_table
from semfocus.report.figures.declared import draw_panels
from semfocus.report.figures.levels import draw_levels
from semfocus.report.page.page import write_page
from semfocus.report.verdict_table import markdown
from semfocus.store import RunStore, atomic
from semfocus.training.objective import CLASSIFICATION
from semfocus.training.session import Job

FIGURES, VERDICTS, LEVELS = "figures", "verdicts.md", "levels.md"


@dataclass(frozen=True)
class Rebuilt:
    """What was written."""

    results: Results
    verdicts: Path
    figures: list[Path]
    page: Path
    studies: dict[str, tuple[int, int]]  # name of a drawn study -> its runs that exist, and all of them
    missing: list[str]  # what comparisons lack


def rebuild(folder: Path, build: Path, *, scale: Scale = "paper", overrides: Sequence[str] = ()) -> Rebuilt:
    """Write verdicts.md and figures/ beside the tables in `folder`, and report.html into `build`.

    `scale` and `overrides` say with which choices the studies were run; the precision is seen from the runs.
    """
    store = RunStore(build / "runs")
    results = read_published(folder, store)
    missing = gaps(results)
    there = {record.id for record in results.records}
    drawn: dict[str, tuple[int, int]] = {}
    figures: list[Path] = []
    for precision in sorted({record.config.get("precision", "fp32") for record in results.records}):
        for study in studies():
            experiment = study.experiment(scale=scale, overrides=[*overrides, f"precision={precision}"])
            planned = plan(experiment, store.root)
            present = results.only(_whole(planned.jobs, there))
            if present.records:
                name = experiment.name if precision == "fp32" else f"{experiment.name}-{precision}"
                written = _draw(experiment, planned, present, folder / FIGURES / name)
                if written:  # not where nothing is drawn but what was never measured
                    drawn[name] = len(present.records), len(planned.jobs)
                figures += written
        compared = [group for group in results.groups if _is_compared(group, precision)]
        if compared:
            name = "levels" if precision == "fp32" else f"levels-{precision}"
            figures += draw_levels(compared, folder / FIGURES / name, formats=("svg", "png"))
    atomic.write_text(folder / LEVELS, levels_table.markdown(filter(_is_compared, results.groups)))
    atomic.write_text(folder / VERDICTS, markdown(results, missing, fewer_seeds(results)))
    page = write_page(results, build / "report.html")
    return Rebuilt(results, folder / VERDICTS, figures, page, drawn, missing)


def _is_compared(group: Group, precision: str | None = None) -> bool:
    """Whether a mechanism is compared with full attention, by training accuracy, on seeds enough for a test.

    Runs that stop early never get to later levels, or would have later.
    """
    counts = [len(group.runs(mechanism)) for mechanism in group.mechanisms]
    by_accuracy = group.records[0].objective.learned.column == CLASSIFICATION.learned.column
    mine = precision is None or group.settings["precision"] == precision
    goes_on = all(group.settings.get(name) is None for name in STOPS_EARLY)
    return (
        mine
        and by_accuracy
        and goes_on
        and BASE in group.mechanisms
        and len(counts) > 1
        and min(counts) >= pairs_needed(1)
    )


def _whole(jobs: Sequence[Job], there: Collection[str]) -> set[str]:
    """The ids of the runs of every task that has all runs of the seeds it has: half a comparison is no figure."""
    begun = {(job.config.task.name, job.config.seed) for job in jobs if job.id in there}
    places = [(job.id, job.config.task.name, job.config.seed) for job in jobs]
    lacking = {task for id, task, seed in places if (task, seed) in begun and id not in there}
    return {id for id, task, seed in places if (task, seed) in begun and task not in lacking}


def _draw(experiment: Experiment, planned: Plan, results: Results, stem: Path) -> list[Path]:
    """The panels of a study, as far as its runs have what they show."""
    atomic.make_directories(stem.parent)
    return draw_panels(
        experiment.panels,
        results,
        stem,
        shown=lambda place: {planned.ids[config_key(config)] for config in experiment.shown(place)},
        formats=("svg", "png"),
    )
