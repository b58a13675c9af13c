"""Kernels for exact top-k attention over up to 131072 positions: memory and backward work O(L k).

    dispatch    what `attend` calls, the torch custom operators, tile sizes and launches
    forward     group maxima of all scores, the best groups, then the best keys among them
    backward    gradients over the kept pairs, without atomics

Importing these modules imports Triton; `kernels.backend` does so at the first call.
"""
