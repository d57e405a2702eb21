"""Which file system a file is on, by its device's number. Linux; elsewhere nothing is known."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from .cgroups import PROC

# An inode's number stays with a file, and is not given to another with the same time of change.
_LASTING = frozenset(("ext2", "ext3", "ext4", "xfs", "f2fs"))
_NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "virtiofs"),
    )
)
_LOOP_DEVICE = 7  # its images are exchanged, and some have times of change that were made up


def kind_of(device: int, proc: Path = PROC) -> str | None:
    """Return the kind of the file system of a device; None: it is not known, as for subvolumes of Btrfs."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = (proc / "self" / "mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == wanted:
            return source.split()[0]
    return None


def is_remote(kind: str | None) -> bool:
    """Return whether files of such a file system may be on another machine, or be served by any process (FUSE)."""
    return kind is not None and (kind in _NETWORK or kind.partition(".")[0] == "fuse")


@functools.cache
def has_lasting_inodes(device: int) -> bool:
    """Return whether a file of a device has the same inode after the file system was mounted anew.

    Not so on a network, under overlays, on FUSE and on file systems that make the numbers up.
    """
    return os.major(device) != _LOOP_DEVICE and kind_of(device) in _LASTING
