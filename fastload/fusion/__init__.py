"""A torchvision dataset and its transform -> the same samples, made in fewer and larger steps.

::

    plan = recognise(dataset)                # looks; calls nothing of the user's, draws nothing
    here, tail = plan.split(device=True)     # what the workers do, and what the device does with whole batches
    fused = FusedDataset(dataset, here, seed)
    fused.load(indices, ids, epoch, out=rows)
    print(plan)                              # stage, where it runs, why something was not fused

Parameters come from the samples' keys, like those of :mod:`fastload.transforms`: they do not depend on the decoder, the
device or the chunk. The first unknown transform and all after it run as they are, and get what they would have got. To
add a transform, see :mod:`fastload.transforms.sample`; to add a dataset, :func:`fastload.fusion.sources.source_of`.
"""

from .dataset import FusedDataset
from .plan import FusedTail, Plan, Yields, recognise

__all__ = ["FusedDataset", "FusedTail", "Plan", "Yields", "recognise"]
