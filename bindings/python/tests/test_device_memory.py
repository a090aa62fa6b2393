"""Collectives of memory of a device, by the protocols of other libraries, and copies of it."""

import unittest

from fake_device import OverFakeDevice

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


class DeviceMemoryTest(OverFakeDevice):
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


if __name__ == "__main__":
    unittest.main()
