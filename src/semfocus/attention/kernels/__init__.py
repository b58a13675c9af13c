"""Triton kernels, forward and backward.

    short        up to 1024 positions, whole cohorts at once: full, banded, block-local, top-k, bottom-k
    long         top-k over longer rows, as lists of keys: up to 64 a query
    threshold    top-k with any number of keys: a threshold a query, then masked flash attention
    decode       top-k of a few queries over a long cache, without a backward pass

`backend` is what `attend` calls; `regimes` says which of them computes a call. Triton is imported at the first launch.
"""
