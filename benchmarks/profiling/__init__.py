"""How true ``fastload profile`` speaks, and what it costs.

    pipelines/      scripts whose bound is known by construction
    zoo.py          what the profiler says of them beside the truth: python -m benchmarks.profiling.zoo
    overhead.py     what the profiler costs the script that it records

These are not tests: nothing here fails because a number is bad.
"""
