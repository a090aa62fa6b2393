"""Reduce, gather, scatter and all-to-all, against plain Python; urgent operations."""

import array
import threading
import unittest

from support import PATIENCE, WORLD_SIZES, TestCase, needs_numpy, numpy, trireme

LENGTHS = (0, 1, 3, 1001)


def values(rank, length):
    return array.array("q", [(rank + 1) * 1000 + i * 7 % 113 for i in range(length)])


def empty(length):
    return array.array("q", [-1] * length)


def counts_of(world_size):
    return [(3 * rank + 1) % 5 for rank in range(world_size)]


class RootedTest(TestCase):
    def every_root(self, body):
        """Runs body(group, root) for every root of every world size; it checks by itself."""
        for world_size in WORLD_SIZES:
            self.ranks(world_size, lambda group: [body(group, r) for r in range(group.world_size)])

    def test_reduce_gives_the_root_the_sum_and_leaves_the_others_alone(self):
        def body(group, root):
            for length in LENGTHS:
                mine = values(group.rank, length)
                total = [sum(v) for v in zip(*(values(r, length) for r in range(group.world_size)))]
                want = total if group.rank == root else mine.tolist()
                for run in (
                    lambda data: group.reduce(data, root),
                    lambda data: group.start_reduce(data, root).wait(),
                ):
                    data = values(group.rank, length)
                    run(data)
                    self.assertEqual(data.tolist(), want)
                out = empty(length) if group.rank == root else None
                group.reduce(mine, root, out)
                self.assertEqual(mine, values(group.rank, length))
                if group.rank == root:
                    self.assertEqual(out.tolist(), total)
            most = array.array("i", [group.rank])
            group.reduce(most, root, reduction="max")
            self.assertEqual(most[0], group.world_size - 1 if group.rank == root else group.rank)

        self.every_root(body)

    def test_reduce_sends_read_only_memory(self):
        def body(group):
            out = bytearray(2) if group.rank == 1 else None
            group.reduce(bytes([group.rank, 7]), 1, out)
            return out and list(out)

        self.assertEqual(self.ranks(3, body), [None, [3, 21], None])

    def test_gather_joins_the_blocks_on_the_root(self):
        def body(group, root):
            at_root = group.rank == root
            for length in LENGTHS:
                want = [v for r in range(group.world_size) for v in values(r, length)]
                for run in (group.gather, lambda *a: group.start_gather(*a).wait()):
                    out = empty(len(want)) if at_root else None
                    run(values(group.rank, length), out, root)
                    self.assertEqual(out and out.tolist(), (want or out) if at_root else None)
            counts = counts_of(group.world_size)
            want = [v for r in range(group.world_size) for v in values(r, counts[r])]
            for run in (group.gather_v, lambda *a: group.start_gather_v(*a).wait()):
                out = empty(len(want)) if at_root else None
                run(values(group.rank, counts[group.rank]), out, counts, root)
                if at_root:
                    self.assertEqual(out.tolist(), want)

        self.every_root(body)

    def test_scatter_gives_rank_r_block_r(self):
        def body(group, root):
            at_root = group.rank == root
            for length in LENGTHS:
                whole = values(root, length * group.world_size)
                want = whole[group.rank * length : (group.rank + 1) * length]
                for run in (group.scatter, lambda *a: group.start_scatter(*a).wait()):
                    out = empty(length)
                    run(whole if at_root else None, out, root)
                    self.assertEqual(out, want)
            counts = counts_of(group.world_size)
            whole, first = values(root, sum(counts)), sum(counts[: group.rank])
            for run in (group.scatter_v, lambda *a: group.start_scatter_v(*a).wait()):
                out = empty(counts[group.rank])
                run(whole if at_root else None, out, counts, root)
                self.assertEqual(out, whole[first : first + len(out)])

        self.every_root(body)

    def test_all_to_all_transposes_blocks(self):
        def body(group):
            rank, size = group.rank, group.world_size
            for length in LENGTHS:
                cut = slice(rank * length, (rank + 1) * length)
                want = [v for r in range(size) for v in values(r, size * length)[cut]]
                for run in (group.all_to_all, lambda *a: group.start_all_to_all(*a).wait()):
                    out = empty(size * length)
                    run(values(rank, size * length), out)
                    self.assertEqual(out.tolist(), want)

            def count(source, to):
                return (source + 2 * to) % 4

            given = [count(rank, r) for r in range(size)]
            taken = [count(r, rank) for r in range(size)]
            want = []
            for source in range(size):
                first = sum(count(source, to) for to in range(rank))
                want += values(source, first + taken[source])[first:]
            for run in (group.all_to_all_v, lambda *a: group.start_all_to_all_v(*a).wait()):
                out = empty(sum(taken))
                run(values(rank, sum(given)), given, out, taken)
                self.assertEqual(out.tolist(), want)

        for world_size in WORLD_SIZES:
            self.ranks(world_size, body)

    @needs_numpy
    def test_numpy_arrays_of_any_shape(self):
        def body(group):
            mine = numpy.full((2, 3), group.rank, numpy.float16)
            out = numpy.empty((2, 2, 3), numpy.float16) if group.rank == 1 else None
            group.gather(mine, out, 1)
            if group.rank == 1:
                self.assertEqual(out.sum(axis=(1, 2)).tolist(), [0, 6])

        self.ranks(2, body)

    def test_urgent_operations_overtake_a_normal_one_that_waits(self):
        overtaken = threading.Event()

        def body(group):
            normal, urgent = array.array("i", [1]), array.array("i", [10])
            if group.rank == 0:
                request = group.start_all_reduce(normal)
                group.all_reduce(urgent, priority="high")
                self.assertFalse(request.test())
                overtaken.set()
                request.wait()
            else:
                group.start_all_reduce(urgent, priority="high").wait()
                self.assertTrue(overtaken.wait(PATIENCE))
                group.all_reduce(normal, priority="normal")
            return normal[0], urgent[0]

        self.assertEqual(self.ranks(2, body), [(2, 20)] * 2)


class RefusedTest(TestCase):
    def test_lengths_that_do_not_fit_are_refused_before_anything_is_sent(self):
        def body(group):
            me, other = group.rank, 1 - group.rank
            two, three, four = values(0, 2), values(0, 3), values(0, 4)
            for call in (
                lambda: group.reduce(two, me, three),
                lambda: group.start_reduce(two, me, three),
                lambda: group.gather(two, three, me),
                lambda: group.start_gather(two, two, me),
                lambda: group.gather_v(two, None, [2], other),
                lambda: group.gather_v(two, four, [2, 3], me),
                lambda: group.start_gather_v(two, None, [3, 3], other),
                lambda: group.gather_v(two, None, [1 << 64, 3], other),
                lambda: group.scatter(three, two, me),
                lambda: group.scatter_v(four, two, [5, -1], me),
                lambda: group.start_scatter_v(None, two, [4, 4], other),
                lambda: group.all_to_all(four, two),
                lambda: group.start_all_to_all(three, values(0, 3)),
                lambda: group.all_to_all_v(three, [1, 1], two, [1, 1]),
                lambda: group.start_all_to_all_v(three, [1, 2], two, [2]),
            ):
                with self.assertRaises(ValueError):
                    call()
            group.barrier()

        self.ranks(2, body)

    def test_memory_that_does_not_fit_is_refused(self):
        group = self.alone()
        for call in (
            lambda: group.reduce(b"ab"),  # in place
            lambda: group.reduce(b"ab", 0, b"cd"),
            lambda: group.gather(b"ab", None),
            lambda: group.gather(b"ab", b"cd"),
            lambda: group.scatter(None, bytearray(1)),
            lambda: group.scatter(b"ab", b"cd"),
            lambda: group.all_to_all(b"ab", b"cd"),
            lambda: group.gather(array.array("f", [1]), array.array("i", [1])),
        ):
            with self.assertRaises(TypeError):
                call()
        group.barrier()

    def test_numbers_that_make_no_sense_are_refused_and_the_group_lives_on(self):
        def body(group):
            data, other = values(0, 2), values(0, 2)
            for call in (
                lambda: group.reduce(data, 2),
                lambda: group.start_reduce(data, -1),
                lambda: group.gather(data, None, 2),
                lambda: group.scatter(None, data, 1 << 32),
                lambda: group.reduce(data, 0, other, reduction=99),
                lambda: group.all_to_all(data, data),
                lambda: group.all_reduce(data, priority="low"),
                lambda: group.start_barrier(priority=7),
                lambda: group.reduce(data, timeout=-1),
            ):
                with self.assertRaises(trireme.InvalidArgumentError):
                    call()
            with self.assertRaises(TypeError):
                group.barrier(urgency="high")
            group.barrier()

        self.ranks(2, body)

    def test_ranks_that_disagree_are_all_told(self):
        def roots(group):
            with self.assertRaises(trireme.MismatchError) as caught:
                group.reduce(values(0, 4), int(group.rank == 2))
            self.assertEqual(caught.exception.operation, "reduce")
            with self.assertRaises(trireme.MismatchError):
                group.barrier()

        def counts(group):
            expected = 1 + group.rank  # each gives the other one element
            with self.assertRaises(trireme.MismatchError):
                group.all_to_all_v(values(0, 2), [1, 1], empty(2 * expected), [expected] * 2)

        self.ranks(3, roots)
        self.ranks(2, counts)


if __name__ == "__main__":
    unittest.main()
