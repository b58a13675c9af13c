"""What `semfocus.compare` returns: a comparison that shows itself.

result = semfocus.compare("even_pairs", quick=True)
result                     the table, what the data support, and what is known of the data, in notebook and console
result.rows()              a dictionary for each mechanism
result.table()             the same as a frame
result.plot()              learning curves
result.page, result.runs   the page with everything, and the runs
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semfocus.analysis.comparison import Comparison
from semfocus.analysis.recommend import Recommendation
from semfocus.analysis.records import Record
from semfocus.errors import MissingExtra, nearby, printable, unknown
from semfocus.execution.executor import RunOutcome
from semfocus.experiments.run import Outcome
from semfocus.report.race import comparison_title, race_table
from semfocus.report.terminal.tables import comparison_table
from semfocus.report.text import baseline_text, epochs_text, facts_text, learning_time_text
from semfocus.training.objective import known_columns

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_UNLIMITED = 10_000  # columns of a table: lines wrap where it is shown


@dataclass(frozen=True, eq=False)
class ComparisonResult(Comparison):
    """A comparison with its runs, figures and page."""

    outcome: Outcome = field(kw_only=True, repr=False)
    records: Sequence[Record] = field(kw_only=True, repr=False)
    tuning: tuple[str, ...] = ()  # which learning rates were chosen, and why
    recommendation: Recommendation | None = None  # of attention="auto"

    @staticmethod
    def of(
        outcome: Outcome, tuning: Sequence[str] = (), recommendation: Recommendation | None = None
    ) -> ComparisonResult:
        """The first comparison of an experiment's outcome; `compare` makes experiments of one."""
        comparison = outcome.comparisons[0]
        fields = {each.name: getattr(comparison, each.name) for each in dataclasses.fields(Comparison)}
        return ComparisonResult(
            **fields, outcome=outcome, records=outcome.records, tuning=tuple(tuning), recommendation=recommendation
        )

    @property
    def page(self) -> Path | None:
        """The page about all runs of the store; None where no run has been evaluated yet."""
        return self.outcome.page

    @property
    def figures(self) -> list[Path]:
        """The files of the learning curves."""
        return self.outcome.figures

    @property
    def runs(self) -> list[RunOutcome]:
        """Every run: its configuration, its directory and how it ended."""
        return self.outcome.runs

    def rows(self) -> list[dict[str, Any]]:
        """A row of plain values for each mechanism; accuracies are medians over seeds, None where there is none."""
        rows = []
        for arm in self.arms:
            ratio = None if arm.speed_up is None else arm.speed_up.ratio
            rows.append(
                {
                    "mechanism": arm.mechanism,
                    "epochs": arm.times.median,
                    "reached": arm.reached,
                    "seeds": len(arm.times.seeds),
                    "speed_up": None if ratio is None else ratio.value,
                    "speed_up_is": None if ratio is None else {">=": "at least", "<=": "at most"}.get(ratio.sign, ""),
                    "p": arm.p,
                    "train_accuracy": arm.final_train.median,
                    "heldout_accuracy": arm.final_heldout.median,
                    **{name: shares.median for name, shares in arm.others.items()},
                    "baseline": self.baseline,
                    "seconds": arm.seconds,
                }
            )
        return rows

    def table(self) -> pandas.DataFrame:
        """`rows()` as a pandas frame, indexed by mechanism."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "notebook", "table() (rows() gives the same as plain values)") from None
        return pandas.DataFrame(self.rows()).set_index("mechanism")

    def plot(self, *metrics: str) -> Figure:
        """Learning curves of these columns of the metrics; without any, training loss and held-out accuracy."""
        from semfocus.report.figures.curves import MANY_TASKS, Column, grid

        wanted = metrics or tuple(name for name in MANY_TASKS if any(r.final(name) is not None for r in self.records))
        for name in wanted:
            if name not in known_columns():
                raise unknown("metric", name, known_columns())
        return grid([Column.of(self.task, self, self.records)], wanted or ("train_loss",))

    def __repr__(self) -> str:
        """The table and the findings, for a console."""
        from rich.console import Console

        written = StringIO()
        # In a notebook rich displays by itself what it prints, unless told not to.
        console = Console(
            file=written, force_jupyter=False, width=_UNLIMITED, soft_wrap=True, markup=False, emoji=False
        )
        console.print(comparison_table(self))
        table = "\n".join(line.rstrip() for line in written.getvalue().splitlines())
        where = ["", f"page: {nearby(self.page)}"] if self.page else []
        return printable("\n".join([comparison_title(self), "", table, "", *self._texts(), *where]))

    def _texts(self) -> list[str]:
        texts = [f"Accuracy without learning: {baseline_text(self)}.", *facts_text(self.facts), *self.tuning]
        return [*texts, *self.sentences(), *([self.recommendation.text] if self.recommendation else [])]

    def _repr_html_(self) -> str:
        """The table and the findings, for a notebook."""
        heads = [
            "mechanism",
            f"epochs to {self.learned.level()}",
            "seeds there",
            "time",
            "times fewer epochs",
            "held out",
        ]
        names = list(dict.fromkeys(name for arm in self.arms for name in arm.others))
        heads += [known_columns()[name] for name in names]
        lines = []
        for arm in self.arms:
            shares = [arm.final_heldout, *(arm.others.get(name) for name in names)]
            cells = [
                arm.mechanism,
                epochs_text(arm)[0],
                f"{arm.reached} of {len(arm.times.seeds)}",
                learning_time_text(arm),
                "" if arm.speed_up is None else arm.speed_up.ratio.text,
                *("" if each is None or each.median is None else f"{each.median:.1%}" for each in shares),
            ]
            lines.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
        head = "".join(f"<th>{escape(text)}</th>" for text in heads)
        if self.race is not None:
            source = race_table(self.race)
            head = "".join(f"<th>{escape(text)}</th>" for text in source.heads)
            lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in source.rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        told = "".join(f"<li>{escape(text)}</li>" for text in self._texts())
        where = f"<p>Everything: <code>{escape(nearby(self.page))}</code></p>" if self.page else ""
        return (
            f"<p><b>{escape(comparison_title(self))}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<ul>{told}</ul>{where}"
        )
