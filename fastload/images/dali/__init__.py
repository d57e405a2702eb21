"""NVIDIA DALI as a decoder and transformer of whole batches, behind fastload's sampling, seeding and states.

In: a recognised dataset or a pipeline function of the user's. Out: the batches of a :class:`DALILoader`. It is a loader
of its own, so it comes after :mod:`fastload.loader`, unlike the decoders beside it.
"""

from .loader import DALILoader
from .running import source

__all__ = ["DALILoader", "source"]
