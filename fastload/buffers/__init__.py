"""Memory that batches are written to: its layout, and its reuse.

In: samples, and the bytes of batches. Out: a :class:`.layout.Layout` (where each tensor of a batch lies), slots
(:class:`.slots.SlotPool`) that are given out and taken back, tensors that share their memory. Memory is shared between
processes (:mod:`.slots`), or private to one (:mod:`.private_memory`). To add a kind of memory, implement the class
:class:`.memory.Memory`.
"""
