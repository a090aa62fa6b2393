"""A vocabulary that tensor-parallel ranks split: embedding, and cross-entropy of logits."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_void_p
from typing import Any, NamedTuple

from . import _native
from ._arrays import exactly
from ._errors import InvalidArgumentError, check
from ._fields import instance
from ._native import library
from ._tensor import Tensor
from ._values import (
    Dtype,
    dtype_number,
    encoded,
    in_range,
    nanoseconds,
    readable,
    writable,
)


class VocabularyInfo(NamedTuple):
    """Sizes of a vocabulary on this rank."""

    classes: range  #: The classes of this rank; may be empty.
    kept_bytes: int  #: Bytes that a loss pass of the most rows keeps for its backward pass.
    memory_bytes: int  #: Memory of the object.
    scratch_bytes: int  #: Memory that an embed pass takes at most, shared with other passes.
    embed_bytes: int  #: Bytes of this rank that peers read in an embed pass, at most.
    loss_bytes: int  #: Bytes of this rank that peers read in a loss pass of the most rows.


class _Vocabulary:
    """The handle of a vocabulary, and its arrays."""

    def __init__(self, tensor: Tensor, **options: Any) -> None:
        instance(Tensor, tensor, "tensor")
        raw = _native.trireme_vocabulary_options(
            struct_size=ctypes.sizeof(_native.trireme_vocabulary_options), **options
        )
        handle = c_void_p()
        check(library.trireme_vocabulary_create(tensor._handle, byref(raw), byref(handle)))
        self._handle = handle.value
        self._close = weakref.finalize(self, library.trireme_vocabulary_destroy, self._handle)
        self._dtype = raw.dtype
        self._width = raw.width
        self._class_count = len(self.info.classes)

    def close(self) -> None:
        """Destroys the object."""
        self._close()

    @property
    def info(self) -> VocabularyInfo:
        """The classes of this rank, and the planned bytes."""
        found = _native.trireme_vocabulary_info(
            struct_size=ctypes.sizeof(_native.trireme_vocabulary_info)
        )
        check(library.trireme_vocabulary_get_info(self._handle, byref(found)))
        return VocabularyInfo(
            range(found.first_class, found.first_class + found.class_count),
            *(getattr(found, field) for field in VocabularyInfo._fields[1:]),
        )

    @staticmethod
    def _pass_options(timeout: float | None) -> _native.trireme_pass_options:
        return _native.trireme_pass_options(
            struct_size=ctypes.sizeof(_native.trireme_pass_options), timeout_ns=nanoseconds(timeout)
        )

    _array = staticmethod(exactly)


class VocabularyParallelEmbedding(_Vocabulary):
    """An embedding whose rows ranks split by classes.

    Each rank holds the weight of `info.classes`: as many rows of `width` elements. One thread at a
    time may use it. Use it in a `with` block, or call close().

    >>> import array
    >>> from trireme import Communicator
    >>> with Communicator(0, 1, "local://embedding-doctest") as group, Tensor(group) as tensor:
    ...     with VocabularyParallelEmbedding(tensor, "tokens", 3, 2, 4) as embedding:
    ...         out = array.array("f", [0] * 4)
    ...         weight = array.array("f", [0, 1, 10, 11, 20, 21])
    ...         embedding.forward(array.array("i", [2, 0]), weight, out)
    ...         list(out)
    [20.0, 21.0, 0.0, 1.0]
    """

    def __init__(
        self,
        tensor: Tensor,
        name: str,
        classes: int,
        width: int,
        rows: int,
        *,
        dtype: Dtype = "f32",
    ) -> None:
        """`classes` are those of all ranks together, and `rows` the most of a pass."""
        super().__init__(
            tensor,
            name=encoded(name),
            classes=in_range(classes, 64, "classes"),
            width=in_range(width, 64, "width"),
            rows=in_range(rows, 64, "rows"),
            dtype=dtype_number(dtype),
        )

    def __enter__(self) -> VocabularyParallelEmbedding:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forward(self, tokens: Any, weight: Any, out: Any, *, timeout: float | None = None) -> None:
        """Writes the rows of all tokens, on every rank. Tokens are of i32 or i64."""
        view, address, rows, code = readable(tokens, None, "tokens")
        given = self._array(
            readable, weight, self._dtype, self._class_count * self._width, "weight"
        )
        result = self._array(writable, out, self._dtype, rows * self._width, "out")
        options = self._pass_options(timeout)
        check(
            library.trireme_vocabulary_embed(
                self._handle, address, code, rows, given[1], result[1], byref(options)
            )
        )
        del view

    def backward(self, tokens: Any, gradients: Any, weight_gradient: Any) -> None:
        """Adds the gradients of rows to that of this rank's weight."""
        view, address, rows, code = readable(tokens, None, "tokens")
        given = self._array(readable, gradients, self._dtype, rows * self._width, "gradients")
        count = self._class_count * self._width
        result = self._array(writable, weight_gradient, self._dtype, count, "weight_gradient")
        check(
            library.trireme_vocabulary_embed_backward(
                self._handle, address, code, rows, given[1], result[1]
            )
        )
        del view


class ParallelCrossEntropy(_Vocabulary):
    """Cross-entropy of logits whose classes ranks split.

    Each rank has the columns of `info.classes`: rows of as many logits. forward() returns what its
    backward() needs, so that several micro-batches may be under way. One thread at a time may use
    it. Use it in a `with` block, or call close().
    """

    def __init__(
        self,
        tensor: Tensor,
        name: str,
        classes: int,
        rows: int,
        *,
        dtype: Dtype = "f32",
        label_smoothing: float = 0,
        z_loss: float = 0,
        ignored_target: int | None = None,
    ) -> None:
        """`classes` are those of all ranks together, and `rows` the most of a pass."""
        super().__init__(
            tensor,
            name=encoded(name),
            classes=in_range(classes, 64, "classes"),
            rows=in_range(rows, 64, "rows"),
            dtype=dtype_number(dtype),
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            flags=0 if ignored_target is None else _native.TRIREME_VOCABULARY_FLAG_IGNORE,
            ignored_target=_signed(ignored_target),
        )
        f64 = dtype_number("f64")
        self._loss_dtype = f64 if self._dtype == f64 else dtype_number("f32")

    def __enter__(self) -> ParallelCrossEntropy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forward(
        self, logits: Any, targets: Any, losses: Any, *, timeout: float | None = None
    ) -> bytearray:
        """Writes the loss of each row, on every rank, and returns the bytes for backward().

        Targets are of i32 or i64. Losses are of f64 if the logits are, else of f32.
        """
        view, address, rows, code = readable(targets, None, "targets")
        given = self._array(readable, logits, self._dtype, rows * self._class_count, "logits")
        result = self._array(writable, losses, self._loss_dtype, rows, "losses")
        kept = bytearray(rows * _native.TRIREME_VOCABULARY_KEPT_BYTES)
        place = writable(kept, "bytes", "kept")
        options = self._pass_options(timeout)
        check(
            library.trireme_vocabulary_loss(
                self._handle, address, code, rows, given[1], result[1], place[1], byref(options)
            )
        )
        del view
        return kept

    def backward(
        self,
        logits: Any,
        targets: Any,
        kept: bytearray,
        gradients: Any,
        loss_gradients: Any = None,
    ) -> None:
        """Writes the gradients of this rank's logits; `gradients` may be `logits`.

        `loss_gradients` has the weight of each row, by default 1: for a mean, 1 / (rows that count).
        """
        view, address, rows, code = readable(targets, None, "targets")
        count = rows * self._class_count
        given = self._array(readable, logits, self._dtype, count, "logits")
        result = self._array(writable, gradients, self._dtype, count, "gradients")
        needed = rows * _native.TRIREME_VOCABULARY_KEPT_BYTES
        saved = self._array(readable, kept, dtype_number("bytes"), needed, "kept")
        weights = (
            (None, None)
            if loss_gradients is None
            else self._array(readable, loss_gradients, self._loss_dtype, rows, "loss_gradients")
        )
        check(
            library.trireme_vocabulary_loss_backward(
                self._handle, address, code, rows, given[1], saved[1], weights[1], result[1]
            )
        )
        del view


def _signed(number: int | None) -> int:
    """A number of 64 bits; ctypes would cut off what is beyond."""
    if number is None:
        return 0
    if not -(2**63) <= number < 2**63:
        raise InvalidArgumentError(
            f"ignored_target is {number}, which does not fit into 64 bits",
            _native.TRIREME_ERROR_INVALID_ARGUMENT,
        )
    return number
