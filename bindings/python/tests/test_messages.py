"""Messages of any source, tag and length, waiting for several requests, and options of calls."""

import array
import threading
import unittest

from support import PATIENCE, WORLD_SIZES, TestCase, needs_numpy, numpy, trireme


def ints(*values):
    return array.array("i", values)


class MessageTest(TestCase):
    def test_a_receive_tells_what_came(self):
        def body(group):
            if group.rank:
                group.send(ints(*range(group.rank)), 0, tag=10 * group.rank)
                group.send(ints(7, group.rank), 0, tag=5)
                return
            room = ints(-1, -1, -1, -1)
            self.assertEqual(group.receive_message(room, 2, 20), (2, 20, 2, "i32"))
            self.assertEqual(room.tolist(), [0, 1, -1, -1])
            self.assertEqual(group.receive_message(room, 1), (1, 10, 1, "i32"))
            request = group.start_receive_message(room, 2)
            request.wait()
            self.assertEqual(request.message(), (2, 5, 2, "i32"))
            pair = ints(0, 0)
            request = group.start_receive(pair, None, tag=5)
            request.wait()
            self.assertEqual((request.message().source, pair.tolist()), (1, [7, 1]))

        self.ranks(3, body)

    def test_a_message_of_unknown_length_comes_in_new_memory(self):
        def body(group):
            for length in (0, 1, 5000):
                data = array.array("d", range(length))
                if group.rank == 0:
                    group.send(data, 1, tag=3)
                    group.send(data, 1, tag=4)
                else:
                    found, info = group.receive_to_buffer("f64", 0, 3)
                    self.assertEqual((found.tolist(), info.count), (data.tolist(), length))
                    found, info = group.receive_to_buffer("f64")
                    self.assertEqual((found.tolist(), info.tag), (data.tolist(), 4))

        self.ranks(2, body)

    def test_a_probe_looks_and_leaves_the_message(self):
        def body(group):
            if group.rank == 1:
                group.barrier()
                group.send(ints(1, 2, 3), 0, tag=9)
                return
            with self.assertRaises(trireme.TimeoutError):
                group.probe(1, 9, timeout=0.02)
            group.barrier()
            self.assertEqual(group.probe(1, 9), (1, 9, 3, "i32"))
            request = group.start_probe()
            request.wait()
            self.assertEqual(request.message(), (1, 9, 3, "i32"))
            data = ints(0, 0, 0)
            group.receive(data, 1, 9)
            self.assertEqual(data.tolist(), [1, 2, 3])

        self.ranks(2, body)

    def test_send_receive_goes_round_the_ring(self):
        def body(group):
            after, before = (group.rank + 1) % group.world_size, (group.rank - 1) % group.world_size
            out = ints(-1, -1)
            group.send_receive(ints(group.rank, 5), after, out, before, 1, 1)
            self.assertEqual(out.tolist(), [before, 5])
            one = ints(0)
            group.send_receive(ints(-group.rank), after, one, None, receive_tag=None)
            self.assertEqual(one[0], -before)

        for world_size in WORLD_SIZES:
            self.ranks(world_size, body)

    def test_a_buffered_send_needs_no_receiver(self):
        def body(group):
            data = ints(*[group.rank] * 1000)
            group.send(data, 1 - group.rank, buffered=True)  # both send first
            data[0] = 99  # it was copied
            group.send(data, group.rank, tag=1, buffered=True)
            group.receive(data, 1 - group.rank)
            self.assertEqual(data[0], 1 - group.rank)
            group.receive(data, group.rank, tag=1)
            self.assertEqual(data[0], 99)

        self.ranks(2, body)

    @needs_numpy
    def test_numpy_arrays_take_part(self):
        def body(group):
            mine, out = numpy.full((2, 2), group.rank, numpy.float16), numpy.zeros(4, numpy.float16)
            group.send_receive(mine, 1 - group.rank, out, 1 - group.rank)
            self.assertEqual(out.tolist(), [1 - group.rank] * 4)

        self.ranks(2, body)

    def test_wait_all_waits_for_every_request(self):
        looked = threading.Event()

        def body(group):
            if group.rank == 1:
                group.send(ints(1), 0, tag=1)
                self.assertTrue(looked.wait(PATIENCE))
                group.send(ints(2), 0, tag=2)
                return
            one, two = ints(0), ints(0)
            requests = [group.start_receive(two, 1, 2), group.start_receive(one, 1, 1)]
            with self.assertRaises(trireme.TimeoutError):
                trireme.wait_all(requests, timeout=0.02)
            looked.set()
            trireme.wait_all(requests)
            self.assertEqual((one[0], two[0]), (1, 2))
            trireme.wait_all([], timeout=0)

        self.ranks(2, body)

    def test_any_algorithm_and_a_reproducible_sum_give_the_sum(self):
        def body(group):
            size = group.world_size
            for algorithm in ("automatic", "direct", "ring", "halving_doubling", "double_tree"):
                data = ints(*[i * (group.rank + 1) for i in range(101)])
                group.all_reduce(data, algorithm=algorithm)
                self.assertEqual(data[100], 100 * size * (size + 1) // 2)
                small = array.array("d", [0.1 * (group.rank + 1)])
                group.all_reduce(small, algorithm=algorithm, reproducible=True)
                want = 0.1
                for rank in range(1, size):
                    want += 0.1 * (rank + 1)
                self.assertEqual(small[0], want)

        for world_size in WORLD_SIZES:
            self.ranks(world_size, body)

    def test_a_narrow_wire_rounds_what_travels(self):
        def body(group):
            out = array.array("f", bytes(16))
            # 257 needs 9 bits, bfloat16 has 8: it is rounded to even.
            group.all_gather(array.array("f", [257, group.rank]), out, wire_dtype="bf16")
            return out.tolist()

        self.assertEqual(self.ranks(2, body), [[256, 0, 256, 1]] * 2)


class RefusedTest(TestCase):
    def test_what_makes_no_sense_is_refused_and_the_group_lives_on(self):
        def body(group):
            data, other = ints(1, 2), ints(3, 4)
            for call in (
                lambda: group.receive(data, 2),
                lambda: group.receive(data, -1),
                lambda: group.receive(data, 0, tag=-1),
                lambda: group.receive_message(data, 1 << 32),
                lambda: group.receive_to_buffer("float"),
                lambda: group.receive_to_buffer("i32", 7),
                lambda: group.probe(-2),
                lambda: group.start_probe(0, 1 << 64),
                lambda: group.send_receive(data, -1, other, 0),
                lambda: group.send_receive(data, 0, data, 0),
                lambda: group.start_receive_message(data, 5),
                lambda: group.all_reduce(data, algorithm="magic"),
                lambda: group.all_reduce(data, algorithm=99),
                lambda: group.all_reduce(data, wire_dtype="bf16"),
                lambda: group.all_reduce(array.array("f", [1]), wire_dtype="f64"),
                lambda: group.send(data, 0, priority="high"),
            ):
                with self.assertRaises(trireme.InvalidArgumentError):
                    call()
            for call in (
                lambda: group.receive_message(b"ab"),
                lambda: group.send_receive(data, 0, b"ab", 0),
                lambda: group.send_receive(data, 0, array.array("f", [1]), 0),
                lambda: group.start_send(data, 0, buffered=True),
                lambda: group.all_reduce(data, buffered=True),
            ):
                with self.assertRaises(TypeError):
                    call()
            with self.assertRaises(trireme.UnsupportedError):
                group.all_reduce(data, algorithm="bruck")
            group.barrier()

        self.ranks(2, body)

    def test_a_message_that_is_too_long_is_a_mismatch_with_both_lengths(self):
        def body(group):
            if group.rank == 0:
                group.send(bytes(123), 1, buffered=True)
                return
            with self.assertRaisesRegex(trireme.MismatchError, "123") as caught:
                group.receive_message(bytearray(45), 0)
            self.assertIn("45", caught.exception.message)

        self.ranks(2, body)

    def test_only_a_receive_that_is_done_has_a_message(self):
        group = self.alone()
        request = group.start_barrier()
        request.wait()
        with self.assertRaises(trireme.InvalidStateError):
            request.message()
        request = group.start_receive(ints(0), 0)
        with self.assertRaises(trireme.InvalidStateError):
            request.message()
        group.send(ints(5), 0)
        request.wait()
        self.assertEqual(request.message().count, 1)

    def test_wait_all_raises_what_a_request_failed_with(self):
        group = self.alone()
        good, late = group.start_barrier(), group.start_receive(ints(0), 0, timeout=0.02)
        with self.assertRaises(trireme.TimeoutError) as caught:
            trireme.wait_all([good, late])
        self.assertEqual(caught.exception.operation, "receive")

    def test_what_tells_its_message_cannot_be_in_a_group(self):
        group = self.alone()
        with trireme.batch():
            for call in (
                lambda: group.receive_message(bytearray(1)),
                lambda: group.receive_to_buffer("u8"),
                lambda: group.probe(),
            ):
                with self.assertRaises(trireme.InvalidStateError):
                    call()


if __name__ == "__main__":
    unittest.main()
