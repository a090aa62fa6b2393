using System;
using System.Linq;
using System.Threading;

namespace Trireme.Tests
{
    /// <summary>
    /// Messages of any source, tag and length, waiting for several requests, and the options of
    /// calls; and every way to ask for them wrongly.
    /// </summary>
    internal static class MessagesTests
    {
        private static readonly TimeSpan Moment = TimeSpan.FromMilliseconds(20);
        private static readonly OperationOptions AnyTag = new OperationOptions { AnyTag = true };

        [Test]
        public static void A_receive_tells_what_came()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                if (c.Rank > 0)
                {
                    c.Send(new int[c.Rank], 0, (ulong)c.Rank * 10);
                    c.Send(new[] { 7, c.Rank }, 0, 5);
                    return;
                }

                var room = new int[4];
                MessageInfo info = c.ReceiveMessage(room, 2, 20);
                Same(info, 2, 20, 2);
                Check.Equal(ElementType.I32, info.ElementType);
                info = c.ReceiveMessage<int>(room.AsSpan(), 1, 0, AnyTag);
                Same(info, 1, 10, 1);
                using (Request one = c.StartReceiveMessage(room, 2, 0, AnyTag))
                {
                    one.Wait();
                    Same(one.Message, 2, 5, 2);
                    Check.Same(new[] { 7, 2 }, room.Take(2).ToArray());
                }

                info = c.ReceiveMessage(room, Communicator.AnySource, 5);
                Same(info, 1, 5, 2);
            });
        }

        [Test]
        public static void A_message_of_unknown_length_comes_in_a_new_array()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                foreach (int length in new[] { 0, 1, 5000 })
                {
                    double[] data = Enumerable.Range(0, length).Select(i => i * 0.5).ToArray();
                    if (c.Rank == 0)
                    {
                        c.Send(data, 1, 3);
                        c.Send(data, 1, 4);
                    }
                    else
                    {
                        Check.Same(data, c.ReceiveToArray<double>(0, 3));
                        MessageInfo info;
                        Check.Same(data, c.ReceiveToArray<double>(
                            Communicator.AnySource, 0, out info, AnyTag));
                        Same(info, 0, 4, length);
                    }
                }

                var bytes = new OperationOptions { ElementType = ElementType.Bytes };
                var times = new[] { new DateTime(5), new DateTime(6) };
                if (c.Rank == 0)
                {
                    c.Send(times, 1, 0, bytes);
                }
                else
                {
                    MessageInfo info;
                    Check.Same(times, c.ReceiveToArray<DateTime>(0, 0, out info, bytes));
                    Check.Equal(2L, info.Count, "elements, not bytes");
                }
            });
        }

        [Test]
        public static void A_probe_looks_and_leaves_the_message()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                if (c.Rank == 0)
                {
                    var look = new OperationOptions { Timeout = Moment };
                    Check.Throws<TriremeTimeoutException>(() => c.Probe(1, 9, look));
                    c.Barrier();
                    Same(c.Probe(1, 9), 1, 9, 3);
                    using (Request probe = c.StartProbe(Communicator.AnySource, 0, AnyTag))
                    {
                        probe.Wait();
                        Same(probe.Message, 1, 9, 3);
                    }

                    var data = new short[3];
                    c.Receive(data, 1, 9);
                    Check.Same(new short[] { 1, 2, 3 }, data);
                }
                else
                {
                    c.Barrier();
                    c.Send(new short[] { 1, 2, 3 }, 0, 9);
                }
            });
        }

        [Test]
        public static void Send_receive_goes_round_the_ring()
        {
            foreach (int world in Ranks.Worlds)
            {
                Ranks.RunAndLeaveTogether(world, c =>
                {
                    int next = (c.Rank + 1) % world;
                    int before = (c.Rank + world - 1) % world;
                    var got = new int[2];
                    c.SendReceive(new[] { c.Rank, 5 }, next, 1, got, before, 1);
                    Check.Same(new[] { before, 5 }, got);
                    c.SendReceive<int>(
                        new[] { -c.Rank }.AsSpan(), next, 2, got.AsSpan(0, 1),
                        Communicator.AnySource, 2);
                    Check.Equal(-before, got[0]);
                });
            }
        }

        [Test]
        public static void A_buffered_send_needs_no_receiver()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var buffered = new OperationOptions { Buffered = true };
                var data = new int[100000];
                data[7] = c.Rank;
                c.Send(data, 1 - c.Rank, 3, buffered); // both send first
                data[7] = 99; // it was copied
                c.Send(data, c.Rank, 4, buffered);
                var got = new int[100000];
                c.Receive(got, 1 - c.Rank, 3);
                Check.Equal(1 - c.Rank, got[7]);
                c.Receive(got, c.Rank, 4);
                Check.Equal(99, got[7]);
            });
        }

        [Test]
        public static void Wait_all_waits_for_every_request()
        {
            using (var go = new ManualResetEventSlim())
            {
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    if (c.Rank == 1)
                    {
                        c.Send(new[] { 1 }, 0, 1);
                        Check.That(go.Wait(Ranks.Patience), "rank 0 has looked");
                        c.Send(new[] { 2 }, 0, 2);
                        return;
                    }

                    var one = new int[1];
                    var two = new int[1];
                    using (Request second = c.StartReceive(two, 1, 2))
                    using (Request first = c.StartReceive(one, 1, 1))
                    {
                        Check.That(!Request.WaitAll(Moment, second, first), "one still runs");
                        go.Set();
                        Check.That(Request.WaitAll(Ranks.Patience, second, first), "all done");
                        Check.Equal(3, one[0] + two[0]);
                    }

                    Check.That(Request.WaitAll(TimeSpan.Zero), "none is all");
                });
            }
        }

        [Test]
        public static void Wait_all_throws_what_a_request_failed_with()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                if (c.Rank == 1)
                {
                    return;
                }

                var soon = new OperationOptions { Timeout = Moment };
                using (Request late = c.StartReceive(new int[1], 1, 7, soon))
                {
                    var failure = Check.Throws<TriremeTimeoutException>(
                        () => Request.WaitAll(Ranks.Patience, late));
                    Check.Equal("receive", failure.Operation);
                    Check.Throws<ArgumentNullException>(() => Request.WaitAll(Moment, null));
                    Check.Throws<ArgumentNullException>(
                        () => Request.WaitAll(Moment, late, null));
                    Check.Throws<InvalidStateException>(() => late.Message.ToString());
                }
            });
        }

        [Test]
        public static void What_makes_no_sense_is_refused_and_the_group_goes_on()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var data = new int[2];
                var other = new int[2];
                var buffered = new OperationOptions { Buffered = true };
                Check.Throws<ArgumentNullException>(() => c.ReceiveMessage((int[])null, 0));
                Check.Throws<ArgumentNullException>(() => c.SendReceive(null, 0, 0, data, 0, 0));
                Check.Throws<NotSupportedException>(() => c.ReceiveToArray<char>(0));
                Check.Throws<InvalidArgumentException>(() => c.ReceiveMessage(data, 2));
                Check.Throws<InvalidArgumentException>(() => c.Probe(-2));
                Check.Throws<InvalidArgumentException>(() => c.StartProbe(0, 1, AnyTag));
                Check.Throws<InvalidArgumentException>(() => c.Receive(data, 0, 1, AnyTag));
                Check.Throws<InvalidArgumentException>(() => c.ReceiveToArray<int>(7));
                Check.Throws<InvalidArgumentException>(
                    () => c.SendReceive(data, Communicator.AnySource, 0, other, 0, 0));
                Check.Throws<InvalidArgumentException>(
                    () => c.SendReceive(data, 0, 0, data, 0, 0));
                Check.Throws<InvalidArgumentException>(() => c.Send(data, 0, 0, AnyTag));
                Check.Throws<InvalidArgumentException>(() => c.StartSend(data, 0, 0, buffered));
                Check.Throws<InvalidArgumentException>(
                    () => c.AllReduce(data, Reduction.Sum, buffered));
                using (Request barrier = c.StartBarrier())
                {
                    barrier.Wait();
                    Check.Throws<InvalidStateException>(() => barrier.Message.ToString());
                }
            });
        }

        [Test]
        public static void A_message_that_is_too_long_is_a_mismatch_with_both_lengths()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                if (c.Rank == 0)
                {
                    c.Send(new float[123], 1, 0, new OperationOptions { Buffered = true });
                    return;
                }

                var failure = Check.Throws<MismatchException>(
                    () => c.ReceiveMessage(new float[45], 0));
                Check.Contains("123", failure.Message);
                Check.Contains("45", failure.Message);
            });
        }

        [Test]
        public static void Algorithms_and_reproducible_sums_give_the_sum()
        {
            var algorithms = new[]
            {
                Algorithm.Automatic, Algorithm.Direct, Algorithm.Ring,
                Algorithm.HalvingDoubling, Algorithm.DoubleTree,
            };
            foreach (int world in Ranks.Worlds)
            {
                Ranks.RunAndLeaveTogether(world, c =>
                {
                    int[] values =
                        Enumerable.Range(0, 1001).Select(i => i * (c.Rank + 1)).ToArray();
                    int factor = world * (world + 1) / 2;
                    foreach (Algorithm algorithm in algorithms)
                    {
                        int[] data = values.ToArray();
                        c.AllReduce(
                            data, Reduction.Sum, new OperationOptions { Algorithm = algorithm });
                        Check.Equal(1000 * factor, data[1000], algorithm.ToString());
                        var floats = new[] { 0.1f * (c.Rank + 1) };
                        float wanted = Enumerable.Range(0, world)
                            .Aggregate(0f, (sum, r) => (float)(sum + 0.1f * (r + 1)));
                        c.AllReduce(floats, Reduction.Sum, new OperationOptions
                        {
                            Algorithm = algorithm, Reproducible = true,
                        });
                        Check.Equal(wanted, floats[0], "in rank order by " + algorithm);
                    }
                });
            }
        }

        [Test]
        public static void A_narrow_wire_rounds_what_travels()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var narrow = new OperationOptions { WireType = ElementType.Bf16 };
                // 257 needs 9 bits, bfloat16 has 8: it is rounded to even.
                var data = new float[] { 257, 2, c.Rank };
                var all = new float[6];
                c.AllGather(data, all, narrow);
                Check.Same(new float[] { 256, 2, 0, 256, 2, 1 }, all);
                Check.Throws<InvalidArgumentException>(() => c.AllGather(
                    data, all, new OperationOptions { WireType = ElementType.F64 }));
                Check.Throws<InvalidArgumentException>(
                    () => c.AllReduce(new double[3], Reduction.Sum, narrow));
                Check.Throws<InvalidArgumentException>(() => c.AllReduce(
                    data, Reduction.Sum, new OperationOptions { Algorithm = (Algorithm)99 }));
                Check.Throws<UnsupportedException>(() => c.AllReduce(
                    data, Reduction.Sum, new OperationOptions { Algorithm = Algorithm.Bruck }));
                c.Barrier();
            });
        }

        private static void Same(MessageInfo info, int source, ulong tag, long count)
        {
            Check.Equal(source, info.Source, "source");
            Check.Equal(tag, info.Tag, "tag");
            Check.Equal(count, info.Count, "count");
        }
    }
}
