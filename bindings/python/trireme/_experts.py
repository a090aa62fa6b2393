"""Mixture of experts: rows go to the ranks that hold their experts, and come back."""

from __future__ import annotations

import array
import ctypes
import weakref
from ctypes import byref, c_double, c_float, c_int32, c_uint64, c_void_p
from typing import Any, NamedTuple, Sequence

from . import _native
from ._arrays import bytes_of_flags, elements, exactly
from ._communicator import Communicator
from ._errors import InvalidArgumentError, check
from ._fields import instance
from ._native import library
from ._values import (
    Dtype,
    Name,
    dtype_number,
    encoded,
    in_range,
    nanoseconds,
    number_of,
    readable,
    writable,
)

EXPERTS_SCORES = {
    "logits": _native.TRIREME_EXPERTS_SCORES_LOGITS,
    "probabilities": _native.TRIREME_EXPERTS_SCORES_PROBABILITIES,
}
EXPERTS_DROPS = {
    "none": _native.TRIREME_EXPERTS_DROP_NONE,
    "last": _native.TRIREME_EXPERTS_DROP_LAST,
    "lowest_weight": _native.TRIREME_EXPERTS_DROP_LOWEST_WEIGHT,
}


class ExpertsInfo(NamedTuple):
    """Sizes and counts of a layer of experts on this rank."""

    own_experts: range  #: The experts of this rank; may be empty.
    own_leaves: range  #: The leaves of this rank's rows.
    leaves: int  #: Leaves of all ranks.
    most_received: int  #: Most rows that a dispatch pass brings to this rank.
    most_sent: int  #: Most slots of this rank's rows that are routed in a pass.
    kept_bytes: int  #: Bytes that a routing keeps.
    table_bytes: int  #: Memory of the layer's tables.
    pass_memory: int  #: Bytes of memory that the passes which move rows need here.
    held_memory: int  #: Bytes of it that the layer holds: none before the first such pass.
    route_bytes: int  #: Bytes of this rank that peers read in a route pass.
    routes: int  #: Route passes that have succeeded.
    dispatches: int  #: Dispatch passes that have succeeded.
    combines: int  #: Combine passes that have succeeded.
    combines_backward: int  #: Backward combine passes that have succeeded.
    dispatches_backward: int  #: Backward dispatch passes that have succeeded.


def _pointer(address: int | None, element: Any = c_float) -> Any:
    return ctypes.cast(c_void_p(address), ctypes.POINTER(element))


class Routing:
    """The decisions of one route pass, which the other passes of its rows need."""

    def __init__(self, info: ExpertsInfo, rows: int, top_k: int, experts: int) -> None:
        self._kept = bytearray(info.kept_bytes)
        self._own = info.own_experts
        self._leaves = info.leaves
        self._segments = (c_uint64 * (len(info.own_experts) * info.leaves + 1))()
        self._expert_rows = (c_uint64 * experts)()
        self._expert_dropped = (c_uint64 * experts)()
        self._means = (c_double * experts)()
        self._rows = rows
        self._top_k = top_k
        self._info = _native.trireme_experts_route_info(
            struct_size=ctypes.sizeof(_native.trireme_experts_route_info)
        )
        #: Rows of experts. -1 for a slot that is not routed.
        self.chosen = array.array("i", bytes(4 * rows * top_k))
        #: Rows of weights; 0 in padding rows.
        self.weights = array.array("f", bytes(4 * rows * top_k))

    @property
    def rows(self) -> int:
        """Rows of this rank."""
        return self._rows

    @property
    def slots(self) -> int:
        """Rows of this rank times the experts that a row chooses."""
        return self._rows * self._top_k

    @property
    def received_rows(self) -> int:
        """Rows that dispatch() brings to this rank."""
        return self._info.received_rows

    @property
    def sent_rows(self) -> int:
        """Slots of this rank that are routed."""
        return self._info.sent_rows

    @property
    def real_rows(self) -> int:
        """Rows of all ranks that are no padding."""
        return self._info.real_rows

    @property
    def dispatch_bytes(self) -> int:
        """Bytes of this rank that peers read in dispatch() or combine_backward()."""
        return self._info.dispatch_bytes

    @property
    def combine_bytes(self) -> int:
        """Bytes of this rank that peers read in combine() or dispatch_backward()."""
        return self._info.combine_bytes

    @property
    def expert_rows(self) -> list[int]:
        """For each expert the rows of all ranks that chose it, dropped ones among them."""
        return list(self._expert_rows)

    @property
    def expert_dropped(self) -> list[int]:
        """For each expert the rows of all ranks that it dropped."""
        return list(self._expert_dropped)

    @property
    def mean_probabilities(self) -> list[float]:
        """For each expert the mean of its probabilities over all rows that are no padding."""
        return list(self._means)

    def segment(self, expert: int, leaf: int) -> range:
        """The received rows of an expert of this rank that come from a leaf."""
        if expert not in self._own or not 0 <= leaf < self._leaves:
            own = f"experts {self._own.start} to {self._own.stop - 1}" if self._own else "no expert"
            raise InvalidArgumentError(
                f"expert {expert} and leaf {leaf}: this rank has {own}, and leaves are 0 to "
                f"{self._leaves - 1}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        at = (expert - self._own.start) * self._leaves + leaf
        return range(self._segments[at], self._segments[at + 1])

    def _arrays(self, scores: int | None) -> _native.trireme_experts_route_arrays:
        return _native.trireme_experts_route_arrays(
            struct_size=ctypes.sizeof(_native.trireme_experts_route_arrays),
            rows=self._rows,
            scores=_pointer(scores),
            kept=writable(self._kept, "bytes", "kept")[1],
            segments=self._segments,
            chosen=_pointer(self.chosen.buffer_info()[0], c_int32),
            weights=_pointer(self.weights.buffer_info()[0]),
            expert_rows=self._expert_rows,
            expert_dropped=self._expert_dropped,
            mean_probabilities=self._means,
        )


class Experts:
    """A layer of experts that lie on the ranks of a communicator.

    Rank r of R has experts [rE/R, (r+1)E/R). A step calls route(), dispatch(), combine(), and then
    combine_backward(), dispatch_backward() and route_backward(). The caller computes the router's
    scores and the experts in between. All passes but the last are collective.

    One thread at a time may make a pass. Use it in a `with` block, or call close().

    >>> import array
    >>> with Communicator(0, 1, "local://experts-doctest") as group:
    ...     with Experts(group, "moe 3", 3, 1, width=1, rows=2) as experts:
    ...         routing = experts.route(array.array("f", [0, 5, 1, 9, 2, 2]))
    ...         received = array.array("f", [0, 0])
    ...         experts.dispatch(routing, array.array("f", [10, 20]), received)
    ...         list(routing.chosen), list(received), routing.segment(1, 0)
    ([1, 0], [20.0, 10.0], range(1, 2))
    """

    def __init__(
        self,
        communicator: Communicator,
        name: str,
        experts: int,
        top_k: int,
        *,
        width: int,
        rows: int,
        dtype: Dtype = "f32",
        scores: Name = "logits",
        normalize: bool = False,
        capacity: int = 0,
        drop: Name = "none",
        leaves: int = 0,
        timeout: float | None = None,
    ) -> None:
        """`experts` are those of all ranks together, and `rows` the most of this rank in a pass."""
        instance(Communicator, communicator, "communicator")
        options = _native.trireme_experts_options(
            struct_size=ctypes.sizeof(_native.trireme_experts_options),
            flags=_native.TRIREME_EXPERTS_FLAG_NORMALIZE if normalize else 0,
            name=encoded(name),
            experts=in_range(experts, 32, "experts"),
            top_k=in_range(top_k, 32, "top_k"),
            width=in_range(width, 64, "width"),
            rows=in_range(rows, 64, "rows"),
            dtype=dtype_number(dtype),
            scores=number_of(scores, EXPERTS_SCORES, "scores"),
            capacity=in_range(capacity, 64, "capacity"),
            drop=number_of(drop, EXPERTS_DROPS, "drop"),
            leaves=in_range(leaves, 32, "leaves"),
            timeout_ns=nanoseconds(timeout),
        )
        handle = c_void_p()
        check(library.trireme_experts_create(communicator._handle, byref(options), byref(handle)))
        self._handle = handle.value
        self._close = weakref.finalize(self, library.trireme_experts_destroy, self._handle)
        self._dtype = options.dtype
        self._width = options.width
        self._experts = options.experts
        self._top_k = options.top_k
        self._kept_bytes = self.info.kept_bytes

    def close(self) -> None:
        """Destroys the layer."""
        self._close()

    def __enter__(self) -> Experts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> ExpertsInfo:
        """Sizes and counts so far."""
        found = _native.trireme_experts_info(
            struct_size=ctypes.sizeof(_native.trireme_experts_info)
        )
        check(library.trireme_experts_get_info(self._handle, byref(found)))
        return ExpertsInfo(
            range(found.first_expert, found.first_expert + found.expert_count),
            range(found.first_leaf, found.first_leaf + found.leaf_count),
            *(getattr(found, field) for field in ExpertsInfo._fields[2:]),
        )

    def route(
        self,
        scores: Any,
        *,
        padding: Any = None,
        leaf_rows: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Routing:
        """Chooses the experts of this rank's rows. `scores` has a row of `experts` f32 for each.

        `padding` has a byte for each row; one that is not 0 marks a padding row. `leaf_rows` are
        the rows of each of this rank's leaves, if it has several.
        """
        count = elements(scores, dtype_number("f32"), "scores")
        if count % self._experts:
            raise InvalidArgumentError(
                f"scores has {count} elements, no multiple of the {self._experts} experts",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        given = self._floats(readable, scores, count, "scores")
        info = self.info
        routing = Routing(info, count // self._experts, self._top_k, self._experts)
        arrays = routing._arrays(given[1])
        if padding is not None:
            marks = exactly(
                readable, bytes_of_flags(padding), dtype_number("u8"), routing.rows, "padding"
            )
            arrays.padding = _pointer(marks[1], ctypes.c_uint8)
        if leaf_rows is not None:
            if len(leaf_rows) != len(info.own_leaves):
                raise InvalidArgumentError(
                    f"leaf_rows has {len(leaf_rows)} numbers, but this rank has "
                    f"{len(info.own_leaves)} leaves",
                    _native.TRIREME_ERROR_INVALID_ARGUMENT,
                )
            arrays.leaf_rows = (c_uint64 * len(leaf_rows))(
                *(in_range(each, 64, "leaf_rows") for each in leaf_rows)
            )
        options = self._pass_options(timeout)
        check(
            library.trireme_experts_route(
                self._handle, byref(arrays), byref(routing._info), byref(options)
            )
        )
        return routing

    def dispatch(
        self, routing: Routing, rows: Any, received: Any, *, timeout: float | None = None
    ) -> None:
        """Brings routed rows to their experts: by expert, by leaf, in the order of rows.

        `received` has `routing.received_rows` rows.
        """
        given = self._rows(readable, rows, routing.rows, "rows")
        result = self._rows(writable, received, routing.received_rows, "received")
        options = self._pass_options(timeout)
        check(
            library.trireme_experts_dispatch(
                self._handle, self._kept(routing), given[1], result[1], byref(options)
            )
        )

    def combine(
        self,
        routing: Routing,
        results: Any,
        output: Any,
        *,
        returned: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Brings results back, and adds those of each row, each times its weight.

        `returned` gets the `routing.sent_rows` results, which combine_backward() needs.
        """
        given = self._rows(readable, results, routing.received_rows, "results")
        result = self._rows(writable, output, routing.rows, "output")
        back: tuple[Any, int | None] = (None, None)
        if returned is not None:
            back = self._rows(writable, returned, routing.sent_rows, "returned")
        options = self._pass_options(timeout)
        check(
            library.trireme_experts_combine(
                self._handle, self._kept(routing), given[1], back[1], result[1], byref(options)
            )
        )

    def combine_backward(
        self,
        routing: Routing,
        d_output: Any,
        returned: Any,
        d_results: Any,
        d_weights: Any,
        *,
        timeout: float | None = None,
    ) -> None:
        """Brings gradients of results to their experts, and writes those of weights, in f32."""
        given = self._rows(readable, d_output, routing.rows, "d_output")
        back = self._rows(readable, returned, routing.sent_rows, "returned")
        result = self._rows(writable, d_results, routing.received_rows, "d_results")
        weights = self._floats(writable, d_weights, routing.slots, "d_weights")
        options = self._pass_options(timeout)
        check(
            library.trireme_experts_combine_backward(
                self._handle,
                self._kept(routing),
                given[1],
                back[1],
                result[1],
                _pointer(weights[1]),
                byref(options),
            )
        )

    def dispatch_backward(
        self, routing: Routing, d_received: Any, d_rows: Any, *, timeout: float | None = None
    ) -> None:
        """Brings gradients of received rows back, and adds those of each row."""
        given = self._rows(readable, d_received, routing.received_rows, "d_received")
        result = self._rows(writable, d_rows, routing.rows, "d_rows")
        options = self._pass_options(timeout)
        check(
            library.trireme_experts_dispatch_backward(
                self._handle, self._kept(routing), given[1], result[1], byref(options)
            )
        )

    def route_backward(
        self,
        routing: Routing,
        scores: Any,
        d_weights: Any,
        d_scores: Any,
        *,
        d_mean_probabilities: Any = None,
    ) -> None:
        """Writes the gradients of this rank's scores, in f32; `d_scores` may be `scores`.

        `d_mean_probabilities` has an f64 for each expert, the same on all ranks.
        """
        count = routing.rows * self._experts
        given = self._floats(readable, scores, count, "scores")
        weights = self._floats(readable, d_weights, routing.slots, "d_weights")
        result = self._floats(writable, d_scores, count, "d_scores")
        means: tuple[Any, int | None] = (None, None)
        if d_mean_probabilities is not None:
            means = exactly(
                readable,
                d_mean_probabilities,
                dtype_number("f64"),
                self._experts,
                "d_mean_probabilities",
            )
        check(
            library.trireme_experts_route_backward(
                self._handle,
                self._kept(routing),
                _pointer(given[1]),
                _pointer(weights[1]),
                _pointer(means[1], c_double),
                _pointer(result[1]),
            )
        )

    def _kept(self, routing: Routing) -> int | None:
        """The library reads as many bytes of a routing as one of its own has."""
        instance(Routing, routing, "routing")
        if len(routing._kept) != self._kept_bytes:
            raise InvalidArgumentError(
                f"the routing keeps {len(routing._kept)} bytes, but one of this layer keeps "
                f"{self._kept_bytes}: it is another layer's",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        return writable(routing._kept, "bytes", "kept")[1]

    def _rows(self, open_memory: Any, data: Any, rows: int, what: str) -> tuple[Any, int | None]:
        return exactly(open_memory, data, self._dtype, rows * self._width, what)

    @staticmethod
    def _floats(open_memory: Any, data: Any, count: int, what: str) -> tuple[Any, int | None]:
        return exactly(open_memory, data, dtype_number("f32"), count, what)

    @staticmethod
    def _pass_options(timeout: float | None) -> _native.trireme_pass_options:
        return _native.trireme_pass_options(
            struct_size=ctypes.sizeof(_native.trireme_pass_options), timeout_ns=nanoseconds(timeout)
        )
