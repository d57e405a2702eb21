"""Two epochs in which nodes and actors are killed at random moments; the hash must be that of local processes.

The epochs begin with local processes, go on with Ray after a random step, and end with local processes again.
"""

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from benchmarks.ray.clusters import STORE_BYTES, Digest, Photos, cluster_of
from fastload import DataLoader


class Killer:
    """Kills an actor or a node in turn, 15 to 30 s apart; another node comes in its place."""

    def __init__(self, cluster: Any, pool: Any, chance: random.Random) -> None:
        self._cluster, self._pool, self._chance = cluster, pool, chance
        self._nodes = chance.random() < 0.5
        self._next = time.monotonic() + chance.uniform(15, 30)
        self.kills: list[str] = []

    def maybe(self) -> None:
        """Kill, if it is time. In the main thread, where a cluster is changed."""
        if time.monotonic() < self._next:
            return
        what = self._kill_node() if self._nodes else self._kill_actor()
        if what:
            self.kills.append(what)
            print(f"  {time.strftime('%H:%M:%S')} killed {what}", flush=True)
        self._nodes = not self._nodes
        self._next = time.monotonic() + self._chance.uniform(15, 30)

    def _kill_actor(self) -> str:
        up = [worker for worker in self._pool.workers if worker.is_up]
        if not up:
            return ""
        worker = self._chance.choice(up)
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(worker.host.split("pid ")[1].split(",")[0]), signal.SIGKILL)
        return f"actor {worker.worker_id}"

    def _kill_node(self) -> str:
        node = self._chance.choice(list(self._cluster.worker_nodes))
        self._cluster.remove_node(node, allow_graceful=False)
        self._cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        return "a node"


def soak(
    folder: Path, *, length: int, wait_ms: float, num_nodes: int, seed: int, share_memory: bool
) -> tuple[bool, str]:
    """Run it; return whether the batches are equal, and what happened in words."""
    chance = random.Random(seed)
    given = {"batch_size": 50, "shuffle": True, "seed": seed, "prefetch_factor": 2}
    plain = DataLoader(Photos(folder, length, size=96), num_workers=2, persistent_workers=True, **given)
    expected = Digest()
    for batch in (batch for _ in range(2) for batch in plain):
        expected.add(batch)
    plain.close()
    steps = len(plain)
    first, last = chance.randrange(1, steps // 3), steps + chance.randrange(2 * steps // 3, steps)
    print(f"local: {expected}, {expected.num_batches} batches; Ray from batch {first} to {last}", flush=True)
    found = Digest()
    dataset = Photos(folder, length, wait_ms / 1000, size=96)
    begun = time.monotonic()
    with cluster_of(num_nodes) as cluster:
        local = DataLoader(Photos(folder, length, size=96), num_workers=2, **given)
        state = _run(local, found, first)
        options = {"share_memory": share_memory, "placement_timeout": 300}
        loader = DataLoader(
            dataset, num_workers=num_nodes, worker_method="ray", ray_options=options, persistent_workers=True, **given
        )
        loader.load_state_dict(state)
        iterator = iter(loader)
        killer = Killer(cluster, iterator.source.pool, chance)
        while found.num_batches < last:
            for batch in iterator:
                found.add(batch)
                killer.maybe()
                if found.num_batches == last:
                    break
            else:
                iterator = iter(loader)
        state, remote = loader.state_dict(), loader.statistics().remote
        loader.close()
    local = DataLoader(Photos(folder, length, size=96), num_workers=2, **given)
    local.load_state_dict(state)
    _run(local, found, 2 * steps)
    equal = str(found) == str(expected) and found.num_batches == expected.num_batches
    nodes = killer.kills.count("a node")
    told = (
        f"{len(killer.kills)} kills ({nodes} of nodes, {len(killer.kills) - nodes} of actors) in "
        f"{time.monotonic() - begun:.0f} s; {found.num_batches} batches, Ray's from {first + 1} to {last}; "
        f"{remote['lost']} actors lost, {remote['made_again']} of {remote['tasks']:,} tasks made again, at most "
        f"{remote['most_bytes_under_way']:,} bytes under way; hash {found}, of local processes {expected}"
    )
    return equal, told


def _run(loader: Any, found: Digest, stop: int) -> Any:
    """Add batches until there are ``stop``; return the loader's state."""
    for batch in loader:
        found.add(batch)
        if found.num_batches == stop:
            break
    state = loader.state_dict()
    loader.close()
    return state
