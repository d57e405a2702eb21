"""What is lost on the way, and what cannot be: the batches stay the same, or an error says why not. Nothing hangs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from kit.datasets import Made
from ray_clusters import STORE_BYTES, Images, digest, ray

from fastload import DataLoader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(500),
]


def disturbed(loader: DataLoader[Any], at: int, disturb: Callable[[Any], None]) -> tuple[list[Any], list[str]]:
    """Return the batches of an epoch in which something happens after batch ``at``; and the warnings."""
    batches = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        iterator = iter(loader)
        for batch in iterator:
            batches.append(batch)
            if len(batches) == at + 1:
                disturb(iterator.source.pool)  # type: ignore[attr-defined]
    return batches, [str(one.message) for one in caught if issubclass(one.category, UserWarning)]


def wait_until(found: Callable[[], Any]) -> Any:
    """Return what a function finds, once it finds something: another thread, or Ray, is at it."""
    deadline = time.monotonic() + 200
    while not (what := found()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return what


def one_that_runs(pool: Any) -> Any:
    """Return a worker that has tasks, waited for."""
    return wait_until(lambda: next((worker for worker in pool.workers if worker.is_up and worker.tasks), None))


def all_processors_are_free() -> bool:
    has, free = ray.cluster_resources(), ray.available_resources()
    return bool(free.get("CPU") == has["CPU"])


def pid_of(worker: Any) -> int:
    return int(worker.name.split("pid ")[1].split(",")[0])


@pytest.mark.parametrize("what", ["actor", "machine"])
def test_an_actor_that_is_killed_and_a_machine_that_goes_lose_nothing(cluster, what):
    options: dict[str, Any] = {}
    node: Any = None
    if what == "machine":
        node = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, resources={"there": 1})
        options = {"scheduling_strategy": "SPREAD", "num_cpus": 0.5}

    def end(pool: Any) -> None:
        worker = one_that_runs(pool)
        if node is not None:
            cluster.remove_node(node, allow_graceful=False)
        else:
            os.kill(pid_of(worker), signal.SIGKILL)

    dataset = Images(96, wait_s=0.02)
    given = {"shuffle": True, "seed": 5, "num_workers": 2}
    loader = DataLoader(dataset, 4, worker_method="ray", ray_options=options, **given)
    batches, words = disturbed(loader, 4, end)
    assert digest(batches) == digest(list(DataLoader(dataset, 4, **given)))
    if what == "actor":
        remote = loader.statistics().remote
        assert min(remote["lost"], remote["made_again"]) >= 1
        assert [one for one in words if "was lost" in one and "again elsewhere" in one]
    loader.close()


LOCK = threading.Lock()


class OnlyHere(Images):
    def __reduce__(self) -> Any:
        return __import__, ("a_module_that_is_not_there",)


@pytest.mark.parametrize(
    ("dataset", "error", "words"),
    [
        (Made(8, LOCK.acquire), TypeError, "may be on other machines"),
        (OnlyHere(8), ModuleNotFoundError, "a_module_that_is_not_there[\\s\\S]*must be importable on each machine"),
    ],
)
def test_a_dataset_that_cannot_be_sent_or_read_there_is_an_error_with_what_to_do(cluster, dataset, error, words):
    loader = DataLoader(dataset, 4, num_workers=1, worker_method="ray")
    with pytest.raises(error) as raised:
        list(loader)
    assert re.search(words, "".join([str(raised.value), *getattr(raised.value, "__notes__", ())]))
    loader.close()


def test_a_loader_that_is_closed_while_actors_start_or_wait_for_room_leaves_none(cluster):
    wait_until(all_processors_are_free)
    loader = DataLoader(Images(), 4, num_workers=5, worker_method="ray")
    iterator = iter(loader)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("fastload_ray") == 1
    del iterator
    loader.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fastload_ray")]
    wait_until(all_processors_are_free)


_SCRIPT = """
import os, sys, time, ray, torch
import fastload
mode = sys.argv[1]
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20,
                  "include_dashboard": False})
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.rand(3) + index

loader = fastload.DataLoader(Samples(), 4, shuffle=True, seed=2, num_workers=1, worker_method="ray")
iterator = iter(loader)
for _ in range(3):
    next(iterator)
worker = iterator.source.pool.workers[0]
print("pid", worker.name.split("pid ")[1].split(",")[0], flush=True)
if mode == "killed":
    time.sleep(600)
for one in cluster.head_node.all_processes["gcs_server"]:
    os.kill(one.process.pid, 9)
begun = time.monotonic()
made = 3
try:
    while True:
        next(iterator)
        made += 1
        if time.monotonic() - begun > 200:
            sys.exit("no error")
except fastload.ClusterError as error:
    print("after", round(time.monotonic() - begun), error, flush=True)
state = loader.state_dict()
local = fastload.DataLoader(Samples(), 4, shuffle=True, seed=2, num_workers=1)
local.load_state_dict(state)
batch = next(iter(local))
whole = fastload.DataLoader(Samples(), 4, shuffle=True, seed=2, num_workers=0)
whole.load_state_dict(state)
print("resumed", bool((batch == next(iter(whole))).all()), flush=True)
time.sleep(float(sys.argv[2]))
print("alive", flush=True)
os._exit(0)
"""


def script(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.thorough
def test_without_its_head_the_loader_says_so_and_another_resumes():
    with script("head", "0") as process:
        output = process.communicate(timeout=400)[0]
    assert "after" in output, output
    seconds = int(output.split("after ")[1].split()[0])
    assert seconds <= 120  # 60 s, on a machine that does nothing else
    assert "the head of the Ray cluster at" in output
    assert "resumed True" in output


def test_actors_end_with_the_script_that_is_killed():
    with script("killed", "0") as process:
        assert process.stdout is not None
        pid = next(int(line.split()[1]) for line in process.stdout if line.startswith("pid"))
        assert os.path.exists(f"/proc/{pid}")
        process.kill()
        process.wait()
    deadline = time.monotonic() + 200
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.1)  # the system ends it
    assert not os.path.exists(f"/proc/{pid}")
