"""Context parallelism: attention over a sequence whose positions lie on several ranks."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import weakref
from ctypes import byref, c_uint64, c_void_p
from typing import Any, Callable, NamedTuple, Sequence

from . import _native
from ._buffer import Owner, view_of
from ._communicator import Communicator
from ._errors import InvalidArgumentError, last_failure, check
from ._fields import instance
from ._native import library
from ._values import (
    LETTERS,
    Dtype,
    Name,
    dtype_name,
    dtype_number,
    encoded,
    in_range,
    nanoseconds,
    number_of,
    readable,
    size_of,
    writable,
    wrong_dtype,
)

CONTEXT_LAYOUTS = {
    "contiguous": _native.TRIREME_CONTEXT_LAYOUT_CONTIGUOUS,
    "zigzag": _native.TRIREME_CONTEXT_LAYOUT_ZIGZAG,
}
CONTEXT_METHODS = {
    "gather": _native.TRIREME_CONTEXT_METHOD_GATHER,
    "ring": _native.TRIREME_CONTEXT_METHOD_RING,
}
_MASKS = {
    _native.TRIREME_ATTENTION_MASK_FULL: "full",
    _native.TRIREME_ATTENTION_MASK_DIAGONAL: "diagonal",
    _native.TRIREME_ATTENTION_MASK_RANGES: "ranges",
}


class ContextInfo(NamedTuple):
    """Sizes and counts of a context on this rank."""

    own_chunks: int  #: Chunks that this rank holds; some may be empty.
    rows: int  #: Positions of this rank; may be 0.
    q_count: int  #: Elements of this rank's queries, and of its outputs.
    kv_count: int  #: Elements of this rank's keys, and of its values.
    kept_count: int  #: f32 numbers that a forward pass keeps for a backward pass.
    pairs: int  #: Chunk pairs that this rank computes in a pass of one sequence.
    forward_passes: int  #: Those that have succeeded.
    backward_passes: int  #: Those that have succeeded.
    forward_memory: int  #: Bytes of memory that a forward pass needs here.
    backward_memory: int  #: Bytes of memory that a backward pass needs here.
    held_memory: int  #: Bytes that the context holds: the larger one of both, of passes so far.
    forward_bytes: int  #: Bytes of this rank that peers read in a forward pass.
    backward_bytes: int  #: Bytes of this rank that peers read in a backward pass of one sequence.


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """One chunk pair, for a caller's own function; see trireme_attention_call of context.h.

    Arrays are flat memoryviews, good until the function returns; numpy.asarray() of one makes no
    copy. A forward call writes `output`, `maximum` and `sum`. A backward call writes `dq`, `dk` and
    `dv`. Those of the other pass are None. f16 and bf16 show as 16-bit integers.
    """

    mask: str  #: "full", "diagonal" or "ranges".
    q_chunk: int  #: Number of the chunk of queries.
    kv_chunk: int  #: Number of the chunk of keys and values.
    q_first: int  #: First position of the queries.
    q_count: int  #: Queries; 1 or more.
    kv_first: int  #: First position of the keys.
    kv_count: int  #: Keys; 1 or more.
    heads: int  #: Query heads.
    kv_heads: int  #: Key/value heads.
    width: int  #: Elements of a head.
    scale: float  #: Factor of q k^T.
    dtype: str  #: Type of q, k, v and d_output.
    visible_first: memoryview[int]  #: For each query the first key that it sees.
    visible_end: memoryview[int]  #: For each query the number behind the last key that it sees.
    q: memoryview[float]  #: q_count rows of heads * width.
    k: memoryview[float]  #: kv_count rows of kv_heads * width.
    v: memoryview[float]  #: kv_count rows of kv_heads * width.
    output: memoryview[float] | None  #: q_count rows of heads * width, not divided by the sum.
    maximum: memoryview[float] | None  #: q_count rows of heads.
    sum: memoryview[float] | None  #: q_count rows of heads.
    d_output: memoryview[float] | None  #: q_count rows of heads * width.
    total_maximum: memoryview[float] | None  #: q_count rows of heads, over all keys.
    total_sum: memoryview[float] | None  #: q_count rows of heads, over all keys.
    delta: memoryview[float] | None  #: q_count rows of heads: output times d_output.
    dq: memoryview[float] | None  #: q_count rows of heads * width.
    dk: memoryview[float] | None  #: kv_count rows of kv_heads * width.
    dv: memoryview[float] | None  #: kv_count rows of kv_heads * width.


PairFunction = Callable[[AttentionCall], object]


class _Pairs:
    """A caller's functions, and what one of them raised."""

    def __init__(self, forward: PairFunction, backward: PairFunction) -> None:
        self.forward = forward
        self.backward = backward
        self.owner: Callable[[], Owner | None] = lambda: None
        self.error: BaseException | None = None
        self.number = next(_numbers)
        _pairs[self.number] = self

    def view(self, raw: Any, name: str, row: int, rows: int, code: int) -> Any:
        address = getattr(raw, name)
        if not address:
            return None
        place = address if isinstance(address, int) else ctypes.addressof(address.contents)
        return view_of(place, rows * row, size_of(code), LETTERS[code], self.owner())

    def call(self, raw: Any) -> AttentionCall:
        f32, u64 = _native.TRIREME_DTYPE_F32, _native.TRIREME_DTYPE_U64
        q_row, kv_row = raw.heads * raw.width, raw.kv_heads * raw.width
        layout = {
            "visible_first": (1, raw.q_count, u64),
            "visible_end": (1, raw.q_count, u64),
            "q": (q_row, raw.q_count, raw.dtype),
            "k": (kv_row, raw.kv_count, raw.dtype),
            "v": (kv_row, raw.kv_count, raw.dtype),
            "output": (q_row, raw.q_count, f32),
            "maximum": (raw.heads, raw.q_count, f32),
            "sum": (raw.heads, raw.q_count, f32),
            "d_output": (q_row, raw.q_count, raw.dtype),
            "total_maximum": (raw.heads, raw.q_count, f32),
            "total_sum": (raw.heads, raw.q_count, f32),
            "delta": (raw.heads, raw.q_count, f32),
            "dq": (q_row, raw.q_count, f32),
            "dk": (kv_row, raw.kv_count, f32),
            "dv": (kv_row, raw.kv_count, f32),
        }
        written = ("output", "maximum", "sum", "dq", "dk", "dv")
        arrays = {name: self.view(raw, name, *shape) for name, shape in layout.items()}
        for name, array in arrays.items():
            if array is not None and name not in written:
                arrays[name] = array.toreadonly()
        numbers = {
            name: getattr(raw, name)
            for name in (
                "q_chunk kv_chunk q_first q_count kv_first kv_count heads kv_heads width scale"
            ).split()
        }
        return AttentionCall(
            mask=_MASKS[raw.mask], dtype=dtype_name(raw.dtype), **numbers, **arrays
        )

    def take_error(self) -> BaseException | None:
        """The exception that a function raised; this forgets it."""
        error, self.error = self.error, None
        return error


_numbers = itertools.count(1)
# The context holds its functions; the library calls them from methods of the context only.
_pairs: weakref.WeakValueDictionary[int, _Pairs] = weakref.WeakValueDictionary()


def _run(raw: Any, number: int, name: str) -> int:
    pairs = _pairs.get(number)
    if pairs is None:
        return 1
    try:
        getattr(pairs, name)(pairs.call(raw.contents))
        return 0
    except BaseException as error:  # nothing may go through the library; the pass raises it
        pairs.error = error
        return 1


def _run_forward(raw: Any, number: int) -> int:
    return _run(raw, number, "forward")


def _run_backward(raw: Any, number: int) -> int:
    return _run(raw, number, "backward")


_forward_callback = _native.trireme_attention_callback(_run_forward)
_backward_callback = _native.trireme_attention_callback(_run_backward)


class Context:
    """One attention of a model, whose positions lie on the ranks of a communicator.

    The sequence has `chunks` chunks. Outputs and gradients have the same bits for every number of
    ranks, both layouts and both methods. Without `forward` and `backward` the library computes
    pairs of chunks itself, in plain loops. With them it calls these functions. An exception of one
    comes out of the pass on its rank, and the other ranks get CallbackError.

    One thread at a time may make a pass. Use it in a `with` block, or call close().

    >>> with Communicator(0, 1, "local://context-doctest") as group:
    ...     with Context(group, "layer 3", 10, 4, heads=2, width=8, causal=True) as context:
    ...         context.positions(), context.info.pairs
    (range(0, 10), 10)
    """

    def __init__(
        self,
        communicator: Communicator,
        name: str,
        positions: int,
        chunks: int,
        *,
        heads: int,
        width: int,
        kv_heads: int = 0,
        causal: bool = False,
        layout: Name = "contiguous",
        method: Name = "gather",
        dtype: Dtype = "f32",
        scale: float = 0,
        forward: PairFunction | None = None,
        backward: PairFunction | None = None,
        timeout: float | None = None,
    ) -> None:
        instance(Communicator, communicator, "communicator")
        if (forward is None) != (backward is None):
            raise TypeError("forward and backward go together: give both functions, or neither")
        options = _native.trireme_context_options(
            struct_size=ctypes.sizeof(_native.trireme_context_options),
            flags=_native.TRIREME_CONTEXT_FLAG_CAUSAL if causal else 0,
            name=encoded(name),
            positions=in_range(positions, 64, "positions"),
            chunks=in_range(chunks, 32, "chunks"),
            layout=number_of(layout, CONTEXT_LAYOUTS, "layout"),
            method=number_of(method, CONTEXT_METHODS, "method"),
            dtype=dtype_number(dtype),
            heads=in_range(heads, 64, "heads"),
            kv_heads=in_range(kv_heads, 64, "kv_heads"),
            width=in_range(width, 64, "width"),
            scale=scale,
            provider=_native.TRIREME_ATTENTION_PROVIDER_BUILTIN,
            timeout_ns=nanoseconds(timeout),
        )
        self._pairs = None
        if forward is not None and backward is not None:
            self._pairs = _Pairs(forward, backward)
            callbacks = _native.trireme_attention_callbacks(
                struct_size=ctypes.sizeof(_native.trireme_attention_callbacks),
                forward=_forward_callback,
                backward=_backward_callback,
                user_data=self._pairs.number,
            )
            options.provider = _native.TRIREME_ATTENTION_PROVIDER_CALLER
            options.callbacks = ctypes.pointer(callbacks)
        handle = c_void_p()
        check(library.trireme_context_create(communicator._handle, byref(options), byref(handle)))
        self._handle = handle.value
        self._close = weakref.finalize(self, library.trireme_context_destroy, self._handle)
        self._rank = communicator.rank
        self._dtype = options.dtype

    def close(self) -> None:
        """Destroys the context."""
        self._close()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> ContextInfo:
        """Sizes and counts so far."""
        found = _native.trireme_context_info(
            struct_size=ctypes.sizeof(_native.trireme_context_info)
        )
        check(library.trireme_context_get_info(self._handle, byref(found)))
        return ContextInfo(*(getattr(found, field) for field in ContextInfo._fields))

    def positions(self, rank: int | None = None) -> range | list[int]:
        """The positions of a rank in the order of its rows, by default of this one."""
        number = self._rank if rank is None else in_range(rank, 31, "rank")
        count = c_uint64()
        check(library.trireme_context_positions(self._handle, number, None, 0, byref(count)))
        found = (c_uint64 * count.value)()
        check(
            library.trireme_context_positions(
                self._handle, number, found, count.value, byref(count)
            )
        )
        listed = list(found)
        if listed and listed[-1] - listed[0] + 1 == len(listed):
            return range(listed[0], listed[-1] + 1)
        return listed

    def attention_forward(
        self,
        q: Any,
        k: Any,
        v: Any,
        output: Any,
        kept: Any,
        *,
        sequence_starts: Sequence[int] = (),
        timeout: float | None = None,
    ) -> None:
        """Computes the attention of this rank's queries over the positions of all ranks.

        Writes `output`, and the info.kept_count f32 numbers `kept` for the backward pass.
        `sequence_starts` are the positions at which further sequences begin.
        """
        read = {"q": q, "k": k, "v": v}
        self._pass(
            library.trireme_context_attention_forward,
            read,
            {"output": output, "kept": kept},
            sequence_starts,
            timeout,
        )

    def attention_backward(
        self,
        q: Any,
        k: Any,
        v: Any,
        output: Any,
        kept: Any,
        d_output: Any,
        dq: Any,
        dk: Any,
        dv: Any,
        *,
        sequence_starts: Sequence[int] = (),
        timeout: float | None = None,
    ) -> None:
        """Computes the gradients `dq`, `dk` and `dv` of this rank, from `d_output`."""
        read = {"q": q, "k": k, "v": v, "output": output, "kept": kept, "d_output": d_output}
        self._pass(
            library.trireme_context_attention_backward,
            read,
            {"dq": dq, "dk": dk, "dv": dv},
            sequence_starts,
            timeout,
        )

    def _pass(
        self,
        call: Callable[..., int],
        read: dict[str, Any],
        written: dict[str, Any],
        sequence_starts: Sequence[int],
        timeout: float | None,
    ) -> None:
        info = self.info
        arrays = _native.trireme_attention_arrays(
            struct_size=ctypes.sizeof(_native.trireme_attention_arrays)
        )
        views = []
        for open_memory, given in ((readable, read), (writable, written)):
            for name, data in given.items():
                view, address = self._memory(open_memory, data, name, info)
                views.append(view)
                place = c_void_p(address)
                float_pointer = ctypes.POINTER(ctypes.c_float)
                setattr(
                    arrays, name, ctypes.cast(place, float_pointer) if name == "kept" else place
                )
        count = len(sequence_starts)
        starts = (c_uint64 * count)(*(in_range(s, 64, "sequence_starts") for s in sequence_starts))
        options = _native.trireme_attention_options(
            struct_size=ctypes.sizeof(_native.trireme_attention_options),
            sequence_starts=ctypes.cast(starts, ctypes.POINTER(c_uint64)),
            sequence_count=count,
            timeout_ns=nanoseconds(timeout),
        )
        code = call(self._handle, byref(arrays), byref(options))
        if code:
            failure = last_failure(code)
            raise (self._pairs.take_error() if self._pairs is not None else None) or failure

    def _memory(
        self, open_memory: Callable[..., Any], data: Any, name: str, info: ContextInfo
    ) -> tuple[memoryview, int | None]:
        """The memory and its address, if it has the type and the length of that array."""
        wanted = _native.TRIREME_DTYPE_F32 if name == "kept" else self._dtype
        count = info.kept_count if name == "kept" else info.q_count
        if name in ("k", "v", "dk", "dv"):
            count = info.kv_count
        try:
            letter = memoryview(data).format[-1:]
        except TypeError:
            letter = "B"  # a Buffer, or no memory at all
        # Memory of bytes, or of 16 bits, does not say its type.
        view, address, found, code = open_memory(data, wanted if letter in "BHhbc" else None, name)
        if code != wanted:
            raise TypeError(
                f"{name} has elements of type {dtype_name(code)}, the context wants "
                f"{dtype_name(wanted)}{wrong_dtype(code, wanted)}"
            )
        if found != count:
            raise InvalidArgumentError(
                f"{name} has {found} elements, but the context wants {count}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        return view, address
