"""Machines that come and go while actors start; the hash must be that of a loader without workers.

Every so many seconds a node is killed, or asked to leave, and another comes in its place, or an actor is killed. Actors
need several seconds to start, so most of the time some are starting.
"""

import contextlib
import itertools
import os
import random
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks.ray.clusters import STORE_BYTES, Digest, Photos, cluster_of
from fastload import DataLoader

NUM_NODES = 4
EVERY_S = 20


class Training(threading.Thread):
    """Takes batches until it is told to end. The main thread changes the cluster: Ray allows no other to."""

    def __init__(self, loader: Any) -> None:
        super().__init__(name="training", daemon=True)
        self.found = Digest()
        self.error: Exception | None = None
        self._loader, self._ended = loader, threading.Event()

    def run(self) -> None:
        try:
            for batch in itertools.chain.from_iterable(itertools.repeat(self._loader)):
                self.found.add(batch)
                if self._ended.is_set():
                    return
        except Exception as error:
            self.error = error

    def end(self) -> None:
        self._ended.set()
        self.join()


def _start_slowly(worker_id: int) -> None:
    time.sleep(3)


def _kill_actor(loader: Any, chance: random.Random) -> str:
    up = [worker for worker in loader._iterator.source.pool.workers if worker.is_up]
    if not up:
        return "no actor to kill"
    worker = chance.choice(up)
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(worker.name.split("pid ")[1].split(",")[0]), signal.SIGKILL)
    return f"killed actor {worker.worker_id}"


def churn(folder: Path, seconds: float) -> tuple[bool, str]:
    """Run it; return whether the batches are equal and no error came, and what happened in words."""
    given: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 1}
    chance, removed = random.Random(1), [0, 0, 0]
    with cluster_of(NUM_NODES) as cluster, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # losses, and workers that are not there yet, are what this is about
        loader = DataLoader(
            Photos(folder, wait_s=0.07),
            num_workers=NUM_NODES,
            worker_method="ray",
            ray_options={"placement_timeout": 300},
            worker_init_fn=_start_slowly,
            persistent_workers=True,
            **given,
        )
        training = Training(loader)
        begun = due = time.monotonic()
        training.start()
        while training.error is None and time.monotonic() - begun < seconds:
            due += EVERY_S
            training.join(max(0.0, due - time.monotonic()))  # returns before where it has failed
            turn = sum(removed) % 3
            removed[turn] += 1
            if turn == 2:
                what = _kill_actor(loader, chance)
            else:
                what = f"{'asked' if turn else 'killed'} a node"
                cluster.remove_node(chance.choice(list(cluster.worker_nodes)), allow_graceful=turn == 1)
                cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
            batches = training.found.num_batches
            print(f"  {time.monotonic() - begun:.0f} s: {what}, {batches} batches", flush=True)
        passed = time.monotonic() - begun
        training.end()
        remote = loader.statistics().remote
        loader.close()
    found, expected = training.found, Digest()
    plain = DataLoader(Photos(folder), num_workers=2, **given)
    for batch in itertools.chain.from_iterable(itertools.repeat(plain)):
        if found.num_batches == expected.num_batches:
            break
        expected.add(batch)
    plain.close()
    told = (
        f"{removed[0]} nodes killed, {removed[1]} asked to leave, {removed[2]} actors killed in {passed:.0f} s, "
        f"one every {EVERY_S} s; "
        f"{found.num_batches} batches; {remote['lost']} actors lost at work, "
        f"{remote['made_again']} of {remote['tasks']:,} tasks made again; hash {found}, of local processes {expected}"
    )
    error = "no error" if training.error is None else f"{type(training.error).__name__}: {training.error}"
    return str(found) == str(expected) and training.error is None, f"{told}; {error}"
