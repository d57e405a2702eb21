"""A torchvision dataset and its transform -> the same samples, made in fewer and larger pieces.

::

    plan = recognise(dataset)                # looks; calls nothing of the user's, draws nothing
    here, tail = plan.split(device=True)     # what the workers do, and what the device does with whole batches
    fused = FusedDataset(dataset, here, seed)
    fused.load(indices, ids, epoch, out=rows)
    print(plan)                              # stage, where it runs, why something was not fused

Parameters come from the samples' keys, as those of :mod:`fastload.transforms` do: they depend neither on the executor,
nor on what is moved to a device, nor on the chunk. What is not known stays as it is: the first unknown transform and
all after it get what they would have got.
"""

from .conversions import Values
from .dataset import FusedDataset, Loaded
from .plan import FusedTail, Line, Part, Plan, Yields, recognise

__all__ = [
    "FusedDataset",
    "FusedTail",
    "Line",
    "Loaded",
    "Part",
    "Plan",
    "Values",
    "Yields",
    "recognise",
]
