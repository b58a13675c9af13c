"""Triton kernels, forward and backward: `short` for up to 1024 positions, `long` for top-k beyond.

`backend` is what `attend` calls. Triton is imported at the first launch.
"""
