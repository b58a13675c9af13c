"""What the commands about theory, surfaces and speed print: tables and lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from semfocus.analysis.multiple import ALPHA
from semfocus.report.tables import TextTable
from semfocus.report.terminal.tables import rich_table
from semfocus.report.text import correlation_text

if TYPE_CHECKING:
    from rich.table import Table

    from semfocus.analysis.consistent_settings import LeftOut
    from semfocus.analysis.correlation import Correlation
    from semfocus.analysis.dispersion_vs_speedup import Point
    from semfocus.analysis.masks_vs_speedup import MaskPoint, MaskPoints
    from semfocus.measurements import Sharpness, Surface


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
