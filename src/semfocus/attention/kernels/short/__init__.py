"""Kernels for sequences of up to 1024 positions: full, banded and block-local attention, top-k and bottom-k.

    dispatch    what `attend` calls, why a call is refused, and the torch custom operators
    launch      arguments and grids;  configs: the launch table;  arguments: strided views and compile-time constants
    whole       up to 64 positions, one program per problem
    tiled       longer sequences, keys allowed by position
    listed      longer sequences, keys selected by score (selection itself: select)
    positions   device functions that all of them share

A problem is one sequence of one head of one member. Importing `dispatch` does not import Triton.
"""
