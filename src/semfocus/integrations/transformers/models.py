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
TORCH_ATTENTION = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})
OWN_ATTENTION = TORCH_ATTENTION | {"softmax", "Softmax"}
POOLING = "Pool"


def attention_layers(model: nn.Module, partial: bool = False) -> list[nn.Module]:
    """The modules of `model` that use the registry; an error if there are none.

    Unless `partial`, also an error if others compute attention by themselves.
    """
    # Models themselves are left out: their common base class mentions the registry, whatever their layers do.
    kinds = {type(module) for module in model.modules() if not isinstance(module, PreTrainedModel)}
    layers = [module for module in model.modules() if type(module) in kinds and REGISTRY in _names_used(type(module))]
    name = type(model).__name__
    if not layers:
        raise UsageError(
            f"{name} does not take its attention from transformers' AttentionInterface, so nothing can be switched in; "
            "choose a model that does (docs/huggingface.md says which)"
        )
    own = own_attention(model)
    if own and not partial:
        whole = next((path for path, part in _parts(model) if not own_attention(part)), None)
        way = f"focus a part that does (model.{whole}), or pass" if whole else "pass"
        raise UsageError(
            f"{name} takes only part of its attention from transformers' AttentionInterface: {', '.join(own)} would "
            f"stay as it is; {way} partial=True to focus what can be focused"
        )
    return layers


def own_attention(model: nn.Module) -> list[str]:
    """The classes of modules in `model` that compute attention by themselves, sorted."""
    pools = [f"{name}." for name, module in model.named_modules() if POOLING in type(module).__name__]
    return sorted(
        {
            type(module).__name__
            for name, module in model.named_modules()
            if _computes_itself(type(module)) and not any(name.startswith(pool) for pool in pools)
        }
    )


def _parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The models inside a model that use the registry, with their paths, outer ones first."""
    for name, module in model.named_modules():
        if name and isinstance(module, PreTrainedModel):
            inner = {type(each) for each in module.modules() if not isinstance(each, PreTrainedModel)}
            if any(REGISTRY in _names_used(kind) for kind in inner):
                yield name, module


def _computes_itself(cls: type) -> bool:
    if issubclass(cls, nn.MultiheadAttention):  # torch's own code is not inspected
        return True
    names = _names_used(cls)
    if REGISTRY in names or POOLING in cls.__name__:
        return False
    # A softmax may be a router's or a loss's; the other names are attention, whatever the class is called.
    return not OWN_ATTENTION.isdisjoint(names) if "Att" in cls.__name__ else not TORCH_ATTENTION.isdisjoint(names)


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
