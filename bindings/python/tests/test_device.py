"""Devices of a process, over a driver that does as it is told. A process has one driver, so each
case is a process of its own."""

import json
import pathlib
import unittest

from support import TestCase, run_script, trireme

FAKES = pathlib.Path(trireme._native.library._name).resolve().parent / "tests"
DRIVER = str(FAKES / "fake_cuda.so")
NCCL = str(FAKES / "fake_nccl.so")

TELL = """
import ctypes, json, sys, trireme

def tried(call, *arguments):
    try:
        return call(*arguments)
    except trireme.TriremeError as error:
        return [type(error).__name__, error.message]

driver = ctypes.CDLL(sys.argv[1]) if len(sys.argv) > 1 else None
told = {
    "host": trireme.device_count("host"),
    "count": tried(trireme.device_count),
    "devices": [tried(lambda i: vars(trireme.device_info(i)), i) for i in (0, 1, 2, -1)],
    "memory": tried(trireme.device_memory, 1),
    "own": vars(trireme.memory_info(ctypes.addressof(ctypes.c_int()))),
    "null": tried(trireme.memory_info, 0),
    "report": trireme.device_report(),
}
if driver is not None:
    driver.fake_allocate_area.restype = ctypes.c_void_p
    driver.fake_allocate_area.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
    told["kinds"] = []
    for kind in (1, 2, 3):
        first = driver.fake_allocate_area(kind, 1, 4096)
        found = trireme.memory_info(first + 100)
        told["kinds"].append([found.kind, found.device, found.first - first, found.bytes])
print(json.dumps(told))
"""


@unittest.skipUnless(pathlib.Path(DRIVER).is_file(), f"no {DRIVER}")
class DeviceTest(TestCase):
    def told(self, driver, script="", *arguments):
        done = run_script(
            TELL,
            *arguments,
            environment={
                "TRIREME_CUDA_DRIVER": driver,
                "TRIREME_NCCL_LIBRARY": NCCL,
                "TRIREME_CUDA_PLUGIN": "",
                "FAKE_CUDA": script,
            },
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_devices_are_described(self):
        told = self.told(DRIVER, "", DRIVER)
        self.assertEqual((told["host"], told["count"]), (1, 2))
        for index in (0, 1):
            info = told["devices"][index]
            self.assertEqual(info["name"], f"Fake GPU {index}")
            self.assertEqual(info["capability"], [9, index])
            self.assertEqual(info["multiprocessors"], 100 + index)
            self.assertEqual(info["memory_bytes"], (index + 1) << 33)
            self.assertEqual(info["driver_version"], 13000)
            self.assertEqual(info["bus_id"], f"0000:1{index}:00.0")
        self.assertEqual(told["devices"][1]["uuid"], "00010203-0405-0607-0809-0a0b0c0d0e0f")
        for wrong, number in zip(told["devices"][2:], ("2", "-1")):
            self.assertEqual(wrong[0], "InvalidArgumentError")
            self.assertIn(f"index is {number}, but this process sees 2 CUDA devices", wrong[1])
        self.assertEqual(told["memory"], [(1 << 34) - (2 << 20), 1 << 34])
        self.assertEqual(told["own"], {"kind": "host", "device": None, "first": 0, "bytes": 0})
        self.assertEqual(told["null"][0], "InvalidArgumentError")
        self.assertEqual(
            told["kinds"], [[kind, 1, 0, 4096] for kind in ("pinned", "device", "managed")]
        )
        self.assertIn(f"\nNCCL: {NCCL}, which the process has not loaded\n", told["report"])

    def test_a_missing_driver_is_told_with_what_was_tried(self):
        told = self.told("/nowhere/libcuda.so.1")
        self.assertEqual(told["count"][0], "UnsupportedError")
        self.assertIn("no CUDA driver: tried /nowhere/libcuda.so.1: ", told["count"][1])
        self.assertIn("driver: no CUDA driver: tried /nowhere/libcuda.so.1: ", told["report"])
        self.assertEqual(told["own"]["kind"], "host")

    def test_a_driver_that_fails_is_a_failure_of_the_device(self):
        told = self.told(DRIVER, "fail=cuDeviceGetName:719")
        self.assertEqual(told["count"], 2)
        self.assertEqual(told["devices"][0][0], "DeviceError")
        self.assertIn(
            "cuDeviceGetName answers CUDA_ERROR_LAUNCH_FAILED (719)", told["devices"][0][1]
        )

    def test_a_driver_that_is_too_old_says_what_it_needs(self):
        told = self.told(DRIVER, "version=11080")
        self.assertEqual(told["count"][0], "UnsupportedError")
        self.assertIn("it runs CUDA up to 11.8, but this plugin needs 1", told["count"][1])

    def test_no_device_is_no_failure(self):
        told = self.told(DRIVER, "devices=0")
        self.assertEqual(told["count"], 0)
        self.assertIn("sees 0 CUDA devices", told["devices"][0][1])

    def test_numbers_that_do_not_fit_are_refused(self):
        for call in (trireme.device_info, trireme.device_memory):
            with self.assertRaises(trireme.InvalidArgumentError):
                call(1 << 31)
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.memory_info(1 << 64)
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.memory_info(-1)
        with self.assertRaises(ValueError):
            trireme.device_count("tpu")


if __name__ == "__main__":
    unittest.main()
