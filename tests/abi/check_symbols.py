#!/usr/bin/env python3
"""Exported symbols == declared functions == the linker map == what each language binds."""

import pathlib
import re
import subprocess
import sys

import headers

BINDINGS = {
    "python": "bindings/python/trireme/_abi/*.py",
    "dotnet": "bindings/dotnet/src/Abi/*.cs",
    "rust": "bindings/rust/trireme-sys/src/abi/*.rs",
}


def exported(library):
    command = ["nm", "-D", "--defined-only", library]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in text.splitlines()}
    return {name for name in names if not re.fullmatch(r"TRIREME_\d+\.\d+", name)}


def mapped(path):
    text = re.sub(r"#.*", "", pathlib.Path(path).read_text())
    return set(re.findall(r"^\s+(trireme_\w+);", text, flags=re.M))


def compare(names):
    """Differences between the sets in `names`, as text."""
    problems = []
    for symbol in sorted(set().union(*names.values())):
        missing = [place for place, symbols in names.items() if symbol not in symbols]
        if missing:
            problems.append(f"{symbol}: not in {', '.join(missing)}")
    return problems


def main():
    names = {
        "the library's exports": exported(sys.argv[1]),
        "the headers": set(headers.functions()),
        "trireme.map": mapped(headers.ROOT / "src/api/trireme.map"),
    }
    for language, pattern in BINDINGS.items():
        text = "\n".join(path.read_text() for path in headers.ROOT.glob(pattern))
        bound = set(re.findall(r"\btrireme_\w+", text))
        names[f"bindings/{language}"] = bound & names["the headers"]
    problems = compare(names)
    count = len(names["the headers"])
    print("\n".join(problems) or f"symbols: {count}, the same in {', '.join(names)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
