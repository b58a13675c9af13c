"""Tables and lines of text for the terminal: comparisons, diagnoses, theory, loss surfaces, and speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from semfocus.analysis.accuracy import Accuracies
from semfocus.analysis.comparison import Comparison
from semfocus.analysis.multiple import ALPHA
from semfocus.report.diagnosis_text import layer_table
from semfocus.report.race import race_table
from semfocus.report.text import TextTable, correlation_text, epochs_text, learning_time_text
from semfocus.training.objective import known_columns

if TYPE_CHECKING:
    from rich.table import Table

    from semfocus.analysis.consistent_settings import LeftOut
    from semfocus.analysis.correlation import Correlation
    from semfocus.analysis.dispersion_vs_speedup import Point
    from semfocus.analysis.masks_vs_speedup import MaskPoint, MaskPoints
    from semfocus.measurements import Sharpness, Surface


def comparison_table(comparison: Comparison) -> Table:
    """One row for each mechanism: epochs until it learned and their time, against full attention, accuracy."""
    from rich.table import Table

    if comparison.race is not None:
        return rich_table(race_table(comparison.race))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("mechanism", no_wrap=True)
    for title in (
        f"epochs to {comparison.learned.level()}",
        "range",
        "seeds there",
        "time",
        "times fewer epochs",
        "held out, final",
        "best",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    others = dict.fromkeys(name for arm in comparison.arms for name in arm.others)
    for name in others:
        table.add_column(known_columns()[name], justify="right", no_wrap=True)
    for arm in comparison.arms:
        median, spread = epochs_text(arm)
        speed = "" if arm.speed_up is None else arm.speed_up.ratio.text
        seeds = f"{arm.reached} of {len(arm.times.seeds)}"
        shares = [_share(arm.final_heldout), _share(arm.best_heldout)]
        shares += [_share(arm.others[name]) if name in arm.others else "" for name in others]
        table.add_row(arm.mechanism, median, spread, seeds, learning_time_text(arm), speed, *shares)
    return table


def rich_table(source: TextTable) -> Table:
    """A table that wraps between words where the terminal is narrow, so that no number is cut."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title=source.title, title_justify="left")
    for head, *cells in zip(source.heads, *source.rows, strict=True):
        longest = max((len(word) for text in (head, *cells) for word in text.split()), default=0)
        table.add_column(head, justify="right" if head and head != source.heads[0] else "left", min_width=longest)
    for cells in source.rows:
        table.add_row(*cells)
    return table


def model_text(document: Mapping[str, Any]) -> str:
    """A diagnosis of a model: one line for each layer, then the findings."""
    table = layer_table(document)
    rows = [table.heads, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.heads))]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join([f"{document['model']}, k = {document['k']}", "", *lines, "", *document["findings"]])


def _share(accuracies: Accuracies) -> str:
    return f"{accuracies.median:.1%}" if len(accuracies) else ""


def region_table() -> Table:
    """For each dispersion, the share of the reachable plane in which W < 1, and X < 1 for each sink ratio."""
    from rich.table import Table

    from semfocus.report.figures.theory import DISPERSIONS, SINK_RATIOS, share_where
    from semfocus.theory import region

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("delta full", "W < 1", *(f"X < 1, beta {beta:g}" for beta in SINK_RATIOS)):
        table.add_column(title, justify="right")
    for delta in DISPERSIONS:
        shares = [share_where(region(delta), "w")]
        shares += [share_where(region(delta, beta), "x") for beta in SINK_RATIOS]
        table.add_row(f"{delta:g}", *(f"{share:.1%}" for share in shares))
    return table


def surface_line(surface: Surface) -> str:
    """The range of the losses of a surface, and how steep it is."""
    lowest, highest, meta = surface.lowest, surface.highest, surface.meta
    if lowest is None or highest is None:
        return "no loss on the grid is finite"
    steepest, lost = meta.per_distance["95"][-1], surface.not_finite
    slope = "not finite" if steepest is None else f"{steepest:.3g}"
    return (
        f"losses {lowest:.4g} to {highest:.4g} up to {meta.extent:g} along each direction"
        + (f", {lost} points not finite" if lost else "")
        + f"; 95th percentile of slopes within {min(meta.extent, meta.squares[-1]):g}: {slope} per parameter distance"
    )


def sharpness_lines(sharpness: Sharpness) -> Iterator[str]:
    """One line for each checkpoint: epoch, gradient norm, largest Hessian eigenvalue."""
    for line in zip(sharpness.epochs, sharpness.gradient_norm, sharpness.hessian_top, strict=True):
        yield "  ".join(f"{'not finite' if value is None else format(value, '.4g'):>12}" for value in line)


def dispersion_table(points: Sequence[Point]) -> Table:
    """One row for each task: the ratios of dispersions and the speed-up."""
    rows = []
    for point in points:
        ratios = ["" if ratio is None else f"{ratio:.3g}" for ratio in (point.start, point.end)]
        counts = dict.fromkeys((point.start_seeds, point.end_seeds))
        seeds = f"{' / '.join(map(str, counts))} of {point.speed_up.pairs}"
        rows.append((point.task, *ratios, point.speed_up.ratio.text, seeds))
    return rich_table(TextTable("", ("task", "ratio, start", "ratio, end", "speed-up", "seeds measured"), rows))


def mask_table(points: Sequence[MaskPoint]) -> Table:
    """One row for each task: the share of keys that stay, the epochs and the speed-up."""
    rows = []
    for point in points:
        kept = "" if point.kept is None else f"{point.kept:.1%}"
        epochs = f"{'' if point.all_reached else '>= '}{point.epochs:.3g}"
        rows.append((point.task, kept, epochs, point.speed_up.ratio.text, f"{point.seeds} of {point.speed_up.pairs}"))
    return rich_table(TextTable("", ("task", "keys that stay", "epochs to 95 %", "speed-up", "seeds measured"), rows))


def mask_line(measured: MaskPoints, mechanism: str) -> str:
    """What the numbers of `mask_table` are, and with which settings they were measured."""
    settings = ", ".join(f"{name} = {value}" for name, value in measured.settings.items() if value is not None)
    return f"Kept keys of {mechanism} that stay, mean over the sizes of noise ({settings})."


def left_out_lines(points: Sequence[Point] | Sequence[MaskPoint]) -> Iterator[str]:
    """One line for each run that was measured in another way."""
    left_out: list[LeftOut] = [one for point in points for one in point.left_out]
    for record, why in left_out:
        task = record.config["task"]["name"]
        yield f"left out: run {record.id} ({task}, {record.mechanism}, seed {record.seed}), measured with {why}"


def correlation_lines(correlations: Mapping[str, Correlation]) -> Iterator[str]:
    """The correlations, and a line where there are too few tasks for any of them to be significant."""
    from semfocus.analysis.dispersion_vs_speedup import smallest_p

    for name, correlation in correlations.items():
        yield f"{name}: {correlation_text(correlation)}"
    few = min((one.items for one in correlations.values() if one.rho is not None), default=0)
    if few and smallest_p(few) > ALPHA:
        yield f"With {few} tasks even a perfect order has p = {smallest_p(few):.2g}: it takes more to show anything."
