"""The declarations of the public headers, read from their text: structs, constants, functions."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"


def headers(include=INCLUDE):
    return sorted((include / "trireme").glob("*.h"))


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def structs(include=INCLUDE):
    """{name: [field, ...]} of every struct with public fields."""
    found = {}
    for header in headers(include):
        text = without_comments(header.read_text())
        for match in re.finditer(r"typedef struct (\w+) \{(.*?)\} \1;", text, flags=re.S):
            declarations = [part.strip() for part in match.group(2).split(";")]
            found[match.group(1)] = [
                re.search(r"(\w+)\s*(\[\w+\])?$", part).group(1) for part in declarations if part
            ]
    return found


def fixed_structs(include=INCLUDE):
    """Names of the structs that never grow, as the comment behind each says."""
    text = "\n".join(header.read_text() for header in headers(include))
    return re.findall(r"^\} (\w+); /\* since \d+\.\d+, never grows \*/$", text, flags=re.M)


def releases(include=INCLUDE):
    """{name: "1.0"} of every struct: the release that brought it, as the comment behind it says."""
    text = "\n".join(header.read_text() for header in headers(include))
    return dict(re.findall(r"^\} (\w+); /\* since (\d+\.\d+)[,\w ]* \*/$", text, flags=re.M))


def initial(include=INCLUDE):
    """Names of the structs that a caller begins from an _INIT macro."""
    text = without_comments("\n".join(header.read_text() for header in headers(include)))
    found = re.findall(r"^#define \w+_INIT\b[\s\\]+TRIREME_INIT(?:_\w+)?\((\w+)", text, flags=re.M)
    return list(dict.fromkeys(found))


def constants(include=INCLUDE):
    """Names of every enumerator and every numeric macro."""
    found = []
    for header in headers(include):
        text = without_comments(header.read_text())
        for body in re.findall(r"\benum \{(.*?)\};", text, flags=re.S):
            found += re.findall(r"\b(TRIREME_\w+)\s*=", body)
        found += re.findall(r"#define (TRIREME_\w+) \d+\s*$", text, flags=re.M)
    return found


def struct_comments(include=INCLUDE):
    """{name: its comment} of every struct with public fields that has one right above it."""
    found = {}
    for header in headers(include):
        for match in re.finditer(
            r"/\*\*((?:(?!\*/).)*)\*/\ntypedef struct (\w+) \{", header.read_text(), flags=re.S
        ):
            found[match.group(2)] = match.group(1)
    return found


def functions(include=INCLUDE):
    """{name: its comment} of every declared function."""
    found = {}
    for header in headers(include):
        text = header.read_text()
        for match in re.finditer(r"TRIREME_CALLCONV\s+(trireme_\w+)\(", text):
            before = text[: match.start()]
            end = before.rfind("*/")
            between = before[end + 2 :]
            comment = before[before.rfind("/**", 0, end) : end] if end >= 0 else ""
            # A comment is the declaration's own if only the return type lies between them.
            found[match.group(1)] = "" if ";" in between or "}" in between else comment
    return found
