"""How a connection to Ray is found or made. Nothing is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fastload import ClusterError
from fastload.workers.ray import cluster


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
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return fake


@pytest.mark.parametrize("is_on", [False, True])
def test_a_connection_of_the_users_is_used_or_one_is_made_and_lasts(ray, is_on):
    ray.is_on = is_on
    cluster.Cluster()
    cluster.Cluster()
    assert (ray.begins, ray.ends) == (0 if is_on else 1, 0)


def test_a_connection_that_the_user_has_ended_is_an_error_and_not_made_anew(ray, monkeypatch):
    monkeypatch.setattr(cluster, "_HEAD_PROBE_S", 0)
    use = cluster.Cluster()
    use.check_open()
    ray.shutdown()
    for check in (use.check_open, use.check_head):
        with pytest.raises(ClusterError, match=r"ray.shutdown\(\) was called while a loader had workers there"):
            check()
    assert (ray.begins, ray.ends) == (1, 1)


def test_a_head_that_is_gone_for_too_long_is_an_error(ray, monkeypatch):
    monkeypatch.setattr(cluster, "_HEAD_PROBE_S", 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        use = cluster.Cluster()
        use.head = f"127.0.0.1:{server.getsockname()[1]}"
        use.check_head()
    use.check_head()  # it may come again
    assert not use.head_is_gone
    monkeypatch.setattr(cluster, "HEAD_PATIENCE_S", 0)
    with pytest.raises(ClusterError, match=f"the head of the Ray cluster at {use.head} has not answered .* save state"):
        use.check_head()
    assert use.head_is_gone


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port at which nobody listens, and which no other process is given meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_a_cluster_that_is_named_is_connected_to_and_one_of_this_machine_not_waited_for(ray, monkeypatch, free_port):
    ray.found = f"127.0.0.1:{free_port}"
    cluster.Cluster()
    assert ray.options["address"] == "local"
    ray.shutdown()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ray.found = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", "auto")
        cluster.Cluster()
    assert "address" not in ray.options


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (None, "Ray cannot be started on this machine: nobody there"),
        ("ray://127.0.0.1:10001", "client of Ray"),
        ("127.0.0.1:{port}", "RAY_ADDRESS=127.0.0.1:{port}: nothing answers .* unset it"),
    ],
)
def test_a_cluster_that_cannot_be_started_or_reached_is_an_error(ray, monkeypatch, free_port, address, words):
    ray.error = ConnectionError("nobody there")
    if address is not None:
        ray.found = address.format(port=free_port)
        monkeypatch.setenv("RAY_ADDRESS", ray.found)
    with pytest.raises(ClusterError, match=words.format(port=free_port)):
        cluster.Cluster()
    assert ray.begins == 0
