"""Lists of buffers, batches of calls, and operations that find out how much comes."""

import array
import gc
import unittest

from support import WORLD_SIZES, TestCase, needs_numpy, numpy, trireme

LENGTHS = (3, 0, 1, 5000, 7)


def values(rank, length, seed=0):
    return array.array("q", [(rank + 1) * 1000 + (i + seed) * 7 % 113 for i in range(length)])


def empty(length):
    return array.array("q", [-1] * length)


def lists(items):
    return [item.tolist() for item in items]


class ListTest(TestCase):
    def everywhere(self, body):
        for world_size in WORLD_SIZES:
            self.ranks(world_size, body)

    def test_all_reduce_of_a_list_is_that_of_its_buffers(self):
        def body(group):
            want = [
                [sum(v) for v in zip(*(values(r, n, n) for r in range(group.world_size)))]
                for n in LENGTHS
            ]
            for run in (group.all_reduce_list, lambda *a: group.start_all_reduce_list(*a).wait()):
                data = [values(group.rank, n, n) for n in LENGTHS]
                outs = [empty(n) for n in LENGTHS]
                run(data, outs)
                self.assertEqual(lists(outs), want)
                self.assertEqual(data, [values(group.rank, n, n) for n in LENGTHS])
                run(data)
                self.assertEqual(lists(data), want)
            most = [array.array("i", [group.rank]), array.array("i", [-group.rank, 5])]
            group.all_reduce_list(most, reduction="max")
            self.assertEqual(lists(most), [[group.world_size - 1], [0, 5]])

        self.everywhere(body)

    def test_reduce_scatter_and_all_gather_of_lists_have_blocks_in_each_buffer(self):
        def body(group):
            size, rank = group.world_size, group.rank
            for started in (False, True):
                data = [values(rank, n * size, n) for n in LENGTHS]
                outs = [empty(n) for n in LENGTHS]
                if started:
                    group.start_reduce_scatter_list(data, outs).wait()
                else:
                    group.reduce_scatter_list(data, outs)
                for n, out in zip(LENGTHS, outs):
                    whole = [sum(v) for v in zip(*(values(r, n * size, n) for r in range(size)))]
                    self.assertEqual(out.tolist(), whole[rank * n : (rank + 1) * n])
                data = [values(rank, n, n) for n in LENGTHS]
                outs = [empty(n * size) for n in LENGTHS]
                if started:
                    group.start_all_gather_list(data, outs).wait()
                else:
                    group.all_gather_list(data, outs)
                for n, out in zip(LENGTHS, outs):
                    want = [v for r in range(size) for v in values(r, n, n)]
                    self.assertEqual(out.tolist(), want)

        self.everywhere(body)

    def test_broadcast_of_a_list_gives_the_roots_buffers(self):
        def body(group):
            for root in range(group.world_size):
                for run in (group.broadcast_list, lambda *a: group.start_broadcast_list(*a).wait()):
                    data = [values(group.rank, n, n) for n in LENGTHS]
                    run(data, root)
                    self.assertEqual(data, [values(root, n, n) for n in LENGTHS])

        self.everywhere(body)

    def test_a_list_may_be_empty_if_the_dtype_is_named(self):
        def body(group):
            group.all_reduce_list([], dtype="f32")
            group.broadcast_list([], dtype="bytes")
            group.all_gather_list([], [], dtype="f32")

        self.ranks(2, body)

    def test_memory_of_a_started_list_lives_until_it_is_done(self):
        def body(group):
            outs = [empty(1000), empty(2000)]
            request = group.start_all_reduce_list(
                [values(group.rank, 1000), values(group.rank, 2000)], outs
            )
            gc.collect()
            request.wait()
            return [sum(out) for out in outs]

        want = [sum(values(0, n)[i] + values(1, n)[i] for i in range(n)) for n in (1000, 2000)]
        self.assertEqual(self.ranks(2, body), [want] * 2)

    def test_lists_that_do_not_fit_are_refused_and_the_group_lives_on(self):
        def body(group):
            one, two, four = values(0, 1), values(0, 2), values(0, 4)
            for call in (
                lambda: group.all_reduce_list([one], [one, two]),
                lambda: group.all_reduce_list([one, two], [one, one]),
                lambda: group.start_all_reduce_list([]),
                lambda: group.reduce_scatter_list([four], [one]),
                lambda: group.start_reduce_scatter_list([one], [one]),
                lambda: group.all_gather_list([two], [two]),
                lambda: group.start_broadcast_list([memoryview(bytearray(8))[::2]]),
            ):
                with self.assertRaises(ValueError):
                    call()
            for call in (
                lambda: group.all_reduce_list([one, array.array("f", [1])]),
                lambda: group.all_reduce_list([one], [array.array("d", [1])]),
                lambda: group.all_reduce_list([bytes(3)]),
                lambda: group.all_gather_list([bytes(3)], [bytes(6)]),
                lambda: group.start_broadcast_list([one, 5]),
                lambda: group.broadcast_list([bytes(3)], 1 - group.rank),
            ):
                with self.assertRaises(TypeError):
                    call()
            for call in (
                lambda: group.all_reduce_list([one], reduction="most"),
                lambda: group.broadcast_list([one], 2),
                lambda: group.broadcast_list([one], -1),
            ):
                with self.assertRaises(trireme.InvalidArgumentError):
                    call()
            group.barrier()

        self.ranks(2, body)

    def test_lists_of_different_lengths_are_a_mismatch_on_all_ranks(self):
        def body(group):
            data = [values(0, 3) for _ in range(2 + (group.rank == 1))]
            with self.assertRaises(trireme.MismatchError):
                group.all_reduce_list(data)

        self.ranks(3, body)


class GroupTest(TestCase):
    def test_sends_and_receives_of_a_group_need_no_order(self):
        def body(group):
            peers = range(group.world_size)
            received = [array.array("i", [0]) for _ in peers]
            with trireme.batch():
                for peer in peers:  # each rank first receives: apart from a group, a deadlock
                    group.receive(received[peer], peer)
                for peer in peers:
                    group.send(array.array("i", [10 * group.rank + peer]), peer)
                gc.collect()
            return [item[0] for item in received]

        for world_size in WORLD_SIZES:
            want = [[10 * r + rank for r in range(world_size)] for rank in range(world_size)]
            self.assertEqual(self.ranks(world_size, body), want)

    def test_collectives_of_a_group_run_in_the_order_of_their_calls(self):
        def body(group):
            data = array.array("q", [1, 2])
            whole = array.array("q", bytes(16 * group.world_size))
            with trireme.batch():
                group.all_reduce(data)
                with trireme.batch():
                    group.all_reduce(data)
                    group.barrier()
                group.all_gather(data, whole)
            return whole.tolist()

        self.assertEqual(self.ranks(3, body), [[9, 18] * 3] * 3)

    def test_a_refused_call_leaves_the_rest_of_the_group_alone(self):
        def body(group):
            data = array.array("i", [group.rank])
            with self.assertRaises(trireme.InvalidArgumentError):
                with trireme.batch():
                    group.all_reduce(data)
                    group.broadcast(data, 99)
            group.barrier()
            return data[0]

        self.assertEqual(self.ranks(3, body), [3] * 3)

    def test_what_fails_in_a_group_is_raised_at_its_end(self):
        def body(group):
            data = values(0, 4 + group.rank)
            with self.assertRaises(trireme.MismatchError) as caught:
                with trireme.batch():
                    group.all_reduce(data)
            self.assertEqual(caught.exception.operation, "all_reduce")

        self.ranks(2, body)

    def test_what_cannot_be_in_a_group_says_so(self):
        group = self.alone()
        with trireme.batch():
            for call in (
                lambda: group.broadcast_to_buffer(b"a"),
                lambda: group.scatter_to_buffer(b"a"),
                lambda: group.all_gather_to_buffer(b"a"),
            ):
                with self.assertRaises(trireme.InvalidStateError):
                    call()
        group.barrier()

    def test_an_end_without_a_beginning_is_refused(self):
        with self.assertRaises(trireme.InvalidStateError):
            trireme._errors.check(trireme._native.library.trireme_batch_end())


class ToBufferTest(TestCase):
    def test_every_rank_gets_the_roots_elements_though_only_the_root_knows_how_many(self):
        def body(group):
            for root in range(group.world_size):
                for length in (0, 1, 1001):
                    data = values(root, length) if group.rank == root else None
                    dtype = None if group.rank == root else "i64"
                    found = group.broadcast_to_buffer(data, root, dtype=dtype)
                    self.assertEqual(found.tolist(), values(root, length).tolist())
                    if length:
                        found[0] = 5  # it is one's own

        for world_size in WORLD_SIZES:
            self.ranks(world_size, body)

    def test_scatter_gives_each_rank_its_block_of_any_length(self):
        def body(group):
            size = group.world_size
            for root in range(size):
                at_root = group.rank == root
                counts = [(3 * rank + root) % 5 for rank in range(size)]
                whole, first = values(root, sum(counts)), sum(counts[: group.rank])
                found = group.scatter_to_buffer(
                    whole if at_root else None, counts if at_root else None, root, dtype="i64"
                )
                self.assertEqual(found.tolist(), whole[first:].tolist()[: counts[group.rank]])
                whole = values(root, 2 * size + 1)  # rank 0 gets one more
                found = group.scatter_to_buffer(whole if at_root else None, root=root, dtype="i64")
                first = 2 * group.rank + min(group.rank, 1)
                last = first + 2 + (group.rank == 0)
                self.assertEqual(found.tolist(), whole[first:last].tolist())

        for world_size in WORLD_SIZES:
            self.ranks(world_size, body)

    def test_all_gather_joins_blocks_whose_lengths_nobody_else_knows(self):
        def body(group):
            length = group.rank * 3 % 4
            return group.all_gather_to_buffer(values(group.rank, length))

        for world_size in WORLD_SIZES:
            counts = [rank * 3 % 4 for rank in range(world_size)]
            want = [v for rank in range(world_size) for v in values(rank, counts[rank])]
            for found, lengths in self.ranks(world_size, body):
                self.assertEqual(found.tolist(), want)
                self.assertEqual(lengths, counts)

    def test_new_memory_outlives_its_group_and_works_in_operations(self):
        def body(group):
            found = group.broadcast_to_buffer(
                values(0, 3) if group.rank == 0 else None, dtype="i64"
            )
            group.all_reduce(found)
            return found

        found = self.ranks(2, body)
        gc.collect()
        for view in found:
            self.assertEqual(view.tolist(), [2 * v for v in values(0, 3)])

    @needs_numpy
    def test_numpy_in_numpy_out(self):
        def body(group):
            mine = numpy.full(group.rank, group.rank, numpy.float16)
            found, counts = group.all_gather_to_buffer(mine)
            self.assertEqual((found.dtype, counts), (numpy.float16, [0, 1, 2]))
            self.assertEqual(found.tolist(), [1, 2, 2])
            nothing, _ = group.all_gather_to_buffer(numpy.empty((0, 4), numpy.float32))
            self.assertEqual((nothing.dtype, nothing.size), (numpy.float32, 0))
            found = group.broadcast_to_buffer(mine if group.rank == 2 else None, 2, dtype="f16")
            self.assertEqual(numpy.asarray(found).view(numpy.float16).tolist(), [2, 2])

        self.ranks(3, body)

    def test_what_is_missing_is_asked_for(self):
        def body(group):
            me, other = group.rank, 1 - group.rank
            for call in (
                lambda: group.broadcast_to_buffer(None, other),
                lambda: group.broadcast_to_buffer(None, me, dtype="f32"),
                lambda: group.scatter_to_buffer(None, None, other),
                lambda: group.scatter_to_buffer(None, [1, 1], me, dtype="f32"),
                lambda: group.all_gather_to_buffer(None),
            ):
                with self.assertRaises(TypeError):
                    call()
            for call in (
                lambda: group.scatter_to_buffer(b"abc", [1, 1], me),
                lambda: group.scatter_to_buffer(b"abc", [3], me),
                lambda: group.scatter_to_buffer(b"abc", [4, -1], me),
                lambda: group.broadcast_to_buffer(None, 2, dtype="f32"),
                lambda: group.scatter_to_buffer(None, None, -1, dtype="f32"),
                lambda: group.broadcast_to_buffer(None, other, dtype="float"),
            ):
                with self.assertRaises(ValueError):
                    call()
            group.barrier()

        self.ranks(2, body)

    def test_ranks_that_disagree_are_all_told(self):
        def body(group):
            with self.assertRaises(trireme.MismatchError):
                group.all_gather_to_buffer(array.array("fi"[group.rank], [1]))

        self.ranks(2, body)


if __name__ == "__main__":
    unittest.main()
