"""Who connects to Ray, and who ends the connection. Nothing is started."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fastload import ClusterError
from fastload.workers.ray import cluster
from fastload.workers.ray.faults import Death, Room


class FakeRay:
    """Ray, as far as a connection goes."""

    def __init__(self) -> None:
        self.is_on, self.begins, self.ends = False, 0, 0
        self.error: Exception | None = None
        self.during_init: Any = None
        self.found: str | None = None
        """The cluster that RAY_ADDRESS names, or that was started last on this machine."""
        self.options: dict[str, Any] = {}
        services = SimpleNamespace(canonicalize_bootstrap_address=lambda _: self.found)
        self._private = SimpleNamespace(services=services)
        self.util = SimpleNamespace(client=SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: False)))

    def is_initialized(self) -> bool:
        return self.is_on

    def init(self, **options: Any) -> None:
        if self.error is not None:
            raise self.error
        self.is_on, self.begins, self.options = True, self.begins + 1, options

    def shutdown(self) -> None:
        self.is_on, self.ends = False, self.ends + 1

    def get_runtime_context(self) -> Any:
        assert self.is_on
        return SimpleNamespace(gcs_address="127.0.0.1:1", get_node_id=lambda: "node")


@pytest.fixture
def ray(monkeypatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(cluster, "ray_module", lambda: fake)
    monkeypatch.setattr(cluster, "_users", 0)
    monkeypatch.setattr(cluster, "_is_ours", False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return fake


def test_the_last_use_ends_a_connection_that_was_made_here(ray):
    first, second = cluster.Cluster(), cluster.Cluster()
    first.close()
    first.close()
    assert ray.is_on
    second.close()
    assert (ray.begins, ray.ends) == (1, 1)


def test_a_connection_of_the_users_stays(ray):
    ray.is_on = True
    cluster.Cluster().close()
    assert (ray.begins, ray.ends) == (0, 0)


def test_a_connection_of_the_users_stays_where_an_attempt_of_ours_has_failed_before(ray):
    ray.error = ConnectionError("nobody there")
    with pytest.raises(ClusterError, match="Ray cannot be started on this machine: nobody there"):
        cluster.Cluster()
    ray.error, ray.is_on = None, True
    cluster.Cluster().close()
    assert ray.ends == 0


def test_a_connection_that_the_user_has_ended_is_an_error_and_not_made_anew(ray, monkeypatch):
    monkeypatch.setattr(cluster, "_HEAD_PROBE_S", 0)
    use = cluster.Cluster()
    use.check_open()
    ray.shutdown()
    for check in (use.check_open, use.check_head):
        with pytest.raises(ClusterError, match=r"ray.shutdown\(\) was called while a loader had workers there"):
            check()
    use.close()
    assert (ray.begins, ray.ends) == (1, 1)


def test_a_use_that_is_collected_while_another_begins_does_not_end_the_connection(ray, monkeypatch):
    kept = [cluster.Cluster()]

    def collect() -> bool:
        kept.clear()
        return ray.is_on

    monkeypatch.setattr(ray, "is_initialized", collect)
    cluster.Cluster().close()
    assert (ray.begins, ray.ends) == (1, 1)


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port at which nobody listens, and which no other process is given meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_an_address_at_which_nobody_answers_is_an_error(ray, monkeypatch, free_port):
    ray.found = f"127.0.0.1:{free_port}"
    monkeypatch.setenv("RAY_ADDRESS", ray.found)
    monkeypatch.setattr(cluster, "_CONNECT_S", 0.3)
    with pytest.raises(ClusterError, match=f"RAY_ADDRESS={ray.found}: nothing answers .* unset it"):
        cluster.Cluster()
    assert ray.begins == 0


def test_a_cluster_of_this_machine_that_is_gone_is_not_waited_for(ray, free_port):
    ray.found = f"127.0.0.1:{free_port}"
    cluster.Cluster().close()
    assert ray.options["address"] == "local"


def test_a_cluster_that_answers_is_connected_to(ray, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        ray.found = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", "auto")
        cluster.Cluster().close()
    assert "address" not in ray.options


def test_the_address_of_a_client_is_an_error(ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:10001")
    with pytest.raises(ClusterError, match="client of Ray"):
        cluster.Cluster()
    assert ray.begins == 0


def test_of_an_actor_that_is_gone_ray_says_where_it_ended_and_which_machines_are_left(ray):
    class Unavailable(Exception):
        pass

    ray.exceptions = SimpleNamespace(ActorUnavailableError=Unavailable)
    ray.nodes = lambda: [{"NodeID": "here", "Alive": True}, {"NodeID": "there", "Alive": False}]
    ray._private.state = SimpleNamespace(actors=lambda number: {"Address": {"NodeID": f"of {number}"}})
    handle = SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda: "7"))
    killed = ValueError("killed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        use = cluster.Cluster()
        use.head = f"127.0.0.1:{server.getsockname()[1]}"
        assert use.death(handle, killed) == Death(killed, "of 7", {"here"})
        assert use.death(handle, Unavailable())[1:] == ("", {"here"})
    assert use.death(handle, killed)[1:] == ("", ())  # without its head Ray says nothing
    use.close()


@pytest.mark.parametrize(
    ("asked", "is_possible"),
    [
        ({"num_cpus": 4}, True),
        ({"num_cpus": 1, "accelerator_type": "A100"}, True),
        ({"num_cpus": 5}, False),
        ({"num_cpus": 1, "resources": {"elsewhere": 1}}, False),
        ({"num_cpus": 0, "num_gpus": None, "memory": 99, "accelerator_type": "H100"}, False),
    ],
)
def test_what_no_machine_has_is_told_from_what_is_taken(ray, monkeypatch, asked, is_possible):
    has = {"CPU": 4.0, "memory": 100.0, "accelerator_type:A100": 1.0}
    ray.nodes = lambda: [{"Alive": True, "Resources": has}, {"Alive": False, "Resources": {**has, "CPU": 99.0}}]
    ray.cluster_resources = ray.available_resources = lambda: has
    use = cluster.Cluster()
    monkeypatch.setattr(use, "_num_waiting", lambda needs: 2)
    there_is = "the cluster has 1 machines with CPU 4, of which are free: CPU 4"
    assert use.room(asked) == Room(2, is_possible, there_is)
    assert use.room({**asked, "scheduling_strategy": object()}) == Room(None, is_possible, there_is)
    ray.shutdown()
    assert use.room(asked) == Room(None, True, "what the cluster has is not known")
    use.close()


def test_a_question_that_ray_never_answers_is_an_error(ray, monkeypatch):
    monkeypatch.setattr(cluster, "_ANSWER_S", 0.2)
    released = threading.Event()
    node = {"NodeID": "node", "Alive": True, "Resources": {"object_store_memory": 7.0}}
    ray.nodes = lambda: released.wait() and [node]
    with socket.create_server(("127.0.0.1", 0)) as server:
        use = cluster.Cluster()
        use.head = f"127.0.0.1:{server.getsockname()[1]}"
        for ask in (lambda: use.store_bytes("node"), lambda: use.death(None, ValueError())):
            with pytest.raises(ClusterError, match=f"the head .* at {use.head} was asked .* save state_dict"):
                ask()
        assert use.room({}) == Room(None, True, "what the cluster has is not known")
        released.set()
        monkeypatch.setattr(cluster, "_ANSWER_S", 60)
        assert use.store_bytes("node") == 7
    use.close()


def test_what_a_question_to_ray_raises_is_raised(ray):
    def gone() -> Any:
        raise ConnectionError("no longer there")

    ray.nodes = gone
    use = cluster.Cluster()
    with pytest.raises(ConnectionError, match="no longer there"):
        use.store_bytes("node")
    use.close()
