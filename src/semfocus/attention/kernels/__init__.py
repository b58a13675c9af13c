"""Triton kernels, forward and backward: `short` for rows of up to about a thousand positions, `long` for top-k beyond.

`backend` is what `attend` knows of them. Triton is imported when a kernel is first launched.
"""
