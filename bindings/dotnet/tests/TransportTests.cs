using System;
using System.Collections.Concurrent;
using System.Collections.Generic;
using System.Linq;
using System.Threading;

namespace Trireme.Tests
{
    /// <summary>Groups whose bytes a class of the program carries, well or badly.</summary>
    internal static class TransportTests
    {
        private static readonly int[] Lengths = { 0, 1, 7, 3001 };
        private static readonly TimeSpan Short = TimeSpan.FromMilliseconds(500);
        private static int groups;

        private enum Fault
        {
            None,
            SendThrows,
            ReceiveThrows,
            Longer,
            Shorter,
            MoreThanFits,
            NegativeLength,
            Stranger,
            SendHangs,
            ReceiveHangs,
        }

        /// <summary>Queues of one process; a rank's transport is one end of them.</summary>
        private sealed class Net : IDisposable
        {
            public readonly BlockingCollection<KeyValuePair<int, byte[]>>[] Inboxes;
            public readonly CountdownEvent Released;
            public readonly ManualResetEvent Over = new ManualResetEvent(false);

            public Net(int worldSize)
            {
                Inboxes = Enumerable.Range(0, worldSize).Select(
                    rank => new BlockingCollection<KeyValuePair<int, byte[]>>(64)).ToArray();
                Released = new CountdownEvent(worldSize);
            }

            /// <summary>Ends what hangs; then every transport is given back.</summary>
            public void Dispose()
            {
                Over.Set();
                Check.That(Released.Wait(Ranks.Patience), "a transport was not released");
            }
        }

        private sealed class End : Transport
        {
            private readonly Net net;
            private readonly int rank;
            private readonly Fault fault;
            private int left; // frames until the fault

            public End(Net net, int rank, Fault fault = Fault.None, int frame = 0)
            {
                this.net = net;
                this.rank = rank;
                this.fault = fault;
                left = frame;
            }

            public override int FrameBytes
            {
                get { return 4096; }
            }

            public override bool Send(int to, ReadOnlySpan<byte> frame, TimeSpan timeout)
            {
                if (fault == Fault.SendThrows && left-- == 0)
                {
                    throw new ArithmeticException("no more frames"); // once: others can be told
                }

                if (fault == Fault.SendHangs && left-- <= 0)
                {
                    net.Over.WaitOne();
                }

                return net.Inboxes[to].TryAdd(
                    new KeyValuePair<int, byte[]>(rank, frame.ToArray()), timeout);
            }

            public override bool Receive(
                Span<byte> frame, TimeSpan timeout, out int from, out int bytes)
            {
                from = bytes = 0;
                if (fault == Fault.ReceiveHangs && left <= 0)
                {
                    net.Over.WaitOne();
                }

                KeyValuePair<int, byte[]> next;
                if (!net.Inboxes[rank].TryTake(out next, timeout))
                {
                    return false;
                }

                next.Value.CopyTo(frame);
                from = next.Key;
                bytes = next.Value.Length;
                bool sends = fault == Fault.SendThrows || fault == Fault.SendHangs;
                if (sends || left-- != 0)
                {
                    return true;
                }

                switch (fault)
                {
                    case Fault.ReceiveThrows:
                        throw new ArithmeticException("no more frames");
                    case Fault.Longer:
                        ++bytes;
                        break;
                    case Fault.Shorter:
                        --bytes;
                        break;
                    case Fault.MoreThanFits:
                        bytes = frame.Length + 1;
                        break;
                    case Fault.NegativeLength:
                        bytes = -1;
                        break;
                    case Fault.Stranger:
                        from = net.Inboxes.Length;
                        break;
                }

                return true;
            }

            public override void Released()
            {
                net.Released.Signal();
            }
        }

        /// <summary>The outcome of a rank: its exception, or null, and its transport.</summary>
        private struct Outcome
        {
            public Exception Problem;
            public End End;
        }

        /// <summary>
        /// Runs a function on every rank of a group whose last rank has the fault, from its frame
        /// of that number on. Ranks leave together, so that no rank sees a peer leave.
        /// </summary>
        private static Outcome[] Over(
            int worldSize, Action<Communicator> function, Fault fault = Fault.None,
            int frame = 0, TimeSpan timeout = default(TimeSpan))
        {
            string rendezvous =
                "transport://dotnet-tests-" + Interlocked.Increment(ref groups);
            var outcomes = new Outcome[worldSize];
            using (var net = new Net(worldSize))
            using (var left = new CountdownEvent(worldSize))
            {
                Ranks.OnThreads(worldSize, rank =>
                {
                    Fault mine = rank == worldSize - 1 ? fault : Fault.None;
                    outcomes[rank].End = new End(net, rank, mine, frame);
                    using (Communicator communicator = Communicator.Create(
                               rank, worldSize, rendezvous,
                               timeout == TimeSpan.Zero ? Ranks.Patience : timeout,
                               transport: outcomes[rank].End))
                    {
                        try
                        {
                            function(communicator);
                        }
                        catch (Exception problem)
                        {
                            outcomes[rank].Problem = problem;
                        }

                        left.Signal();
                        left.Wait();
                    }
                });
            }

            return outcomes;
        }

        private static void Right(int worldSize, Action<Communicator> function)
        {
            foreach (Outcome outcome in Over(worldSize, function))
            {
                if (outcome.Problem != null)
                {
                    throw new FailureException(outcome.Problem.ToString());
                }

                Check.That(outcome.End.Failure == null, "a transport has failed");
            }
        }

        private static long Value(int rank, int i)
        {
            return 1000 * (rank + 1) + i % 97;
        }

        private static long[] Values(int rank, int length, int from = 0)
        {
            return Enumerable.Range(from, length).Select(i => Value(rank, i)).ToArray();
        }

        private static long[] Sums(int world, int length, int from = 0)
        {
            return Enumerable.Range(from, length).Select(
                i => Enumerable.Range(0, world).Sum(rank => Value(rank, i))).ToArray();
        }

        private static long[] Joined(IEnumerable<long[]> parts)
        {
            return parts.SelectMany(part => part).ToArray();
        }

        private static void AllOf(Communicator c, int length)
        {
            int me = c.Rank;
            int world = c.WorldSize;
            int root = length % world;
            int[] ranks = Enumerable.Range(0, world).ToArray();
            int[] counts = ranks.Select(rank => (length + rank) % 5).ToArray();
            int before = counts.Take(me).Sum();

            long[] data = Values(me, length);
            c.AllReduce<long>(data);
            Check.Same(Sums(world, length), data, "all_reduce");
            Check.Equal(world > 1, c.GetStatistics().SentMessages > 0, "messages");
            data = new long[length];
            c.ReduceScatter<long>(Values(me, length * world), data);
            Check.Same(Sums(world, length, me * length), data, "reduce_scatter");
            data = new long[counts[me]];
            c.ReduceScatter<long>(Values(me, counts.Sum()), data, counts);
            Check.Same(Sums(world, counts[me], before), data, "reduce_scatter_v");
            data = new long[length * world];
            c.AllGather<long>(Values(me, length), data);
            Check.Same(Joined(ranks.Select(r => Values(r, length))), data, "all_gather");
            data = new long[counts.Sum()];
            c.AllGather<long>(Values(me, counts[me]), data, counts);
            Check.Same(Joined(ranks.Select(r => Values(r, counts[r]))), data, "all_gather_v");
            data = Values(me, length);
            c.Broadcast<long>(data, root);
            Check.Same(Values(root, length), data, "broadcast");
            data = Values(me, length);
            c.Reduce<long>(data, root);
            Check.Same(me == root ? Sums(world, length) : Values(me, length), data, "reduce");
            data = me == root ? new long[length * world] : null;
            c.Gather<long>(Values(me, length), data, root);
            if (me == root)
            {
                Check.Same(Joined(ranks.Select(r => Values(r, length))), data, "gather");
            }

            data = me == root ? new long[counts.Sum()] : null;
            c.Gather<long>(Values(me, counts[me]), data, counts, root);
            if (me == root)
            {
                Check.Same(Joined(ranks.Select(r => Values(r, counts[r]))), data, "gather_v");
            }

            data = new long[length];
            c.Scatter<long>(me == root ? Values(root, length * world) : null, data, root);
            Check.Same(Values(root, length, me * length), data, "scatter");
            data = new long[counts[me]];
            c.Scatter<long>(me == root ? Values(root, counts.Sum()) : null, data, counts, root);
            Check.Same(Values(root, counts[me], before), data, "scatter_v");
            data = new long[length * world];
            c.AllToAll<long>(Values(me, length * world), data);
            Check.Same(
                Joined(ranks.Select(r => Values(r, length, me * length))), data, "all_to_all");
            data = new long[world * counts[me]];
            c.AllToAll<long>(
                Values(me, counts.Sum()), counts, data, ranks.Select(r => counts[me]).ToArray());
            Check.Same(
                Joined(ranks.Select(r => Values(r, counts[me], before))), data, "all_to_all_v");
            data = new long[length];
            c.SendReceive<long>(
                Values(me, length), (me + 1) % world, 3, data, (me + world - 1) % world, 3);
            Check.Same(Values((me + world - 1) % world, length), data, "send_receive");
            long[][] list = { Values(me, length), new long[0], Values(me, 3) };
            c.AllReduceList(list);
            Check.Same(Sums(world, length), list[0], "all_reduce_list");
            Check.Same(Sums(world, 3), list[2], "all_reduce_list");
            Check.Same(
                Values(root, length),
                c.BroadcastToArray(me == root ? Values(root, length) : null, root),
                "broadcast_to_array");
            data = Values(me, length);
            c.StartAllReduce<long>(data).Wait();
            Check.Same(Sums(world, length), data, "started");
            c.Barrier();
        }

        private static void SumUntilFailure(Communicator c)
        {
            var data = new float[3000];
            for (int round = 0; round < 10000; ++round)
            {
                for (int i = 0; i < data.Length; ++i)
                {
                    data[i] = round + i;
                }

                c.AllReduce<float>(data, Reduction.Max);
                for (int i = 0; i < data.Length; ++i)
                {
                    Check.Equal(round + i, data[i], "a result before the failure");
                }
            }
        }

        [Test]
        public static void Every_collective_goes_over_it()
        {
            foreach (int worldSize in Ranks.Worlds)
            {
                Right(worldSize, c =>
                {
                    Check.Equal("frames (transport)", c.Backend);
                    foreach (int length in Lengths)
                    {
                        AllOf(c, length);
                        GC.Collect(); // what the library calls must outlive it
                    }
                });
            }
        }

        [Test]
        public static void What_it_throws_ends_the_group_on_all_ranks_and_is_kept()
        {
            foreach (Fault fault in new[] { Fault.SendThrows, Fault.ReceiveThrows })
            {
                foreach (int frame in new[] { 0, 1, 5, 30 })
                {
                    Outcome[] outcomes = Over(3, SumUntilFailure, fault, frame);
                    foreach (Outcome outcome in outcomes)
                    {
                        Check.That(
                            outcome.Problem is CallbackException, fault + ": " + outcome.Problem);
                        bool mine = outcome.End == outcomes[2].End;
                        Check.Equal(mine, outcome.End.Failure is ArithmeticException, "Failure");
                    }
                }
            }
        }

        [Test]
        public static void One_that_lies_is_found_out_on_all_ranks()
        {
            foreach (Fault fault in new[] { Fault.Longer, Fault.Shorter, Fault.MoreThanFits,
                                            Fault.NegativeLength, Fault.Stranger })
            {
                foreach (int frame in new[] { 0, 1, 20 })
                {
                    foreach (Outcome outcome in Over(3, SumUntilFailure, fault, frame))
                    {
                        Check.That(
                            outcome.Problem is CorruptException, fault + ": " + outcome.Problem);
                        Check.That(outcome.End.Failure == null, "nothing was thrown");
                    }
                }
            }
        }

        [Test]
        public static void One_that_never_returns_costs_a_deadline()
        {
            foreach (Fault fault in new[] { Fault.SendHangs, Fault.ReceiveHangs })
            {
                foreach (int frame in new[] { 0, 11 })
                {
                    foreach (Outcome outcome in Over(3, SumUntilFailure, fault, frame, Short))
                    {
                        Check.That(
                            outcome.Problem is TriremeTimeoutException ||
                                outcome.Problem is PeerLostException,
                            fault + ": " + outcome.Problem);
                    }
                }
            }
        }

        private sealed class Useless : Transport
        {
            private readonly int frameBytes;
            public int ReleasedCount;

            public Useless(int frameBytes)
            {
                this.frameBytes = frameBytes;
            }

            public override int FrameBytes
            {
                get { return frameBytes; }
            }

            public override bool Send(int to, ReadOnlySpan<byte> frame, TimeSpan timeout)
            {
                throw new NotSupportedException();
            }

            public override bool Receive(
                Span<byte> frame, TimeSpan timeout, out int from, out int bytes)
            {
                from = bytes = 0;
                return false;
            }

            public override void Released()
            {
                Interlocked.Increment(ref ReleasedCount);
                throw new NotSupportedException("nobody is to be harmed by this");
            }
        }

        private static void Refused<TException>(
            string rendezvous, Transport transport, string backend = null)
            where TException : Exception
        {
            Check.Throws<TException>(() => Communicator.Create(
                0, 1, rendezvous, backend: backend, transport: transport).Dispose());
        }

        [Test]
        public static void What_does_not_go_with_a_transport_is_refused()
        {
            var good = new Useless(0);
            Refused<InvalidArgumentException>("local://x", good);
            Refused<InvalidArgumentException>("transport://", good);
            Refused<InvalidArgumentException>("transport://x", null);
            Refused<InvalidArgumentException>("transport://x", new Useless(1023));
            Refused<ArgumentOutOfRangeException>("transport://x", new Useless(-1));
            Refused<UnsupportedException>("transport://x", good, "local");
            Check.Equal(0, good.ReleasedCount, "it was never taken");
        }

        [Test]
        public static void It_is_released_once_and_may_throw_there()
        {
            var alone = new Useless(1024);
            using (Communicator group =
                       Communicator.Create(0, 1, "transport://x", transport: alone))
            {
                group.Barrier();
            }

            Check.That(
                SpinWait.SpinUntil(() => alone.Failure != null, Ranks.Patience), "not released");
            Check.Equal(1, alone.ReleasedCount);
            Check.That(alone.Failure is NotSupportedException, "what it threw is kept");
        }

        [Test]
        public static void A_program_may_end_with_a_group_that_it_has_not_left()
        {
            Check.Contains("still open\n", Child.Run("transport").Replace("\r", ""));
        }

        /// <summary>In a process of its own, which ends while the library calls.</summary>
        public static void StayOpen()
        {
            var net = new Net(2);
            var open = new Communicator[2];
            Ranks.OnThreads(2, rank =>
            {
                open[rank] = Communicator.Create(
                    rank, 2, "transport://stays", Ranks.Patience,
                    transport: new End(net, rank));
                open[rank].Barrier();
            });
            Console.WriteLine("still open");
            GC.KeepAlive(open);
        }
    }
}
