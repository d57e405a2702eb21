"""What a release's wheels need is read from their libraries, and a wheel that is not as its name says is found."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import platform
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # from where the benchmarks can be imported

from benchmarks import release
from benchmarks.binaries import Library, read
from fastload import native

HERE, ARM, MAC = release.TARGETS
assert (HERE.processor, ARM.processor, MAC.processor) == ("x86_64", "aarch64", "arm64")


@pytest.mark.skipif(sys.platform != "linux", reason="the library here is not one of Linux")
def test_the_library_of_this_machine_says_what_it_needs() -> None:
    if not native.LIBRARY.exists():
        pytest.skip("the library was not built")
    found = read(native.LIBRARY.read_bytes())
    assert (found.system, found.processor) == ("linux", platform.machine())
    assert "libc.so.6" in found.needs
    assert (2, 2) <= found.least < (3, 0)
    assert f"GLIBC_{found.least[0]}.{found.least[1]}" in {".".join(one.split(".")[:2]) for one in found.versions}
    assert {"fastload_abi", "fastload_compiler"} <= found.exports
    assert not [name for name in found.exports if not name.startswith("fastload_")]


FINE = Library(
    system="linux",
    processor="aarch64",
    needs=frozenset({"libc.so.6"}),
    versions=frozenset({"GLIBC_2.17"}),
    least=(2, 17),
    exports=frozenset({"fastload_abi"}),
    name="",
    is_signed=False,
)
NAME = "torch_fastload-0.1.0-py3-none-manylinux_2_17_aarch64.whl"


def made_wheel(folder: Path, files: dict[str, str], name: str = NAME, **listed: str) -> Path:
    """Make a wheel; ``listed``: other contents, by a file's stem, of which RECORD has the hashes."""
    lines = ["torch_fastload-0.1.0.dist-info/RECORD,,"]
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
            digest = hashlib.sha256(listed.get(Path(path).stem, text).encode()).digest()
            lines.append(f"{path},sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')},{len(text)}")
        archive.writestr("torch_fastload-0.1.0.dist-info/RECORD", "\n".join(lines) + "\n")
    return folder / name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"processor": "x86_64"}, "x86_64"),
        ({"least": (2, 28), "versions": frozenset({"GLIBC_2.28"})}, r"needs \(2, 28\): \['GLIBC_2.28'\]"),
        ({"needs": frozenset({"libc.so.6", "libjpeg.so.62"})}, "libjpeg"),
        ({"versions": frozenset({"GLIBC_2.17", "GLIBC_PRIVATE"})}, "GLIBC_PRIVATE"),
        ({"name": "/tmp/build/_fastload.so"}, "a path of this machine: /tmp/build"),
        ({"is_signed": True}, "signed"),
    ],
)
def test_a_library_that_needs_more_than_the_wheels_name_says_is_found(change, words, tmp_path, monkeypatch) -> None:
    wheel = made_wheel(tmp_path, {release.LIBRARY: "library"})
    monkeypatch.setattr(release, "read", lambda _: FINE)
    assert release.check_library(wheel, ARM) == FINE
    with pytest.raises(AssertionError, match="2_17_aarch64"):
        release.check_library(wheel, MAC)
    monkeypatch.setattr(release, "read", lambda _: dataclasses.replace(FINE, **change))
    with pytest.raises(AssertionError, match=words):
        release.check_library(wheel, ARM)


def test_a_file_that_the_sdist_lacks_or_that_differs_is_found(tmp_path: Path) -> None:
    files = {"fastload/a.py": "a", "fastload/py.typed": "", "_torch_fastload.py": "command"}
    for folder in ("clone", "source"):
        for name, text in {**files, "fastload/native/src/a.c": "C"}.items():
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text(text)
    clone, source = tmp_path / "clone", tmp_path / "source"
    library = {release.LIBRARY: "library"}
    release.check_contents(made_wheel(tmp_path, files | library), clone, source)
    with pytest.raises(AssertionError, match=r"differ|not as in .*fastload/a\.py"):
        release.check_contents(made_wheel(tmp_path, files | library | {"fastload/a.py": "b"}), clone, source)
    with pytest.raises(AssertionError, match=r"fastload/more\.py"):
        release.check_contents(made_wheel(tmp_path, files | library | {"fastload/more.py": "b"}), clone, source)
    with pytest.raises(AssertionError, match=r"py\.typed"):
        release.check_contents(made_wheel(tmp_path, {"fastload/a.py": "a"} | library), clone, source)
    (clone / "fastload/native/src/new.h").touch()
    with pytest.raises(AssertionError, match="sources of C are missing"):
        release.check_contents(made_wheel(tmp_path, files | library), clone, source)


def test_a_list_of_files_that_is_not_true_is_found(tmp_path: Path) -> None:
    release.check_record(made_wheel(tmp_path, {"fastload/a.py": "a"}))
    with pytest.raises(AssertionError, match=r"fastload/a.py has another hash"):
        release.check_record(made_wheel(tmp_path, {"fastload/a.py": "a"}, a="b"))
