using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Training through ParallelAttention against differences of a plain loss.</summary>
    internal static class AttentionTests
    {
        private const int Rows = 3;
        private const int Width = 8;
        private const int Heads = 4;
        private const int Head = Width / Heads;
        private const int Steps = 3;
        private const double Rate = 0.5;

        private sealed class NoCore : IAttentionCore<ushort>
        {
            public void Forward(AttentionShape shape, ushort[] qkv, ushort[] mixed)
            {
                throw new NotSupportedException();
            }

            public void Backward(
                AttentionShape shape, ushort[] qkv, ushort[] dy, ushort[] to)
            {
                throw new NotSupportedException();
            }
        }

        private sealed class Causal : IAttentionCore<double>
        {
            internal bool Throws { get; set; }

            public void Forward(AttentionShape shape, double[] qkv, double[] mixed)
            {
                if (Throws)
                {
                    throw new NotImplementedException();
                }

                Check.Equal(Rows, shape.Rows);
                Check.Equal(Head, shape.HeadWidth);
                Mix(qkv, mixed);
            }

            public void Backward(
                AttentionShape shape, double[] qkv, double[] dy, double[] to)
            {
                int own = dy.Length / Rows;
                Array.Clear(to, 0, to.Length);
                for (int head = 0; head < own / Head; ++head)
                {
                    for (int row = 0; row < Rows; ++row)
                    {
                        double[] chances = Chances(qkv, own, head, row);
                        var slopes = new double[chances.Length];
                        double mean = 0;
                        for (int other = 0; other <= row; ++other)
                        {
                            for (int at = head * Head; at < (head + 1) * Head; ++at)
                            {
                                slopes[other] +=
                                    dy[(row * own) + at] * qkv[(((other * 3) + 2) * own) + at];
                            }

                            mean += chances[other] * slopes[other];
                        }

                        for (int other = 0; other <= row; ++other)
                        {
                            double slope =
                                chances[other] * (slopes[other] - mean) / Math.Sqrt(Head);
                            for (int at = head * Head; at < (head + 1) * Head; ++at)
                            {
                                int q = (row * 3 * own) + at;
                                int k = (((other * 3) + 1) * own) + at;
                                to[q] += slope * qkv[k];
                                to[k] += slope * qkv[q];
                                to[k + own] += chances[other] * dy[(row * own) + at];
                            }
                        }
                    }
                }
            }
        }

        [Test]
        public static void Training_is_that_of_a_plain_loop()
        {
            double[] losses;
            double[][] expected = PlainTraining(out losses);
            double[][] alone = null;
            foreach (int ranks in new[] { 1, 2, 4 })
            {
                double[][] found = FirstWeights();
                Ranks.RunAndLeaveTogether(ranks, c => Train(c, found, losses));
                for (int n = 0; n < 2; ++n)
                {
                    for (int i = 0; i < found[n].Length; ++i)
                    {
                        Check.Equal(true, Math.Abs(found[n][i] - expected[n][i]) < 1e-6);
                    }
                }

                alone = alone ?? found;
                Check.Same(alone[0], found[0], "the same bits on " + ranks);
                Check.Same(alone[1], found[1], "the same bits on " + ranks);
            }
        }

        [Test]
        public static void Arguments_are_checked()
        {
            Ranks.RunAndLeaveTogether(1, c =>
            {
                using (Tensor tensor = Tensor.Create(c, 4, gemm: GemmKind.Builtin))
                {
                    Check.Throws<ArgumentNullException>(() => new ParallelAttention<double>(
                        null, "a", 8, 4, Rows, new Causal()));
                    Check.Throws<ArgumentNullException>(() => new ParallelAttention<double>(
                        tensor, null, 8, 4, Rows, new Causal()));
                    Check.Throws<ArgumentNullException>(() => new ParallelAttention<double>(
                        tensor, "a", 8, 4, Rows, null));
                    foreach (int[] sizes in new[]
                    {
                        new[] { 6, 3 }, new[] { 8, 0 }, new[] { 6, 4 },
                    })
                    {
                        Check.Contains(
                            sizes[1] + " heads",
                            Check.Throws<ArgumentException>(() => new ParallelAttention<double>(
                                tensor, "a", sizes[0], sizes[1], Rows, new Causal()))
                                .Message);
                    }

                    for (int i = 0; i < 2; ++i)
                    {
                        using (var layer = new ParallelAttention<double>(
                            tensor, "a", 8, 4, Rows, new Causal()))
                        {
                            Check.Equal(ParallelMode.Column | ParallelMode.Row, layer.Mode);
                            Check.Throws<ArgumentNullException>(
                                () => layer.Forward(null, null, null, null, null));
                        }
                    }
                }
            });
        }

        [Test]
        public static void The_element_type_stands_for_T()
        {
            Ranks.RunAndLeaveTogether(1, c =>
            {
                using (Tensor tensor = Tensor.Create(c, 4, gemm: GemmKind.Builtin))
                {
                    foreach (ElementType wrong in new[] { ElementType.F32, ElementType.Bf16 })
                    {
                        Check.Contains(
                            "An element of " + wrong,
                            Check.Throws<ArgumentException>(() => new ParallelAttention<double>(
                                tensor, "a", 8, 4, Rows, new Causal(), false, wrong)).Message);
                    }

                    // A name that a refused layer had is free. The type of 2 bytes needs a name.
                    new ParallelAttention<double>(tensor, "a", 8, 4, Rows, new Causal()).Dispose();
                    Check.Throws<UnsupportedException>(() => new ParallelAttention<ushort>(
                        tensor, "a", 8, 4, Rows, new NoCore()));
                    new ParallelAttention<ushort>(
                        tensor, "a", 8, 4, Rows, new NoCore(), false, ElementType.Bf16).Dispose();
                }
            });
        }

        [Test]
        public static void Memory_beyond_an_array_is_refused()
        {
            // Three times this is 2 in 32 bits.
            Check.Throws<OverflowException>(() => new AttentionKept<byte>(1431655766, 0, 0));
        }

        [Test]
        public static void Passes_come_in_their_order()
        {
            Ranks.RunAndLeaveTogether(1, c =>
            {
                var core = new Causal();
                using (Tensor tensor = Tensor.Create(c, 4, gemm: GemmKind.Builtin))
                using (var layer = new ParallelAttention<double>(
                    tensor, "a", Width, Heads, Rows, core))
                using (var other = new ParallelAttention<double>(
                    tensor, "b", Width, Heads, Rows, core, false, ElementType.F64))
                {
                    double[][] w = FirstWeights(), dw = FirstWeights();
                    double[] x = Numbers(Rows * Width, 1), y = new double[x.Length];
                    AttentionKept<double> kept = layer.Keep();
                    Action forward = () => layer.Forward(x, w[0], w[1], y, kept);
                    Action<ParallelAttention<double>> input =
                        one => one.BackwardInput(x, w[0], w[1], y, kept);
                    Action<ParallelAttention<double>> weight =
                        one => one.BackwardWeight(x, x, dw[0], dw[1], kept);
                    Action<ParallelAttention<double>> noInput = one => Check.Contains(
                        "BackwardInput: Forward of this micro-batch is missing",
                        Check.Throws<InvalidOperationException>(() => input(one)).Message);
                    Action<ParallelAttention<double>> noWeight = one => Check.Contains(
                        "BackwardWeight: BackwardInput of this micro-batch is missing",
                        Check.Throws<InvalidOperationException>(() => weight(one)).Message);
                    noInput(layer);
                    noWeight(layer);
                    for (int i = 0; i < 2; ++i)
                    {
                        forward();
                        forward();
                        noInput(other);
                        noWeight(layer);
                        input(layer);
                        noInput(layer);
                        noWeight(other);
                        weight(layer);
                        noInput(layer);
                        noWeight(layer);
                    }

                    forward();
                    core.Throws = true;
                    Check.Throws<NotImplementedException>(forward);
                    noInput(layer);
                    noWeight(layer);
                }
            });
        }

        [Test]
        public static void Abort_ends_the_wait_for_a_core_that_threw()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var core = new Causal { Throws = c.Rank == 1 };
                using (Tensor tensor = Tensor.Create(c, 4, gemm: GemmKind.Builtin))
                using (var layer = new ParallelAttention<double>(
                    tensor, "a", Width, Heads, Rows, core))
                {
                    double[] x = Numbers(Rows * Width, 1), y = new double[x.Length];
                    double[] qkv = Numbers(3 * Width * Width / 2, 3);
                    double[] output = Numbers(Width * Width / 2, 4);
                    Action forward = () => layer.Forward(x, qkv, output, y, layer.Keep());
                    if (core.Throws)
                    {
                        Check.Throws<NotImplementedException>(forward);
                        c.Abort("a core has thrown");
                    }
                    else
                    {
                        Check.Contains(
                            "a core has thrown", Check.Throws<AbortedException>(forward).Message);
                    }
                }
            });
        }

        private static void Train(Communicator c, double[][] found, double[] losses)
        {
            using (Tensor tensor = Tensor.Create(c, 4, gemm: GemmKind.Builtin))
            using (var layer = new ParallelAttention<double>(
                tensor, "attention", Width, Heads, Rows, new Causal()))
            {
                Share own = tensor.Range(Width);
                Check.Equal(layer.Shape.Heads.First * Head, own.First);
                int[] rows = Enumerable.Range((int)own.First, (int)own.Count).ToArray();
                int[][] places =
                {
                    Enumerable.Range(0, 3).SelectMany(part => rows.SelectMany(i =>
                        Enumerable.Range(0, Width)
                            .Select(j => (((part * Width) + i) * Width) + j))).ToArray(),
                    Enumerable.Range(0, Width)
                        .SelectMany(j => rows.Select(i => (j * Width) + i)).ToArray(),
                };
                double[][] whole = FirstWeights();
                double[][] mine = places
                    .Select((list, n) => list.Select(at => whole[n][at]).ToArray()).ToArray();
                double[][] slopes = mine.Select(part => new double[part.Length]).ToArray();
                double[] x = Numbers(Rows * Width, 1), dy = Numbers(Rows * Width, 2);
                double[] y = new double[x.Length], dx = new double[x.Length];
                AttentionKept<double> kept = layer.Keep();
                for (int step = 0; step < Steps; ++step)
                {
                    layer.Forward(x, mine[0], mine[1], y, kept);
                    double loss = y.Zip(dy, (a, b) => a * b).Sum();
                    Check.Equal(true, Math.Abs(loss - losses[step]) < 1e-6);
                    layer.BackwardInput(dy, mine[0], mine[1], dx, kept);
                    layer.BackwardWeight(x, dy, slopes[0], slopes[1], kept);
                    for (int n = 0; n < 2; ++n)
                    {
                        for (int i = 0; i < mine[n].Length; ++i)
                        {
                            mine[n][i] -= Rate * slopes[n][i];
                        }
                    }
                }

                lock (found)
                {
                    for (int n = 0; n < 2; ++n)
                    {
                        for (int i = 0; i < mine[n].Length; ++i)
                        {
                            found[n][places[n][i]] = mine[n][i];
                        }
                    }
                }
            }
        }

        private static double[] Numbers(int count, int salt)
        {
            return Enumerable.Range(0, count)
                .Select(i => ((((i * 37) + (salt * 11)) % 29) - 14) / 32.0).ToArray();
        }

        private static double[][] FirstWeights()
        {
            return new[] { Numbers(3 * Width * Width, 3), Numbers(Width * Width, 4) };
        }

        // The weights of the positions up to a row, of three parts of `own` numbers.
        private static double[] Chances(double[] qkv, int own, int head, int row)
        {
            var made = new double[row + 1];
            for (int other = 0; other <= row; ++other)
            {
                double score = 0;
                for (int at = head * Head; at < (head + 1) * Head; ++at)
                {
                    score += qkv[(row * 3 * own) + at] * qkv[(((other * 3) + 1) * own) + at];
                }

                made[other] = Math.Exp(score / Math.Sqrt(Head));
            }

            double sum = made.Sum();
            return made.Select(each => each / sum).ToArray();
        }

        private static void Mix(double[] qkv, double[] mixed)
        {
            int own = mixed.Length / Rows;
            for (int row = 0; row < Rows; ++row)
            {
                for (int at = 0; at < own; ++at)
                {
                    double[] chances = Chances(qkv, own, at / Head, row);
                    mixed[(row * own) + at] = 0;
                    for (int other = 0; other <= row; ++other)
                    {
                        mixed[(row * own) + at] +=
                            chances[other] * qkv[(((other * 3) + 2) * own) + at];
                    }
                }
            }
        }

        private static double Product(double[] x, double[] weight, int row, int j)
        {
            double sum = 0;
            for (int i = 0; i < Width; ++i)
            {
                sum += x[(row * Width) + i] * weight[(j * Width) + i];
            }

            return sum;
        }

        private static double PlainLoss(double[][] weights)
        {
            double[] x = Numbers(Rows * Width, 1), slopes = Numbers(Rows * Width, 2);
            double[] qkv = Enumerable.Range(0, Rows * 3 * Width)
                .Select(i => Product(x, weights[0], i / (3 * Width), i % (3 * Width))).ToArray();
            var mixed = new double[Rows * Width];
            Mix(qkv, mixed);
            return Enumerable.Range(0, Rows * Width)
                .Sum(i => slopes[i] * Product(mixed, weights[1], i / Width, i % Width));
        }

        // SGD by central differences of the loss.
        private static double[][] PlainTraining(out double[] losses)
        {
            double[][] weights = FirstWeights();
            losses = new double[Steps];
            for (int step = 0; step < Steps; ++step)
            {
                losses[step] = PlainLoss(weights);
                double[][] next = weights.Select(part => (double[])part.Clone()).ToArray();
                for (int n = 0; n < 2; ++n)
                {
                    for (int i = 0; i < weights[n].Length; ++i)
                    {
                        double value = weights[n][i];
                        weights[n][i] = value + 1e-5;
                        double more = PlainLoss(weights);
                        weights[n][i] = value - 1e-5;
                        double less = PlainLoss(weights);
                        weights[n][i] = value;
                        next[n][i] -= Rate * (more - less) / 2e-5;
                    }
                }

                weights = next;
            }

            return weights;
        }
    }
}
