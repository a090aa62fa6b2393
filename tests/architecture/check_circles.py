#!/usr/bin/env python3
"""No module of the Python package imports another one that imports it, not even for its types."""

import ast
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bindings/python/trireme"


def modules(package=PACKAGE):
    """{"trireme._abi.log": text, ...}; a package has the name of its folder."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def imports(name, is_package, text, known):
    """The modules that `name` imports from its own package."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        above = node.level - is_package
        home = name.rsplit(".", above)[0] if above else name
        base = f"{home}.{node.module}" if node.module else home
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            found.add(inner if inner in known else base)
    return found - {name}


def circles(texts):
    """Each set of modules that import each other, as a sorted list."""
    packages = {name.rpartition(".")[0] for name in texts}
    graph = {name: imports(name, name in packages, text, texts) for name, text in texts.items()}
    reached = {name: reach(graph, name) for name in graph}
    return sorted(
        {
            tuple(sorted(other for other in reached[name] if name in reached[other]))
            for name in graph
            if name in reached[name]
        }
    )


def reach(graph, start):
    """The names within reach of `start`, itself only by a circle."""
    found, waiting = set(), [start]
    while waiting:
        for name in graph.get(waiting.pop(), ()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def main():
    texts = modules()
    problems = [f"import each other: {', '.join(circle)}" for circle in circles(texts)]
    print("\n".join(problems) or f"circles: none among {len(texts)} modules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
