"""NVIDIA DALI behind the loader's interface: fastload's order and each sample's numbers, a DALI pipeline's batches.

::

    samplers ─> (file, target, index) ─> keys ─> numbers ─> the user's pipeline ─> tensors
                     └─────────── bytes ────────────┘

In: a dataset of image files, a pipeline, and arguments of a loader, which imports DALI. Out: what the pipeline makes.
"""

from .inputs import source
from .loader import DALILoader

__all__ = ["DALILoader", "source"]
