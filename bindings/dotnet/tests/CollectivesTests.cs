using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Every operation against plain loops, and every way to call it wrongly.</summary>
    internal static class CollectivesTests
    {
        private static readonly int[] Lengths = { 0, 1, 2, 3, 7, 64, 1001, 40000 };

        private delegate T Maker<T>(int rank, int index);

        private struct Pair
        {
            public int Left;
            public double Right;
        }

        private struct Named
        {
            public string Name;
        }

        [Test]
        public static void All_reduce_adds_every_type()
        {
            SumOf((rank, i) => (sbyte)(rank + i % 7), (a, b) => (sbyte)(a + b));
            SumOf((rank, i) => (byte)(rank + i % 7), (a, b) => (byte)(a + b));
            SumOf((rank, i) => (short)(rank - i), (a, b) => (short)(a + b));
            SumOf((rank, i) => (ushort)(rank + i), (a, b) => (ushort)(a + b));
            SumOf((rank, i) => rank * 1000 - i, (a, b) => a + b);
            SumOf((rank, i) => (uint)(rank + i), (a, b) => a + b);
            SumOf((rank, i) => (1L << 53) + rank + i, (a, b) => a + b);
            SumOf((rank, i) => (1UL << 60) + (ulong)(rank + i), (a, b) => a + b);
            SumOf((rank, i) => (float)(1.0 / (1 + rank + i)), (a, b) => (float)(a + b));
            SumOf((rank, i) => 1.0 / (1 + rank + i), (a, b) => a + b);
        }

        [Test]
        public static void All_reduce_does_every_reduction()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                int r = c.Rank;
                Check.Same(new[] { 6, -6 }, Reduced(c, new[] { r + 1, -r - 1 }, Reduction.Product));
                Check.Same(new[] { 0, -2 }, Reduced(c, new[] { r, -r }, Reduction.Min));
                Check.Same(new[] { 2, 0 }, Reduced(c, new[] { r, -r }, Reduction.Max));
                // 0 + 1 + 3 = 4, and minus that: both truncate toward zero.
                int step = r * (r + 1) / 2;
                Check.Same(new[] { 1, -1 }, Reduced(c, new[] { step, -step }, Reduction.Average));
                Check.Same(new[] { 0, 7 }, Reduced(c, new[] { 1 << r, 7 }, Reduction.Band));
                Check.Same(new[] { 7, 7 }, Reduced(c, new[] { 1 << r, 7 }, Reduction.Bor));
                Check.Same(new[] { 7, 7 }, Reduced(c, new[] { 1 << r, 7 }, Reduction.Bxor));
                var scaled = new[] { r + 0.5f };
                c.AllReduce<float>(
                    scaled, Reduction.ScaledSum, new OperationOptions { Scale = 0.25 });
                Check.Equal(1.125f, scaled[0], "scaled sum");
                var flags = new[] { r == 1, true, false };
                c.AllReduce<bool>(flags, Reduction.Bor);
                Check.Same(new[] { true, true, false }, flags, "flags");
                double[] missing = Reduced(
                    c, new[] { r == 1 ? double.NaN : 1.0 }, Reduction.Max);
                Check.That(double.IsNaN(missing[0]), "a NaN stays one");
            });
        }

        [Test]
        public static void Sixteen_bit_floats_travel_in_ushort()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                var half = new OperationOptions { ElementType = ElementType.F16 };
                var one = new ushort[] { 0x3c00, 0x4000 }; // 1 and 2
                communicator.AllReduce<ushort>(one, Reduction.Sum, half);
                Check.Same(new ushort[] { 0x4000, 0x4400 }, one, "halves");
                var brain = new OperationOptions { ElementType = ElementType.Bf16 };
                one = new ushort[] { 0x3f80 };
                communicator.AllReduce<ushort>(one, Reduction.Sum, brain);
                Check.Same(new ushort[] { 0x4000 }, one, "bfloat16");
                Check.Throws<ArgumentException>(
                    () => communicator.AllReduce<float>(new float[1], Reduction.Sum, half));
            });
        }

        [Test]
        public static void Reduce_scatter_gives_rank_r_block_r()
        {
            foreach (int world in Ranks.Worlds)
            {
                Ranks.RunAndLeaveTogether(world, c =>
                {
                    foreach (int length in Lengths)
                    {
                        float[] send = Values(length * world, c.Rank);
                        var receive = new float[length];
                        c.ReduceScatter<float>(send, receive);
                        float[] wanted = Sum(length * world, world).Skip(length * c.Rank)
                            .Take(length).ToArray();
                        Check.Same(wanted, receive, "blocks of " + length);
                        receive = new float[length];
                        c.StartReduceScatter<float>(send, receive).Wait();
                        Check.Same(wanted, receive, "started blocks of " + length);
                    }

                    int[] counts = Enumerable.Range(0, world).Select(r => r * 3 % 4).ToArray();
                    var block = new float[counts[c.Rank]];
                    float[] all = Values(counts.Sum(), c.Rank);
                    c.ReduceScatter<float>(all, block, counts);
                    float[] part = Sum(all.Length, world)
                        .Skip(counts.Take(c.Rank).Sum()).Take(block.Length).ToArray();
                    Check.Same(part, block, "unequal blocks");
                    block = new float[counts[c.Rank]];
                    c.StartReduceScatter<float>(all, block, counts).Wait();
                    Check.Same(part, block, "started unequal blocks");
                });
            }
        }

        [Test]
        public static void All_gather_joins_the_blocks_in_rank_order()
        {
            foreach (int world in Ranks.Worlds)
            {
                Ranks.RunAndLeaveTogether(world, c =>
                {
                    foreach (int length in Lengths)
                    {
                        var wanted = Enumerable.Range(0, world)
                            .SelectMany(r => Values(length, r)).ToArray();
                        var receive = new float[length * world];
                        c.AllGather<float>(Values(length, c.Rank), receive);
                        Check.Same(wanted, receive, "blocks of " + length);
                        receive = new float[length * world];
                        c.StartAllGather<float>(Values(length, c.Rank), receive).Wait();
                        Check.Same(wanted, receive, "started blocks of " + length);
                    }

                    int[] counts = Enumerable.Range(0, world).Select(r => r * 3 % 4).ToArray();
                    var joined = new float[counts.Sum()];
                    c.AllGather<float>(Values(counts[c.Rank], c.Rank), joined, counts);
                    var unequal = Enumerable.Range(0, world)
                        .SelectMany(r => Values(counts[r], r)).ToArray();
                    Check.Same(unequal, joined, "unequal blocks");
                    joined = new float[counts.Sum()];
                    c.StartAllGather<float>(Values(counts[c.Rank], c.Rank), joined, counts).Wait();
                    Check.Same(unequal, joined, "started unequal blocks");
                });
            }
        }

        [Test]
        public static void Structs_are_gathered_as_bytes()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                var bytes = new OperationOptions { ElementType = ElementType.Bytes };
                var mine = new[] { new Pair { Left = c.Rank, Right = c.Rank + 0.5 } };
                var all = new Pair[3];
                c.AllGather<Pair>(mine, all, bytes);
                for (int i = 0; i < 3; ++i)
                {
                    Check.Equal(i, all[i].Left);
                    Check.Equal(i + 0.5, all[i].Right);
                }

                c.AllGather<Pair>(mine, all, new[] { 1, 1, 1 }, bytes);
                Check.Equal(2, all[2].Left);
                Check.Throws<NotSupportedException>(() => c.AllGather<Pair>(mine, all));
                Check.Throws<NotSupportedException>(
                    () => c.Broadcast<Named>(new Named[1], 0, bytes));
                Check.Throws<NotSupportedException>(() => c.Broadcast<char>(new char[1], 0));
            });
        }

        [Test]
        public static void Broadcast_gives_the_roots_elements()
        {
            foreach (int world in Ranks.Worlds)
            {
                Ranks.RunAndLeaveTogether(world, c =>
                {
                    for (int root = 0; root < world; ++root)
                    {
                        float[] data = Values(77, c.Rank);
                        c.Broadcast<float>(data, root);
                        Check.Same(Values(77, root), data, "from " + root);
                        data = Values(0, c.Rank);
                        c.StartBroadcast<float>(data, root).Wait();
                        data = Values(5, c.Rank);
                        c.StartBroadcast<float>(data, root).Wait();
                        Check.Same(Values(5, root), data, "started from " + root);
                    }

                    Check.Throws<InvalidArgumentException>(
                        () => c.Broadcast<float>(new float[1], world));
                    Check.Throws<InvalidArgumentException>(
                        () => c.Broadcast<float>(new float[1], -1));
                });
            }
        }

        [Test]
        public static void Messages_are_matched_by_sender_and_tag()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                int next = (c.Rank + 1) % 3;
                int before = (c.Rank + 2) % 3;
                using (Request one = c.StartSend<int>(new[] { c.Rank, 1 }, next, 1))
                using (Request two = c.StartSend<int>(new[] { c.Rank, 2, 2 }, next, ulong.MaxValue))
                {
                    var second = new int[3];
                    c.Receive<int>(second, before, ulong.MaxValue);
                    Check.Same(new[] { before, 2, 2 }, second, "the later tag first");
                    var first = new int[2];
                    c.StartReceive<int>(first, before, 1).Wait();
                    Check.Same(new[] { before, 1 }, first, "then the other");
                    one.Wait();
                    two.Wait();
                }

                var self = new int[1];
                using (Request toMyself = c.StartSend<int>(new[] { 42 + c.Rank }, c.Rank))
                {
                    c.Receive<int>(self, c.Rank);
                    toMyself.Wait();
                }

                Check.Equal(42 + c.Rank, self[0], "to oneself");
                if (c.Rank == 0)
                {
                    c.Send<double>(new[] { 2.5 }, 2);
                }
                else if (c.Rank == 2)
                {
                    var got = new double[1];
                    c.Receive<double>(got, 0);
                    Check.Equal(2.5, got[0]);
                }

                Check.Throws<InvalidArgumentException>(() => c.Send<int>(new int[1], 3));
                Check.Throws<InvalidArgumentException>(() => c.Receive<int>(new int[1], -2));
            });
        }

        [Test]
        public static void Wrong_lengths_are_refused_before_anything_is_sent()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                Check.Throws<ArgumentException>(
                    () => c.AllReduce<float>(new float[2], new float[3]));
                Check.Throws<ArgumentException>(
                    () => c.ReduceScatter<float>(new float[5], new float[2]));
                Check.Throws<ArgumentException>(
                    () => c.AllGather<float>(new float[2], new float[5]));
                Check.Throws<ArgumentException>(
                    () => c.AllGather<float>(new float[2], new float[4], new[] { 2 }));
                Check.Throws<ArgumentException>(
                    () => c.AllGather<float>(new float[2], new float[4], new[] { 2, 3 }));
                Check.Throws<ArgumentException>(
                    () => c.ReduceScatter<float>(new float[4], new float[2], new[] { 5, -1 }));
                Check.Throws<ArgumentException>(
                    () => c.ReduceScatter<float>(new float[4], new float[2], new[] { 1, 3 }
                        .Select(n => c.Rank == 0 ? n : 4 - n).ToArray()));
                Check.Throws<ArgumentException>(
                    () => c.StartAllReduce<float>(new float[2], new float[3]));
                Check.Throws<ArgumentOutOfRangeException>(
                    () => c.Barrier(new OperationOptions { Timeout = TimeSpan.FromTicks(-1) }));
                var values = new[] { 1f };
                c.AllReduce<float>(values);
                Check.Equal(2f, values[0], "the group goes on");
            });
        }

        [Test]
        public static void Unknown_numbers_are_refused_and_the_group_goes_on()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var data = new float[3];
                Check.Throws<InvalidArgumentException>(
                    () => c.AllReduce<float>(data, (Reduction)99));
                Check.Throws<InvalidArgumentException>(() => c.AllReduce<float>(data, 0));
                var strange = new OperationOptions { ElementType = (ElementType)77 };
                Check.Throws<InvalidArgumentException>(
                    () => c.AllReduce<float>(data, Reduction.Sum, strange));
                Check.Throws<InvalidArgumentException>(
                    () => c.StartAllReduce<float>(data, (Reduction)99));
                Check.Throws<InvalidArgumentException>(
                    () => c.AllReduce<float>(
                        data, Reduction.Sum, new OperationOptions { Scale = 2 }));
                c.Barrier();
            });
        }

        [Test]
        public static void Overlapping_memory_is_refused()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var data = new float[8];
                Check.Throws<InvalidArgumentException>(
                    () => c.AllReduce<float>(data.AsSpan(0, 4), data.AsSpan(2, 4)));
                c.AllGather<float>(data.AsSpan(4 * c.Rank, 4), data);
            });
        }

        [Test]
        public static void Ranks_that_disagree_are_all_told()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                var failure = Check.Throws<MismatchException>(
                    () => c.AllReduce<float>(new float[c.Rank == 1 ? 5 : 4]));
                Check.Equal("all_reduce", failure.Operation);
                Check.Contains("5", failure.Message);
                Check.Contains("4", failure.Message);
                Check.Throws<MismatchException>(() => c.Barrier());
            });
        }

        [Test]
        public static void A_message_of_another_length_is_a_mismatch_with_both_lengths()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                if (c.Rank == 0)
                {
                    try
                    {
                        c.Send<float>(new float[123], 1);
                    }
                    catch (MismatchException)
                    {
                        // The sender may or may not be done before the receiver compares.
                    }

                    return;
                }

                var failure = Check.Throws<MismatchException>(
                    () => c.Receive<float>(new float[321], 0));
                Check.Contains("123", failure.Message);
                Check.Contains("321", failure.Message);
            });
        }

        [Test]
        public static void Barriers_follow_each_other()
        {
            Ranks.RunAndLeaveTogether(4, c =>
            {
                for (int i = 0; i < 200; ++i)
                {
                    c.Barrier();
                    c.StartBarrier().Wait();
                }

                Check.Equal(400ul, c.GetStatistics().Operations);
            });
        }

        private static void SumOf<T>(Maker<T> make, Func<T, T, T> add) where T : struct
        {
            foreach (int world in new[] { 1, 2, 3, 5 })
            {
                Ranks.RunAndLeaveTogether(world, communicator =>
                {
                    foreach (int length in Lengths)
                    {
                        var wanted = new T[length];
                        var send = new T[length];
                        for (int i = 0; i < length; ++i)
                        {
                            wanted[i] = make(0, i);
                            for (int rank = 1; rank < world; ++rank)
                            {
                                wanted[i] = add(wanted[i], make(rank, i));
                            }

                            send[i] = make(communicator.Rank, i);
                        }

                        string what = typeof(T).Name + " x " + length;
                        var receive = new T[length];
                        communicator.AllReduce<T>(send, receive);
                        Check.Same(wanted, receive, what);
                        communicator.StartAllReduce<T>(send, receive).Wait();
                        Check.Same(wanted, receive, what + " started");
                        communicator.AllReduce<T>(send);
                        Check.Same(wanted, send, what + " in place");
                    }
                });
            }
        }

        private static T[] Reduced<T>(Communicator communicator, T[] values, Reduction reduction)
            where T : struct
        {
            communicator.AllReduce<T>(values, reduction);
            return values;
        }

        private static float[] Values(int length, int rank)
        {
            var values = new float[length];
            for (int i = 0; i < length; ++i)
            {
                values[i] = (float)(1.0 / (1 + rank * 31 + i));
            }

            return values;
        }

        private static float[] Sum(int length, int world)
        {
            float[] sum = Values(length, 0);
            for (int rank = 1; rank < world; ++rank)
            {
                float[] other = Values(length, rank);
                for (int i = 0; i < length; ++i)
                {
                    sum[i] = (float)(sum[i] + other[i]);
                }
            }

            return sum;
        }
    }
}
