"""NVIDIA DALI behind the loader's interface: fastload's order and each sample's numbers, a DALI pipeline's batches.

::

    samplers ─> (file, target, index) ─> keys ─> numbers ─> the user's pipeline ─> tensors
                     └─────────── bytes ────────────┘
"""

from .inputs import source
from .loader import DALILoader

__all__ = ["DALILoader", "source"]
