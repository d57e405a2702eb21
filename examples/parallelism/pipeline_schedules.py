"""A network with one stage on each rank, and torch's own pipeline schedules: GPipe and 1F1B.

    torchrun --nproc-per-node=2 examples/parallelism/pipeline_schedules.py
    torchrun --nproc-per-node=2 examples/parallelism/pipeline_schedules.py --micro-batches 2,4,8 --batch-size 64

GPipe runs all forward passes and then all backward passes, so a stage holds the activations of every micro-batch; in
1F1B stage s of p holds at most p - s. The bubble is the same. The notes only have the manual version. To know: the loss
must be a mean, since gradients are divided by the number of micro-batches at the end (kept ones again); torch before
2.15 runs a stage once more on uninitialised memory if its shapes are not given, which changes BatchNorm's statistics.

Measured (two ranks on two cores, gloo): see README.md. On GPUs: not verified: no GPU.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from common import Rank, batch_of, cut, farthest, gradients, joined, options, run_rank, seconds
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import cross_entropy

SCHEDULES: dict[str, Any] = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}
WIDTH = 64


class Block(nn.Module):
    """Two convolutions and a shortcut; shapes do not change."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return images of the same shape."""
        added: Tensor = self.two(torch.relu(self.one(images)))
        return torch.relu(images + added)


def make_stages(count: int, blocks: int = 8) -> list[nn.Sequential]:
    """Return the network in ``count`` stages, the same on every rank."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, WIDTH, 3, padding=1), *(Block() for _ in range(blocks))]
    layers += [nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10))]
    return cut(layers, count)


class Held(nn.Module):
    """A stage that counts the micro-batches whose activations it holds: their backward pass is still to come."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage
        self.now = self.most = 0

    def forward(self, batch: Tensor) -> Tensor:
        """Call the stage."""
        output: Tensor = self.stage(batch)
        if output.requires_grad:
            self.now += 1
            self.most = max(self.most, self.now)
            output.register_hook(self._back)
        return output

    def _back(self, _: Tensor) -> None:
        self.now -= 1


class Pipeline:
    """This rank's stage under one of the schedules."""

    def __init__(self, rank: Rank, schedule: str, micro_batches: int, batch_size: int) -> None:
        if batch_size % micro_batches:
            raise ValueError(f"batch_size must be a multiple of micro_batches, got {batch_size=}, {micro_batches=}")
        stages = make_stages(rank.count)
        self.rank = rank
        self.held = Held(stages[rank.number].to(rank.device))
        # Every rank infers the shapes between the stages on the meta device.
        shapes = [batch_of(batch_size // micro_batches)[0].to("meta")]
        for stage in make_stages(rank.count):
            shapes.append(stage.to("meta")(shapes[-1]))
        ends = [torch.zeros(shape.shape, device=rank.device) for shape in shapes[rank.number : rank.number + 2]]
        for end, place in zip(ends, (rank.number, rank.number + 1), strict=True):
            end.requires_grad_(place > 0)  # only the images need no gradient
        self.stage = PipelineStage(
            self.held, rank.number, rank.count, rank.device, input_args=(ends[0],), output_args=(ends[1],)
        )
        self.schedule = SCHEDULES[schedule](self.stage, micro_batches, loss_fn=cross_entropy)

    def step(self, images: Tensor, labels: Tensor) -> float | None:
        """Run forward and backward on a batch that every rank has; return the mean loss, on the last rank."""
        losses: list[Tensor] = []
        first, last = self.rank.number == 0, self.rank.number == self.rank.count - 1
        given = (images.to(self.rank.device),) if first else ()
        if last:
            self.schedule.step(*given, target=labels.to(self.rank.device), losses=losses)
            return torch.stack(losses).mean().item()
        self.schedule.step(*given)
        return None


def step_alone(images: Tensor, labels: Tensor, stages: int, device: torch.device) -> tuple[float, list[list[Tensor]]]:
    """Return the loss and the gradients of one process, stage by stage, for the whole batch."""
    pieces = make_stages(stages)
    network = nn.Sequential(*pieces).to(device)
    loss = cross_entropy(network(images.to(device)), labels.to(device))
    loss.backward()
    return loss.item(), [gradients(piece) for piece in pieces]


def main() -> None:
    """Compare the gradients with one process's; time the steps."""
    args = options(__doc__, micro_batches="1,2,4,8", batch_size=32, repeats=5, device="auto")
    images, labels = batch_of(args.batch_size)
    with joined(args.device) as rank:
        _, alone = step_alone(images, labels, rank.count, rank.device)
        dist.barrier()
        one = 0.0
        if rank.number == 0:  # the others wait below
            one = seconds(lambda: step_alone(images, labels, rank.count, rank.device), rank.device, args.repeats)
            print(f"one process: {one:.3f} s a step of {args.batch_size}")
            print("| schedule | micro-batches | s a step | of one process | bound | held by stage 0 | gradients off |")
            print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
        dist.barrier()
        for name in SCHEDULES:
            for count in map(int, args.micro_batches.split(",")):
                if name == "1F1B" and count < rank.count:
                    continue  # torch raises an error: a stage would have no work
                pipeline = Pipeline(rank, name, count, args.batch_size)
                pipeline.step(images, labels)
                off = farthest(gradients(pipeline.held), alone[rank.number])
                step = functools.partial(pipeline.step, images, labels)
                taken = torch.tensor([off, seconds(step, rank.device, args.repeats)], device=rank.device)
                dist.all_reduce(taken, dist.ReduceOp.MAX)
                if rank.number == 0:
                    share = taken[1].item() / one
                    bound = (count + rank.count - 1) / (count * rank.count)
                    print(
                        f"| {name} | {count} | {taken[1].item():.3f} | {share:.2f} | {bound:.2f} "
                        f"| {pipeline.held.most} | {taken[0].item():.0e} |",
                        flush=True,
                    )


if __name__ == "__main__":
    run_rank(main)
