"""Which functions are known to do no more than to regroup what they are given."""

# ruff: noqa: B905
import builtins

import torch
from torch.utils.data import default_collate

import fastload
from fastload.base.regrouping import are_plain, only_regroups


def zipped(batch):
    """Docstrings and names do not matter."""
    return tuple(zip(*batch))


def unpacked(batch):
    images, targets = zip(*batch)
    return list(images), list(targets)


def with_rest(batch):
    images, *rest = list(zip(*batch))
    return [images, *rest]


REGROUP = [
    zipped,
    unpacked,
    with_rest,
    lambda batch: tuple(zip(*batch)),
    lambda batch: list(zip(*batch)),
    lambda batch: tuple(zip(*batch, strict=True)),
    lambda batch: [*zip(*batch)],
    lambda batch: (*zip(*batch),),
    lambda batch: batch,
    lambda batch: tuple(batch),
]


def test_functions_that_build_containers_of_samples_are_known():
    assert [function for function in REGROUP if not only_regroups(function)] == []


COUNTER = []


def keeps_count(batch):
    COUNTER.append(len(batch))
    return batch


def changes_samples(batch):
    batch[0] = None
    return batch


def sets_a_global(batch):
    global COUNTER
    COUNTER = batch
    return batch


def raises_errors(batch):
    raise ValueError(batch)


def branches(batch):
    return batch if batch else None


def imports(batch):
    import os

    return os, batch


def yields(batch):
    yield batch


class Collator:
    def method(self, batch):
        return tuple(zip(*batch))

    __call__ = method


def with_captured(value):
    return lambda batch: (value, batch)


def drops_targets(batch):
    images, _ = zip(*batch)
    return list(images)


OTHERS = [
    drops_targets,
    lambda batch: {key: [sample[key] for sample in batch] for key in batch[0]},
    lambda batch: ([image for image, _ in batch], [target for _, target in batch]),
    lambda batch: [list(sample) for sample in batch],
    lambda batch: batch[0],
    lambda batch: [list(map(tuple, sample())) for sample in batch],
    lambda batch: list(map(*batch)),
    lambda batch: list(range(10**8)),
    keeps_count,
    changes_samples,
    sets_a_global,
    raises_errors,
    branches,
    imports,
    yields,
    with_captured(3),
    Collator(),
    Collator().method,
    default_collate,
    list,
    lambda batch: torch.stack(batch),
    lambda batch: sum(batch),
    lambda batch: [sample + 1 for sample in batch],
    lambda batch: [sample.copied for sample in batch],
    lambda batch: batch[0](),
    lambda batch: list(map(str, batch)),
    lambda batch, more=3: (batch, more),
    lambda *batch: batch,
]


def test_functions_that_call_change_or_keep_something_are_not_known():
    assert [function for function in OTHERS if only_regroups(function)] == []


def test_a_builtin_that_the_module_of_the_function_has_replaced_is_not_known():
    names = {"zip": lambda *columns: print(columns)}
    exec("collate = lambda batch: tuple(zip(*batch))", names)
    assert not only_regroups(names["collate"])


def test_a_builtin_that_was_replaced_for_all_is_not_known(monkeypatch):
    original = zip
    monkeypatch.setattr(builtins, "zip", lambda *columns, **options: original(*columns, **options))
    assert not only_regroups(zipped)


def test_samples_of_classes_of_the_users_are_not_plain():
    class Drawing(tuple):
        def __iter__(self):
            yield torch.rand(())

    assert are_plain([(1, torch.ones(2)), [3], {"a": 4}, torch.ones(2), "text"])
    assert not are_plain([(1, 2), Drawing((1, 2))])
    assert not are_plain([iter([1])])


def test_explain_says_that_workers_share_the_first_batch():
    dataset = [(number, number) for number in range(8)]
    told = [
        fastload.DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=collate_fn).explain()
        for collate_fn in (zipped, keeps_count)
    ]
    assert ["the first of an epoch, chunks of samples" in text for text in told] == [True, False]
