"""Top-k of a few queries over a long cache: every key is read once, and of the values only those that are kept.

    dispatch    what `attend` calls: plans by shape and launches; no gradient
    direct      calls like an earlier one, from their tensors to the launches
    kernels     scores with the maxima of groups of keys; then per query the best groups, the best keys, their values

Importing these modules imports Triton; `kernels.backend` does so at the first call.
"""
