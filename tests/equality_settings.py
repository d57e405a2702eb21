"""Runs the tests of equality to torch and torchvision as on other processors: ``python tests/equality_settings.py``.

MKL, torch's library for products of matrices, asks ``mkl_serv_intel_cpu_true()`` which way to compute, and rounds in
another way on Intel's processors than on others. A library of one line, loaded before all others, gives the other
answer. Three more settings: torch without AVX, one thread, the C library at its lowest level. Two run at a time. Where
one cannot be made, that is said, and the others run. Ends with 1 if a test failed or the other answer had no effect.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TESTS = Path("tests")
TRANSFORMS = [TESTS / "transforms" / f"test_{name}.py" for name in ("equality", "resize")]
FUSION = [TESTS / "fusion" / "test_fusion_equality.py"]
COLORS = [TESTS / "native" / "test_distort.py", TESTS / "late" / "test_late_tensor_colors.py"]
NATIVE = [TESTS / "native" / "test_native_rows.py", TESTS / "native" / "test_arrays.py", *COLORS]


class Setting(NamedTuple):
    """How tests are run as on another processor."""

    variables: dict[str, str]
    """Of the environment."""
    changes: str
    """What must differ then from the process as it is, if it can: a name of ``PROBE``."""
    files: list[Path]


# One line: what is in force. A product of matrices tells whether MKL uses FMA: rounded once or twice.
PROBE = """
import ctypes, hashlib, platform, torch
from fastload import native
intel = None
for path in (None, torch.__path__[0] + "/lib/libtorch_cpu.so"):
    try:
        intel = ctypes.CDLL(path).mkl_serv_intel_cpu_true()
        break
    except (AttributeError, OSError):
        pass
generator = torch.Generator().manual_seed(0)
left, right = (torch.randn(shape, generator=generator) for shape in ((1, 1024, 3), (1, 3, 2)))
bits = hashlib.sha256((left @ right).numpy().tobytes()).hexdigest()[:8]
print(f"mkl_serv_intel_cpu_true={intel} product={bits} torch={torch.backends.cpu.get_cpu_capability()} "
      f"threads={torch.get_num_threads()} native={native.processor_level() if native.available() else None}")
"""


def in_force(environment: dict[str, str]) -> dict[str, str]:
    """Return what a process with these variables computes with, by its names in ``PROBE``."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True
    )
    return dict(pair.split("=", 1) for pair in done.stdout.split())


def library(folder: Path, answer: int) -> Path | None:
    """Return a library that answers MKL's question, compiled in a folder; None without a compiler."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(command[0]) is None:
        return None
    source, built = folder / "answer.c", folder / "answer.so"
    source.write_text(f"int mkl_serv_intel_cpu_true(void) {{ return {answer}; }}\n")
    subprocess.run([*command, "-shared", "-fPIC", "-o", str(built), str(source)], check=True)
    return built


def run_under(name: str, setting: Setting, as_it_is: dict[str, str]) -> tuple[str, list[str]]:
    """Run the tests of a setting. Returns what they print, and what is wrong."""
    environment = {**os.environ, **setting.variables}
    found = in_force(environment)
    heading = f"\n{name}: {found}\n"
    if found[setting.changes] == as_it_is[setting.changes]:
        if setting.changes == "product":  # it could be made, so it has to show
            return heading, [f"{name}: products of matrices are as before, so it took no effect"]
        return f"{heading}left out: {setting.changes} is {found[setting.changes]} here anyway", []
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, setting.files)]
    done = subprocess.run(tests, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False)
    return heading + done.stdout, [f"{name}: tests failed"] if done.returncode else []


def main() -> int:
    """Run the tests under each setting. Returns the exit status."""
    as_it_is = in_force(dict(os.environ))
    print("as it is:", as_it_is, flush=True)
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        answer = as_it_is["mkl_serv_intel_cpu_true"]
        other = None if answer == "None" else library(Path(folder), 0 if int(answer) else 1)
        if other is None:
            why = "torch's BLAS does not ask for the maker" if answer == "None" else "there is no C compiler"
            print(f"MKL's other answer: left out, {why}")
        settings = {
            "the C library's plain level": Setting({"FASTLOAD_NATIVE": "plain"}, "native", [*FUSION, *NATIVE]),
            "torch without AVX": Setting({"ATEN_CPU_CAPABILITY": "default"}, "torch", [*TRANSFORMS, *COLORS]),
            "MKL's other answer": Setting({"LD_PRELOAD": str(other)}, "product", TRANSFORMS),
            "one thread": Setting({"OMP_NUM_THREADS": "1"}, "threads", TRANSFORMS),
        }
        if other is None:
            del settings["MKL's other answer"]
        with ThreadPoolExecutor(2) as threads:
            for text, wrong in threads.map(lambda one: run_under(*one, as_it_is), settings.items()):
                print(text, flush=True)
                failed += wrong
    print("", *failed, sep="\n", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
