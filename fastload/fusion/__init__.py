"""A dataset of torchvision's and its transform -> the same samples, made in fewer and larger steps.

::

    plan = recognise(dataset)                 # looks at objects; calls nothing of the user's, draws nothing
    fused = FusedDataset(dataset, seed)
    fused.load(indices, ids, epoch, out=rows)
    print(plan)                               # stage and where it runs, or why nothing is fused

Two sources: image files, and images that are one array in memory. A pipeline is fused as a whole or not at all.
Parameters come from the samples' keys, like those of :mod:`fastload.transforms`: they do not depend on the chunk, the
worker, or on what decodes. To fuse one more transform, see :data:`fastload.fusion.transforms.GEOMETRY`; one more
dataset in memory, :data:`fastload.fusion.sources.ARRAYS`.
"""

from .dataset import FusedDataset
from .plan import Plan, recognise

__all__ = ["FusedDataset", "Plan", "recognise"]
