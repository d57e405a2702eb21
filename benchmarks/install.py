"""Builds the wheel, and tries it and the clone where there is nothing but Python.

    uv run -m benchmarks.install --out dist          # the sdist and the wheel, and what they weigh
    uv run -m benchmarks.install --out dist --folder ROOTS --trial sid:python3.14:2.13.0 --trial ...

The wheel is built of the sdist by ziglang, for the oldest glibc. A trial needs root and debootstrap: it makes a root
file system with Python and nothing else, without a compiler and headers. There it installs the wheel with one version
of torch, checks the installation (``installed.py``), and does the same with the clone, which has to be compiled there.

A trial is SUITE:PYTHON:TORCH. SUITE is Debian's; PYTHON one of its packages, which gets installed, or the path of a
Python of this machine, which must have been built on the same or an older system; TORCH a version. Packages are linked
from uv's cache, which is kept in the folder; a TORCH that ends with ``+pip`` is downloaded and copied by pip, as a user
has it. The root file systems stay in the folder, and are used again.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.progress import progress

ROOT = Path(__file__).parents[1]
UV = Path(os.environ.get("UV", "uv"))  # set by "uv run"
MOST_BYTES = 1_500_000
TRIES = Path(__file__).with_name("installed.py")
# In a mount namespace of its own, so that all of it is gone at the end. $1: the root file system, $2: what runs there;
# the others: folders that are the same inside.
ENTER = """
set -e
root=$1 command=$2; shift 2
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
for place; do mkdir -p "$root$place"; mount --bind "$place" "$root$place"; done
mkdir -p "$root/etc/ssl/certs"
certificates=/etc/ssl/certs/ca-certificates.crt
cp /etc/resolv.conf "$root/etc/" && cp $certificates "$root$certificates"
exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
    SSL_CERT_FILE=$certificates PIP_CERT=$certificates sh -ec "$command"
"""


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the sdist and the wheel")
    parser.add_argument("--folder", type=Path, help="where root file systems and packages are kept")
    parser.add_argument("--trial", action="append", default=[], metavar="SUITE:PYTHON:TORCH")
    options = parser.parse_args()
    if options.trial and options.folder is None:
        parser.error("--trial needs --folder")
    failed = []
    with progress(1 + len(options.trial)) as advance:
        advance("sdist and wheel")
        wheel = build(options.out)
        print("\n".join(parts(wheel)), flush=True)
        for trial in options.trial:
            advance(trial)
            suite, python, torch = trial.split(":")
            try:
                said = tried(wheel, options.folder.resolve(), suite, python, torch)
            except subprocess.CalledProcessError as error:
                said = f"FAILED\n{error.stdout}"
                failed.append(trial)
            print(f"\n== {trial}\n{said}", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else f"{len(options.trial)} trials, none failed")
    return int(bool(failed))


def output_of(*words: str | Path, **options: object) -> str:
    """Run a command; return what it printed."""
    done = subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    return str(done.stdout)


def clone_to(folder: Path) -> Path:
    """Copy what git would commit, without anything that was built."""
    names = output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def build(out: Path) -> Path:
    """Build the sdist, and the wheel of it; check that the clone gives the same one."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        clone = clone_to(Path(name, "clone"))
        for folder, kinds in (out, ()), (Path(name), ("--wheel",)):
            output_of(UV, "build", *kinds, "--out-dir", folder, clone, env={**os.environ, "CC": "ziglang"})
        (other,) = Path(name).glob("*.whl")
        wheel = out / other.name
        contents = [{one.filename: one.CRC for one in zipfile.ZipFile(path).infolist()} for path in (wheel, other)]
        differ = {name for name in contents[0] | contents[1] if contents[0].get(name) != contents[1].get(name)}
        assert not differ, f"the sdist is not complete: {differ}"
    shown = output_of(UV, "tool", "run", "auditwheel", "show", wheel)
    assert "manylinux_2_17_x86_64" in wheel.name, wheel.name
    assert '"manylinux_2_17_x86_64"' in shown.replace("\n", " "), shown
    return wheel


def parts(wheel: Path) -> list[str]:
    """Return what a wheel weighs, and how much of it the library and the modules are."""
    sizes = {"the library": [0, 0], "Python modules": [0, 0], "the profiler's page": [0, 0], "metadata": [0, 0]}
    for one in zipfile.ZipFile(wheel).infolist():
        kind = {".so": "the library", ".py": "Python modules"}.get(Path(one.filename).suffix)
        kind = kind or ("metadata" if ".dist-info/" in one.filename else "the profiler's page")
        sizes[kind][0] += one.compress_size
        sizes[kind][1] += one.file_size
    size = wheel.stat().st_size
    assert size < MOST_BYTES, f"{wheel} has {size} bytes, {MOST_BYTES} are allowed"
    lines = [f"{wheel.name}: {size / 1e3:.0f} kB"]
    return lines + [f"  {name}: {packed / 1e3:.0f} kB of {whole / 1e3:.0f}" for name, (packed, whole) in sizes.items()]


def tried(wheel: Path, folder: Path, suite: str, python: str, torch: str) -> str:
    """Install the wheel, and then the clone, beside a version of torch; return what the checks said."""
    torch, by_pip = torch.removesuffix("+pip"), torch.endswith("+pip")
    base = folder / suite
    shared = [folder / "cache"]
    packages = ["python3", "python3-venv"]
    if python.startswith("/"):
        shared.append(Path(python).parents[1])
    else:
        packages += [f"{python}-venv"]
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    if not base.exists():
        output_of("debootstrap", "--variant=minbase", suite, f"{base}.new")
        Path(f"{base}.new").rename(base)
    install = f"apt-get install -y -qq --no-install-recommends {' '.join(packages)}"
    output_of("unshare", "--mount", "sh", "-c", ENTER, "-", base, f"{install} || (apt-get update -qq && {install})")
    trial = base / "trial"
    shutil.rmtree(trial, ignore_errors=True)
    clone_to(trial / "clone")
    for path in (wheel, TRIES, UV):
        shutil.copy(path, trial)
    lines = commands(python, wheel.name, torch, folder / "cache", by_pip=by_pip)
    try:
        return output_of("unshare", "--mount", "sh", "-c", ENTER, "-", base, "\n".join(lines), *shared)
    finally:
        shutil.rmtree(trial)


def commands(python: str, wheel: str, torch: str, cache: Path, *, by_pip: bool) -> Sequence[str]:
    """Return what runs in the root file system."""
    pip = "./venv/bin/python -m pip --disable-pip-version-check -q"
    linked = f"./uv pip install -q --python venv/bin/python --cache-dir {cache} --link-mode symlink"
    quick = [f"{linked} torch=={torch} torchvision"]
    return [
        "cd /trial",
        "! command -v cc gcc clang tcc ld",
        "test -z \"$(find /usr/include -name 'jpeglib.h' -o -name 'stdio.h')\"",
        f"{python} -m venv venv",
        f"printf '%s\\n' torch=={torch} torchvision './{wheel}' > names.txt",
        *([] if by_pip else quick),
        f"{pip} install --no-cache-dir -r names.txt",
        f"echo wheel: && {pip} check && ./venv/bin/python installed.py ziglang",
        f"{pip} uninstall -y fastload",
        "before=$(./venv/bin/python -m pip list --format freeze)",
        f"{pip} install --no-cache-dir ./clone",
        'test "$before" = "$(./venv/bin/python -m pip list --format freeze | grep -v ^fastload)"',
        f"echo clone: && {pip} check && ./venv/bin/python installed.py ziglang",
    ]


if __name__ == "__main__":
    sys.exit(main())
