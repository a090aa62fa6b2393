"""Groups made of ranks of a group."""

import array
import unittest

from support import WORLD_SIZES, TestCase, run_ranks, trireme


def members(group):
    """The members of a group, told by its ranks themselves; None for no group."""
    if group is None:
        return None
    with group:
        own = array.array("i", [group.ranks[group.rank]])
        seen = array.array("i", [0] * group.world_size)
        group.all_gather(own, seen)
        assert seen.tolist() == group.ranks
        return seen.tolist()


class SubgroupTest(TestCase):
    def test_a_created_group_has_its_own_ranks(self):
        for ranks in self.ranks(3, lambda group: group.ranks):
            self.assertEqual(ranks, [0, 1, 2])

    def test_a_split_groups_by_color_and_orders_by_key(self):
        def body(group):
            color = None if group.rank == 0 and group.world_size > 2 else group.rank % 2
            return members(group.split(color, -group.rank, name="half"))

        for world_size in WORLD_SIZES:
            colors = [None if r == 0 and world_size > 2 else r % 2 for r in range(world_size)]
            for rank, found in enumerate(self.ranks(world_size, body)):
                want = [r for r in reversed(range(world_size)) if colors[r] == colors[rank]]
                self.assertEqual(found, None if colors[rank] is None else want)

    def test_a_subgroup_has_the_order_of_its_list(self):
        def body(group):
            return members(group.subgroup([3, 0, 2], timeout=100))

        self.assertEqual(self.ranks(4, body), [[3, 0, 2], None, [3, 0, 2], [3, 0, 2]])

    def test_a_duplicate_outlives_its_parent(self):
        def body(group):
            twin = group.duplicate()
            twin.barrier()
            group.close()
            return members(twin)

        self.assertEqual(self.ranks(2, body), [[0, 1]] * 2)

    def test_a_duplicate_fails_with_its_parent(self):
        def body(group):
            twin = group.duplicate()
            twin.barrier()
            if group.rank == 1:
                group.abort("the parent")
            with self.assertRaises(trireme.AbortedError):
                group.barrier()
            with self.assertRaisesRegex(trireme.AbortedError, "the parent"):
                while True:
                    twin.barrier()

        self.ranks(2, body)

    def test_lists_that_differ_are_a_mismatch_on_all(self):
        for outcome in run_ranks(3, lambda group: group.subgroup([0, 1 + group.rank % 2])):
            self.assertIsInstance(outcome, trireme.MismatchError)

    def test_wrong_arguments_are_refused(self):
        group = self.alone()
        for ranks in ([], [1], [-1], [0, 0], [1 << 40]):
            with self.assertRaises(trireme.InvalidArgumentError):
                group.subgroup(ranks)
        for color in (-1, 1 << 31):
            with self.assertRaises(trireme.InvalidArgumentError):
                group.split(color)
        with self.assertRaises(trireme.InvalidArgumentError):
            group.duplicate(name="n" * 64)
        group.close()
        with self.assertRaises(trireme.InvalidHandleError):
            group.duplicate()


class SurvivorsTest(TestCase):
    def test_a_healthy_group_agrees(self):
        for world_size in WORLD_SIZES:
            want = (1 << 64) - (1 << world_size)
            body = lambda group: group.agree((1 << 64) - 1 - (1 << group.rank))  # noqa: E731
            self.assertEqual(self.ranks(world_size, body), [want] * world_size)

    def test_an_aborted_group_agrees_and_shrinks(self):
        def body(group):
            if group.rank == 2:
                group.abort("revoked")
            with self.assertRaises(trireme.AbortedError):
                group.barrier()
            return group.agree(6 + group.rank % 2, timeout=100), members(group.shrink(name="new"))

        self.assertEqual(self.ranks(3, body), [(6, [0, 1, 2])] * 3)

    def test_the_others_go_on_without_one_that_left(self):
        def body(group):
            group.agree(1)  # all have joined
            if group.rank == 1:
                group.close()
                return None
            with self.assertRaises(trireme.PeerLostError):
                group.barrier()
            return members(group.shrink())

        self.assertEqual(self.ranks(4, body), [[0, 2, 3], None, [0, 2, 3], [0, 2, 3]])

    def test_wrong_arguments_are_refused(self):
        group = self.alone()
        for flags in (-1, 1 << 64):
            with self.assertRaises(trireme.InvalidArgumentError):
                group.agree(flags)
        with self.assertRaises(trireme.InvalidArgumentError):
            group.shrink(name="n" * 64)


if __name__ == "__main__":
    unittest.main()
