"""Collectives of memory of a device, by the protocols of other libraries, over a driver of the
tests. Its memory of a device ends a program that reads it. A process has one driver, so each case
is a process of its own."""

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

OPERATIONS = """
def body(group):
    me, n, device = group.rank, group.world_size, group.device
    assert device == me % 2
    for kind in (Interface, Capsule):
        stream = fake.fake_user_stream(device)
        options = {} if kind is Interface else {"stream": TorchStream(stream)}
        send, receive = kind(device, 3, stream), kind(device, 3, stream)
        wide, wide_out = kind(device, 3 * n, stream), kind(device, 3 * n, stream)
        send.put([me, 2 * me, 1])
        group.all_reduce(send, receive, **options)
        total = n * (n - 1) / 2
        assert receive.get() == [total, 2 * total, n], receive.get()
        send.put([me + 1] * 3)
        group.all_reduce(send, reduction="max", **options)
        assert send.get() == [n] * 3
        wide.put([me * 100 + i for i in range(3 * n)])
        group.reduce_scatter(wide, receive, **options)
        assert receive.get() == [100 * total + n * (3 * me + i) for i in range(3)]
        send.put([me, 5, 6])
        group.all_gather(send, wide, **options)
        assert wide.get() == [x for r in range(n) for x in (r, 5, 6)]
        send.put([me, me, 7])
        group.broadcast(send, n - 1, **options)
        assert send.get() == [n - 1, n - 1, 7]
        send.put([me, 1, 2])
        group.reduce(send, 0, receive if me == 0 else None, **options)
        if me == 0: assert receive.get() == [total, n, 2 * n]
        group.gather(send, wide if me == 1 % n else None, 1 % n, **options)
        if me == 1 % n: assert wide.get() == [x for r in range(n) for x in (r, 1, 2)]
        wide.put(list(range(3 * n)))
        group.scatter(wide if me == 0 else None, receive, **options)
        assert receive.get() == [3 * me, 3 * me + 1, 3 * me + 2]
        group.all_to_all(wide, wide_out, **options)
        assert wide_out.get() == [x for _ in range(n) for x in (3 * me, 3 * me + 1, 3 * me + 2)]
        if n > 1:
            send.put([me, me, me])
            if me % 2 == 0 and me + 1 < n: group.send(send, me + 1, 3, **options)
            if me % 2 == 1:
                group.receive(receive, me - 1, 3, **options)
                assert receive.get() == [me - 1] * 3
        group.barrier()

for world in (1, 2, 3):
    ranks(world, body)
finish()
assert fake.fake_retained_count(0) == 0 and fake.fake_retained_count(1) == 0
"""

STREAMS = """
def body(group):
    device = group.device
    stream, other = fake.fake_user_stream(device), fake.fake_user_stream(device)
    # The write waits in a stream that is held: an operation that did not wait would read NaN.
    memory = Capsule(device, 2, stream)
    fake.fake_hold(stream, 1)
    memory.put([3, 4])
    timer = threading.Timer(0.05, fake.fake_hold, (stream, 0))
    timer.start()
    group.all_reduce(memory, stream=stream)
    assert memory.get() == [3, 4] and memory.asked == [stream]
    timer.join()
    # Without a stream the owner hears of the default one, by its number.
    memory.stream = None
    memory.put([5, 6])
    group.all_reduce(memory)
    assert memory.asked[1:] == [1] and memory.get() == [5, 6]
    # Streams by what other libraries call them.
    class Cupy: ptr = stream
    class Handle: value = stream
    class Numba: handle = Handle
    class Core:
        def __cuda_stream__(self): return (0, stream)
    for known in (stream, TorchStream(stream), Cupy, Numba, Core(), c_void_p(stream)):
        memory.stream = stream
        memory.put([1, 1])
        group.all_reduce(memory, stream=known)
        assert memory.asked[-1] == stream and memory.get() == [1, 1]
    refused(TypeError, "no number and no stream", group.all_reduce, memory, stream="here")
    refused(trireme.InvalidArgumentError, "out of range", group.all_reduce, memory, stream=-1)
    # One call has one stream.
    named = Interface(device, 2, stream)
    refused(ValueError, "has its work in stream %d" % stream, group.all_reduce, named, stream=other)
    refused(ValueError, "has its work in stream", group.all_reduce, named, Interface(device, 2, other))
    refused(ValueError, "has its work in stream", group.all_reduce, Capsule(device, 2, None), named)
    refused(ValueError, "stream 0", group.all_reduce, Interface(device, 2, 0))
    foreign = fake.fake_foreign_stream(device)
    refused(trireme.InvalidArgumentError, "primary context", group.all_reduce, named.__class__(device, 2, None), stream=foreign)
    named.put([8, 9])
    group.all_reduce(named)  # all of them were refused before anything began
    assert named.get() == [8, 9]
    group.start_all_reduce(named).wait()  # it keeps the array until then
    assert named.get() == [8, 9]

ranks(1, body)
finish()
"""

REFUSALS = """
def body(group):
    bad, device = trireme.InvalidArgumentError, group.device
    here = array.array("f", [1, 2])
    refused(bad, "memory of the host", group.all_reduce, here)
    other = Interface(1 - device, 2, None)
    refused(bad, "CUDA device %d" % (1 - device), group.all_reduce, other)
    good = Interface(device, 4, None)
    refused(ValueError, "not contiguous", group.all_reduce, Interface(device, 4, None, strides=(8,)))
    refused(TypeError, "no dtype", group.all_reduce, Interface(device, 4, None, typestr=">f4"))
    refused(TypeError, "no dtype", group.all_reduce, Interface(device, 4, None, typestr="<c8"))
    refused(TypeError, "dtype=", group.all_reduce, Interface(device, 4, None, typestr="<V2"))
    refused(TypeError, "mask", group.all_reduce, Interface(device, 4, None, mask=object()))
    read_only = Interface(device, 4, None, data=(good.address, True))
    refused(TypeError, "read-only", group.all_reduce, read_only)
    copied, taken = Capsule(device, 4, None, flags=2), Capsule(device, 4, None)
    refused(ValueError, "comes as a copy", group.all_reduce, copied)
    refused(ValueError, "comes as a copy", group.all_reduce, good, copied)
    refused(ValueError, "comes as a copy", group.all_gather, good, copied)
    refused(TypeError, "read-only", group.all_reduce, Capsule(device, 4, None, flags=1))
    copied.put([5, 6, 7, 8])
    group.all_reduce(copied, taken)  # it may be sent
    assert taken.get() == [5, 6, 7, 8]
    refused(ValueError, "elements", group.all_reduce, good, Interface(device, 3, None))
    refused(TypeError, "the receive buffer of f64", group.all_reduce, good, Interface(device, 2, None, typestr="<f8"))
    refused(TypeError, "not f64", group.all_reduce, good, dtype="f64")
    refused(TypeError, "buffer protocol", group.all_reduce_list, [good])
    refused(TypeError, "buffer protocol", group.all_reduce, object())
    halves = Capsule(device, 4, None, dtype=trireme._native.TRIREME_DTYPE_BF16)
    refused(TypeError, "elements of type bf16, not f16", group.all_reduce, halves, dtype="f16")
    with trireme.Communicator(0, 1, "local://of-the-host") as host:
        for one in good, Capsule(device, 4, None):
            refused(TypeError, "buffer protocol", host.all_reduce, one)
            refused(TypeError, "buffer protocol", host.gather, one, here, 0)
            refused(TypeError, "buffer protocol", host.send, one, 0)
    # The group goes on. Read-only memory may be sent; elements without a type take a name.
    good.put([1, 2, 3, 4])
    out = Interface(device, 4, None)
    group.all_reduce(read_only, out)
    assert out.get() == [1, 2, 3, 4]
    bits = Interface(device, 4, None, typestr="<V2")
    narrow = Interface(device, 4, None, typestr="<u2", data=(bits.address, False))
    bits.put([0, 0])
    group.all_reduce(bits, dtype="bf16")
    group.all_reduce(narrow, dtype="f16")
    group.all_reduce(Interface(device, 0, None, data=(0, False)))
    old = Capsule(device, 4, None, knows_versions=False)
    old.put([4, 3, 2, 1])
    group.all_reduce(old)
    assert old.get() == [4, 3, 2, 1]

ranks(1, body)
alone = trireme.Communicator(0, 1, "local://alone-on-host")
refused(TypeError, "buffer protocol", alone.all_reduce, Interface(0, 2, None))
refused(trireme.InvalidArgumentError, "options.stream is set", alone.all_reduce, array.array("f", [1]), stream=1)
refused(trireme.InvalidArgumentError, "out of range", trireme.Communicator, 0, 1, "local://x", device=1 << 31)
refused(trireme.InvalidArgumentError, "index is 7", trireme.Communicator, 0, 1, "local://x", device=7)
finish()
"""

BUFFERS = """
import weakref

def body(group):
    n, me = group.world_size, group.rank
    child = group.split(0, me)
    assert child.device == group.device
    buffer = trireme.Buffer(child, 40)
    pinned = trireme.Buffer(group, 40, kind="pinned")
    assert buffer.__dlpack_device__() == (2, group.device)
    assert pinned.__dlpack_device__() == (3, group.device)
    refused(TypeError, "the host cannot read", lambda: buffer.memory)
    refused(TypeError, "the host cannot read", buffer.view, "f32")
    refused(trireme.InvalidArgumentError, "kind is HOST", trireme.Buffer, group, 8, "host")
    refused(trireme.UnsupportedError, "MANAGED", trireme.Buffer, group, 8, "managed")
    refused(trireme.InvalidArgumentError, "none of", trireme.Buffer, group, 8, "fast")
    view = pinned.view("f32")
    assert view.tolist() == [0] * 10
    for i in range(10): view[i] = me + i
    # From pinned memory to memory of the device, and back.
    group.all_reduce(view, buffer, dtype="f32")
    group.all_reduce(buffer.array("f32"), view, reduction="max")
    assert view.tolist() == [n * (n - 1) / 2 + n * i for i in range(10)]
    # What other libraries see.
    both_ways = buffer.array("f32", (2, 3))
    interface = both_ways.__cuda_array_interface__
    assert interface["shape"] == (2, 3) and interface["typestr"] == "<f4"
    assert interface["version"] == 3 and interface["strides"] is None
    address = interface["data"][0]
    assert trireme.memory_info(address).kind == "device"
    for version in (None, (0, 8), (1, 0)):
        seen = trireme._dlpack.Array(both_ways.__dlpack__(stream=1, max_version=version))
        assert (seen.address, seen.shape, seen.strides) == (address, (2, 3), (3, 1))
        assert seen.type == (2, 32) and not seen.readonly
    assert buffer.array("bf16").__dlpack_device__() == (2, group.device)
    assert not hasattr(buffer.array("bf16"), "__cuda_array_interface__")
    assert not hasattr(pinned, "__cuda_array_interface__")
    assert pinned.array("f32").shape == (10,)
    refused(ValueError, "ambiguous", both_ways.__dlpack__, stream=0)
    refused(BufferError, "without a copy", both_ways.__dlpack__, copy=True)
    refused(BufferError, "not on", both_ways.__dlpack__, dl_device=(1, 0))
    refused(BufferError, "bytes", buffer.array("bytes").__dlpack__)
    refused(ValueError, "do not fit", buffer.array, "f32", 11)
    refused(ValueError, "do not fit", buffer.array, "f32", (-1,))
    # The capsule keeps the memory, whatever else ends.
    capsule = both_ways.__dlpack__()
    lives = fake.fake_live_count()
    group.barrier()
    buffer.close()
    refused(trireme.InvalidHandleError, "closed", buffer.array)
    assert not hasattr(buffer, "__cuda_array_interface__")
    del both_ways, seen, buffer
    gc.collect()
    assert trireme.memory_info(address).kind == "device"
    del capsule
    gc.collect()
    for _ in range(500):  # the other rank's thread may look at it, too
        if trireme.memory_info(address).kind != "host":
            time.sleep(0.01)
            gc.collect()
    assert trireme.memory_info(address).kind == "host", "it has gone back"
    assert len(trireme._dlpack._gifts.all) == 0 or n > 1
    empty = trireme.Buffer(group, 0)
    group.all_reduce(empty, dtype="f32")
    child.barrier()
    child.close()

ranks(1, body)
ranks(2, body)
gc.collect()
finish()
assert fake.fake_retained_count(0) == 0 and fake.fake_retained_count(1) == 0
host = trireme.Buffer(trireme.Communicator(0, 1, "local://alone-on-host"), 8)
assert host.__dlpack_device__() == (1, 0)
assert trireme._dlpack.Array(host.__dlpack__()).shape == (8,)
try:
    import numpy
except ImportError:
    numpy = None
if numpy is not None:
    host.view("u8")[3] = 9
    assert numpy.from_dlpack(host).tolist() == [0, 0, 0, 9, 0, 0, 0, 0]
print("whole")
"""

# A consumer drops a capsule while its own error is set: that error arrives, and the memory goes
# back. Its deleter ends what it takes.
REFUSED = """
import gc
gc.disable()
gifts = trireme._dlpack._gifts
alone = trireme.Communicator(0, 1, "local://alone-on-host")
buffer = trireme.Buffer(alone, 8)
owner = sys.getrefcount(buffer._owner)

def drops(version, dtype="u8"):
    print(buffer.array(dtype).__dlpack__(max_version=version), 1 // len([]))

for version in (None, (1, 0)):
    for dtype in ("u8", "bf16"):
        refused(ZeroDivisionError, "division", drops, version, dtype)
        assert len(gifts.all) == 1  # the one before has ended
gc.collect()
assert len(gifts.all) == 0 and sys.getrefcount(buffer._owner) == owner
refused(ZeroDivisionError, "division", drops, (1, 0))
# One that is held stays, also if it is seen again; one that is taken stays until its deleter runs.
api = ctypes.pythonapi
set_name = ctypes.PYFUNCTYPE(c_int, ctypes.py_object, c_char_p)(("PyCapsule_SetName", api))
pointer = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(("PyCapsule_GetPointer", api))
used = b"used_dltensor"
held, taken = buffer.__dlpack__(), buffer.__dlpack__()
assert len(gifts.all) == 2
struct = ctypes.cast(pointer(taken, b"dltensor"), ctypes.POINTER(trireme._dlpack._Managed))
set_name(taken, used)
del taken
gc.collect()
gc.collect()
assert len(gifts.all) == 2
assert trireme._dlpack.Array(held).address == buffer.array()._address
assert len(gifts.all) == 2
delete = ctypes.PYFUNCTYPE(None, c_void_p)(struct.contents.delete)
delete(ctypes.addressof(struct.contents))
assert len(gifts.all) == 1
del held
buffer.close()
assert len(gifts.all) == 0
# A capsule that cannot be made keeps nothing.
made = trireme._dlpack._new_capsule
def fails(*_): raise MemoryError("no capsule")
trireme._dlpack._new_capsule = fails
buffer = trireme.Buffer(alone, 8)
refused(MemoryError, "no capsule", buffer.__dlpack__)
trireme._dlpack._new_capsule = made
assert len(gifts.all) == 0
try:
    import numpy
except ImportError:
    numpy = None
if numpy is not None:
    for dtype in ("bf16", "f8e4m3"):
        try:
            numpy.from_dlpack(buffer.array(dtype))
        except (BufferError, RuntimeError) as error:
            assert "ype" in str(error), error
        else:
            raise AssertionError(dtype)
        gc.collect()
        assert len(gifts.all) == 0
    array_of_it = numpy.from_dlpack(buffer)
    gc.collect()
    assert len(gifts.all) == 1
    del array_of_it
    assert len(gifts.all) == 0
left = buffer.__dlpack__()  # at the interpreter's end
"""

# An operation keeps its arrays while it runs, and lets go of them when it is over.
KEPT = """
import weakref

def body(group):
    stream = fake.fake_user_stream(group.device)
    fake.fake_hold(stream, 1)
    memory = Capsule(group.device, 2, stream)
    memory.put([3, 4])
    address, reference = memory.address, weakref.ref(memory)
    box = [memory]
    del memory
    seen = []
    def look():
        gc.collect()
        seen.append(reference() is not None)
        fake.fake_hold(stream, 0)
    timer = threading.Timer(0.05, look)
    timer.start()
    group.all_reduce(box.pop(), stream=stream)
    timer.join()
    gc.collect()
    assert seen == [True] and reference() is None
    assert len(trireme._dlpack._gifts.all) == 0

ranks(1, body)
finish()
"""

# A kernel that waits in the default stream reads memory whose last holder lets it go.
CLOSED = """
def body(group):
    model = trireme.Model(group, "zero1")
    model.add_parameter("w", 2)
    model.seal()
    buffer = trireme.Buffer(group, 8)
    pairs = [(buffer, buffer.array("f32")), (model, model.parameter("w"))]
    while pairs:
        owner, view = pairs.pop()
        address, data = view._address, array.array("f", [0, 0])
        view.copy_from(array.array("f", [3, 4]))
        fake.fake_hold(None, 1)
        fake.fake_queue_read(group.device, None, data.buffer_info()[0], address, 8)
        timer = threading.Timer(0.05, fake.fake_hold, (None, 0))
        timer.start()
        owner.close()
        del view
        timer.join()
        assert data.tolist() == [3, 4]
        assert trireme.memory_info(address).kind == "host"

ranks(1, body)
finish()
"""

# The device stands still in the copy of an operation: its arrays stay for ever.
LATE = """
import os, weakref

def body(group):
    good, bad = Capsule(group.device, 2, None), Capsule(group.device, 2, None)
    good.put([1, 2])
    group.all_reduce(good, bad)
    references = weakref.ref(good), weakref.ref(bad)
    refused(ValueError, "elements", group.all_reduce, good, Capsule(group.device, 3, None))
    os.environ["FAKE_CUDA"] = "mode=lazy stuck=1"
    refused(trireme.TimeoutError, "may still copy", group.all_reduce, good, bad, timeout=0.05)
    del good, bad
    gc.collect()
    assert references[0]() is not None and references[1]() is not None
    os.environ["FAKE_CUDA"] = "mode=lazy"

group = trireme.Communicator(0, 1, "local://late", device=0)
body(group)
finish()
"""

# A model on a device: its oracle is the same training on the host, bit for bit.
MODELS = """
SHAPES = {"w": (3, 5), "b": (7,), "scalar": (), "none": (0,)}

def numbers(count, seed):
    return array.array("f", [((i * 7919 + seed * 104729) % 2003 - 1001) / 371 for i in range(count)])

def count_of(name):
    count = 1
    for extent in SHAPES[name]: count *= extent
    return count

def bits(memory):
    memory = memory.to_host() if hasattr(memory, "to_host") else memory
    return memoryview(memory).cast("B").tobytes() if memoryview(memory).nbytes else b""

class Training:
    def __init__(self, group):
        self.group = group
        self.model = trireme.Model(group, "zero1", leaves=4, gradients="sum")
        for name, shape in SHAPES.items():
            self.model.add_parameter(name, shape, unit="all")
        self.model.seal()
        self.optimizer = trireme.Optimizer(self.model, "adamw", learning_rate=0.01, clipping=trireme.Clipping(max_norm=1.0))

    def operand(self, values, flags=0):
        if self.group.device is None:
            return values
        memory = (Interface if len(values) % 2 else Capsule)(self.group.device, len(values), None)
        memory.put(values)
        return memory

    def step(self, number, flat):
        model = self.model
        for micro_batch in range(model.info().micro_batches):
            leaf = model.leaf(micro_batch)
            if leaf is None: continue
            seed = 100 * number + leaf
            if flat:
                total = sum(count_of(name) for name in SHAPES)
                model.accumulate_flat(self.operand(numbers(total, seed)))
                continue
            with model.backward():
                for which, name in enumerate(SHAPES):
                    assert self.group.device is None or model.gradient(name) is None
                    model.gradient_ready(name, self.operand(numbers(count_of(name), seed + which)))
        self.optimizer.step()

def whole(training):
    "All parameters, by each way."
    model = training.model
    flat, named = model.get_parameters(), model.gather_parameters()
    out = training.operand(numbers(model.info().elements, 1))
    assert model.get_parameters(out) is out
    found = bits(flat)
    assert found == b"".join(bits(named[name]) for name in SHAPES)
    assert found == b"".join(bits(model.parameter(name)) for name in SHAPES)
    if training.group.device is not None:
        assert out.get() == trireme._device_memory.cast(memoryview(found), "f").tolist()
    return found

def train(group):
    first = Training(group)
    values = numbers(first.model.info().elements, 5)
    root = group.world_size - 1
    first.model.set_parameters(first.operand(values) if group.rank == root else None, root)
    for number in range(3): first.step(number, number == 1)
    found = [whole(first)]
    saved = bytes(first.optimizer.save())
    first.step(3, False)
    found.append(whole(first))
    again = Training(group)
    again.optimizer.load(saved)
    assert whole(again) == found[0]
    again.step(3, False)
    assert whole(again) == found[1]
    again.model.check_replicas()
    named = {name: again.operand(numbers(count_of(name), 9)) for name in SHAPES}
    again.model.broadcast_parameters(named if group.rank == 0 else None)
    found.append(whole(again))
    named = {name: numbers(count_of(name), 9) for name in SHAPES}  # of the host
    again.model.broadcast_parameters(named if group.rank == 0 else None)
    assert whole(again) == found[2] == b"".join(bits(numbers(count_of(name), 9)) for name in SHAPES)
    return found, saved

results = {}
def run_on(world, device):
    def main(rank):
        with trireme.Communicator(rank, world, "local://models-%d-%s" % (world, device),
                                  device=rank % 2 if device else None) as group:
            results[world, device, rank] = train(group)
            group.barrier()
    threads = [threading.Thread(target=main, args=(r,)) for r in range(world)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

for world in (1, 2):
    for device in (False, True): run_on(world, device)
    for rank in range(world): assert results[world, True, rank] == results[world, False, rank]
assert results[2, True, 0][0] == results[1, False, 0][0]  # leaves: for any number of ranks
gc.collect()
finish()
assert fake.fake_retained_count(0) == 0 and fake.fake_retained_count(1) == 0
"""

MODEL_REFUSALS = """
def body(group):
    bad = trireme.InvalidArgumentError
    stream = fake.fake_user_stream(group.device)
    model = trireme.Model(group, "zero1")
    model.add_parameter("w", 2)
    half = model.add_parameter("h", 2, "bf16", unit="h")
    model.seal()
    optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.5)
    model.begin_backward()
    here = array.array("f", [1, 2])
    refused(bad, "memory of the host", model.gradient_ready, "w", here)
    refused(bad, "CUDA device %d" % (1 - group.device), model.gradient_ready, "w", Interface(1 - group.device, 2, None))
    refused(ValueError, "has its work in stream %d" % stream, model.gradient_ready, "w", Interface(group.device, 2, stream))
    refused(bad, "shape", model.gradient_ready, "w", Capsule(group.device, 4, None, shape=(2, 2)))
    refused(TypeError, "buffer protocol", model.gradient_ready, "w", object())
    good = Capsule(group.device, 2, stream)
    good.stream = None
    good.put([1, 2])
    model.gradient_ready("w", good)
    assert good.asked == [1]  # the owner lets the default stream wait for its own
    model.gradient_ready("h", good)
    model.end_backward()
    optimizer.step()
    weight = model.parameter("w")
    assert weight.shape == (2,) and weight.to_host().tolist() == [-0.5, -1]
    assert model.parameter(half).to_host().tolist() == [0xbf00, 0xbf80]
    weight.copy_from(array.array("f", [8, 9]))
    assert model.parameter("w").to_host().tolist() == [8, 9]
    weight.copy_from(good)
    assert weight.to_host().tolist() == [1, 2]
    model.parameter("h").copy_from(array.array("H", [1, 2]))
    refused(ValueError, "elements", weight.copy_from, array.array("f", [1]))
    refused(TypeError, "f64", weight.copy_from, array.array("d", [1, 2]))
    refused(TypeError, "buffer protocol", weight.copy_from, object())
    refused(trireme.UnsupportedError, "", trireme.Model, group, "zero1", update_in_backward=True)
    for text in "the value", "there is no value", "no parameter":
        named = {"w": good, "h": array.array("H", [1, 2])}
        if text == "the value": named["w"] = array.array("d", [1, 2])
        if text == "there is no value": del named["h"]
        if text == "no parameter": named["x"] = good
        refused(ValueError, text, model.broadcast_parameters, named)
    for state in optimizer.ranges(): assert len(state.data) == 0
    # A parameter keeps its memory, whatever else ends.
    info = trireme.memory_info(weight._address)
    assert info.kind == "device"
    view = trireme._dlpack.Array(weight.__dlpack__())
    address = weight._address
    model.close(); optimizer.close()
    refused(trireme.InvalidHandleError, "closed", model.parameter, "w")
    del model, optimizer
    gc.collect()
    assert weight.to_host().tolist() == [1, 2]
    del weight
    gc.collect()
    assert trireme.memory_info(address).kind == "device" and view.address == address
    del view
    gc.collect()
    assert trireme.memory_info(address).kind == "host"

ranks(1, body)
finish()
"""

COPIES = """
def body(group):
    bad, device = trireme.InvalidArgumentError, group.device
    buffer, pinned = trireme.Buffer(group, 12 << 20), trireme.Buffer(group, 64, "pinned")
    count = buffer.nbytes // 8
    values = array.array("q", range(count))
    whole = buffer.array("i64")
    whole.copy_from(values)  # three pieces
    assert whole.to_host().tolist() == values.tolist()
    part = buffer.array("i64", (2, 3), at=80)
    assert part.to_host().tolist() == [[10, 11, 12], [13, 14, 15]]
    assert part.shape == (2, 3) and part._address == whole._address + 80
    pinned.array("i64", 6).copy_from(part)
    assert pinned.view("i64").tolist() == [10, 11, 12, 13, 14, 15, 0, 0]
    assert pinned.array("i64").to_host().tolist() == pinned.view("i64").tolist()
    refused(bad, "in common", part.copy_from, buffer.array("i64", 6, at=88))
    refused(ValueError, "at is", buffer.array, "u8", at=-1)
    refused(ValueError, "fit", buffer.array, "i64", count, at=8)
    assert buffer.array("i64", at=buffer.nbytes).to_host().tolist() == []
    child = group.duplicate()
    other = trireme.Buffer(child, 8).array("i64")
    child.close()
    refused(trireme.InvalidHandleError, "", other.to_host)
    group.barrier()

ranks(1, body)
finish()
alone = trireme.Communicator(0, 1, "local://alone-on-host")
host = trireme.Buffer(alone, 16)
host.array("i64").copy_from(array.array("q", [5, 6]))
assert host.array("i64").to_host().tolist() == [5, 6]
"""


@unittest.skipUnless(pathlib.Path(PLUGIN).is_file(), f"no {PLUGIN}")
class DeviceMemoryTest(TestCase):
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

    def test_operations_of_arrays_of_either_protocol(self):
        for script in ("mode=eager", "mode=lazy", "mode=seeded:4"):
            self.over(OPERATIONS, script)

    def test_the_stream_of_a_call_is_honoured(self):
        self.over(STREAMS)

    def test_other_memory_is_refused_and_the_group_goes_on(self):
        self.over(REFUSALS)

    def test_buffers_are_given_both_ways_and_go_back(self):
        self.assertEqual(self.over(BUFFERS), "whole\n")

    def test_a_capsule_that_is_refused_keeps_neither_memory_nor_the_error(self):
        self.over(REFUSED)

    def test_an_operation_keeps_its_arrays(self):
        self.over(KEPT)

    def test_a_buffer_waits_for_the_default_stream_before_it_goes(self):
        self.over(CLOSED)

    def test_arrays_of_a_call_that_the_device_may_still_use_stay(self):
        self.over(LATE)

    def test_copies_between_host_and_device(self):
        self.over(COPIES)

    def test_a_model_on_a_device_has_the_bits_of_the_host(self):
        for script in ("mode=lazy", "mode=seeded:7"):
            self.over(MODELS, script)

    def test_a_model_on_a_device_refuses_other_memory_and_keeps_its_own(self):
        self.over(MODEL_REFUSALS)


if __name__ == "__main__":
    unittest.main()
