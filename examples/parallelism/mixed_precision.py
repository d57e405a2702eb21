"""From APEX, a heading in the notes, to ``torch.amp``: the loop with a scaler, and a common mistake with it.

    python examples/parallelism/mixed_precision.py                 # or --device cuda

    amp.initialize(opt_level="O0")             no autocast
    ... "O1"                                   torch.autocast(device, dtype=torch.float16) and torch.amp.GradScaler
    ... "O2", "O3"                             no equivalent; use bf16: torch.autocast(device, dtype=torch.bfloat16)
                                               without a scaler
    with amp.scale_loss(loss, optimizer)       scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update()
    amp.state_dict()                           scaler.state_dict(), in the checkpoint
    apex.parallel.DistributedDataParallel      torch.nn.parallel.DistributedDataParallel
    apex.parallel.convert_syncbn_model         nn.SyncBatchNorm.convert_sync_batchnorm
    data_prefetcher of its examples            fastload.DataLoader(device=...) or fastload.prefetch
    apex.optimizers.FusedAdam, FusedSGD        torch.optim.AdamW(fused=True), SGD(fused=True)

Measured (torch 2.13, CPU): after an overflow the weights are unchanged and the scale is halved; clipping to 1 without
``unscale_`` sees 1024 times the norm, and the step is 1/1024 of what it should be.
"""

from collections.abc import Callable

import torch
from common import options
from torch import Tensor, nn


def make_network(device: str = "cpu") -> nn.Sequential:
    """Return a small network, its parameters in float32: they stay so under autocast."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)).to(device)


def step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    loss_of: Callable[[], Tensor],
    max_norm: float | None = None,
    *,
    unscale: bool = True,
) -> float | None:
    """Make one step with a scaler; a scaler with ``enabled=False`` does nothing, as bf16 needs it.

    Returns:
        The norm that was clipped, or None.
    """
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    norm = None
    if max_norm is not None:
        if unscale:
            scaler.unscale_(optimizer)  # without it the scaled gradients are clipped: the mistake
        norm = float(nn.utils.clip_grad_norm_(network.parameters(), max_norm))
    scaler.step(optimizer)
    scaler.update()
    return norm


def dtypes(device: str, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return the dtypes under autocast."""
    network = make_network(device)
    with torch.autocast(device, dtype=dtype):
        outputs = network(torch.ones(2, 8, device=device))
        loss = nn.functional.cross_entropy(outputs, torch.zeros(2, dtype=torch.long, device=device))
    loss.backward()
    weight = network[0].weight
    assert weight.grad is not None
    return {"outputs": outputs.dtype, "loss": loss.dtype, "weights": weight.dtype, "gradients": weight.grad.dtype}


def overflow(device: str) -> tuple[bool, float, float]:
    """Make a step with an infinite loss; return whether the weights are unchanged, and the scale before and after."""
    network = make_network(device)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    scale = scaler.get_scale()
    step(network, optimizer, scaler, lambda: network(torch.full((1, 8), 1e3, device=device)).sum() * torch.inf)
    stayed = all(torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))
    return stayed, scale, scaler.get_scale()


def clipped(device: str, *, unscale: bool) -> tuple[float, float]:
    """Clip gradients, scaled by 1024, to 1; return the norm before, and the change of the weights at rate 1."""
    network = make_network(device)
    optimizer = torch.optim.SGD(network.parameters(), 1.0)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    before = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    inputs = torch.ones(4, 8, device=device)
    norm = step(network, optimizer, scaler, lambda: network(inputs).square().sum(), 1.0, unscale=unscale)
    after = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    assert norm is not None
    return norm, float((after - before).norm())


def main() -> None:
    """Print the results."""
    device = options(__doc__, device="cpu").device
    for dtype in (torch.bfloat16, torch.float16):
        print(f"autocast to {dtype}:", *(f"{name} {kind}" for name, kind in dtypes(device, dtype).items()), sep="  ")
    stayed, before, after = overflow(device)
    print(f"after an overflow: {'weights unchanged' if stayed else 'weights changed'}, scale {before} -> {after}")
    for unscale in (True, False):
        norm, way = clipped(device, unscale=unscale)
        print(f"clipping to 1 {'after' if unscale else 'without'} unscale_: norm {norm:.3g}, a step of {way:.3g}")


if __name__ == "__main__":
    main()
