"""The ground layer of Python: a module of ctypes for each header, in trireme/_abi, and the classes of
options.
"""

from __future__ import annotations

import abi_python_options
from abi_headers import Callback, Function, Header, Headers, Struct, Type, types_of
from abi_text import WIDTH, brief, call, first_line, import_from, prose, wrapped

FOLDER = "bindings/python/trireme/_abi"


def files(headers: Headers) -> dict[str, str]:
    made = {f"{header.stem}.py": Module(headers, header).text() for header in headers.all}
    made["__init__.py"] = package(headers)
    made.update(abi_python_options.files(headers))
    return made


def package(headers: Headers) -> str:
    stems = sorted(header.stem for header in headers.all)
    with_functions = [header.stem for header in headers.all if header.of(Function)]
    lines = [
        first_line("#", "*.h"),
        '"""The C ABI as Python sees it: constants, structs, callbacks and prototypes."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Any",
        "",
    ]
    for stem in stems:
        lines.append(f"from .{stem} import *")
        if stem in with_functions:
            lines.append(f"from .{stem} import PROTOTYPES as _{stem}")
    lines += ["", "# Every exported function: its result and its arguments."]
    lines += ["PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {"]
    lines += [f"    **_{stem}," for stem in with_functions]
    return "\n".join([*lines, "}", ""])


class Module:
    def __init__(self, headers: Headers, header: Header):
        self.headers = headers
        self.header = header
        self.ctypes: set[str] = set()

    def text(self) -> str:
        body = self.constants()
        for item in self.header.items:
            if isinstance(item, Struct):
                body += self.struct(item)
            elif isinstance(item, Callback):
                body += self.callback(item)
        body += self.prototypes()
        lines = [first_line("#", self.header.name), *docstring(self.header.doc[:1], ""), ""]
        lines += ["from __future__ import annotations", ""]
        lines += import_from("ctypes", self.ctypes)
        if self.header.of(Function):
            lines += ["from typing import Any"]
        lines += self.imports()
        return "\n".join([*lines, *body, ""])

    def imports(self) -> list[str]:
        """Declarations of other headers that this one uses."""
        used: dict[str, set[str]] = {}
        for item in self.header.items:
            for kind in types_of(item):
                if self.headers.is_struct(kind) or self.headers.is_callback(kind):
                    used.setdefault(self.headers.home[kind.base].stem, set()).add(kind.base)
                if kind.array and not kind.array.isdigit():
                    used.setdefault(self.headers.home[kind.array].stem, set()).add(kind.array)
        used.pop(self.header.stem, None)
        lines = [""] if used else []
        for stem in sorted(used):
            lines += import_from(f".{stem}", used[stem])
        return lines

    def constants(self) -> list[str]:
        lines: list[str] = []
        last: object = self
        for constant, enum in self.header.constants():
            if enum is not last:
                lines.append("")
                last = enum
                if enum is not None:
                    lines += wrapped(brief(enum.doc), "# ")
                    lines += [""] if constant.doc or len(enum.constants) > 1 else []
            lines += wrapped(" ".join(prose(constant.doc)), "# ")
            lines.append(f"{constant.name} = {constant.value}")
        return lines

    def struct(self, item: Struct) -> list[str]:
        lines = ["", "", f"class {item.name}({self.use('Structure')}):"]
        lines += [*docstring(item.doc, "    "), "", "    _fields_ = ["]
        for field in item.fields:
            lines += wrapped(" ".join(prose(field.doc)), "        # ")
            lines.append(f'        ("{field.name}", {self.type(field.type)}),')
        return [*lines, "    ]"]

    def callback(self, item: Callback) -> list[str]:
        lines = [""]
        for paragraph in prose(item.doc):
            lines += wrapped(paragraph, "# ")
        parts = [self.type(kind) for kind in types_of(item)]
        return lines + call(f"{item.name} = {self.use('CFUNCTYPE')}(", parts, ")", "")

    def prototypes(self) -> list[str]:
        functions = self.header.of(Function)
        if not functions:
            return []
        lines = ["", "", "PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {"]
        for item in functions:
            lines += wrapped(brief(item.doc), "    # ")
            result, *parts = [self.type(kind) for kind in types_of(item)]
            arguments = f"[{', '.join(parts)}]"
            line = f'    "{item.name}": ({result}, {arguments}),'
            if len(line) <= WIDTH:
                lines.append(line)
                continue
            lines += [f'    "{item.name}": (', f"        {result},"]
            lines += call("[", parts, "],", "        ")
            lines.append("    ),")
        return [*lines, "}"]

    def use(self, name: str) -> str:
        self.ctypes.add(name)
        return name

    def pointer_to(self, name: str) -> str:
        return f"{self.use('POINTER')}({name})"

    def type(self, kind: Type) -> str:
        """The ctypes type: an address where Python looks at nothing behind it."""
        if kind.base == "void" and not kind.depth:
            return "None"
        if self.headers.is_struct(kind) or self.headers.is_callback(kind):
            name, depth = kind.base, kind.depth
        elif self.headers.is_handle(kind) or kind.base == "void":
            name, depth = self.use("c_void_p"), kind.depth - 1
        elif kind.base == "char" and kind.depth:
            # A text that the callee writes is memory of the caller's.
            name, depth = self.use("c_char_p" if kind.constant[0] else "c_void_p"), kind.depth - 1
        else:
            number = self.headers.primitive(kind).removesuffix("_t")
            name, depth = self.use(f"c_{number}"), kind.depth
        for _ in range(depth):
            name = self.pointer_to(name)
        return f"{name} * {kind.array}" if kind.array else name


def docstring(doc: list, indent: str) -> list[str]:
    paragraphs = [text.replace("\\", "\\\\") for text in prose(doc)]
    whole = f'{indent}"""{paragraphs[0]}"""'
    if len(paragraphs) == 1 and len(whole) <= WIDTH and not paragraphs[0].endswith('"'):
        return [whole]
    lines = wrapped(paragraphs[0], f'{indent}"""', indent)
    for paragraph in paragraphs[1:]:
        lines += ["", *wrapped(paragraph, indent)]
    return [*lines, f'{indent}"""']
