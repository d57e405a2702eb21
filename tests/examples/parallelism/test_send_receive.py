"""The gradients of all parts equal one process's, with one message for each link and direction."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import send_receive
import torch
import torch.distributed as dist
from common import Rank
from ranks import Said, run_ranks
from scripts import PARALLELISM, run_as_torchrun
from torch import Tensor

CPU = torch.device("cpu")
BATCH = 4


class NotesLink(send_receive.Link):
    """The notes' protocol: the number of dimensions, the sizes as floats, the data; each time, in both directions."""

    def send(self, value: Tensor) -> None:
        self._send(torch.tensor(float(value.ndim)))
        self._send(torch.tensor(value.shape, dtype=torch.float32))
        self._send(value.contiguous())

    def receive(self) -> Tensor:
        dimensions = torch.zeros(())
        self._receive(dimensions)
        sizes = torch.zeros(int(dimensions))
        self._receive(sizes)
        value = torch.empty(*(int(size) for size in sizes), dtype=torch.float64)
        self._receive(value)
        return value


def step(rank: int, count: int, network: str, notes: bool) -> tuple[list[Tensor], list[int]]:
    images, labels = send_receive.batch_of(BATCH, side=32)
    images = images.double()  # BatchNorm over four pixels is too steep for float32: 4 images, 1 x 1 at the end
    piece = send_receive.Piece(Rank(rank, count, CPU), send_receive.make_pieces(network, count)[rank].double())
    if notes:
        piece.before = piece.before and NotesLink(piece.before.peer, CPU)
        piece.behind = piece.behind and NotesLink(piece.behind.peer, CPU)
    messages = []
    for _ in range(2):
        piece.piece.zero_grad()
        piece.forward(images, labels).backward()
        messages.append(0 if piece.behind is None else piece.behind.messages)
    return send_receive.gradients(piece.piece), messages


@pytest.mark.parametrize(
    ("count", "network", "notes", "messages"),
    [
        (2, "small", False, [3, 5]),  # a header once, then one message there and one back
        (2, "small", True, [6, 12]),  # three there and three back, each time
        (4, "mobilenet", False, [3, 5]),
    ],
    ids=["small", "the notes' protocol", "MobileNetV2 on 4 ranks"],
)
def test_gradients_equal_one_processs_in_every_part(
    tmp_path: Path, count: int, network: str, notes: bool, messages: list[int]
) -> None:
    ranks = run_ranks(
        functools.partial(step, count=count, network=network, notes=notes), tmp_path, count, start="forkserver"
    )
    images, labels = send_receive.batch_of(BATCH, side=32)
    alone = send_receive.gradients_alone(network, count, images.double(), labels, CPU)
    for number, (found, sent) in enumerate(ranks):
        assert len(found) == len(alone[number]) > 0
        for left, right in zip(found, alone[number], strict=True):
            torch.testing.assert_close(left, right, atol=1e-12, rtol=1e-9)
        assert sent == (messages if number < count - 1 else [0, 0])


def any_tensor(rank: int) -> list[Any]:
    """Send tensors of several shapes and dtypes, each by a pair of links of its own."""
    sent = [torch.arange(6.0).reshape(1, 2, 3), torch.zeros(0, 5, dtype=torch.float64), torch.tensor(7.0).bfloat16()]
    if rank == 0:
        for value in sent:
            send_receive.Link(1, CPU).send(value)
        return []
    received = [send_receive.Link(0, CPU).receive() for _ in sent]
    return [(value.dtype, value.shape, value.tolist()) for value in received]


def test_shape_and_dtype_arrive_with_the_first_tensor(tmp_path: Path) -> None:
    _, received = run_ranks(any_tensor, tmp_path, start="forkserver")
    assert received == [
        (torch.float32, (1, 2, 3), [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]),
        (torch.float64, (0, 5), []),
        (torch.bfloat16, (), 7.0),
    ]


def short_last_batch(rank: int) -> None:
    if rank == 0:
        link = send_receive.Link(1, CPU)
        link.send(torch.zeros(4, 2))
        link.send(torch.zeros(3, 2))
    else:
        send_receive.Link(0, CPU).receive()
        dist.barrier  # noqa: B018  # nothing more is sent


def test_a_short_last_batch_is_the_senders_error(tmp_path: Path) -> None:
    with pytest.raises(Said, match=r"rank 1 expects \[4, 2\], torch.float32, got \[3, 2\].*drop_last=True"):
        run_ranks(short_last_batch, tmp_path, start="forkserver")


def test_an_unsupported_tensor_is_an_error_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match=r"at most 8 dimensions, got torch.int64 of 1"):
        send_receive.Link(1, CPU).send(torch.zeros(3, dtype=torch.int64))


def test_sizes_as_floats_are_exact_up_to_2_to_the_24() -> None:
    """Why the notes' header is not kept."""
    assert int(torch.tensor(float(2**24), dtype=torch.float32)) == 2**24
    assert int(torch.tensor(float(2**24 + 1), dtype=torch.float32)) == 2**24


@pytest.mark.slow
def test_the_script_runs_on_two_ranks(tmp_path: Path) -> None:
    printed, silent = run_as_torchrun(PARALLELISM / "send_receive.py", "--device", "cpu", folder=tmp_path)
    lines = printed.splitlines()
    assert len(lines) == 2
    for number, line in enumerate(lines):
        assert line.startswith(f"rank {number}: gradients ")
        assert line.endswith("3 messages in the first step, 2 in the second")
        assert float(line.split()[3]) < 1e-5
    assert silent == ""
