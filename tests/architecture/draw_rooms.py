#!/usr/bin/env python3
"""Draws docs/architecture.svg from the includes of src/: every room, and an arrow to each room that
it includes. An arrow that follows from others is left out.

    draw_rooms.py            writes the picture
    draw_rooms.py --check    fails if the picture in docs/ is not that of the sources
"""

import html
import itertools
import re
import sys
import textwrap

import rooms
from rooms import ROOMS, ROOT

PICTURE = ROOT / "docs" / "architecture.svg"

LETTERS = 25  # of a duty in one line
CELL_WIDTH, LINE = 166, 14
GAP, ROW_GAP, FRAME, TITLE = 14, 34, 12, 24
MARGIN = 20
NAME = 'font-size="13" font-weight="bold" fill="#1b2733"'
DUTY = 'font-size="11" fill="#3c4a57"'
ARROW = 'fill="none" stroke="#66788a" stroke-width="1.3" marker-end="url(#head)"'
HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0L8 4L0 8z" fill="#66788a"/></marker></defs>'
)


def reduced(pairs):
    """Without the pairs that follow from others."""
    below = {}
    for upper, lower in pairs:
        below.setdefault(upper, set()).add(lower)

    def reaches(upper, lower):
        return any(next_ == lower or reaches(next_, lower) for next_ in below.get(upper, ()))

    return {
        (upper, lower)
        for upper, lower in pairs
        if not any(reaches(other, lower) for other in below[upper] - {lower})
    }


def rows_of(nodes, pairs):
    """Nodes by row from the top: each one right below the lowest that includes it."""
    place = {}

    def find(node):
        if node not in place:
            place[node] = 1 + max(
                (find(upper) for upper, lower in pairs if lower == node), default=-1
            )
        return place[node]

    rows = [[] for _ in range(1 + max(map(find, nodes)))]
    for node in nodes:
        rows[find(node)].append(node)
    return rows


class Box:
    """A room, a story with its rooms inside, or a gap in a row that an arrow goes through."""

    def __init__(self, name, duty="", inside=(), pairs=()):
        self.name, self.duty = name, textwrap.wrap(duty, LETTERS)
        self.x = self.y = 0
        self.inside, self.pairs = list(inside), reduced(set(pairs))
        self.bends = {}
        self.width, self.height = CELL_WIDTH, 26 + LINE * len(self.duty)
        if self.inside:
            width, height, self.bends = lay_out(self.inside, self.pairs)
            self.width, self.height = width + 2 * FRAME, height + FRAME + TITLE
            for box in self.parts():
                box.move(FRAME, TITLE)

    def parts(self):
        return [*self.inside, *itertools.chain.from_iterable(self.bends.values())]

    def move(self, x, y):
        self.x, self.y = self.x + x, self.y + y
        for box in self.parts():
            box.move(x, y)

    @property
    def middle(self):
        return self.x + self.width / 2


def lay_out(boxes, pairs):
    """Moves each box to its place, rows from the top. Returns width and height of all, and for each
    pair the gaps in the rows between, which its arrow goes through."""
    by_name = {box.name: box for box in boxes}
    rows = [[by_name[name] for name in row] for row in rows_of(list(by_name), pairs)]
    row_of = {box.name: number for number, row in enumerate(rows) for box in row}
    above, bends = {}, {}
    for upper, lower in sorted(pairs):
        bends[upper, lower] = []
        last = by_name[upper]
        for row in rows[row_of[upper] + 1 : row_of[lower]]:
            bend = Box((upper, lower, len(bends[upper, lower])))
            bend.width = bend.height = 0
            row.append(bend)
            above[bend.name] = [last]
            bends[upper, lower].append(bend)
            last = bend
        above.setdefault(lower, []).append(last)
    y = 0
    for row in rows:

        def wanted(box):
            uppers = [upper.middle for upper in above.get(box.name, ())]
            return sum(uppers) / len(uppers) if uppers else 0

        row.sort(key=lambda box: (wanted(box), str(box.name)))
        end = -sys.maxsize
        for box in row:
            x = max(end, wanted(box) - box.width / 2)
            box.move(x - box.x, y - box.y)
            end = box.x + box.width + GAP
        height = max(box.height for box in row)
        for box in row:
            if not box.width:
                box.height = height
        y += height + ROW_GAP
    parts = list(itertools.chain.from_iterable(rows))
    left = min(box.x for box in parts)
    for box in parts:
        box.move(-left, 0)
    return max(box.x + box.width for box in parts), y - ROW_GAP, bends


def text_at(x, y, style, text, anchor="middle"):
    return (
        f'<text {style} x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{html.escape(text)}</text>'
    )


def arrows(boxes, pairs, bends):
    by_name = {box.name: box for box in boxes}
    for upper, lower in sorted(pairs):
        a, b = by_name[upper], by_name[lower]
        stops = [*bends[upper, lower], b]
        x, y = a.middle, a.y + a.height
        if a.width > 2 * CELL_WIDTH:  # of a wide one, from where the other is
            x = min(max(stops[0].middle, a.x + FRAME), a.x + a.width - FRAME)
        way = f"M{x:.0f} {y:.0f}"
        for stop in stops:
            to = stop.middle
            if stop.width > 2 * CELL_WIDTH:
                to = min(max(x, stop.x + FRAME), stop.x + stop.width - FRAME)
            begin, end = max(y, stop.y - ROW_GAP), stop.y - (5 if stop is b else 0)
            bend = (end - begin) / 2
            way += f"V{begin:.0f}C{x:.0f} {begin + bend:.0f} {to:.0f} {end - bend:.0f} "
            way += f"{to:.0f} {end:.0f}"
            x, y = to, stop.y + stop.height
            if stop is not b:
                way += f"V{y:.0f}"
        yield f'<path {ARROW} d="{way}"/>'


def drawn(box, depth=0):
    fill = "#eef3f7" if box.inside else "#fff" if depth else "#dcebf7"
    place = f'x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}"'
    yield f'<rect fill="{fill}" stroke="#5b7f9e" {place} rx="5"/>'
    if box.inside:
        yield text_at(box.x + FRAME, box.y + 17, NAME, box.name + "/", "start")
        yield from arrows(box.inside, box.pairs, box.bends)
        for inner in box.inside:
            yield from drawn(inner, depth + 1)
        return
    y = box.y + 17
    yield text_at(box.middle, y, NAME, box.name.split("/", 1)[-1])
    for line in box.duty:
        y += LINE
        yield text_at(box.middle, y, DUTY, line)


def picture(pairs):
    stories = []
    for story in dict.fromkeys(map(rooms.story, ROOMS)):
        inside = [room for room in ROOMS if rooms.story(room) == story]
        if len(inside) == 1:
            stories.append(Box(story, ROOMS[inside[0]].duty))
        else:
            own = [(upper, lower) for upper, lower in pairs if upper in inside and lower in inside]
            stories.append(Box(story, "", [Box(room, ROOMS[room].duty) for room in inside], own))
    between = {(rooms.story(upper), rooms.story(lower)) for upper, lower in pairs}
    between = reduced({(upper, lower) for upper, lower in between if upper != lower})
    width, height, bends = lay_out(stories, between)
    for box in itertools.chain(stories, *bends.values()):
        box.move(MARGIN, MARGIN)
    width, height = width + 2 * MARGIN, height + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif">',
        "<title>The rooms of src/, and which includes which</title>",
        "<!-- Written by tests/architecture/draw_rooms.py from the includes. -->",
        HEAD,
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
        *arrows(stories, between, bends),
    ]
    for box in stories:
        lines += drawn(box)
    return "\n".join([*lines, "</svg>", ""])


def problems_of(pairs, text):
    if picture(pairs) == text:
        return []
    return [f"{PICTURE.relative_to(ROOT)} is not that of the sources; run draw_rooms.py"]


def unknown_names(text):
    """Names of docs/architecture.md that are not there, and rooms that its table leaves out."""
    sources = "\n".join(source for _, _, source in rooms.sources())
    problems = []
    for name in sorted(set(re.findall(r"`([^`\n]+)`", text))):
        if re.fullmatch(r"(\w+::)?\w+\(\)", name) and name[:-1] not in sources:
            problems.append(f"the page names {name}, which no source has")
        if name.startswith("src/") and not (ROOT / name).exists():
            problems.append(f"the page names {name}, which is not there")
    table = text.split("## What each room is for")[-1].split("\n## ")[0]
    named = set(re.findall(r"`([^`]+)`", "".join(re.findall(r"^\|(.*?)\|", table, flags=re.M))))
    problems += [
        f"the page says what {room} is for, which is no room" for room in named - set(ROOMS)
    ]
    return problems + [
        f"the page does not say what {room} is for"
        for room in ROOMS
        if room not in named and not room.endswith("/plugin")
    ]


def main():
    pairs = rooms.edges()
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(picture(pairs))
        return 0
    problems = problems_of(pairs, PICTURE.read_text() if PICTURE.exists() else "")
    print("\n".join(problems) or "picture: that of the sources")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
