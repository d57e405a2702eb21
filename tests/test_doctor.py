"""``fastload doctor``: each probe on this machine, what is told of what is missing, and probes that crash or hang."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import types
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import PIL
import pytest

from fastload import native
from fastload.base.cgroups import processor_quota
from fastload.cache import shared
from fastload.doctor import command, images, installation, probes
from fastload.doctor.command import page, summary, to_json
from fastload.doctor.finding import Finding, pip
from fastload.doctor.probes import PROBES, Probe
from fastload.late import arrays, opener, tensor_colors, undecoded
from fastload.native import jpeg, rows
from fastload.native.rows import TENSOR_FILTERS

ROOT = Path(__file__).parents[1]


def doctor(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastload.cli", "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def one(found) -> Finding:
    """Return the only finding of a probe."""
    (only,) = found
    return only


def run_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, codes: list[str], seconds: float) -> list[Finding]:
    """Run probes of this code in child processes."""
    body = "\n".join(f"def look_{number}():\n    {code}\n" for number, code in enumerate(codes))
    lines = [f"    Probe('Made up', 'probe {number}', look_{number}, True),\n" for number in range(len(codes))]
    (tmp_path / "made_up_probes.py").write_text(
        "from fastload.doctor.finding import Finding\nfrom fastload.doctor.probes import Probe\n\n"
        f"{body}\nPROBES = (\n{''.join(lines)})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    table = importlib.import_module("made_up_probes").PROBES
    monkeypatch.delitem(sys.modules, "made_up_probes")
    found = list(command.examine(table, "made_up_probes", seconds))
    assert [probe for probe, _ in found] == list(table)
    return [finding for _, some in found for finding in some]


@pytest.mark.interpreter
def test_the_page_of_this_machine_says_that_all_that_is_needed_works():
    done = doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fastload ")
    verdict = lines[1 : lines.index("")]
    assert [line for line in lines if line and line[0] != " " and line not in verdict][1:] == list(
        dict.fromkeys(probe.section for probe in PROBES)
    )
    assert lines[1].startswith("Everything that fastload needs works.")
    assert "\033" not in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_the_json_says_what_is_switched_off_and_what_to_do():
    done = doctor("--json", FASTLOAD_NATIVE="0")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["version"], said["ok"]) == (1, True)
    (found,) = [finding for finding in said["findings"] if finding["name"] == "native library"]
    assert found["section"] == "Images"
    assert found["state"] == "costs"
    assert found["words"] == "FASTLOAD_NATIVE=0 switches it off"
    assert found["remedy"] == "unset FASTLOAD_NATIVE"
    assert "a third of Pillow's time" in found["cost"]
    (times,) = [finding for finding in said["findings"] if finding["name"] == "measured here"]
    assert "native" not in times["words"]


@pytest.mark.slow
def test_a_torch_that_cannot_be_imported_is_a_line_and_not_a_traceback(tmp_path: Path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.99: cannot open shared object file')\n")
    done = doctor("--json", PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert done.returncode == 1
    assert done.stderr == ""
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["torch"]["state"] == "broken"
    assert "OSError: libcudart.so.99" in found["torch"]["words"]
    assert "install" in found["torch"]["remedy"]
    assert found["cores"]["state"] in ("ok", "costs")
    assert found["Pillow"]["state"] in ("ok", "costs")


@pytest.mark.slow
def test_a_probe_that_raises_crashes_or_hangs_costs_its_own_line_only(monkeypatch, tmp_path):
    codes = [
        "return [Finding('first', 'ok', 'works')]",
        "raise ValueError('what a mess')",
        "import os, signal; print('noise', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
        "import sys; sys.stderr.write('the reason\\n'); sys.stderr.flush(); import os; os._exit(3)",
        "return [Finding('between', 'ok', 'works')]",
        "import threading; threading.Event().wait()",
        "return [Finding('last', 'ok', 'works')]",
    ]
    found = run_alone(monkeypatch, tmp_path, codes, seconds=5)
    assert [finding.name for finding in found] == [
        "first",
        "probe 1",
        "probe 2",
        "probe 3",
        "between",
        "probe 5",
        "last",
    ]
    assert [finding.state for finding in found] == ["ok", "broken", "broken", "broken", "ok", "broken", "ok"]
    assert found[1].words == "could not be checked: ValueError: what a mess"
    assert found[2].words == "its process was ended by signal 9: noise"
    assert found[3].words == "its process ended with status 3: the reason"
    assert found[5].words.startswith("gave no answer within 5 seconds")


def test_a_probe_that_cannot_import_what_it_checks_is_a_line():
    def look():
        import not_there

        yield not_there

    broken, optional = (Probe("Made up", "it", look, needed=needed).findings() for needed in (True, False))
    assert one(broken).state == "broken"
    assert one(optional).state == "costs"
    assert "No module named 'not_there'" in one(broken).words


@pytest.mark.parametrize(
    ("is_on", "asked", "state", "words", "remedy"),
    [
        (False, None, "ok", "off: threads run at the same time", ""),
        (False, 0, "ok", "off, as PYTHON_GIL=0 asks: threads run at the same time", ""),
        (True, 1, "costs", "on: PYTHON_GIL=1 asks for it", "unset PYTHON_GIL"),
        (True, None, "costs", "on: a.module turns it on, since it does not say that it can do without", "PYTHON_GIL=0"),
    ],
)
def test_a_python_that_can_do_without_the_gil_says_whether_it_does_and_what_turns_it_on(
    monkeypatch, is_on, asked, state, words, remedy
):
    said = "RuntimeWarning: The global interpreter lock (GIL) has been enabled to load module 'a.module', which has"
    monkeypatch.setattr(probes.gil, "IS_FREE_THREADED", True)
    monkeypatch.setattr(probes.gil, "is_on", lambda: is_on)
    monkeypatch.setattr(
        probes, "sys", types.SimpleNamespace(flags=types.SimpleNamespace(gil=asked), executable="python")
    )
    monkeypatch.setattr(probes.subprocess, "run", lambda *_, **__: types.SimpleNamespace(stderr=said))
    (finding,) = probes.without_gil()
    assert (finding.state, finding.words) == (state, words)
    assert remedy in finding.remedy


def test_a_usual_python_has_no_word_on_the_gil(monkeypatch):
    monkeypatch.setattr(probes.gil, "IS_FREE_THREADED", False)
    assert list(probes.without_gil()) == []


def test_the_names_of_probes_differ():
    assert len({probe.name for probe in PROBES}) == len(PROBES)


def test_versions_are_those_that_pyproject_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dict(one.split(">=") for one in project["dependencies"]) == probes.REQUIRED


@pytest.mark.parametrize(
    ("version_", "expected"),
    [("2.13.0+cu130", (2, 13, 0)), ("2.7.0a0+git1", (2, 7, 0)), ("12.1.1.post0", (12, 1, 1)), ("unknown", ())],
)
def test_numbers_of_a_version_are_read_up_to_the_first_that_is_none(version_, expected):
    assert probes.numbers(version_) == expected


@pytest.mark.parametrize(("there", "state"), [("2.6.0", "ok"), ("2.5.1+cpu", "broken"), ("3.0", "ok")])
def test_a_version_that_is_too_old_is_broken(monkeypatch, there, state):
    torch = importlib.import_module("torch")
    monkeypatch.setattr(torch, "__version__", there)
    found = one(probes.required("torch"))
    assert found.state == state
    assert there in found.words
    assert ("torchvision" in found.remedy) == (state == "broken")


def test_a_package_that_is_not_there_is_told_with_the_command(monkeypatch):
    monkeypatch.setitem(probes.REQUIRED, "no_such_package", "1.0")
    found = one(probes.required("no_such_package"))
    assert (found.state, found.words) == ("broken", "is not installed")
    assert found.remedy.endswith("--upgrade 'no_such_package>=1.0'")


def test_which_pillow_is_active_is_what_is_installed_here():
    """Real where pillow-simd is installed: run in such an environment, it is pillow-simd that must be told."""
    try:
        simd = version("pillow-simd")
    except PackageNotFoundError:
        simd = None
    first = next(iter(images.pillow()))
    name, number = ("pillow-simd", simd) if simd else ("Pillow", version("pillow"))
    assert (first.state, first.words) == ("ok", f"{name} {number} is active")
    assert one(images.installed(Path(PIL.__file__).parent.parent)) == name.lower()


def test_a_pillow_with_other_values_is_left_to_itself_and_told(monkeypatch):
    """Real where pillow-simd is installed; elsewhere Pillow's resizing is replaced by one that is off by one."""
    try:
        version("pillow-simd")
    except PackageNotFoundError:
        by_pillow = images.by_pillow
        monkeypatch.setattr(images, "by_pillow", lambda data: by_pillow(data) ^ 1)
        monkeypatch.setattr(jpeg, "why_not_as_pillow", lambda: "it resizes to other values")
    first, second = images.native_library()
    assert first.state == "ok"
    assert second.state == "costs"
    assert "the active Pillow gives other values" in second.words
    assert "by at most 1)" in second.words
    assert "install" in second.remedy


class _OldImage:
    """An image of Pillow before 10.1."""


@pytest.mark.parametrize(
    ("owner", "name", "value", "reason", "remedy"),
    [
        (opener.Image, "Image", _OldImage, opener.TOO_OLD, pip("--upgrade 'pillow>=10.1'")),
        (PIL.Image.Image, "resize", lambda *_: None, "methods of Pillow's images were replaced", ""),
        (
            jpeg,
            "why_not_as_pillow",
            lambda: "its values differ",
            "its values differ",
            pip("pillow", "pillow pillow-simd"),
        ),
    ],
)
def test_images_that_are_not_decoded_late_are_told_with_the_reason_that_a_loader_gives(
    monkeypatch, owner, name, value, reason, remedy
):
    data = images.made_jpeg()
    expected = images.by_pillow(data)
    monkeypatch.setattr(images, "by_pillow", lambda data: expected)
    jpeg.why_not_as_pillow()  # compares with Pillow, once
    monkeypatch.setattr(owner, name, value)
    found = list(images.native_library())[1]
    assert found.state == "costs"
    assert found.words.endswith(f"; images are not decoded late: {reason}")
    assert found.remedy == remedy
    assert opener.why_not() == reason


def put(folder: Path, name: str, number: str, **files: str) -> None:
    """Install a distribution as an installer does: a file of this name and content overwrites another one's."""
    place = folder / f"{name.replace('-', '_')}-{number}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    lines = [f"{place.name}/METADATA,,", f"{place.name}/RECORD,,", "fastload/__pycache__/a.cpython-311.pyc,,"]
    for stem, text in files.items():
        path = folder / "fastload" / f"{stem}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        lines.append(f"fastload/{stem}.py,sha256={digest},{len(text)}")
    (place / "RECORD").write_text("".join(line + "\n" for line in lines))


OURS, STRANGERS = {"__init__": "ours", "loader": "ours too", "cli": "a command"}, {"__init__": "a downloader"}
CONTENTS = {"torch-fastload": OURS, "fastload": STRANGERS}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that packages are looked for in."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


BOTH_GO = r"uninstall .*\bfastload torch-fastload; .*install "
OVERWRITTEN = "fastload 0.0.3, another package that has the same folder, is installed too"


@pytest.mark.parametrize(
    ("installed", "state", "words", "remedy"),
    [
        (["torch-fastload"], "ok", "0.1.0", ""),
        (["torch-fastload", "fastload"], "broken", f"0.1.0; changed: fastload/__init__.py; {OVERWRITTEN}", BOTH_GO),
        # Its end would take files away.
        (["fastload", "torch-fastload"], "costs", f"0.1.0; {OVERWRITTEN}", BOTH_GO),
        (
            ["torch-fastload", "-__init__"],
            "broken",
            "0.1.0; missing: fastload/__init__.py",
            "uninstall [^;]*torch-fast",
        ),
        (["torch-fastload", "+loader"], "costs", "0.1.0; changed: fastload/loader.py", ""),
        ([], "absent", f"is not installed: this is the folder {ROOT}", ""),
    ],
    ids=["as it was", "a stranger later", "a stranger before", "a file is gone", "a file was edited", "not installed"],
)
def test_the_files_of_the_package_are_compared_with_what_was_installed(folder, installed, state, words, remedy):
    for one_ in installed:
        if one_[0] in "-+":
            path = folder / f"fastload/{one_[1:]}.py"
            path.write_text("edited") if one_[0] == "+" else path.unlink()
        else:
            put(folder, one_, "0.0.3" if one_ == "fastload" else "0.1.0", **CONTENTS[one_])
    if installed:
        (folder / "fastload.egg-info").mkdir()  # what setuptools leaves in a checkout is no installation
        (folder / "fastload.egg-info/PKG-INFO").write_text("Metadata-Version: 2.1\nName: fastload\nVersion: 0.0.9\n")
    found = one(installation.own_files())
    assert (found.state, found.words) == (state, words)
    assert re.search(remedy, found.remedy)
    assert ("takes files of torch-fastload away" in found.cost) == (installed[:1] == ["fastload"])
    assert remedy == BOTH_GO or "fastload torch-fastload" not in found.remedy


def test_a_stranger_that_is_imported_in_place_of_an_editable_installation_is_told(folder, monkeypatch):
    put(folder, "torch-fastload", "0.1.0")
    put(folder, "fastload", "0.0.3", **STRANGERS)
    door = str(folder / "fastload/__init__.py")
    monkeypatch.setattr(sys.modules["fastload"], "__file__", door)
    found = one(installation.own_files())
    assert found.state == "broken"
    assert f"import fastload finds {door}, not {ROOT / 'fastload' / '__init__.py'}; fastload 0.0.3" in found.words


def test_many_files_are_counted(folder):
    put(folder, "torch-fastload", "0.1.0", **{f"module{number}": "x" for number in range(9)})
    shutil.rmtree(folder / "fastload")
    assert one(installation.own_files()).words.endswith("fastload/module2.py and 6 more")


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
    ("there", "says", "name", "trouble"),
    [
        ({"pillow": "13.0.0"}, "13.0.0", "Pillow", ""),
        ({"Pillow-SIMD": "12.1.1.post0"}, "12.1.1.post0", "pillow-simd", ""),
        ({}, "11.0.0", "Pillow", ""),
        ({"pillow": "13.0.0", "pillow_simd": "12.1.1.post0"}, "13.0.0", "Pillow", "are both installed into one folder"),
        (
            {"pillow": "12.1.1", "Pillow-SIMD": "12.1.1.post0"},
            "12.1.1.post0",
            "pillow-simd",
            "pillow 12.1.1 and pillow-simd 12.1.1.post0 are both installed",
        ),
        ({"pillow": "13.0.0"}, "9.5.0.post2", "pillow-simd", "the files are those of pillow-simd 9.5.0.post2"),
    ],
)
def test_pillow_and_pillow_simd_are_told_apart_by_what_is_installed(tmp_path, there, says, name, trouble):
    for distribution, number in there.items():
        put(tmp_path, distribution, number)
    put(tmp_path, "numpy", "2.0")
    found = images.active(says, images.installed(tmp_path))
    assert found[0] == name
    assert trouble in found[1]
    assert bool(trouble) == bool(found[1])


@pytest.mark.slow
def test_a_pillow_of_two_distributions_is_told_with_the_way_out(monkeypatch):
    monkeypatch.setattr(images, "installed", lambda _: {"pillow": PIL.__version__, "pillow-simd": "12.1.1.post0"})
    found = next(iter(images.pillow()))
    assert found.state == "costs"
    assert "have overwritten each other's files" in found.words
    assert "uninstall" in found.remedy
    assert found.remedy.endswith("install pillow") or found.remedy.endswith(f"{sys.executable} pillow")


def test_the_native_library_makes_pillows_pixels_and_the_measurement_names_both():
    if rows.pillow_order() is None:
        pytest.skip("the active Pillow has values of its own")
    found = list(images.native_library())
    assert [finding.state for finding in found] == ["ok", "ok", "ok"]
    assert found[-1].name == "packed coefficients"
    assert 90_000 < len(images.made_jpeg()) < 130_000
    assert images.by_pillow(images.made_jpeg()).shape == (images.SIZE, images.SIZE, 3)
    words = one(images.speed()).words
    assert "by the native library" in words
    assert "ms from packed coefficients" in words


def test_coefficients_that_cannot_be_read_are_broken(monkeypatch):
    if rows.pillow_order() is None:
        pytest.skip("the active Pillow has values of its own")
    monkeypatch.setattr(jpeg, "record_of_jpeg", lambda _: rows.Status.DAMAGED)
    assert list(images.native_library())[-1].state == "broken"


def test_a_library_that_gives_other_pixels_is_broken(monkeypatch):
    by_pillow = images.by_pillow
    monkeypatch.setattr(images, "by_pillow", lambda data: by_pillow(data) ^ 1)
    monkeypatch.setattr(jpeg, "why_not_as_pillow", lambda: None)
    found = list(images.native_library())[1]
    assert (found.state, found.remedy) == ("broken", "export FASTLOAD_NATIVE=0")


def test_a_library_that_is_there_and_cannot_be_imported_is_told(monkeypatch, tmp_path):
    (tmp_path / "codec_without_ffmpeg.py").write_text("raise RuntimeError('libavutil.so is missing')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(arrays, "DOORS", {"codec_without_ffmpeg": (), "no_such_codec": ()})
    found = one(images.whole_images())
    assert found.state == "costs"
    assert found.words == "codec_without_ffmpeg cannot be imported: RuntimeError: libavutil.so is missing"


def test_changes_of_tensors_colors_are_compared_and_named(monkeypatch):
    if not native.available():
        pytest.skip("needs the native library")
    monkeypatch.setattr(undecoded, "tensor_filters", lambda: TENSOR_FILTERS)
    first, second = images.tensors()
    assert first.words.startswith("version 1: adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue, rgb")
    assert second.words.startswith("version 2: adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue, per")
    hue = tensor_colors.KNOWN_1["adjust_hue"]
    monkeypatch.setattr(tensor_colors, "agrees", lambda known, original: known is not hue)
    other, equal, _ = images.tensors()
    assert (other.state, equal.state) == ("costs", "ok")
    assert other.words.startswith("version 1 makes adjust_hue by itself")
    assert "adjust_hue" not in equal.words
    monkeypatch.setattr(undecoded, "tensor_filters", lambda: {"tensor bicubic"})
    *_, resizes = images.tensors()
    assert (resizes.state, resizes.words.partition(":")[0]) == ("costs", "version 2 resizes by itself (bilinear)")
    monkeypatch.setattr(native, "why_not", lambda: "a reason")
    assert one(images.tensors()).words.endswith("without the native library (a reason)")


def test_a_wrong_name_of_an_instruction_set_is_broken(monkeypatch):
    monkeypatch.setenv("FASTLOAD_NATIVE", "sse2")
    monkeypatch.setattr(native, "why_not", lambda: native._load.__wrapped__().reason)
    found = one(images.native_library())
    assert (found.state, found.remedy) == ("broken", "unset FASTLOAD_NATIVE")
    assert "one of plain, avx2, avx512" in found.words


def test_a_missing_library_names_what_building_it_wants(monkeypatch):
    monkeypatch.delenv("FASTLOAD_NATIVE", raising=False)
    monkeypatch.setattr(native, "why_not", lambda: "it was not built")
    found = one(images.native_library())
    assert (found.state, found.words) == ("costs", "it was not built")
    assert found.remedy.endswith(f"--force-reinstall --no-deps --no-cache-dir -e {native.LIBRARY.parents[2]}")


def test_an_installed_library_is_built_again_from_the_clone(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "fastload" / "native" / "_fastload.so")
    assert images.rebuild().endswith("--force-reinstall --no-deps --no-cache-dir PATH_OF_THE_CLONE")


def test_a_quota_of_the_control_group_costs_and_is_told(monkeypatch):
    monkeypatch.setattr(probes, "processors", lambda: 8)
    monkeypatch.setattr(probes, "processor_quota", lambda: 2.5)
    found = one(probes.cores())
    assert (found.state, found.remedy) == ("costs", "num_workers=2")
    monkeypatch.setattr(probes, "processor_quota", lambda: 8.0)
    assert one(probes.cores()).state == "ok"


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


def test_pipes_cost_and_are_told(monkeypatch):
    monkeypatch.setenv("FASTLOAD_TRANSPORT", "pipes")
    found = one(probes.memory_files())
    assert (found.state, found.remedy) == ("costs", "unset FASTLOAD_TRANSPORT")


def test_memory_files_that_cannot_be_made_are_broken(monkeypatch):
    def refuse(*_):
        raise PermissionError("not here")

    monkeypatch.delenv("FASTLOAD_TRANSPORT", raising=False)
    assert one(probes.memory_files()).state == "ok"
    monkeypatch.setattr(os, "memfd_create", refuse)
    found = one(probes.memory_files())
    assert (found.state, found.remedy) == ("broken", "export FASTLOAD_TRANSPORT=pipes")


def test_what_an_automatic_cache_would_be_is_said(monkeypatch):
    monkeypatch.setattr(shared, "free_on_host", lambda: shared.reserve_of_host() + (3 << 30))
    words = one(probes.cache()).words
    assert words.startswith("cache='auto' is 1.5 GiB of memory now")
    assert words.endswith("the coefficients of about 1.1 GiB of JPEG files")
    monkeypatch.setattr(shared, "free_on_host", lambda: 0)
    assert one(probes.cache()).state == "absent"


def test_few_open_files_cost(monkeypatch):
    resource = pytest.importorskip("resource")
    limit = resource.getrlimit
    few = (256, 4096)
    monkeypatch.setattr(resource, "getrlimit", lambda which: few if which == resource.RLIMIT_NOFILE else limit(which))
    found = next(iter(probes.open_files()))
    assert (found.state, found.remedy) == ("costs", "ulimit -n 4096")


FOUND = [
    ("One", Finding("first", "ok", "works " * 30)),
    ("One", Finding("second", "costs", "slow", "a lot " * 30, "a command " * 30)),
    ("Two", Finding("third", "absent", "not there", remedy="install it")),
    ("Two", Finding("fourth", "broken", "does not work")),
]


def test_a_page_is_wrapped_but_for_commands():
    lines = list(page("title", FOUND, 60))
    assert all(len(line) <= 60 for line in lines if "a command" not in line)
    (command,) = [line for line in lines if "a command" in line]
    assert command.strip() == "do:   " + ("a command " * 30).strip()
    assert lines[1] == "Broken: fourth. Slower or limited: second."


def test_what_is_broken_decides_what_the_json_says():
    said = json.loads(to_json("1.2", FOUND))
    assert (said["ok"], said["fastload"], len(said["findings"])) == (False, "1.2", 4)
    assert json.loads(to_json("1.2", FOUND[:3]))["ok"] is True
    assert summary([finding for _, finding in FOUND[:1]]) == "Everything that fastload needs works."


def test_colours_are_a_terminals_alone_and_change_no_word():
    plain, colored = (list(page("title", FOUND, 60, colored=colored)) for colored in (False, True))
    assert "\033" not in "".join(plain)
    assert "\033[1;31mbroken  \033[0m" in "".join(colored)
    assert [re.sub("\033\\[[0-9;]*m", "", line).rstrip() for line in colored] == [line.rstrip() for line in plain]
