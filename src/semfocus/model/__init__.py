"""The paper's transformer, many at once: every parameter has a leading member axis E, and E = 1 is the ordinary case.

    tokens (E, B, L) -> embedding * sqrt(d) + positions -> blocks -> mean over positions -> logits (E, B, C)

Shapes everywhere in it: E members, B examples, L positions, d model width, H heads, w head width, m MLP width, V ids,
C classes. A spec that predicts positions has no mean: its logits are (E, B, L, C). All parameters of a cohort are one
matrix (E, P); `spec.Layout` says which columns are which. A member is one row of it, and an ordinary module as
`model.encoder.Encoder`.
"""
