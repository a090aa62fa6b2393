"""The schedules of the Rust wrapper: a struct for each kind, and the enum of all."""

from __future__ import annotations

import re

from abi_headers import Block, Constant, Headers, Rule, Variable
from abi_rust import doc
from abi_rust_rules import Rules, spelled
from abi_text import brief, first_line, prose

FOLDER = "bindings/rust/trireme/src/schedules"


def files(headers: Headers) -> dict[str, str]:
    (header,) = (header for header in headers.all if header.schedules)
    return {"mod.rs": "\n".join([*Schedules(headers, header).text(), ""])}


class Schedules(Rules):
    WHOLE = "Schedule"

    def all(self) -> list[Rule]:
        return self.header.schedules

    def text(self) -> list[str]:
        lines = [
            first_line("//", self.header.name),
            "//! The kinds of schedules and the numbers of each.",
            "",
            "use trireme_sys as sys;",
            "",
            "/// A schedule of the library: made of the struct of its kind, such as",
            "/// [`CosineSchedule`].",
            "#[non_exhaustive]",
            "#[derive(Clone, Copy, Debug, PartialEq)]",
            "pub enum Schedule {",
            *(f"    {self.variant(kind)}({self.spelled(kind)})," for kind in self.rules),
            "}",
            "",
            "impl Schedule {",
            *self.lend("trireme_schedule_options"),
            "}",
        ]
        for kind in self.rules:
            lines += self.struct(kind)
        return lines

    def variant(self, rule: Rule) -> str:
        """LINEAR_SCHEDULE as Linear."""
        return spelled(rule.name.removesuffix("_SCHEDULE"))

    def about(self, rule: Rule) -> list[str]:
        name = rule.kind.removeprefix("TRIREME_SCHEDULE_KIND_")
        first = f"The schedule {name}, of which `schedule.h` has the formula."
        parts = [f"{first} In every number 0 means the default."]
        parts += prose(self.constants[rule.kind].doc)
        return doc([Block("text", "", part) for part in parts], "/// ")

    def flags(self, rule: Rule, field: Variable) -> list[Constant]:
        """Those that the comment of the field names."""
        names = re.findall(r"TRIREME_\w+_FLAG_\w+", brief(field.doc))
        return [self.constants[name] for name in dict.fromkeys(names)]

    def short(self, rule: Rule, flag: Constant) -> str:
        return flag.name.partition("_FLAG_")[2].lower()
