"""Speed and memory of fastload beside torch's own DataLoader, measured in one run.

Read the files in this order, which is the order a measurement goes through them:

    spec.py            what is measured: benchmarks, their sides and metrics
    cases/             the measurements themselves, one file a subject
    catalogue.py       all of them
    made_data.py       the seeded datasets they use
    loops.py           building a loader for one side, and timing an epoch of it
    process_memory.py  memory of a process and all its descendants
    neighbours.py      what else kept the cores busy
    child.py           runs measurements in a process of its own
    runner.py          lets the sides alternate, in one child or in fresh ones
    summary.py         medians, quartiles, and the ratio with its interval
    report.py          JSON lines, the table, rows for README.md
    progress.py        how far a run is
    engine.py          the command: python -m benchmarks.engine
    peers/             other loaders, with commands of their own: python -m benchmarks.peers
    gpu/               what a GPU gets, with a command of its own: python -m benchmarks.gpu

These are not tests: nothing here fails because a number is low.
"""
