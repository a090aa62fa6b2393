"""Names, times and memory of the caller as the library wants them."""

from __future__ import annotations

import difflib
import operator
import sys
from ctypes import addressof, c_char
from typing import Any, Iterable, Mapping, Sequence, Union

from . import _native
from ._errors import InvalidArgumentError
from ._native import address_of

from_buffer = c_char.from_buffer

Name = Union[str, int]  #: "sum" or its number; the same for strategies and the like.
#: "f32", its number, or what numpy, torch and others call it: numpy.float32, "float32".
Dtype = Any

#: In place of None where the library wants a time and the caller names none.
FOREVER_NS = (1 << 63) - 1

DTYPES = {
    "i8": _native.TRIREME_DTYPE_I8,
    "u8": _native.TRIREME_DTYPE_U8,
    "i16": _native.TRIREME_DTYPE_I16,
    "u16": _native.TRIREME_DTYPE_U16,
    "i32": _native.TRIREME_DTYPE_I32,
    "u32": _native.TRIREME_DTYPE_U32,
    "i64": _native.TRIREME_DTYPE_I64,
    "u64": _native.TRIREME_DTYPE_U64,
    "f16": _native.TRIREME_DTYPE_F16,
    "bf16": _native.TRIREME_DTYPE_BF16,
    "f32": _native.TRIREME_DTYPE_F32,
    "f64": _native.TRIREME_DTYPE_F64,
    "f8e4m3": _native.TRIREME_DTYPE_F8E4M3,
    "f8e5m2": _native.TRIREME_DTYPE_F8E5M2,
    "bool": _native.TRIREME_DTYPE_BOOL,
    "bytes": _native.TRIREME_DTYPE_BYTES,
}
REDUCTIONS = {
    "sum": _native.TRIREME_REDUCTION_SUM,
    "average": _native.TRIREME_REDUCTION_AVERAGE,
    "product": _native.TRIREME_REDUCTION_PRODUCT,
    "min": _native.TRIREME_REDUCTION_MIN,
    "max": _native.TRIREME_REDUCTION_MAX,
    "band": _native.TRIREME_REDUCTION_BAND,
    "bor": _native.TRIREME_REDUCTION_BOR,
    "bxor": _native.TRIREME_REDUCTION_BXOR,
    "scaled_sum": _native.TRIREME_REDUCTION_SCALED_SUM,
}
PRIORITIES = {
    "normal": _native.TRIREME_PRIORITY_NORMAL,
    "high": _native.TRIREME_PRIORITY_HIGH,
}
#: By the library's own names.
ALGORITHMS: dict[str, int] = {
    _native.library.trireme_algorithm_name(number).decode(): number
    for number in range(_native.TRIREME_ALGORITHM_NATIVE + 1)
}
OPERATIONS = {
    "all_reduce": _native.TRIREME_OPERATION_KIND_ALL_REDUCE,
    "reduce_scatter": _native.TRIREME_OPERATION_KIND_REDUCE_SCATTER,
    "reduce_scatter_v": _native.TRIREME_OPERATION_KIND_REDUCE_SCATTER_V,
    "all_gather": _native.TRIREME_OPERATION_KIND_ALL_GATHER,
    "all_gather_v": _native.TRIREME_OPERATION_KIND_ALL_GATHER_V,
    "broadcast": _native.TRIREME_OPERATION_KIND_BROADCAST,
    "barrier": _native.TRIREME_OPERATION_KIND_BARRIER,
    "send": _native.TRIREME_OPERATION_KIND_SEND,
    "receive": _native.TRIREME_OPERATION_KIND_RECEIVE,
    "reduce": _native.TRIREME_OPERATION_KIND_REDUCE,
    "gather": _native.TRIREME_OPERATION_KIND_GATHER,
    "gather_v": _native.TRIREME_OPERATION_KIND_GATHER_V,
    "scatter": _native.TRIREME_OPERATION_KIND_SCATTER,
    "scatter_v": _native.TRIREME_OPERATION_KIND_SCATTER_V,
    "all_to_all": _native.TRIREME_OPERATION_KIND_ALL_TO_ALL,
    "all_to_all_v": _native.TRIREME_OPERATION_KIND_ALL_TO_ALL_V,
    "probe": _native.TRIREME_OPERATION_KIND_PROBE,
}
DEVICES = {"host": _native.TRIREME_DEVICE_HOST, "cuda": _native.TRIREME_DEVICE_CUDA}
GRADIENTS = {
    "average": _native.TRIREME_GRADIENTS_AVERAGE,
    "sum": _native.TRIREME_GRADIENTS_SUM,
}
UNUSED = {
    "error": _native.TRIREME_UNUSED_ERROR,
    "zero": _native.TRIREME_UNUSED_ZERO,
    "skip": _native.TRIREME_UNUSED_SKIP,
}
STATES = {
    _native.TRIREME_STATE_KIND_PARAMETER: "parameter",
    _native.TRIREME_STATE_KIND_OPTIMIZER: "optimizer",
    _native.TRIREME_STATE_KIND_ROWS: "rows",
    _native.TRIREME_STATE_KIND_COLUMNS: "columns",
}
MOMENTS = {
    _native.TRIREME_HOOK_BEFORE: "before",
    _native.TRIREME_HOOK_AFTER: "after",
}
SCHEDULES = {
    "constant": _native.TRIREME_SCHEDULE_KIND_CONSTANT,
    "linear": _native.TRIREME_SCHEDULE_KIND_LINEAR,
    "cosine": _native.TRIREME_SCHEDULE_KIND_COSINE,
    "one_cycle": _native.TRIREME_SCHEDULE_KIND_ONE_CYCLE,
    "user": _native.TRIREME_SCHEDULE_KIND_USER,
}
LOG_LEVELS = {
    "error": _native.TRIREME_LOG_ERROR,
    "warning": _native.TRIREME_LOG_WARNING,
    "info": _native.TRIREME_LOG_INFO,
    "debug": _native.TRIREME_LOG_DEBUG,
}

_SIZES = {code: int(_native.library.trireme_dtype_bytes(code)) for code in DTYPES.values()}
_NAMES = {code: name for name, code in DTYPES.items()}

# Letters of the struct module by what they hold; the size decides the rest.
_KINDS = {
    **dict.fromkeys("bhilqn", "i"),
    **dict.fromkeys("BHILQN", "u"),
    **dict.fromkeys("efd", "f"),
}
_NATIVE_ORDER = "@=<" if sys.byteorder == "little" else "@=>!"
# Native letters, for the common case. array.array, numpy and bytes give these.
_FORMATS = {
    "b": _native.TRIREME_DTYPE_I8,
    "B": _native.TRIREME_DTYPE_U8,
    "c": _native.TRIREME_DTYPE_U8,
    "h": _native.TRIREME_DTYPE_I16,
    "H": _native.TRIREME_DTYPE_U16,
    "i": _native.TRIREME_DTYPE_I32,
    "I": _native.TRIREME_DTYPE_U32,
    "q": _native.TRIREME_DTYPE_I64,
    "Q": _native.TRIREME_DTYPE_U64,
    "e": _native.TRIREME_DTYPE_F16,
    "f": _native.TRIREME_DTYPE_F32,
    "d": _native.TRIREME_DTYPE_F64,
    "?": _native.TRIREME_DTYPE_BOOL,
}
#: The letter under which a memoryview shows elements of a dtype; None where Python has none.
LETTERS = {
    _native.TRIREME_DTYPE_I8: "b",
    _native.TRIREME_DTYPE_U8: "B",
    _native.TRIREME_DTYPE_I16: "h",
    _native.TRIREME_DTYPE_U16: "H",
    _native.TRIREME_DTYPE_I32: "i",
    _native.TRIREME_DTYPE_U32: "I",
    _native.TRIREME_DTYPE_I64: "q",
    _native.TRIREME_DTYPE_U64: "Q",
    _native.TRIREME_DTYPE_F32: "f",
    _native.TRIREME_DTYPE_F64: "d",
    _native.TRIREME_DTYPE_BOOL: "?",
    _native.TRIREME_DTYPE_BYTES: "B",
    _native.TRIREME_DTYPE_F8E4M3: "B",
    _native.TRIREME_DTYPE_F8E5M2: "B",
    _native.TRIREME_DTYPE_F16: "H",
    _native.TRIREME_DTYPE_BF16: "H",
}


def in_range(number: int, bits: int, what: str) -> int:
    """The number, if it fits: ctypes would cut it without a word. Signed for 31 and 63 bits."""
    low = -(1 << bits) if bits % 2 else 0
    if not low <= number < 1 << bits:
        raise InvalidArgumentError(
            f"{what} {number} is out of range", _native.TRIREME_ERROR_INVALID_ARGUMENT
        )
    return number


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def nearest(name: str, known: Iterable[str]) -> str:
    """'; is "weight" meant?', or nothing."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; is {close[0]!r} meant?" if close else ""


def number_of(name: Name, table: Mapping[str, int], what: str) -> int:
    """The number of a name in any case. A number goes through: the library judges it."""
    if isinstance(name, str):
        code = table.get(name)
        if code is None:
            code = {_plain(known): number for known, number in table.items()}.get(_plain(name))
        if code is None:
            raise InvalidArgumentError(
                f"{what} {name!r} is none of {', '.join(table)}{nearest(name, table)}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        return code
    try:
        return in_range(operator.index(name), 31, what)
    except TypeError:
        raise InvalidArgumentError(
            f"{what} {name!r} is none of {', '.join(table)}, and no number",
            _native.TRIREME_ERROR_INVALID_ARGUMENT,
        ) from None


# By the names of numpy, torch and ml_dtypes; Python's own float, int and bool as numpy reads them.
_DTYPE_WORDS = {
    "int8": "i8",
    "uint8": "u8",
    "int16": "i16",
    "uint16": "u16",
    "int32": "i32",
    "uint32": "u32",
    "int64": "i64",
    "uint64": "u64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "half": "f16",
    "double": "f64",
    "bool_": "bool",
}
_DTYPE_OF_TYPE = {float: "f64", int: "i64", bool: "bool"}


def dtype_number(dtype: Dtype, what: str = "dtype") -> int:
    """The number of a dtype: of its name here, of numpy, of torch, or the number itself."""
    if not isinstance(dtype, str):
        try:
            return in_range(operator.index(dtype), 31, what)
        except TypeError:
            pass
        if getattr(dtype, "isnative", True) is False:
            raise InvalidArgumentError(
                f"{what} {dtype!r} has the other byte order; .astype() makes native elements",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        word = getattr(dtype, "name", None)  # of numpy.dtype; types and torch.float32 have none
        if not isinstance(word, str):
            word = getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]
        dtype = _DTYPE_OF_TYPE.get(dtype, word) if isinstance(dtype, type) else word
    word = str(dtype).lower()
    return number_of(_DTYPE_WORDS.get(word, word), DTYPES, what)


def dtype_name(code: int) -> str:
    return _NAMES.get(code, "unknown")


def size_of(code: int) -> int:
    return _SIZES.get(code, 0)


def nanoseconds(seconds: float | None, what: str = "timeout") -> int:
    """0, the library's default, for None; at least 1 otherwise, as 0 seconds is no default."""
    if seconds is None:
        return 0
    if not seconds >= 0:
        raise InvalidArgumentError(
            f"{what} {seconds!r} is negative or no number", _native.TRIREME_ERROR_INVALID_ARGUMENT
        )
    return max(1, int(min(seconds * 1e9, FOREVER_NS)))


def encoded(text: str | None) -> bytes | None:
    if text is None:
        return None
    if "\0" in text:  # the library would see a shorter text
        raise InvalidArgumentError(
            f"{text!r} holds a null character", _native.TRIREME_ERROR_INVALID_ARGUMENT
        )
    return text.encode()


def check_shape(view: memoryview, code: int, shape: Sequence[int], what: str, of: str) -> None:
    """Refuses memory of another shape. One dimension is right: the library compares its length."""
    if view.ndim > 1 and view.itemsize == size_of(code) and tuple(view.shape) != tuple(shape):
        raise InvalidArgumentError(
            f"{what} has the shape {list(view.shape)}, but {of} has {list(shape)}; transpose it, or "
            "hand in its elements as they lie, for example by .reshape(-1)",
            _native.TRIREME_ERROR_INVALID_ARGUMENT,
        )


#: The names of dtypes in numpy.
_NUMPY_NAMES = {short: word for word, short in reversed(_DTYPE_WORDS.items()) if word != "half"}


def wrong_dtype(given: int, wanted: int) -> str:
    """Advice for a caller that handed in elements of another dtype; "" if the dtype is right."""
    word = _NUMPY_NAMES.get(dtype_name(wanted))
    if given == wanted or word is None or word == "bfloat16" or word.startswith("float8"):
        return ""
    return f"; a numpy array has them after .astype(numpy.{word})"


def _how_to_memory(data: Any) -> str:
    """How to make memory of what is none."""
    if hasattr(data, "detach") and hasattr(data, "numpy"):
        return (
            "; .detach().numpy() is the memory of a tensor on the CPU, without a copy (of bfloat16: "
            '.detach().view(torch.int16).numpy() with dtype="bf16")'
        )
    if hasattr(data, "__array__"):
        return "; numpy.asarray() makes it, of this object perhaps a copy"
    if isinstance(data, (list, tuple, int, float)):
        return "; numpy.array(..., dtype=numpy.float32) or array.array makes it"
    return ""


def _code_of_format(view: memoryview, what: str) -> int:
    letter = view.format
    if len(letter) == 2 and letter[0] in _NATIVE_ORDER:
        letter = letter[1]
    code = _FORMATS.get(letter)
    if code is not None and _SIZES[code] == view.itemsize:
        return code
    if letter in _KINDS:
        code = DTYPES.get(f"{_KINDS[letter]}{8 * view.itemsize}")
        if code is not None:
            return code
    raise TypeError(
        f"{what} has elements of format {view.format!r}, which has no dtype here; a numpy array has "
        "one after .astype(numpy.float32), or another of its types"
    )


def code_of_name(view: memoryview, dtype: Dtype, what: str) -> int:
    """The dtype that the caller names, if the memory can hold it."""
    code = dtype_number(dtype)
    size = _SIZES.get(code)
    if size is None or code == _native.TRIREME_DTYPE_BYTES:
        return code  # the library refuses a number that is no dtype
    letter = view.format[-1:]
    if view.itemsize == 1 and letter in "Bbc":
        if view.nbytes % size:
            raise ValueError(
                f"{what} has {view.nbytes} bytes, no multiple of {size}, the size of {_NAMES[code]}"
            )
        return code
    floats = code in (_native.TRIREME_DTYPE_F16, _native.TRIREME_DTYPE_BF16)
    # torch has no unsigned 16 bits.
    integers_as_bits = view.itemsize == size and (letter in "BHILQN" or floats and letter == "h")
    if integers_as_bits and (len(view.format) == 1 or view.format[0] in _NATIVE_ORDER):
        return code
    deduced = _code_of_format(view, what)
    if deduced != code:
        raise TypeError(
            f"{what} has elements of type {_NAMES[deduced]}, not {_NAMES[code]}"
            + wrong_dtype(deduced, code)
        )
    return code


def readable(data: Any, dtype: Dtype | None, what: str) -> tuple[memoryview, int | None, int, int]:
    """View, address, count and dtype of memory that the library reads. The view keeps it alive."""
    try:
        view = memoryview(data)
    except TypeError:
        memory = getattr(data, "memory", None)  # Buffer: Python 3.11 cannot export it directly
        if not isinstance(memory, memoryview):
            raise TypeError(
                f"{what} must be memory with the buffer protocol, such as an array, a bytearray or "
                f"a memoryview, not {type(data).__name__}{_how_to_memory(data)}"
            ) from None
        view = memory
    if not view.c_contiguous:
        raise ValueError(
            f"{what} is not contiguous; copy it first, for example with numpy.ascontiguousarray"
        )
    if dtype is None:
        code = _FORMATS.get(view.format) or _code_of_format(view, what)
    else:
        code = code_of_name(view, dtype, what)
    return view, address_of(view), view.nbytes // (_SIZES.get(code) or 1), code


def writable(data: Any, dtype: Dtype | None, what: str) -> tuple[memoryview, int | None, int, int]:
    """The same for memory that the library writes."""
    if dtype is None:  # the common case, in as few steps as possible
        try:
            view = memoryview(data)
            code = _FORMATS[view.format]
            if view.c_contiguous:
                # Refused if it is read-only or empty; the general way then says why or does it.
                return view, addressof(from_buffer(view)), view.nbytes // view.itemsize, code
        except (TypeError, KeyError, ValueError):
            pass
    found = readable(data, dtype, what)
    if found[0].readonly:
        raise TypeError(f"{what} is read-only, and the operation writes to it; pass a copy")
    return found
