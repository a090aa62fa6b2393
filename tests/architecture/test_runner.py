#!/usr/bin/env python3
"""tests/run.sh counts tests that fail, that fail once, and that are skipped. Made-up tests show it each of them."""

import pathlib
import re
import subprocess
import tempfile
import unittest

RUNNER = (pathlib.Path(__file__).resolve().parents[1] / "run.sh").read_text()
# Its functions, without its steps.
FUNCTIONS = "".join(
    re.findall(r"^(?:\w+\(\) \{.*\}\n|\w+\(\) \{\n(?:.*\n)*?\}\n)", RUNNER, flags=re.M)
)
BEGIN = """
set -uo pipefail
say() { printf '%s\\n' "$*"; }
build=$PWD/build times=$PWD/times.txt quick= release_is_built= passed=0 failed=0 skipped=0 failures=() flaky=()
"""
END = """
for failure in "${failures[@]}"; do say "failed: $failure"; done
say "${#flaky[@]} flaky: ${flaky[*]:-}"
say "$passed passed, $failed failed, $skipped skipped"
"""
ONCE = 'echo run >> runs; [ -e seen ] && exit 0; touch seen; echo "{}"; exit 66'


class Runner(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "build/tree").mkdir(parents=True)

    def run_functions(self, script):
        """The lines that a script prints with the functions of run.sh."""
        done = subprocess.run(
            ["bash", "-c", FUNCTIONS + BEGIN + script + END],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=100,
        )
        self.assertEqual(done.stderr, "")
        return done.stdout.splitlines()

    def run_tests(self, **scripts):
        """The last lines of a run of tests that are these scripts."""
        text = ""
        for name, script in scripts.items():
            home = self.folder / name
            home.mkdir()
            (home / "test.sh").write_text(script)
            text += f"add_test({name} bash test.sh)\nset_tests_properties({name} PROPERTIES "
            text += f'WORKING_DIRECTORY "{home}" SKIP_RETURN_CODE 77)\n'
        (self.folder / "build/tree/CTestTestfile.cmake").write_text(text)
        return self.run_functions("run_group tree build/tree.log -j2 >/dev/null\n")

    def test_a_sanitizer_s_report_is_a_failure_although_the_test_passes_alone(self):
        for number, report in enumerate(
            (
                "WARNING: ThreadSanitizer: data race (pid=7)",
                "==7==ERROR: AddressSanitizer: heap-use-after-free",
                "==7==ERROR: LeakSanitizer: detected memory leaks",
                "x.cpp:1:2: runtime error: shift exponent 64 is too large",
            )
        ):
            name = f"races{number}"
            lines = self.run_tests(
                **{name: ONCE.format(report)}, good=f"echo '{report}'", late="exit 77"
            )
            self.assertEqual(
                lines,
                [
                    f"failed: tree: {name} (a sanitizer's report)",
                    "0 flaky: ",
                    "1 passed, 1 failed, 1 skipped",
                ],
            )
            self.assertEqual((self.folder / name / "runs").read_text(), "run\n")
            for each in ("good", "late"):
                (self.folder / each / "test.sh").unlink()
                (self.folder / each).rmdir()

    def test_a_test_that_fails_once_is_flaky_and_one_that_fails_twice_has_failed(self):
        # The report of another test is not that of this one.
        races = "echo ThreadSanitizer; exit 66"
        lines = self.run_tests(once=ONCE.format("late"), twice="exit 1", races=races)
        # Tests that run side by side end in any order.
        self.assertEqual(
            sorted(lines[:2]) + lines[2:],
            [
                "failed: tree: races (a sanitizer's report)",
                "failed: tree: twice (Failed)",
                "1 flaky: tree once",
                "1 passed, 2 failed, 0 skipped",
            ],
        )

    def run_program(self, script):
        """The last lines of a run of a program that counts, and how often it has run with which tests."""
        (self.folder / "program.sh").write_text('echo "${*:-all}" >> runs\n' + script)
        lines = self.run_functions("run_counted language bash program.sh >/dev/null\n")
        return lines, (self.folder / "runs").read_text().splitlines()

    def test_only_tests_with_a_name_are_run_again(self):
        late = 'echo "FAILED  a test: it is late"; '
        broken = 'echo "FAILED: the build"; '
        for script, lines, runs in (
            (
                f"[ $# = 0 ] || {{ echo 1 passed, 0 failed; exit 0; }}; {late} echo 4 passed, 1 failed; exit 1",
                ["1 flaky: language a test", "5 passed, 0 failed, 0 skipped"],
                ["all", "a test"],
            ),
            (
                f"{late} echo 4 passed, 1 failed, 2 skipped; exit 1",
                ["failed: language: a test", "0 flaky: ", "4 passed, 1 failed, 2 skipped"],
                ["all", "a test"],
            ),
            (
                f"[ $# = 0 ] || {{ echo 1 passed, 0 failed; exit 0; }}; {late}{broken} echo 3 passed, 2 failed; exit 1",
                ["failed: language: a test", "0 flaky: ", "3 passed, 2 failed, 0 skipped"],
                ["all"],
            ),
            (
                f"{broken} echo 4 passed, 1 failed; exit 1",
                [
                    "failed: language: ended with status 1",
                    "0 flaky: ",
                    "4 passed, 1 failed, 0 skipped",
                ],
                ["all"],
            ),
        ):
            self.assertEqual(self.run_program(script), (lines, runs), script)
            (self.folder / "runs").unlink()

    def test_a_library_of_older_sources_is_built_anew_once(self):
        lines = self.run_functions(
            "mkdir -p build/release; touch build/release/libtrireme.so.1\n"
            'configure_and_build() { say "builds $1"; }\n'
            "needs_release; needs_release\n"
        )
        self.assertEqual(lines, ["builds release", "0 flaky: ", "0 passed, 0 failed, 0 skipped"])

    def test_tests_that_programs_skip_are_told(self):
        cmocka = "[  SKIPPED ] 2 test(s), listed below:\n[  SKIPPED ] a\n[  SKIPPED ] b\n\n 2 SKIPPED TEST(S)"
        log = (
            f"1/4 Testing: a\n{cmocka}\n2/4 Testing: b\nOK\n"
            "3/4 Testing: c\nFAILED (failures=1, skipped=13)\n4/4 Testing: a_over_b\nOK (skipped=1)\n"
        )
        (self.folder / "log").write_text(log)
        lines = self.run_functions(
            "skipped_inside tree log; head -n 1 log >one; skipped_inside tree one\n"
        )
        words = lines[0].split(": ")
        self.assertEqual(words[:2], ["tree", "16 tests skipped by programs"])
        self.assertEqual(sorted(re.findall(r"\w+ \d+", words[2])), ["a 2", "a_over_b 1", "c 13"])
        self.assertEqual(len(lines), 3)


if __name__ == "__main__":
    unittest.main()
