"""Programs over a driver of the tests, whose memory of a device ends a program that reads it. A
process has one driver, so each program is a process of its own."""

import pathlib
import unittest

from support import PATIENCE, TestCase, run_script, trireme

FAKES = pathlib.Path(trireme._native.library._name).resolve().parent / "tests"
DRIVER = str(FAKES / "fake_cuda.so")
PLUGIN = str(FAKES / "fake_plugin.so")

BEGIN = (
    """
import array, ctypes, gc, sys, threading, time
from ctypes import c_char_p, c_int, c_size_t, c_void_p
import trireme

fake = ctypes.CDLL(sys.argv[1])
for name, result, arguments in (
    ("fake_device_memory", c_void_p, [c_int, c_size_t]),
    ("fake_user_stream", c_void_p, [c_int]),
    ("fake_foreign_stream", c_void_p, [c_int]),
    ("fake_queue_write", None, [c_int, c_void_p, c_void_p, c_void_p, c_size_t]),
    ("fake_queue_read", None, [c_int, c_void_p, c_void_p, c_void_p, c_size_t]),
    ("fake_synchronize", None, [c_int, c_void_p]),
    ("fake_hold", None, [c_void_p, c_int]),
    ("fake_finish", c_char_p, []),
    ("fake_live_count", c_int, []),
    ("fake_retained_count", c_int, [c_int]),
):
    function = getattr(fake, name)
    function.restype, function.argtypes = result, arguments

class Memory:
    "Elements of f32 as another library has them: one protocol, and a stream of its own."

    def __init__(self, device, count, stream, **changes):
        self.address = fake.fake_device_memory(device, max(1, 4 * count))
        self.device, self.count, self.stream = device, count, stream
        self.changes = changes
        self.asked = []

    def put(self, numbers, stream=False):
        data = array.array("f", numbers)
        queue = self.stream if stream is False else stream
        address = data.buffer_info()[0]
        fake.fake_queue_write(self.device, queue, self.address, address, 4 * len(data))

    def get(self):
        data = array.array("f", bytes(4 * self.count))
        address = data.buffer_info()[0]
        fake.fake_queue_read(self.device, self.stream, address, self.address, 4 * self.count)
        fake.fake_synchronize(self.device, self.stream)
        return data.tolist()

class Interface(Memory):
    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.count,), "typestr": "<f4", "data": (self.address, False),
                "version": 3, "strides": None, "stream": self.stream, **self.changes}

class Capsule(Memory):
    "The owner lets the consumer's stream wait for its own; here it is the same."

    def __dlpack_device__(self):
        return (2, self.device)

    def __dlpack__(self, *, stream=None, **options):
        self.asked.append(stream)
        if "max_version" in options and not self.changes.get("knows_versions", True):
            raise TypeError("unexpected keyword argument max_version")
        made = trireme._dlpack.capsule_of(
            self.address, self.changes.get("shape", (self.count,)),
            self.changes.get("dtype", trireme._native.TRIREME_DTYPE_F32), (2, self.device), self,
            options.get("max_version"), self.changes.get("flags", 0))
        return made

class TorchStream:
    def __init__(self, number):
        self.cuda_stream = number

def ranks(world, body):
    problems = []
    def main(rank):
        try:
            with trireme.Communicator(rank, world, "local://devices-%d" % world, device=rank % 2,
                                      timeout="""
    + str(PATIENCE)
    + """) as group:
                body(group)
                group.barrier()
        except BaseException as problem:
            problems.append(problem)
    threads = [threading.Thread(target=main, args=(r,)) for r in range(world)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    if problems: raise problems[0]

def refused(kind, words, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)

def finish():
    text = fake.fake_finish().decode()
    assert text == "", text
"""
)


@unittest.skipUnless(pathlib.Path(PLUGIN).is_file(), f"no {PLUGIN}")
class OverFakeDevice(TestCase):
    maxDiff = None

    def over(self, text, script="mode=lazy"):
        done = run_script(
            BEGIN + text,
            DRIVER,
            environment={
                "TRIREME_CUDA_DRIVER": DRIVER,
                "TRIREME_CUDA_PLUGIN": PLUGIN,
                "TRIREME_NCCL_LIBRARY": str(FAKES / "none.so"),  # not that of the machine
                "FAKE_CUDA": script,
            },
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout
