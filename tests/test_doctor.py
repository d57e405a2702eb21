"""``fastload doctor``: each probe on this machine, what is told of what is missing, and packages that crash or hang."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import PIL.Image
import pytest

from fastload import native
from fastload.base import overrides
from fastload.base.cgroups import processor_quota
from fastload.base.overrides import Override
from fastload.base.version import __version__
from fastload.cli import main
from fastload.doctor import command, packages, probes
from fastload.doctor.command import page, summary, to_json
from fastload.doctor.finding import Finding, pip
from fastload.late import opener
from fastload.native import jpeg, rows

ROOT = Path(__file__).parents[1]


def doctor(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastload.cli", "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def one(found) -> Finding:
    """Return the only finding of a probe."""
    (only,) = found
    return only


@pytest.mark.slow
def test_the_page_of_this_machine_begins_with_its_verdict():
    done = doctor("-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"fastload \S+: everything that fastload needs works\.", done.stdout)
    assert "\033" not in done.stdout
    assert done.stderr == ""
    names = [line.split()[1] for line in done.stdout.splitlines()[1:] if line.startswith("  ok ")]
    assert {"numpy", "torch", "torchvision", "rich", "Pillow"} <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise OSError('libcudart.so.99: cannot open')", "OSError: libcudart.so.99"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "cannot be imported (status -11)"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_a_line_and_not_a_traceback(tmp_path: Path, code, words):
    (tmp_path / "torch.py").write_text(code)
    done = doctor("--json", PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert done.returncode == 1
    assert done.stderr == ""
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["torch"]["state"] == "broken"
    assert words in found["torch"]["words"]
    assert "install" in found["torch"]["remedy"]
    assert found["numpy"]["state"] == "ok"


def test_a_probe_that_fails_is_a_line_and_the_others_run(monkeypatch):
    def looks_at_what_is_not_there():
        import not_there

        yield not_there

    monkeypatch.setattr(probes, "PROBES", (looks_at_what_is_not_there, probes.cores))
    monkeypatch.setattr(packages, "required", list)
    *_, failed, last = command.examine()
    assert (failed.name, failed.state) == ("looks at what is not there", "costs")
    assert "No module named 'not_there'" in failed.words
    assert last.name == "cores"


def test_versions_are_those_that_pyproject_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dict(one.split(">=") for one in project["dependencies"] if ";" not in one) == packages.REQUIRED


@pytest.mark.parametrize(
    ("there", "state"), [("2.6.0", "ok"), ("2.7.0a0+git1", "ok"), ("2.5.1+cpu", "broken"), ("3.0", "ok")]
)
def test_a_version_that_is_too_old_is_broken(monkeypatch, there, state):
    monkeypatch.setattr(packages, "_error_of", lambda code: None)
    monkeypatch.setattr(packages, "version", {**packages.REQUIRED, "torch": there}.__getitem__)
    (found,) = (finding for finding in packages.required() if finding.name == "torch")
    assert found.state == state
    assert there in found.words
    assert ("torchvision" in found.remedy) == (state == "broken")


def test_a_package_that_is_not_there_is_told_with_the_command(monkeypatch):
    monkeypatch.setattr(packages, "REQUIRED", {"no_such_package": "1.0"})
    monkeypatch.setattr(packages, "_error_of", lambda code: "cannot be imported")
    found = one(packages.required())
    assert (found.state, found.words) == ("broken", "is not installed")
    assert found.remedy.endswith("'no_such_package>=1.0'")


@pytest.mark.slow
def test_an_import_that_hangs_is_ended(monkeypatch):
    assert packages._error_of("") is None
    monkeypatch.setattr(packages, "_SECONDS", 1.0)
    assert packages._error_of("import threading; threading.Event().wait()") == "is not imported within 1 seconds"


class _OldImage:
    """An image of Pillow before 10.1."""


@pytest.mark.parametrize(
    ("owner", "name", "value", "reason", "remedy"),
    [
        (opener.Image, "Image", _OldImage, opener.TOO_OLD, pip("--upgrade 'pillow>=10.1'")),
        (PIL.Image.Image, "resize", lambda *_: None, "methods of Pillow's images were replaced", ""),
        (jpeg, "why_not_as_pillow", lambda: "its values differ", "its values differ", ""),
    ],
)
def test_images_that_are_not_decoded_late_are_told_with_the_reason_that_a_loader_gives(
    monkeypatch, owner, name, value, reason, remedy
):
    jpeg.why_not_as_pillow()  # compares with Pillow, once
    monkeypatch.setattr(owner, name, value)
    found = list(probes.native_library())[1]
    assert (found.name, found.state, found.words, found.remedy) == ("late decoding", "costs", reason, remedy)


def put(folder: Path, name: str, number: str, **files: str) -> None:
    """Install a distribution as an installer does: a file of this name and content overwrites another one's."""
    place = folder / f"{name.replace('-', '_')}-{number}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    (place / "RECORD").write_text(f"{place.name}/METADATA,,\n")
    for stem, text in files.items():
        path = folder / "fastload" / f"{stem}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that packages are looked for in."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_another_package_called_fastload_is_broken_and_both_go(folder):
    put(folder, "torch-fastload", "0.1.0")
    (folder / "fastload.egg-info").mkdir()  # what setuptools leaves in a checkout is no installation
    (folder / "fastload.egg-info/PKG-INFO").write_text("Metadata-Version: 2.1\nName: fastload\nVersion: 0.0.9\n")
    assert one(packages.own()).state == "ok"
    put(folder, "fastload", "0.0.3")
    found = one(packages.own())
    assert found.state == "broken"
    assert "fastload 0.0.3, another package that has the same folder, is installed too" in found.words
    assert re.search(r"uninstall .*\bfastload torch-fastload; .*install ", found.remedy)


STRANGERS_DOOR = {"__init__": "from .fastload import FastLoad\n", "fastload": "import no_such_requests\n"}


@pytest.mark.slow
@pytest.mark.parametrize("stranger", [STRANGERS_DOOR, {"__init__": ""}])
def test_where_a_stranger_is_imported_the_command_says_so_and_what_to_do(tmp_path, stranger):
    put(tmp_path, "fastload", "0.0.3", **stranger)
    (tmp_path / "try.py").write_text("import _torch_fastload, sys; sys.exit(_torch_fastload.main())")
    shutil.copy(ROOT / "_torch_fastload.py", tmp_path)
    # -S: an editable installation of ours would still be found.
    done = subprocess.run([sys.executable, "-S", tmp_path / "try.py", "doctor"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("fastload: No module named '")
    assert "the package fastload 0.0.3 is installed too, and its files are imported in place of torch-fastload's" in (
        done.stderr
    )
    assert "pip uninstall fastload torch-fastload" in done.stderr


@pytest.mark.slow
def test_what_the_command_misses_is_raised_where_no_stranger_is_to_blame(tmp_path):
    (tmp_path / "fastload").mkdir()
    (tmp_path / "try.py").write_text("import _torch_fastload; _torch_fastload.main()")
    (tmp_path / "fastload/__init__.py").write_text("import no_such_module\n")
    shutil.copy(ROOT / "_torch_fastload.py", tmp_path)
    done = subprocess.run([sys.executable, "-S", tmp_path / "try.py"], capture_output=True, text=True)
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'no_such_module'\n")


@pytest.mark.parametrize(
    ("there", "state", "words"),
    [
        ({"pillow": "13.0.0"}, "ok", "pillow 13.0.0"),
        ({"Pillow-SIMD": "12.1.1.post0"}, "ok", "pillow-simd 12.1.1.post0"),
        (
            {"pillow": "13.0.0", "pillow_simd": "12.1.1.post0"},
            "costs",
            "pillow 13.0.0 and pillow_simd 12.1.1.post0: both are in one folder, and have overwritten",
        ),
    ],
)
def test_pillow_and_pillow_simd_are_told_apart_by_what_is_installed(folder, there, state, words):
    for distribution, number in {**there, "numpy": "2.0"}.items():
        put(folder, distribution, number)
    found = one(probes.pillow())
    assert found.state == state
    assert found.words.startswith(words)
    assert ("uninstall" in found.remedy) == (state == "costs")


@pytest.mark.slow
def test_the_parts_of_fastload_are_well_here():
    if rows.pillow_order() is None:
        pytest.skip("the active Pillow has values of its own")
    found = {finding.name: finding.state for finding in probes.native_library()}
    assert [found[name] for name in ("C library", "late decoding", "seeding")] == ["ok"] * 3


@pytest.mark.interpreter
def test_overrides_are_listed_with_what_was_found_and_with_what_threads_and_run_replace(monkeypatch, tmp_path, capsys):
    """One makes the same, one does not, and others' libraries are not well."""
    (tmp_path / "codec_without_ffmpeg.py").write_text("raise RuntimeError('libavutil.so is missing')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(overrides, "results", {})
    entries = [
        Override("json", "json", "loads", "texts are parsed", print, lambda one: True),
        Override("json", "json", "dumps", "texts are written", print, lambda one: False),
        Override("codec_without_ffmpeg", "codec_without_ffmpeg", "decode", "images are decoded"),
        Override("no_such_codec", "no_such_codec", "decode", "images are decoded"),
        Override("json", "json", "no_such_name", "texts are read"),
    ]
    others = [entry for entry in overrides.table() if entry[0].rpartition(".")[2] in ("routing", "installation")]
    monkeypatch.setattr(overrides, "table", lambda: iter([*(("fastload.made", one) for one in entries), *others]))
    assert main(["doctor", "--overrides"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    for name in ("json.loads", "random.randint", "numpy.random.shuffle", "manual_seed", "DataLoader.__init__"):
        assert name in page
    assert main(["doctor", "--overrides", "--json"]) == 0
    mine = {one.package for one in entries}
    found = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["name"] in mine]
    words = [one["words"].partition(" (in worker processes): ")[2] for one in found]
    assert [one["state"] for one in found] == ["ok", "costs", "costs", "absent", "costs"]
    assert words == [
        "json.loads: the results are the same",
        "json.dumps: it makes something else, so it is called",
        "codec_without_ffmpeg.decode: codec_without_ffmpeg cannot be imported: RuntimeError: libavutil.so is missing",
        "no_such_codec.decode: no_such_codec is not installed",
        "json.no_such_name: this version of json has no json.no_such_name",
    ]


def test_a_wrong_name_of_an_instruction_set_is_broken(monkeypatch):
    monkeypatch.setenv("FASTLOAD_NATIVE", "sse2")
    monkeypatch.setattr(native, "unavailable_reason", lambda: native._load.__wrapped__()[1])
    found = one(probes.native_library())
    assert (found.state, found.remedy) == ("broken", "unset FASTLOAD_NATIVE")
    assert "one of plain, avx2, avx512" in found.words


@pytest.mark.parametrize("in_clone", [True, False])
def test_a_missing_library_names_what_building_it_wants(monkeypatch, tmp_path, in_clone):
    monkeypatch.delenv("FASTLOAD_NATIVE", raising=False)
    monkeypatch.setattr(native, "unavailable_reason", lambda: "it was not built")
    monkeypatch.setattr(packages, "__file__", str(tmp_path / "fastload/doctor/packages.py"))
    if in_clone:
        (tmp_path / "setup.py").touch()
    found = one(probes.native_library())
    assert (found.state, found.words) == ("costs", "it was not built")
    place = f"-e {shlex.quote(str(tmp_path))}" if in_clone else "PATH_OF_THE_CLONE"
    assert found.remedy.endswith(f"--force-reinstall --no-deps --no-cache-dir {place}")


@pytest.mark.parametrize(("quota", "state", "remedy"), [(2.5, "costs", "num_workers=2"), (8.0, "ok", "")])
def test_a_quota_of_the_control_group_costs_and_is_told(monkeypatch, quota, state, remedy):
    monkeypatch.setattr(probes, "processors", lambda: 8)
    monkeypatch.setattr(probes, "processor_quota", lambda: quota)
    found = one(probes.cores())
    assert (found.state, found.remedy) == (state, remedy)


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/jobs/mine", {"jobs/mine/cpu.max": "max 100000", "jobs/cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("3:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"}, 0.5),
        ("3:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        ("4:memory:/a", {}, None),
    ],
)
def test_the_quota_is_the_least_of_the_groups(tmp_path, membership, files, quota):
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(membership + "\n")
    for name, content in files.items():
        place = tmp_path / "groups" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content + "\n")
    assert processor_quota(tmp_path / "proc", tmp_path / "groups") == quota


def test_pipes_cost_and_memory_files_that_cannot_be_made_are_broken(monkeypatch):
    def refuse(*_):
        raise PermissionError("not here")

    monkeypatch.setenv("FASTLOAD_TRANSPORT", "pipes")
    told = [one(probes.memory_files())]
    monkeypatch.delenv("FASTLOAD_TRANSPORT")
    told.append(one(probes.memory_files()))
    monkeypatch.setattr(os, "memfd_create", refuse)
    told.append(one(probes.memory_files()))
    assert [found.state for found in told] == ["costs", "ok", "broken"]
    assert [found.remedy for found in told] == ["unset FASTLOAD_TRANSPORT", "", "export FASTLOAD_TRANSPORT=pipes"]


FOUND = [
    Finding("first", "ok", "works " * 30),
    Finding("second", "costs", "slow", "a lot " * 30, "a command " * 30),
    Finding("third", "absent", "not there"),
    Finding("fourth", "broken", "does not work"),
]


@pytest.mark.parametrize("with_ok", [False, True])
def test_a_page_begins_with_its_verdict_and_is_wrapped_but_for_commands(with_ok):
    lines = list(page(FOUND, 60, with_ok=with_ok))
    assert all(len(line) <= 60 for line in lines if "a command" not in line)
    (said,) = [line for line in lines if "a command" in line]
    assert said.strip() == "do:   " + ("a command " * 30).strip()
    assert " ".join(lines).partition("   ")[0].endswith(": broken: fourth. Slower or limited: second.")
    words = " ".join(lines)
    assert ("works works" in words, "not there" in words, "2 more are well" in words) == (with_ok, with_ok, not with_ok)


def test_what_is_broken_decides_what_the_json_says():
    said = json.loads(to_json(FOUND))
    assert (said["ok"], said["fastload"], len(said["findings"])) == (False, __version__, 4)
    assert json.loads(to_json(FOUND[:3]))["ok"] is True
    assert summary(FOUND[:1]) == "everything that fastload needs works."
