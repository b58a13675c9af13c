"""A transformer block in few kernels: everything before and after attention, fused, for a whole cohort.

parts = fused_parts(spec, device)    the functions of a step by Triton kernels; None where they cannot serve
"""

from semfocus.fused.block import fused_parts, refuses

__all__ = ["fused_parts", "refuses"]
