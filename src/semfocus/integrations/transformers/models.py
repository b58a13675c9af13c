"""Which modules of a model take their attention function from transformers' registry, found by inspecting its code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

from torch import nn
from transformers import PreTrainedModel

from semfocus.errors import UsageError

REGISTRY = "ALL_ATTENTION_FUNCTIONS"
# Names in the code of a layer that computes attention by itself. Heads that pool a sequence into one vector use them,
# too, and are ignored: no token attends to another there.
OWN_ATTENTION = frozenset({"softmax", "Softmax", "scaled_dot_product_attention", "multi_head_attention_forward"})
POOLING = "Pool"


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The modules of `model` that use the registry; an error if there are none, or if others compute by themselves."""
    # Models themselves are left out: their common base class mentions the registry, whatever their layers do.
    kinds = {type(module) for module in model.modules() if not isinstance(module, PreTrainedModel)}
    layers = [module for module in model.modules() if type(module) in kinds and REGISTRY in _names_used(type(module))]
    name = type(model).__name__
    if not layers:
        raise UsageError(
            f"{name} does not take its attention from transformers' AttentionInterface, so nothing can be switched in; "
            "choose a model that does (docs/huggingface.md says which)"
        )
    own = sorted(kind.__name__ for kind in kinds if _computes_itself(kind))
    if own:
        raise UsageError(
            f"{name} takes only part of its attention from transformers' AttentionInterface: {', '.join(own)} would "
            "stay as it is; focus the parts that do, for example model.vision_model"
        )
    return layers


def _computes_itself(cls: type) -> bool:
    names = _names_used(cls)
    is_layer = "Att" in cls.__name__ and POOLING not in cls.__name__
    return is_layer and REGISTRY not in names and not OWN_ATTENTION.isdisjoint(names)


@lru_cache(maxsize=4096)
def _names_used(cls: type) -> frozenset[str]:
    """The names in the code of the methods of a module class and its bases up to nn.Module."""
    names: set[str] = set()
    for base in cls.__mro__:
        if base.__module__.startswith("torch."):
            continue
        for attribute in vars(base).values():
            function = inspect.unwrap(attribute) if callable(attribute) else attribute
            if inspect.isfunction(function):
                names.update(_names_in(function.__code__))
    return frozenset(names)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
