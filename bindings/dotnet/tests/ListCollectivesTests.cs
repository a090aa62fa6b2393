using System;
using System.Collections.Generic;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>
    /// Lists of buffers and operations into new arrays against plain loops, and every way to call
    /// them wrongly.
    /// </summary>
    internal static class ListCollectivesTests
    {
        private static readonly int[] Lengths = { 3, 0, 1, 5000, 7 };

        [Test]
        public static void All_reduce_of_a_list_is_that_of_its_buffers()
        {
            Everywhere(c =>
            {
                long[][] wanted = Lists(n => n, (n, i) => Enumerable.Range(0, c.WorldSize).Sum(
                    r => Value(r, n, i)));
                long[][] mine = Lists(n => n, (n, i) => Value(c.Rank, n, i));
                long[][] receive = Lists(n => n, (n, i) => -1);
                c.AllReduceList(mine, receive);
                SameLists(wanted, receive, "blocking");
                receive = Lists(n => n, (n, i) => -1);
                c.StartAllReduceList(mine, receive).Wait();
                SameLists(wanted, receive, "started");
                c.AllReduceList(Memories(receive), Reduction.Max);
                SameLists(wanted, receive, "the greatest of equals");
                c.StartAllReduceList(
                    mine.Select(a => (ReadOnlyMemory<long>)a).ToList(), Memories(receive)).Wait();
                SameLists(wanted, receive, "memories");
                SameLists(Lists(n => n, (n, i) => Value(c.Rank, n, i)), mine, "what was sent");
                c.AllReduceList(mine);
                SameLists(wanted, mine, "in place");
                mine = Lists(n => n, (n, i) => Value(c.Rank, n, i));
                c.StartAllReduceList(mine).Wait();
                SameLists(wanted, mine, "started in place");
            });
        }

        [Test]
        public static void Lists_of_blocks_are_scattered_and_gathered()
        {
            Everywhere(c =>
            {
                int world = c.WorldSize;
                long[][] send = Lists(n => n * world, (n, i) => Value(c.Rank, n, i));
                long[][] wanted = Lists(n => n, (n, i) => Enumerable.Range(0, world).Sum(
                    r => Value(r, n, c.Rank * n + i)));
                long[][] receive = Lists(n => n, (n, i) => -1);
                c.ReduceScatterList(send, receive);
                SameLists(wanted, receive, "reduced");
                receive = Lists(n => n, (n, i) => -1);
                c.StartReduceScatterList(send, receive).Wait();
                SameLists(wanted, receive, "reduced, started");

                send = Lists(n => n, (n, i) => Value(c.Rank, n, i));
                wanted = Lists(n => n * world, (n, i) => Value(i / n, n, i % n));
                receive = Lists(n => n * world, (n, i) => -1);
                c.AllGatherList(send, receive);
                SameLists(wanted, receive, "gathered");
                receive = Lists(n => n * world, (n, i) => -1);
                c.StartAllGatherList(send, receive).Wait();
                SameLists(wanted, receive, "gathered, started");

                for (int root = 0; root < world; ++root)
                {
                    long[][] data = Lists(n => n, (n, i) => Value(c.Rank, n, i));
                    c.BroadcastList(data, root);
                    SameLists(Lists(n => n, (n, i) => Value(root, n, i)), data, "broadcast");
                    data = Lists(n => n, (n, i) => Value(c.Rank, n, i));
                    c.StartBroadcastList(Memories(data), root).Wait();
                    SameLists(Lists(n => n, (n, i) => Value(root, n, i)), data, "started");
                }

                c.AllReduceList(new float[0][]);
                c.StartBroadcastList(new float[0][], 0).Wait();
            });
        }

        [Test]
        public static void Broadcast_to_array_tells_how_much_there_is()
        {
            Everywhere(c =>
            {
                for (int root = 0; root < c.WorldSize; ++root)
                {
                    foreach (int length in new[] { 0, 1, 1001 })
                    {
                        long[] wanted = Values(root, length, length);
                        long[] given = c.Rank == root ? wanted : null;
                        long[] got = c.BroadcastToArray(given, root);
                        Check.Same(wanted, got, "from " + root);
                        Check.That(
                            length == 0 || !ReferenceEquals(given, got), "an array of its own");
                    }
                }

                var bytes = new OperationOptions { ElementType = ElementType.Bytes };
                DateTime[] times = c.BroadcastToArray(
                    c.Rank == 0 ? new[] { new DateTime(1), new DateTime(2) } : null, 0,
                    bytes);
                Check.Equal(2L, times[1].Ticks, "any struct");
            });
        }

        [Test]
        public static void Scatter_to_array_gives_blocks_of_any_length()
        {
            Everywhere(c =>
            {
                int world = c.WorldSize;
                for (int root = 0; root < world; ++root)
                {
                    int[] counts = Enumerable.Range(0, world).Select(r => (3 * r + root) % 5)
                        .ToArray();
                    long[] whole = Values(root, 9, counts.Sum());
                    bool mine = c.Rank == root;
                    Check.Same(
                        whole.Skip(counts.Take(c.Rank).Sum()).Take(counts[c.Rank]).ToArray(),
                        c.ScatterToArray(mine ? whole : null, mine ? counts : null, root),
                        "blocks");
                    whole = Values(root, 9, 2 * world + 1); // rank 0 gets one more
                    Check.Same(
                        whole.Skip(2 * c.Rank + Math.Min(c.Rank, 1))
                            .Take(c.Rank == 0 ? 3 : 2).ToArray(),
                        c.ScatterToArray(mine ? whole : null, root), "even blocks");
                }
            });
        }

        [Test]
        public static void All_gather_to_array_joins_blocks_of_unknown_lengths()
        {
            Everywhere(c =>
            {
                int[] lengths = Enumerable.Range(0, c.WorldSize).Select(r => 3 * r % 4).ToArray();
                long[] wanted = Enumerable.Range(0, c.WorldSize)
                    .SelectMany(r => Values(r, 1, lengths[r])).ToArray();
                int[] counts;
                long[] mine = Values(c.Rank, 1, lengths[c.Rank]);
                Check.Same(wanted, c.AllGatherToArray(mine, out counts), "joined");
                Check.Same(lengths, counts, "counts");
                Check.Same(wanted, c.AllGatherToArray(mine), "joined again");
                var bytes = new OperationOptions { ElementType = ElementType.Bytes };
                Check.Same(wanted, c.AllGatherToArray<long>(mine, out counts, bytes), "as bytes");
                Check.Same(lengths, counts, "counts of elements, not bytes");
            });
        }

        [Test]
        public static void Lists_that_do_not_fit_are_refused_before_anything_is_sent()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var one = new float[1];
                var two = new float[2];
                var four = new float[4];
                Check.Throws<ArgumentNullException>(() => c.AllReduceList((float[][])null));
                Check.Throws<ArgumentNullException>(() => c.AllReduceList(new[] { one, null }));
                Check.Throws<ArgumentNullException>(() => c.StartBroadcastList((float[][])null, 0));
                Check.Throws<ArgumentException>(
                    () => c.AllReduceList(new[] { one }, new[] { new float[1], two }));
                Check.Throws<ArgumentException>(
                    () => c.StartAllReduceList(new[] { one, two }, new[] { one, one }));
                Check.Throws<ArgumentException>(
                    () => c.ReduceScatterList(new[] { four }, new[] { one }));
                Check.Throws<ArgumentException>(
                    () => c.StartReduceScatterList(new[] { one }, new[] { new float[1] }));
                Check.Throws<ArgumentException>(
                    () => c.AllGatherList(new[] { two }, new[] { new float[2] }));
                Check.Throws<InvalidArgumentException>(
                    () => c.AllReduceList(new[] { one }, (Reduction)99));
                Check.Throws<InvalidArgumentException>(() => c.BroadcastList(new[] { one }, 2));
                Check.Throws<InvalidArgumentException>(
                    () => c.StartBroadcastList(new[] { one }, -1));
                Check.Throws<InvalidArgumentException>(
                    () => c.AllReduceList(new[] { four }, new[] { four.AsMemory(0, 4).ToArray() },
                        Reduction.Sum, new OperationOptions { Scale = 2 }));
                c.Barrier();
            });
        }

        [Test]
        public static void What_only_the_root_has_is_asked_of_the_root()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var three = new float[3];
                Check.Throws<ArgumentNullException>(
                    () => c.BroadcastToArray((float[])null, c.Rank));
                Check.Throws<ArgumentNullException>(
                    () => c.ScatterToArray((float[])null, c.Rank));
                Check.Throws<ArgumentNullException>(() => c.ScatterToArray(three, null, c.Rank));
                Check.Throws<ArgumentNullException>(() => c.AllGatherToArray((float[])null));
                Check.Throws<ArgumentException>(
                    () => c.ScatterToArray(three, new[] { 3 }, c.Rank));
                Check.Throws<ArgumentException>(
                    () => c.ScatterToArray(three, new[] { 1, 1 }, c.Rank));
                Check.Throws<ArgumentException>(
                    () => c.ScatterToArray(three, new[] { 4, -1 }, c.Rank));
                Check.Throws<InvalidArgumentException>(
                    () => c.BroadcastToArray((float[])null, 2));
                Check.Throws<InvalidArgumentException>(
                    () => c.ScatterToArray((float[])null, -1));
                Check.Throws<NotSupportedException>(
                    () => c.AllGatherToArray(new[] { 'c' }));
                c.Barrier();
            });
        }

        [Test]
        public static void Ranks_that_disagree_are_all_told()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                var list = new List<Memory<float>> { new float[3], new float[3] };
                if (c.Rank == 1)
                {
                    list.Add(new float[3]);
                }

                Check.Throws<MismatchException>(() => c.AllReduceList(list));
                Check.Throws<MismatchException>(() => c.AllGatherToArray(new float[1]));
            });
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var failure = Check.Throws<MismatchException>(() =>
                {
                    if (c.Rank == 0)
                    {
                        c.AllGatherToArray(new float[2]);
                    }
                    else
                    {
                        c.AllGatherToArray(new int[2]);
                    }
                });
                Check.That(failure.Message.Length > 0, "a reason");
            });
        }

        private static void Everywhere(Action<Communicator> body)
        {
            foreach (int world in Ranks.Worlds)
            {
                Ranks.RunAndLeaveTogether(world, body);
            }
        }

        private static long Value(int rank, int seed, int i)
        {
            return (rank + 1) * 1000 + (i + seed) * 7 % 113;
        }

        private static long[] Values(int rank, int seed, int length)
        {
            return Enumerable.Range(0, length).Select(i => Value(rank, seed, i)).ToArray();
        }

        /// <summary>An array for each of Lengths, as long as told, of elements as told.</summary>
        private static long[][] Lists(Func<int, int> length, Func<int, int, long> element)
        {
            return Lengths.Select(
                n => Enumerable.Range(0, length(n)).Select(i => element(n, i)).ToArray())
                .ToArray();
        }

        private static List<Memory<long>> Memories(long[][] arrays)
        {
            return arrays.Select(array => (Memory<long>)array).ToList();
        }

        private static void SameLists(long[][] wanted, long[][] got, string what)
        {
            for (int i = 0; i < wanted.Length; ++i)
            {
                Check.Same(wanted[i], got[i], what + " buffer " + i);
            }
        }
    }
}
