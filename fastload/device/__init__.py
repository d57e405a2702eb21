"""Batches of the host -> batches of a device, ahead of the training loop.

A :class:`~fastload.stages.Stage` of host batches becomes a stage of batches on the device, copied on a stream of
their own and transformed there. :mod:`.prefetch` is the stage, :mod:`.moving` copies, :mod:`.pinning` is the stage of
``pin_memory=True``, :mod:`.columns` holds a dataset that stays on the device, :mod:`.batch_keys` gives batched
transforms their keys. A device type of torch's that has streams works; others copy at once.
"""
