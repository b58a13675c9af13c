"""What trained language models write, as values for the template: one text a mechanism, the other seeds folded."""

from __future__ import annotations

from typing import Any

from semfocus.analysis.groups import Group
from semfocus.errors import printable
from semfocus.measurements import Measurements
from semfocus.measurements.samples import Sample

MOST_SHOWN = 600  # characters of a text
Json = dict[str, Any]


def samples(group: Group, measurements: Measurements) -> Json | None:
    """The texts behind the commonest prompt of a group; None where there is none."""
    every = [
        (run, own) for run in group.records if isinstance(own := measurements.get(run.id, {}).get(Sample.NAME), Sample)
    ]
    if not every:
        return None
    prompts = [own.prompt for _, own in every]
    usual = max(dict.fromkeys(prompts), key=prompts.count)
    texts: dict[str, list[Json]] = {}
    for run, own in every:
        if own.prompt == usual:
            texts.setdefault(run.mechanism, []).append({"seed": str(run.seed), "text": visible(own.text)})
    one = next(own for _, own in every if own.prompt == usual)
    return {
        "prompt": visible(usual),
        "note": f"{one.tokens} tokens, drawn at temperature {one.temperature:g} with the draws of seed {one.seed}; the "
        "same prompt and draws for each model. Behind ↵ a new line begins; other control characters are escapes.",
        "texts": [{"name": name, "first": own[0], "others": own[1:]} for name, own in texts.items()],
        "left_out": len(every) - prompts.count(usual),
    }


def visible(text: str) -> str:
    """A text whose line ends have a sign, with escapes for other control characters."""
    shown = printable(text[:MOST_SHOWN]).replace("\n", "↵\n")
    return shown + ("…" if len(text) > MOST_SHOWN else "")
