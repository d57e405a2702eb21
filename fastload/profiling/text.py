"""Words and number formats that all reports share: names of states and causes, times, shares, untrusted text. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Literal

from .analysis import Analysis, Cause, Interval, RankAnalysis, Simulation

Group = Literal["storage", "cpu", "cores", "order", "moving", "main"]
"""Groups of states; each has a colour."""

GROUPS: dict[Group, str] = {
    "storage": "waiting for storage",
    "cpu": "computing in workers",
    "cores": "waiting for a core",
    "order": "waiting for an earlier batch",
    "moving": "moving the batch",
    "main": "main thread",
}

_STATES: dict[str, tuple[str, Group, str]] = {
    "startup": ("startup", "main", "making iterators, starting workers, waiting for the first batch"),
    "sampler": ("sampler", "main", "drawing the indices of the batch"),
    "queued": ("queued", "main", "no worker had started it"),
    "read": ("read", "storage", "blocked in the dataset, for example on a disk"),
    "sample": ("sample", "cpu", "on the CPU in the dataset, outside of any known stage"),
    "collate": ("collate", "cpu", "collating samples into a batch"),
    "run-queue": ("run queue", "cores", "ready to run, but no core was free"),
    "gil": ("GIL", "cores", "in a worker thread that waited for the interpreter lock"),
    "transport": ("transport", "moving", "on the way from the worker to the main process"),
    "reorder": ("reorder", "order", "complete, but an earlier batch was not"),
    "pin": ("pin", "moving", "copying to page-locked memory"),
    "copy": ("copy", "moving", "copying to the device"),
    "main-thread": ("main thread", "main", "complete, but the main thread had not taken it yet"),
    "other": ("other", "main", "unknown"),
}

_CAUSES: dict[Cause, str] = {
    **{cause: f"{cause}-bound" for cause in Cause.__args__},  # type: ignore[attr-defined]
    "cpu": "CPU-bound",
    "gil": "GIL-bound",
    "oversubscribed": "oversubscribed",
    "launch-starved": "launch-starved",
}


def state_name(state: str) -> str:
    """Return the name of a state; a stage has its own."""
    if state.startswith("stage:"):
        return printable(state.removeprefix("stage:")) or "stage"
    return _STATES[state][0] if state in _STATES else printable(state)


def state_group(state: str) -> Group:
    """Return the group of a state."""
    if state.partition(":")[0] == "stage":
        return "cpu"
    return _STATES[state][1] if state in _STATES else "main"


def state_meaning(state: str) -> str:
    """Return what happens to a batch in this state."""
    if state.partition(":")[0] == "stage":
        return "on the CPU in this stage of the dataset"
    return _STATES[state][2] if state in _STATES else "unknown"


def cause_name(cause: Cause | None) -> str:
    """Return a verdict in one word."""
    return "no verdict" if cause is None else _CAUSES[cause]


def printable(text: str) -> str:
    """Return text from outside with control characters, direction marks and lone surrogates escaped.

    The name of a file may contain characters that move the terminal's cursor or reverse the text after it.
    """
    return "".join(
        character
        if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def shortened(text: str, columns: int) -> str:
    """Return text in at most ``columns`` columns (at least 1); its middle is left out."""
    if width(text) <= columns:
        return text
    kept = columns - 1
    front, back = "", ""
    for character in text:
        if width(front + character) > kept // 3:
            break
        front += character
    for character in reversed(text):
        if width(character + back) > kept - width(front):
            break
        back = character + back
    return f"{front}…{back}"


def width(text: str) -> int:
    """Return the columns that text takes in a terminal."""
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def ms(value: float | None) -> str:
    """Return a time in milliseconds, without its unit; ``-`` if it is None."""
    if value is None:
        return "-"
    size = abs(value)
    if size == 0 or size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 0.995 else f"{value:.2f}" if size >= 0.00995 else f"{value:.3f}"


def percent(share: float | None) -> str:
    """Return a share in percent; ``-`` if it is None."""
    return "-" if share is None else f"{percent_number(share)} %"


def percent_number(share: float) -> str:
    """Return a share in percent, without the sign."""
    value = share * 100
    return f"{value:.0f}" if abs(value) >= 9.95 or value == 0 else f"{value:.1f}"


def share_interval(share: Interval) -> str:
    """Return the limits of a share."""
    return f"{percent_number(share.low)}-{percent_number(share.high)} %"


def ms_interval(time: Interval) -> str:
    """Return the limits of a time in ms, without the unit."""
    return f"{ms(time.low)}-{ms(time.high)}"


def times(ratio: float) -> str:
    """Return a ratio."""
    return f"{ratio:.2f}x"


def plural(number: int, noun: str) -> str:
    """Return a count."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def rank_name(rank: RankAnalysis) -> str:
    """Return the name of a rank."""
    return f"process {rank.process}" if rank.rank is None else f"rank {rank.rank}"


def main_rank(analysis: Analysis) -> RankAnalysis | None:
    """Return the rank that the report is about: the one that delays the others, else the one that lost most time."""
    for rank in analysis.ranks:
        if analysis.culprit is not None and rank.rank == analysis.culprit:
            return rank
    lost = (rank.stall.value * rank.step_ms.value * rank.num_steps for rank in analysis.ranks)
    return max(zip(lost, analysis.ranks, strict=True), key=lambda one: one[0], default=(0.0, None))[1]


def observed_ms(analysis: Analysis, rank: RankAnalysis) -> float:
    """Return the time of a step that predictions are compared with: of the steps with the loader they are about."""
    return rank.step_ms.value if analysis.simulation is None else analysis.simulation.observed_ms


def by_size(blame: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return states with their times, the largest first, without those that are zero."""
    return sorted(((state, value) for state, value in blame.items() if value > 0), key=lambda one: (-one[1], one[0]))


def workers_text(rank: RankAnalysis) -> str:
    """Return the number and the kind of workers."""
    if rank.workers.method == "inline" or rank.workers.number == 0:
        return "no workers"
    return f"{plural(rank.workers.number, 'worker')} ({printable(rank.workers.method)})"


def simulation_text(analysis: Analysis) -> str:
    """Return whether the predictions can be trusted, in a sentence."""
    simulation = analysis.simulation
    if simulation is None:
        return "no predictions: nothing was simulated"
    if not simulation.trusted:
        return f"no predictions: {printable(simulation.reason)}"
    error = simulation.reproduced_ms / simulation.observed_ms - 1.0 if simulation.observed_ms else 0.0
    found = (
        f"the simulation of the recorded run gives {ms(simulation.reproduced_ms)} ms a step, observed were "
        f"{ms(simulation.observed_ms)} ms ({error:+.1%})"
    )
    return found if simulation.shared is None else f"{found}; {shared_text(simulation.shared)}"


def shared_text(shared: float) -> str:
    """Return what predictions mean on a machine that other programs use too.

    Args:
        shared: share of the time that a worker waited for cores that other programs used.
    """
    return (
        f"workers waited {percent(shared)} of the time for cores that other programs used; predictions assume that "
        "these programs keep using as much, and the intervals cover both ways in which a system may share its cores"
    )


def no_fix_text(simulation: Simulation) -> str:
    """Return that no change helps."""
    if simulation.shared is None:
        return "no simulated change makes a step 3 % faster or more"
    return (
        "no change is certain to make a step 3 % faster while other programs use the cores; fastload whatif DIR "
        "--num-workers N gives the interval for other numbers of workers"
    )
