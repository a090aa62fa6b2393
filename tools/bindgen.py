#!/usr/bin/env python3
"""Writes the ground layers of the bindings from the public headers, or compares with --check.

A ground layer is the ABI as one language sees it: constants, structs, callbacks and prototypes with
the comments of the headers. Each folder below holds generated files only; they are committed.
"""

from __future__ import annotations

import pathlib
import sys

import abi_dotnet
import abi_headers
import abi_python
import abi_rust
import abi_rust_rules
import abi_rust_schedules

LANGUAGES = (abi_python, abi_dotnet, abi_rust, abi_rust_rules, abi_rust_schedules)


def generated(include: pathlib.Path = abi_headers.INCLUDE) -> dict[str, str]:
    """The text of every generated file by its path in the repository."""
    headers = abi_headers.Headers(include)
    return {
        f"{language.FOLDER}/{name}": text
        for language in LANGUAGES
        for name, text in language.files(headers).items()
    }


def present(root: pathlib.Path = abi_headers.ROOT) -> dict[str, str]:
    """The contents of the folders of generated files."""
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for language in LANGUAGES
        for path in (root / language.FOLDER).glob("*.*")
    }


def differences(wanted: dict[str, str], found: dict[str, str]) -> list[str]:
    problems = []
    for name in sorted(wanted.keys() | found.keys()):
        if name not in wanted:
            problems.append(f"{name}: is of no header")
        elif name not in found:
            problems.append(f"{name}: is missing")
        elif wanted[name] != found[name]:
            lines = zip(wanted[name].split("\n"), found[name].split("\n"))
            line = next((i for i, (a, b) in enumerate(lines, 1) if a != b), 0)
            problems.append(f"{name}:{line}: is not what the headers say")
    return problems


def write(wanted: dict[str, str], root: pathlib.Path = abi_headers.ROOT) -> None:
    for name, text in wanted.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for name in present(root).keys() - wanted.keys():
        (root / name).unlink()


def main() -> int:
    try:
        wanted = generated()
    except abi_headers.HeaderError as problem:
        print(problem)
        return 1
    if sys.argv[1:] == ["--check"]:
        problems = differences(wanted, present())
        if problems:
            print("\n".join([*problems, "python3 tools/bindgen.py writes them anew"]))
            return 1
        print(f"bindgen: {len(wanted)} files are what the headers say")
        return 0
    if sys.argv[1:]:
        print("usage: python3 tools/bindgen.py [--check]")
        return 2
    write(wanted)
    print(f"bindgen: {len(wanted)} files from {abi_headers.INCLUDE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
