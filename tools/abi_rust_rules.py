"""The update rules of the Rust wrapper: a struct for each, and the enums that name them.

A rule's struct has what the C struct has without size, kind and reserved fields. Each of its flags
is a bool.
"""

from __future__ import annotations

import os

from abi_headers import (
    PRIMITIVES,
    Alias,
    Block,
    Constant,
    Enum,
    Header,
    HeaderError,
    Headers,
    Rule,
    Struct,
    Type,
    Variable,
)
from abi_rust import Module, doc
from abi_text import RULE_NAMES, WIDTH, brief, first_line, prose

FOLDER = "bindings/rust/trireme/src/rules"
NOT_FIELDS = ("base", "reserved")


def files(headers: Headers) -> dict[str, str]:
    (header,) = (header for header in headers.all if header.rules)
    return {"mod.rs": "\n".join([*Rules(headers, header).text(), ""])}


def spelled(name: str) -> str:
    """ "MATCH_ADAMW" as "MatchAdamW"."""
    return "".join(RULE_NAMES.get(word, word.capitalize()) for word in name.split("_"))


class Rules:
    WHOLE = "Rule"  # the enum of all structs

    def __init__(self, headers: Headers, header: Header):
        self.headers = headers
        self.header = header
        self.ground = Module(headers, header)
        self.structs = {item.name: item for item in header.of(Struct)}
        self.constants = {constant.name: constant for constant, _ in header.constants()}
        self.rules = [rule for rule in self.all() if not self.is_callers(rule)]

    def all(self) -> list[Rule]:
        return self.header.rules

    def is_callers(self, rule: Rule) -> bool:
        """Whether it is the rule of the caller, which is a closure and not a list of numbers."""
        fields = self.structs[rule.struct].fields
        return any(self.headers.is_callback(field.type) for field in fields)

    def text(self) -> list[str]:
        lines = [
            first_line("//", self.header.name),
            "//! The update rules and the numbers of each.",
            "",
            "use trireme_sys as sys;",
            *self.kinds(),
            *self.whole(),
        ]
        for enum in self.header.of(Enum):
            if enum.name and any(field.type.base == enum.name for _, field in self.fields()):
                lines += self.enum(enum)
        for rule in self.rules:
            lines += self.struct(rule)
        return lines

    def fields(self) -> list[tuple[Rule, Variable]]:
        return [
            (rule, field)
            for rule in self.rules
            for field in self.structs[rule.struct].fields
            if field.name not in NOT_FIELDS
        ]

    def spelled(self, rule: Rule) -> str:
        return spelled(rule.name)

    def of(self, rule: Rule) -> list[Variable]:
        return [field for owner, field in self.fields() if owner is rule]

    def prefix(self, rule: Rule) -> str:
        """The begin of the names of its flags. Rules that share a struct share its flags."""
        name = rule.struct.removeprefix("trireme_").removesuffix("_options")
        return f"TRIREME_{name.upper()}_FLAG_"

    def flags(self, rule: Rule, field: Variable) -> list[Constant]:
        begin = self.prefix(rule)
        flags = [found for name, found in self.constants.items() if name.startswith(begin)]
        if not flags and not brief(field.doc).startswith("Must be 0."):
            where = f"{rule.struct}.{field.name}"
            raise HeaderError(f"{self.header.name}: {where}: there is no {begin}*")
        return flags

    # ---- the names of the rules, and the enum of their structs ---------------------------------

    def kinds(self) -> list[str]:
        names = [spelled(rule.name) for rule in self.rules]
        lines = ["", "/// An update rule by its name; `optimizer.h` has the formulas."]
        lines += ["#[non_exhaustive]", "#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]"]
        lines += ["pub enum RuleKind {"]
        for rule, name in zip(self.rules, names):
            lines += doc(self.constants[rule.kind].doc, "    /// ") + [f"    {name},"]
        lines += ["}", "", "impl RuleKind {", "    /// All of them."]
        lines += [f"    pub const ALL: [RuleKind; {len(names)}] = ["]
        lines += [f"        RuleKind::{name}," for name in names]
        lines += ["    ];", ""]
        lines += ["    pub(crate) fn code(self) -> sys::trireme_rule_kind {"]
        lines += ["        match self {"]
        for rule, name in zip(self.rules, names):
            lines.append(f"            RuleKind::{name} => sys::{rule.kind},")
        return [*lines, "        }", "    }", "}"]

    def whole(self) -> list[str]:
        names = [spelled(rule.name) for rule in self.rules]
        lines = [
            "",
            "/// An update rule with its numbers: made of its struct, such as [`AdamW`], or of its",
            "/// [`RuleKind`], which has the default of each number.",
            "#[non_exhaustive]",
            "#[derive(Clone, Copy, Debug, PartialEq)]",
            "pub enum Rule {",
            *(f"    {name}({name})," for name in names),
            "}",
            "",
            "impl Rule {",
            "    /// Which rule it is.",
            "    pub fn kind(&self) -> RuleKind {",
            "        match self {",
            *(f"            Rule::{name}(_) => RuleKind::{name}," for name in names),
            "        }",
            "    }",
            "",
            *self.lend("trireme_rule_options"),
            "}",
            "",
            "impl From<RuleKind> for Rule {",
            "    fn from(kind: RuleKind) -> Self {",
            "        match kind {",
            *(f"            RuleKind::{name} => {name}::default().into()," for name in names),
            "        }",
            "    }",
            "}",
        ]
        return lines

    def lend(self, base: str) -> list[str]:
        begin, call, word = "    pub(crate) fn lend<R>(", "call: impl FnOnce", self.WHOLE.lower()
        call += f"(*const sys::{base}) -> R"
        head = [f"{begin}&self, {call}) -> R {{"]
        if len(head[0]) > WIDTH:
            head = [begin, "        &self,", f"        {call},", "    ) -> R {"]
        return [
            "    /// Calls `call` with the options as the library reads them, good for that call.",
            *head,
            "        match self {",
            *(
                f"            {self.WHOLE}::{self.variant(rule)}({word}) =>"
                f" call(&{word}.raw() as *const _ as *const _),"
                for rule in self.rules
            ),
            "        }",
            "    }",
        ]

    # ---- one rule ------------------------------------------------------------------------------

    def struct(self, rule: Rule) -> list[str]:
        name = self.spelled(rule)
        lines = ["", *self.about(rule), "#[derive(Clone, Copy, Debug, Default, PartialEq)]"]
        lines.append(f"pub struct {name} {{")
        values: list[str] = []
        for field in self.of(rule):
            if field.name == "flags":
                flags = self.flags(rule, field)
                if not flags:
                    continue
                for flag in flags:
                    about = f"{brief(flag.doc)} Default: false."
                    lines += doc([Block("text", "", about)], "    /// ")
                    lines.append(f"    pub {self.short(rule, flag)}: bool,")
                values += self.sum(rule, flags)
                continue
            kind = self.enum_of(field)
            if kind:
                first = f"{spelled_type(kind.name)}::{self.variants(kind)[0][0]}"
                about = f"{self.alias(kind)} Default: `{first}`."
                lines += doc([Block("text", "", about)], "    /// ")
                lines.append(f"    pub {field.name}: {spelled_type(kind.name)},")
                values.append(f"            {field.name}: self.{field.name}.code(),")
                continue
            if field.type not in map(Type, PRIMITIVES):
                where = f"{rule.struct}.{field.name}"
                raise HeaderError(f"{self.header.name}: {where}: Rust has no such option")
            lines += doc(field.doc, "    /// ")
            lines.append(f"    pub {field.name}: {self.ground.type(field.type)},")
            values.append(f"            {field.name}: self.{field.name},")
        lines += ["}", "", f"impl {name} {{", f"    fn raw(&self) -> sys::{rule.struct} {{"]
        values.append(f"            ..sys::TRIREME_{rule.name}_OPTIONS_INIT")
        whole = f"        sys::{rule.struct} {{ {' '.join(value.strip() for value in values)} }}"
        if len(values) == 2 and len(whole) <= WIDTH:  # as rustfmt
            lines += [whole, "    }", "}"]
        else:
            lines += [f"        sys::{rule.struct} {{", *values, "        }", "    }", "}"]
        whole, variant = self.WHOLE, self.variant(rule)
        word = whole.lower()
        lines += ["", f"impl From<{name}> for {whole} {{"]
        lines += [f"    fn from({word}: {name}) -> Self {{"]
        return [*lines, f"        {whole}::{variant}({word})", "    }", "}"]

    def variant(self, rule: Rule) -> str:
        """Its name in the enum of all."""
        return spelled(rule.name)

    def about(self, rule: Rule) -> list[str]:
        """Its purpose, then the comments of its number and, behind its name, of its struct."""
        first = f"The rule {rule.name}, of which `optimizer.h` has the formula."
        parts = [f"{first} In every number 0 means the default."]
        parts += prose(self.constants[rule.kind].doc)
        _, _, rest = brief(self.structs[rule.struct].doc).partition(". ")
        parts += [rest] if rest else []
        return doc([Block("text", "", part) for part in parts], "/// ")

    def short(self, rule: Rule, flag: Constant) -> str:
        return flag.name.removeprefix(self.prefix(rule)).lower()

    def sum(self, rule: Rule, flags: list[Constant]) -> list[str]:
        """The field `flags`, of the bools."""
        begin = "            flags: "
        parts = [f"u32::from(self.{self.short(rule, flag)}) * sys::{flag.name}" for flag in flags]
        rest = [f"                | {part}" for part in parts[1:]]
        lines = [begin + parts[0], *rest]
        return [*lines[:-1], lines[-1] + ","]

    # ---- enums that fields have ----------------------------------------------------------------

    def enum_of(self, field: Variable) -> Enum | None:
        return next((enum for enum in self.header.of(Enum) if enum.name == field.type.base), None)

    def alias(self, enum: Enum) -> str:
        return next(brief(item.doc) for item in self.header.of(Alias) if item.name == enum.name)

    def variants(self, enum: Enum) -> list[tuple[str, Constant]]:
        """With what is left of the names behind what all have; the one of 0 comes first."""
        prefix = os.path.commonprefix([constant.name for constant in enum.constants])
        begin = prefix.rindex("_") + 1
        ordered = sorted(enum.constants, key=lambda constant: constant.value)
        return [(spelled(constant.name[begin:]), constant) for constant in ordered]

    def enum(self, enum: Enum) -> list[str]:
        name = spelled_type(enum.name)
        lines = ["", *doc([Block("text", "", self.alias(enum))], "/// "), "#[non_exhaustive]"]
        lines += ["#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]"]
        lines += [f"pub enum {name} {{"]
        for variant, constant in self.variants(enum):
            lines += doc(constant.doc, "    /// ")
            lines += ["    #[default]"] if constant.value == 0 else []
            lines += [f"    {variant},"]
        lines += ["}", "", f"impl {name} {{"]
        lines += [f"    fn code(self) -> sys::{enum.name} {{", "        match self {"]
        for variant, constant in self.variants(enum):
            lines.append(f"            {name}::{variant} => sys::{constant.name},")
        return [*lines, "        }", "    }", "}"]


def spelled_type(name: str) -> str:
    return spelled(name.removeprefix("trireme_").upper())
