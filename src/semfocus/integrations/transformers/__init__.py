"""Any mechanism in a Hugging Face transformers model, switched live.

    from semfocus.integrations.transformers import focus, unfocus

    focus(model, "topk:8")                          # or TopK(8), or one mechanism for each layer
    model.generate(**inputs)
    unfocus(model)                                  # as it was before, to the bit

`register()` makes the names "semfocus_topk", "semfocus_banded", ... known as `attn_implementation`.
"""

from __future__ import annotations

from semfocus.errors import MissingExtra

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise MissingExtra("transformers", "hf", "semfocus.integrations.transformers") from error

from semfocus.integrations.transformers.switching import focus, register, unfocus

__all__ = ["focus", "register", "unfocus"]
