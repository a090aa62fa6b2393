#!/usr/bin/env python3
"""Prose stays plain, in pages, headers and the comments of sources and bindings: a sentence has at most
25 words, does not begin with What, Who or Which, and has none of the riddles below. A field's comment in
a header stands above it and has at most 4 lines; a header's lines have at most 100 columns. A folder of
sources that breaks the rule today has a ceiling here, which follows the count down and never up.

    check_prose.py [--list FILE...]     --list: also what a ceiling allows, in these files or all
"""

import ast
import collections
import html
import inspect
import io
import pathlib
import re
import sys
import tokenize

from check_classes import TOKEN
from rooms import GENERATED

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_WORDS = 25
MOST_FIELD_LINES = 4
MOST_COLUMNS = 100

# Ends a sentence: a mark before a space, but for abbreviations.
END = re.compile(r"(?<=[.!?:;])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!\bal\.)\s+")
RIDDLE = re.compile(r"^(What|Who|Which)\b(?!.*\?$)")
# These hide the actor or the thing: name it.
RIDDLES = re.compile(
    r"\b(nobody|whom|of which|the one that|as long as that|what it has"
    r"|(?:and|as|but|by|for|from|if|of|or|than|to|with) who)\b",
    re.I,
)

# Comments and texts of Rust, where 'a may be a lifetime, and of C#.
TOKEN_OF_RUST = re.compile(
    r"(?P<comment>//[^\n]*|/\*(?:.|\n)*?\*/)"
    r"|'(?:\\[^']+|[^'\\\n])'"
    r'|\bb?r(?P<mark>#*)"(?:.|\n)*?"(?P=mark)|"(?:\\(?:.|\n)|[^"\\])*"'
)
TOKEN_OF_CSHARP = re.compile(
    r"(?P<comment>//[^\n]*|/\*(?:.|\n)*?\*/)"
    r"|'(?:\\[^']+|[^'\\\n])'"
    r'|@\$?"(?:[^"]|"")*"|"(?:\\.|[^"\\\n])*"'
)

# A paragraph whose lines all stand apart: a drawing or a table.
DRAWING = re.compile(r"( {3,}.*(\n|$))+")

# Folders with sources whose comments are measured.
SOURCES = ("src", "tests", "tools", "bindings", "examples")
# Sentences that break the rule in the comments of a folder.
CEILINGS = {}


def sentences(text):
    """The sentences of a paragraph without markup."""
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return [part.strip() for part in END.split(" ".join(text.split())) if part.strip()]


def words(sentence):
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def of_sentences(paragraph, where):
    found = []
    for sentence in sentences(paragraph):
        if words(sentence) > MOST_WORDS:
            found.append(f"{where}: {words(sentence)} words: {sentence[:60]}")
        if RIDDLE.match(sentence):
            found.append(f"{where}: begins with a riddle: {sentence[:60]}")
        elif RIDDLES.search(sentence):
            found.append(f"{where}: a riddle: {sentence[:60]}")
    return found


def of_page(text, name):
    """Breaches of the rule in a page: text and lists, not code and tables."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    found, paragraph = [], []
    for line in [*text.split("\n"), ""]:
        item = re.match(r"\s*(?:[-*]|\d+\.)\s+(.*)", line)
        if not line.strip() or line.startswith(("|", "#")) or item:
            found += of_sentences(" ".join(paragraph), name)
            paragraph = [item.group(1)] if item else []
        else:
            paragraph.append(line)
    return found


def of_header(text, name):
    """Breaches of the rule in a public header: its comments, and the lines they stand in."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MOST_COLUMNS:
            found.append(f"{name}:{number}: {len(line)} columns")
    for match in re.finditer(r"/\*\*(<?)(.*?)\*/", text, flags=re.S):
        line = text.count("\n", 0, match.start()) + 1
        where = f"{name}:{line}"
        lines = [re.sub(r"^\s*\* ?", "", part) for part in match.group(2).split("\n")]
        of_field = match.group(1) or re.match(r"\s*\n\s+\w[^;{}]*;", text[match.end() :])
        if of_field and len([part for part in lines if part.strip()]) > MOST_FIELD_LINES:
            found.append(f"{where}: a field's comment of {len(lines)} lines")
        # A tag begins a paragraph, and so does an empty line.
        body = "\n".join(lines)
        body = re.sub(r"^\s*@(param(\[\w+\])?|retval)\s+\S+", "\n\n", body, flags=re.M)
        body = re.sub(r"^\s*@\w+", "\n\n", body, flags=re.M)
        for paragraph in re.split(r"\n\s*\n|\n\s*- ", body):
            found += of_sentences(paragraph, where)
    return found


def comments(text, tokens=TOKEN):
    """(line, text) of the comments of a C or C++ source; lines that follow each other are one comment."""
    blocks, last = [], None
    for token in tokens.finditer(text):
        comment = token["comment"]
        if not comment:
            continue
        line = text.count("\n", 0, token.start()) + 1
        begin = text.rfind("\n", 0, token.start()) + 1
        column = token.start() - begin
        if comment.startswith("/*"):
            lines = [re.sub(r"^\s*\*+<?", "", part) for part in comment[1:-2].split("\n")]
            blocks.append((line, lines))
            last = None
            continue
        said = re.sub(r"^//[/!]*", "", comment)
        if last == (line - 1, column) and not text[begin : token.start()].strip():
            blocks[-1][1].append(said)
        else:
            blocks.append((line, [said]))
        last = (line, column)
    return [(line, "\n".join(lines)) for line, lines in blocks]


def rust_comments(text):
    """The same of a Rust source, without its examples and headings."""
    part = re.compile(r"```.*?```|^\s*#+ [^\n]*$", re.S | re.M)
    return [(line, part.sub("\n\n", said)) for line, said in comments(text, TOKEN_OF_RUST)]


def csharp_comments(text):
    """The same of a C# source, without its tags."""
    return [(line, without_tags(said)) for line, said in comments(text, TOKEN_OF_CSHARP)]


def without_tags(said):
    """A comment of C# where a tag that begins a part begins a paragraph."""
    said = re.sub(r"<code>.*?</code>", "\n\n", said, flags=re.S)
    said = re.sub(r"<c>.*?</c>|<(see|seealso|paramref|typeparamref)\b[^>]*/>", "code", said)
    parts = "summary|remarks|para|param|typeparam|returns|value|exception|example|list|item"
    said = re.sub(rf"</?({parts})\b[^>]*>", "\n\n", said)
    return html.unescape(re.sub(r"</?(see|b|i|term|description)\b[^>]*>", "", said))


def python_comments(text):
    """The same of a Python source, docstrings too, without their examples."""
    blocks, last = [], None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            line, column = token.start
            if last == (line - 1, column) and not token.line[:column].strip():
                blocks[-1][1].append(token.string[1:])
            else:
                blocks.append((line, [token.string[1:]]))
            last = token.start
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            said = inspect.cleandoc(node.value.value) if isinstance(node.value.value, str) else ""
            said = re.sub(r"^\s*>>>.*?(\n\s*\n|\Z)", "\n\n", said, flags=re.S | re.M)
            blocks.append((node.lineno, [said]))
    return [(line, "\n".join(lines)) for line, lines in blocks]


def of_source(text, name, comments_of=comments):
    """Breaches of the rule in the comments of a source."""
    found = []
    for line, comment in comments_of(text):
        for paragraph in re.split(r"\n\s*\n|\n\s*- ", comment):
            if not DRAWING.fullmatch(paragraph.rstrip()):
                found += of_sentences(paragraph, f"{name}:{line}")
    return found


COMMENTS = {
    **dict.fromkeys((".c", ".h", ".cpp", ".hpp", ".inc"), comments),
    ".py": python_comments,
    ".rs": rust_comments,
    ".cs": csharp_comments,
}


def is_written(path, root=ROOT):
    """Not generated, and not made by a build inside a binding."""
    folders = path.relative_to(root).parts[:-1]
    return not {"build", "target", "bin", "obj"} & set(folders) and not GENERATED.match(
        path.read_text()
    )


def against_ceilings(found, ceilings):
    """`found`: breaches of the rule, by folder. Folders above their ceiling, or below it."""
    problems = []
    for folder in sorted({*found, *ceilings}):
        now, most = len(found.get(folder, [])), ceilings.get(folder, 0)
        if now > most:
            problems += [*found[folder], f"{folder}: {now} sentences break the rule, after {most}"]
        elif now < most:
            problems.append(f"{folder}: {now} sentences break the rule; write that to CEILINGS")
    return problems


def of_sources(root=ROOT):
    """Breaches of the rule in comments, by folder, and how many sources were read."""
    found, texts = collections.defaultdict(list), 0
    for place in SOURCES:
        for path in sorted((root / place).rglob("*.*")):
            if path.suffix in COMMENTS and is_written(path, root):
                name = path.relative_to(root)
                comments_of = COMMENTS[path.suffix]
                found[name.parent.as_posix()] += of_source(path.read_text(), name, comments_of)
                texts += 1
    return found, texts


def check(root=ROOT):
    """Breaches of the rule, and how many texts were read."""
    pages = [root / "README.md", *root.glob("docs/*.md"), *root.glob("bindings/*/README.md")]
    problems = []
    for path in sorted(pages):
        problems += of_page(path.read_text(), path.relative_to(root))
    headers = sorted((root / "include/trireme").glob("*.h"))
    for path in headers:
        problems += of_header(path.read_text(), path.relative_to(root))
    found, sources = of_sources(root)
    problems += against_ceilings(found, CEILINGS)
    return problems, len(pages) + len(headers) + sources


def main():
    if "--list" in sys.argv[1:]:
        wanted = tuple(sys.argv[sys.argv.index("--list") + 1 :])
        for problem in sum(of_sources()[0].values(), []):
            if not wanted or problem.startswith(wanted):
                print(problem)
    problems, texts = check()
    print("\n".join(problems) or f"prose: {texts} texts are plain")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
