"""How true ``fastload profile`` speaks, and what it costs.

    pipelines/      scripts whose bound is known by construction
    zoo.py          what the profiler says of them, beside the truth: python -m benchmarks.profiling.zoo
    pipeline.py     a script whose costs are arguments
    predictions.py  what the simulation says of other settings, beside what they did
    overhead.py     what the profiler costs the script that it records
    edits.py        what other tools need changed in a script of the zoo
    other_tools.py  runs a pipeline under one of them, and reads what it says
    others.py       the zoo seen by all of them: python -m benchmarks.profiling.others

These are not tests: nothing here fails because a number is bad.
"""
