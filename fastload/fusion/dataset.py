"""A dataset whose transform is fused: the same samples, given the same parameters.

::

    indices ─> leaves ─> bytes or pixels ─┐
    ids, epoch ─> parameters ─────────────┴─> row or block ─> values ─> rows of the batch ─> (unknown transforms)

Unknown transforms and target_transform run as they are, sample by sample, with the generators seeded as without fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import default_collate
from torchvision import tv_tensors

from ..buffers.layout import Layout, Row, TensorLeaf
from ..errors import ConfigError
from ..images.base import Decoder
from ..keys.seeding import RNG, SAMPLE, Keys, Seeder, fixed_place, place, seed_global_generators
from ..observe import Watch
from ..transforms.sample import Kind
from ..workers.fused import FusedLoader
from ..workers.on_error import name_sample
from ..workers.samples import Job
from .changes import Objects
from .plan import Plan, recognise
from .runner import Chunk, Runner
from .sources import Router
from .stages import draws_of

if TYPE_CHECKING:
    from ..cache.records import Records

# Number of files that are in memory at once.
_FILES = 16

_Part: TypeAlias = tuple[Runner, Sequence[Any], Sequence[int]]
"""Samples of a leaf: its runner, their indices in it, their places among all."""


class Loaded(NamedTuple):
    """A chunk of samples."""

    images: Tensor | list[Any]
    """[N, C, H, W], if the plan is direct; else one of each sample."""
    targets: list[Any]
    kind: Kind | None
    """The kind of each image, where they are one tensor."""

    def samples(self) -> list[tuple[Any, Any]]:
        """Return the samples as the dataset gives them: pairs of image and target."""
        images: Iterable[Any] = self.images
        if self.kind == "Image":
            images = (tv_tensors.Image(image) for image in self.images)
        return list(zip(images, self.targets, strict=True))

    def batch(self) -> list[Any] | None:
        """Return what torch's ``default_collate`` makes of the samples; None: the images are not one tensor."""
        if not isinstance(self.images, Tensor):
            return None
        # A tuple, as default_collate makes a column of samples: it gives strings back as they are.
        return [self.images, default_collate(tuple(self.targets))]  # type: ignore[arg-type]  # it says list

    def copied(self) -> Loaded:
        """Return the same with images in memory of their own."""
        return self._replace(images=self.images.clone()) if isinstance(self.images, Tensor) else self


class FusedDataset:
    """A map-style dataset with its transform fused.

    Args:
        dataset: the one that the plan was made of.
        plan: what is done here: the first half of :meth:`Plan.split`.
        seed: of the samples' keys: the loader's, or its base seed.
        rows: what decodes files; None: Pillow.
        native_blocks: the native library makes blocks of datasets in memory; else torch does.
        cache: where records of files are kept, if ``rows`` reads records; None: nowhere. It is not pickled.

    It can be pickled wherever the dataset can. Threads may share it, if they can share ``rows``.

    Raises:
        ConfigError: the plan is of another dataset, or fuses nothing.
    """

    in_next = False
    """Whether ``next()`` loads the samples, whatever ``num_workers`` says."""

    def __init__(
        self,
        dataset: Any,
        plan: Plan,
        seed: int,
        rows: Decoder | None = None,
        native_blocks: bool = False,
        cache: Records | None = None,
    ) -> None:
        if not plan.fused:
            raise ConfigError(f"there is nothing to fuse in a {plan.dataset}: {plan.reason}")
        self.dataset = dataset
        self.seed = seed
        self.rows: Decoder = Decoder() if rows is None else rows
        self.native_blocks = native_blocks
        self.cache = cache
        self._seen = -1  # the newest epoch
        self._objects = Objects(dataset)
        self._make(plan)

    def loader(self, job: Job, seeder: Seeder, watch: Watch | None) -> FusedLoader:
        """Return what loads the samples of a job by this dataset, for one worker."""
        return FusedLoader(job, seeder, watch)

    def _make(self, plan: Plan) -> None:
        self.plan = plan
        self._router = Router(self.dataset)
        found = self._router.leaves
        if len(found) != len(plan.parts):
            raise ConfigError(f"the plan is of {len(plan.parts)} datasets, got {len(found)}: make it of this dataset")
        pairs = zip(found, plan.parts, strict=True)
        self._runners = [
            Runner(leaf, self.dataset, part, self.rows, self.native_blocks, self.cache) for leaf, part in pairs
        ]
        self._direct = plan.direct
        self._yields = plan.yields
        self._calls_user_code = plan.calls_user_code

    def __getstate__(self) -> tuple[Any, ...]:
        return self.dataset, self.plan, self.seed, self.rows, self.native_blocks

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # what is not pickled is made anew

    def of(self, dataset: Any, cache: Records | None) -> FusedDataset:
        """Return the same for a worker, with its cache and its own copy of the dataset, which may have been changed."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), dataset=dataset, cache=cache, _seen=-1)
        return twin

    def follows(self, epoch: int) -> bool:
        """Return whether samples can still be made here, or the dataset must load them itself.

        The dataset is looked at again if this is a new epoch, or if one of its objects is another than before.

        Raises:
            ConfigError: the steps that are done on a device have changed.
        """
        if epoch <= self._seen and self._objects.are_the_same():
            return self.plan.fused
        self._seen = max(epoch, self._seen)
        self._objects = Objects(self.dataset)
        plan = replace(recognise(self.dataset), rows=self.plan.rows, blocks=self.plan.blocks)
        if self.plan.tails:
            plan = plan.split(device=True)[0]
            if (plan.tails, plan.yields) != (self.plan.tails, self.plan.yields):
                raise ConfigError(
                    f"the transform of the {plan.dataset} was changed in a worker or in the middle of an iteration, "
                    "while fuse=True does a part of it on the device: change it between iterations, in the process of "
                    "the loader, and close() a loader with persistent workers"
                )
        if plan.fused:
            self._make(plan)
        else:
            self.plan, self._runners = plan, []
        return plan.fused

    def load(
        self,
        indices: Sequence[Any],
        ids: Iterable[int],
        epoch: int,
        *,
        out: Tensor | None = None,
        seed: Callable[[bytes], None] = seed_global_generators,
        failed: Callable[[int, Exception], bool] | None = None,
    ) -> Loaded:
        """Load a chunk of samples.

        Args:
            indices: of the samples.
            ids: their names, as :func:`fastload.keys.seeding.sample_id` gives them.
            epoch: 0, 1, ...
            out: rows for the images of a direct plan, contiguous, as its ``yields`` says; None: new ones.
            seed: seeds the generators that the user's transforms draw from, given a sample's key.
            failed: called with the row and the error of a sample for which a transform of the user's raised; True:
                skip this sample. None: raise the error.

        Files are read before any transform of the user's is called.
        """
        ids = list(ids)
        draws = draws_of(self.seed, epoch, ids)
        images: Any = [None] * len(indices)
        if self._direct:
            images = self._new_rows(len(indices)) if out is None else out
        targets: list[Any] = [None] * len(indices)
        kind = self._yields.kind if self._direct and self._yields is not None else None
        if not len(indices):
            return Loaded(images, targets, kind)
        parts = self._routed(indices)
        for turn, (runner, places, rows) in enumerate(parts):
            # The kernel is asked for the files of each part while the one before it is worked on.
            for coming, its_places, _ in parts[turn + (turn > 0) : turn + 2]:
                coming.reader.ask_for(its_places)
            which: Any = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
            names = indices[which] if isinstance(rows, range) else [indices[row] for row in rows]
            self._make_images(runner, runner.load(places, names, draws.of(which)), rows, images)
            found = runner.reader.targets(places)
            if isinstance(rows, range):
                targets[which] = found
            else:
                for row, target in zip(rows, found, strict=True):
                    targets[row] = target
        if self._calls_user_code:
            self._finish(indices, ids, epoch, images, targets, seed, failed)
        return Loaded(images, targets, kind)

    def _make_images(self, runner: Runner, chunk: Chunk, rows: Sequence[int], images: Any) -> None:
        if self._direct:
            if isinstance(rows, range):
                runner.write(chunk, images[rows.start : rows.stop])
            else:
                into = images.new_empty((len(rows), *images.shape[1:]))
                runner.write(chunk, into)
                images[rows] = into
        else:
            given = runner.drawing.given(chunk.drawn, len(rows))
            for place, row in enumerate(rows):
                images[row] = runner.each(chunk, place, given[place])

    def fits(self, layout: Layout) -> bool:
        """Whether images can be written into rows of this layout."""
        yields, root = self._yields, layout.root
        if not self._direct or yields is None or not isinstance(root, Row) or root.kind is not tuple:
            return False
        image = root.children[0]
        return isinstance(image, TensorLeaf) and (image.dtype, image.shape) == (yields.dtype, yields.shape)

    def decoded(self) -> dict[str, int]:
        """Return how many images were decoded since the last call, by decoder."""
        return self.rows.counted()

    def _new_rows(self, count: int) -> Tensor:
        yields = self._yields
        assert yields is not None
        assert yields.shape is not None
        return torch.empty((count, *yields.shape), dtype=yields.dtype, device="cpu")

    def _routed(self, indices: Sequence[Any]) -> list[_Part]:
        """Return the samples of each leaf, files a few at a time."""
        by_leaf: dict[int, tuple[Any, Any]] = {}
        all_places = self._router.find_all(indices)
        if all_places is not None:
            by_leaf[0] = all_places, range(len(indices))
        else:
            for row, (leaf, place) in enumerate(map(self._router.find, indices)):
                places, rows = by_leaf.setdefault(leaf, ([], []))
                places.append(place)
                rows.append(row)
        found: list[_Part] = []
        for leaf, (places, rows) in by_leaf.items():
            runner = self._runners[leaf]
            step = len(rows) if runner.part.source.size is not None else _FILES
            parts = [slice(first, first + step) for first in range(0, len(rows), step)]
            found += [(runner, places[part], rows[part]) for part in parts]
        return found

    def _finish(
        self,
        indices: Sequence[Any],
        ids: Sequence[int],
        epoch: int,
        images: Any,
        targets: list[Any],
        seed: Callable[[bytes], None],
        failed: Callable[[int, Exception], bool] | None,
    ) -> None:
        keys = Keys(self.seed, epoch, SAMPLE)
        for row, index in enumerate(indices):
            runner = self._runners[self._router.find(index)[0]]
            place.set(fixed_place(self.seed, epoch, RNG, ids[row]))
            seed(keys.key(ids[row]))
            try:
                image, targets[row] = self._finished(runner, images[row], targets[row])
            except Exception as error:
                name_sample(error, self.dataset, index)
                if failed is None or not failed(row, error):
                    raise
                continue
            if not self._direct:
                images[row] = image

    @staticmethod
    def _finished(runner: Runner, image: Any, target: Any) -> tuple[Any, Any]:
        for transform in runner.rest:
            image = transform(image)
        if runner.dataset.target_transform is not None:
            target = runner.dataset.target_transform(target)
        return image, target
