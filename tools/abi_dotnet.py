"""The ground layer of .NET: a file for each header, in bindings/dotnet/src/Abi.

Structs are NativeX, handles XHandle (classes of Handles.cs), numbers with a typedef the enums of
Enums.cs. Texts are UTF-8 addresses, so that the marshaller never copies or frees one.

RuleKinds.cs has what users see of the update rules: their kinds, and a class of options for each.
ScheduleKinds.cs has the classes of schedules.
"""

from __future__ import annotations

import os
import re

from abi_headers import (
    Alias,
    Callback,
    Constant,
    Enum,
    Function,
    Header,
    HeaderError,
    Headers,
    Rule,
    Struct,
    Type,
    Variable,
)
from abi_text import RULE_NAMES, WIDTH, brief, camel, first_line, pascal, prose, wrapped

FOLDER = "bindings/dotnet/src/Abi"
NUMBERS = {
    "int8_t": "sbyte",
    "uint8_t": "byte",
    "int16_t": "short",
    "uint16_t": "ushort",
    "int32_t": "int",
    "uint32_t": "uint",
    "int64_t": "long",
    "uint64_t": "ulong",
    "double": "double",
    "float": "float",
    "char": "byte",
    "void": "void",
}

# ---- exceptions ---------------------------------------------------------------------------------

# The public name says what it is to somebody who does not know the ABI.
ENUMS = {"trireme_dtype": "ElementType"}

# Handed through as they are: opaque addresses.
OPAQUE = {"user_data", "batch"}

# Structs that callers leave out, so a `ref` would not do.
MAY_BE_NULL = {"trireme_operation_options", "trireme_message_info"}

# These call back, and Mono loses a SafeHandle that is an argument of such a call (see HeldHandle).
CALLING_BACK = {
    "trireme_model_begin_backward",
    "trireme_model_gradient_ready",
    "trireme_model_end_backward",
    "trireme_model_accumulate_flat",
    "trireme_model_discard_gradients",
    "trireme_optimizer_step",
    "trireme_optimizer_step_together",
    "trireme_optimizer_join",
    "trireme_optimizer_get_step_rate",
    "trireme_trainer_step",
    "trireme_trainer_evaluate",
    "trireme_linear_forward",
    "trireme_linear_backward",
    "trireme_linear_backward_input",
    "trireme_linear_backward_weight",
    "trireme_context_attention_forward",
    "trireme_context_attention_backward",
    "trireme_mlp_forward",
    "trireme_mlp_backward",
    "trireme_mlp_backward_input",
    "trireme_mlp_backward_weight",
}

PARAMETERS = {
    # NULL takes the schedule away.
    ("trireme_optimizer_set_schedule", "options"): "NativeScheduleOptions*",
    # The first part of the options of a kind.
    ("trireme_schedule_value", "options"): "NativeScheduleOptions*",
    # The root may want no copy and give NULL.
    ("trireme_broadcast_to_buffer", "out_buffer"): "IntPtr*",
    # A number for each rank, so no `out`.
    ("trireme_all_gather_to_buffer", "out_counts"): "ulong*",
    # The mesh owns it: a CommunicatorHandle would destroy it.
    ("trireme_mesh_get_axis_communicator", "out_communicator"): "out IntPtr",
    ("trireme_parallel_get_communicator", "out_communicator"): "out IntPtr",
}

# -------------------------------------------------------------------------------------------------


def files(headers: Headers) -> dict[str, str]:
    check_exceptions(headers)
    found = {f"{pascal(header.stem)}.cs": File(headers, header).text() for header in headers.all}
    for header in headers.all:
        if header.rules:
            found["RuleKinds.cs"] = RuleKinds(headers, header).text()
        if header.schedules:
            found["ScheduleKinds.cs"] = ScheduleKinds(headers, header).text()
    return found


def check_exceptions(headers: Headers) -> None:
    """An exception whose function, parameter or type has another name by now would be forgotten."""
    functions = {item.name: item for header in headers.all for item in header.of(Function)}
    for name in [*ENUMS, *MAY_BE_NULL]:
        if name not in headers.declared:
            raise HeaderError(f"an exception of abi_dotnet.py names {name}, which is no type")
    for name in CALLING_BACK - functions.keys():
        raise HeaderError(f"an exception of abi_dotnet.py names {name}, which is no function")
    for name, function in functions.items():
        handed = any(headers.is_handle(each.type) for each in function.parameters)
        fails = any(block.name == "TRIREME_ERROR_CALLBACK" for block in function.doc)
        if handed and fails and name not in CALLING_BACK:
            raise HeaderError(f"{name} answers CALLBACK: CALLING_BACK of abi_dotnet.py lacks it")
    for name, parameter in PARAMETERS:
        known = functions[name].parameters if name in functions else []
        if parameter not in [each.name for each in known]:
            raise HeaderError(f"an exception of abi_dotnet.py names {name}({parameter}), unknown")
    rules = {rule.name for header in headers.all for rule in header.rules}
    for name in RULE_NAMES.keys() - rules:
        raise HeaderError(f"RULE_NAMES names {name}, which is no rule")


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


class RuleKinds:
    """The enum RuleKind, and a class for each rule; one that calls back is written by hand."""

    BASE = "Rule"

    def __init__(self, headers: Headers, header: Header):
        self.headers = headers
        self.header = header
        self.constants = {constant.name: constant for constant, _ in header.constants()}

    def text(self) -> str:
        lines = [first_line("//", self.header.name), "namespace Trireme", "{", *self.kinds()]
        for rule in self.header.rules:
            if not self.calls_back(rule):
                lines += ["", *self.rule(rule, self.headers.declared[rule.struct])]
        return "\n".join([*lines, "}", ""])

    def kinds(self) -> list[str]:
        lines = ["    /// <summary>An update rule.</summary>", "    public enum RuleKind", "    {"]
        by_hand = {rule.kind: rule for rule in self.header.rules if self.calls_back(rule)}
        for name, constant in self.constants.items():
            if name.startswith("TRIREME_RULE_"):
                text = self.prose(constant)
                if name in by_hand:
                    struct = pascal(by_hand[name].struct).removesuffix("Options")
                    text = f"The caller's own rule: {struct} has its delegate."
                blank = [""] if text and not lines[-1].endswith("{") else []
                lines += [*blank, *summary(text, "        ")]
                lines.append(f"        {spelled(name)} = NativeMethods.{name},")
        return [*lines, "    }"]

    def calls_back(self, rule: Rule) -> bool:
        fields = self.headers.declared[rule.struct].fields
        return any(self.headers.is_callback(field.type) for field in fields)

    def rule(self, rule: Rule, struct: Struct) -> list[str]:
        name, kind, fields = self.named(rule), spelled(rule.kind), struct.fields[1:]
        about = re.sub(r"^[^.]*\.\s*", "", self.prose(struct))  # the names of its rules come first
        for field in fields:
            about = re.sub(rf"\b{field.name}\b", pascal(field.name), about)
        word = self.BASE.lower()
        parts = [f"The {word} {kind}. In each option 0 means the default.", about]
        parts.append(self.prose(self.constants[rule.kind]))
        native = f"Native{pascal(struct.name)}"
        members: list[str] = []
        settings = [f"Base = Base<{native}>(),"]
        for field in fields:
            if field.name == "flags":
                bits = []
                for flag in self.headers.flags(struct):
                    member = pascal(flag.name.partition("_FLAG_")[2])
                    members += ["", *summary(self.prose(flag), "        ")]
                    members.append(f"        public bool {member} {{ get; set; }}")
                    bits.append(f"({member} ? NativeMethods.{flag.name} : 0)")
                settings.append(f"Flags = (uint){' | (uint)'.join(bits)},")
            elif field.name != "reserved":
                number, member = self.kind(struct, field), pascal(field.name)
                text = re.sub(
                    r"[a-z]\w*_\w+", lambda found: pascal(found.group()), self.prose(field)
                )
                members += ["", *summary(text, "        ")]
                members.append(f"        public {number} {member} {{ get; set; }}")
                cast = "" if number in NUMBERS.values() else "(int)"
                settings.append(f"{member} = {cast}{member},")
        return [
            *summary(" ".join(part for part in parts if part), "    "),
            f"    public sealed class {name} : {self.BASE}",
            "    {",
            "        /// <summary>With all defaults.</summary>",
            f"        public {name}() : base({self.BASE}Kind.{kind})",
            "        {",
            "        }",
            *members,
            "",
            "        internal override System.IntPtr Put(CallMemory memory)",
            "        {",
            f"            return memory.Put(new {native}",
            "            {",
            *(f"                {setting}" for setting in settings),
            "            });",
            "        }",
            "    }",
        ]

    def named(self, rule: Rule) -> str:
        return spelled(rule.kind)

    def kind(self, struct: Struct, field: Variable) -> str:
        declared = self.headers.declared.get(field.type.base)
        if field.type.depth or field.type.array or isinstance(declared, Struct):
            raise HeaderError(f"{struct.name}.{field.name}: classes of rules have numbers only")
        return pascal(field.type.base) if isinstance(declared, Alias) else NUMBERS[field.type.base]

    def prose(self, item: Constant | Struct | Variable) -> str:
        """A comment with the names of C#."""
        text = re.sub(r"TRIREME_\w+_\*\. ", "", " ".join(prose(item.doc)))
        for enum in self.header.of(Enum):
            if enum.name:
                names = [constant.name for constant in enum.constants]
                prefix = os.path.commonprefix(names)
                for name in names:
                    member = f"{pascal(enum.name)}.{pascal(name.removeprefix(prefix))}"
                    text = text.replace(name, member)
        for rule in self.header.rules:
            text = re.sub(rf"\b{rule.name}\b", spelled(rule.kind), text)
        return text


class ScheduleKinds(RuleKinds):
    """A class for each kind of schedule but the caller's."""

    BASE = "Schedule"

    def text(self) -> str:
        lines = [first_line("//", self.header.name), "namespace Trireme", "{"]
        for kind in self.header.schedules:
            if not self.calls_back(kind):
                blank = [] if lines[-1] == "{" else [""]
                lines += [*blank, *self.rule(kind, self.headers.declared[kind.struct])]
        return "\n".join([*lines, "}", ""])

    def named(self, rule: Rule) -> str:
        return pascal(rule.name)

    def prose(self, item: Constant | Struct | Variable) -> str:
        return re.sub(r"\b[a-z]+_\w+", lambda found: pascal(found.group()), super().prose(item))


def spelled(kind: str) -> str:
    """TRIREME_RULE_ADAMW as AdamW; also a kind of schedule."""
    name = kind.removeprefix("TRIREME_RULE_").removeprefix("TRIREME_SCHEDULE_KIND_")
    return RULE_NAMES.get(name, pascal(name))


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
