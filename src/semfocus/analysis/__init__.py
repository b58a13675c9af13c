"""WHAT it means: tests, intervals and decisions on numbers that runs have produced. See docs/statistics.md."""

from semfocus.analysis.accuracy import Accuracies, AccuracyDifference, accuracy_difference
from semfocus.analysis.correlation import Correlation, spearman
from semfocus.analysis.intervals import (
    ACCURACY_MARGIN,
    SPEEDUP_MARGIN,
    Interval,
    Margin,
    equivalence,
    non_inferiority,
)
from semfocus.analysis.multiple import ALPHA, holm, not_enough, pairs_needed
from semfocus.analysis.paired import PairedTest, paired_logrank, pooled_logrank
from semfocus.analysis.pairing import Unpaired
from semfocus.analysis.results import Results
from semfocus.analysis.speedup import Ratio, SpeedUp, speed_up
from semfocus.analysis.survival import ConvergenceTimes, Curve

__all__ = [
    "ACCURACY_MARGIN",
    "ALPHA",
    "SPEEDUP_MARGIN",
    "Accuracies",
    "AccuracyDifference",
    "ConvergenceTimes",
    "Correlation",
    "Curve",
    "Interval",
    "Margin",
    "PairedTest",
    "Ratio",
    "Results",
    "SpeedUp",
    "Unpaired",
    "accuracy_difference",
    "equivalence",
    "holm",
    "non_inferiority",
    "not_enough",
    "paired_logrank",
    "pairs_needed",
    "pooled_logrank",
    "spearman",
    "speed_up",
]
