"""How true ``fastload profile`` speaks.

pipelines.py    scripts whose bound is known by construction
zoo.py          what the profiler says of them, beside the truth: python -m benchmarks.profiling.zoo
predictions.py  what the simulation says of other settings, beside what they did
"""
