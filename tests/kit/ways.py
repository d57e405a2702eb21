"""Ways of loading: arguments of a loader that must not change what it gives."""

from __future__ import annotations

from typing import Any

WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "kept": {"num_workers": 2, "persistent_workers": True},
    "kept threads": {"num_workers": 2, "persistent_workers": True, "worker_method": "thread"},
    "forkserver": {"num_workers": 1, "multiprocessing_context": "forkserver"},
}
USUAL = {name: WAYS[name] for name in ("inline", "processes", "threads", "kept")}
