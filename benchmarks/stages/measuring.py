"""What runs in a child process. imread_benchmark's functions are called in it; albumentations' program is a process."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from PIL import Image

import fastload
from benchmarks.spec import Measurement, Side


def make_package(data: Path, made: Path, num_images: int) -> str:
    """Let imread_benchmark make its JPEG workloads of the largest images; return its package."""
    from imread_benchmark.datasets.controlled import prepare_controlled_ablation

    (sources := made / "png").mkdir()
    opened = [Image.open(file) for file in sorted(data.glob("*/*.[jJ]*"))]
    opened.sort(key=lambda image: max(image.size), reverse=True)
    for number, image in enumerate(opened[:num_images]):
        image.convert("RGB").save(sources / f"{number:03}.png", compress_level=1)
    named = {"source_name": data.name, "source_release": "none", "source_license": "none"}
    return str(prepare_controlled_ablation(sources, made / "packages", **named, long_edges=[512], qualities=[75, 95]))


def imread(side: Side, *, workload: str, decoder: str, package: str, repeats: int, workers: int) -> Measurement:
    """Run imread_benchmark's decode-memory, or with workers its loader-supply; it asks for a fresh process."""
    from imread_benchmark.datasets.package import open_dataset_package
    from imread_benchmark.decoders import REGISTRY
    from imread_benchmark.execution import loader_measurement, measurement
    from imread_benchmark.plans import RunConfiguration

    if side.package == "fastload":
        fastload.install()
    reader = open_dataset_package(package)
    items, made = reader.read_workload_items(workload), REGISTRY[decoder]()
    ids = reader.descriptor["package_id"], reader.descriptor["workloads"][workload]["manifest_id"], "0" * 64
    # As in its plans: workers, batch size, prefetch factor, persistent workers, start method.
    protocol = "loader-supply" if workers else "decode-memory"
    loader = (workers, 1, 1, True, "spawn") if workers else (None, None, None, False, None)
    passes = repeats, 1, 1, 1e-6  # one to warm up, one that is timed, and how long that lasts at least
    configuration = RunConfiguration(protocol, decoder, *ids, None, *loader, *passes, "normalized-rgb", "common")
    if workers:
        found = loader_measurement.run_loader_supply_measurement(items, configuration)
    else:
        found = measurement.run_decode_memory_measurement(made, items, configuration, effective_threads=1)
    [sample] = found.samples
    versions = {name: version(name) for name in ("torch", "imread-benchmark", made.package_name)}
    versions["python"] = platform.python_version()
    return {"images/s": sample.items_processed / sample.elapsed_seconds, "versions": versions}


def albumentations(
    side: Side, *, sources: str, data: str, scope: str, num_images: int, recipes: list[str]
) -> Measurement:
    """Run the program of albumentations' benchmark with torchvision's specification, two workers."""
    names = {recipe: f"{recipe}+Normalize+ToTensor" for recipe in recipes}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "found.json")
        given = {"specs-file": "benchmark/transforms/torchvision_pipeline_impl.py", "data-dir": data, "output": output}
        given |= {"scenario": "image-rgb", "pipeline-scope": scope, "workers": 2, "batch-size": 64, "num-runs": 1}
        words = [f"--{name}={value}" for name, value in {**given, "num-items": num_images}.items()]
        command = [sys.executable, *(["-m", "fastload", "run"] if side.package == "fastload" else [])]
        command += ["-m", "benchmark.pipeline_runner", *words, "--disable-slow-skip"]
        told = {"BENCHMARK_TRANSFORMS_FILTER": ",".join(names.values()), "PYTHONPATH": os.getcwd()}
        done = subprocess.run(command, cwd=sources, env={**os.environ, **told}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the program ended with status {done.returncode}:\n{done.stderr[-4000:]}")
        found = json.loads(output.read_text())["results"]
    # Of a recipe that failed there is no rate, which raises IndexError.
    return {f"{recipe}, images/s": found[name]["throughputs"][0] for recipe, name in names.items()}
