"""Model parallelism with two autograd functions: activations are sent to the next rank, gradients to the previous.

    torchrun --nproc-per-node=2 examples/parallelism/send_receive.py
    torchrun --nproc-per-node=4 examples/parallelism/send_receive.py --network mobilenet

Every rank calls ``backward`` once, the last one on the loss, the others on the result of ``send``. Unlike in the notes,
shape and dtype are sent once, as int64 (float32 has integers up to 2**24 only), and a batch of another shape is an
error of the sender. Both ends must send and receive in the same order, so each neighbour has its own link.

Measured (gloo, one thread for each rank): gradients are bit-identical to those of one process, also for MobileNetV2 in
four parts; one message for each link and direction after the first step. NCCL: not verified: no GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from common import Rank, batch_of, cut, farthest, gradients, joined, options, run_rank
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
MOST_DIMENSIONS = 8


class Link:
    """The connection between this rank and another, for tensors of one shape."""

    def __init__(self, peer: int, device: torch.device) -> None:
        self.peer = peer
        self.device = device
        self.messages = 0  # sent or received
        self._known: tuple[torch.Size, torch.dtype] | None = None

    def send(self, value: Tensor) -> None:
        """Send a tensor; the first time, send its shape and dtype before.

        Raises:
            ValueError: the shape or the dtype has changed, or is not supported.
        """
        if self._known is None:
            if value.dtype not in DTYPES or value.ndim > MOST_DIMENSIONS:
                raise ValueError(
                    f"a link sends {', '.join(map(str, DTYPES))} of at most {MOST_DIMENSIONS} dimensions, "
                    f"got {value.dtype} of {value.ndim}"
                )
            header = [DTYPES.index(value.dtype), value.ndim, *value.shape]
            header += [0] * (2 + MOST_DIMENSIONS - len(header))
            self._send(torch.tensor(header, device=self.device))
            self._known = value.shape, value.dtype
        if (value.shape, value.dtype) != self._known:
            shape, dtype = self._known
            raise ValueError(
                f"rank {self.peer} expects {list(shape)}, {dtype}, got {list(value.shape)}, {value.dtype}; "
                "skip the short last batch (drop_last=True), or create a new pair of links"
            )
        self._send(value.contiguous())

    def receive(self) -> Tensor:
        """Return the next tensor from the other rank."""
        if self._known is None:
            header = torch.empty(2 + MOST_DIMENSIONS, dtype=torch.int64, device=self.device)
            self._receive(header)
            dtype, dimensions, *sizes = header.tolist()
            self._known = torch.Size(sizes[:dimensions]), DTYPES[dtype]
        shape, kind = self._known
        value = torch.empty(shape, dtype=kind, device=self.device)
        self._receive(value)
        return value

    def _send(self, value: Tensor) -> None:
        self.messages += 1
        dist.send(value, self.peer)

    def _receive(self, value: Tensor) -> None:
        self.messages += 1
        dist.recv(value, self.peer)


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, activation: Tensor, link: Link) -> Tensor:
        ctx.link = link  # an attribute: save_for_backward is for tensors, and the peer's number is none
        link.send(activation)
        return activation.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.link.receive(), None


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _: Tensor, link: Link) -> Tensor:
        ctx.link = link
        return link.receive()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        ctx.link.send(gradient)
        return None, None


def send(activation: Tensor, link: Link) -> Tensor:
    """Send to the next rank; return a scalar whose ``backward()`` receives the gradient."""
    token: Tensor = _Send.apply(activation, link)
    return token


def receive(link: Link) -> Tensor:
    """Return what the previous rank sends; its gradient is sent back."""
    # Autograd records a function only if an argument requires a gradient; this one never gets any.
    wanting = torch.zeros((), requires_grad=True)
    received: Tensor = _Receive.apply(wanting, link)
    return received


class Piece:
    """This rank's part of a network, and its links to both neighbours."""

    def __init__(self, rank: Rank, piece: nn.Module) -> None:
        self.rank = rank
        self.piece = piece
        self.before = Link(rank.number - 1, rank.device) if rank.number > 0 else None
        self.behind = Link(rank.number + 1, rank.device) if rank.number < rank.count - 1 else None

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return what to call ``backward`` on: the mean loss on the last rank, a token on the others."""
        entering = images.to(self.rank.device) if self.before is None else receive(self.before)
        leaving = self.piece(entering)
        if self.behind is None:
            return cross_entropy(leaving, labels.to(self.rank.device))
        return send(leaving, self.behind)


def make_pieces(network: str, count: int) -> list[nn.Sequential]:
    """Return the network ``"small"`` or ``"mobilenet"`` in ``count`` parts, the same on every rank."""
    torch.manual_seed(0)
    layers: list[nn.Module]
    if network == "small":
        layers = [
            *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
            *(nn.Flatten(), nn.Linear(32, 10)),
        ]
    else:
        from torchvision.models import mobilenet_v2

        made = mobilenet_v2(
            num_classes=10, width_mult=0.5, dropout=0.0
        )  # dropout would draw other numbers in each part
        layers = [*made.features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), made.classifier]
    return cut(layers, count)


def gradients_alone(
    network: str, count: int, images: Tensor, labels: Tensor, device: torch.device
) -> list[list[Tensor]]:
    """Return one process's gradients, piece by piece."""
    pieces = make_pieces(network, count)
    network_of_one = nn.Sequential(*pieces).to(device, images.dtype)
    cross_entropy(network_of_one(images.to(device)), labels.to(device)).backward()
    return [gradients(piece) for piece in pieces]


def main() -> None:
    """Take two steps over all ranks; compare with one process."""
    args = options(__doc__, network=("small", "mobilenet"), batch_size=16, device="auto")
    images, labels = batch_of(args.batch_size, side=32)
    with joined(args.device) as rank:
        piece = Piece(rank, make_pieces(args.network, rank.count)[rank.number].to(rank.device))
        messages = []
        for _ in range(2):
            piece.piece.zero_grad()
            piece.forward(images, labels).backward()
            messages.append(sum(link.messages for link in (piece.before, piece.behind) if link is not None))
        alone = gradients_alone(args.network, rank.count, images, labels, rank.device)[rank.number]
        off = farthest(gradients(piece.piece), alone)
        lines: list[str] = [""] * rank.count
        line = f"rank {rank.number}: gradients {off:.1e} off, {messages[0]} messages in the first step, "
        dist.all_gather_object(lines, line + f"{messages[1] - messages[0]} in the second")
        if rank.number == 0:
            print("\n".join(lines), flush=True)


if __name__ == "__main__":
    run_rank(main)
