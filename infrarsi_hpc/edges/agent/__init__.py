"""The agent: what runs on a node. Standard library alone, until the workload itself is started.

`main` takes a batch of trials, `trial` makes one, `ranks` launches and watches its processes, `warm` holds a
process that has imported the framework already, `probe` sits inside the workload, `memory` and `capture` measure.
"""
