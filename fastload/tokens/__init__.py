"""Samples that are sequences of tokens: batches without padding, and lengths.

A sample with ``input_ids`` becomes a part of a row of tokens, as attention kernels for documents of different lengths
take it (:mod:`.flattening`); :class:`fastload.PackedBatchSampler` packs by the samples' lengths (:mod:`.lengths`).
"""
