"""The connection to a Ray cluster: found or made, and whether its head still answers.

A connection that is made here lasts until the process ends, or the user calls ``ray.shutdown()``: to start Ray takes
seconds.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from ...errors import ClusterError

HEAD_PATIENCE_S = 20.0
"""How long the head may be gone before the loader gives up, in seconds: it may be started again."""
_HEAD_PROBE_S = 3.0

_CLIENT = (
    "this process is a client of Ray (an address that begins with ray://), and batches are not passed through its "
    "server; run the script on a machine of the cluster, with RAY_ADDRESS=auto"
)
_RESUME = "The batches that were given out are not affected: save state_dict(), and resume with"


def ray_module() -> Any:
    """Return Ray, imported now if it was not yet."""
    if "RAY_ADDRESS" not in os.environ:
        # Under "uv run" Ray would build the script's environment again for workers on this machine: a minute. Ray reads
        # this when it is imported.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    import ray

    return ray


class Cluster:
    """A use of the connection.

    Raises:
        ClusterError: there is no cluster at the address, or none can be started, or it cannot be used.
    """

    def __init__(self) -> None:
        self.ray = ray_module()
        if not self.ray.is_initialized():
            _connect(self.ray)
        if self.ray.util.client.ray.is_connected():
            raise ClusterError(_CLIENT)
        self.head: str = self.ray.get_runtime_context().gcs_address
        self.head_is_gone = False
        self._answered = self._probed = time.monotonic()

    def check_open(self) -> None:
        """Look whether there still is a connection. Many functions of Ray would make another, to any cluster.

        Raises:
            ClusterError: there is none.
        """
        if not self.ray.is_initialized():
            raise ClusterError(
                "ray.shutdown() was called while a loader had workers there; call loader.close() before. "
                f"{_RESUME} a new loader"
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
        self.head_is_gone = now - self._answered > HEAD_PATIENCE_S
        if self.head_is_gone:
            raise ClusterError(
                f"the head of the Ray cluster at {self.head} has not answered for {now - self._answered:.0f} s. "
                f"{_RESUME} another cluster or with local workers"
            )


def _connect(ray: Any) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers
    where = os.environ.get("RAY_ADDRESS")
    if where and where.startswith("ray://"):
        raise ClusterError(_CLIENT)
    try:
        # RAY_ADDRESS; or the cluster that was started last on this machine, which may be gone.
        found = ray._private.services.canonicalize_bootstrap_address(None)
        options = {}
        if found is not None and not _answers(found):
            if where:  # Ray itself would wait for many minutes
                raise ConnectionError(
                    f"nothing answers at {found}. Start Ray there (ray start --head), correct RAY_ADDRESS, or unset "
                    "it, so that Ray is started on this machine"
                )
            options = {"address": "local"}
        ray.init(include_dashboard=False, logging_level="WARNING", **options)
    except Exception as error:
        raise ClusterError(
            f"cannot connect to the Ray cluster at RAY_ADDRESS={where}: {error}"
            if where
            else f"Ray cannot be started on this machine: {error}"
        ) from error


def _answers(address: str) -> bool:
    """Return whether something listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except OSError:
        return False
    return True
