using System;
using System.Collections.Generic;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Attention over positions of several ranks.</summary>
    internal static class ContextTests
    {
        private const int Positions = 11;
        private const int Heads = 4;
        private const int KvHeads = 2;
        private const int Width = 3;
        private const int QRow = Heads * Width;
        private const int KvRow = KvHeads * Width;

        [Test]
        public static void Every_number_of_ranks_gives_the_same_bits()
        {
            foreach (ulong[] starts in new[] { null, new ulong[] { 4, 9 } })
            {
                float[][] first = Whole(1, Options(), starts);
                float[] wanted = PlainOutput(starts);
                for (int i = 0; i < wanted.Length; ++i)
                {
                    Check.Equal(true, Math.Abs(wanted[i] - first[0][i]) < 1e-5, "output " + i);
                }

                foreach (int worldSize in new[] { 2, 3, 4 })
                {
                    foreach (ContextLayout layout in Enum.GetValues(typeof(ContextLayout)))
                    {
                        foreach (ContextMethod method in Enum.GetValues(typeof(ContextMethod)))
                        {
                            ContextOptions options = Options();
                            options.Layout = layout;
                            options.Method = method;
                            float[][] found = Whole(worldSize, options, starts);
                            for (int i = 0; i < found.Length; ++i)
                            {
                                Check.Same(
                                    first[i], found[i], worldSize + " " + layout + " " + method);
                            }
                        }
                    }
                }
            }
        }

        [Test]
        public static void Functions_of_the_caller_compute_pairs()
        {
            float[][] near = Whole(1, Options(), null);
            ContextOptions options = Options();
            options.Forward = ForwardPair;
            options.Backward = BackwardPair;
            float[][] first = Whole(1, options, null);
            options.Method = ContextMethod.Ring;
            float[][] found = Whole(3, options, null);
            for (int i = 0; i < first.Length; ++i)
            {
                Check.Same(first[i], found[i], "array " + i);
                for (int k = 0; k < first[i].Length; ++k)
                {
                    Check.Equal(true, Math.Abs(first[i][k] - near[i][k]) < 1e-5, i + ", " + k);
                }
            }
        }

        [Test]
        public static void Positions_follow_the_layout()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                ContextOptions options = Options();
                options.Layout = ContextLayout.Zigzag;
                using (Context context = Context.Create(communicator, options))
                {
                    Check.Same(new long[] { 0, 1, 8, 9, 10 }, context.Positions(0), "rank 0");
                    Check.Same(new long[] { 2, 3, 4, 5, 6, 7 }, context.Positions(1), "rank 1");
                    Check.Equal(communicator.Rank == 0 ? 5L : 6L, context.Info.Rows, "rows");
                    Check.Equal(4, context.Info.OwnChunks, "chunks");
                }
            });
        }

        [Test]
        public static void An_exception_of_a_function_comes_out_on_its_rank()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                bool fails = communicator.Rank == 1;
                ContextOptions options = Options();
                options.Backward = BackwardPair;
                options.Forward = call =>
                {
                    if (fails && call.QChunk == 4 && call.KvChunk == 2)
                    {
                        throw new DivideByZeroException("of the test");
                    }

                    ForwardPair(call);
                };
                using (Context context = Context.Create(communicator, options))
                {
                    var rank = new Arrays(context, communicator.Rank);
                    if (fails)
                    {
                        Check.Throws<DivideByZeroException>(() => rank.Forward(null));
                    }
                    else
                    {
                        CallbackException failure =
                            Check.Throws<CallbackException>(() => rank.Forward(null));
                        Check.Equal(
                            true, failure.Message.Contains("rank 1 for chunk pair (4, 2)"),
                            failure.Message);
                    }

                    fails = false;
                    rank.Forward(null); // the next pass works
                    Check.Equal(1L, context.Info.ForwardPasses, "passes");
                }
            });
        }

        [Test]
        public static void Functions_live_as_long_as_their_context()
        {
            using (Communicator alone = Trireme.Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Context context = Context.Create(alone, WithLambda()))
            {
                GC.Collect();
                GC.WaitForPendingFinalizers();
                var rank = new Arrays(context, 0);
                rank.Forward(null);
                Check.Equal(true, Math.Abs(PlainOutput(null)[0] - rank.Output[0]) < 1e-5, "output");
            }
        }

        [Test]
        public static void Ranks_that_differ_are_a_mismatch_on_all()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                ContextOptions options = Options();
                options.Causal = communicator.Rank == 0;
                using (Context context = Context.Create(communicator, options))
                {
                    var rank = new Arrays(context, communicator.Rank);
                    Check.Throws<MismatchException>(() => rank.Forward(null));
                }
            });
        }

        [Test]
        public static void A_rank_that_does_not_come_is_a_timeout()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                if (communicator.Rank == 1)
                {
                    return;
                }

                using (Context context = Context.Create(communicator, Options()))
                {
                    var rank = new Arrays(context, 0);
                    Check.Throws<TriremeTimeoutException>(
                        () => rank.Forward(null, TimeSpan.FromMilliseconds(50)));
                }
            });
        }

        [Test]
        public static void Wrong_arguments_are_refused()
        {
            using (Communicator alone = Trireme.Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                Check.Throws<ArgumentNullException>(() => Context.Create(null, Options()));
                Check.Throws<ArgumentNullException>(() => Context.Create(alone, null));
                Refused<ArgumentNullException>(alone, options => options.Name = null);
                Refused<InvalidArgumentException>(alone, options => options.Name = "");
                Refused<ArgumentException>(alone, options => options.Forward = ForwardPair);
                Refused<ArgumentOutOfRangeException>(alone, options => options.Positions = -1);
                Refused<ArgumentOutOfRangeException>(alone, options => options.Heads = -1);
                Refused<InvalidArgumentException>(alone, options => options.Chunks = 1025);
                Refused<InvalidArgumentException>(alone, options => options.KvHeads = 3);
                Refused<InvalidArgumentException>(alone, options => options.Width = 0);
                Refused<InvalidArgumentException>(
                    alone, options => options.Layout = (ContextLayout)3);
                Refused<InvalidArgumentException>(alone, options => options.Scale = double.NaN);
                Refused<UnsupportedException>(
                    alone, options => options.ElementType = ElementType.F64);
                Context context = Context.Create(alone, Options());
                var rank = new Arrays(context, 0);
                Check.Throws<InvalidArgumentException>(() => rank.Forward(new ulong[] { 3, 3 }));
                Check.Throws<InvalidArgumentException>(() => context.Positions(1));
                rank.Output = rank.Q;
                Check.Throws<InvalidArgumentException>(() => rank.Forward(null));
                rank.Output = new float[3];
                Check.Throws<ArgumentException>(() => rank.Forward(null));
                rank.Output = null;
                Check.Throws<ArgumentNullException>(() => rank.Forward(null));
                Check.Throws<ArgumentException>(() => context.Forward(
                    new double[132], new double[66], new double[66], new double[132],
                    new float[88]));
                context.Dispose();
                Check.Throws<ObjectDisposedException>(() => rank.Forward(null));
            }
        }

        private static void Refused<TException>(
            Communicator alone, Action<ContextOptions> change) where TException : Exception
        {
            ContextOptions options = Options();
            change(options);
            Check.Throws<TException>(() => Context.Create(alone, options));
        }

        private static ContextOptions WithLambda()
        {
            ContextOptions options = Options();
            options.Forward = call => ForwardPair(call);
            options.Backward = call => BackwardPair(call);
            return options;
        }

        private static ContextOptions Options()
        {
            return new ContextOptions
            {
                Name = "layer 3", Positions = Positions, Chunks = 8, Heads = Heads,
                KvHeads = KvHeads, Width = Width, Causal = true,
            };
        }

        /// <summary>A row that all ranks know.</summary>
        private static float Input(int salt, int position, int column)
        {
            return ((position * 31 + column * 7 + salt * 17) % 23 - 11) / 8f;
        }

        /// <summary>Outputs and gradients of all positions.</summary>
        private static float[][] Whole(int worldSize, ContextOptions options, ulong[] starts)
        {
            int[] columns = { QRow, QRow, KvRow, KvRow };
            float[][] whole = columns.Select(each => new float[Positions * each]).ToArray();
            Ranks.RunAndLeaveTogether(worldSize, communicator =>
            {
                using (Context context = Context.Create(communicator, options))
                {
                    var rank = new Arrays(context, communicator.Rank);
                    rank.Forward(starts);
                    rank.Backward(starts);
                    ContextInfo info = context.Info;
                    Check.Equal(
                        Math.Max(info.ForwardMemory, info.BackwardMemory), info.HeldMemory,
                        "memory");
                    float[][] own = { rank.Output, rank.Dq, rank.Dk, rank.Dv };
                    for (int i = 0; i < own.Length; ++i)
                    {
                        for (int row = 0; row < rank.Positions.Length; ++row)
                        {
                            Array.Copy(
                                own[i], row * columns[i], whole[i],
                                rank.Positions[row] * columns[i], columns[i]);
                        }
                    }
                }
            });
            return whole;
        }

        private static float[] PlainOutput(ulong[] starts)
        {
            var output = new float[Positions * QRow];
            ulong[] cuts = starts ?? new ulong[0];
            Func<int, int> sequence = at => cuts.Count(start => start <= (ulong)at);
            for (int query = 0; query < Positions; ++query)
            {
                for (int head = 0; head < Heads; ++head)
                {
                    int kv = head / (Heads / KvHeads) * Width;
                    var weights = new Dictionary<int, double>();
                    for (int key = 0; key <= query; ++key)
                    {
                        if (sequence(key) != sequence(query))
                        {
                            continue;
                        }

                        double score = 0;
                        for (int d = 0; d < Width; ++d)
                        {
                            score += Input(1, query, head * Width + d) * Input(2, key, kv + d);
                        }

                        weights[key] = Math.Exp(score / Math.Sqrt(Width));
                    }

                    for (int d = 0; d < Width; ++d)
                    {
                        output[query * QRow + head * Width + d] = (float)(
                            weights.Sum(each => each.Value * Input(3, each.Key, kv + d)) /
                            weights.Values.Sum());
                    }
                }
            }

            return output;
        }

        private static double Score(AttentionCall call, int row, int head, int key)
        {
            int kv = head / (call.Heads / call.KvHeads);
            double sum = 0;
            for (int d = 0; d < call.Width; ++d)
            {
                sum += (double)call.Q<float>()[(row * call.Heads + head) * call.Width + d] *
                       call.K<float>()[(key * call.KvHeads + kv) * call.Width + d];
            }

            return sum * call.Scale;
        }

        private static void ForwardPair(AttentionCall call)
        {
            Span<float> output = call.Output;
            Span<float> maximum = call.Maximum;
            Span<float> sums = call.Sum;
            output.Clear();
            for (int row = 0; row < call.QCount; ++row)
            {
                for (int head = 0; head < call.Heads; ++head)
                {
                    int at = row * call.Heads + head;
                    int kv = head / (call.Heads / call.KvHeads);
                    double most = double.NegativeInfinity;
                    double sum = 0;
                    int first = (int)call.VisibleFirst[row];
                    int end = (int)call.VisibleEnd[row];
                    for (int key = first; key < end; ++key)
                    {
                        most = Math.Max(most, Score(call, row, head, key));
                    }

                    for (int key = first; key < end; ++key)
                    {
                        double weight = Math.Exp(Score(call, row, head, key) - (float)most);
                        sum += weight;
                        for (int d = 0; d < call.Width; ++d)
                        {
                            output[at * call.Width + d] += (float)(
                                weight *
                                call.V<float>()[(key * call.KvHeads + kv) * call.Width + d]);
                        }
                    }

                    maximum[at] = (float)most;
                    sums[at] = (float)sum;
                }
            }
        }

        private static void BackwardPair(AttentionCall call)
        {
            Span<float> dq = call.Dq;
            Span<float> dk = call.Dk;
            Span<float> dv = call.Dv;
            dq.Clear();
            dk.Clear();
            dv.Clear();
            for (int row = 0; row < call.QCount; ++row)
            {
                for (int head = 0; head < call.Heads; ++head)
                {
                    int at = row * call.Heads + head;
                    int kv = head / (call.Heads / call.KvHeads);
                    int end = (int)call.VisibleEnd[row];
                    for (int key = (int)call.VisibleFirst[row]; key < end; ++key)
                    {
                        int to = (key * call.KvHeads + kv) * call.Width;
                        double p =
                            Math.Exp(Score(call, row, head, key) - call.TotalMaximum[at]) /
                            call.TotalSum[at];
                        double dp = 0;
                        for (int d = 0; d < call.Width; ++d)
                        {
                            dp += (double)call.DOutput<float>()[at * call.Width + d] *
                                  call.V<float>()[to + d];
                        }

                        double ds = p * (dp - call.Delta[at]) * call.Scale;
                        for (int d = 0; d < call.Width; ++d)
                        {
                            int from = at * call.Width + d;
                            dq[from] += (float)(ds * call.K<float>()[to + d]);
                            dk[to + d] += (float)(ds * call.Q<float>()[from]);
                            dv[to + d] += (float)(p * call.DOutput<float>()[from]);
                        }
                    }
                }
            }
        }

        /// <summary>Arrays of one rank, and its passes.</summary>
        private sealed class Arrays
        {
            private readonly Context context;
            private readonly float[] k;
            private readonly float[] v;
            private readonly float[] dOutput;
            private readonly float[] kept;

            internal Arrays(Context context, int rank)
            {
                this.context = context;
                Positions = context.Positions(rank);
                Q = Take(1, QRow);
                k = Take(2, KvRow);
                v = Take(3, KvRow);
                dOutput = Take(4, QRow);
                Output = new float[Q.Length];
                kept = new float[context.Info.KeptCount];
                Dq = new float[Q.Length];
                Dk = new float[k.Length];
                Dv = new float[k.Length];
            }

            internal long[] Positions { get; }

            internal float[] Q { get; }

            internal float[] Output { get; set; }

            internal float[] Dq { get; }

            internal float[] Dk { get; }

            internal float[] Dv { get; }

            internal void Forward(ulong[] starts, TimeSpan timeout = default(TimeSpan))
            {
                context.Forward(Q, k, v, Output, kept, starts, timeout);
            }

            internal void Backward(ulong[] starts)
            {
                context.Backward(Q, k, v, Output, kept, dOutput, Dq, Dk, Dv, starts);
            }

            private float[] Take(int salt, int columns)
            {
                return Positions.SelectMany(position => Enumerable.Range(0, columns)
                    .Select(column => Input(salt, (int)position, column))).ToArray();
            }
        }
    }
}
