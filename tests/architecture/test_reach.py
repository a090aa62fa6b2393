#!/usr/bin/env python3
"""The gate check_reach.py can fail: it is shown layers that lack something, and must say so."""

import pathlib
import re
import shutil
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import check_reach

MAP = "TRIREME_1.0 {\n  global:\n    trireme_ship_launch;\n};\n"
HEADER = """#include <stdint.h>

/** A kind of ship. */
typedef int32_t trireme_ship_kind;

/** Numbers of the kinds. */
enum {
    /** Of war. */
    TRIREME_SHIP_KIND_WAR = 1
};

/** A ship. */
typedef struct trireme_ship_options {
    /** sizeof. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /** Rowers on a bank. */
    uint32_t bank_rowers;
} trireme_ship_options; /* since 1.0 */

/** Launches. */
TRIREME_FALLIBLE int32_t TRIREME_CALLCONV trireme_ship_launch(const trireme_ship_options *options);
"""
LAYERS = {
    "bindings/python/trireme/_ship.py": """
def launch(rowers):
    options = _native.trireme_ship_options(bank_rowers=rowers)
    check(library.trireme_ship_launch(byref(options)))
KINDS = {"war": _native.TRIREME_SHIP_KIND_WAR}
""",
    "bindings/dotnet/src/Ship.cs": """
enum ShipKind { War = NativeMethods.TRIREME_SHIP_KIND_WAR }
void Launch() {
    var options = new NativeShipOptions { BankRowers = 3 };
    TriremeException.Check(NativeMethods.trireme_ship_launch(ref options));
}
""",
    "bindings/rust/trireme/src/ship.rs": """
enum Kind { War = sys::TRIREME_SHIP_KIND_WAR }
fn launch() {
    let mut raw = sys::trireme_ship_options::init();
    raw.bank_rowers = 3;
    check(unsafe { sys::trireme_ship_launch(&raw) })
}
""",
}


class Reach(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write(check_reach.MAP, MAP)
        self.write("include/trireme/ship.h", HEADER)
        for path, text in LAYERS.items():
            self.write(path, text)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def problems(self, left=None):
        texts = {language: check_reach.sources(self.root, language) for language in check_reach.ALL}
        return check_reach.check(check_reach.abi(self.root), texts, left or {})

    def test_layers_that_reach_all_have_no_problem(self):
        self.assertEqual(self.problems(), [])

    def test_what_a_layer_loses_is_noticed(self):
        names = ("trireme_ship_launch", "bank_rowers", "BankRowers", "TRIREME_SHIP_KIND_WAR")
        seen = 0
        for path, text in LAYERS.items():
            for name in names:
                if name in text:
                    seen += 1
                    self.write(path, text.replace(name, "other"))
                    found = self.problems()
                    self.assertEqual(len(found), 1, found)
                    self.assertIn(path.split("/")[1], found[0])
                    self.write(path, text)
        self.assertEqual(seen, 9)

    def test_a_comment_reaches_nothing(self):
        for path, text in LAYERS.items():
            mark = "#" if path.endswith(".py") else "//"
            lines = (f"{mark} {line}" if "launch(" in line else line for line in text.split("\n"))
            self.write(path, "\n".join(lines))
        found = self.problems()
        self.assertEqual(len([line for line in found if "trireme_ship_launch" in line]), 3, found)

    def test_the_ground_layer_does_not_count(self):
        path = "bindings/python/trireme/_ship.py"
        (self.root / path).unlink()
        self.write("bindings/python/trireme/_abi/ship.py", LAYERS[path])
        self.assertEqual(len(self.problems()), 3)

    def test_a_new_function_and_a_new_field_are_noticed(self):
        self.write(check_reach.MAP, MAP.replace("launch;", "launch;\n    trireme_ship_sink;"))
        self.write(
            "include/trireme/ship.h",
            HEADER.replace(
                "} trireme_ship_options;",
                "    /** Sails. */\n    uint32_t sails;\n} trireme_ship_options;",
            ),
        )
        self.assertEqual(len(self.problems()), 6)

    def test_a_reason_is_taken_and_a_needless_one_is_not(self):
        path = "bindings/rust/trireme/src/ship.rs"
        self.write(path, re.sub("sys::trireme_ship_launch", "launch", LAYERS[path]))
        left = {"trireme_ship_*": (("rust",), "a reason")}
        self.assertEqual(self.problems(left), [])
        self.write(path, LAYERS[path])
        self.assertEqual(len(self.problems(left)), 1)

    def test_the_tree_is_read(self):
        """A function that the C# layer no longer calls is noticed in a copy of the sources."""
        for folder in ("include", "src/api", "bindings"):
            shutil.rmtree(self.root / folder, ignore_errors=True)
            shutil.copytree(
                check_reach.ROOT / folder,
                self.root / folder,
                ignore=shutil.ignore_patterns("__pycache__", "tests", "target"),
            )
        self.assertEqual(check_reach.check_tree(self.root), [])
        path = "bindings/dotnet/src/PipelineScheduleDetails.cs"
        text = (self.root / path).read_text()
        self.write(path, text.replace("trireme_pipeline_schedule_times(", "other("))
        self.assertEqual(
            check_reach.check_tree(self.root),
            ["dotnet: trireme_pipeline_schedule_times is reached by no hand-written class"],
        )


if __name__ == "__main__":
    unittest.main()
