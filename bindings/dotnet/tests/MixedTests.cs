using System;
using System.Collections.Generic;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>A model of several types: its parameters as bytes, and by name.</summary>
    internal static class MixedTests
    {
        private static Dictionary<string, Array> ValuesOf(int rank)
        {
            return new Dictionary<string, Array>
            {
                { "narrow", Enumerable.Range(1, 5).Select(i => (ushort)(i + 10 * rank)).ToArray() },
                { "wide", new[] { 0.1 + rank, 0.2, -1e300 } },
                { "single", new float[,] { { 1, 2 + rank, 3 }, { 4, 5, 6.5f } } },
            };
        }

        [Test]
        public static void Parameters_go_to_all_ranks_by_name()
        {
            foreach (Strategy strategy in ModelTests.Strategies)
            {
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    var options = new ModelOptions { Strategy = strategy, Units = new Units { MinimumBytes = 1 } };
                    if (strategy == Strategy.HybridShard)
                    {
                        options.Shards = 2;
                    }

                    using (var model = new Model(c, options))
                    {
                        model.AddParameter(new ParameterOptions("narrow", ElementType.Bf16, 5));
                        model.AddParameter(new ParameterOptions("wide", ElementType.F64, 3));
                        model.AddParameter(new ParameterOptions("single", ElementType.F32, 2, 3));
                        model.AddParameter(
                            new ParameterOptions("tied", ElementType.F32, 2, 3) { TiedTo = "single" });
                        model.Seal();
                        for (int root = 0; root < 2; ++root)
                        {
                            model.BroadcastParameters(c.Rank == root ? ValuesOf(root) : null, root);
                            Dictionary<string, Array> seen = model.GatherParameters();
                            Dictionary<string, Array> wanted = ValuesOf(root);
                            Check.Equal(wanted.Count, seen.Count);
                            Check.Same((ushort[])wanted["narrow"], (ushort[])seen["narrow"]);
                            Check.Same((double[])wanted["wide"], (double[])seen["wide"]);
                            Check.Same(
                                ((float[,])wanted["single"]).Cast<float>().ToArray(),
                                ((float[,])seen["single"]).Cast<float>().ToArray());
                        }

                        // Refused before anything is sent.
                        Refuse(model, "no value for parameter 'wide'", v => v.Remove("wide"));
                        Refuse(model, "no parameter 'tied'", v => v["tied"] = new float[6]);
                        Refuse(model, "System.Double[]", v => v["wide"] = new float[3]);
                        Refuse(model, "[2, 3], and the value [3, 2]",
                               v => v["single"] = new float[3, 2]);
                        Refuse(model, "[5], and the value [4]", v => v["narrow"] = new ushort[4]);
                    }
                });
            }
        }

        private static void Refuse(
            Model model, string word, Action<Dictionary<string, Array>> change)
        {
            Dictionary<string, Array> values = ValuesOf(0);
            change(values);
            var refused = Check.Throws<ArgumentException>(() => model.BroadcastParameters(values));
            Check.Contains(word, refused.Message);
        }

        [Test]
        public static void Parameters_go_to_all_ranks_as_bytes()
        {
            foreach (Strategy strategy in ModelTests.Strategies)
            {
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    var options = new ModelOptions { Strategy = strategy, Units = new Units { MinimumBytes = 1 } };
                    if (strategy == Strategy.HybridShard)
                    {
                        options.Shards = 2;
                    }

                    using (var model = new Model(c, options))
                    {
                        model.AddParameter(new ParameterOptions("narrow", ElementType.Bf16, 5));
                        model.AddParameter(new ParameterOptions("wide", ElementType.F64, 3));
                        model.AddParameter(new ParameterOptions("single", ElementType.F32, 2, 3));
                        model.Seal();
                        byte[] values = Enumerable.Range(0, 58).Select(i => (byte)i).ToArray();
                        model.SetParameters<byte>(
                            c.Rank == 1 ? values : new byte[58], 1, ElementType.Bytes);
                        var seen = new byte[58];
                        model.GetParameters<byte>(seen, ElementType.Bytes);
                        Check.Same(values, seen, strategy.ToString());
                        var refused = Check.Throws<InvalidArgumentException>(
                            () => model.GetParameters<float>(new float[14]));
                        Check.Contains("as bytes", refused.Message);
                        Check.Throws<InvalidArgumentException>(
                            () => model.GetParameters<byte>(new byte[57], ElementType.Bytes));
                    }
                });
            }
        }
    }
}
