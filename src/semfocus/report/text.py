"""Numbers, labels and sentences as text, in the same words for the terminal, figures and pages."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from semfocus.analysis.multiple import ALPHA

if TYPE_CHECKING:
    from semfocus.analysis.comparison import Arm, Comparison
    from semfocus.analysis.correlation import Correlation
    from semfocus.analysis.speedup import Ratio

Json = Mapping[str, Any]
_SPLITS = {"train": "train", "heldout": "held-out", "test": "test"}
_LONGEST_NAME = 40  # characters of a class in a sentence


def duration(seconds: float) -> str:
    """`12 s`, `4 min 05 s`, `3 h 20 min`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def counted(number: float, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:.15g} {noun}" if number == 1 else f"{number:.15g} {noun}s"


def seeds_text(counts: Collection[int]) -> str:
    """The seeds behind several lines: `one seed`, `10 seeds`, or `10 to 20 seeds` where some have fewer."""
    low, high = min(counts), max(counts)
    return "one seed" if high == 1 else f"{high} seeds" if low == high else f"{low} to {high} seeds"


def epochs_text(arm: Arm) -> tuple[str, str]:
    """The median over seeds, and the range over those that reached the threshold: `4` and `3-8`, or `never` and ""."""
    epochs = arm.times.epochs[arm.times.reached]
    if not len(epochs):
        return "never", ""
    median = f"{arm.times.median:g}" if arm.times.median is not None else f"> {arm.times.horizon:g}"
    first, last = epochs.min(), epochs.max()
    return median, f"{first:g}" if first == last else f"{first:g}-{last:g}"


def learning_time_text(arm: Arm) -> str:
    """The median epochs to learn as seconds of training: `21 s`; empty where half of the seeds never got there."""
    seconds = arm.seconds_to_learn
    return "" if seconds is None else "< 1 s" if seconds < 1 else duration(seconds)


def at_odds(arm: Arm) -> bool:
    """Whether the interval of the speed-up leaves out 1 although the test finds nothing beyond chance.

    The interval takes the logarithms of the ratios as normal; the test's p is exact, and adjusted for the number of
    mechanisms. With few seeds no p can be small, however narrow the interval.
    """
    interval = None if arm.speed_up is None else arm.speed_up.interval
    return interval is not None and not interval.low <= 1 <= interval.high and arm.p is not None and arm.p > ALPHA


def interval_text(arm: Arm) -> str:
    """The interval of a speed-up: `4.1 to 6.6`, `4.1 or more`; empty when there is none."""
    interval = None if arm.speed_up is None else arm.speed_up.interval
    if interval is None:
        return ""
    if math.isinf(interval.high):
        return f"{interval.low:.3g} or more"
    return f"at most {interval.high:.3g}" if interval.low <= 0 else f"{interval.low:.3g} to {interval.high:.3g}"


def ratio_text(ratio: Ratio) -> str:
    """A ratio on a page or in a figure: `5.2x`, `≥ 2.4x`."""
    return ratio.text.replace(">=", "≥").replace("<=", "≤")


def baseline_text(comparison: Comparison) -> str:
    """The best accuracy that needs no learning, by all its names: `chance, majority 50.0%`."""
    from semfocus.analysis.comparison import best_baselines

    best = best_baselines(comparison.baselines)
    if not best:
        return "unknown"
    test = comparison.unseen_baseline
    of_test = f" (of the test rows {test:.1%})" if round(test, 3) != round(comparison.baseline, 3) else ""
    return f"{', '.join(best)} {comparison.baseline:.1%}{of_test}"


def facts_text(facts: Json) -> list[str]:
    """What is known of given data, a sentence a line; empty for a task that draws its examples.

    `Data: 140 train, 40 held-out and 20 test rows; 2 classes, of which 'good' has 93.0% of the train, 92.5% of the
    held-out and 95.0% of the test rows.`
    """
    rows, shares = facts.get("rows"), facts.get("majority_share")
    if not isinstance(rows, Mapping):
        return []
    counts = [f"{rows.get(split, 0)} {name}" for split, name in _SPLITS.items() if rows.get(split)]
    listed = _joined(counts)
    if "corpus" in facts:
        return _corpus_text(facts, listed)
    if not isinstance(shares, Mapping):
        return []
    most = str(facts.get("majority_class"))
    name = repr(most if len(most) <= _LONGEST_NAME else f"{most[:_LONGEST_NAME]}…")
    known = {split: share for split in _SPLITS if isinstance(share := shares.get(split), float)}
    each = [f"{share:.1%} of the {_SPLITS[split]}" for split, share in known.items()]
    of_rows = f"{_joined(each)} rows"
    lines = [f"Data: {listed} rows; {facts.get('num_classes')} classes, of which {name} has {of_rows}."]
    left = [f"{_rows(facts['skipped'])} without a token skipped"] if facts.get("skipped") else []
    left += [f"{_rows(facts['cut'])} cut at {facts['seq_len']} tokens"] if facts.get("cut") else []
    unknown = facts.get("unknown_share")
    left += [f"{unknown:.1%} of the held-out tokens are unknown"] if isinstance(unknown, float) and unknown else []
    untaught = facts.get("untaught")
    if isinstance(untaught, float):
        lines.append(
            f"{untaught:.1%} of the held-out rows are of classes that no train row has: is this the label column?"
        )
    tokens = f"Tokens: {facts.get('tokenizer')}, {facts.get('vocab_size')} symbols, {facts.get('seq_len')} a row"
    return [*lines, "; ".join([tokens, *left]) + "."]


def rates_text(configs: Iterable[Json]) -> str:
    """`Learning rates chosen by tuning (lr of 0.03, 0.1, 0.3; 2 seeds): full 0.1, topk:2 0.3.` Empty where given."""
    trainings = {config["attention"]["mechanism"]: config["training"] for config in configs}
    tuned = {str(training["tuned"]) for training in trainings.values() if training.get("tuned")}
    rates = ", ".join(f"{name} {training['lr']:g}" for name, training in trainings.items())
    return f"Learning rates chosen by tuning ({'; '.join(sorted(tuned))}): {rates}." if tuned else ""


def _corpus_text(facts: Json, rows: str) -> list[str]:
    """`Data: corpus python, 728 documents, 12.1 MB of text: 40726 train and 4828 held-out rows of 256 tokens.`"""
    documents, size = _sum(facts.get("documents")), _sum(facts.get("text_bytes"))
    copies, shares = facts.get("duplicates"), facts.get("bytes_per_token")
    left = f" ({counted(copies, 'duplicate')} left out)" if isinstance(copies, int) and copies else ""
    share = shares.get("heldout") if isinstance(shares, Mapping) else None
    per_token = f", {share:.2f} bytes of text a token" if isinstance(share, float) else ""
    return [
        f"Data: corpus {facts['corpus']}, {counted(documents, 'document')}{left}, {size / 1e6:.3g} MB of text: "
        f"{rows} rows of {facts.get('seq_len')} tokens.",
        f"Tokens: {facts.get('tokenizer')}, {facts.get('vocab_size')} symbols{per_token}.",
    ]


def _sum(counts: Any) -> int:
    return sum(count for count in counts.values() if isinstance(count, int)) if isinstance(counts, Mapping) else 0


def _joined(texts: Sequence[str]) -> str:
    """`a, b and c`"""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _rows(number: Any) -> str:
    return counted(number, "row") if isinstance(number, int) else f"{number} rows"


def correlation_text(correlation: Correlation, break_before_p: bool = False) -> str:
    """`Rank correlation -0.71 (95 %: -0.95 to 0.02), p = 0.06, 8 tasks`, or why there is none."""
    if correlation.rho is None or correlation.p is None or correlation.interval is None:
        return f"Rank correlation: {correlation.why or 'not enough data'}"
    low, high = correlation.interval.low, correlation.interval.high
    space = "\n" if break_before_p else " "
    size = f"Rank correlation {correlation.rho:.2f} (95 %: {low:.2f} to {high:.2f}),"
    return f"{size}{space}p = {correlation.p:.2g}, {correlation.items} tasks"


def run_label(run: Json, seeds: int = 1) -> str:
    """`parity, full, seed 3`, or `parity, full, 3 seeds`; task and seed are left out where the run has none."""
    names = [run["task"]] if "task" in run else []
    if seeds > 1:
        return ", ".join([*names, run["mechanism"], f"{seeds} seeds"])
    return ", ".join([*names, run["mechanism"], *([f"seed {run['seed']}"] if "seed" in run else [])])


class TextTable(NamedTuple):
    """A table whose cells are text."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def worker_cells(row: Mapping[str, Any]) -> list[str]:
    """A machine of a cluster, as tables show it: where, what, how many runs, how far, how fast, how long yet."""
    moving = [f"{row['step']:.0f} / {row['total_steps']:.0f}", f"{row['rate']:.0f}", duration(row["left"])]
    cells = [row["node"], row["device"], row["what"], f"{row['runs']:.0f}", row["state"]]
    return cells + (moving if row["state"] == "training" else ["", "", ""])
