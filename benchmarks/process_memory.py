"""Memory of a process and all its descendants, read from /proc (Linux only)."""

import os
from dataclasses import dataclass
from pathlib import Path

_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class TreeMemory:
    """Memory of a process tree, in MiB."""

    own_mib: float
    """Anonymous and shared memory, pages that several processes map counted once (Pss_Anon + Pss_Shmem).

    File-backed pages are left out: they are the code of torch's libraries, and other processes on the machine that map
    the same files change each one's share of them.
    """
    pss_mib: float
    """Proportional set size with file-backed pages."""
    whole_mib: float
    """Anonymous memory, and what the memory files hold that are open or mapped, each counted once.

    Batches on the way from a worker of torch are files that are open but mapped by nobody, so that own_mib lacks them;
    the batches that came are mapped but no longer open.
    """


def read_tree_memory(root_pid: int | None = None) -> TreeMemory:
    """Read the memory of process ``root_pid`` (default: this one) and everything below it.

    Cost:
        The kernel walks the page tables: about a millisecond for each 100 MB mapped in small pages. A process that ends
        while it is read counts as nothing.
    """
    own = pss = anonymous = 0
    shared_files: dict[tuple[int, int], int] = {}
    mapped_files: dict[tuple[int, int], int] = {}
    for pid in process_tree(root_pid):
        fields = _rollup(pid)
        anonymous += fields.get("Pss_Anon", 0)
        own += fields.get("Pss_Anon", 0) + fields.get("Pss_Shmem", 0)
        pss += fields.get("Pss", 0)
        shared_files.update(_open_shared_files(pid))
        mapped_files.update(_mapped_shared_files(pid))
    return TreeMemory(
        own_mib=own / _MIB,
        pss_mib=pss / _MIB,
        whole_mib=(anonymous + sum({**mapped_files, **shared_files}.values())) / _MIB,
    )


def process_tree(root_pid: int | None = None) -> list[int]:
    """Return ``root_pid`` (default: this process) and the ids of all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            # The command name in parentheses may itself hold spaces and parentheses; the state and parent id follow it.
            parent = int(text.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry))
    found = [root_pid or os.getpid()]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def _rollup(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}


def _open_shared_files(pid: int) -> dict[tuple[int, int], int]:
    """Return the bytes that each memory file open in process ``pid`` holds, keyed by device and inode."""
    held: dict[tuple[int, int], int] = {}
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return held
    for descriptor in descriptors:
        try:
            target = os.readlink(descriptor)
            if target.startswith(("/memfd:", "/dev/shm/")):
                status = descriptor.stat()
                held[status.st_dev, status.st_ino] = status.st_blocks * 512
        except OSError:
            continue
    return held


def _mapped_shared_files(pid: int) -> dict[tuple[int, int], int]:
    """Return the bytes of each memory file that process ``pid`` maps, keyed by device and inode."""
    mapped: dict[tuple[int, int], int] = {}
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return mapped
    for line in lines:
        addresses, _permissions, _offset, device, inode, *name = line.split(maxsplit=5)
        if name and name[0].startswith(("/memfd:", "/dev/shm/")):
            start, end = (int(address, 16) for address in addresses.split("-"))
            major, minor = (int(part, 16) for part in device.split(":"))
            key = os.makedev(major, minor), int(inode)
            mapped[key] = mapped.get(key, 0) + end - start
    return mapped
