"""The parts of examples/train.py.

* ``options``: the command line. ``recipe``: the hyperparameters. ``schedule``: what depends on the step.
* ``data``: datasets, transforms and loaders. ``models``: the networks. ``averages``: averaged weights.
* ``evaluation``: testing on all ranks. ``reporting``: lines, progress bar, log files. ``checkpoint``: files.
* ``startup``, ``distributed``: how the ranks start, fail, stop and exit together. ``errors``: one-line messages.
"""
