"""What the parts of a configuration share: strictness, and the bounds of their numbers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

# Fields that came later. At their defaults they are not written, so that runs keep their ids.
LATER = {
    "patience_on": "training", "evaluate_test": False, "tuned": "", "lengths": None, "positions": "sine",
    "norm_function": "layernorm", "final_norm": False, "biases": True, "tied_head": False, "init": "paper",
    "schedule": "decay", "warmup": 0.0, "final_lr": 0.0, "cooldown": 0.3, "beta2": 0.999, "evaluated_rows": None,
}  # fmt: skip

Positive = Annotated[int, Field(ge=1, lt=2**31)]
# Larger than any model here, and small enough that an untrusted config cannot exhaust the memory.
Few = Annotated[int, Field(ge=1, le=1024)]
Width = Annotated[int, Field(ge=1, le=2**16)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=3e38, allow_inf_nan=False)]  # what a float32 holds


class Part(BaseModel):
    """Frozen and strict: no unknown field, no value of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_serializer(mode="wrap")
    def _without_later(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = handler(self)
        return {name: value for name, value in fields.items() if name not in LATER or value != LATER[name]}
