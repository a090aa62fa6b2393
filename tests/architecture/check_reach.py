#!/usr/bin/env python3
"""The hand-written layer of each language reaches the whole ABI.

- It calls each function of the export map.
- It names each field of a public struct, in a file that also names the struct. Any file will do for
  a field whose name no other struct has, or if the struct comes with a callback or lies in another.
- It names each public constant.

The lists below have what a language leaves out, with the reason. The ground layers, which
tools/bindgen.py writes, do not count: with those alone a user would write addresses and sizes by
hand.
"""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools")]

import abi_headers
from abi_dotnet import ENUMS
from abi_text import pascal

MAP = "src/api/trireme.map"
ALL = ("python", "dotnet", "rust")
Left = dict[str, tuple[tuple[str, ...], str]]  # name: languages, reason

# ---- what is left out, and why -------------------------------------------------------------------

FUNCTIONS: Left = {
    "trireme_buffer_alloc": (ALL, "trireme_buffer_alloc_kind(), by the kind of each class"),
}

# struct.field
FIELDS: Left = {
    "trireme_context_info.rank": (("dotnet",), "the communicator tells it"),
    "trireme_context_info.world_size": (ALL, "the communicator tells it"),
    "trireme_tensor_info.world_size": (ALL, "the communicator tells it"),
    "trireme_experts_info.rank": (("dotnet",), "the communicator tells it"),
    "trireme_experts_info.world_size": (ALL, "the communicator tells it"),
    "trireme_experts_info.segment_count": (ALL, "the list of segments has a length"),
    "trireme_pipeline_step_report.critical_count": (ALL, "the critical path has a length"),
    "trireme_parallel_info.data_rank": (
        ("python", "dotnet"),
        'C# has Coordinates(rank); Python puts the name together: f"{axis}_rank"',
    ),
    "trireme_parallel_info.shard_rank": (("python", "dotnet"), "as data_rank"),
    "trireme_parallel_info.context_rank": (("python", "dotnet"), "as data_rank"),
    "trireme_parallel_info.expert_rank": (("python", "dotnet"), "as data_rank"),
    "trireme_layer_call.parameter_counts": (("python",), "views have the shapes of the model"),
    "trireme_layer_call.stream": (("dotnet", "rust"), "trainers on a device are of C"),
    "trireme_schedule_options.kind": (("rust",), "init() of the options of a kind sets it"),
    "trireme_trainer_options.after_step": (
        ("rust",),
        "code after step() does the same; a closure could not borrow the model that step() has",
    ),
}

# Patterns of fnmatch.
CONSTANTS: Left = {
    "TRIREME_VERSION": (ALL, "that of the headers; version() tells the library's"),
    "TRIREME_VERSION_MAJOR": (("dotnet", "rust"), "as TRIREME_VERSION"),
    "TRIREME_VERSION_MINOR": (ALL, "as TRIREME_VERSION"),
    "TRIREME_VERSION_PATCH": (ALL, "as TRIREME_VERSION"),
    "TRIREME_*_MAX_*": (ALL, "the library refuses more, and its message has the limit"),
    "TRIREME_MAX_BLAMED_RANKS": (("rust",), "the array of blamed ranks has a length"),
    "TRIREME_MAX_STATES": (("python",), "the array of states has a length"),
    "TRIREME_EXPERTS_MAX": (ALL, "as TRIREME_*_MAX_*"),
    "TRIREME_TRANSPORT_FRAME_BYTES_MIN": (ALL, "as TRIREME_*_MAX_*"),
    "TRIREME_DEVICE_DEFAULT": (("python", "rust"), "0: nothing is set"),
    "TRIREME_MEMORY_KIND_DEFAULT": (("rust",), "each kind has a class"),
    "TRIREME_ALGORITHM_*": (("python",), "the names of trireme_algorithm_name()"),
    "TRIREME_PIPELINE_ORDER_*": (
        ("python", "rust"),
        "texts, which trireme_pipeline_order_parse() reads",
    ),
    "TRIREME_PARALLEL_AXES": (("python",), "PARALLEL_AXES has a length"),
    "TRIREME_PARALLEL_AXIS_*": (("python",), "1 << the place of a name in PARALLEL_AXES"),
    "TRIREME_SCHEDULE_KIND_*": (("rust",), "init() of the options of a kind sets it"),
    "TRIREME_RULE_USER": (("rust",), "init() of the options of a user's rule sets it"),
    "TRIREME_OPTIMIZER_COUNTERS_VERSION": (
        ("rust",),
        "counters come from an optimizer, with their version",
    ),
    "TRIREME_VOCABULARY_KEPT_BYTES": (("rust",), "the info of a vocabulary has kept_bytes"),
}

# -------------------------------------------------------------------------------------------------

# Generated, but what users see: classes of options.
SHOWN = {
    "python": ("_abi/options.py", "_abi/*_options.py"),
    "dotnet": ("Abi/RuleKinds.cs", "Abi/ScheduleKinds.cs"),
    "rust": (),
}
FOLDERS = {
    "python": ("bindings/python/trireme", "*.py"),
    "dotnet": ("bindings/dotnet/src", "*.cs"),
    "rust": ("bindings/rust/trireme/src", "**/*.rs"),
}
STRINGS = r"\"(?:\\.|[^\"\\\n])*\""
COMMENTS = {
    "python": rf'"""(?:.|\n)*?"""|#[^\n]*|{STRINGS}',
    "dotnet": rf"//[^\n]*|/\*(?:.|\n)*?\*/|{STRINGS}",
    "rust": rf"//[^\n]*|/\*(?:.|\n)*?\*/|{STRINGS}",
}
# No choice of a user's: sizes, the first part of options of a kind, a callback's own object.
BOOKKEEPING = {"struct_size", "reserved", "base", "user_data"}


def code(text: str, language: str) -> str:
    """The text without comments; strings stay, as Python finds some fields by their names."""

    def kept(match: re.Match[str]) -> str:
        found = match.group()
        comment = found.startswith(("//", "/*", "#")) or found.startswith('"""')
        return " " if comment else found

    return re.sub(COMMENTS[language], kept, text)


@dataclasses.dataclass(frozen=True)
class Text:
    """The code of one file."""

    words: frozenset[str]
    called: frozenset[str]  # functions that are called or handed on: `library.f`, `sys::f`
    shown: frozenset[str]  # structs that are public as they are: `pub use sys::S`

    @staticmethod
    def of(text: str, language: str) -> Text:
        owner = {"python": r"\w\.", "dotnet": r"NativeMethods\.", "rust": r"sys::"}[language]
        return Text(
            frozenset(re.findall(r"\w+", text)),
            frozenset(re.findall(rf"{owner}(trireme_\w+)", text)),
            frozenset(re.findall(r"\bpub use sys::(\w+)", text)),
        )


def sources(root: pathlib.Path, language: str) -> list[Text]:
    """The code of each file of the hand-written layer."""
    folder, pattern = FOLDERS[language]
    paths = set((root / folder).glob(pattern))
    for shown in SHOWN[language]:
        paths |= set((root / folder).glob(shown))
    return [Text.of(code(path.read_text(), language), language) for path in sorted(paths)]


def spelled(struct: str, field: str, language: str) -> tuple[str, str]:
    """The names of a struct and its field in the ground layer of a language."""
    if language != "dotnet":
        return struct, field
    bare = struct.removeprefix("trireme_")
    return ENUMS.get(struct, "Native" + pascal(bare)), pascal(field)


def has_field(texts: list[Text], field: Field, language: str) -> bool:
    owner, member = spelled(field.struct, field.name, language)
    if any(owner in text.shown for text in texts):
        return True
    homes = [text for text in texts if owner in text.words]
    if field.alone or (field.handed and not homes):
        homes = texts
    return any(member in text.words for text in homes)


@dataclasses.dataclass(frozen=True)
class Field:
    struct: str
    name: str
    alone: bool = False  # no other struct has a field of this name
    handed: bool = False  # the library hands the struct to a callback, or it lies in another one


@dataclasses.dataclass
class Abi:
    functions: list[str]
    fields: list[Field]
    constants: list[str]


def abi(root: pathlib.Path) -> Abi:
    text = re.sub(r"#.*", "", (root / MAP).read_text())
    functions = re.findall(r"^\s+(trireme_\w+);", text, flags=re.M)
    headers = abi_headers.Headers(root / "include" / "trireme").all
    structs = [struct for header in headers for struct in header.of(abi_headers.Struct)]
    callbacks = [each for header in headers for each in header.of(abi_headers.Callback)]
    handed = {each.type.base for callback in callbacks for each in callback.parameters}
    handed |= {field.type.base for struct in structs for field in struct.fields}
    # Options of rules and schedules have generated classes, which have every field.
    generated = {rule.struct for header in headers for rule in header.rules + header.schedules}
    owners = collections.Counter(field.name for struct in structs for field in struct.fields)
    fields = [
        Field(struct.name, field.name, owners[field.name] == 1, struct.name in handed)
        for struct in structs
        if struct.name not in generated
        for field in struct.fields
        if field.name not in BOOKKEEPING and not must_be_zero(field)
    ]
    constants = [constant.name for header in headers for constant, _ in header.constants()]
    return Abi(functions, fields, constants)


def must_be_zero(field: abi_headers.Variable) -> bool:
    return bool(field.doc) and field.doc[0].text.startswith("Must be 0.")


def reach(known: Abi, texts: list[Text], language: str) -> dict[str, bool]:
    """Whether a language reaches each name of the ABI."""
    called = frozenset().union(*(text.called for text in texts))
    found = {name: name in called for name in known.functions}
    for field in known.fields:
        found[f"{field.struct}.{field.name}"] = has_field(texts, field, language)
    words = frozenset().union(*(text.words for text in texts))
    found |= {name: name in words for name in known.constants}
    return found


def check(known: Abi, texts: dict[str, list[Text]], left: Left) -> list[str]:
    """`texts` are the files of each language, and `left` is what they leave out."""
    problems = []
    for language, files in texts.items():
        patterns = [name for name, (where, _) in left.items() if language in where]
        found = reach(known, files, language)
        missing = [name for name, reached in found.items() if not reached]
        for name in missing:
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                problems.append(f"{language}: {name} is reached by no hand-written class")
        for pattern in patterns:
            if not fnmatch.filter(missing, pattern):
                problems.append(f"{language}: the list has {pattern}, and nothing like it is left")
    return problems


def check_tree(root: pathlib.Path = ROOT) -> list[str]:
    texts = {language: sources(root, language) for language in ALL}
    return check(abi(root), texts, FUNCTIONS | FIELDS | CONSTANTS)


def main() -> int:
    problems = check_tree()
    count = len(abi(ROOT).functions)
    print("\n".join(problems) or f"reach: {count} functions, called in {', '.join(ALL)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
