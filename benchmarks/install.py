"""Tries a wheel, and the clone, where there is nothing but Python.

    uv run -m benchmarks.release --out dist          # makes the wheel
    uv run -m benchmarks.install --wheel dist/NAME.whl --folder ROOTS --trial sid:python3.14:2.13.0 --trial ...

A trial needs root and debootstrap: it makes a root file system with Python and nothing else, without a compiler and
headers. There it installs the wheel with one version of torch, checks the installation (``installed.py``), and does the
same with the clone, which has to be compiled there.

A trial is SUITE:PYTHON:TORCH. SUITE is Debian's; PYTHON one of its packages, which gets installed, or the path of a
Python of this machine, which must have been built on the same or an older system; TORCH a version. Packages are linked
from uv's cache, which is kept in the folder; a TORCH that ends with ``+pip`` is downloaded and copied by pip, as a user
has it. The root file systems stay in the folder, and are used again.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.progress import progress
from benchmarks.release import UV, clone_to, output_of

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True, help="the wheel for this machine")
    parser.add_argument("--folder", type=Path, required=True, help="where root file systems and packages are kept")
    parser.add_argument("--trial", action="append", required=True, metavar="SUITE:PYTHON:TORCH")
    options = parser.parse_args()
    wheel = options.wheel.resolve()
    failed = []
    with progress(len(options.trial)) as advance:
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
        f"{pip} uninstall -y torch-fastload",
        "before=$(./venv/bin/python -m pip list --format freeze)",
        f"{pip} install --no-cache-dir ./clone",
        'test "$before" = "$(./venv/bin/python -m pip list --format freeze | grep -v ^torch.fastload)"',
        f"echo clone: && {pip} check && ./venv/bin/python installed.py ziglang",
    ]


if __name__ == "__main__":
    sys.exit(main())
