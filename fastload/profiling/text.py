"""Words and number formats that all reports share: names of states and causes, times, shares, untrusted text. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Literal

from .analysis import Analysis, Cause, Interval, RankAnalysis, Simulation

Group = Literal["storage", "cpu", "cores", "order", "moving", "main"]
"""What a state is about; a colour each."""

GROUPS: dict[Group, str] = {
    "storage": "waiting for storage",
    "cpu": "computing in workers",
    "cores": "waiting for a core",
    "order": "held up by order",
    "moving": "moving the batch",
    "main": "main thread",
}

_STATES: dict[str, tuple[str, Group, str]] = {
    "startup": ("startup", "main", "making iterators, starting workers, the first batch"),
    "sampler": ("sampler", "main", "drawing the batch's indices"),
    "queued": ("queued", "main", "no worker was at it yet"),
    "read": ("read", "storage", "blocked in the dataset, as in waiting for a disk"),
    "sample": ("sample", "cpu", "on the CPU in the dataset, outside of any known stage"),
    "collate": ("collate", "cpu", "making one batch of samples"),
    "run-queue": ("run queue", "cores", "ready to run, but no core was free"),
    "gil": ("GIL", "cores", "in a worker thread that waited for its turn in the interpreter"),
    "transport": ("transport", "moving", "from the worker to the main process"),
    "reorder": ("reorder", "order", "complete, but an earlier batch was not"),
    "pin": ("pin", "moving", "into page-locked memory"),
    "copy": ("copy", "moving", "to the device"),
    "main-thread": ("main thread", "main", "complete, but the main thread had not got to it"),
    "other": ("other", "main", "not known"),
}

_CAUSES: dict[Cause, str] = {
    "compute": "compute-bound",
    "read": "read-bound",
    "cpu": "CPU-bound",
    "head-of-line": "head-of-line-bound",
    "transport": "transport-bound",
    "pin": "pin-bound",
    "copy": "copy-bound",
    "sampler": "sampler-bound",
    "startup": "startup-bound",
    "oversubscribed": "oversubscribed",
    "launch-starved": "launch-starved",
    "gil": "GIL-bound",
}


def state_name(state: str) -> str:
    """Return what a state is called: a stage by its own name."""
    if state.startswith("stage:"):
        return visible(state.removeprefix("stage:")) or "stage"
    return _STATES[state][0] if state in _STATES else visible(state)


def state_group(state: str) -> Group:
    """Return what a state is about."""
    if state.partition(":")[0] == "stage":
        return "cpu"
    return _STATES[state][1] if state in _STATES else "main"


def state_meaning(state: str) -> str:
    """Return what a batch in this state is at."""
    if state.partition(":")[0] == "stage":
        return "on the CPU in this stage of the dataset"
    return _STATES[state][2] if state in _STATES else "not known"


def cause_name(cause: Cause | None) -> str:
    """Return the verdict in a word."""
    return "no verdict" if cause is None else _CAUSES[cause]


def visible(text: str) -> str:
    """Return text that others wrote so that it only shows: controls, marks of direction and lone surrogates escaped.

    A file's name may hold what moves a terminal's cursor, or turns the words behind it around.
    """
    return "".join(
        character
        if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def shortened(text: str, columns: int) -> str:
    """Return text in at most so many columns (at least 1), the middle left out: a file's name ends in what tells it."""
    if width(text) <= columns:
        return text
    kept = columns - 1
    tail = kept - kept // 3
    front, back = "", ""
    for character in text:
        if width(front + character) > kept - tail:
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
    """Return a time in milliseconds, without its unit; ``-`` if it is not known."""
    if value is None:
        return "-"
    size = abs(value)
    if size == 0 or size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 0.995 else f"{value:.2f}" if size >= 0.00995 else f"{value:.3f}"


def percent(share: float | None) -> str:
    """Return a share in percent; ``-`` if it is not known."""
    if share is None:
        return "-"
    value = share * 100
    return f"{value:.0f} %" if abs(value) >= 9.95 or value == 0 else f"{value:.1f} %"


def share_interval(share: Interval) -> str:
    """Return the interval of a share."""
    return f"{_bare(share.low)}-{_bare(share.high)} %"


def _bare(share: float) -> str:
    return percent(share).removesuffix(" %")


def ms_interval(time: Interval) -> str:
    """Return the interval of a time, in ms, without its unit."""
    return f"{ms(time.low)}-{ms(time.high)}"


def times(ratio: float) -> str:
    """Return a ratio."""
    return f"{ratio:.2f}x"


def plural(number: int, noun: str) -> str:
    """Return a count."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def rank_name(rank: RankAnalysis) -> str:
    """Return what a rank is called."""
    return f"process {rank.process}" if rank.rank is None else f"rank {rank.rank}"


def chief(analysis: Analysis) -> RankAnalysis | None:
    """Return the rank that the report is about: the culprit, else the one that lost most time; None without any."""
    for rank in analysis.ranks:
        if analysis.culprit is not None and rank.rank == analysis.culprit:
            return rank
    lost = (rank.stall.value * rank.step_ms.value * rank.num_steps for rank in analysis.ranks)
    return max(zip(lost, analysis.ranks, strict=True), key=lambda one: one[0], default=(0.0, None))[1]


def observed_ms(analysis: Analysis, rank: RankAnalysis) -> float:
    """Return the time of a step that predictions are to be held against.

    With several loaders in turns it is that of the steps with the loader that they are about.
    """
    return rank.step_ms.value if analysis.simulation is None else analysis.simulation.observed_ms


def by_size(blame: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return states and their times, the largest first, without those that are nothing."""
    return sorted(((state, value) for state, value in blame.items() if value > 0), key=lambda one: (-one[1], one[0]))


def workers_in_words(rank: RankAnalysis) -> str:
    """Return how many workers of which kind."""
    if rank.workers.method == "inline" or rank.workers.number == 0:
        return "no workers"
    return f"{plural(rank.workers.number, 'worker')} ({visible(rank.workers.method)})"


def command_in_words(command: list[str]) -> str:
    """Return a command on one line."""
    return " ".join(visible(word) if word and not word.isspace() else "''" for word in command)


def simulation_in_words(analysis: Analysis) -> str:
    """Return whether the predictions can be believed, in a sentence."""
    simulation = analysis.simulation
    if simulation is None:
        return "no simulation was made, so nothing is predicted"
    if not simulation.trusted:
        return f"nothing is predicted: {visible(simulation.reason)}"
    error = simulation.reproduced_ms / simulation.observed_ms - 1.0 if simulation.observed_ms else 0.0
    found = (
        f"the simulation gives {ms(simulation.reproduced_ms)} ms for the {ms(simulation.observed_ms)} ms that were "
        f"observed ({error:+.1%})"
    )
    return found if simulation.shared is None else f"{found}; {shared_in_words(simulation.shared)}"


def shared_in_words(shared: float) -> str:
    """Return what predictions mean on a machine that other programs use too.

    Args:
        shared: share of the time that a worker waited for cores that these had.
    """
    return (
        f"workers waited {percent(shared)} of the time for cores that other programs had: predicted from processor "
        "time, for as long as these take as much; intervals reach over what is not known of how the cores are shared"
    )


def nothing_in_words(simulation: Simulation) -> str:
    """Return that no change helps."""
    if simulation.shared is None:
        return "no change that was simulated brings 3 % or more"
    return (
        "no change is sure to bring 3 % or more while other programs have the cores; fastload whatif DIR "
        "--num-workers N gives the range for other workers"
    )


__all__ = [
    "GROUPS",
    "Group",
    "by_size",
    "cause_name",
    "chief",
    "command_in_words",
    "ms",
    "ms_interval",
    "nothing_in_words",
    "observed_ms",
    "percent",
    "plural",
    "rank_name",
    "share_interval",
    "shared_in_words",
    "shortened",
    "simulation_in_words",
    "state_group",
    "state_meaning",
    "state_name",
    "times",
    "visible",
    "width",
    "workers_in_words",
]
