using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Groups made of ranks of a group.</summary>
    internal static class SubgroupTests
    {
        [Test]
        public static void A_split_groups_by_color_and_orders_by_key()
        {
            foreach (int world in Ranks.Worlds)
            {
                Ranks.RunAndLeaveTogether(world, communicator =>
                {
                    int rank = communicator.Rank;
                    Check.Same(
                        Enumerable.Range(0, world).ToArray(), communicator.Ranks, "own ranks");
                    int? color = rank == 0 && world > 2 ? (int?)null : rank % 2;
                    Communicator child = communicator.Split(color, -rank, "half");
                    if (color == null)
                    {
                        Check.That(child == null, "no color, no group");
                        return;
                    }

                    int[] expected = Enumerable.Range(0, world)
                        .Where(r => r % 2 == color && !(r == 0 && world > 2))
                        .Reverse().ToArray();
                    CheckMembers(expected, child, rank);
                });
            }
        }

        [Test]
        public static void A_subgroup_has_the_order_of_its_list_and_a_duplicate_all_ranks()
        {
            Ranks.RunAndLeaveTogether(4, communicator =>
            {
                int[] list = { 3, 0, 2 };
                Communicator child = communicator.Subgroup(list, timeout: Ranks.Patience);
                if (communicator.Rank == 1)
                {
                    Check.That(child == null, "rank 1 is not in the list");
                }
                else
                {
                    CheckMembers(list, child, communicator.Rank);
                }

                CheckMembers(new[] { 0, 1, 2, 3 }, communicator.Duplicate(), communicator.Rank);
            });
        }

        [Test]
        public static void A_failed_parent_ends_its_child()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                Communicator child = communicator.Duplicate();
                child.Barrier();
                if (communicator.Rank == 0)
                {
                    communicator.Abort("the parent");
                }

                Check.Throws<AbortedException>(() => communicator.Barrier());
                Check.Throws<AbortedException>(() => { while (true) child.Barrier(); });
                CheckMembers(new[] { 0, 1 }, child.Shrink(), communicator.Rank);
            });
        }

        [Test]
        public static void Lists_that_differ_are_a_mismatch_on_all_ranks()
        {
            Ranks.RunAndLeaveTogether(3, communicator =>
            {
                Check.Throws<MismatchException>(
                    () => communicator.Subgroup(new[] { 0, 1 + communicator.Rank % 2 }));
            });
        }

        [Test]
        public static void Wrong_arguments_are_refused()
        {
            using (Communicator alone = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                Check.Throws<ArgumentNullException>(() => alone.Subgroup(null));
                Check.Throws<InvalidArgumentException>(() => alone.Subgroup(new int[0]));
                Check.Throws<InvalidArgumentException>(() => alone.Subgroup(new[] { 1 }));
                Check.Throws<InvalidArgumentException>(() => alone.Subgroup(new[] { 0, 0 }));
                Check.Throws<ArgumentOutOfRangeException>(() => alone.Split(-1));
                Check.Throws<InvalidArgumentException>(
                    () => alone.Duplicate(new string('n', 64)));
                Check.Throws<ArgumentOutOfRangeException>(
                    () => alone.Duplicate(timeout: TimeSpan.FromSeconds(-1)));
                alone.Dispose();
                Check.Throws<ObjectDisposedException>(() => alone.Duplicate());
            }
        }

        [Test]
        public static void An_aborted_group_agrees_and_shrinks()
        {
            Ranks.RunAndLeaveTogether(3, communicator =>
            {
                if (communicator.Rank == 2)
                {
                    communicator.Abort("revoked");
                }

                Check.Throws<AbortedException>(() => communicator.Barrier());
                Check.Equal(6ul, communicator.Agree(6ul + (ulong)(communicator.Rank % 2)), "flags");
                Check.Equal(
                    ulong.MaxValue, communicator.Agree(ulong.MaxValue, Ranks.Patience),
                        "all flags");
                CheckMembers(new[] { 0, 1, 2 }, communicator.Shrink("new"), communicator.Rank);
            });
        }

        [Test]
        public static void The_others_go_on_without_one_that_left()
        {
            Ranks.RunAndLeaveTogether(4, communicator =>
            {
                int rank = communicator.Rank;
                communicator.Agree(1); // all have joined
                if (rank == 1)
                {
                    communicator.Dispose();
                    Check.Throws<ObjectDisposedException>(() => communicator.Agree(1));
                    return;
                }

                Check.Throws<PeerLostException>(() => communicator.Barrier());
                CheckMembers(new[] { 0, 2, 3 }, communicator.Shrink(), rank);
            });
        }

        // Lets the ranks say who they are, and leaves the child.
        private static void CheckMembers(int[] expected, Communicator child, int own)
        {
            using (child)
            {
                Check.Same(expected, child.Ranks, "ranks of the child");
                var seen = new int[child.WorldSize];
                child.AllGather<int>(new[] { own }, seen);
                Check.Same(expected, seen, "ranks that answered");
            }
        }
    }
}
