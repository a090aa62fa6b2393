"""Reads the public headers: their declarations, with types and comments.

It knows the C that include/trireme/*.h is written in and no more. A declaration that it does not
understand is a HeaderError with file and line, and is never left out.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
INCLUDE = ROOT / "include" / "trireme"

# Declares nothing that another language could bind: linkage, and the header of all headers.
NOT_BOUND = {"export.h", "trireme.h"}
PRIMITIVES = {
    "void",
    "char",
    "double",
    "float",
    "int8_t",
    "uint8_t",
    "int16_t",
    "uint16_t",
    "int32_t",
    "uint32_t",
    "int64_t",
    "uint64_t",
}


class HeaderError(Exception):
    """A header has text that is not C of the house's style."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A paragraph of a comment, or one of its @ lines."""

    kind: str  # "text", "item" (of a list), "param", "retval", "return", "since"
    name: str  # of the parameter or the status
    text: str


@dataclasses.dataclass(frozen=True)
class Type:
    base: str
    constant: tuple[bool, ...] = ()  # of each `*` from the left: whether what it points to is const
    array: str = ""  # its length: a number or the name of a constant

    @property
    def depth(self) -> int:
        return len(self.constant)


@dataclasses.dataclass
class Declaration:
    name: str
    doc: list[Block]


@dataclasses.dataclass
class Variable(Declaration):
    """A field or a parameter."""

    type: Type


RULE = r"#define TRIREME_(\w+)_OPTIONS_INIT\s+TRIREME_INIT_KIND\((\w+), (\w+)\)$"


@dataclasses.dataclass
class Handle(Declaration):
    """typedef struct X X;"""


@dataclasses.dataclass
class Alias(Declaration):
    """typedef int32_t X;"""

    base: str


@dataclasses.dataclass
class Constant(Declaration):
    """An enumerator, or a #define of a number."""

    value: int


@dataclasses.dataclass
class Enum(Declaration):
    """Its name is that of the typedef right before it, or ""."""

    constants: list[Constant]

    @property
    def flags(self) -> bool:
        """Whether its numbers are bits: by their names, or by the first word of the comment."""
        named = all("_FLAG_" in constant.name for constant in self.constants)
        return not self.name and (named or self.doc[0].text.split()[0] in ("Flags", "Bits"))


@dataclasses.dataclass
class Struct(Declaration):
    fields: list[Variable]


@dataclasses.dataclass
class Callback(Declaration):
    result: Type
    parameters: list[Variable]


@dataclasses.dataclass
class Function(Declaration):
    result: Type
    parameters: list[Variable]


@dataclasses.dataclass
class Rule:
    """#define TRIREME_<name>_OPTIONS_INIT TRIREME_INIT_KIND(<struct>, <kind>): an update rule, or a
    kind of schedule.
    """

    name: str  # "ADAMW"
    struct: str  # "trireme_adam_options"
    kind: str  # "TRIREME_RULE_ADAMW"


@dataclasses.dataclass
class Header:
    name: str  # "model.h"
    doc: list[Block]
    includes: list[str]
    items: list[Declaration]
    initial: list[str]  # the structs that have an _INIT macro
    rules: list[Rule]  # the update rules whose options it declares
    schedules: list[Rule]  # likewise the kinds of schedules

    @property
    def stem(self) -> str:
        return self.name[: -len(".h")]

    def of(self, kind: type) -> list:
        return [item for item in self.items if isinstance(item, kind)]

    def constants(self) -> Iterator[tuple[Constant, Enum | None]]:
        """Every number by itself, in order, with its enum if it has one."""
        for item in self.items:
            if isinstance(item, Constant):
                yield item, None
            elif isinstance(item, Enum):
                yield from ((constant, item) for constant in item.constants)


TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<after>/\*\*<.*?\*/)|(?P<doc>/\*\*.*?\*/)|(?P<comment>/\*.*?\*/)"
    r"|(?P<directive>\#(?:[^\n]*\\\n)*[^\n]*)|(?P<word>\w+)|(?P<mark>[-{}()\[\];,=*])",
    re.S,
)
TAG = re.compile(r"@(\w+)(?:\[out\])?(?:\s+(.*))?$", re.S)


def blocks(comment: str) -> list[Block]:
    """The paragraphs and @ lines of a comment, without its stars, each on one line."""
    text = re.sub(r"^/\*\*<?|\*/$", "", comment)
    lines = [re.sub(r"^\s*\*? ?", "", line).strip() for line in text.split("\n")]
    parts: list[list[str]] = [[]]
    for line in lines:
        if not line:
            parts.append([])
        elif line.startswith(("@", "- ")):
            parts.append([line])
        else:
            parts[-1].append(line)
    return [block(" ".join(part)) for part in parts if part]


def block(text: str) -> Block:
    if text.startswith("- "):
        return Block("item", "", text[2:])
    tag = TAG.match(text)
    if not tag:
        return Block("text", "", text)
    kind, rest = tag.group(1), tag.group(2) or ""
    if kind in ("brief", "file"):
        return Block("text" if kind == "brief" else "file", "", rest)
    if kind in ("return", "since"):
        return Block(kind, "", rest)
    if kind not in ("param", "retval"):
        raise HeaderError(f"@{kind} is no line that comments have")
    name, _, rest = rest.partition(" ")
    return Block(kind, name, rest.strip())


class Parser:
    def __init__(self, path: pathlib.Path):
        self.path = path
        self.text = path.read_text()
        self.at = 0
        self.last: Declaration | None = None  # the owner of a comment that follows it
        self.header = Header(path.name, [], [], [], [], [], [])
        self.tokens = list(self.tokenize())

    def fail(self, message: str, offset: int) -> HeaderError:
        line = self.text.count("\n", 0, offset) + 1
        return HeaderError(f"{self.path}:{line}: {message}")

    def tokenize(self) -> Iterator[tuple[str, str, int]]:
        at = 0
        while at < len(self.text):
            match = TOKEN.match(self.text, at)
            if not match:
                raise self.fail(f"'{self.text[at]}' is not expected here", at)
            if match.lastgroup not in ("space", "comment"):
                yield match.lastgroup or "", match.group(), at
            at = match.end()
        yield "end", "", at

    # ---- tokens -----------------------------------------------------------------------------

    def peek(self) -> str:
        """The next token; comments that follow a declaration go to it."""
        while self.tokens[self.at][0] == "after":
            _, text, offset = self.tokens[self.at]
            if self.last is None or self.last.doc:
                raise self.fail("a comment behind nothing, or a second one", offset)
            self.last.doc = self.comment(text, offset)
            self.at += 1
        return self.tokens[self.at][1]

    def kind(self) -> str:
        self.peek()
        return self.tokens[self.at][0]

    def take(self, wanted: str | None = None) -> str:
        found = self.peek()
        kind, text, offset = self.tokens[self.at]
        if wanted is not None and found != wanted:
            raise self.fail(f"'{wanted}' is expected and not '{text}'", offset)
        if wanted is None and kind != "word":
            raise self.fail(f"a name is expected and not '{text}'", offset)
        self.at += 1
        return text

    def doc(self) -> list[Block]:
        if self.kind() != "doc":
            return []
        _, text, offset = self.tokens[self.at]
        self.at += 1
        return self.comment(text, offset)

    def comment(self, text: str, offset: int) -> list[Block]:
        try:
            return blocks(text)
        except HeaderError as problem:
            raise self.fail(str(problem), offset) from None

    # ---- declarations -----------------------------------------------------------------------

    def parse(self) -> Header:
        self.header.doc = [block for block in self.doc() if block.kind != "file"]
        while self.kind() != "end":
            doc = self.doc()
            _, word, offset = self.tokens[self.at]
            if self.kind() == "directive":
                item = self.directive(doc)
            elif word in ("TRIREME_BEGIN_C", "TRIREME_END_C"):
                item = None
                self.take()
            elif word == "typedef":
                item = self.typedef(doc)
            elif word == "enum":
                item = self.enumeration(doc)
            elif word in ("TRIREME_API", "TRIREME_FALLIBLE"):
                item = self.function(doc)
            else:
                raise self.fail(f"no declaration begins with '{word}'", offset)
            if item is not None:
                if not doc and not isinstance(item, (Enum, Constant)):
                    raise self.fail(f"{item.name} has no comment", offset)
                self.header.items.append(item)
        return self.header

    def directive(self, doc: list[Block]) -> Declaration | None:
        _, text, offset = self.tokens[self.at]
        self.at += 1
        text = text.replace("\\\n", " ")
        if included := re.match(r"#\s*include <trireme/(\w+\.h)>", text):
            self.header.includes.append(included.group(1))
            return None
        if number := re.match(r"#define (TRIREME_\w+) (-?\d+)\s*$", text):
            return Constant(number.group(1), doc, int(number.group(2)))
        if initial := re.match(r"#define TRIREME_\w+_INIT\s+TRIREME_INIT\((\w+)\)$", text):
            self.header.initial.append(initial.group(1))
            return None
        if rule := re.match(RULE, text):
            of_rules = rule.group(3).startswith("TRIREME_RULE_")
            kinds = self.header.rules if of_rules else self.header.schedules
            kinds.append(Rule(rule.group(1), rule.group(2), rule.group(3)))
            return None
        if not re.match(r"#(include <std\w+\.h>|ifndef \w+_H$|define \w+_H$|endif)", text):
            raise self.fail(f"what does '{text.strip()}' mean for other languages?", offset)
        return None

    def typedef(self, doc: list[Block]) -> Declaration:
        self.take("typedef")
        if self.peek() != "struct":
            kind = self.type()
            if self.peek() == "(":
                return self.callback(kind, doc)
            alias = Alias(self.take(), doc, kind.base)
            self.take(";")
            return alias
        self.take("struct")
        name = self.take()
        if self.peek() != "{":
            self.take(name)
            self.take(";")
            return Handle(name, doc)
        self.take("{")
        fields = []
        while self.peek() != "}":
            comment = self.doc()
            fields.append(self.variable(comment))
            self.take(";")
            self.last = fields[-1]
        self.take("}")
        self.last = None
        self.take(name)
        self.take(";")
        return Struct(name, doc, fields)

    def callback(self, result: Type, doc: list[Block]) -> Callback:
        self.take("(")
        if self.peek() == "TRIREME_CALLCONV":
            self.take()
        self.take("*")
        name = self.take()
        self.take(")")
        return Callback(name, doc, result, self.parameters())

    def function(self, doc: list[Block]) -> Function:
        self.take()
        result = self.type()
        self.take("TRIREME_CALLCONV")
        return Function(self.take(), doc, result, self.parameters())

    def parameters(self) -> list[Variable]:
        found: list[Variable] = []
        self.take("(")
        while self.peek() != ")":
            if found:
                self.take(",")
            variable = self.variable([], nameless_void=not found)
            if variable.name:
                found.append(variable)
        self.take(")")
        self.take(";")
        return found

    def variable(self, doc: list[Block], nameless_void: bool = False) -> Variable:
        kind = self.type()
        if nameless_void and kind == Type("void") and self.peek() == ")":
            return Variable("", doc, kind)
        name = self.take()
        if self.peek() == "[":
            self.take("[")
            kind = dataclasses.replace(kind, array=self.take())
            self.take("]")
        return Variable(name, doc, kind)

    def type(self) -> Type:
        constant = self.peek() == "const"
        if constant:
            self.take()
        base = self.take()
        pointers = []
        while self.peek() == "*":
            self.take("*")
            pointers.append(constant)
            constant = self.peek() == "const"
            if constant:
                self.take()
        return Type(base, tuple(pointers))

    def enumeration(self, doc: list[Block]) -> Enum:
        offset = self.tokens[self.at][2]
        before = self.header.items[-1] if self.header.items else None
        name = before.name if isinstance(before, Alias) else ""
        if not doc:
            raise self.fail("an enum has no comment", offset)
        self.take("enum")
        self.take("{")
        constants: list[Constant] = []
        while self.peek() != "}":
            if constants:
                self.take(",")
            comment = self.doc()
            constants.append(Constant(self.take(), comment, 0))
            self.take("=")
            sign = -1 if self.peek() == "-" and self.take("-") else 1
            constants[-1].value = sign * self.number()
            self.last = constants[-1]
        self.take("}")
        self.last = None
        self.take(";")
        return Enum(name, doc, constants)

    def number(self) -> int:
        offset = self.tokens[self.at][2]
        text = self.take()
        if not text.isdigit():
            raise self.fail(f"'{text}' is no decimal number", offset)
        return int(text)


class Headers:
    """All headers, those that others include first, and what they declare, by name."""

    def __init__(self, folder: pathlib.Path = INCLUDE):
        paths = [path for path in sorted(folder.glob("*.h")) if path.name not in NOT_BOUND]
        read = {path.name: Parser(path).parse() for path in paths}
        self.all: list[Header] = []
        for name in read:
            self.add(read, name)
        self.declared: dict[str, Declaration] = {}
        self.home: dict[str, Header] = {}  # where a type or constant is declared
        for header in self.all:
            for item in header.items:
                if not isinstance(item, Enum):
                    self.declared[item.name] = item
                    self.home[item.name] = header
            self.home.update({constant.name: header for constant, _ in header.constants()})
        self.numbers = {c.name: c.value for header in self.all for c, _ in header.constants()}
        self.check()

    def add(self, read: dict[str, Header], name: str) -> None:
        if name in NOT_BOUND or read[name] in self.all:
            return
        for included in read[name].includes:
            self.add(read, included)
        self.all.append(read[name])

    def check(self) -> None:
        """Every type is known, and every length."""
        for header in self.all:
            for name in header.initial:
                if not isinstance(self.declared.get(name), Struct):
                    raise HeaderError(f"{header.name}: an _INIT of no struct: {name}")
            for item in header.items:
                for kind in types_of(item):
                    if kind.base not in PRIMITIVES and kind.base not in self.declared:
                        raise HeaderError(f"{header.name}: {item.name}: unknown type {kind.base}")
                    if kind.array and not kind.array.isdigit() and kind.array not in self.numbers:
                        raise HeaderError(f"{header.name}: {item.name}: unknown {kind.array}")

    def is_handle(self, kind: Type) -> bool:
        return isinstance(self.declared.get(kind.base), Handle)

    def is_struct(self, kind: Type) -> bool:
        return isinstance(self.declared.get(kind.base), Struct)

    def is_callback(self, kind: Type) -> bool:
        return isinstance(self.declared.get(kind.base), Callback)

    def primitive(self, kind: Type) -> str:
        """The name of a number's type in C, typedefs resolved; "" for other types."""
        declared = self.declared.get(kind.base)
        if isinstance(declared, Alias):
            return declared.base
        return kind.base if declared is None else ""

    def flags(self, struct: Struct) -> list[Constant]:
        """The bits of its field `flags`: those with the name of the struct. Kinds share the flags of
        their family, so there the comment of the field names them: for trireme_cosine_schedule_options,
        some of TRIREME_SCHEDULE_FLAG_*."""
        prefix = struct.name.removesuffix("_options").upper() + "_FLAG_"
        constants = [constant for header in self.all for constant, _ in header.constants()]
        found = [constant for constant in constants if constant.name.startswith(prefix)]
        if not found:
            field = next(field for field in struct.fields if field.name == "flags")
            text = " ".join(block.text for block in field.doc)
            family = prefix.removesuffix("_FLAG_").rpartition("_")[2]
            named = re.findall(rf"TRIREME_{family}_FLAG_\w+", text)
            found = [constant for constant in constants if constant.name in named]
        if not found:
            raise HeaderError(f"{struct.name}.flags: no {prefix}* is declared")
        return found

    def length(self, kind: Type) -> int:
        return int(kind.array) if kind.array.isdigit() else self.numbers[kind.array]


def types_of(item: Declaration) -> list[Type]:
    if isinstance(item, Struct):
        return [field.type for field in item.fields]
    if isinstance(item, (Callback, Function)):
        return [item.result, *(parameter.type for parameter in item.parameters)]
    return [Type(item.base)] if isinstance(item, Alias) else []
