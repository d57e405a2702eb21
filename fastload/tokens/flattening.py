"""Collation of samples of different lengths into one row of tokens, without padding or up to a fixed length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base.checks import check_count
from ..errors import ConfigError, DatasetError

IGNORED = -100
"""The label of a token that is not predicted, as torch's ``cross_entropy`` leaves it out."""


def collate_packed(
    samples: Sequence[Mapping[str, Any]],
    *,
    max_tokens: int | None = None,
    pad_to: int | None = None,
    pad_id: int = 0,
    max_documents: int | None = None,
    positions_from: int = 0,
    align: int = 1,
    shift_labels: bool = False,
    seq_idx: bool = False,
) -> dict[str, Any]:
    """Put samples one behind the other into one row, as flash-attention and transformers take it.

    For ``collate_fn``, with ``functools.partial`` for the arguments. Samples without tokens are left out. There is no
    ``attention_mask``: transformers' models tell documents apart by ``position_ids``.

    Args:
        samples: each with ``input_ids``, [length], integers, and, if it is to have other labels, ``labels``, [length].
            Sequences, arrays or tensors.
        max_tokens: of the row; more is an error. None: that is not checked.
        pad_to: length T of each row, in tokens; what is missing is a document of its own. None: no padding.
        pad_id: the token of padding.
        max_documents: of a row, one of padding included: ``cu_seq_lens_*`` are filled up with T, documents of length 0,
            and ``max_length_*`` is ``pad_to``, which it needs. So nothing varies, and nothing is compiled anew.
        positions_from: position of a document's first token; 2 for RoBERTa's embeddings.
        align: each document is padded to a multiple of this (context parallelism); its own ``max_tokens`` counts that.
        shift_labels: True: ``labels`` are shifted already, as torchtitan's trainer needs it: each is the next token.
            False: the model shifts them, as those of transformers.
        seq_idx: whether to return ``seq_idx``, the document of each token.

    Returns:
        ``input_ids``, ``labels``, ``position_ids``: [1, T], int64. ``cu_seq_lens_q``, ``cu_seq_lens_k``:
        [documents + 1], int32: where each begins, and the last ends. ``max_length_q``, ``max_length_k``: int, of the
        longest document.
        ``seq_idx``: [1, T], int32. Labels are -100 for what no document predicts: each document's first token (shifted:
        its last), and padding.

    Raises:
        ConfigError: an argument is out of its range.
        DatasetError: a sample has no ``input_ids``, or others than integers, or labels of another length; the samples
            have more tokens than ``max_tokens`` or ``pad_to``, or none, or more documents than ``max_documents``.

    Examples:
        >>> import fastload
        >>> batch = fastload.collate_packed([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
        >>> batch["labels"].tolist(), batch["cu_seq_lens_q"].tolist(), batch["max_length_q"]
        ([[-100, 6, 7, -100, 9]], [0, 3, 5], 3)
    """
    check_count("align", align)
    limits = {"max_tokens": max_tokens, "pad_to": pad_to, "max_documents": max_documents}
    for name, limit in limits.items():
        if limit is not None:
            check_count(name, limit)
    for one in samples:
        if not hasattr(one, "get"):
            raise DatasetError(f"a sample must be a mapping that has input_ids, got a {type(one).__name__}")
    if max_documents is not None and pad_to is None:
        raise ConfigError(f"max_documents needs pad_to, the most that a document has, got {max_documents=}, {pad_to=}")
    rows = [
        (_numbers(one, "input_ids"), _numbers(one, "labels" if "labels" in one else "input_ids")) for one in samples
    ]
    rows = [row for row in rows if len(row[0]) or len(row[1])]
    lengths = np.array([len(ids) for ids, _ in rows], dtype=np.int64)
    widths = -(-lengths // align) * align
    total = int(widths.sum())
    room = min((limit for limit in (max_tokens, pad_to) if limit is not None), default=max(total, 1))
    if not 0 < total <= room:
        raise DatasetError(
            f"a row of max_tokens={max_tokens}, pad_to={pad_to} takes 1 to {room} tokens, and these {len(samples)} "
            f"samples have {total}, the longest {lengths.max(initial=0)}: other lengths than they were packed by; make "
            "these anew, by fastload.token_lengths(dataset), or pack by a smaller max_tokens"
        )
    if pad_to is not None and total < pad_to:
        widths = np.append(widths, pad_to - total)
    if max_documents is not None and len(widths) > max_documents:
        raise DatasetError(
            f"a row has {len(widths)} documents, padding included, and max_documents={max_documents}: give at least "
            f"{len(widths)}" + (f", or PackedBatchSampler max_samples={max_documents - 1}" if max_documents > 1 else "")
        )
    ends = np.cumsum(widths)
    starts, size = ends - widths, int(ends[-1])
    tokens, targets = np.full(size, pad_id, dtype=np.int64), np.full(size, IGNORED, dtype=np.int64)
    for start, (ids, labels) in zip(starts.tolist(), rows, strict=False):  # padding has a start too
        if len(ids) != len(labels):
            raise DatasetError(f"a sample has {len(ids)} input_ids and {len(labels)} labels; it needs as many")
        tokens[start : start + len(ids)] = ids
        first = start if shift_labels else start + 1
        targets[first : first + len(ids) - 1] = labels[1:]
    bounds = np.full((len(widths) if max_documents is None else max_documents) + 1, size, dtype=np.int32)
    bounds[0], bounds[1 : len(ends) + 1] = 0, ends
    batch: dict[str, Any] = {
        "input_ids": _row(tokens),
        "labels": _row(targets),
        "position_ids": _row(np.arange(size) - np.repeat(starts, widths) + positions_from),
    }
    if seq_idx:
        batch["seq_idx"] = _row(np.repeat(np.arange(len(widths), dtype=np.int32), widths))
    batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = torch.from_numpy(bounds)
    batch["max_length_q"] = batch["max_length_k"] = int(widths.max()) if max_documents is None else size
    return batch


def _row(values: Any) -> Tensor:
    return torch.from_numpy(values)[None]


def _numbers(sample: Mapping[str, Any], name: str) -> Any:
    values = sample.get(name)
    found = values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise DatasetError(
            f"{name} must be [length], integers, got {type(values).__name__} of shape {found.shape} and "
            f"{found.dtype} in a sample with {', '.join(map(str, sample))}"
        )
    return found
