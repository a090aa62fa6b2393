using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Vocabularies that ranks split: embeddings, losses and gradients.</summary>
    internal static class VocabularyTests
    {
        private const int Classes = 11;
        private const int Width = 3;
        private const int Ignored = -1;
        private static readonly int[] Tokens = { 0, 10, 4, 4, 7 };

        [Test]
        public static void Embeddings_are_copied_and_gradients_added()
        {
            float[] weight = Enumerable.Range(0, Classes * Width)
                .Select(i => i % 4 == 0 ? -0.0f : i).ToArray();
            float[] gradients = Enumerable.Range(0, Tokens.Length * Width)
                .Select(i => i / 8f).ToArray();
            foreach (int worldSize in new[] { 1, 2, 3 })
            {
                Ranks.RunAndLeaveTogether(worldSize, communicator =>
                {
                    using (Tensor tensor = Tensor.Create(communicator, 8))
                    using (VocabularyParallelEmbedding embedding =
                        VocabularyParallelEmbedding.Create(tensor, "tokens", Classes, Width, 8))
                    {
                        Share own = embedding.Info.Classes;
                        Check.Equal(tensor.Range(Classes), own, "classes");
                        int first = (int)own.First * Width;
                        float[] part = weight.Skip(first).Take((int)own.Count * Width).ToArray();
                        var output = new float[Tokens.Length * Width];
                        embedding.Forward<float>(Tokens, part, output);
                        Check.Same(
                            Tokens.SelectMany(t => weight.Skip(t * Width).Take(Width)).ToArray(),
                            output, "embeddings");
                        Check.Equal(
                            float.NegativeInfinity, 1 / output[0], "a zero below zero");
                        float[] sums = part.Select(value => 1f).ToArray();
                        embedding.Backward<float>(Tokens, gradients, sums);
                        float[] wanted = part.Select((value, i) => 1 + Enumerable.Range(0, 5)
                            .Where(row => Tokens[row] == own.First + i / Width)
                            .Sum(row => gradients[row * Width + i % Width])).ToArray();
                        Check.Same(wanted, sums, "weight gradient");
                    }
                });
            }
        }

        [Test]
        public static void Losses_and_gradients_are_those_of_plain_loops()
        {
            foreach (int worldSize in new[] { 1, 2, 3, 5 })
            {
                Ranks.RunAndLeaveTogether(worldSize, communicator =>
                {
                    using (Tensor tensor = Tensor.Create(communicator, 8))
                    using (ParallelCrossEntropy entropy = ParallelCrossEntropy.Create(
                        tensor, "lm head", Classes, 6, ElementType.F64, 0.125, 0.01, Ignored))
                    {
                        Share own = entropy.Info.Classes;
                        int[][] targets = { Tokens, new[] { 3, Ignored, 8 } };
                        var logits = new double[2][];
                        var losses = new double[2][];
                        var kept = new byte[2][];
                        for (int i = 0; i < 2; ++i)
                        {
                            int batch = i;
                            logits[i] = Enumerable.Range(0, targets[i].Length)
                                .SelectMany(row => Enumerable.Range(0, (int)own.Count)
                                    .Select(c => Logit(5 * batch + row, (int)own.First + c)))
                                .ToArray();
                            losses[i] = new double[targets[i].Length];
                            kept[i] = entropy.Forward<double, double>(
                                logits[i], targets[i], losses[i]);
                        }

                        for (int i = 0; i < 2; ++i)
                        {
                            double[] weights =
                                targets[i].Select((target, row) => row + 0.5).ToArray();
                            entropy.Backward<double, double>(
                                logits[i], targets[i], kept[i], weights, logits[i]);
                            for (int row = 0; row < targets[i].Length; ++row)
                            {
                                CheckRow(
                                    5 * i + row, targets[i][row], own, losses[i][row],
                                    weights[row], logits[i].Skip(row * (int)own.Count).ToArray());
                            }
                        }
                    }
                });
            }
        }

        [Test]
        public static void Ranks_with_other_targets_are_a_mismatch_on_all()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                using (Tensor tensor = Tensor.Create(communicator))
                using (ParallelCrossEntropy entropy =
                    ParallelCrossEntropy.Create(tensor, "x", 4, 1))
                {
                    int[] targets = { communicator.Rank };
                    Check.Throws<MismatchException>(() => entropy.Forward<float, float>(
                        new float[2], targets, new float[1]));
                }
            });
        }

        [Test]
        public static void Wrong_arguments_are_refused()
        {
            using (Communicator alone = Trireme.Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                Tensor tensor = Tensor.Create(alone);
                Check.Throws<ArgumentNullException>(
                    () => ParallelCrossEntropy.Create(null, "x", 4, 1));
                Check.Throws<ArgumentNullException>(
                    () => VocabularyParallelEmbedding.Create(tensor, null, 4, 1, 1));
                Check.Throws<ArgumentOutOfRangeException>(
                    () => VocabularyParallelEmbedding.Create(tensor, "x", 4, -1, 1));
                Check.Throws<InvalidArgumentException>(
                    () => VocabularyParallelEmbedding.Create(tensor, "x", 0, 1, 1));
                Check.Throws<InvalidArgumentException>(
                    () => ParallelCrossEntropy.Create(tensor, "x", 4, 1, labelSmoothing: 2));
                Check.Throws<UnsupportedException>(
                    () => ParallelCrossEntropy.Create(tensor, "x", 4, 1, ElementType.I32));
                ParallelCrossEntropy entropy = ParallelCrossEntropy.Create(tensor, "x", 4, 2);
                var logits = new float[8];
                var losses = new float[] { 7, 7 };
                Check.Throws<InvalidArgumentException>(() => entropy.Forward<float, float>(
                    logits, new[] { 3, 4 }, losses));
                Check.Throws<ArgumentException>(() => entropy.Forward<float, float>(
                    logits, new[] { 3 }, losses));
                Check.Throws<ArgumentException>(() => entropy.Forward<float, double>(
                    logits, new[] { 3, 1 }, new double[2]));
                Check.Same(new float[] { 7, 7 }, losses, "untouched");
                byte[] kept = entropy.Forward<float, float>(logits, new[] { 3, 1 }, losses);
                Check.Throws<ArgumentException>(() => entropy.Backward<float, float>(
                    logits, new[] { 3, 1 }, new byte[16], new float[0], logits));
                Check.Throws<ArgumentNullException>(() => entropy.Backward<float, float>(
                    logits, new[] { 3, 1 }, null, new float[0], logits));
                entropy.Backward<float, float>(
                    logits, new[] { 3, 1 }, kept, new float[0], logits);
                Check.Same(
                    new[] { 0.25f, 0.25f, 0.25f, -0.75f, 0.25f, -0.75f, 0.25f, 0.25f }, logits,
                    "gradients of 1");
                entropy.Dispose();
                Check.Throws<ObjectDisposedException>(() => entropy.Forward<float, float>(
                    logits, new[] { 3, 1 }, losses));
            }
        }

        private static double Logit(int row, int column)
        {
            return ((row * 31 + column * 17) % 23 - 11) / 4.0;
        }

        private static void CheckRow(
            int row, int target, Share own, double loss, double weight, double[] gradients)
        {
            double[] all = Enumerable.Range(0, Classes).Select(c => Logit(row, c)).ToArray();
            double total = Math.Log(all.Sum(value => Math.Exp(value)));
            double wanted = target == Ignored
                ? 0
                : total - 0.875 * all[target] - 0.125 / Classes * all.Sum() + 0.01 * total * total;
            Check.Equal(true, Math.Abs(loss - wanted) < 1e-12, "loss of row " + row);
            for (int i = 0; i < (int)own.Count; ++i)
            {
                int column = (int)own.First + i;
                double slope = (1 + 0.02 * total) * Math.Exp(all[column] - total) -
                    0.125 / Classes - (column == target ? 0.875 : 0);
                double right = target == Ignored ? 0 : slope * weight;
                Check.Equal(
                    true, Math.Abs(gradients[i] - right) < 1e-12,
                    "gradient " + column + " of row " + row);
            }
        }
    }
}
