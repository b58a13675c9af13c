"""Text that a trained language model went on with: kept with its run, so that a page can be written again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from semfocus.measurements.fields import LARGEST, Fields, Malformed
from semfocus.measurements.kinds import Measurement

LONGEST_TEXT = 20_000  # characters


@dataclass(frozen=True, kw_only=True)
class Sample(Measurement):
    """A prompt, and what the newest model of a run wrote behind it."""

    NAME = "sample"
    SETTINGS = ("step", "prompt", "tokens", "seed", "temperature")

    prompt: str
    text: str
    tokens: int
    seed: int
    temperature: float

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any], largest: float = LARGEST) -> Self:
        fields = Fields(payload, largest)
        texts = {name: payload.get(name) for name in ("prompt", "text")}
        for name, text in texts.items():
            if not isinstance(text, str) or len(text) > LONGEST_TEXT:
                raise Malformed(f"{name} is not a text of at most {LONGEST_TEXT} characters")
        return cls(
            document=dict(payload),
            prompt=str(texts["prompt"]),
            text=str(texts["text"]),
            tokens=int(fields.number("tokens")),
            seed=int(fields.number("seed")),
            temperature=fields.number("temperature"),
        )
