"""C14: does the effect carry over to next-token prediction on text?"""

from __future__ import annotations

from collections.abc import Sequence

from semfocus.analysis.records import Measurements
from semfocus.analysis.verdicts.evidence import Claim, Part, missing
from semfocus.analysis.verdicts.pairs import earlier, generalises_as_well
from semfocus.analysis.verdicts.settings import FULL, NEXT_TOKEN, TOPK, Setting, choose


def c14(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """Text is seldom learned to 95 %: what counts is how soon both come to the loss that both attain."""
    names = "training loss: earlier", "held-out accuracy: as well"
    setting = choose(settings, NEXT_TOKEN, to_the_end=True)
    if setting is None:
        why = f"no pair of {FULL} and {TOPK} on a task called {NEXT_TOKEN}: semfocus has none of its own"
        return [missing(name, why) for name in names]
    return [earlier(names[0], setting, metric="train_loss"), generalises_as_well(names[1], setting)]


CLAIMS = (
    Claim(
        "C14",
        "Next-token prediction on text shows the same effect.",
        f"Two parts, from runs of a registered task called {NEXT_TOKEN} that trained to the last epoch. Earlier: "
        "epochs to the larger of the two last training losses of a seed, compared by the exact paired log-rank "
        "test at 5 % as in C1. As well: held-out accuracy in the last epoch as in C5.",
        c14,
    ),
)
