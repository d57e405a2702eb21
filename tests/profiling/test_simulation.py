"""The simulation of a loader: known answers, bounds, what cannot make a run slower, and where all time goes."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.profiling.overheads import Overheads, Part
from fastload.profiling.simulation import LoaderModel, Order, SimulatedRun, simulate
from fastload.profiling.trials import Trials
from fastload.profiling.workload import BatchWork, Workload

MS = 1e6
FREE = Overheads(
    waking_ns=0.0,
    turning_ns=0.0,
    sending_ns=0.0,
    sending_meanwhile_ns=0.0,
    receiving_ns=0.0,
    inline_ns=0.0,
    forking=Part(),
    booting=Part(),
    ending_ns=0.0,
)
COSTLY = Overheads(
    waking_ns=0.1 * MS,
    turning_ns=0.2 * MS,
    sending_ns=0.3 * MS,
    sending_meanwhile_ns=0.3 * MS,
    receiving_ns=0.4 * MS,
    inline_ns=0.05 * MS,
    forking=Part(0.0, 10 * MS),
    booting=Part(0.0, 20 * MS),
    ending_ns=5 * MS,
)


def batch(
    *samples: tuple[float, float], loop: tuple[float, float] = (0.0, 0.0), collate: float = 0.0, pin: float = 0.0
) -> BatchWork:
    """Return a batch; its samples ask for (ms on a core, ms blocked)."""
    return BatchWork(
        samples=tuple(Part(cpu * MS, blocked * MS) for cpu, blocked in samples),
        collate=Part(collate * MS, 0.0),
        stages={},
        draw_ns=0.0,
        pin_ns=pin * MS,
        loop=Part(loop[0] * MS, loop[1] * MS),
        device_ns=None,
    )


def workload(*epochs: list[BatchWork], overheads: Overheads = FREE) -> Workload:
    number = sum(map(len, epochs))
    return Workload(
        loader={},
        epochs=tuple(tuple(one) for one in epochs),
        cut=(False,) * len(epochs),
        steady=(True,) * number,
        step_ns=(0.0,) * number,
        overheads=overheads,
        trials=Trials(),
        cores=2,
        queued_ns=0.0,
    )


def late_step_ms(run_: SimulatedRun) -> float:
    """Return the mean time of a step in the second half, where the beginning is forgotten."""
    half = run_.step_ns[len(run_.step_ns) // 2 :]
    return sum(half) / len(half) / MS


times = st.floats(0.0, 20.0)
batches = st.builds(
    lambda samples, loop, collate: batch(*samples, loop=loop, collate=collate),
    st.lists(st.tuples(times, times), min_size=1, max_size=12),
    st.tuples(times, times),
    st.floats(0.0, 3.0),
)
runs = st.lists(batches, min_size=1, max_size=12)
orders: st.SearchStrategy[Order] = st.sampled_from(["batch", "any", "sample"])
machineries = st.builds(
    LoaderModel,
    workers=st.integers(0, 5),
    prefetch=st.integers(1, 4),
    order=orders,
    whole=st.booleans(),
    pin=st.booleans(),
    cores=st.integers(1, 6).map(float),
    loop_threads=st.integers(1, 3),
)


def whole(part: Part) -> float:
    return part.cpu + part.blocked


@pytest.mark.parametrize(
    ("workers", "loop", "expected"),
    [(0, 5.0, 45.0), (1, 5.0, 40.0), (2, 5.0, 20.0), (4, 5.0, 10.0), (4, 30.0, 30.0), (8, 7.0, 7.0)],
)
def test_equal_batches_take_what_arithmetic_says(workers, loop, expected):
    """A batch is blocked for 40 ms in all, and the loop waits for a device."""
    run = workload([batch(*[(0.0, 5.0)] * 8, loop=(0.0, loop))] * 64)
    assert late_step_ms(simulate(run, LoaderModel(workers=workers))) == pytest.approx(expected)


@pytest.mark.parametrize(("workers", "cores", "expected"), [(1, 2, 40.0), (2, 2, 20.0), (8, 2, 20.0), (8, 4, 10.0)])
def test_workers_that_compute_are_no_more_than_the_cores(workers, cores, expected):
    run = workload([batch(*[(5.0, 0.0)] * 8)] * 64)
    assert late_step_ms(simulate(run, LoaderModel(workers=workers, cores=cores))) == pytest.approx(expected)


def test_a_computing_loop_and_a_computing_worker_share_one_core():
    run = workload([batch((10.0, 0.0), loop=(10.0, 0.0))] * 40)
    assert late_step_ms(simulate(run, LoaderModel(workers=1, cores=1))) == pytest.approx(20.0, rel=0.05)
    assert late_step_ms(simulate(run, LoaderModel(workers=1, cores=2))) == pytest.approx(10.0)


def test_a_loop_that_computes_with_several_threads_leaves_fewer_cores():
    run = workload([batch((0.0, 1.0), loop=(10.0, 0.0))] * 40)
    alone = LoaderModel(workers=1, cores=2)
    assert late_step_ms(simulate(run, dataclasses.replace(alone, loop_threads=4))) == pytest.approx(20.0)
    assert late_step_ms(simulate(run, alone)) == pytest.approx(10.0)


def test_a_slow_batch_holds_the_others_up_only_where_order_is_bound_to_workers():
    """Each eighth batch takes 80 ms, all others 2: one worker of 4 has 82 ms to do for 8 batches, the loop 48."""
    run = workload([batch((0.0, 80.0 if number % 8 == 3 else 2.0), loop=(0.0, 6.0)) for number in range(160)])
    bound = simulate(run, LoaderModel(workers=4))
    assert late_step_ms(bound) == pytest.approx(82 / 8, rel=0.02)
    assert sum(bound.overtaken_ns) > 0.9 * sum(bound.wait_ns[8:])
    assert late_step_ms(simulate(run, LoaderModel(workers=4, order="any"))) == pytest.approx(6.0, rel=0.02)


def test_samples_that_go_to_idle_workers_even_out_a_slow_one():
    """One sample of 8 takes 100 ms in each fourth batch, and torch has one worker of 4 make all of these."""
    slow = batch((0.0, 100.0), *[(0.0, 2.0)] * 7)
    quick = batch(*[(0.0, 2.0)] * 8)
    run = workload([slow if number % 4 == 0 else quick for number in range(80)])
    bound = late_step_ms(simulate(run, LoaderModel(workers=4)))
    free = late_step_ms(simulate(run, LoaderModel(workers=4, order="sample")))
    assert bound == pytest.approx(114 / 4)
    assert free < 0.5 * bound


def test_pinning_is_a_stage_of_its_own_that_goes_on_beside_the_workers():
    run = workload([batch((0.0, 20.0), loop=(0.0, 1.0), pin=15.0)] * 40)
    assert late_step_ms(simulate(run, LoaderModel(workers=4, pin=True, cores=4))) == pytest.approx(15.0)
    assert late_step_ms(simulate(run, LoaderModel(workers=4, pin=False, cores=4))) == pytest.approx(5.0)


def test_workers_that_stay_are_started_once():
    run = workload(*[[batch((0.0, 1.0))] * 4] * 3, overheads=COSTLY)
    anew = simulate(run, LoaderModel(workers=2, cores=4))
    kept = simulate(run, LoaderModel(workers=2, cores=4, persistent=True))
    saved = 2 * (2 * 10 * MS + 20 * MS) + 2 * 2 * 5 * MS  # for nothing waits for the last end
    assert anew.elapsed_ns - kept.elapsed_ns == pytest.approx(saved, rel=0.05)


def test_workers_that_start_at_once_share_the_cores():
    """16 workers compute 30 ms each before their first task, and the main thread 10 ms for each of them."""
    costly = dataclasses.replace(FREE, forking=Part(10 * MS), booting=Part(30 * MS))
    run = workload([batch((0.0, 1.0))] * 16, overheads=costly)
    assert simulate(run, LoaderModel(workers=16, cores=100)).elapsed_ns == pytest.approx(191 * MS, rel=0.01)
    crowded = simulate(run, LoaderModel(workers=16, cores=2)).elapsed_ns
    assert 16 * 40 / 2 * MS <= crowded <= 360 * MS
    queued = dataclasses.replace(FREE, forking=Part(10 * MS, 5 * MS, 20 * MS))
    run = workload([batch((0.0, 1.0))], overheads=queued)
    assert simulate(run, LoaderModel(workers=1, cores=2)).elapsed_ns == pytest.approx(16 * MS)
    assert simulate(run, LoaderModel(workers=1, cores=2, foreign=0.5)).elapsed_ns == pytest.approx(26 * MS)


def test_each_new_worker_has_a_first_task_that_costs_more():
    run = dataclasses.replace(workload(*[[batch((0.0, 1.0))] * 4] * 3), first_task=Part(cpu=10 * MS, blocked=30 * MS))
    anew = simulate(run, LoaderModel(workers=2, cores=4))
    kept = simulate(run, LoaderModel(workers=2, cores=4, persistent=True))
    inline = simulate(run, LoaderModel(workers=0))
    assert anew.elapsed_ns == pytest.approx(3 * 42 * MS)
    assert kept.elapsed_ns == pytest.approx(46 * MS)
    assert inline.elapsed_ns == pytest.approx(52 * MS)


@pytest.mark.parametrize("lag", [0, 2])
def test_a_device_works_while_the_loop_prepares_the_next_step(lag):
    """The device takes 40 ms a step, the loop 10 ms to tell it what to do."""
    one = dataclasses.replace(batch((0.0, 1.0), loop=(10.0, 40.0)), device_ns=40 * MS)
    slow = dataclasses.replace(batch((0.0, 100.0), loop=(10.0, 40.0)), device_ns=40 * MS)
    assert late_step_ms(
        simulate(workload([one] * 40), LoaderModel(workers=2, cores=4, device_lag=lag))
    ) == pytest.approx(40.0)
    inline = simulate(workload([one] * 40), LoaderModel(workers=0, cores=4, device_lag=lag))
    assert late_step_ms(inline) == pytest.approx(41.0 if lag == 0 else 40.0)
    starved = simulate(workload([slow] * 40), LoaderModel(workers=2, cores=4, device_lag=lag))
    assert late_step_ms(starved) == pytest.approx(50.0)


def test_the_waiting_for_cores_that_others_caused_stays():
    samples = batch((1.0, 0.0))
    seen = dataclasses.replace(samples, samples=(Part(1.0 * MS, 0.0, 9.0 * MS),))
    run = workload([seen] * 40)
    assert late_step_ms(simulate(run, LoaderModel(workers=1, cores=2))) == pytest.approx(1.0)
    assert late_step_ms(simulate(run, LoaderModel(workers=1, cores=2, foreign=1.0))) == pytest.approx(10.0)


def times_by_arithmetic(run: list[BatchWork], workers: int, prefetch: int) -> list[tuple[float, float]]:
    """Return when each wait begins and ends, by the recurrence of torch's order with cores for everybody."""
    made: list[float] = []
    given: list[float] = []
    found = []
    now = 0.0
    for number, one in enumerate(run):
        ahead = workers * prefetch
        handed = 0.0 if number < ahead else given[number - ahead]
        begun = max(handed, made[number - workers] if number >= workers else 0.0)
        made.append(begun + sum(map(whole, one.samples)) + whole(one.collate))
        found.append((now, max(now, made[-1])))
        given.append(found[-1][1])
        now = found[-1][1] + whole(one.loop)
    return found


@given(run=runs, workers=st.integers(1, 5), prefetch=st.integers(1, 4))
def test_torchs_order_is_its_recurrence(run, workers, prefetch):
    run_ = simulate(workload(run), LoaderModel(workers=workers, prefetch=prefetch, cores=100))
    expected = times_by_arithmetic(run, workers, prefetch)
    assert run_.wait_ns == pytest.approx([ended - begun for begun, ended in expected], rel=1e-6, abs=10.0)


@given(run=runs, model=machineries)
def test_no_run_is_faster_than_its_bounds(run, model):
    run_ = simulate(workload(run, overheads=COSTLY), model)
    cpu = sum(part.cpu for one in run for part in one.samples)
    cpu += sum(one.collate.cpu + one.loop.cpu for one in run)
    made = sum(whole(part) for one in run for part in one.samples) + sum(whole(one.collate) for one in run)
    loops = sum(whole(one.loop) for one in run)
    assert run_.elapsed_ns >= loops * (1 - 1e-9)
    assert run_.elapsed_ns >= cpu / model.cores * (1 - 1e-9)
    if model.workers and model.order == "any":
        return  # what is delivered early leaves its work to the end, where nobody waits for it
    assert run_.elapsed_ns >= made / max(1, model.workers) * (1 - 1e-9)
    if model.workers == 0:
        assert run_.elapsed_ns >= (loops + made) * (1 - 1e-9)


@given(run=runs, model=machineries)
def test_all_time_is_accounted_for(run, model):
    run_ = simulate(workload(run, run, overheads=FREE), model)
    assert len(run_.wait_ns) == len(run_.step_ns) == len(run_.overtaken_ns) == 2 * len(run)
    assert sum(run_.step_ns) == pytest.approx(run_.elapsed_ns, rel=1e-9, abs=1.0)
    costly = simulate(workload(run, run, overheads=COSTLY), model)
    assert costly == simulate(workload(run, run, overheads=COSTLY), model)
    assert sum(costly.step_ns) == pytest.approx(costly.elapsed_ns, rel=1e-9, abs=1.0)
    for wait, overtaken in zip(run_.wait_ns, run_.overtaken_ns, strict=True):
        assert -1.0 <= overtaken <= wait + 1.0


@given(run=runs, model=machineries)
def test_workers_do_all_the_work_once(run, model):
    """In order: what was delivered was made, and nothing was made twice."""
    model = dataclasses.replace(model, workers=max(1, model.workers), order="batch")
    # loops do not compute, and the others are done when the last one ends
    made = [dataclasses.replace(one, loop=Part(0.0, 1e12 if one is run[-1] else one.loop.blocked)) for one in run]
    run_ = simulate(workload(made), model)
    cpu = sum(part.cpu for one in made for part in one.samples) + sum(one.collate.cpu for one in made)
    blocked = sum(part.blocked for one in made for part in one.samples)
    assert run_.worker_blocked_ns == pytest.approx(blocked, abs=1.0)
    assert run_.worker_busy_ns == pytest.approx(cpu + blocked + run_.queued_ns, abs=1.0)


def unhindered(model: LoaderModel, **changes: object) -> LoaderModel:
    return dataclasses.replace(model, cores=100.0, pin=False, **changes)


@given(
    run=runs,
    model=machineries,
    more=st.sampled_from(["workers that share a queue", "workers", "batches in flight", "less work"]),
    place=st.integers(0, 11),
)
def test_more_of_what_helps_makes_nothing_slower_where_cores_are_plenty(run, model, more, place):
    few = unhindered(model, order="batch", workers=max(1, model.workers))
    after, lighter = few, [*run]
    if more == "less work":
        lighter[place % len(run)] = dataclasses.replace(run[place % len(run)], samples=(Part(0.0, 0.0),))
    elif more == "batches in flight":
        after = dataclasses.replace(few, prefetch=few.prefetch + 1)
    elif more == "workers":  # which the order "batch" may turn against batches that differ
        run = lighter = [run[place % len(run)]] * len(run)
        few = dataclasses.replace(few, order="any" if place % 2 else "batch")
        after = dataclasses.replace(few, workers=few.workers + 1)
    else:
        few = dataclasses.replace(few, order="sample", whole=True)
        after = dataclasses.replace(few, workers=few.workers + 1)
    before = simulate(workload(run), few).elapsed_ns
    assert simulate(workload(lighter), after).elapsed_ns <= before * (1 + 1e-9) + 1.0
