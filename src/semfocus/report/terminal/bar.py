"""A progress bar for Python sessions, in a terminal or a notebook: `with ProgressBar(epochs) as bar: ...`.

Its unit is an epoch of one run. Runs that stop early leave the bar at once, so that the time left is an upper bound.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Mapping
from typing import Any

from semfocus.report.terminal.progress import Progress


class ProgressBar:
    """Shows how far the runs are; `epochs` has what is to go of each, by its id. A context manager and a callback."""

    def __init__(self, epochs: Mapping[str, float], title: str = "training") -> None:
        self.to_go = dict(epochs)
        self.total = sum(epochs.values())
        self.title = title
        self.cohorts: dict[str, frozenset[str]] = {}  # by each run, those that it trains with
        self.bar: Any = None

    def __enter__(self) -> ProgressBar:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a notebook without ipywidgets gets a bar of text: no reason to warn
            from tqdm.auto import tqdm

        if self.total:
            layout = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} epochs [{elapsed}<{remaining}{postfix}]"
            self.bar = tqdm(total=self.total, desc=self.title, bar_format=layout, dynamic_ncols=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, progress: Progress) -> None:
        if self.bar is None:
            return
        ids = [member.run.id for member in progress.members if member.run.id in self.to_go]
        if not ids:
            return
        before = self.cohorts.get(ids[0], frozenset())
        self.cohorts |= dict.fromkeys(ids, before | frozenset(ids))
        left = (progress.total_steps - progress.step) / progress.steps_per_epoch if progress.going_on else 0.0
        self.to_go |= dict.fromkeys(before.difference(ids), 0.0) | dict.fromkeys(ids, left)
        self._show(progress)

    def _show(self, progress: Progress) -> None:
        mechanisms = dict.fromkeys(member.config.attention.mechanism for member in progress.members)
        shares = [member.last["heldout_accuracy"] for member in progress.members if "heldout_accuracy" in member.last]
        held = f", held out {statistics.median(shares):.1%}" if shares else ""
        self.bar.set_postfix_str(f"{', '.join(mechanisms)}{held}", refresh=False)
        self.bar.n = max(self.bar.n, self.total - sum(self.to_go.values()))
        self.bar.refresh()
