"""The classes of options in Python: one for each update rule, and one for each duty of options."""

from __future__ import annotations

import dataclasses
import re

from abi_headers import Constant, Enum, Header, HeaderError, Headers, Rule, Struct, Variable
from abi_text import RULE_NAMES, WIDTH, brief, first_line, import_from, pascal, prose, wrapped

# The structs that options point to: their class, and the field that a bare value stands for.
CLASSES = {
    "trireme_clipping_options": ("Clipping", "max_norm"),
    "trireme_parameter_group": ("ParameterGroup", ""),
    "trireme_loss_scale_options": ("LossScale", "initial_scale"),
    "trireme_offload_options": ("Offload", "path"),
    "trireme_bucket_options": ("Buckets", ""),
    "trireme_unit_options": ("Units", ""),
    "trireme_shard_options": ("Shards", "ranks"),
}
# Options that are not required, but may be given by position.
POSITIONAL = {"trireme_offload_options": "path"}
# Rules whose class is not called as pascal() says.
RULE_CLASSES = {**RULE_NAMES, "RMSPROP": "RMSprop", "SGD": "SGD", "LAMB": "LAMB", "LARS": "LARS"}
# The type that Python has for a callback, and its module.
FUNCTIONS = {
    "trireme_bucket_callback": ("Hook", "_hook"),
    "trireme_update_callback": ("UpdateFunction", "_user_rule"),
}
# Where Python has what a struct of C has, if its class is not called as pascal() says.
SPOKEN = {
    "trireme_optimizer_options": "Optimizer",
    "trireme_model_options": "Model",
    "trireme_trainer_options": "Trainer",
    "trireme_parameter_options": "Model.add_parameter()",
}
# Sentences that mean nothing in Python.
SILENT = r"(Start from TRIREME_\w+\.|Read once\.|The rule and the size of this struct\.)\s*"


@dataclasses.dataclass
class Field:
    """A keyword of a class."""

    name: str
    hint: str  # its type without None
    default: str  # as Python says it; "" if it is required
    kind: str  # the object that reads and writes it
    doc: list[str]

    @property
    def keyword(self) -> str:
        hint = f"{self.hint} | None" if self.default == "None" else self.hint
        return f"{self.name}: {hint}" + (f" = {self.default}" if self.default else "")


def files(headers: Headers) -> dict[str, str]:
    return {
        "options.py": Classes(headers).text("Options by keyword, one class for each duty.", ""),
        "rule_options.py": Classes(headers).text("The update rules with their options.", "rules"),
        "schedule_options.py": Classes(headers).text("The kinds of schedules.", "schedules"),
    }


class Classes:
    """Of one module."""

    def __init__(self, headers: Headers):
        self.headers = headers
        self.used: dict[str, set[str]] = {"_fields": set()}  # by module
        self.exported: list[str] = []
        self.tables: dict[str, dict[str, str]] = {}  # names of a choice by their prefix
        self.names = {struct: name for struct, (name, _) in CLASSES.items()} | SPOKEN

    def text(self, doc: str, kinds: str) -> str:
        """The module: all "rules", all "schedules", or all other options."""
        body: list[str] = []
        for header in self.headers.all:
            for item in header.of(Struct):
                if item.name in CLASSES and not kinds:
                    body += self.options(header, item)
            for rule in header.rules if kinds == "rules" else ():
                body += self.rule(header, rule)
            for kind in header.schedules if kinds == "schedules" else ():
                body += self.schedule(header, kind)
        if kinds == "rules":
            self.tables["RULES"] = self.choice("TRIREME_RULE_")
        tables = [self.table(name, names) for name, names in self.tables.items()]
        lines = [first_line("#", "*.h"), f'"""{doc}"""', ""]
        lines += ["from __future__ import annotations", "", "import dataclasses"]
        whole = "\n".join(body)
        lines += ["import os"] if "os." in whole else []
        lines += ["from typing import Union"] if "Union[" in whole else []
        lines += [""]
        ground = self.used.pop("")
        for module in sorted(self.used):
            lines += import_from(f"..{module}", self.used[module])
        modules: dict[str, set[str]] = {}
        for name in ground:
            modules.setdefault(self.headers.home[name].stem, set()).add(name)
        for module in sorted(modules):
            lines += import_from(f".{module}", modules[module])
        lines += ["", *block("__all__ = [", [f'"{name}"' for name in self.exported], "]")]
        lines += [line for table in tables for line in ["", *table]]
        return "\n".join([*lines, *body, ""])

    def choice(self, prefix: str) -> dict[str, str]:
        """The names of all constants that begin so: {"auto": "TRIREME_SHARE_AUTO"}."""
        return {
            name.removeprefix(prefix).lower(): name
            for name in self.headers.numbers
            if name.startswith(prefix)
        }

    def table(self, name: str, names: dict[str, str]) -> list[str]:
        entries = [f'    "{word}": {self.use(constant)},' for word, constant in names.items()]
        return [f"{name}: dict[str, int] = {{", *entries, "}"]

    # ---- classes ----------------------------------------------------------------------------

    def options(self, header: Header, struct: Struct) -> list[str]:
        name, short = CLASSES[struct.name]
        doc = [self.spoken(text, header, struct) for text in prose(struct.doc)]
        extra = [f'_short = "{short}"'] if short else []
        return self.whole("Options", name, doc, header, struct, extra)

    def rule(self, header: Header, rule: Rule) -> list[str]:
        struct = self.headers.declared[rule.struct]
        assert isinstance(struct, Struct)
        name = RULE_CLASSES.get(rule.name, pascal(rule.name))
        short = rule.kind.removeprefix("TRIREME_RULE_")
        doc = [f"The update rule {short}. The top of optimizer.h has its formula."]
        # The first sentence of a struct names its rules.
        own = [text for _, _, text in [brief(struct.doc).partition(". ")] if text]
        if short == "USER":
            doc = ["A rule of the caller: a function that gets an Update for each piece."]
            own = []
        kind = next(c for c, _ in header.constants() if c.name == rule.kind)
        for text in [*([] if short == "USER" else prose(kind.doc)), *own]:
            doc.append(self.spoken(text, header, struct))
        self.use(rule.kind)
        return self.whole("Rule", name, doc, header, struct, [f"_kind = {rule.kind}"])

    def schedule(self, header: Header, kind: Rule) -> list[str]:
        """A class for a kind; that of the caller is a function."""
        struct = self.headers.declared[kind.struct]
        assert isinstance(struct, Struct)
        if any(self.headers.is_callback(field.type) for field in struct.fields):
            return []
        short = kind.kind.removeprefix("TRIREME_SCHEDULE_KIND_")
        doc = [f"The schedule {short}. The top of schedule.h has its formula."]
        extra = [f"_kind = {self.use(kind.kind)}"]
        name = pascal(kind.name)
        return self.whole("ScheduleOptions", name, doc, header, struct, extra)

    def whole(
        self, base: str, name: str, doc: list[str], header: Header, struct: Struct, extra: list[str]
    ) -> list[str]:
        self.exported.append(name)
        self.use(struct.name)
        self.use(base, "_schedule" if base == "ScheduleOptions" else "_fields")
        fields = [
            field
            for index, variable in enumerate(struct.fields)
            for field in self.fields(header, struct, variable, struct.fields[index - 1])
        ]
        by_position = [POSITIONAL.get(struct.name), *(f.name for f in fields if not f.default)]
        fields.sort(key=lambda field: field.name not in by_position)  # stable
        lines = ["", "", "@dataclasses.dataclass(frozen=True, init=False, repr=False)"]
        lines += [f"class {name}({base}):", *docstring(doc, fields), ""]
        lines += [f"    {field.keyword}" for field in fields]
        lines += ["", f"    _struct = {struct.name}", *(f"    {line}" for line in extra)]
        read = [f'"{field.name}": {field.kind}' for field in fields]
        lines += ["    " + line for line in block("_fields = {", read, "}", WIDTH - 4)]
        first = [field.keyword for field in fields if field.name in by_position]
        rest = [field.keyword for field in fields if field.name not in by_position]
        keywords = ["self", *first, *(["*", *rest] if rest else [])]
        lines += ["", *("    " + line for line in block("def __init__(", keywords, ") -> None:"))]
        values = [f"{field.name}={field.name}" for field in fields]
        return lines + ["        " + x for x in block("self._set(", values, ")", WIDTH - 8)]

    # ---- fields -----------------------------------------------------------------------------

    def fields(
        self, header: Header, struct: Struct, field: Variable, before: Variable
    ) -> list[Field]:
        text = " ".join(prose(field.doc))
        kind = field.type
        if field.name in ("struct_size", "base") or text.startswith("Must be 0."):
            return []
        if kind.base == "void" and self.headers.is_callback(before.type):
            return []  # what goes to the callback
        if field.name == "flags":
            return self.flags(header, struct)
        default = self.default(struct, field, text)
        doc = [self.spoken(text, header, struct)]
        given = "required=True" if not default else "" if default == "None" else default
        if self.headers.is_callback(kind):
            name, module = FUNCTIONS[kind.base]
            return [
                Field(
                    field.name, self.use(name, module), default, self.kind("Function", given), doc
                )
            ]
        deepest = 1 if kind.base in ("char", "double") else 0
        if kind.array or kind.depth > deepest:
            raise HeaderError(f"{struct.name}.{field.name}: Python has no such option")
        if kind.base == "char" and kind.depth:
            hint = "Union[str, os.PathLike[str]]"
            return [Field(field.name, hint, default, self.kind("Path", given), doc)]
        if prefix := re.search(r"\b(TRIREME_\w+_)\*", text):
            return [self.chosen(header, struct, field, prefix.group(1), doc)]
        if kind.depth:
            return [Field(field.name, "float", default, self.kind("Pointed", given), doc)]
        if kind.base == "double":
            zero = "0.0" if default == "0" else default
            given = zero if default == "0" else given
            return [Field(field.name, "float", zero, self.kind("Number", given), doc)]
        bits = re.fullmatch(r"uint(\d+)_t", kind.base)
        if not bits:
            raise HeaderError(f"{struct.name}.{field.name}: Python has no such option")
        made = self.kind("Whole", ", ".join(part for part in (bits.group(1), given) if part))
        return [Field(field.name, "int", default, made, doc)]

    def default(self, struct: Struct, field: Variable, text: str) -> str:
        """As Python says it: "0" is the library's own 0, "None" every other default."""
        found = re.search(r"Default(?: of that)?: ([^\s,;]+)", text)
        if found:
            return "0" if found.group(1).rstrip(".") == "0" else "None"
        if "Required." in text:
            return ""
        raise HeaderError(f"{struct.name}.{field.name}: neither a default nor Required")

    def flags(self, header: Header, struct: Struct) -> list[Field]:
        """A keyword for each bit."""
        found = []
        for flag in self.headers.flags(struct):
            doc = [self.spoken(f"{one} Default: False.", header, struct) for one in prose(flag.doc)]
            made = self.kind("Flag", self.use(flag.name))
            keyword = flag.name.partition("_FLAG_")[2].lower()
            found.append(Field(keyword, "bool", "False", made, doc))
        return found

    def chosen(
        self, header: Header, struct: Struct, field: Variable, prefix: str, doc: list[str]
    ) -> Field:
        names = self.choice(prefix)
        start = next(word for word, name in names.items() if self.headers.numbers[name] == 0)
        known = prefix.removeprefix("TRIREME_").rstrip("_") + "S"
        self.tables[known] = names
        constants = {c.name: c for c, _ in header.constants()}
        doc += [
            f'"{word}": {self.spoken(" ".join(prose(constants[name].doc)), header, struct)}'
            for word, name in names.items()
        ]
        made = self.kind("Choice", f'{known}, "{start}"')
        return Field(field.name, "Union[str, int]", f'"{start}"', made, doc)

    def kind(self, name: str, arguments: str) -> str:
        return f"{self.use(name, '_fields')}({arguments})"

    def use(self, name: str, module: str = "") -> str:
        self.used.setdefault(module, set()).add(name)
        return name

    # ---- words ------------------------------------------------------------------------------

    def spoken(self, text: str, header: Header, struct: Struct) -> str:
        """A comment of C as Python says it."""
        text = re.sub(SILENT, "", text)
        text = re.sub(r"^Points to (\w)", lambda found: found.group(1).upper(), text)
        text = text.replace("the top of this file", f"the top of {header.name}")
        text = re.sub(r"\b(TRIREME_\w+_)\*", lambda found: self.listed(found.group(1)), text)
        text = re.sub(r"\bTRIREME_\w+", lambda found: self.word(found.group()), text)
        text = re.sub(r"\btrireme_(\w+?)_create\(\)", lambda f: f"{pascal(f[1])}()", text)
        text = re.sub(r"\btrireme_(\w+?)_(\w+)\(\)", lambda f: f"{pascal(f[1])}.{f[2]}()", text)
        text = re.sub(r"\btrireme_\w+", lambda f: self.names.get(f.group(), f.group()), text)
        return re.sub(r"\bNULL\b", "None", text).replace("Default: None, none.", "Default: None.")

    def listed(self, prefix: str) -> str:
        *first, last = (f'"{name}"' for name in self.choice(prefix))
        return f"{', '.join(first)} or {last}" if first else last

    def word(self, name: str) -> str:
        """A constant: the number of a limit, the keyword of a flag, the name of a choice."""
        for item in (item for header in self.headers.all for item in header.items):
            if isinstance(item, Constant) and item.name == name:
                return str(item.value)
            if isinstance(item, Enum) and name in (c.name for c in item.constants):
                if "_FLAG_" in name:
                    return name.partition("_FLAG_")[2].lower()
                prefix = next((p for p in ("TRIREME_RULE_",) if name.startswith(p)), None)
                common = prefix or shared(c.name for c in item.constants)
                return f'"{name.removeprefix(common).lower()}"'
        return name


def shared(names) -> str:  # type: ignore[no-untyped-def]
    """The common beginning of all names, up to an underscore."""
    words = [name.split("_") for name in names]
    same = 0
    while all(len(w) > same + 1 and w[same] == words[0][same] for w in words):
        same += 1
    return "".join(f"{word}_" for word in words[0][:same])


def docstring(doc: list[str], fields: list[Field]) -> list[str]:
    if len(doc) == 1 and not fields:
        return [f'    """{doc[0]}"""']
    lines = wrapped(doc[0], '    """', "    ")
    for paragraph in doc[1:]:
        lines += ["", *wrapped(paragraph, "    ")]
    lines.append("")
    for field in fields:
        lines += wrapped(f"{field.name}: {field.doc[0]}", "    ", "        ")
        for more in field.doc[1:]:
            lines += wrapped(more, "        - ", "          ")
    return [*lines, '    """']


def block(before: str, parts: list[str], after: str, width: int = WIDTH) -> list[str]:
    line = f"{before}{', '.join(parts)}{after}"
    if len(line) <= width - 4:
        return [line]
    return [before, *(f"    {part}," for part in parts), after]
