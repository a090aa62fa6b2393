#!/usr/bin/env python3
"""Every public function's comment has its slots, and names exactly its parameters. The comment of a struct of
more than 16 fields gives the reason: see REASON.
"""

import re
import sys

import headers

PHRASES = (
    "any thread, also concurrently",
    "any thread, any time",
    "one call at a time per model",
    "one call at a time per region",
    "one call at a time per vocabulary",
    "one call at a time per layer",
    "one call at a time per tensor object",
    "one pass at a time per context",
    "one pass at a time per layer of experts",
)


MOST_FIELDS = 16
REASON = "More than 16 fields:"


def parameters(text, name):
    declaration = re.search(r"TRIREME_CALLCONV\s+" + name + r"\((.*?)\);", text, flags=re.S).group(
        1
    )
    if declaration.strip() == "void":
        return []
    return [re.search(r"(\w+)$", part.strip()).group(1) for part in declaration.split(",")]


def problems_of(name, comment, declared, returns_void):
    if not comment:
        return [f"{name}: no comment"]
    problems = []
    if declared != re.findall(r"@param(?:\[out\])?\s+(\w+)", comment):
        problems.append(f"{name}: the @param lines do not name {declared}")
    if not returns_void and "@retval" not in comment and "@return" not in comment:
        problems.append(f"{name}: says nothing of what it returns")
    threads = re.search(r"Thread safety: (.*?)\.\n", comment)
    if not threads or threads.group(1) not in PHRASES:
        problems.append(f"{name}: Thread safety is not one of the fixed phrases")
    if not re.search(r"@since \d+\.\d+", comment):
        problems.append(f"{name}: no @since")
    if not re.search(r"\b([Bb]locks?|[Ww]aits?|Local)\b", comment):
        problems.append(f"{name}: does not say whether it blocks")
    return problems


def problems_of_structs(include):
    comments = headers.struct_comments(include)
    return [
        f"{name}: {len(fields)} fields; nest them by duty, or give the reason after '{REASON}'"
        for name, fields in headers.structs(include).items()
        if len(fields) > MOST_FIELDS and REASON not in comments.get(name, "")
    ]


def check(include=headers.INCLUDE):
    text = headers.without_comments("\n".join(h.read_text() for h in headers.headers(include)))
    problems = []
    for name, comment in headers.functions(include).items():
        void = re.search(r"TRIREME_API void TRIREME_CALLCONV\s+" + name + r"\(", text) is not None
        problems += problems_of(name, comment, parameters(text, name), void)
    return problems + problems_of_structs(include)


def main():
    problems = check()
    print("\n".join(problems) or f"comments: {len(headers.functions())} functions have every slot")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
