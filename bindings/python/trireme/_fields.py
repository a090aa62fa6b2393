"""The kinds of fields of the generated classes of options, and the base of these classes."""

from __future__ import annotations

import ctypes
import operator
import os
import reprlib
from ctypes import c_double
from typing import Any, ClassVar, Mapping, TypeVar

from . import _native
from ._errors import InvalidArgumentError
from ._values import in_range, number_of


def _wrong(what: str, wanted: str, value: object) -> TypeError:
    shown = f"{reprlib.repr(value)} of type {type(value).__name__}"
    return TypeError(f"{what} must be {wanted}, not {shown}")


def number(value: Any, what: str) -> float:
    """A number of any type, such as numpy's. Texts and bools are none, as they may be mistakes."""
    if not isinstance(value, (str, bytes, bytearray, bool)):
        try:
            return float(value)
        except TypeError:
            pass
        except OverflowError:  # an int beyond all floats
            raise InvalidArgumentError(
                f"{what} {value!r} is out of range", _native.TRIREME_ERROR_INVALID_ARGUMENT
            ) from None
    raise _wrong(what, "a number", value)


def whole(value: Any, bits: int, what: str) -> int:
    """A whole number of any type that fits."""
    if not isinstance(value, bool):
        try:
            return in_range(operator.index(value), bits, what)
        except TypeError:
            pass
    raise _wrong(what, "a whole number", value)


def flag(value: Any, what: str) -> bool:
    """True or False alone: a text or a list of them would count as true."""
    if value is True or value is False:
        return value
    raise _wrong(what, "True or False", value)


def bits_of(*flags: tuple[int, Any, str]) -> int:
    """The sum of the bits whose values are True; each comes with its name for messages."""
    return sum(bit for bit, value, what in flags if flag(value, what))


def _not_zero(value: float, what: str) -> None:
    """Refuses 0 where the default is another number: the library reads 0 as "the default"."""
    if value == 0:
        raise InvalidArgumentError(
            f"{what} 0 is out of range; leave it out for the default",
            _native.TRIREME_ERROR_INVALID_ARGUMENT,
        )


class Field:
    """How one option is read from the caller and written for the library.

    `required`: it has no default, and may be given by position.
    """

    def __init__(self, default: Any = None, *, required: bool = False) -> None:
        self.default = default
        self.required = required

    def read(self, value: Any, what: str) -> Any:
        """The value as it is kept: checked, and of one type."""
        if value is None and self.default is None and not self.required:
            return None
        return self._read(value, what)

    def _read(self, value: Any, what: str) -> Any:
        raise NotImplementedError

    def write(self, raw: Any, name: str, value: Any) -> None:
        """Sets the field of the ABI's struct, which keeps alive whatever it points to."""
        if value is not None:
            setattr(raw, name, value)


class Number(Field):
    """A double."""

    def _read(self, value: Any, what: str) -> float:
        read = number(value, what)
        if self.default is None and not self.required:
            _not_zero(read, what)
        return read


class Pointed(Field):
    """A double behind a pointer, so that 0 differs from the default."""

    def _read(self, value: Any, what: str) -> float:
        return number(value, what)

    def write(self, raw: Any, name: str, value: Any) -> None:
        if value is not None:
            setattr(raw, name, ctypes.pointer(c_double(value)))


class Whole(Field):
    """An unsigned number."""

    def __init__(self, bits: int, default: Any = None, *, required: bool = False) -> None:
        super().__init__(default, required=required)
        self.bits = bits

    def _read(self, value: Any, what: str) -> int:
        read = whole(value, self.bits, what)
        if self.default is None and not self.required:
            _not_zero(read, what)
        return read


class Flag(Field):
    """A bit of `flags`."""

    def __init__(self, bit: int) -> None:
        super().__init__(False)
        self.bit = bit

    def _read(self, value: Any, what: str) -> bool:
        return flag(value, what)

    def write(self, raw: Any, name: str, value: Any) -> None:
        if value:
            raw.flags |= self.bit


class Choice(Field):
    """One of some names, in any case. A number that has no name goes through to the library."""

    def __init__(self, names: Mapping[str, int], default: Any = None) -> None:
        super().__init__(default)
        self.names = names

    def _read(self, value: Any, what: str) -> Any:
        code = number_of(value, self.names, what)
        return next((name for name, known in self.names.items() if known == code), code)

    def write(self, raw: Any, name: str, value: Any) -> None:
        setattr(raw, name, self.names.get(value, value))


class Path(Field):
    """A text or a path."""

    def _read(self, value: Any, what: str) -> str:
        try:
            text = os.fsdecode(value)
        except TypeError:
            raise _wrong(what, "a text or a path", value) from None
        if "\0" in text:  # the library would see a shorter path
            raise InvalidArgumentError(
                f"{what} {text!r} holds a null character", _native.TRIREME_ERROR_INVALID_ARGUMENT
            )
        return text

    def write(self, raw: Any, name: str, value: Any) -> None:
        if value is not None:
            setattr(raw, name, os.fsencode(value))


class Function(Field):
    """A function of the caller. The object that calls it sets the callback and what goes with it."""

    def _read(self, value: Any, what: str) -> Any:
        return function(value, what)

    def write(self, raw: Any, name: str, value: Any) -> None:
        pass


class Options:
    """Options by keyword, for one struct of the ABI. They never change; copies do, by
    dataclasses.replace().

    Equal are options of one class with equal values; None stands for the library's default.
    """

    _struct: ClassVar[Any]
    _fields: ClassVar[Mapping[str, Field]]
    _short: ClassVar[str] = ""  # the field that a bare value stands for

    def _set(self, **values: object) -> None:
        """Called once, by __init__()."""
        for name, value in values.items():
            read = self._fields[name].read(value, f"{type(self).__name__}.{name}")
            object.__setattr__(self, name, read)

    def _head(self, raw: Any) -> Any:
        """The part of the struct that has its size."""
        return raw

    def _raw(self) -> Any:
        """A struct of the ABI. It keeps alive whatever it points to."""
        raw = self._struct()
        self._head(raw).struct_size = ctypes.sizeof(raw)
        for name, field in self._fields.items():
            field.write(raw, name, getattr(self, name))
        return raw

    def __repr__(self) -> str:
        shown = [
            f"{name}={getattr(self, name)!r}"
            for name, field in self._fields.items()
            if field.required or getattr(self, name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


class OfKind(Options):
    """Options whose struct begins with a part that has the size and the kind."""

    _kind: ClassVar[int]

    def _head(self, raw: Any) -> Any:
        raw.base.kind = self._kind
        return raw.base


class Rule(OfKind):
    """An update rule with its options, for Optimizer: AdamW, SGD, UserRule and their like."""


Any_kind = TypeVar("Any_kind")
Any_options = TypeVar("Any_options", bound=Options)


def instance(kind: type[Any_kind], value: Any, what: str) -> Any_kind:
    """An object of a class of this package."""
    if not isinstance(value, kind):
        raise _wrong(what, f"a trireme.{kind.__name__}", value)
    return value


def instances(kind: type[Any_kind], values: Any, what: str) -> list[Any_kind]:
    """Objects of a class of this package, in a sequence of any type."""
    try:
        listed = list(values)
    except TypeError:
        raise _wrong(what, f"a sequence of trireme.{kind.__name__}", values) from None
    return [instance(kind, value, f"{what}[{index}]") for index, value in enumerate(listed)]


def function(value: Any, what: str) -> Any:
    """A function of the caller, or any other object that can be called."""
    if not callable(value):
        raise _wrong(what, "a function", value)
    return value


def options_of(kind: type[Any_options], value: Any, what: str) -> Any_options | None:
    """The options that the caller gives as `what`: of this kind, or the value of its short form."""
    if value is None or isinstance(value, kind):
        return value
    short = kind._short
    if short and not isinstance(value, Options):
        try:
            return kind(**{short: value})
        except TypeError:
            pass
    other = f", or the value of its {short} alone" if short else ""
    raise _wrong(what, f"trireme.{kind.__name__}(...){other}", value)


def sequence_of(kind: type[Any_options], values: Any, what: str) -> list[Any_options]:
    """The caller's options in a sequence of any type, each of them of this kind."""
    try:
        listed = list(values)
    except TypeError:
        raise _wrong(what, f"a sequence of trireme.{kind.__name__}(...)", values) from None
    for index, value in enumerate(listed):
        if not isinstance(value, kind):
            raise _wrong(f"{what}[{index}]", f"trireme.{kind.__name__}(...)", value)
    return listed


def pointer_to(options: Options | None) -> Any:
    """A pointer to the struct of the options, which it keeps alive; None for none."""
    return None if options is None else ctypes.pointer(options._raw())
