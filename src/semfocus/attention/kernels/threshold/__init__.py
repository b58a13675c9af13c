"""Kernels for exact top-k attention with any number of keys: a threshold a query, then masked flash attention.

    dispatch    what `attend` calls, the torch custom operators and launches;  configs: the launch table
    search      each query's k-th best score, exactly, in O(L) memory
    flash       forward: attention in one pass, without the keys below the threshold
    gradients   backward: the same mask from the saved thresholds; no lists, no atomics
    tiles       what the three share: the tile of queries, scores and which pairs are kept

The cost hardly depends on k: three or four passes of q k' for the search, and what full attention costs.
Importing `dispatch` imports Triton; `kernels.backend` does so at the first call.
"""
