using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Tensor objects and their regions.</summary>
    internal static class TensorTests
    {
        private const int Rows = 5;
        private const int Columns = 7;

        [Test]
        public static void Ranks_share_an_extent()
        {
            Ranks.RunAndLeaveTogether(3, communicator =>
            {
                using (Tensor tensor = Tensor.Create(communicator, 8))
                {
                    long[] cuts = { 0, 2, 6, 10 };
                    int[] blocks = { 0, 2, 5, 8 };
                    int own = communicator.Rank;
                    Check.Equal(8, tensor.Blocks, "blocks");
                    Check.Equal(Between(blocks[own], blocks[own + 1]), tensor.OwnBlocks, "own");
                    Check.Equal(Between(cuts[own], cuts[own + 1]), tensor.Range(10), "range");
                    Check.Equal(Between(cuts[2], cuts[3]), tensor.Range(10, 2), "of rank 2");
                    Check.Equal(Between(1, 2), tensor.Block(5, 3), "block");
                    HeadShares heads = tensor.Heads(12, 3, 1);
                    Check.Equal(Between(3, 7), heads.Heads, "heads");
                    Check.Equal(Between(0, 2), heads.KvHeads, "key/value heads");
                    Check.Equal(true, heads.KvShared, "shared");
                    Check.Equal(false, tensor.Heads(16, 16).KvShared, "not shared");
                }
            });
        }

        [Test]
        public static void Columns_go_with_their_heads()
        {
            Ranks.RunAndLeaveTogether(3, communicator =>
            {
                using (Tensor tensor = Tensor.Create(communicator, 8))
                using (Region region = tensor.Region(
                    "q", RegionKind.Scatter, 2, 48, RegionDimension.Columns, columnUnit: 4))
                using (Region rows = tensor.Region(
                    "r", RegionKind.Gather, 24, 1, RegionDimension.Rows, rowUnit: 2))
                {
                    Share heads = tensor.Heads(12, 3).Heads;
                    float[] values = Enumerable.Range(0, 96).Select(i => (float)i).ToArray();
                    var output = new float[8 * heads.Count];
                    region.Forward(values, output);
                    Check.Same(
                        values.Where((value, i) => Has(heads, i % 48 / 4)).ToArray(), output,
                        "columns of the heads");
                    Check.Equal(2 * heads.Count, (long)rows.Info.InputCount, "rows");
                }
            });
        }

        [Test]
        public static void Every_kind_converts_arrays_and_gradients()
        {
            foreach (int worldSize in new[] { 1, 2, 3 })
            {
                Ranks.RunAndLeaveTogether(worldSize, communicator =>
                {
                    foreach (int blocks in new[] { 0, 8 })
                    {
                        using (Tensor tensor = Tensor.Create(communicator, blocks))
                        {
                            foreach (RegionKind kind in Enum.GetValues(typeof(RegionKind)))
                            {
                                CheckKind(tensor, kind);
                            }
                        }
                    }
                });
            }
        }

        [Test]
        public static void Ranks_that_differ_are_a_mismatch_on_all()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                string name = communicator.Rank == 0 ? "even" : "odd";
                using (Tensor tensor = Tensor.Create(communicator))
                using (Region region = tensor.Region(name, RegionKind.Reduce, 1, 2))
                {
                    Check.Throws<MismatchException>(
                        () => region.Forward(new float[2], new float[2]));
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

                using (Tensor tensor = Tensor.Create(communicator))
                using (Region region = tensor.Region("late", RegionKind.Reduce, 1, 1))
                {
                    Check.Throws<TriremeTimeoutException>(() => region.Forward(
                        new float[1], new float[1], TimeSpan.FromMilliseconds(50)));
                }
            });
        }

        [Test]
        public static void Wrong_arguments_are_refused()
        {
            using (Communicator alone = Trireme.Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                Check.Throws<ArgumentNullException>(() => Tensor.Create(null));
                Check.Throws<ArgumentOutOfRangeException>(() => Tensor.Create(alone, -1));
                Check.Throws<InvalidArgumentException>(() => Tensor.Create(alone, 65537));
                Tensor tensor = Tensor.Create(alone, 2);
                Check.Throws<InvalidArgumentException>(() => tensor.Range(4, 1));
                Check.Throws<ArgumentOutOfRangeException>(() => tensor.Range(-1));
                Check.Throws<InvalidArgumentException>(() => tensor.Block(4, 2));
                Check.Throws<InvalidArgumentException>(() => tensor.Heads(4, 3));
                Check.Throws<ArgumentNullException>(
                    () => tensor.Region(null, RegionKind.Copy, 1, 1));
                Check.Throws<InvalidArgumentException>(
                    () => tensor.Region("", RegionKind.Copy, 1, 1));
                Check.Throws<InvalidArgumentException>(
                    () => tensor.Region("x", (RegionKind)8, 1, 1));
                Check.Throws<InvalidArgumentException>(
                    () => tensor.Region("x", RegionKind.Gather, 1, 1));
                Check.Throws<InvalidArgumentException>(
                    () => tensor.Region("a\nb", RegionKind.Copy, 1, 1));
                Check.Throws<InvalidArgumentException>(
                    () => tensor.Region("x", RegionKind.Copy, 4, 4, rowUnit: 2));
                Check.Throws<InvalidArgumentException>(() => tensor.Region(
                    "x", RegionKind.Gather, 4, 4, RegionDimension.Columns, columnUnit: 3));
                Check.Throws<ArgumentOutOfRangeException>(
                    () => tensor.Region("x", RegionKind.Copy, 4, 4, columnUnit: -1));
                Check.Throws<UnsupportedException>(() => tensor.Region(
                    "x", RegionKind.Reduce, 1, 1, elementType: ElementType.Bool));
                Region region = tensor.Region("x", RegionKind.Reduce, 1, 2);
                Check.Throws<InvalidArgumentException>(
                    () => tensor.Region("x", RegionKind.Reduce, 1, 2));
                Check.Equal(1, tensor.RegionCount, "regions");
                var good = new float[] { 1, 2 };
                var output = new float[] { 7, 7 };
                Check.Throws<InvalidArgumentException>(() => region.Forward(good, output));
                Check.Throws<InvalidArgumentException>(
                    () => region.Forward(new float[0][], output));
                Check.Throws<ArgumentNullException>(
                    () => region.Forward(new[] { good, null }, output));
                Check.Throws<ArgumentNullException>(
                    () => region.Forward(new[] { good, good }, (float[])null));
                Check.Throws<ArgumentException>(
                    () => region.Forward(new[] { good, new float[3] }, output));
                Check.Throws<ArgumentException>(
                    () => region.Forward(new[] { good, good }, new float[1]));
                Check.Throws<ArgumentException>(
                    () => region.Forward(new[] { new double[2], new double[2] }, new double[2]));
                Check.Throws<InvalidStateException>(() => region.Backward(good, output));
                Check.Same(new float[] { 7, 7 }, output, "untouched");
                tensor.Dispose();
                region.Forward(new[] { good, good }, output);
                Check.Same(new float[] { 2, 4 }, output, "after the tensor object");
                Check.Equal(1L, region.Info.ForwardPasses, "passes");
                region.Dispose();
                Check.Throws<ObjectDisposedException>(() => region.Forward(good, output));
                Check.Throws<ObjectDisposedException>(() => tensor.Range(4));
            }
        }

        /// <summary>A forward and a backward pass, compared with plain loops.</summary>
        private static void CheckKind(Tensor tensor, RegionKind kind)
        {
            bool splits = kind != RegionKind.Copy && kind != RegionKind.Reduce;
            RegionDimension[] dimensions = splits
                ? new[] { RegionDimension.Rows, RegionDimension.Columns }
                : new[] { RegionDimension.None };
            foreach (RegionDimension dimension in dimensions)
            {
                using (Region region = tensor.Region("r", kind, Rows, Columns, dimension))
                {
                    string[] forms = Forms(kind, dimension);
                    for (int pass = 0; pass < 2; ++pass)
                    {
                        string from = forms[pass];
                        string to = forms[1 - pass];
                        float[][] parts;
                        float[] whole = Whole(pass);
                        if (from == "summands")
                        {
                            parts = Enumerable.Range(0, (int)tensor.OwnBlocks.Count)
                                .Select(i => Whole(100 + (int)tensor.OwnBlocks.First + i))
                                .ToArray();
                            whole = new float[Rows * Columns];
                            for (int block = 0; block < tensor.Blocks; ++block)
                            {
                                float[] summand = Whole(100 + block);
                                for (int i = 0; i < whole.Length; ++i)
                                {
                                    whole[i] += summand[i];
                                }
                            }
                        }
                        else
                        {
                            parts = new[] { Part(tensor, whole, from) };
                        }

                        float[] wanted = Part(tensor, whole, to);
                        var output = new float[wanted.Length];
                        if (pass == 0)
                        {
                            region.Forward(parts, output);
                        }
                        else
                        {
                            region.Backward(parts, output);
                        }

                        Check.Same(wanted, output, kind + " by " + dimension + ", " + pass);
                    }
                }
            }
        }

        private static string[] Forms(RegionKind kind, RegionDimension dimension)
        {
            string part = dimension.ToString();
            switch (kind)
            {
                case RegionKind.Copy: return new[] { "whole", "summands" };
                case RegionKind.Reduce: return new[] { "summands", "whole" };
                case RegionKind.Gather: return new[] { part, "whole" };
                case RegionKind.GatherSum: return new[] { part, "summands" };
                case RegionKind.Scatter: return new[] { "whole", part };
                case RegionKind.ReduceScatter: return new[] { "summands", part };
                default: return new[] { part, part == "Rows" ? "Columns" : "Rows" };
            }
        }

        /// <summary>Whole numbers, so that sums are exact in any order.</summary>
        private static float[] Whole(int salt)
        {
            return Enumerable.Range(0, Rows * Columns)
                .Select(i => (float)((i * 31 + salt * 17) % 23 - 11)).ToArray();
        }

        private static float[] Part(Tensor tensor, float[] whole, string form)
        {
            Share rows = tensor.Range(Rows);
            Share columns = tensor.Range(Columns);
            return whole.Where((value, i) =>
                (form != "Rows" || Has(rows, i / Columns)) &&
                (form != "Columns" || Has(columns, i % Columns))).ToArray();
        }

        private static bool Has(Share share, long number)
        {
            return number >= share.First && number < share.First + share.Count;
        }

        private static Share Between(long first, long end)
        {
            return new Share(first, end - first);
        }
    }
}
