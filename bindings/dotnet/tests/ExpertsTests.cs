using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Experts on several ranks: rows, sums and gradients of plain loops.</summary>
    internal static class ExpertsTests
    {
        private const int Rows = 13;
        private const int Count = 5;
        private const int TopK = 2;
        private const int Width = 3;
        private static readonly int[] LeafRows = { 3, 0, 5, 1, 4 };
        private static readonly double[] MeanGradients = { 0.5, -1, 2, 0, 1 };

        [Test]
        public static void Outputs_and_gradients_are_those_of_plain_loops()
        {
            foreach (int worldSize in new[] { 1, 2, 3, 5 })
            {
                Ranks.RunAndLeaveTogether(worldSize, communicator =>
                {
                    using (Experts experts = Experts.Create(communicator, Options()))
                    {
                        Share leaves = experts.Info.OwnLeaves;
                        int first = LeafRows.Take((int)leaves.First).Sum();
                        int[] mine = LeafRows.Skip((int)leaves.First).Take((int)leaves.Count)
                            .ToArray();
                        int[] own = Enumerable.Range(first, mine.Sum()).ToArray();
                        ulong[] leafRows = mine.Select(rows => (ulong)rows).ToArray();
                        // Two micro-batches are under way.
                        float[][] scores = Enumerable.Range(0, 2).Select(batch => own
                            .SelectMany(row => Enumerable.Range(0, Count)
                                .Select(e => (float)Score(row, e, batch))).ToArray()).ToArray();
                        Routing[] routings = scores
                            .Select(each => experts.Route(each, null, leafRows)).ToArray();
                        for (int batch = 1; batch >= 0; --batch)
                        {
                            Train(experts, routings[batch], scores[batch], own, batch);
                        }

                        ExpertsInfo info = experts.Info;
                        Check.Equal(2L, info.Routes, "routes");
                        Check.Equal(2L, info.DispatchesBackward, "backward dispatch passes");
                        Check.Equal(info.PassMemory, info.HeldMemory, "memory");
                    }
                });
            }
        }

        [Test]
        public static void Padding_and_what_is_dropped()
        {
            foreach (int worldSize in new[] { 1, 2, 3 })
            {
                Ranks.RunAndLeaveTogether(worldSize, communicator =>
                {
                    var options = new ExpertsOptions
                    {
                        Name = "moe 3", Experts = 2, TopK = 1, Width = 1, Rows = 4,
                        ElementType = ElementType.F64, Scores = ExpertScores.Probabilities,
                        Normalize = true, Capacity = 1, Drop = ExpertDrop.LowestWeight,
                    };
                    using (Experts experts = Experts.Create(communicator, options))
                    {
                        Routing routing = experts.Route(
                            new float[] { 1, 0, 0.5f, 0.25f, 9, 9, 0, 3 },
                            new byte[] { 0, 0, 1, 0 });
                        ulong ranks = (ulong)worldSize;
                        Check.Same(new[] { 0, -1, -1, 1 }, routing.Chosen, "chosen");
                        Check.Same(new float[] { 1, 1, 0, 1 }, routing.Weights, "weights");
                        Check.Same(new[] { 2 * ranks, ranks }, routing.ExpertRows, "rows");
                        Check.Same(new[] { ranks, 0UL }, routing.ExpertDropped, "dropped");
                        Check.Equal(3L * worldSize, routing.RealRows, "real rows");
                        var received = new double[routing.ReceivedRows];
                        experts.Dispatch<double>(routing, new double[] { 7, 8, 9, 10 }, received);
                        var output = new double[] { 99, 99, 99, 99 };
                        experts.Combine<double>(routing, received, output);
                        Check.Same(new double[] { 7, 0, 0, 10 }, output, "output");
                    }
                });
            }
        }

        [Test]
        public static void Ranks_that_differ_are_a_mismatch_on_all()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                ExpertsOptions options = Options();
                options.Normalize = communicator.Rank == 0;
                options.Leaves = 0;
                using (Experts experts = Experts.Create(communicator, options))
                {
                    Check.Throws<MismatchException>(() => experts.Route(new float[Count]));
                }
            });
        }

        [Test]
        public static void Wrong_arguments_are_refused()
        {
            using (Communicator alone = Trireme.Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                Check.Throws<ArgumentNullException>(() => Experts.Create(null, Options()));
                Check.Throws<ArgumentNullException>(() => Experts.Create(alone, null));
                Check.Throws<ArgumentNullException>(
                    () => Experts.Create(alone, new ExpertsOptions()));
                ExpertsOptions wrong = Options();
                wrong.TopK = 6;
                Check.Throws<InvalidArgumentException>(() => Experts.Create(alone, wrong));
                wrong.TopK = -1;
                Check.Throws<ArgumentOutOfRangeException>(() => Experts.Create(alone, wrong));
                wrong = Options();
                wrong.ElementType = ElementType.I32;
                Check.Throws<UnsupportedException>(() => Experts.Create(alone, wrong));
                ExpertsOptions options = Options();
                options.Leaves = 2;
                Experts experts = Experts.Create(alone, options);
                var scores = new float[2 * Count];
                scores[1] = 1;
                ulong[] leafRows = { 1, 1 };
                Check.Throws<ArgumentException>(() => experts.Route(new float[3], null, leafRows));
                Check.Throws<ArgumentException>(
                    () => experts.Route(scores, new byte[1], leafRows));
                Check.Throws<ArgumentException>(() => experts.Route(scores, null, new ulong[1]));
                Check.Throws<InvalidArgumentException>(() => experts.Route(scores));
                Routing routing = experts.Route(scores, null, leafRows);
                Check.Equal(new Share(1, 1), routing.Segment(0, 1), "a segment");
                Check.Throws<ArgumentOutOfRangeException>(() => routing.Segment(Count, 0));
                Check.Throws<ArgumentOutOfRangeException>(() => routing.Segment(0, 2));
                var rows = new float[2 * Width];
                var received = new float[4 * Width];
                Check.Throws<ArgumentNullException>(
                    () => experts.Dispatch<float>(null, rows, received));
                Check.Throws<ArgumentException>(
                    () => experts.Dispatch<float>(routing, rows, rows));
                Check.Throws<ArgumentException>(
                    () => experts.Dispatch<double>(routing, new double[6], new double[12]));
                Check.Throws<InvalidStateException>(() => experts.CombineBackward<float>(
                    routing, rows, received, new float[4 * Width], new float[4]));
                Check.Throws<ArgumentException>(
                    () => experts.RouteBackward(routing, scores, new float[3], scores));
                options.Name = "another";
                using (Experts other = Experts.Create(alone, options))
                {
                    Check.Throws<InvalidArgumentException>(
                        () => other.Dispatch<float>(routing, rows, received));
                }

                options.Experts = 1000; // its routings are longer
                using (Experts other = Experts.Create(alone, options))
                {
                    Check.Throws<ArgumentException>(
                        () => other.Dispatch<float>(routing, rows, received));
                    Check.Throws<ArgumentException>(
                        () => other.RouteBackward(routing, scores, new float[4], scores));
                }

                experts.Dispatch<float>(routing, rows, received);
                experts.Dispose();
                Check.Throws<ObjectDisposedException>(
                    () => experts.Dispatch<float>(routing, rows, received));
            }
        }

        private static ExpertsOptions Options()
        {
            return new ExpertsOptions
            {
                Name = "moe 3", Experts = Count, TopK = TopK, Width = Width, Rows = Rows,
                Leaves = LeafRows.Length,
            };
        }

        private static double Score(int row, int expert, int batch)
        {
            return ((((row * 31) + (expert * 17) + (batch * 5)) % 23) - 11) / 4.0;
        }

        private static float Element(int row, int column)
        {
            return ((((row * 7) + (column * 3)) % 11) - 5) / 4f;
        }

        private static float Slope(int row, int column)
        {
            return ((((row * 5) + column) % 9) - 4) / 8f;
        }

        private static float[] All(int[] own, Func<int, int, float> element)
        {
            return own.SelectMany(row => Enumerable.Range(0, Width).Select(c => element(row, c)))
                .ToArray();
        }

        /// <summary>Expert e of this rank multiplies by e + 1.</summary>
        private static float[] Multiply(Experts experts, Routing routing, float[] rows)
        {
            var results = new float[rows.Length];
            ExpertsInfo info = experts.Info;
            for (long e = info.OwnExperts.First; e < info.OwnExperts.First + info.OwnExperts.Count;
                 ++e)
            {
                for (int leaf = 0; leaf < info.Leaves; ++leaf)
                {
                    Share segment = routing.Segment((int)e, leaf);
                    for (long i = segment.First * Width;
                         i < (segment.First + segment.Count) * Width; ++i)
                    {
                        results[i] = (e + 1) * rows[i];
                    }
                }
            }

            return results;
        }

        private static void Train(
            Experts experts, Routing routing, float[] scores, int[] own, int batch)
        {
            var received = new float[routing.ReceivedRows * Width];
            experts.Dispatch<float>(routing, All(own, Element), received);
            var output = new float[own.Length * Width];
            var returned = new float[routing.SentRows * Width];
            experts.Combine<float>(
                routing, Multiply(experts, routing, received), output, returned);
            var dResults = new float[received.Length];
            var dWeights = new float[own.Length * TopK];
            experts.CombineBackward<float>(
                routing, All(own, Slope), returned, dResults, dWeights);
            var dRows = new float[output.Length];
            experts.DispatchBackward<float>(
                routing, Multiply(experts, routing, dResults), dRows);
            var dScores = new float[scores.Length];
            experts.RouteBackward(routing, scores, dWeights, dScores, MeanGradients);
            for (int i = 0; i < own.Length; ++i)
            {
                CheckRow(
                    own[i], batch, routing.Chosen.Skip(i * TopK).Take(TopK).ToArray(),
                    output.Skip(i * Width).Take(Width).ToArray(),
                    dRows.Skip(i * Width).Take(Width).ToArray(),
                    dScores.Skip(i * Count).Take(Count).ToArray());
            }
        }

        private static void CheckRow(
            int row, int batch, int[] chosen, float[] output, float[] dRow, float[] dScores)
        {
            double[] p = Enumerable.Range(0, Count)
                .Select(e => Math.Exp(Score(row, e, batch))).ToArray();
            p = p.Select(each => each / p.Sum()).ToArray();
            int[] best = Enumerable.Range(0, Count)
                .OrderByDescending(e => Score(row, e, batch)).Take(TopK).ToArray();
            Check.Same(best, chosen, "experts of row " + row);
            double factor = best.Sum(e => p[e] * (e + 1));
            double product = Enumerable.Range(0, Width).Sum(c => Slope(row, c) * Element(row, c));
            double[] dp = Enumerable.Range(0, Count).Select(
                e => (MeanGradients[e] / Rows) + (best.Contains(e) ? (e + 1) * product : 0))
                .ToArray();
            double mean = Enumerable.Range(0, Count).Sum(e => p[e] * dp[e]);
            for (int c = 0; c < Width; ++c)
            {
                Near(factor * Element(row, c), output[c], "output of row " + row);
                Near(factor * Slope(row, c), dRow[c], "gradient of row " + row);
            }

            for (int e = 0; e < Count; ++e)
            {
                Near(p[e] * (dp[e] - mean), dScores[e], "scores' gradient of row " + row);
            }
        }

        private static void Near(double wanted, double got, string what)
        {
            Check.Equal(true, Math.Abs(wanted - got) < 1e-5 * (1 + Math.Abs(wanted)), what);
        }
    }
}
