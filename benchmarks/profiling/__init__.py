"""How true ``fastload profile`` speaks.

    pipelines/      scripts whose bound is known by construction
    zoo.py          what the profiler says of them beside the truth: python -m benchmarks.profiling.zoo

These are not tests: nothing here fails because a number is bad.
"""
