"""Pads for transformers' collators in one step from a table's columns, without a list for each row.

The collator runs as it is; only its tokenizer's ``pad``, which copies every list twice and converts all numbers one by
one, is another while it does. Known are two collators, tokenizers that inherit ``pad``, and columns of integers;
everything else is given to the tokenizer's own ``pad``. So is the first batch of each setting, too: where another
version of transformers pads in another way, it pads all of them. transformers is not imported here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base.overrides import Bypass
from .hugging_face import TableBatch

_MODULE = "transformers.data.data_collator"
_COLLATORS = ("DataCollatorWithPadding", "DataCollatorForLanguageModeling")
_TOKENIZERS = "transformers.tokenization_utils_base"
OVERRIDES = (
    Bypass(_TOKENIZERS, f"{_TOKENIZERS}:PreTrainedTokenizerBase", "pad", "batches are padded from Arrow's memory"),
)


class Features(list[Any]):
    """The samples of a batch, which are made when somebody wants to see one."""

    def __init__(self, loaded: TableBatch) -> None:
        super().__init__()
        self.loaded = loaded
        self._filled = False

    def filled(self) -> list[Any]:
        """Return the samples, all of them made."""
        if not self._filled:
            self._filled = True
            self.extend(self.loaded.samples())
        return self

    def __len__(self) -> int:
        return super().__len__() if self._filled else len(self.loaded)

    def __iter__(self) -> Iterator[Any]:
        return list.__iter__(self.filled())

    def __getitem__(self, place: Any) -> Any:
        # A collator looks at the first one to see whether it is a mapping.
        if not self._filled and isinstance(place, int) and place == 0:
            return self.loaded.first()
        return list.__getitem__(self.filled(), place)


class Padding:
    """Calls a collator for which :func:`padding_for` gave this object; it may be called by several threads.

    Args:
        collator: has a ``tokenizer``, which may be another in the next call.
    """

    def __init__(self, collator: Any) -> None:
        self._collator = collator
        self._agrees: dict[Any, bool] = {}

    def __call__(self, samples: Any) -> Any:
        tokenizer = getattr(self._collator, "tokenizer", None)
        if type(samples) is not Features or not _inherits_pad(tokenizer):
            return self._collator(samples)
        held = vars(tokenizer)
        # Another thread may remove it at any time: then the tokenizer's own method pads the samples themselves.
        held["pad"] = functools.partial(_pad, self._agrees, tokenizer)
        try:
            return self._collator(samples)
        finally:
            held.pop("pad", None)


def padding_for(collate_fn: Any) -> Callable[[Any], Any] | None:
    """Return what calls a collator in its place, where its tokenizer's ``pad`` is known; None: it is another one."""
    kind = type(collate_fn)
    known = kind.__module__ == _MODULE and kind.__qualname__ in _COLLATORS
    return Padding(collate_fn) if known else None


def _pad(known: dict[Any, bool], tokenizer: Any, encoded_inputs: Any, *arguments: Any, **named: Any) -> Any:
    """Stand for a tokenizer's ``pad``; ``known``: whether the settings that were tried give the same."""
    own = functools.partial(type(tokenizer).pad, tokenizer)
    made = None
    if type(encoded_inputs) is Features and not arguments:
        made = _padded(tokenizer, encoded_inputs.loaded, **named)
    if made is None:
        return own(encoded_inputs, *arguments, **named)
    is_ragged = any(one.is_ragged for one in encoded_inputs.loaded.numbers().values())
    setting = is_ragged, *_state(tokenizer), *named.items()
    agrees = known.get(setting)
    if agrees:
        return made
    theirs = own(list(encoded_inputs), **named)
    if agrees is None:
        known[setting] = _alike(made, theirs)
    return theirs


def _state(tokenizer: Any) -> tuple[Any, ...]:
    """Return what the tokenizer's own method reads of it."""
    names = tuple(tokenizer.model_input_names)
    return names, tokenizer.padding_side, tokenizer.pad_token_id, tokenizer.pad_token_type_id


def _inherits_pad(tokenizer: Any) -> bool:
    base = getattr(sys.modules.get(_TOKENIZERS), "PreTrainedTokenizerBase", None)
    if base is None or not isinstance(tokenizer, base) or OVERRIDES[0].unavailable_reason() is not None:
        return False
    held = vars(tokenizer)
    # A pad that is there may be the one that another thread has put there.
    if "_pad" in held or ("pad" in held and getattr(held["pad"], "func", None) is not _pad):
        return False
    return all(getattr(type(tokenizer), name, 0) is getattr(base, name, 1) for name in ("pad", "_pad"))


def _padded(
    tokenizer: Any,
    loaded: TableBatch,
    *,
    padding: Any = True,
    max_length: int | None = None,
    pad_to_multiple_of: int | None = None,
    return_tensors: Any = None,
    **others: Any,
) -> Any:
    """Return what ``tokenizer.pad`` does; None: it has to do it."""
    columns = loaded.numbers()
    names, side, pad_token, pad_token_type = _state(tokenizer)
    name = names[0]
    # True may be an enum's member too, which is equal to the word.
    known = (padding is True or padding == "longest") and return_tensors == "pt" and max_length is None and not others
    if not known or side not in ("left", "right") or name not in columns or len(columns) < len(loaded.columns):
        return None
    required = columns[name]
    if not required.is_list or not all(one.holds_integers for one in columns.values()):
        return None
    fills = {name: pad_token, "token_type_ids": pad_token_type, "special_tokens_mask": 1}
    if "attention_mask" in names:
        fills["attention_mask"] = 0
    lengths = required.lengths
    width = max(lengths)
    if pad_to_multiple_of is not None:
        width = -(-width // pad_to_multiple_of) * pad_to_multiple_of
    if not width or not all(type(fill) is int for fill in fills.values()):
        return None
    places = _places(lengths, width, side)
    batch: dict[str, Tensor] = {}
    for column, numbers in columns.items():
        fill = fills.get(column)
        if fill is not None and numbers.is_list and numbers.lengths == lengths:
            batch[column] = _spread(numbers.flat, places, fill)
        elif fill is None and not numbers.is_ragged and numbers.flat.numel():
            batch[column] = numbers.table()
        else:
            return None
    if "attention_mask" in fills and "attention_mask" not in batch:
        batch["attention_mask"] = torch.from_numpy(places.astype(np.int64))
    encoding: Any = sys.modules[_TOKENIZERS]
    return encoding.BatchEncoding(batch, tensor_type=return_tensors)


def _places(lengths: list[int], width: int, side: str) -> Any:
    """Return where the values of rows are, [B, width], bool."""
    column, counts = np.arange(width), np.array(lengths)[:, None]
    return column < counts if side == "right" else column >= width - counts


def _spread(flat: Tensor, places: Any, fill: int) -> Tensor:
    """Return the values at their places [B, width], int64."""
    if len(flat) == places.size:
        return flat.view(places.shape)
    made = np.full(places.shape, fill, dtype=np.int64)
    made[places] = flat.numpy()
    return torch.from_numpy(made)


def _alike(one: Any, other: Any) -> bool:
    if type(one) is not type(other) or vars(one).keys() != vars(other).keys() or list(one) != list(other):
        return False
    rest = [{name: value for name, value in vars(each).items() if name != "data"} for each in (one, other)]
    return repr(rest[0]) == repr(rest[1]) and all(
        type(other[name]) is Tensor and one[name].dtype == other[name].dtype and torch.equal(one[name], other[name])
        for name in one
    )
