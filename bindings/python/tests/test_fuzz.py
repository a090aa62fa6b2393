"""Random calls of every exported function, with handles of every kind, stale ones and garbage.

Each call answers a known status; a crash, a hang or an unknown status fails the test. The calls run
in a process of their own, from a seed that is printed when it fails.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import unittest
from typing import Any

CALLS = 400_000 if os.environ.get("TRIREME_TEST_LONG") else 20_000

OUT_HANDLE = ctypes.POINTER(ctypes.c_void_p)

# These would end the process by order, or print from a callback that is gone.
LEFT_OUT = {"trireme_failpoint_set", "trireme_set_log_callback"}
# Their first argument is memory.
MEMORY_FIRST = {"trireme_device_report", "trireme_memory_get_info"}
NUMBERS_32 = (0, 0, 1, 2, 3, 8, 11, 12, 16, -1, 99, 2**31 - 1, -(2**31))
# Elements that fit into the memory that is handed in, as does every text, or so many that no memory
# holds them.
NUMBERS_64 = (0, 0, 1, 2, 3, 7, 31, 64, 2**63, 2**64 - 1)
TIMES = (0, 1, 1_000_000)
POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)
TEXTS = (None, b"", b"a", b"local", b"tensor", b"\xff\xfe", b"x" * 300)


class Fuzzer:
    def __init__(self, seed: int) -> None:
        from trireme import _native
        from trireme._library import library

        self.native, self.library = _native, library
        self.random = random.Random(seed)
        self.memory = [ctypes.create_string_buffer(1 << 20) for _ in range(4)]
        self.handles: list[int | None] = [None, 1, 2**64 - 1, 0x5A5A5A5A]
        self.kept: list[Any] = []
        self.known = {
            value for name, value in vars(_native).items() if name.startswith("TRIREME_ERROR_")
        } | {0}
        self.names = sorted(set(_native.PROTOTYPES) - LEFT_OUT)
        self.called: set[str] = set()
        self.rules = [
            kind
            for kind in vars(_native).values()
            if hasattr(kind, "base") and issubclass(kind, ctypes.Structure)
        ]

    def join(self) -> None:
        options = self.native.trireme_communicator_options()
        options.struct_size = ctypes.sizeof(options)
        options.world_size = 1
        options.rendezvous = b"local://fuzz-%d" % self.random.getrandbits(60)
        options.timeout_ns = 2_000_000
        handle = ctypes.c_void_p()
        create = self.library.trireme_communicator_create
        if create(ctypes.byref(options), ctypes.byref(handle)) == 0:
            self.remember(handle.value)

    def remember(self, handle: int | None) -> None:
        """Handles stay when they are destroyed: then they are stale."""
        self.handles.append(handle)
        if len(self.handles) > 40:
            del self.handles[self.random.randrange(4, len(self.handles))]

    def struct(self, kind: Any) -> Any:
        value = kind()
        self.kept.append(value)
        for name, field in kind._fields_:
            if field in (ctypes.c_uint32, ctypes.c_int32):
                number = self.random.choice(NUMBERS_32)
                setattr(value, name, number)
            elif field is ctypes.c_uint64:
                times = "timeout" in name
                setattr(value, name, self.random.choice(TIMES if times else NUMBERS_64))
            elif field is ctypes.c_double:
                setattr(value, name, self.random.choice((0.0, 0.5, -1.0, float("nan"))))
        self.nested(value)
        if hasattr(value, "struct_size"):
            sizes = (ctypes.sizeof(value),) * 6 + (0, 4, ctypes.sizeof(value) - 1)
            value.struct_size = self.random.choice(sizes)
        if self.random.random() < 0.6:  # mostly options that mean something
            for name in ("flags", "reserved", "priority", "algorithm", "wire_dtype", "scale"):
                if hasattr(value, name):
                    setattr(value, name, 0)
        return value

    def nested(self, value: Any) -> None:
        """Half of the structs that options may point to."""
        for name, field in type(value)._fields_:
            target = getattr(field, "_type_", None)
            if not (isinstance(target, type) and issubclass(target, ctypes.Structure)):
                continue
            if ctypes.sizeof(field) != POINTER_BYTES or self.random.random() < 0.5:
                continue
            if target is self.native.trireme_rule_options:
                made = self.struct(self.random.choice(self.rules))
                kind = self.random.choice((0, *range(12)))
                made.base.kind = kind
                # As long as the longest, whatever its kind is.
                room = ctypes.create_string_buffer(bytes(made), 256)
                made.base.struct_size = ctypes.sizeof(made)
                ctypes.memmove(room, ctypes.byref(made), ctypes.sizeof(made))
                self.kept.append(room)
                setattr(value, name, ctypes.cast(room, field))
            elif name == "groups":
                row = (target * 3)(*[self.struct(target) for _ in range(3)])
                value.groups, value.group_count = row, self.random.randrange(4)
            elif target.__name__.endswith("_options"):
                setattr(value, name, ctypes.pointer(self.struct(target)))

    def argument(self, kind: Any, function: str) -> Any:
        choose = self.random.choice
        if kind is ctypes.c_void_p:  # a handle or memory: neither is mistaken for the other
            return choose(self.handles) if self.is_handle else choose(self.places())
        if kind is ctypes.c_char_p:
            return choose(TEXTS)
        if kind in (ctypes.c_int32, ctypes.c_uint32):
            number = choose(NUMBERS_32)
            return number if kind is ctypes.c_int32 else number & 0xFFFFFFFF
        if kind is ctypes.c_uint64:
            return choose(TIMES if "wait" in function else NUMBERS_64)
        if kind is ctypes.c_int64:
            return choose(NUMBERS_32)
        if kind is ctypes.c_double:
            return choose((0.0, 0.1, -1.0, float("inf"), float("nan")))
        if issubclass(kind, ctypes._CFuncPtr):
            return kind()
        target = kind._type_
        if self.random.random() < 0.1:
            return None
        if target is ctypes.c_void_p:
            array = (ctypes.c_void_p * 64)()
            self.kept.append(array)
            return array
        if isinstance(target, type) and issubclass(target, ctypes.Structure):
            return ctypes.byref(self.struct(target))
        values = TEXTS if target is ctypes.c_char_p else (0, 1, 2)
        array = (target * 64)(*[self.random.choice(values) for _ in range(64)])
        self.kept.append(array)
        return array

    def places(self) -> tuple[Any, ...]:
        return (None, *(ctypes.addressof(memory) for memory in self.memory))

    def call(self) -> None:
        name = self.random.choice(self.names)
        result, kinds = self.native.PROTOTYPES[name]
        del self.kept[:-64]
        arguments = []
        for position, kind in enumerate(kinds):
            # The first of a call is a handle, as are the elements of lists; memory comes after it.
            self.is_handle = position == 0 and name not in MEMORY_FIRST
            arguments.append(self.argument(kind, name))
        status = getattr(self.library, name)(*arguments)
        self.called.add(name)
        if result is ctypes.c_int32 and status not in self.known:
            raise AssertionError(f"{name} answered {status}")
        if status == 0 and kinds and kinds[-1] is OUT_HANDLE and arguments[-1]:
            self.remember(arguments[-1][0])

    def run(self, calls: int) -> None:
        for number in range(calls):
            if number % 50 == 0:
                self.join()
            self.call()


def main() -> None:
    seed, calls = int(sys.argv[1]), int(sys.argv[2])
    fuzzer = Fuzzer(seed)
    fuzzer.run(calls)
    missed = set(fuzzer.names) - fuzzer.called
    if missed:
        raise AssertionError(f"never called: {sorted(missed)}")
    print("lived", flush=True)
    os._exit(0)  # operations may still be under way, on memory that the interpreter would free


class RandomCalls(unittest.TestCase):
    def test_no_call_crashes_hangs_or_answers_an_unknown_status(self) -> None:
        for seed in (1, 2, 3, 4):
            with self.subTest(seed=seed):
                command = [sys.executable, __file__, str(seed), str(CALLS // 4)]
                environment = dict(os.environ)
                folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
                environment["PYTHONPATH"] = folder
                result = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=600
                )
                self.assertEqual(result.returncode, 0, result.stderr[-2000:])
                self.assertIn("lived", result.stdout)


if __name__ == "__main__":
    main()
