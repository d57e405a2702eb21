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
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from ...base import compat
from ...errors import ClusterError
from .faults import Death, Room

HEAD_PATIENCE_S = 20.0
"""How long the head may be gone before the loader gives up, in seconds: it may be started again."""
_HEAD_PROBE_S = 3.0
# How long a question to the head may take, in seconds: also one that began just before it was started again.
_ANSWER_S = HEAD_PATIENCE_S + 10.0
# How long a cluster at RAY_ADDRESS may take to answer, in seconds: it may just be starting.
_CONNECT_S = 10.0

_CLIENT = (
    "this process is a client of Ray (an address that begins with ray://), and batches are not passed through its "
    "server; run the script on a machine of the cluster, with RAY_ADDRESS=auto"
)

_T = TypeVar("_T")

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

    def store_bytes(self, machine: str) -> int:
        """Return the size of a machine's object store; 0: not known.

        Raises:
            ClusterError: Ray does not say.
        """
        for node in self._ask(self._machines):
            if node["NodeID"] == machine:
                return int(node["Resources"].get("object_store_memory", 0))
        return 0

    def _ask(self, question: Callable[[], _T]) -> _T:
        """Return what Ray answers. Its functions that ask for the state of a cluster wait without limit.

        Raises:
            ClusterError: there is no answer within :data:`_ANSWER_S`.
        """
        answers: list[_T] = []
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                answers.append(question())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=ask, name="fastload_ray_question", daemon=True)
        thread.start()
        thread.join(_ANSWER_S)
        if thread.is_alive():
            raise ClusterError(
                f"the head of the Ray cluster at {self.head} was asked what the cluster has, and has not said it for "
                f"{_ANSWER_S:.0f} s. The batches that were given out are not affected: save state_dict(), and resume "
                "in another process, with another cluster, or with local workers"
            )
        if errors:
            raise errors[0]
        return answers[0]

    def _machines(self) -> list[dict[str, Any]]:
        """Return what Ray says of the machines that it has now."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def placed_here(self) -> dict[str, Any]:
        """Return options of an actor that runs on this machine, whether it has room or not."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(self.node_id, soft=False)}

    def room(self, actor: Mapping[str, Any]) -> Room:
        """Return whether there is room for actors; ``actor``: what each asks of Ray."""
        with contextlib.suppress(Exception):  # this goes into an error, which must not be lost
            self.check_open()
            return self._ask(lambda: self._room(actor))
        return Room(None, True, "what the cluster has is not known")

    def _room(self, actor: Mapping[str, Any]) -> Room:
        needs = _needs(actor)
        machines = self._machines()
        has, free = self.ray.cluster_resources(), self.ray.available_resources()
        return Room(
            # Ray does not count those that wait for one machine, or in a group.
            self._num_waiting(needs) if actor.get("scheduling_strategy") in (None, "DEFAULT", "SPREAD") else None,
            any(all(node["Resources"].get(name, 0) >= needs[name] for name in needs) for node in machines),
            f"the cluster has {len(machines)} machines with {_resources(has)}, of which are free: {_resources(free)}",
        )

    def _num_waiting(self, needs: Mapping[str, float]) -> int:
        """Return how many actors or tasks that ask for this wait for room."""
        from ray.autoscaler.v2.sdk import get_cluster_status

        demands = get_cluster_status(self.head).resource_demands.ray_task_actor_demand
        return sum(one.count for kind in demands for one in kind.bundles_by_count if dict(one.bundle) == needs)

    def death(self, handle: Any, error: BaseException) -> Death:
        """Return what Ray says of an actor that is gone; ``error``: what a call of it has raised.

        Raises:
            ClusterError: Ray does not say, though the head is there.
        """
        machine, machines = "", self._machines_if_known()
        # A machine that has just gone may still be called alive: its actors are not available then, until Ray has
        # missed it for some 15 s.
        if machines and not isinstance(error, self.ray.exceptions.ActorUnavailableError):
            table = self._ask(lambda: self.ray._private.state.actors(handle._actor_id.hex()))
            machine = table["Address"]["NodeID"] if table else ""
        return Death(error, machine, machines)

    def _machines_if_known(self) -> Collection[str]:
        """Return the numbers of the machines; none if the head is not there to say: :meth:`check_head` decides then."""
        return {node["NodeID"] for node in self._ask(self._machines)} if _answers(self.head) else ()

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


def _needs(actor: Mapping[str, Any]) -> dict[str, float]:
    """Return what an actor asks of Ray, by the names of Ray's resources."""
    given = {"CPU": actor.get("num_cpus"), "GPU": actor.get("num_gpus"), "memory": actor.get("memory")}
    given |= actor.get("resources") or {}
    if actor.get("accelerator_type"):
        given[f"accelerator_type:{actor['accelerator_type']}"] = 0.001
    return {name: float(amount) for name, amount in given.items() if amount}


def _resources(amounts: Mapping[str, float]) -> str:
    shown = {name: amount for name, amount in amounts.items() if ":" not in name and "memory" not in name}
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(shown.items())) or "nothing"
