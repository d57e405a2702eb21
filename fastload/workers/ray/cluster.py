"""The connection to a Ray cluster: found or started, used by several pools, and ended by who began it.

In: nothing, ``RAY_ADDRESS``, or a ``ray.init`` of the user's. Out: :class:`Cluster`, which also says whether its head
still answers, and what it has.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from ...base import compat
from ...errors import ClusterError

HEAD_PATIENCE_S = 20.0
"""How long the head may be gone before the loader gives up, in seconds: it may be started again."""
_HEAD_PROBE_S = 3.0
# How long a cluster at RAY_ADDRESS may take to answer, in seconds: it may just be starting.
_CONNECT_S = 10.0

_CLIENT = (
    "this process is a client of Ray (an address that begins with ray://), and batches are not passed through its "
    "server; run the script on a machine of the cluster, with RAY_ADDRESS=auto"
)

_lock = threading.RLock()  # a use may be dropped, and collected, while its own thread makes another
_users = 0
_is_ours = False


def ray_module() -> Any:
    """Return Ray, imported now if it was not yet."""
    if "RAY_ADDRESS" not in os.environ:
        # Under "uv run" Ray would build the script's environment again for workers on this machine: a minute. Ray reads
        # this when it is imported.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    import ray

    return ray


class Cluster:
    """One use of the connection. The last that is closed, or dropped, ends it, if it was made here.

    Raises:
        ClusterError: there is no cluster at the address, or none can be started, or it cannot be used.
    """

    def __init__(self) -> None:
        global _users, _is_ours
        ray = self.ray = ray_module()
        with _lock:
            _users += 1  # first: now no other that is dropped ends the connection
            try:
                if not ray.is_initialized():
                    self._connect()
                    _is_ours = True
            except BaseException:
                _users -= 1
                raise
        self._open, self._exits, self._pid = True, compat.exits, os.getpid()
        try:
            if ray.util.client.ray.is_connected():
                raise ClusterError(_CLIENT)
            context = ray.get_runtime_context()
            self.head: str = context.gcs_address
            self.node_id: str = context.get_node_id()
        except BaseException:
            self.close()
            raise
        self._answered = self._probed = time.monotonic()

    def _connect(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers
        where = os.environ.get("RAY_ADDRESS")
        if where and where.startswith("ray://"):
            raise ClusterError(_CLIENT)
        try:
            # RAY_ADDRESS; or the cluster that was started last on this machine, which may be gone.
            found = self.ray._private.services.canonicalize_bootstrap_address(None)
            options = {}
            if found is not None and not _answers(found, _CONNECT_S if where else 0.0):
                if where:  # Ray itself would wait for many minutes
                    raise ConnectionError(
                        f"nothing answers at {found}. Start Ray there (ray start --head), correct RAY_ADDRESS, or "
                        "unset it, so that Ray is started on this machine"
                    )
                options = {"address": "local"}
            self.ray.init(include_dashboard=False, logging_level="WARNING", **options)
        except Exception as error:
            raise ClusterError(
                f"cannot connect to the Ray cluster at RAY_ADDRESS={where}: {error}"
                if where
                else f"Ray cannot be started on this machine: {error}"
            ) from error

    def store_bytes(self) -> int:
        """Return the size of this machine's object store."""
        for node in self.ray.nodes():
            if node["NodeID"] == self.node_id:
                return int(node["Resources"].get("object_store_memory", 0))
        return 0

    def in_words(self) -> str:
        """Return what the cluster has."""
        with contextlib.suppress(Exception):  # this goes into an error, which must not be lost
            self.check_open()
            has, free = self.ray.cluster_resources(), self.ray.available_resources()
            nodes = sum(node["Alive"] for node in self.ray.nodes())
            return f"the cluster has {nodes} machines with {_resources(has)}, of which are free: {_resources(free)}"
        return "what the cluster has is not known"

    def check_open(self) -> None:
        """Look whether there still is a connection. Many functions of Ray would make another, to any cluster.

        Raises:
            ClusterError: there is none.
        """
        if not self.ray.is_initialized():
            raise ClusterError(
                "ray.shutdown() was called while a loader had workers there; call loader.close() before. The batches "
                "that were given out are not affected: save state_dict(), and resume with a new loader"
            )

    def check_head(self) -> None:
        """Look whether the head answers, if it is time to.

        Raises:
            ClusterError: it has not for :data:`HEAD_PATIENCE_S`, or there is no connection.
        """
        now = time.monotonic()
        if now - self._probed < _HEAD_PROBE_S:
            return
        self.check_open()
        self._probed = now
        if _answers(self.head):
            self._answered = now
            return
        silent = now - self._answered
        if silent > HEAD_PATIENCE_S:
            raise ClusterError(
                f"the head of the Ray cluster at {self.head} has not answered for {silent:.0f} s. The batches that "
                "were given out are not affected: save state_dict(), and resume with another cluster or with local "
                "workers"
            )

    def close(self) -> None:
        """End this use."""
        global _users, _is_ours
        with _lock:
            if not self._open:
                return
            self._open = False
            _users -= 1
            if _users or not _is_ours:
                return
            _is_ours = False
            if self.ray.is_initialized():
                self.ray.shutdown()

    def __del__(self) -> None:
        # At exit Ray ends by itself; and the connection is not that of a child that the script has forked.
        if getattr(self, "_open", False) and not self._exits() and self._pid == os.getpid():
            self.close()


def _answers(address: str, patience_s: float = 0.0) -> bool:
    """Return whether something listens at host:port, tried again until then."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + patience_s
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.2)
        else:
            return True


def _resources(amounts: Mapping[str, float]) -> str:
    shown = {name: amount for name, amount in amounts.items() if ":" not in name and "memory" not in name}
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(shown.items())) or "nothing"
