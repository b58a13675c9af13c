"""Cohorts on other machines: what every engine of a cluster shares.

`messages` says what driver and workers tell each other, `worker` is what a machine does with a cohort, `dispatcher`
is the driver: who trains what, what was lost, what is tried again. `data_files` brings data files to machines that
lack them, `board` writes down who trains what for `semfocus status` and the page. An engine (Ray, SLURM) is a
`Transport` of a few methods; it knows nothing of runs.
"""
