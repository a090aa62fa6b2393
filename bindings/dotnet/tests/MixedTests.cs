using System.Linq;

namespace Trireme.Tests
{
    /// <summary>A model of several types: its parameters as bytes.</summary>
    internal static class MixedTests
    {
        [Test]
        public static void Parameters_go_to_all_ranks_as_bytes()
        {
            foreach (Strategy strategy in ModelTests.Strategies)
            {
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    var options = new ModelOptions { Strategy = strategy, MinimumUnitBytes = 1 };
                    if (strategy == Strategy.HybridShard)
                    {
                        options.ShardRanks = 2;
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
