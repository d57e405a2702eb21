"""Memory that batches are written to: its layout, and its reuse.

A :class:`.layout.Layout` says where each tensor of a batch lies; :class:`.slots.SlotPool` gives slots out and takes
them back. Memory is shared between processes (:mod:`.slots`), or private to one (:mod:`.private_memory`). To add a kind
of memory, implement the class :class:`.slots.Memory`.
"""
