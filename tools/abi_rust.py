"""The ground layer of Rust: a module for each header, in trireme-sys/src/abi.

The macros `handles`, `constants`, `structs`, `inits` and `kinds` are those of
trireme-sys/src/macros.rs.
"""

from __future__ import annotations

import re

from abi_headers import (
    Alias,
    Block,
    Callback,
    Enum,
    Function,
    Handle,
    Header,
    Headers,
    Struct,
    Type,
    Variable,
    types_of,
)
from abi_text import WIDTH, brief, first_line, prose, wrapped

FOLDER = "bindings/rust/trireme-sys/src/abi"
NUMBERS = {"char": "c_char", "void": "c_void", "double": "f64", "float": "f32"}


def files(headers: Headers) -> dict[str, str]:
    made = {f"{header.stem}.rs": Module(headers, header).text() for header in headers.all}
    made["mod.rs"] = root(headers)
    return made


def root(headers: Headers) -> str:
    stems = sorted(header.stem for header in headers.all)
    structs = sorted(header.stem for header in headers.all if header.of(Struct))
    numbers = sorted(header.stem for header in headers.all if list(header.constants()))
    lines = [first_line("//", "*.h"), "//! The headers, a module each.", ""]
    lines += [f"mod {stem};" for stem in stems] + [""]
    lines += [f"pub use {stem}::*;" for stem in stems]
    lines += ["", "/// Every constant by name, for the comparison with the released ones."]
    lines += ["#[doc(hidden)]", "pub const CONSTANTS: &[&[(&str, i64)]] = &["]
    lines += [f"    {stem}::CONSTANTS," for stem in numbers]
    lines += ["];", "", "/// The layout of every struct, as `structs` tells it."]
    lines += ["#[doc(hidden)]", "pub fn layout(line: &mut dyn FnMut(&str, &str, usize, usize)) {"]
    lines += [f"    {stem}::layout(line);" for stem in structs]
    return "\n".join([*lines, "}", ""])


class Module:
    def __init__(self, headers: Headers, header: Header):
        self.headers = headers
        self.header = header

    def text(self) -> str:
        body: list[str] = []
        body += self.block("handles", self.each(Handle, lambda item: [item.name]))
        for item in self.header.of(Alias):
            body += ["", *doc(item.doc, "/// ")]
            body.append(f"pub type {item.name} = {self.number(item.base)};")
        body += self.block("constants", self.constants())
        for item in self.header.of(Callback):
            body += ["", *doc(item.doc, "/// "), *self.callback(item)]
        body += self.block("structs", self.each(Struct, self.struct))
        body += self.block("inits", [f"    {name}" for name in self.header.initial])
        body += self.block("kinds", self.kinds())
        functions = self.each(Function, self.function)
        body += ["", 'extern "C" {', *functions, "}"] if functions else []
        lines = [first_line("//", self.header.name), *doc(self.header.doc, "//! "), ""]
        return "\n".join([*lines, *self.imports("\n".join(body)), *body[1:], ""])

    def imports(self, body: str) -> list[str]:
        used = set()
        for item in self.header.items:
            names = [name for kind in types_of(item) for name in (kind.base, kind.array)]
            used |= {name for name in names if name in self.headers.home}
        elsewhere = sorted(name for name in used if self.headers.home[name] is not self.header)
        code = re.sub(r"//.*", "", body)
        raw = [name for name in ("c_char", "c_void") if re.search(rf"\b{name}\b", code)]
        lines = []
        if raw:
            listed = raw[0] if len(raw) == 1 else "{" + ", ".join(raw) + "}"
            lines += [f"use std::os::raw::{listed};", ""]
        if len(elsewhere) == 1:
            lines += [f"use super::{elsewhere[0]};", ""]
        elif elsewhere:
            line = f"use super::{{{', '.join(elsewhere)}}};"
            listed = wrapped(", ".join(elsewhere) + ",", "    ", width=WIDTH - 1)  # as rustfmt
            lines += [line, ""] if len(line) <= WIDTH else ["use super::{", *listed, "};", ""]
        return lines

    def block(self, macro: str, lines: list[str]) -> list[str]:
        return ["", f"{macro}! {{", *lines, "}"] if lines else []

    def each(self, kind: type, body) -> list[str]:
        lines: list[str] = []
        for item in self.header.of(kind):
            lines += doc(item.doc, "    /// ") + [f"    {line}" for line in body(item)]
        return lines

    def constants(self) -> list[str]:
        lines: list[str] = []
        last: Enum | None = None
        for constant, enum in self.header.constants():
            if enum is not last and enum is not None:
                lines += wrapped(brief(enum.doc), "    // ")
            last = enum
            lines += doc(constant.doc, "    /// ")
            kind = "i32" if enum and not enum.flags else "u32"
            kind = enum.name if enum and enum.name else kind
            lines.append(f"    {constant.name}: {kind} = {constant.value};")
        return lines

    def struct(self, item: Struct) -> list[str]:
        lines = [f"{item.name} {{"]
        for field in item.fields:
            lines += [line[4:] for line in doc(field.doc, "        /// ")]
            lines.append(f"    {field.name}: {self.type(field.type)},")
        return [*lines, "}"]

    def kinds(self) -> list[str]:
        return [
            f"    TRIREME_{rule.name}_OPTIONS_INIT: {rule.struct} = {rule.kind};"
            for rule in [*self.header.rules, *self.header.schedules]
        ]

    def callback(self, item: Callback) -> list[str]:
        parts = self.variables(item.parameters)
        result = self.result(item.result)
        begin = f"pub type {item.name} ="
        whole = f'unsafe extern "C" fn({", ".join(parts)}){result}'
        if len(f"{begin} Option<{whole}>;") <= WIDTH:
            return [f"{begin} Option<{whole}>;"]
        if len(f"    Option<{whole}>;") <= WIDTH:
            return [begin, f"    Option<{whole}>;"]
        if len(f"    {whole},") <= WIDTH:
            return [f"{begin} Option<", f"    {whole},", ">;"]
        lines = [f"{begin} Option<", '    unsafe extern "C" fn(']
        return [*lines, *(f"        {part}," for part in parts), f"    ){result},", ">;"]

    def function(self, item: Function) -> list[str]:
        parts = self.variables(item.parameters)
        result = self.result(item.result)
        line = f"pub fn {item.name}({', '.join(parts)})"
        columns = len(f"    {line}{result};")
        if columns <= WIDTH:  # rustfmt does not count the last character
            return [f"{line}{result};"] if columns < WIDTH else [line, f"   {result};"]
        return [f"pub fn {item.name}(", *(f"    {part}," for part in parts), f"){result};"]

    def variables(self, found: list[Variable]) -> list[str]:
        return [f"{variable.name}: {self.type(variable.type)}" for variable in found]

    def result(self, kind: Type) -> str:
        return "" if kind == Type("void") else f" -> {self.type(kind)}"

    def number(self, name: str) -> str:
        sized = re.fullmatch(r"(u?)int(\d+)_t", name)
        return f"{'u' if sized[1] else 'i'}{sized[2]}" if sized else NUMBERS.get(name, name)

    def type(self, kind: Type) -> str:
        name = self.number(kind.base)
        for constant in kind.constant:
            name = f"*{'const' if constant else 'mut'} {name}"
        length = kind.array if kind.array.isdigit() else f"{kind.array} as usize"
        return f"[{name}; {length}]" if kind.array else name


def doc(blocks: list[Block], mark: str) -> list[str]:
    """A comment in rustdoc's Markdown: paragraphs, then lists of parameters and answers."""
    parts: list[tuple[str, str]] = []  # paragraph or item of a list, with its heading
    answers = any(block.kind == "retval" for block in blocks)
    for block in blocks:
        text = markdown(block.text)
        if block.kind == "text":
            parts.append(("", text))
        elif block.kind == "item":
            parts.append(("-", text))
        elif block.kind == "param":
            parts.append(("-", f"`{block.name}`: {text}"))
        elif block.kind == "retval":
            parts.append(("Answers:", f"`{block.name}`" + (f": {text}" if text else "")))
        elif block.kind == "return":
            parts.append(("Answers:", text) if answers else ("", f"Returns: {text}"))
        elif parts and not parts[-1][0]:
            parts[-1] = ("", f"{parts[-1][1]} Since {text}.")
        else:
            parts.append(("", f"Since {text}."))
    lines: list[str] = []
    last = ""
    for heading, text in parts:
        if lines and (not heading or heading != last):
            lines.append(mark.rstrip())
        if heading not in ("", "-", last):
            lines += [f"{mark}{heading}", mark.rstrip()]
        lines += wrapped(text, mark) if not heading else wrapped(text, f"{mark}* ", f"{mark}  ")
        last = heading
    return lines


def markdown(text: str) -> str:
    """Marks that rustdoc would take for links, tags or emphasis, escaped outside of `code`."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\[\]<>*])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)
