"""fastload beside other loaders, each as its own users write it, all in one run.

Read the files in this order:

    install.py    an environment for each peer: python -m benchmarks.peers.install DIR
    catalogue.py  the cases, the sides, and what fastload has to reach beside each
    loaders/      the sides themselves, one file a library: how it packs the images, how it loads them
    measuring.py  runs in a side's own environment: packs, checks that a side does the whole work, times it
    packing.py    which packed files are needed, made once before anything is timed
    runner.py     lets the sides alternate, each in a child of its own
    report.py     JSON lines, the table, rows for README.md
    __main__.py   the command: python -m benchmarks.peers

A peer is never a dependency of fastload; without its environment it has a row that says so.
"""
