"""Layers whose weights are split between ranks: linear layers, and MLPs made of two."""

from __future__ import annotations

import ctypes
import enum
import weakref
from ctypes import byref, c_void_p
from typing import Any, Callable, NamedTuple

from . import _native
from ._callers import ActivationFunction, Caller, backward_callback, forward_callback
from ._errors import InvalidArgumentError, check, last_failure
from ._fields import instance
from ._native import library
from ._tensor import Tensor
from ._values import (
    Dtype,
    Name,
    dtype_name,
    dtype_number,
    encoded,
    in_range,
    nanoseconds,
    number_of,
    readable,
    writable,
    wrong_dtype,
)

ACTIVATIONS = {
    "relu": _native.TRIREME_ACTIVATION_KIND_RELU,
    "gelu": _native.TRIREME_ACTIVATION_KIND_GELU,
    "gelu_tanh": _native.TRIREME_ACTIVATION_KIND_GELU_TANH,
    "silu": _native.TRIREME_ACTIVATION_KIND_SILU,
    "swiglu": _native.TRIREME_ACTIVATION_KIND_SWIGLU,
}


class ParallelMode(enum.Flag):
    """How ranks split a layer: a layer tells its own as `mode`."""

    COLUMN = enum.auto()  #: Outputs are split.
    ROW = enum.auto()  #: Inputs are split.
    SEQUENCE = enum.auto()  #: Activations between layers are split by rows, too.


class LinearInfo(NamedTuple):
    """Sizes and counts of a linear layer on this rank."""

    first: int  #: The first own output (column) or input (row), within a stretch.
    count: int  #: Own outputs or inputs of each stretch; may be 0.
    weight_rows: int  #: Rows of the own weight.
    weight_columns: int  #: Columns of the own weight.
    bias_count: int  #: Elements of the own bias; 0 without a bias.
    input_rows: int  #: Rows of the own input.
    input_columns: int  #: Columns of the own input.
    output_rows: int  #: Rows of the own output.
    output_columns: int  #: Columns of the own output.
    kept_bytes: int  #: Bytes of `kept`, from forward to backward.
    workspace_bytes: int  #: Of the memory that layers of a tensor object share.
    tile_rows: int  #: Rows that are multiplied and exchanged at a time.
    forward_bytes: int  #: Bytes of this rank that peers read in a forward pass.
    backward_input_bytes: int  #: The same for the gradient of the input.
    backward_weight_bytes: int  #: The same for the gradient of the weight.
    forward_passes: int  #: Those that have succeeded.
    backward_input_passes: int  #: Those that have succeeded.
    backward_weight_passes: int  #: Those that have succeeded.


class MlpInfo(NamedTuple):
    """Sizes and counts of an MLP on this rank."""

    first: int  #: The first own hidden unit.
    count: int  #: Own hidden units; may be 0.
    fc1_rows: int  #: Rows of the own first weight: count, or twice as many with SwiGLU.
    input_rows: int  #: Rows of the own input.
    output_rows: int  #: Rows of the own output.
    kept_bytes: int  #: Bytes of `kept`, from forward to backward.
    workspace_bytes: int  #: Of the memory that layers of a tensor object share.
    tile_rows: int  #: Rows that are multiplied and exchanged at a time.
    forward_bytes: int  #: Bytes of this rank that peers read in a forward pass.
    backward_input_bytes: int  #: The same for the gradient of the input.
    backward_weight_bytes: int  #: The same for the gradients of weights.
    forward_passes: int  #: Those that have succeeded.
    backward_input_passes: int  #: Those that have succeeded.
    backward_weight_passes: int  #: Those that have succeeded.


class _Layer:
    """The common parts of layers: memory of the right type and length, and the end."""

    _activation: Caller | None = None

    def _open(self, tensor: Tensor, mode: ParallelMode, dtype: int, handle: int, end: Any) -> None:
        self._handle = handle
        self._products = tensor._products  # lives as long as the layer, which calls it
        self._close = weakref.finalize(self, end, handle)
        self._dtype = dtype
        self._mode = mode | ParallelMode.SEQUENCE if tensor.sequence else mode

    def close(self) -> None:
        """Destroys the layer; its name is free again."""
        self._close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        """Makes a pass. Raises what a function of the caller has raised in it."""
        code = function(self._handle, *arguments)
        if not code:
            return
        failure: BaseException = last_failure(code)
        for caller in (self._products, self._activation):
            failure = (caller.take_error() if caller is not None else None) or failure
        raise failure

    @property
    def mode(self) -> ParallelMode:
        """How ranks split the layer."""
        return self._mode

    def _array(
        self, opened: Callable[..., Any], data: Any, count: int, what: str, dtype: int | None = None
    ) -> tuple[Any, int | None]:
        """The memory and its address, if it has that dtype, by default the layer's, and length."""
        wanted = self._dtype if dtype is None else dtype
        if data is None:
            if count == 0:
                return None, None
            raise TypeError(f"{what} is None, but the layer wants {count} elements")
        # Words of 16 bits may stand for either narrow type.
        narrow = getattr(data, "itemsize", 0) == 2
        view, address, found, code = opened(data, wanted if narrow else None, what)
        if code != wanted:
            raise TypeError(
                f"{what} has elements of type {dtype_name(code)}, the layer wants "
                f"{dtype_name(wanted)}{wrong_dtype(code, wanted)}"
            )
        if found != count:
            raise InvalidArgumentError(
                f"{what} has {found} elements, but the layer wants {count}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        return view, address

    def _bytes(self, opened: Callable[..., Any], data: Any, count: int) -> tuple[Any, int | None]:
        """The memory of `kept`: at least so many bytes, of any type."""
        if count == 0:
            return None, None
        view, address, _, _ = opened(data, "bytes", "kept")
        if view.nbytes < count:
            raise InvalidArgumentError(
                f"kept has {view.nbytes} bytes, but the layer wants {count}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        return view, address


def _pass(timeout: float | None, add: bool = False) -> _native.trireme_pass_options:
    return _native.trireme_pass_options(
        struct_size=ctypes.sizeof(_native.trireme_pass_options),
        flags=_native.TRIREME_PASS_FLAG_ADD if add else 0,
        timeout_ns=nanoseconds(timeout),
    )


class _Linear(_Layer):
    """A linear layer whose weight is split. Arrays are memory with the buffer protocol."""

    def _make(
        self,
        tensor: Tensor,
        mode: ParallelMode,
        kind: int,
        name: str,
        sizes: tuple[int, int, int],
        dtype: Dtype,
        flags: int,
        stretches: int = 0,
    ) -> None:
        instance(Tensor, tensor, "tensor")
        options = _native.trireme_linear_options(
            struct_size=ctypes.sizeof(_native.trireme_linear_options),
            flags=flags,
            name=encoded(name),
            kind=kind,
            dtype=dtype_number(dtype),
            input=in_range(sizes[0], 64, "input"),
            output=in_range(sizes[1], 64, "output"),
            rows=in_range(sizes[2], 64, "rows"),
            stretches=in_range(stretches, 32, "stretches"),
        )
        handle = c_void_p()
        check(library.trireme_linear_create(tensor._handle, byref(options), byref(handle)))
        assert handle.value is not None
        self._open(tensor, mode, options.dtype, handle.value, library.trireme_linear_destroy)

    def _raw_info(self) -> _native.trireme_linear_info:
        found = _native.trireme_linear_info(struct_size=ctypes.sizeof(_native.trireme_linear_info))
        check(library.trireme_linear_get_info(self._handle, byref(found)))
        return found

    @property
    def info(self) -> LinearInfo:
        """Sizes and counts so far."""
        found = self._raw_info()
        return LinearInfo(*(getattr(found, field) for field in LinearInfo._fields))

    def forward(
        self,
        input: Any,
        weight: Any,
        out: Any,
        *,
        bias: Any = None,
        kept: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Computes out = input * transpose(weight) + bias."""
        info = self._raw_info()
        keeps = info.kept_bytes if self._mode & ParallelMode.COLUMN else 0
        arrays = (
            self._array(readable, input, info.input_rows * info.input_columns, "input"),
            self._array(readable, weight, info.weight_rows * info.weight_columns, "weight"),
            self._array(readable, bias, info.bias_count, "bias"),
            self._array(writable, out, info.output_rows * info.output_columns, "out"),
            self._bytes(writable, kept, keeps),
        )
        addresses = (address for _, address in arrays)
        self._call(library.trireme_linear_forward, *addresses, byref(_pass(timeout)))

    def backward_input(
        self,
        output_gradient: Any,
        weight: Any,
        out: Any,
        *,
        kept: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Computes the gradient of the input."""
        info = self._raw_info()
        keeps = info.kept_bytes if self._mode & ParallelMode.ROW else 0
        given = info.output_rows * info.output_columns
        arrays = (
            self._array(readable, output_gradient, given, "output_gradient"),
            self._array(readable, weight, info.weight_rows * info.weight_columns, "weight"),
            self._array(writable, out, info.input_rows * info.input_columns, "out"),
            self._bytes(writable, kept, keeps),
        )
        addresses = (address for _, address in arrays)
        self._call(library.trireme_linear_backward_input, *addresses, byref(_pass(timeout)))

    def backward_weight(
        self,
        input: Any,
        output_gradient: Any,
        out: Any,
        *,
        bias_out: Any = None,
        kept: Any = None,
        add: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Computes the gradients of weight and bias, or adds them to what is there.

        An array that `kept` holds already, as info.kept_bytes tells, may be None.
        """
        info = self._raw_info()
        given = info.output_rows * info.output_columns
        read = info.input_rows * info.input_columns
        if info.kept_bytes > 0 and self._mode & ParallelMode.COLUMN:
            input, read = None, 0
        elif info.kept_bytes > 0:
            output_gradient, given = None, 0
        wide = info.gradient_dtype
        weights = info.weight_rows * info.weight_columns
        arrays = (
            self._array(readable, input, read, "input"),
            self._array(readable, output_gradient, given, "output_gradient"),
            self._bytes(readable, kept, info.kept_bytes),
            self._array(writable, out, weights, "out", wide),
            self._array(writable, bias_out, info.bias_count, "bias_out", wide),
        )
        addresses = (address for _, address in arrays)
        options = _pass(timeout, add)
        self._call(library.trireme_linear_backward_weight, *addresses, byref(options))

    def backward(
        self,
        input: Any,
        output_gradient: Any,
        weight: Any,
        out: Any,
        weight_out: Any,
        *,
        bias_out: Any = None,
        kept: Any = None,
        add: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Computes what backward_input() and then backward_weight() compute, in one call.

        `out` is the gradient of the input. Between ranks that a transport joins, its exchange goes
        on while the gradient of the weight is made. With `add`, gradients of weight and bias are
        added to what is there. An input that `kept` holds already may be None.
        """
        info = self._raw_info()
        count = info.input_rows * info.input_columns
        read, is_column = count, bool(self._mode & ParallelMode.COLUMN)
        if info.kept_bytes > 0 and is_column:
            input, read = None, 0
        wide = info.gradient_dtype
        weights, given = info.weight_rows * info.weight_columns, info.output_rows
        arrays = (
            self._array(readable, input, read, "input"),
            self._array(readable, output_gradient, given * info.output_columns, "output_gradient"),
            self._array(readable, weight, weights, "weight"),
            self._array(writable, out, count, "out"),
            self._bytes(readable if is_column else writable, kept, info.kept_bytes),
            self._array(writable, weight_out, weights, "weight_out", wide),
            self._array(writable, bias_out, info.bias_count, "bias_out", wide),
        )
        addresses = (address for _, address in arrays)
        options = _pass(timeout, add)
        self._call(library.trireme_linear_backward, *addresses, byref(options))


class ColumnParallelLinear(_Linear):
    """A linear layer whose outputs are split between the ranks.

    A rank's weight has the rows of its outputs. `stretches` splits each of so many equal parts of
    the outputs, such as 3 for queries, keys and values. Use it in a `with` block, or call close().
    """

    def __init__(
        self,
        tensor: Tensor,
        name: str,
        input: int,
        output: int,
        rows: int,
        *,
        dtype: Dtype = "f32",
        bias: bool = False,
        gathered_output: bool = False,
        stretches: int = 0,
    ) -> None:
        flags = (_native.TRIREME_LINEAR_FLAG_BIAS if bias else 0) | (
            _native.TRIREME_LINEAR_FLAG_GATHERED_OUTPUT if gathered_output else 0
        )
        kind = _native.TRIREME_LINEAR_KIND_COLUMN
        sizes = (input, output, rows)
        self._make(tensor, ParallelMode.COLUMN, kind, name, sizes, dtype, flags, stretches)


class RowParallelLinear(_Linear):
    """A linear layer whose inputs are split between the ranks.

    A rank's weight has the columns of its inputs. The bias is whole, and added once to the sum.
    Without `input_split` each rank hands in the whole input. Use it in a `with` block, or call
    close().
    """

    def __init__(
        self,
        tensor: Tensor,
        name: str,
        input: int,
        output: int,
        rows: int,
        *,
        dtype: Dtype = "f32",
        bias: bool = False,
        input_split: bool = True,
    ) -> None:
        flags = (_native.TRIREME_LINEAR_FLAG_BIAS if bias else 0) | (
            _native.TRIREME_LINEAR_FLAG_INPUT_SPLIT if input_split else 0
        )
        kind = _native.TRIREME_LINEAR_KIND_ROW
        self._make(tensor, ParallelMode.ROW, kind, name, (input, output, rows), dtype, flags)


class ParallelMLP(_Layer):
    """A column-parallel layer, an activation and a row-parallel layer.

    `activation` is "gelu", "relu", "gelu_tanh", "silu", "swiglu", or two functions: one for each
    direction, which get each ActivationCall. With `gated` these have two inputs for each output. An
    exception of one comes out of the pass on its rank, and the other ranks get CallbackError. Use
    it in a `with` block, or call close().
    """

    def __init__(
        self,
        tensor: Tensor,
        name: str,
        input: int,
        hidden: int,
        output: int,
        rows: int,
        *,
        activation: Name | tuple[ActivationFunction, ActivationFunction] = "gelu_tanh",
        gated: bool = False,
        dtype: Dtype = "f32",
        bias: bool = False,
    ) -> None:
        instance(Tensor, tensor, "tensor")
        options = _native.trireme_mlp_options(
            struct_size=ctypes.sizeof(_native.trireme_mlp_options),
            flags=(_native.TRIREME_MLP_FLAG_BIAS if bias else 0)
            | (_native.TRIREME_MLP_FLAG_GATED if gated else 0),
            name=encoded(name),
            dtype=dtype_number(dtype),
            activation=_native.TRIREME_ACTIVATION_KIND_CALLER
            if isinstance(activation, tuple)
            else number_of(activation, ACTIVATIONS, "activation"),
            input=in_range(input, 64, "input"),
            hidden=in_range(hidden, 64, "hidden"),
            output=in_range(output, 64, "output"),
            rows=in_range(rows, 64, "rows"),
        )
        if isinstance(activation, tuple):
            forward, backward = activation
            self._activation = Caller(forward=forward, backward=backward)
            options.forward, options.backward = forward_callback, backward_callback
            options.user_data = self._activation.number
        handle = c_void_p()
        check(library.trireme_mlp_create(tensor._handle, byref(options), byref(handle)))
        assert handle.value is not None
        mode = ParallelMode.COLUMN | ParallelMode.ROW
        self._open(tensor, mode, options.dtype, handle.value, library.trireme_mlp_destroy)
        self._input, self._output, self._bias = options.input, options.output, bias

    def _raw_info(self) -> _native.trireme_mlp_info:
        found = _native.trireme_mlp_info(struct_size=ctypes.sizeof(_native.trireme_mlp_info))
        check(library.trireme_mlp_get_info(self._handle, byref(found)))
        return found

    @property
    def info(self) -> MlpInfo:
        """Sizes and counts so far."""
        found = self._raw_info()
        return MlpInfo(*(getattr(found, field) for field in MlpInfo._fields))

    def _parameters(
        self, opened: Callable[..., Any], struct: Any, given: Any, info: Any, dtype: int | None
    ) -> tuple[Any, list[Any]]:
        """The struct of weights or gradients, and the views that keep their memory alive."""
        counts = {
            "fc1_weight": info.fc1_rows * self._input,
            "fc1_bias": info.fc1_rows if self._bias else 0,
            "fc2_weight": self._output * info.count,
            "fc2_bias": self._output if self._bias else 0,
        }
        found = struct(struct_size=ctypes.sizeof(struct))
        views = []
        for (field, count), data in zip(counts.items(), given, strict=True):
            view, address = self._array(opened, data, count, field, dtype)
            views.append(view)
            setattr(found, field, address)
        return found, views

    def forward(
        self, input: Any, weights: Any, out: Any, kept: Any, *, timeout: float | None = None
    ) -> None:
        """Computes the output. `weights` are (fc1, its bias, fc2, its bias); None is no bias."""
        info = self._raw_info()
        read, views = self._parameters(readable, _native.trireme_mlp_weights, weights, info, None)
        one = self._array(readable, input, info.input_rows * self._input, "input")
        two = self._array(writable, out, info.output_rows * self._output, "out")
        memory = self._bytes(writable, kept, info.kept_bytes)
        options = byref(_pass(timeout))
        self._call(library.trireme_mlp_forward, one[1], byref(read), two[1], memory[1], options)
        del views

    def backward_input(
        self,
        output_gradient: Any,
        weights: Any,
        out: Any,
        kept: Any,
        *,
        timeout: float | None = None,
    ) -> None:
        """Computes the gradient of the input."""
        info = self._raw_info()
        read, views = self._parameters(readable, _native.trireme_mlp_weights, weights, info, None)
        given = info.output_rows * self._output
        one = self._array(readable, output_gradient, given, "output_gradient")
        two = self._array(writable, out, info.input_rows * self._input, "out")
        memory = self._bytes(writable, kept, info.kept_bytes)
        options = byref(_pass(timeout))
        self._call(
            library.trireme_mlp_backward_input, one[1], byref(read), two[1], memory[1], options
        )
        del views

    def backward_weight(
        self,
        input: Any,
        output_gradient: Any,
        gradients: Any,
        kept: Any,
        *,
        add: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Computes the gradients of weights and biases, or adds them to what is there.

        An input that `kept` holds already, with `keep_gathered`, may be None. So may the gradient of
        the output with `sequence`.
        """
        info = self._raw_info()
        written, views = self._parameters(
            writable, _native.trireme_mlp_gradients, gradients, info, info.gradient_dtype
        )
        count = 0 if input is None else info.input_rows * self._input
        one = self._array(readable, input, count, "input")
        given = 0 if output_gradient is None else info.output_rows * self._output
        two = self._array(readable, output_gradient, given, "output_gradient")
        memory = self._bytes(readable, kept, info.kept_bytes)
        options = _pass(timeout, add)
        arguments = one[1], two[1], memory[1], byref(written), byref(options)
        self._call(library.trireme_mlp_backward_weight, *arguments)
        del views

    def backward(
        self,
        input: Any,
        output_gradient: Any,
        weights: Any,
        out: Any,
        gradients: Any,
        kept: Any,
        *,
        add: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Computes what backward_input() and then backward_weight() compute, in one call.

        `out` is the gradient of the input. Between ranks that a transport joins, its exchange goes
        on while the gradients of the weights are made. With `add` these are added to what is there.
        An input that `kept` holds already, with `keep_gathered`, may be None.
        """
        info = self._raw_info()
        read, views = self._parameters(readable, _native.trireme_mlp_weights, weights, info, None)
        written, taken = self._parameters(
            writable, _native.trireme_mlp_gradients, gradients, info, info.gradient_dtype
        )
        count = info.input_rows * self._input
        one = self._array(readable, input, 0 if input is None else count, "input")
        given = info.output_rows * self._output
        two = self._array(readable, output_gradient, given, "output_gradient")
        three = self._array(writable, out, count, "out")
        memory = self._bytes(writable, kept, info.kept_bytes)
        options = _pass(timeout, add)
        arguments = one[1], two[1], byref(read), three[1], memory[1], byref(written), byref(options)
        self._call(library.trireme_mlp_backward, *arguments)
        del views, taken
