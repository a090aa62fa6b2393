#!/usr/bin/env python3
"""trireme plan: the drawings of docs/pipeline.md, the table of orders, and bad files.

Usage: test_plan.py TRIREME [unittest arguments]
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

TRIREME = ""
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "pipeline.md"
FOUR = "ranks 4\nmicro_batches 8\nstage 1 1 1 10 10 1\nlimit 40\n"


def plan(costs, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(costs)
        file.flush()
        return subprocess.run(
            [TRIREME, "plan", "--pipeline", file.name, *options],
            capture_output=True,
            text=True,
            timeout=60,
        )


class PlanTest(unittest.TestCase):
    def test_the_page_has_the_drawings_of_the_command(self):
        blocks = re.findall(r"^```\w*\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
        costs = next(block for block in blocks if "\nmicro_batches" in block)
        drawings = next(block for block in blocks if block.startswith("$ trireme plan"))
        calls = re.findall(r"^\$ trireme plan --pipeline \S+ (.*)\n((?:rank.*\n)+)", drawings, re.M)
        self.assertEqual(len(calls), 2)
        for options, wanted in calls:
            result = plan(costs, *options.split())
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual(result.stdout, wanted)

    def test_orders_are_compared(self):
        result = plan(FOUR)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        table = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line}
        self.assertEqual(table["1f1b"][1:], ["33", "33", "27.27%", "40", "yes"])
        self.assertEqual(table["gpipe"][-2:], ["80", "no"])
        self.assertEqual(table["zb-h1"][1], "27")
        self.assertEqual(table["best"][1], "27")
        self.assertNotIn("zbv", table)
        self.assertIn("\nbest:\nrank 0 0F0", result.stdout)

    def test_forms(self):
        trace = plan(FOUR, "--order", "1F1B", "--format", "trace", "--drawing-alone")
        self.assertEqual(len(json.loads(trace.stdout)["traceEvents"]), 64)
        text = plan(FOUR, "--order", "gpipe", "--format", "csv", "--drawing-alone").stdout
        self.assertTrue(text.startswith("0F0,0F1,0F2"))

    def test_what_is_wrong_is_told(self):
        for costs, options, words in (
            ("ranks two\n", [], "line 1"),
            (FOUR, ["--order", "fastest"], "names are gpipe"),
            (FOUR, ["--order", "zbv"], "2 stages a rank"),
            (FOUR, ["--format", "pdf"], '"pdf" is no format'),
            (FOUR.replace("stage 1", "stage -1"), [], "forward of stage 0"),
        ):
            result = plan(costs, *options)
            self.assertEqual(result.returncode, 1)
            self.assertIn(words, result.stderr)
        missing = subprocess.run(
            [TRIREME, "plan", "--pipeline", "/no/such/file"], capture_output=True, text=True
        )
        self.assertEqual(missing.returncode, 1)
        self.assertIn("cannot open /no/such/file", missing.stderr)


if __name__ == "__main__":
    TRIREME = sys.argv.pop(1)
    unittest.main()
