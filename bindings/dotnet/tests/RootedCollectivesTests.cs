using System;
using System.Buffers;
using System.Linq;
using System.Runtime.InteropServices;
using System.Threading;

namespace Trireme.Tests
{
    /// <summary>
    /// Reduce, gather, scatter and all-to-all against plain loops, urgent operations, and every way
    /// to call them wrongly.
    /// </summary>
    internal static class RootedCollectivesTests
    {
        private static readonly int[] Lengths = { 0, 1, 3, 1001 };

        /// <summary>Counts its pins.</summary>
        private sealed class Watched : MemoryManager<float>
        {
            private readonly float[] array = new float[4];
            private GCHandle handle;
            private int pins;

            public int Pins
            {
                get { return Volatile.Read(ref pins); }
            }

            public override Span<float> GetSpan()
            {
                return array;
            }

            public override unsafe MemoryHandle Pin(int elementIndex = 0)
            {
                if (Interlocked.Increment(ref pins) == 1)
                {
                    handle = GCHandle.Alloc(array, GCHandleType.Pinned);
                }

                float* first = (float*)handle.AddrOfPinnedObject();
                return new MemoryHandle(first + elementIndex, default(GCHandle), this);
            }

            public override void Unpin()
            {
                if (Interlocked.Decrement(ref pins) == 0)
                {
                    handle.Free();
                }
            }

            protected override void Dispose(bool disposing)
            {
            }
        }

        [Test]
        public static void Reduce_gives_the_root_the_result_and_leaves_the_others_alone()
        {
            OnEveryRoot((c, root) =>
            {
                foreach (int length in Lengths)
                {
                    int[] send = Values(c.Rank, length);
                    int[] wanted = Enumerable.Range(0, length)
                        .Select(i => Enumerable.Range(0, c.WorldSize).Sum(r => Value(r, i)))
                        .ToArray();
                    int[] untouched = Enumerable.Repeat(-7, length).ToArray();
                    int[] receive = untouched.ToArray();
                    c.Reduce(send, receive, root);
                    Check.Same(c.Rank == root ? wanted : untouched, receive, "received");
                    c.Reduce(send, c.Rank == root ? receive : null, root);
                    c.StartReduce(send, c.Rank == root ? receive : null, root).Wait();
                    Check.Same(c.Rank == root ? wanted : untouched, receive, "started");
                    Check.Same(Values(c.Rank, length), send, "what was sent");
                    c.Reduce<int>(send.AsSpan(), root);
                    Check.Same(c.Rank == root ? wanted : Values(c.Rank, length), send, "in place");
                }

                int[] most = { c.Rank, -c.Rank };
                c.StartReduce(most, root, Reduction.Max).Wait();
                int last = c.WorldSize - 1;
                Check.Same(c.Rank == root ? new[] { last, 0 } : new[] { c.Rank, -c.Rank }, most);
            });
        }

        [Test]
        public static void Gather_joins_the_blocks_on_the_root()
        {
            OnEveryRoot((c, root) =>
            {
                foreach (int length in Lengths)
                {
                    int[] wanted = c.Rank == root
                        ? Enumerable.Range(0, c.WorldSize).SelectMany(r => Values(r, length))
                            .ToArray()
                        : null;
                    int[] receive = wanted == null ? null : new int[wanted.Length];
                    c.Gather(Values(c.Rank, length), receive, root);
                    SameOrNull(wanted, receive, "gathered");
                    receive = wanted == null ? null : new int[wanted.Length];
                    c.StartGather(Values(c.Rank, length), receive, root).Wait();
                    SameOrNull(wanted, receive, "started");
                }

                int[] counts = Counts(c.WorldSize);
                int[] all = c.Rank == root
                    ? Enumerable.Range(0, c.WorldSize).SelectMany(r => Values(r, counts[r]))
                        .ToArray()
                    : null;
                int[] joined = all == null ? null : new int[all.Length];
                c.Gather(Values(c.Rank, counts[c.Rank]), joined, counts, root);
                SameOrNull(all, joined, "unequal");
                joined = all == null ? null : new int[all.Length];
                c.StartGather(Values(c.Rank, counts[c.Rank]), joined, counts, root).Wait();
                SameOrNull(all, joined, "started unequal");
            });
        }

        [Test]
        public static void Scatter_gives_rank_r_block_r_of_the_root()
        {
            OnEveryRoot((c, root) =>
            {
                foreach (int length in Lengths)
                {
                    int[] send =
                        c.Rank == root ? Values(root, length * c.WorldSize) : null;
                    int[] wanted = Values(root, length * c.WorldSize)
                        .Skip(length * c.Rank).Take(length).ToArray();
                    var receive = new int[length];
                    c.Scatter(send, receive, root);
                    Check.Same(wanted, receive, "scattered");
                    receive = new int[length];
                    c.StartScatter(send, receive, root).Wait();
                    Check.Same(wanted, receive, "started");
                }

                int[] counts = Counts(c.WorldSize);
                int[] blocks = c.Rank == root ? Values(root, counts.Sum()) : null;
                int[] mine = Values(root, counts.Sum())
                    .Skip(counts.Take(c.Rank).Sum()).Take(counts[c.Rank]).ToArray();
                var block = new int[mine.Length];
                c.Scatter(blocks, block, counts, root);
                Check.Same(mine, block, "unequal");
                block = new int[mine.Length];
                c.StartScatter(blocks, block, counts, root).Wait();
                Check.Same(mine, block, "started unequal");
            });
        }

        [Test]
        public static void All_to_all_transposes_blocks()
        {
            OnEveryRoot((c, unused) =>
            {
                int world = c.WorldSize;
                foreach (int length in Lengths)
                {
                    int[] wanted = Enumerable.Range(0, world).SelectMany(
                        r => Values(r, length * world).Skip(length * c.Rank).Take(length))
                        .ToArray();
                    var receive = new int[length * world];
                    c.AllToAll(Values(c.Rank, length * world), receive);
                    Check.Same(wanted, receive, "blocks of " + length);
                    receive = new int[length * world];
                    c.StartAllToAll(Values(c.Rank, length * world), receive).Wait();
                    Check.Same(wanted, receive, "started blocks of " + length);
                }

                // Rank a sends (a + 2 b) % 4 elements to rank b.
                Func<int, int, int> count = (from, to) => (from + 2 * to) % 4;
                int[] given = Enumerable.Range(0, world).Select(r => count(c.Rank, r)).ToArray();
                int[] taken = Enumerable.Range(0, world).Select(r => count(r, c.Rank)).ToArray();
                int[] want = Enumerable.Range(0, world).SelectMany(
                    r => Values(r, Enumerable.Range(0, world).Sum(to => count(r, to)))
                        .Skip(Enumerable.Range(0, c.Rank).Sum(to => count(r, to)))
                        .Take(taken[r])).ToArray();
                var got = new int[want.Length];
                c.AllToAll(Values(c.Rank, given.Sum()), given, got, taken);
                Check.Same(want, got, "unequal");
                got = new int[want.Length];
                c.StartAllToAll(Values(c.Rank, given.Sum()), given, got, taken).Wait();
                Check.Same(want, got, "started unequal");
            });
        }

        [Test]
        public static void Arrays_need_no_type_argument()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                double[] data = { c.Rank, 1 };
                var twice = new double[4];
                c.AllReduce(data);
                Check.Same(new[] { 1.0, 2 }, data);
                c.StartAllGather(data, twice).Wait();
                Check.Same(new[] { 1.0, 2, 1, 2 }, twice);
                c.ReduceScatter(twice, data, Reduction.Average);
                Check.Same(new[] { 1.0, 2 }, data);
                data[0] = c.Rank;
                c.Broadcast(data, 1);
                Check.Equal(1.0, data[0]);
                using (Request sent = c.StartSend(data, 1 - c.Rank))
                {
                    c.Receive(new double[2], 1 - c.Rank);
                    sent.Wait();
                }

                Check.Throws<ArgumentNullException>(() => c.AllReduce((double[])null));
                Check.Throws<ArgumentNullException>(() => c.Reduce((double[])null, 0));
                Check.Throws<ArgumentNullException>(() => c.StartBroadcast((double[])null, 0));
                Check.Throws<ArgumentNullException>(() => c.Gather(data, null, null, 0));
                Check.Throws<ArgumentNullException>(() => c.Scatter(data, null, 0));
                c.Barrier();
            });
        }

        [Test]
        public static void Urgent_operations_overtake_a_normal_one_that_waits()
        {
            using (var overtaken = new ManualResetEventSlim())
            {
                var urgent = new OperationOptions { Priority = Priority.High };
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    var normal = new[] { 1 };
                    if (c.Rank == 0)
                    {
                        using (Request waits = c.StartAllReduce(normal))
                        {
                            var data = new[] { 10 };
                            c.AllReduce(data, Reduction.Sum, urgent);
                            Check.Equal(20, data[0], "the urgent sum");
                            Check.That(!waits.Test(), "the normal one still waits");
                            overtaken.Set();
                            waits.Wait();
                        }
                    }
                    else
                    {
                        var data = new[] { 10 };
                        c.StartAllReduce(data, Reduction.Sum, urgent).Wait();
                        Check.That(overtaken.Wait(Ranks.Patience), "rank 0 is through");
                        c.AllReduce(normal);
                    }

                    Check.Equal(2, normal[0], "the normal sum");
                });
            }
        }

        [Test]
        public static void Wrong_lengths_are_refused_before_anything_is_sent()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var two = new int[2];
                var three = new int[3];
                var four = new int[4];
                Check.Throws<ArgumentException>(() => c.Reduce(two, three, c.Rank));
                Check.Throws<ArgumentException>(() => c.StartReduce(two, null, c.Rank));
                Check.Throws<ArgumentException>(() => c.Gather(two, three, c.Rank));
                Check.Throws<ArgumentException>(() => c.StartGather(two, two, c.Rank));
                Check.Throws<ArgumentException>(() => c.Gather(two, four, new[] { 2 }, 0));
                Check.Throws<ArgumentException>(() => c.Gather(two, four, new[] { 2, 3 }, c.Rank));
                Check.Throws<ArgumentException>(
                    () => c.Gather(two, four, new[] { 3, 3 }, 1 - c.Rank));
                Check.Throws<ArgumentException>(() => c.Scatter(three, two, c.Rank));
                Check.Throws<ArgumentException>(() => c.StartScatter(null, two, c.Rank));
                Check.Throws<ArgumentException>(
                    () => c.Scatter(four, two, new[] { 5, -1 }, c.Rank));
                Check.Throws<ArgumentException>(() => c.StartScatter(four, two, new[] { 4, 4 }, 0));
                Check.Throws<ArgumentException>(() => c.AllToAll(four, two));
                Check.Throws<ArgumentException>(() => c.AllToAll(three, new int[3]));
                Check.Throws<ArgumentException>(() => c.StartAllToAll(three, new int[3]));
                Check.Throws<ArgumentException>(
                    () => c.AllToAll(three, new[] { 1, 1 }, two, new[] { 1, 1 }));
                Check.Throws<ArgumentException>(
                    () => c.StartAllToAll(three, new[] { 1, 2 }, two, new[] { 2 }));
                c.AllToAll(two, four.AsSpan(0, 2).ToArray());
            });
        }

        [Test]
        public static void What_makes_no_sense_is_refused_and_the_group_goes_on()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var data = new float[2];
                var other = new float[2];
                Check.Throws<InvalidArgumentException>(() => c.Reduce(data, 2));
                Check.Throws<InvalidArgumentException>(() => c.StartReduce(data, -1));
                Check.Throws<InvalidArgumentException>(() => c.Gather(data, null, 2));
                Check.Throws<InvalidArgumentException>(() => c.StartScatter(null, data, -1));
                Check.Throws<InvalidArgumentException>(
                    () => c.Reduce(data, other, 0, (Reduction)99));
                Check.Throws<InvalidArgumentException>(() => c.AllToAll(data, data));
                var strange = new OperationOptions { Priority = (Priority)7 };
                Check.Throws<InvalidArgumentException>(
                    () => c.AllReduce(data, Reduction.Sum, strange));
                Check.Throws<InvalidArgumentException>(() => c.StartBarrier(strange));
                c.Barrier();
            });
        }

        [Test]
        public static void Ranks_that_disagree_are_all_told()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                var failure = Check.Throws<MismatchException>(
                    () => c.Reduce(new int[4], new int[4], c.Rank == 2 ? 1 : 0));
                Check.Equal("reduce", failure.Operation);
                Check.Throws<MismatchException>(() => c.Gather(new int[1], new int[3], 0));
            });
            Ranks.RunAndLeaveTogether(2, c =>
            {
                // Each gives the other one element; rank 1 expects two.
                int expected = c.Rank == 1 ? 2 : 1;
                var failure = Check.Throws<MismatchException>(() => c.AllToAll(
                    new int[2], new[] { 1, 1 }, new int[2 * expected],
                    new[] { expected, expected }));
                Check.Contains("2", failure.Message);
            });
        }

        [Test]
        public static void A_start_that_is_refused_leaves_nothing_pinned()
        {
            var memory = new Watched();
            Communicator closed = Communicator.Create(0, 1, Ranks.NewRendezvous(), Ranks.Patience);
            using (Communicator open =
                       Communicator.Create(0, 1, Ranks.NewRendezvous(), Ranks.Patience))
            {
                open.StartReduce(memory.Memory, 0).Wait();
                Check.That(
                    SpinWait.SpinUntil(() => memory.Pins == 0, Ranks.Patience), "done");
                Check.Throws<InvalidArgumentException>(() => open.StartReduce(memory.Memory, 1));
                Check.Equal(0, memory.Pins, "after a refusal");
                var buffer = new Buffer<float>(open, 4);
                Memory<float> gone = buffer.Memory;
                buffer.Dispose();
                Check.Throws<ObjectDisposedException>(
                    () => open.StartReduce(memory.Memory, gone, 0));
                Check.Equal(0, memory.Pins, "beside memory that is gone");
                open.Barrier();
            }

            closed.Dispose();
            Check.Throws<ObjectDisposedException>(() => closed.StartReduce(memory.Memory, 0));
            Check.Equal(0, memory.Pins, "after the end of the communicator");
        }

        private static void OnEveryRoot(Action<Communicator, int> body)
        {
            foreach (int world in Ranks.Worlds)
            {
                Ranks.RunAndLeaveTogether(world, c =>
                {
                    for (int root = 0; root < world; ++root)
                    {
                        body(c, root);
                    }
                });
            }
        }

        private static int Value(int rank, int i)
        {
            return (rank + 1) * 1000 + i * 7 % 113;
        }

        private static int[] Values(int rank, int length)
        {
            return Enumerable.Range(0, length).Select(i => Value(rank, i)).ToArray();
        }

        private static int[] Counts(int world)
        {
            return Enumerable.Range(0, world).Select(r => (r * 3 + 1) % 5).ToArray();
        }

        private static void SameOrNull(int[] wanted, int[] got, string what)
        {
            if (wanted != null)
            {
                Check.Same(wanted, got, what);
            }
        }
    }
}
