"""Kinds of file systems, by their devices' numbers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastload.base import file_systems
from fastload.base.file_systems import has_lasting_inodes, is_remote, kind_of

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:50 / /mnt/a\\040b rw,relatime shared:7 master:2 - fuse.sshfs host: rw
41 27 0:51 / /nfs rw,relatime - nfs4 host:/home rw
42 27 7:1 / /image ro - ext4 /dev/loop1 ro
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(MOUNTS)
    return tmp_path


def test_kinds_are_those_of_the_mounts(proc):
    kinds = {(254, 0): "ext4", (0, 50): "fuse.sshfs", (0, 51): "nfs4", (9, 9): None}
    for device, kind in kinds.items():
        assert kind_of(os.makedev(*device), proc) == kind
    assert kind_of(os.makedev(254, 0), proc / "none") is None


def test_what_others_may_change_unseen_is_remote():
    assert all(map(is_remote, ("nfs", "nfs4", "cifs", "fuse", "fuse.gluster", "lustre", "9p", "virtiofs")))
    assert not any(map(is_remote, ("ext4", "xfs", "btrfs", "overlay", "tmpfs", "fuseblk", None)))


def test_inodes_last_on_disks_alone(proc, monkeypatch):
    monkeypatch.setattr(file_systems, "kind_of", lambda device: kind_of(device, proc))
    has_lasting_inodes.cache_clear()
    lasting = [
        device for device in ((254, 0), (0, 50), (0, 51), (7, 1), (9, 9)) if has_lasting_inodes(os.makedev(*device))
    ]
    has_lasting_inodes.cache_clear()
    assert lasting == [(254, 0)]
