"""Runs all tests beside this file, or those named as arguments. A failed test is named by a line
`FAILED  TEST`; the last line is "N passed, N failed, N skipped".
"""

import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

if __name__ == "__main__":
    loader = unittest.defaultTestLoader
    if sys.argv[1:]:
        suite = loader.loadTestsFromNames(sys.argv[1:])
    else:
        suite = loader.discover(str(HERE), top_level_dir=str(HERE))
    result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout).run(suite)
    for test, reason in result.skipped:
        print(f"skipped: {test.id()}: {reason}")
    for test, _ in result.failures + result.errors:
        # A subtest has the name of its test, then what it was given.
        print(f"FAILED  {test.id().split(' ')[0]}")
    failed = len(result.failures) + len(result.errors)
    passed = result.testsRun - failed - len(result.skipped)
    print(f"{passed} passed, {failed} failed, {len(result.skipped)} skipped")
    sys.exit(bool(failed) or passed <= 0)
