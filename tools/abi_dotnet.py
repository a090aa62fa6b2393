"""The ground layer of .NET: a file for each header, in bindings/dotnet/src/Abi.

Structs are NativeX, handles XHandle (classes of Handles.cs), numbers with a typedef the enums of
Enums.cs. Texts are UTF-8 addresses, so that the marshaller never copies or frees one.
"""

from __future__ import annotations

from abi_headers import (
    Alias, Callback, Function, Header, HeaderError, Headers, Struct, Type, Variable,
)
from abi_text import WIDTH, brief, camel, first_line, pascal, prose, wrapped

FOLDER = "bindings/dotnet/src/Abi"
NUMBERS = {
    "int8_t": "sbyte", "uint8_t": "byte", "int16_t": "short", "uint16_t": "ushort",
    "int32_t": "int", "uint32_t": "uint", "int64_t": "long", "uint64_t": "ulong",
    "double": "double", "float": "float", "char": "byte", "void": "void",
}

# ---- exceptions ---------------------------------------------------------------------------------

# The public name says what it is to somebody who does not know the ABI.
ENUMS = {"trireme_dtype": "ElementType"}

# Handed through as they are: addresses nobody looks behind.
OPAQUE = {"user_data", "batch"}

# Structs that callers leave out, so a `ref` would not do.
MAY_BE_NULL = {"trireme_operation_options", "trireme_message_info"}

# These call back, and Mono loses a SafeHandle that is an argument of such a call (see HeldHandle).
CALLING_BACK = {
    "trireme_model_gradient_ready", "trireme_model_end_backward", "trireme_model_accumulate_flat",
    "trireme_model_discard_gradients", "trireme_optimizer_step", "trireme_optimizer_join",
    "trireme_optimizer_get_step_rate", "trireme_trainer_step", "trireme_trainer_evaluate",
}

PARAMETERS = {
    # NULL takes the schedule away.
    ("trireme_optimizer_set_schedule", "options"): "NativeScheduleOptions*",
    # The root may want no copy and give NULL.
    ("trireme_broadcast_to_buffer", "out_buffer"): "IntPtr*",
    # A number for each rank, so no `out`.
    ("trireme_all_gather_to_buffer", "out_counts"): "ulong*",
    # The mesh owns it: a CommunicatorHandle would destroy it.
    ("trireme_mesh_get_axis_communicator", "out_communicator"): "out IntPtr",
}

# -------------------------------------------------------------------------------------------------


def files(headers: Headers) -> dict[str, str]:
    check_exceptions(headers)
    return {f"{pascal(header.stem)}.cs": File(headers, header).text() for header in headers.all}


def check_exceptions(headers: Headers) -> None:
    """An exception whose function, parameter or type has another name by now would be forgotten."""
    functions = {item.name: item for header in headers.all for item in header.of(Function)}
    for name in [*ENUMS, *MAY_BE_NULL]:
        if name not in headers.declared:
            raise HeaderError(f"an exception of abi_dotnet.py names {name}, which is no type")
    for name in CALLING_BACK - functions.keys():
        raise HeaderError(f"an exception of abi_dotnet.py names {name}, which is no function")
    for name, parameter in PARAMETERS:
        known = functions[name].parameters if name in functions else []
        if parameter not in [each.name for each in known]:
            raise HeaderError(f"an exception of abi_dotnet.py names {name}({parameter}), unknown")


class File:
    def __init__(self, headers: Headers, header: Header):
        self.headers = headers
        self.header = header

    def text(self) -> str:
        members = self.constants()
        for item in self.header.of(Callback):
            members += ["", *self.callback(item)]
        for item in self.header.of(Function):
            members += ["", *self.function(item)]
        body: list[str] = []
        for item in self.header.of(Struct):
            body += ["", *self.struct(item)]
        if members:
            body += ["", *wrapped(brief(self.header.doc), "    // ")]
            body += ["    internal static partial class NativeMethods", "    {"]
            body += [f"        {line}" if line else "" for line in members[1:]] + ["    }"]
        lines = [first_line("//", self.header.name), "using System;"]
        lines += ["using System.Runtime.InteropServices;", "", "namespace Trireme", "{"]
        return "\n".join([*lines, *body[1:], "}", ""])

    def constants(self) -> list[str]:
        lines: list[str] = []
        for constant, enum in self.header.constants():
            text = " ".join(prose(constant.doc))
            lines += ["", *summary(text, "", 8)] if text else [""]
            lines.append(f"internal const int {constant.name} = {constant.value};")
        return lines

    def struct(self, item: Struct) -> list[str]:
        unsafe = ""
        lines: list[str] = []
        for field in item.fields:
            lines += ["", *summary(" ".join(prose(field.doc)), "        ")]
            kind, name = self.field(field.type), pascal(field.name)
            if not field.type.array:
                lines.append(f"        public {kind} {name};")
            elif kind != "IntPtr":
                unsafe = "unsafe "
                length = field.type.array
                length = length if length.isdigit() else f"NativeMethods.{length}"
                lines.append(f"        public fixed {kind} {name}[{length}];")
            else:  # C# has no fixed array of addresses
                rest = [f"{name}{i}" for i in range(1, self.headers.length(field.type))]
                lines += [f"        public {kind} {each};" for each in (name, *rest)]
        head = [*summary(" ".join(prose(item.doc)), "    ")]
        head.append("    [StructLayout(LayoutKind.Sequential)]")
        head += [f"    internal {unsafe}struct Native{pascal(item.name)}", "    {"]
        return [*head, *lines[1:], "    }"]

    def callback(self, item: Callback) -> list[str]:
        name = pascal(item.name)
        name += "" if name.endswith("Callback") else "Callback"
        parts = [f"{self.seen(each.type)} {camel(each.name)}" for each in item.parameters]
        result = self.by_value(item.result)
        return [
            *summary(brief(item.doc), "", 8),
            "[UnmanagedFunctionPointer(CallingConvention.Cdecl)]",
            *declaration("internal ", f"delegate {result} {name}(", parts),
        ]

    def function(self, item: Function) -> list[str]:
        parts = [f"{self.given(item, each)} {camel(each.name)}" for each in item.parameters]
        result = self.by_value(item.result)
        return [
            *summary(brief(item.doc), "", 8),
            "[DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]",
            *declaration("internal static extern ", f"{result} {item.name}(", parts),
        ]

    def by_value(self, kind: Type) -> str:
        """A result, or what a parameter hands over by value."""
        if kind.depth:
            return "IntPtr"
        if isinstance(self.headers.declared.get(kind.base), Alias):
            return self.enum(kind)
        return NUMBERS[kind.base]

    def enum(self, kind: Type) -> str:
        return ENUMS.get(kind.base, pascal(kind.base))

    def field(self, kind: Type) -> str:
        if kind.depth or self.headers.is_callback(kind):
            return "IntPtr"
        if self.headers.is_struct(kind):
            return f"Native{pascal(kind.base)}"
        return NUMBERS[self.headers.primitive(kind)]

    def seen(self, kind: Type) -> str:
        """A parameter of a callback: numbers behind addresses can be read and written."""
        if kind.depth == 1 and kind.base not in ("void", "char"):
            number = self.headers.primitive(kind)
            return f"{NUMBERS[number]}*" if number in NUMBERS else "IntPtr"
        return self.by_value(kind)

    def given(self, function: Function, parameter: Variable) -> str:
        """A parameter of a function."""
        kind, name = parameter.type, parameter.name
        if (function.name, name) in PARAMETERS:
            return PARAMETERS[function.name, name]
        out = name.startswith("out_")
        place = function.parameters.index(parameter)
        behind = function.parameters[place + 1].name if parameter != function.parameters[-1] else ""
        if self.headers.is_callback(kind):
            return pascal(kind.base)
        if not kind.depth:
            return self.by_value(kind)
        if self.headers.is_handle(kind):
            if kind.depth == 2:
                return f"out {pascal(kind.base)}Handle" if out else "IntPtr*"
            plain = function.name.endswith("_destroy") or function.name in CALLING_BACK
            return "IntPtr" if plain else f"{pascal(kind.base)}Handle"
        if self.headers.is_struct(kind):
            struct = f"Native{pascal(kind.base)}"
            array = behind.endswith("count") and not behind.startswith("out_")
            return f"{struct}*" if array or kind.base in MAY_BE_NULL else f"ref {struct}"
        if kind.base == "void":
            if name in OPAQUE:
                return "IntPtr"
            return "out IntPtr" if out and kind.depth == 2 else "void" + "*" * kind.depth
        if kind.base == "char":
            return "byte*" if not kind.constant[0] else "IntPtr" + "*" * (kind.depth - 1)
        number = self.by_value(Type(kind.base))
        if out:
            return f"{number}*" if behind == "capacity" else f"out {number}"
        return f"{number}*" if kind.constant[0] else f"ref {number}"


def summary(text: str, indent: str, outer: int = 0) -> list[str]:
    """A documentation comment; `outer` columns are put in front of its lines later."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = f"{indent}/// <summary>{text}</summary>"
    if len(line) + outer <= WIDTH:
        return [line] if text else []
    inside = wrapped(text, f"{indent}/// ", width=WIDTH - outer)
    return [f"{indent}/// <summary>", *inside, f"{indent}/// </summary>"]


def declaration(modifiers: str, begin: str, parts: list[str]) -> list[str]:
    """Members stand 8 columns from the left; what does not fit goes on with 4 more."""
    unsafe = "unsafe " if any("*" in part for part in parts) else ""
    line = f"{modifiers}{unsafe}{begin}{', '.join(parts)});"
    if len(line) + 8 <= WIDTH:
        return [line]
    listed = wrapped(", ".join(part.replace(" ", "\0") for part in parts) + ");", "    ", width=92)
    return [f"{modifiers}{unsafe}{begin}", *(line.replace("\0", " ") for line in listed)]
