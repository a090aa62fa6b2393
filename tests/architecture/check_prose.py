#!/usr/bin/env python3
"""Prose stays plain: a sentence has at most 25 words and does not begin with What, Who or Which; a field's
comment stands above it and has at most 4 lines; a header's lines have at most 100 columns.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_WORDS = 25
MOST_FIELD_LINES = 4
MOST_COLUMNS = 100

# Ends a sentence: a mark before a space, but for abbreviations.
END = re.compile(r"(?<=[.!?:;])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!al\.)\s+")
RIDDLE = re.compile(r"^(What|Who|Which)\b(?!.*\?$)")


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
    return found


def of_page(text, name):
    """What breaks the rule in a page: text and lists, not code and tables."""
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
    """What breaks the rule in a public header: its comments, and the lines they stand in."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MOST_COLUMNS:
            found.append(f"{name}:{number}: {len(line)} columns")
    for match in re.finditer(r"/\*\*(<?)(.*?)\*/", text, flags=re.S):
        line = text.count("\n", 0, match.start()) + 1
        where = f"{name}:{line}"
        lines = [re.sub(r"^\s*\* ?", "", part) for part in match.group(2).split("\n")]
        of_field = match.group(1) or re.match(r"\s*\n\s+\w[^;{}]*;", text[match.end():])
        if of_field and len([part for part in lines if part.strip()]) > MOST_FIELD_LINES:
            found.append(f"{where}: a field's comment of {len(lines)} lines")
        # A tag begins a paragraph, and so does an empty line.
        body = "\n".join(lines)
        body = re.sub(r"^\s*@(param(\[\w+\])?|retval)\s+\S+", "\n\n", body, flags=re.M)
        body = re.sub(r"^\s*@\w+", "\n\n", body, flags=re.M)
        for paragraph in re.split(r"\n\s*\n|\n\s*- ", body):
            found += of_sentences(paragraph, where)
    return found


def check(root=ROOT):
    """What breaks the rule, and how many texts were read."""
    pages = [root / "README.md", *root.glob("docs/*.md"), *root.glob("bindings/*/README.md")]
    problems = []
    for path in sorted(pages):
        problems += of_page(path.read_text(), path.relative_to(root))
    headers = sorted((root / "include/trireme").glob("*.h"))
    for path in headers:
        problems += of_header(path.read_text(), path.relative_to(root))
    return problems, len(pages) + len(headers)


def main():
    problems, texts = check()
    print("\n".join(problems) or f"prose: {texts} texts are plain")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
