"""The measurements, one file for what is measured alike; each file ends with its list of cases.

A measuring function gets the side and its arguments, makes what it needs with fixed seeds, and returns metric name ->
value. It runs in a child process; see ``child.py``.
"""
