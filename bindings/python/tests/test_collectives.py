"""Every operation of a communicator, against plain Python."""

import array
import ctypes
import struct
import time
import unittest

from support import WORLD_SIZES, TestCase, needs_numpy, numpy, rendezvous, trireme

LENGTHS = (0, 1, 3, 1000, 4097)


def data_of(rank, length, code="d"):
    return array.array(code, [(rank + 1) * (i % 11) + rank for i in range(length)])


def summed(world_size, length):
    return [sum((r + 1) * (i % 11) + r for r in range(world_size)) for i in range(length)]


class CollectiveTest(TestCase):
    def test_all_reduce_in_place_sums_over_all_ranks(self):
        def body(group):
            results = []
            for length in LENGTHS:
                data = data_of(group.rank, length)
                group.all_reduce(data)
                results.append(data.tolist())
            return results

        for world_size in WORLD_SIZES:
            want = [summed(world_size, length) for length in LENGTHS]
            for result in self.ranks(world_size, body):
                self.assertEqual(result, want)

    def test_all_reduce_into_another_buffer_leaves_the_first_alone(self):
        def body(group):
            data, out = data_of(group.rank, 37), array.array("d", bytes(8 * 37))
            group.all_reduce(data, out)
            return data.tolist(), out.tolist()

        for rank, (data, out) in enumerate(self.ranks(3, body)):
            self.assertEqual(data, data_of(rank, 37).tolist())
            self.assertEqual(out, summed(3, 37))

    def test_reductions(self):
        want = {
            "sum": 1 + 2 + 3 + 4,
            "average": (1 + 2 + 3 + 4) // 4,
            "product": 24,
            "min": 1,
            "max": 4,
            "band": 1 & 2 & 3 & 4,
            "bor": 1 | 2 | 3 | 4,
            "bxor": 1 ^ 2 ^ 3 ^ 4,
        }

        def body(group):
            results = {}
            for reduction in want:
                data = array.array("q", [group.rank + 1] * 5)
                group.all_reduce(data, reduction=reduction)
                results[reduction] = data.tolist()
            return results

        for result in self.ranks(4, body):
            self.assertEqual(result, {name: [value] * 5 for name, value in want.items()})

    def test_scaled_sum_multiplies_by_the_scale(self):
        def body(group):
            data = array.array("f", [group.rank, 2])
            group.all_reduce(data, reduction="scaled_sum", scale=0.25)
            return data.tolist()

        for result in self.ranks(3, body):
            self.assertEqual(result, [0.75, 1.5])

    def test_a_scale_that_the_reduction_does_not_take_is_refused(self):
        group = self.alone()
        with self.assertRaises(trireme.InvalidArgumentError):
            group.all_reduce(array.array("f", [1]), scale=0.5)

    def test_reduce_scatter_gives_each_rank_its_block(self):
        def body(group):
            results = []
            for length in (0, 1, 5, 1001):
                data = data_of(group.rank, length * group.world_size)
                out = array.array("d", bytes(8 * length))
                group.reduce_scatter(data, out)
                results.append(out.tolist())
            return results

        for world_size in WORLD_SIZES:
            for rank, results in enumerate(self.ranks(world_size, body)):
                for length, result in zip((0, 1, 5, 1001), results):
                    whole = summed(world_size, length * world_size)
                    self.assertEqual(result, whole[rank * length : (rank + 1) * length])

    def test_reduce_scatter_v_and_all_gather_v_take_blocks_of_any_length(self):
        def body(group):
            counts = [(3 * rank + 1) % 5 for rank in range(group.world_size)]  # some are 0
            mine = counts[group.rank]
            data = data_of(group.rank, sum(counts))
            out = array.array("d", bytes(8 * mine))
            group.reduce_scatter_v(data, out, counts)
            whole = array.array("d", bytes(8 * sum(counts)))
            group.all_gather_v(out, whole, counts)
            return out.tolist(), whole.tolist()

        for world_size in WORLD_SIZES:
            counts = [(3 * rank + 1) % 5 for rank in range(world_size)]
            want = summed(world_size, sum(counts))
            for rank, (block, whole) in enumerate(self.ranks(world_size, body)):
                first = sum(counts[:rank])
                self.assertEqual(block, want[first : first + counts[rank]])
                self.assertEqual(whole, want)

    def test_all_gather_puts_blocks_in_rank_order(self):
        def body(group):
            out = array.array("i", bytes(4 * 3 * group.world_size))
            group.all_gather(array.array("i", [group.rank, -group.rank, 7]), out)
            return out.tolist()

        for world_size in WORLD_SIZES:
            want = [value for rank in range(world_size) for value in (rank, -rank, 7)]
            for result in self.ranks(world_size, body):
                self.assertEqual(result, want)

    def test_broadcast_from_every_root_reads_also_read_only_memory(self):
        def body(group):
            results = []
            for root in range(group.world_size):
                if group.rank == root:
                    group.broadcast(bytes([root, 9]), root)
                    results.append([root, 9])
                else:
                    data = bytearray(2)
                    group.broadcast(data, root)
                    results.append(list(data))
            return results

        for result in self.ranks(3, body):
            self.assertEqual(result, [[0, 9], [1, 9], [2, 9]])

    def test_barrier_waits_for_all(self):
        arrived = []

        def body(group):
            arrived.append(group.rank)
            group.barrier()
            return len(arrived)

        self.assertEqual(self.ranks(4, body), [4] * 4)

    def test_messages_go_round_the_ring(self):
        def body(group):
            right = (group.rank + 1) % group.world_size
            left = (group.rank - 1) % group.world_size
            data = array.array("i", [0])
            request = group.start_receive(data, left, tag=5)
            group.send(array.array("i", [group.rank]), right, tag=5)
            request.wait()
            return data[0]

        for world_size in WORLD_SIZES[1:]:
            want = [(rank - 1) % world_size for rank in range(world_size)]
            self.assertEqual(self.ranks(world_size, body), want)

    def test_messages_with_tags_are_matched_by_tag(self):
        def body(group):
            if group.rank == 0:
                first = group.start_send(b"one", 1, tag=1)
                second = group.start_send(b"two", 1, tag=(1 << 64) - 1)
                first.wait()
                second.wait()
                return None
            one, two = bytearray(3), bytearray(3)
            group.receive(two, 0, tag=(1 << 64) - 1)
            group.receive(one, 0, tag=1)
            return bytes(one), bytes(two)

        self.assertEqual(self.ranks(2, body)[1], (b"one", b"two"))

    def test_the_group_knows_its_size_backend_and_past(self):
        def body(group):
            group.wait_ready(60)
            group.all_reduce(array.array("f", [1, 2, 3]))
            return (
                group.rank,
                group.world_size,
                group.backend,
                group.statistics(),
                group.flight_record(),
            )

        for rank, (number, size, backend, statistics, record) in enumerate(self.ranks(2, body)):
            self.assertEqual((number, size), (rank, 2))
            self.assertIn("local", backend)
            self.assertEqual((statistics.operations, statistics.failures), (1, 0))
            self.assertEqual(statistics.sent_messages, 0)  # they share memory
            self.assertEqual(len(record), 1)
            self.assertEqual(record[0]["operation"], "all_reduce")
            self.assertEqual(record[0]["sequence"], 1)

    def test_what_every_rank_called_last_is_told_also_after_a_failure(self):
        def body(group):
            group.barrier()
            if group.rank == 0:
                with self.assertRaisesRegex(
                    trireme.TimeoutError, r"\(rank 1 last called barrier, sequence 1\)"
                ):
                    group.broadcast(bytearray(3), 0, timeout=0.05)
            else:
                with self.assertRaises(trireme.TimeoutError):
                    while True:
                        group.wait_ready(0)
                        time.sleep(0.001)
            return group.last_calls()

        for calls in self.ranks(2, body):
            self.assertEqual([line["rank"] for line in calls], [0, 1])
            self.assertEqual([line["collective"] for line in calls], ["broadcast", "barrier"])
            self.assertEqual([line["sequence"] for line in calls], [2, 1])
            self.assertTrue(all(line["known"] for line in calls))
            self.assertEqual([line["message"] for line in calls], [None, None])

    def test_a_long_flight_record_comes_whole(self):
        group = self.alone()
        for _ in range(3000):
            group.barrier()
        record = group.flight_record()
        self.assertEqual(len(record), 2048)
        self.assertEqual([line["sequence"] for line in record], list(range(953, 3001)))


class BufferKindTest(TestCase):
    """One rank suffices: what goes in must come out, with the right dtype in the record."""

    def dtype_seen(self, data, **options):
        group = self.alone()
        before = bytes(memoryview(data).cast("B")) if memoryview(data).nbytes else b""
        group.all_reduce(data, **options)
        after = bytes(memoryview(data).cast("B")) if memoryview(data).nbytes else b""
        self.assertEqual(after, before)
        record = group.flight_record()[-1]
        return record["dtype"], record["count"]

    def test_array_array(self):
        for code, name in zip(
            "bBhHiIlLqQfd", "i8 u8 i16 u16 i32 u32 i64 u64 i64 u64 f32 f64".split()
        ):
            self.assertEqual(self.dtype_seen(array.array(code, [1, 2, 3])), (name, 3), code)

    def test_bytes_like_memory(self):
        self.assertEqual(self.dtype_seen(bytearray(b"abc")), ("u8", 3))
        self.assertEqual(self.dtype_seen(memoryview(bytearray(8)).cast("d")), ("f64", 1))
        flags = memoryview(bytearray(3)).cast("?")
        self.assertEqual(self.dtype_seen(flags, reduction="max"), ("bool", 3))

    def test_ctypes_arrays(self):
        for kind, name in (
            (ctypes.c_float, "f32"),
            (ctypes.c_double, "f64"),
            (ctypes.c_int32, "i32"),
            (ctypes.c_uint64, "u64"),
            (ctypes.c_int16, "i16"),
        ):
            self.assertEqual(self.dtype_seen((kind * 4)(1, 2, 3, 4)), (name, 4))

    def test_empty_memory(self):
        self.assertEqual(self.dtype_seen(bytearray()), ("u8", 0))
        self.assertEqual(self.dtype_seen(array.array("d")), ("f64", 0))

    @needs_numpy
    def test_numpy_arrays_of_every_dtype_and_shape(self):
        for name in "i8 u8 i16 u16 i32 u32 i64 u64 f16 f32 f64".split():
            kind = {"i": "int", "u": "uint", "f": "float"}[name[0]] + name[1:]
            self.assertEqual(self.dtype_seen(numpy.ones((2, 3), kind)), (name, 6))
        self.assertEqual(self.dtype_seen(numpy.ones(4, bool), reduction="max"), ("bool", 4))
        self.assertEqual(self.dtype_seen(numpy.ones((), "float32")), ("f32", 1))
        self.assertEqual(self.dtype_seen(numpy.ones((0, 3), "float32")), ("f32", 0))

    @needs_numpy
    def test_numpy_slices_are_worked_on_in_place(self):
        def body(group):
            data = numpy.full(10, group.rank + 1, numpy.float16)
            group.all_reduce(data[3:7])
            return data.tolist()

        for rank, result in enumerate(self.ranks(2, body)):
            own = rank + 1
            self.assertEqual(result, [own] * 3 + [3] * 4 + [own] * 3)

    def test_a_named_dtype_stands_for_types_python_does_not_have(self):
        one_two_three = {  # bits of 1, 2 and 1 + 2
            "bf16": ("H", 0x3F80, 0x4000, 0x4040),
            "f16": ("H", 0x3C00, 0x4000, 0x4200),
            "f8e4m3": ("B", 0x38, 0x40, 0x44),
            "f8e5m2": ("B", 0x3C, 0x40, 0x42),
        }

        def body(group):
            results = {}
            for name, (code, one, two, _) in one_two_three.items():
                data = array.array(code, [one if group.rank == 0 else two])
                group.all_reduce(data, dtype=name)
                results[name] = data[0]
            raw = bytearray(struct.pack("=f", 1.5))
            group.all_reduce(raw, dtype="f32")
            results["raw"] = struct.unpack("=f", raw)[0]
            return results

        want = {name: values[3] for name, values in one_two_three.items()}
        for result in self.ranks(2, body):
            self.assertEqual(result, {**want, "raw": 3.0})

    def test_bytes_are_moved_whatever_they_are(self):
        def body(group):
            data = array.array("d", [1.25, -3.0] if group.rank == 0 else [0, 0])
            group.broadcast(data, dtype="bytes")
            return data.tolist(), group.flight_record()[-1]["dtype"]

        for result in self.ranks(2, body):
            self.assertEqual(result, ([1.25, -3.0], "bytes"))

    def test_read_only_memory_can_be_sent(self):
        def body(group):
            out = bytearray(4)
            group.all_reduce(bytes([1, 2, 3, 4]), out)
            first = list(out)
            group.all_reduce(memoryview(bytes([5, 6, 7, 8])), out)
            return first, list(out)

        for result in self.ranks(2, body):
            self.assertEqual(result, ([2, 4, 6, 8], [10, 12, 14, 16]))

    @needs_numpy
    def test_read_only_numpy_arrays_can_be_sent(self):
        data = numpy.arange(5, dtype=numpy.float32)
        data.flags.writeable = False
        out = numpy.zeros(5, numpy.float32)
        self.alone().all_reduce(data, out)
        self.assertEqual(out.tolist(), [0, 1, 2, 3, 4])


class RefusedMemoryTest(TestCase):
    def setUp(self):
        self.group = self.alone()

    def test_read_only_memory_cannot_receive(self):
        for call in (
            lambda: self.group.all_reduce(b"abcd"),
            lambda: self.group.all_reduce(b"abcd", memoryview(b"efgh")),
            lambda: self.group.all_gather(b"a", b"b"),
            lambda: self.group.reduce_scatter(b"a", b"b"),
            lambda: self.group.start_receive(b"a", 0),
            lambda: self.group.receive(b"a", 0),
        ):
            with self.assertRaisesRegex(TypeError, "read-only"):
                call()

    def test_what_is_no_memory_is_refused(self):
        for data in ([1.0, 2.0], 5, None, "text"):
            with self.assertRaisesRegex(TypeError, f"not {type(data).__name__}"):
                self.group.all_reduce(data)

    def test_memory_with_gaps_is_refused(self):
        with self.assertRaisesRegex(ValueError, "not contiguous"):
            self.group.all_reduce(memoryview(bytearray(8))[::2])
        if numpy is not None:
            with self.assertRaisesRegex(ValueError, "not contiguous"):
                self.group.all_reduce(numpy.ones((4, 4), numpy.float32)[:, 1])

    def test_elements_without_a_dtype_are_refused(self):
        class Pair(ctypes.Structure):
            _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_float)]

        with self.assertRaisesRegex(TypeError, "has no dtype"):
            self.group.all_reduce((Pair * 2)())
        if numpy is not None:
            for data in (numpy.ones(2, ">f4"), numpy.ones(2, complex), numpy.ones(2, "longdouble")):
                with self.assertRaisesRegex(TypeError, "has no dtype"):
                    self.group.all_reduce(data)

    def test_a_named_dtype_that_the_memory_does_not_have_is_refused(self):
        with self.assertRaisesRegex(TypeError, "of type f64, not f32"):
            self.group.all_reduce(array.array("d", [1]), dtype="f32")
        with self.assertRaisesRegex(TypeError, "of type f32, not i32"):
            self.group.all_reduce(array.array("f", [1]), dtype="i32")
        with self.assertRaisesRegex(ValueError, "3 bytes, no multiple of 2"):
            self.group.all_reduce(bytearray(3), dtype="bf16")
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "'float' is none of"):
            self.group.all_reduce(array.array("f", [1]), dtype="float")

    def test_lengths_that_do_not_fit_are_refused(self):
        group = self.group
        for call in (
            lambda: group.all_reduce(bytes(3), bytearray(4)),
            lambda: group.reduce_scatter(bytes(3), bytearray(2)),
            lambda: group.all_gather(bytes(3), bytearray(4)),
            lambda: group.all_gather_v(bytes(3), bytearray(3), [2]),
            lambda: group.all_gather_v(bytes(2), bytearray(3), [3]),
            lambda: group.all_gather_v(bytes(3), bytearray(3), [3, 0]),
            lambda: group.reduce_scatter_v(bytes(3), bytearray(3), [-1]),
            lambda: group.reduce_scatter_v(bytes(3), bytearray(2), [3]),
        ):
            with self.assertRaises(ValueError):
                call()

    def test_buffers_of_two_dtypes_are_refused(self):
        with self.assertRaisesRegex(TypeError, "f32.*i32"):
            self.group.all_reduce(array.array("f", [1]), array.array("i", [1]))

    def test_numbers_out_of_range_are_refused_and_the_group_lives_on(self):
        data = array.array("f", [1])
        for call in (
            lambda: self.group.all_reduce(data, reduction=99),
            lambda: self.group.all_reduce(data, reduction="median"),
            lambda: self.group.all_reduce(data, reduction=1 << 32 | 1),
            lambda: self.group.broadcast(data, 1),
            lambda: self.group.broadcast(data, -1),
            lambda: self.group.broadcast(data, 1 << 32),
            lambda: self.group.send(data, 7),
            lambda: self.group.send(data, 0, tag=-1),
            lambda: self.group.send(data, 0, tag=1 << 64),
            lambda: self.group.all_reduce(data, timeout=-1),
            lambda: self.group.all_reduce(data, timeout=float("nan")),
        ):
            with self.assertRaises(trireme.InvalidArgumentError):
                call()
        self.group.all_reduce(data)
        self.assertEqual(data[0], 1)

    def test_a_combination_that_makes_no_sense_is_refused(self):
        with self.assertRaises(trireme.UnsupportedError):
            self.group.all_reduce(array.array("f", [1]), reduction="band")

    def test_overlapping_memory_is_refused(self):
        data = bytearray(8)
        view = memoryview(data)
        with self.assertRaises(trireme.InvalidArgumentError):
            self.group.all_reduce(view[:4], view[2:6])


class CreationTest(TestCase):
    def test_bad_options_are_refused(self):
        for rank, size, name in (
            (-1, 2, rendezvous()),
            (2, 2, rendezvous()),
            (0, 0, rendezvous()),
            (0, 1, ""),
            (0, 1, "nonsense"),
            (1 << 32, 1, rendezvous()),
        ):
            with self.assertRaises((trireme.InvalidArgumentError, trireme.UnsupportedError)):
                trireme.Communicator(rank, size, name)
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.Communicator(0, 1, "local://a\0b")
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.Communicator(0, 1, rendezvous(), timeout=-1)
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.Communicator(0, 1, rendezvous(), name="x" * 64)

    def test_an_unknown_backend_is_unsupported(self):
        with self.assertRaises(trireme.UnsupportedError):
            trireme.Communicator(0, 1, rendezvous(), backend="carrier-pigeon")

    def test_a_taken_rank_is_refused(self):
        name = rendezvous()
        with trireme.Communicator(0, 2, name):
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.Communicator(0, 2, name)

    def test_the_environment_must_name_the_group(self):
        text = """
import os, trireme
for name in ("RANK", "WORLD_SIZE", "TRIREME_RENDEZVOUS", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name, None)
try:
    trireme.Communicator.from_environment()
except trireme.InvalidArgumentError as problem:
    print(problem.message)
"""
        self.assertRegex(self.passes(text), "env:// needs the variable (RANK|WORLD_SIZE)")

    def test_a_closed_group_answers_with_an_error(self):
        group = self.alone()
        self.assertFalse(group.closed)
        group.close()
        group.close()
        self.assertTrue(group.closed)
        for call in (
            lambda: group.barrier(),
            lambda: group.start_barrier(),
            lambda: group.all_reduce(bytearray(1)),
            lambda: group.wait_ready(1),
            lambda: group.abort(),
            lambda: group.statistics(),
            lambda: group.flight_record(),
            lambda: group.backend,
            lambda: trireme.Buffer(group, 1),
            lambda: trireme.Model(group, "zero3"),
        ):
            with self.assertRaises(trireme.InvalidHandleError):
                call()
        self.assertIn("closed", repr(group))


if __name__ == "__main__":
    unittest.main()
