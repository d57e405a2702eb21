"""Train a small language model on a mixture of three sources, packed without padding, on one process or several.

    torchrun --nproc-per-node=2 examples/mixture.py --out runs/1   # killed? the same command resumes it

The texts are Python's own code, docstrings, and the dialogues in these. On any number of processes, and after any kill,
step 100 has the same packs, token for token; on the same number the same loss, bit for bit. Other ``--weights`` hold
from where it goes on.
"""

from __future__ import annotations

import argparse
import ast
import doctest
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import fastload

MAX_TOKENS = 512
FILES = ("argparse", "ast", "difflib", "doctest", "fractions", "heapq", "inspect", "random", "statistics", "textwrap")


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    """Texts as bytes, each of at most half a pack. Put your own datasets in its place."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.rows = [text.encode()[: MAX_TOKENS // 2] for text in texts if len(text) >= 8]
        self.lengths = list(map(len, self.rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": np.frombuffer(self.rows[index], dtype=np.uint8)}


def build_sources() -> dict[str, Texts]:
    """Return the three sources, by name."""
    code = [(Path(os.__file__).parent / f"{name}.py").read_text(encoding="utf-8") for name in FILES]
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = (node for text in code for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
    prose = [ast.get_docstring(node) or "" for node in nodes]
    examples = (one for text in prose for one in doctest.DocTestParser().get_examples(text))
    return {
        "code": Texts(part for text in code for part in text.split("\n\n")),
        "dialogue": Texts(f">>> {one.source}{one.want}" for one in examples),
        "prose": Texts(part for text in prose for part in text.split("\n\n")),
    }


class Model(nn.Module):
    """A transformer of bytes. Documents of a pack do not see each other."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(MAX_TOKENS, width)
        layers = (nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True) for _ in range(2))
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(width, 256)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Return the sum of the losses of all tokens that are predicted."""
        document = batch["seq_idx"][0]
        seen = (document[:, None] == document) & torch.ones(len(document), len(document), dtype=torch.bool).tril()
        hidden = self.tokens(batch["input_ids"]) + self.places(batch["position_ids"])
        for layer in self.layers:
            hidden = layer(hidden, src_mask=~seen)
        return nn.functional.cross_entropy(self.head(hidden)[0, :-1], batch["labels"][0, 1:], reduction="sum")


def all_together(tensor: Any) -> Any:
    """Return the sum over all processes."""
    dist.all_reduce(tensor)
    return tensor


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, packs: list[dict[str, Any]]) -> float:
    """Train on this process's packs of a step; return the loss, the mean over the tokens of all processes."""
    number = all_together(torch.tensor(sum(int((pack["labels"][0, 1:] >= 0).sum()) for pack in packs)))
    losses = [model(pack) / number for pack in packs]
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    for parameter in model.parameters():
        all_together(parameter.grad)
    optimizer.step()
    return float(all_together(torch.stack(losses).sum().detach()))


def digests_of(packs: list[dict[str, Any]]) -> list[str]:
    """Return a digest of the tokens of each pack of a step, on all processes, in the step's order."""
    own = [hashlib.sha256(pack["input_ids"].numpy()).hexdigest()[:16] for pack in packs]
    shares: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shares, own)
    return [digest for turn in zip(*shares, strict=True) for digest in turn]


def main() -> None:
    """Train, or go on from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/mixture"), help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--weights", type=json.loads, default={"code": 2, "dialogue": 1, "prose": 1}, help="of tokens")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    alone: Any = {} if "RANK" in os.environ else {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    torch.manual_seed(0)
    sources = build_sources()
    lengths = {name: source.lengths for name, source in sources.items()}
    mixture = fastload.Mixture(sources, arguments.weights, unit="token", lengths=lengths, num_samples=2000)
    sampler = fastload.PackedBatchSampler(mixture, MAX_TOKENS, packs_per_step=4, window=256, seed=1)
    collate = functools.partial(fastload.collate_packed, max_tokens=MAX_TOKENS, seq_idx=True)
    loader = fastload.DataLoader(mixture, batch_sampler=sampler, collate_fn=collate, num_workers=1)
    optimizer = torch.optim.AdamW((model := Model()).parameters(), lr=1e-3)
    saved, steps, packs = arguments.out / "checkpoint.pt", list[str](), list[dict[str, Any]]()
    if saved.exists():
        checkpoint = torch.load(saved)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"], mixture="continue")
        steps = checkpoint["steps"]
    for pack in (pack for _ in itertools.count() for pack in loader):
        if len(packs := [*packs, pack]) < sampler.batches_per_step:
            continue
        loss = step_of(model, optimizer, packs)
        steps.append(json.dumps({"loss": loss, "packs": digests_of(packs)}))
        packs = []
        if dist.get_rank() == 0:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save({**parts, "steps": steps}, saved.with_suffix(".tmp"))
            os.replace(saved.with_suffix(".tmp"), saved)
            print(f"step {len(steps)}, loss {loss:.3f}", flush=True)
        if len(steps) >= arguments.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
