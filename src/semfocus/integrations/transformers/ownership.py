"""Configs that belong to one model alone, so that a choice stored in them reaches no other.

transformers reads a layer's implementation from the config object that the layer shares with its model, and with every
other model that was made from the same object: a teacher and its student, say.
"""

from __future__ import annotations

import copy
import gc
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

OWNED = "_semfocus_owns_configs"


def own_configs(model: PreTrainedModel) -> None:
    """Replace the configs of `model`, and of the model that it is a part of, by copies, unless that was done before."""
    if hasattr(model, OWNED):
        return
    whole = _whole(model)
    copies: dict[int, Any] = {}  # as copy.deepcopy keeps them: the copy of each object by the id of the original
    for module in whole.modules():
        for name, value in vars(module).items():
            if isinstance(value, PreTrainedConfig):
                vars(module)[name] = copy.deepcopy(value, copies)
        if isinstance(module, PreTrainedModel):
            setattr(module, OWNED, True)


def _whole(model: PreTrainedModel) -> PreTrainedModel:
    """The outermost transformers model that `model` is a part of; modules do not know what holds them."""
    holders: dict[int, list[nn.Module]] = {}
    for module in (each for each in gc.get_objects() if issubclass(type(each), nn.Module)):
        for child in vars(module).get("_modules", {}).values():
            holders.setdefault(id(child), []).append(module)
    whole, around, met = model, [model], {id(model)}
    while around:
        module = around.pop(0)
        if isinstance(module, PreTrainedModel):
            whole = module  # those further out come later
        new = [holder for holder in holders.get(id(module), []) if id(holder) not in met]
        met.update(map(id, new))
        around += new
    return whole
