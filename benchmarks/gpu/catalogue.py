"""All cases, in the order in which they run, and their goals. Plain values: nothing here imports torch."""

from benchmarks.spec import Case, Comparison, Metric, Side


def _side(name: str, package: str = "fastload", **options: object) -> Side:
    return Side(name=name, package=package, options=options)


_RATE = Metric(name="GB/s", more_is_better=True)
_IMAGES = Metric(name="images/s", more_is_better=True)
_STEP_TIME = Metric(name="ms/step")

_HOST_TO_DEVICE = Case(
    name="host-to-device",
    measure="benchmarks.gpu.host_to_device:copies",
    sides=(
        _side("plain copy", "none"),
        _side("prefetch"),
        _side("processes"),
        _side("threads", worker_method="thread"),
    ),
    metrics=(_RATE,),
    compared=(
        Comparison(ours="prefetch", theirs="plain copy", metric=_RATE, least_ratio=0.9),
        # These copy on the host first, into page-locked memory.
        Comparison(ours="processes", theirs="plain copy", metric=_RATE),
        Comparison(ours="threads", theirs="plain copy", metric=_RATE),
    ),
    arguments={"num_batches": 1000, "shape": [256, 3, 224, 224], "num_workers": 8},
    quick={"num_batches": 8, "shape": [2, 3, 32, 32], "num_workers": 2},
)


def _transforms(
    recipe: str, size: int, crop: int, *, num: int = 256, goal: float | None = None, num_calls: int = 32
) -> Case:
    """Return the case of a pipeline: images of ``size`` pixels, results of ``crop``; so many calls in a measurement."""
    return Case(
        name=f"transforms-{recipe}-{crop}",
        measure="benchmarks.gpu.transforms:calls",
        sides=(
            _side("copy", "none"),
            _side("kernels"),
            _side("fastload"),
        ),
        metrics=(_RATE, _IMAGES),
        compared=(
            Comparison(ours="kernels", theirs="copy", metric=_RATE, least_ratio=goal),
            Comparison(ours="fastload", theirs="copy", metric=_RATE),
        ),
        # The inputs of a round are some 400 MB: several times the cache of any GPU.
        arguments={
            "recipe": recipe,
            "num": num,
            "size": size,
            "crop": crop,
            "num_inputs": max(2, round(4e8 / (num * 3 * size**2))),
            "num_calls": num_calls,
        },
        quick={"num": 4, "size": 2 * size // 7, "crop": 2 * crop // 7, "num_inputs": 2, "num_calls": 1},
    )


_CROPS = (
    _transforms("crop", 256, 224, goal=0.8),
    _transforms("pad-crop", 32, 32, num=4096, goal=0.8, num_calls=256),
)
_RESIZED_CROP = _transforms("resized-crop", 256, 224)

_RESIDENT = Case(
    name="resident",
    measure="benchmarks.gpu.resident:epoch",
    sides=(_side("airbench", "none"), _side("fastload")),
    metrics=(_IMAGES, Metric(name="epoch ms")),
    compared=(Comparison(ours="fastload", theirs="airbench", metric=_IMAGES, least_ratio=1.0),),
    arguments={"num_images": 50_000, "batch_size": 1024},
    quick={"num_images": 256, "batch_size": 64},
)

_LOADERS = ("resident", "workers")
_STEP = {"model": "resnet18", "num_images": 50_000, "batch_size": 1024, "num_workers": 8}
_QUICK_STEP = {"model": "small", "num_images": 64, "batch_size": 16, "num_workers": 2}

_TRAINING = (
    Case(
        name="step",
        measure="benchmarks.gpu.step:steps",
        sides=(_side("one batch", "none"), *(_side(name) for name in _LOADERS)),
        metrics=(_STEP_TIME,),
        compared=tuple(
            Comparison(ours=name, theirs="one batch", metric=_STEP_TIME, least_ratio=round(1 / 1.01, 4))
            for name in _LOADERS
        ),
        # The warm-up steps are more than the batches that workers and device stage have ready: 8 * 2 and 3.
        arguments={**_STEP, "num_steps": 120, "num_warm_steps": 24},
        quick={**_QUICK_STEP, "num_steps": 6, "num_warm_steps": 2},
    ),
    Case(
        name="host-blocked",
        measure="benchmarks.gpu.host_blocked:loop",
        sides=(_side("one batch", "none"), *(_side(name) for name in _LOADERS)),
        metrics=(
            Metric(name="% blocked", most_value=1.0),
            Metric(name="% busy", more_is_better=True),
            Metric(name="loop ms"),
        ),
        repetitions=3,
        arguments={**_STEP, "num_steps": 30, "num_warm_steps": 24},
        quick={**_QUICK_STEP, "num_steps": 6, "num_warm_steps": 2},
    ),
)

# Those with a goal first, by weight: a run may end before the last.
ALL: tuple[Case, ...] = (_HOST_TO_DEVICE, *_CROPS, _RESIDENT, *_TRAINING, _RESIZED_CROP)
