using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;

namespace Trireme.Tests
{
    /// <summary>Operations that begin and end together, and blocks that are left by an exception.
    /// </summary>
    internal static class BatchTests
    {
        private static readonly int[] Lengths = { 0, 1, 5, 3001 };

        private static int Value(int rank, int i)
        {
            return 1000 * (rank + 1) + i % 89;
        }

        private static int[] Values(int rank, int length, int from = 0)
        {
            return Enumerable.Range(from, length).Select(i => Value(rank, i)).ToArray();
        }

        private static int[] Sums(int world, int length, int from = 0)
        {
            return Enumerable.Range(from, length).Select(
                i => Enumerable.Range(0, world).Sum(rank => Value(rank, i))).ToArray();
        }

        private static int[] Joined(IEnumerable<int[]> parts)
        {
            return parts.SelectMany(part => part).ToArray();
        }

        private static void Everywhere(Action<Communicator> function)
        {
            foreach (int worldSize in Ranks.Worlds)
            {
                Ranks.RunAndLeaveTogether(worldSize, function);
            }
        }

        /// <summary>
        /// The thread is in no open batch: inside one this call would be an invalid state.
        /// </summary>
        private static void CheckClosed(Communicator c)
        {
            Check.Same(new[] { 7 }, c.BroadcastToArray(c.Rank == 0 ? new[] { 7 } : null, 0));
        }

        [Test]
        public static void Sends_and_receives_of_a_group_need_no_order()
        {
            Everywhere(c =>
            {
                foreach (int length in Lengths)
                {
                    var received = new int[c.WorldSize][];
                    using (Batch group = c.Batch())
                    {
                        for (int peer = 0; peer < c.WorldSize; ++peer)
                        {
                            received[peer] = new int[length];
                            group.Receive<int>(received[peer], peer, 4);
                        }

                        for (int peer = 0; peer < c.WorldSize; ++peer)
                        {
                            group.Send<int>(Values(c.Rank, length, peer), peer, 4);
                        }

                        group.End();
                    }

                    for (int peer = 0; peer < c.WorldSize; ++peer)
                    {
                        Check.Same(Values(peer, length, c.Rank), received[peer], "of " + peer);
                    }
                }

                CheckClosed(c);
            });
        }

        [Test]
        public static void Every_operation_may_be_in_a_group()
        {
            Everywhere(c =>
            {
                foreach (int length in Lengths)
                {
                    AllOf(c, length);
                }

                CheckClosed(c);
            });
        }

        private static void AllOf(Communicator c, int n)
        {
            int me = c.Rank;
            int world = c.WorldSize;
            int root = n % world;
            int next = (me + 1) % world;
            int last = (me + world - 1) % world;
            int[] ranks = Enumerable.Range(0, world).ToArray();
            int[] counts = ranks.Select(rank => (n + rank) % 4).ToArray();
            int own = counts[me];
            int total = counts.Sum();
            int before = counts.Take(me).Sum();
            int[] mine = Values(me, n);
            int[] blocks = Values(me, n * world);
            bool first = me == root;
            int[] inPlace = Values(me, n);
            var sum = new int[n];
            var scattered = new int[n];
            var scatteredV = new int[own];
            var gathered = new int[n * world];
            var gatheredV = new int[total];
            var exchanged = new int[n * world];
            var exchangedV = new int[own * world];
            int[] told = Values(me, n);
            int[] reducedInPlace = Values(me, n);
            var reduced = new int[first ? n : 0];
            var rooted = new int[first ? n * world : 0];
            var rootedV = new int[first ? total : 0];
            var given = new int[n];
            var givenV = new int[own];
            var passed = new int[n];
            int[][] list = { Values(me, n), Values(me, 2) };
            int[][] listSum = { new int[n], new int[2] };
            int[][] listAll = { new int[n * world], new int[2 * world] };
            int[][] listTold = { Values(me, n), Values(me, 2) };
            using (Batch group = c.Batch())
            {
                group.AllReduce<int>(inPlace).AllReduce<int>(mine, sum);
                group.ReduceScatter<int>(blocks, scattered);
                group.ReduceScatter<int>(Values(me, total), scatteredV, counts);
                group.AllGather<int>(mine, gathered);
                group.AllGather<int>(Values(me, own), gatheredV, counts);
                group.AllToAll<int>(blocks, exchanged);
                group.AllToAll<int>(
                    Values(me, total), counts, exchangedV, ranks.Select(r => own).ToArray());
                group.Broadcast<int>(told, root).Barrier();
                group.Reduce<int>(reducedInPlace, root).Reduce<int>(mine, reduced, root);
                group.Gather<int>(mine, rooted, root);
                group.Gather<int>(Values(me, own), rootedV, counts, root);
                group.Scatter<int>(first ? blocks : null, given, root);
                group.Scatter<int>(first ? Values(me, total) : null, givenV, counts, root);
                group.SendReceive<int>(mine, next, 6, passed, last, 6);
                group.AllReduceList(Memories(list));
                group.ReduceScatterList(
                    new ReadOnlyMemory<int>[] { blocks, Values(me, 2 * world) },
                    Memories(listSum));
                group.AllGatherList(
                    new ReadOnlyMemory<int>[] { mine, Values(me, 2) }, Memories(listAll));
                group.BroadcastList(Memories(listTold), root);
                Check.Same(Values(me, n), inPlace, "nothing has begun");
                counts = null; // its copy is in the group
                group.End();
            }

            counts = ranks.Select(rank => (n + rank) % 4).ToArray();
            Check.Same(Sums(world, n), inPlace, "all_reduce");
            Check.Same(Sums(world, n), sum, "all_reduce");
            Check.Same(Sums(world, n, n * me), scattered, "reduce_scatter");
            Check.Same(Sums(world, own, before), scatteredV, "reduce_scatter_v");
            Check.Same(Joined(ranks.Select(r => Values(r, n))), gathered, "all_gather");
            Check.Same(Joined(ranks.Select(r => Values(r, counts[r]))), gatheredV, "v");
            Check.Same(Joined(ranks.Select(r => Values(r, n, n * me))), exchanged, "all_to_all");
            Check.Same(Joined(ranks.Select(r => Values(r, own, before))), exchangedV, "v");
            Check.Same(Values(root, n), told, "broadcast");
            Check.Same(first ? Sums(world, n) : mine, reducedInPlace, "reduce");
            Check.Same(first ? Sums(world, n) : new int[0], reduced, "reduce");
            if (first)
            {
                Check.Same(Joined(ranks.Select(r => Values(r, n))), rooted, "gather");
                Check.Same(Joined(ranks.Select(r => Values(r, counts[r]))), rootedV, "gather_v");
            }

            Check.Same(Values(root, n, n * me), given, "scatter");
            Check.Same(Values(root, own, before), givenV, "scatter_v");
            Check.Same(Values(last, n), passed, "send_receive");
            Check.Same(Sums(world, n), list[0], "all_reduce_list");
            Check.Same(Sums(world, 2), list[1], "all_reduce_list");
            Check.Same(Sums(world, 2, 2 * me), listSum[1], "reduce_scatter_list");
            Check.Same(Joined(ranks.Select(r => Values(r, 2))), listAll[1], "all_gather_list");
            Check.Same(Values(root, n), listTold[0], "broadcast_list");
        }

        private static Memory<int>[] Memories(int[][] arrays)
        {
            return arrays.Select(array => (Memory<int>)array).ToArray();
        }

        [Test]
        public static void Memory_stays_where_it_is_until_the_end()
        {
            // The receives have begun long before the sends; meanwhile the collector compacts.
            Ranks.RunAndLeaveTogether(2, c =>
            {
                const int Count = 200;
                int[][] received = Enumerable.Range(0, Count).Select(i => new int[3]).ToArray();
                if (c.Rank == 0)
                {
                    using (Batch group = c.Batch())
                    {
                        for (int i = 0; i < Count; ++i)
                        {
                            group.Receive<int>(received[i], 1, (ulong)i);
                        }

                        group.End();
                    }

                    for (int i = 0; i < Count; ++i)
                    {
                        Check.Same(Values(1, 3, i), received[i], "message " + i);
                    }

                    return;
                }

                for (int i = 0; i < Count; ++i)
                {
                    if (i % 20 == 0)
                    {
                        GC.Collect();
                    }

                    c.Send<int>(Values(1, 3, i), 0, (ulong)i);
                }
            });
        }

        [Test]
        public static void Groups_span_communicators_and_take_buffers()
        {
            foreach (int worldSize in new[] { 1, 3 })
            {
                string other = Ranks.NewRendezvous();
                Ranks.RunAndLeaveTogether(worldSize, c =>
                {
                    using (Communicator second = Communicator.Create(
                               c.Rank, worldSize, other, Ranks.Patience))
                    using (var buffer = new Buffer<int>(c, 100))
                    {
                        Values(c.Rank, 100).CopyTo(buffer.Span);
                        int[] array = Values(c.Rank, 7);
                        using (Batch group = c.Batch())
                        {
                            group.AllReduce(buffer.Memory).On(second).AllReduce<int>(array);
                            group.End();
                        }

                        Check.Same(Sums(worldSize, 100), buffer.Span.ToArray(), "buffer");
                        Check.Same(Sums(worldSize, 7), array, "the other communicator");
                        second.Barrier();
                    }
                });
            }
        }

        [Test]
        public static void An_exception_in_the_block_cancels_the_group()
        {
            Everywhere(c =>
            {
                int[] data = Values(c.Rank, 9);
                Batch left = null;
                Check.Throws<ArithmeticException>(() =>
                {
                    using (Batch group = c.Batch())
                    {
                        left = group;
                        group.AllReduce<int>(data);
                        group.Receive<int>(new int[3], 0);
                        throw new ArithmeticException("of the program's own");
                    }
                });
                Check.Throws<ObjectDisposedException>(() => left.End());
                Check.Same(Values(c.Rank, 9), data, "nothing has begun");
                CheckClosed(c);
                c.AllReduce<int>(data);
                Check.Same(Sums(c.WorldSize, 9), data, "the communicator is as good as before");
            });
        }

        [Test]
        public static void One_that_is_refused_ends_the_group_after_those_before_it()
        {
            var wrong = new Action<Batch>[]
            {
                group => group.Broadcast<int>(new int[3], 99),
                group => group.Send<int>(new int[3], -1),
                group => group.AllGather<int>(new int[3], new int[1]),
                group => group.AllGather<int>(new int[3], new int[3], null),
            };
            Everywhere(c =>
            {
                foreach (Action<Batch> call in wrong)
                {
                    int[] before = Values(c.Rank, 9);
                    int[] after = Values(c.Rank, 9);
                    Exception refusal = null;
                    using (Batch group = c.Batch())
                    {
                        group.AllReduce<int>(before);
                        call(group);
                        group.AllReduce<int>(after);
                        try
                        {
                            group.End();
                        }
                        catch (Exception exception)
                        {
                            refusal = exception;
                        }
                    }

                    Check.That(
                        refusal is InvalidArgumentException || refusal is ArgumentException,
                        "refusal: " + refusal);
                    Check.Same(Sums(c.WorldSize, 9), before, "begun before");
                    Check.Same(Values(c.Rank, 9), after, "not begun");
                    CheckClosed(c);
                }
            });
        }

        [Test]
        public static void The_first_failure_is_thrown_at_the_end()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                var options = new OperationOptions { Timeout = TimeSpan.FromMilliseconds(300) };
                var never = new int[5];
                using (Batch group = c.Batch())
                {
                    group.Receive<int>(never, (c.Rank + 1) % 3, 1, options);
                    if (c.Rank == 0)
                    {
                        Exception end = null;
                        try
                        {
                            group.End();
                        }
                        catch (TriremeException exception)
                        {
                            end = exception;
                        }

                        Check.That(end is TriremeTimeoutException, "end: " + end);
                    }
                }

                Check.Same(new int[5], never, "nothing came");
            });
            Ranks.RunAndLeaveTogether(3, c =>
            {
                c.Barrier();
                if (c.Rank == 1)
                {
                    c.Abort("enough");
                    return;
                }

                using (Batch group = c.Batch())
                {
                    group.AllReduce<int>(new int[100]).Receive<int>(new int[2], 1);
                    var aborted = Check.Throws<AbortedException>(() => group.End());
                    Check.Contains("enough", aborted.Message);
                }
            });
        }

        [Test]
        public static void A_group_ends_once_and_may_be_empty()
        {
            Ranks.Run(1, c =>
            {
                Batch group = c.Batch();
                group.End();
                Check.Throws<ObjectDisposedException>(() => group.End());
                Check.Throws<ObjectDisposedException>(() => group.Barrier());
                group.Dispose();
                group.Dispose();
                Check.Throws<ObjectDisposedException>(() => group.On(c).Barrier());
                Check.Throws<ArgumentNullException>(() => c.Batch().On(null));
                Check.Throws<ArgumentNullException>(
                    () => c.Batch().AllReduceList<int>((Memory<int>[])null));
                CheckClosed(c);
            });
        }

        [Test]
        public static void A_group_of_a_communicator_that_is_gone_is_refused()
        {
            Ranks.Run(1, c =>
            {
                Batch group = c.Batch();
                group.Barrier();
                c.Dispose();
                Check.Throws<ObjectDisposedException>(() => group.End());
            });
        }
    }
}
