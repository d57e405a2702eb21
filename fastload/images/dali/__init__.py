"""NVIDIA DALI behind the loader's interface: fastload's order and parameters, DALI's decoding.

::

    samplers ─> (file, target, index) ─> header, keys ─> crops, flips ─┐
                     └──────────────────── bytes ──────────────────────┴─> DALI ─> tensors ─> (batched transforms)

In: a dataset of image files, and the arguments of a loader. Out: batches as those of ``DataLoader(..., fuse=True)``,
but for DALI's arithmetic. DALI is imported when a :class:`DALILoader` is made, on the CPU as on a GPU. To add an input
of pipelines, name it in :data:`fastload.images.dali.inputs.INPUTS`.
"""

from .inputs import source
from .loader import DALILoader

__all__ = ["DALILoader", "source"]
