#!/usr/bin/env python3
"""Classes stay small: at most 40 methods and 25 fields.

check_classes.py [--all]     --all: also writes the numbers of every class
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_METHODS = 40
MOST_FIELDS = 25

TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|/\*(?:.|\n)*?\*/)"
    r'|R"(?P<mark>\w*)\((?:.|\n)*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
# Parentheses and all between them, also other parentheses.
INSIDE = r"\((?:[^;{}()]|\((?:[^;{}()]|\([^;{}()]*\))*\))*\)"
HEAD = re.compile(
    rf"\b(?:class|struct)\s+(?:(?:alignas\s*{INSIDE}|\[\[[^\]]*\]\])\s*)*([\w:]+)\s*(?:<[^;{{}}]*>\s*)?"
    rf"(?:final\s*)?(?::(?!:)(?:[^;{{}}()]|{INSIDE})*)?$"
)
NO_MEMBER = re.compile(
    r"^(using|typedef|friend|static_assert|enum|class|struct|union"
    r"|template\s*<[^;]*>\s*(class|struct|friend|using))\b"
)
ACCESS = re.compile(r"^(?:(?:public|protected|private)\s*:(?!:)\s*)+")


def bare(text):
    """The text without comments, literals and directives."""
    return DIRECTIVE.sub("", TOKEN.sub(lambda token: " " if token["comment"] else "0", text))


def without_templates(text):
    """The text without what stands in angle brackets, whose commas say nothing about a member."""
    while True:
        less = re.sub(r"<[^<>;{}]*>", "", text)
        if less == text:
            return text
        text = less


def is_method(statement):
    if re.search(r"\boperator\b", statement):
        return True
    head = re.split(r"(?<![=!<>])=(?!=)", without_templates(statement))[0]
    head = re.sub(r"\b(?:alignas|decltype|noexcept)\s*\([^)]*\)", "", head)
    found = re.search(r"(\w+)\s*\(", head)
    # A field with a function pointer's type: `Status (*call)(...)`.
    return found is not None and not re.search(r"\(\s*\*\s*\w+(\[\w*\])?\s*\)\s*\(", head)


def fields_of(statement):
    """How many fields one declaration makes: commas outside of brackets and initialisers."""
    depth, fields = 0, 1
    for character in without_templates(statement):
        depth += (character in "([{") - (character in ")]}")
        fields += character == "," and depth == 0
    return fields


def members_of(body):
    """Methods and fields of a class by what its braces hold, without those of classes inside."""
    methods = fields = 0
    statement, place = "", 0
    while place < len(body):
        character = body[place]
        if character == "{":
            end, level = place, 0
            while True:
                level += (body[end] == "{") - (body[end] == "}")
                end += 1
                if level == 0:
                    break
            head = ACCESS.sub("", statement.strip())
            place = end
            rest = body[place:].lstrip()
            if HEAD.search(head) or re.match(r"(?:\w+\s+)*(enum|union)\b", head):  # a type
                statement = ""
                if not rest.startswith(";"):  # of a field, which follows
                    statement = "type "
            elif is_method(head):
                # A body, or an initialiser of a member before it: `: a_{b} {`.
                if re.match(r"[,{]", rest):
                    statement += " "
                    continue
                methods += 1
                statement = ""
            else:
                statement += " "  # the braces of an initialiser
            continue
        if character == ";":
            head = ACCESS.sub("", statement.strip())
            if head and not NO_MEMBER.match(head):
                if is_method(head):
                    methods += 1
                elif not re.match(r"static\s+constexpr\b|constexpr\s+static\b", head):
                    fields += fields_of(head)
            statement = ""
        else:
            statement += character
        place += 1
    return methods, fields


def classes_of(text):
    """(name, methods, fields) of each class that the text defines; inner ones are Outer::Inner."""
    text, found, open_heads = bare(text), [], []
    begin = 0
    for place, character in enumerate(text):
        if character == "{":
            head = HEAD.search(text[begin:place].strip())
            named = head is not None and not re.search(
                r"\benum\s+(class|struct)\b", head.group(0) if head else ""
            )
            named = named and not re.search(
                r"\benum\s*$", text[begin:place].strip()[: head.start()]
            )
            open_heads.append((head.group(1) if named else None, place + 1))
            begin = place + 1
        elif character == "}":
            if not open_heads:
                raise SystemExit("braces do not match")
            name, first = open_heads.pop()
            if name is not None:
                outer = [head for head, _ in open_heads if head is not None]
                found.append(("::".join([*outer, name]), *members_of(text[first:place])))
            begin = place + 1
        elif character == ";":
            begin = place + 1
    return found


def check(classes):
    """`classes`: (file, name, methods, fields)."""
    return [
        f"{path}: {name} has {methods} methods and {fields} fields; give some to another class"
        for path, name, methods, fields in classes
        if methods > MOST_METHODS or fields > MOST_FIELDS
    ]


def all_classes(root=ROOT):
    classes = []
    for path in sorted((root / "src").rglob("*.*")):
        if path.suffix not in (".cpp", ".hpp", ".inc"):
            continue
        name = path.relative_to(root)
        classes += [(name, *one) for one in classes_of(path.read_text())]
    return classes


def main():
    classes = all_classes()
    if "--all" in sys.argv[1:]:
        for path, name, methods, fields in sorted(
            classes, key=lambda one: -max(one[2] / MOST_METHODS, one[3] / MOST_FIELDS)
        ):
            print(f"{methods:4} methods {fields:4} fields  {path}: {name}")
    problems = check(classes)
    print(
        "\n".join(problems)
        or f"classes: {len(classes)}, each with at most {MOST_METHODS} methods and {MOST_FIELDS} fields"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
