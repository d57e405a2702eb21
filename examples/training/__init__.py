"""What examples/train.py is made of, a file for each part; the loop itself is there.

::

    recipe ─> data ─> models ─> (train.py's loop: schedule, meters, evaluation, checkpoint) over processes

A part imports only from those before it: errors, recipe, schedule, endings, meeting, processes, data, models,
lookahead, evaluation, checkpoint, meters.
"""
