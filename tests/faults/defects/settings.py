"""Folders, and tests with their environments, as several defects name them."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = ROOT / "build" / "defects"
BUILD = FOLDER / "build"

DOTNET = "dotnet "  # and what the names of the C# tests contain
QUICK = "api_test_collectives TRIREME_TEST_QUICK=1 TRIREME_TOKEN=a-token-for-tests-of-27-bytes "
OVER_GLOO = QUICK + "TRIREME_TESTS_NETWORK=gloo"
FLIPS = f"unit_test_faulty_network TRIREME_GLOO_LIBRARY={BUILD}/libtrireme_gloo.so"
OVER_HOSTS = QUICK + "TRIREME_TESTS_NETWORK=1 TRIREME_TESTS_HOSTS=aabb"
