"""Memory of the process and its workers over a thousand batches: flat, and how high.

Claim: what fastload holds after 1,000 batches is within 8 MiB of what it held after 100, for batches in slots and for
pickled ones.

"MiB" counts anonymous and shared pages of the whole process tree, shared ones once (see ``process_memory.py``).

Meaningless if: read over fewer batches than the allocator and the slots need to settle, hence the reading at 100.
"""

import torch

from benchmarks.loops import describe, make_loader
from benchmarks.made_data import FilledImages, Sentences, pad_sentences
from benchmarks.process_memory import read_tree_memory
from benchmarks.spec import Case, Measurement, Metric, Side


def thousand_batches(side: Side, *, kind: str, marks: list[int]) -> Measurement:
    """Read the memory after so many batches of 64: float32 images of 64x64, 3 MiB, or ragged sequences, padded."""
    torch.manual_seed(0)
    num_samples = marks[-1] * 64
    if kind == "images":
        loader = make_loader(side, FilledImages(num_samples, 64), batch_size=64, num_workers=2)
    else:
        sentences = Sentences(num_samples)
        loader = make_loader(side, sentences, batch_size=64, num_workers=2, collate_fn=pad_sentences)
    at_mark: dict[int, float] = {}
    for number, _batch in enumerate(loader, start=1):
        if number in marks:
            at_mark[number] = read_tree_memory().own_mib
    return {
        **{f"MiB after {mark} batches": at_mark[mark] for mark in marks},
        "growth MiB": at_mark[marks[-1]] - at_mark[marks[0]],
        "statistics": describe(loader),
    }


_MARKS = (100, 500, 1000)

CASES = tuple(
    Case(
        name=f"memory-{kind}",
        measure="benchmarks.cases.memory:thousand_batches",
        metrics=(
            *(Metric(name=f"MiB after {mark} batches", least_ratio=None) for mark in _MARKS),
            Metric(name="growth MiB", has_ratio=False, most_value=8.0),
        ),
        arguments={"kind": kind, "marks": list(_MARKS)},
        fresh_process=True,
    )
    for kind in ("images", "ragged")
)
