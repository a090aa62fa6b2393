using System;
using System.Text.RegularExpressions;

namespace Trireme.Tests
{
    /// <summary>
    /// Where shards lie and when they move: limits of memory, orders, strides, kept units, rows.
    /// </summary>
    internal static class ModelLayoutTests
    {
        [Test]
        public static void A_memory_limit_is_kept_and_its_text_tells_what_would_fit()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                foreach (Strategy strategy in ModelTests.Strategies)
                {
                    string text = Check.Throws<HostMemoryException>(
                        () => ModelTests.Sealed(c, Limited(strategy, 1))).Message;
                    Check.Contains("memory_limit_bytes is 1 bytes", text);
                    Match said = Regex.Match(text, "rank 0 needs ([0-9]+) bytes");
                    Check.That(said.Success, "what it needs");
                    ulong needs = ulong.Parse(said.Groups[1].Value);
                    using (Model model = ModelTests.Sealed(c, Limited(strategy, needs)))
                    {
                        var adam = new OptimizerOptions { Rule = RuleKind.Adam };
                        Check.Contains(
                            "optimizer state",
                            Check.Throws<HostMemoryException>(
                                () => new Optimizer(model, adam)).Message);
                        OptimizerOptions sgd = ModelTests.Sgd();
                        using (new Optimizer(model, sgd))
                        {
                        }
                    }

                    Check.Throws<HostMemoryException>(
                        () => ModelTests.Sealed(c, Limited(strategy, needs - 1)));
                    ModelOptions planned = Limited(strategy, needs);
                    planned.PlannedRule = RuleKind.AdamW;
                    Check.Contains(
                        " of adamw; ",
                        Check.Throws<HostMemoryException>(
                            () => ModelTests.Sealed(c, planned)).Message);
                    planned.PlannedRule = RuleKind.User;
                    Check.Contains(
                        "a rule of the caller",
                        Check.Throws<InvalidArgumentException>(
                            () => ModelTests.Sealed(c, planned)).Message);
                }
            });
        }

        [Test]
        public static void Buckets_follow_the_gradients_unless_the_order_is_fixed()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                foreach (ModelFlags flags in new[] { ModelFlags.None, ModelFlags.FixedOrder })
                {
                    var options = new ModelOptions
                    {
                        Strategy = Strategy.Zero2, Flags = flags,
                        Buckets = new Buckets { Bytes = 1 },
                    };
                    using (Model model = ModelTests.Sealed(c, options))
                    using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
                    {
                        for (int step = 0; step < 2; ++step)
                        {
                            model.BeginBackward();
                            model.GradientReady<float>(0, new float[12]);
                            model.GradientReady<float>(1, new float[3]);
                            model.GradientReady<float>(2, new float[5]);
                            model.EndBackward();
                            optimizer.Step();
                        }

                        ulong moved = flags == ModelFlags.None ? 2ul : 0;
                        Check.Equal(moved, model.Statistics.MovedBuckets);
                        Check.Equal(0ul, model.Statistics.ExtraBuckets); // two have a place each
                    }
                }
            });
        }

        [Test]
        public static void The_ranks_of_a_copy_are_a_stride_apart()
        {
            var held = new ulong[4];
            Ranks.RunAndLeaveTogether(4, c =>
            {
                var options = new ModelOptions
                {
                    Strategy = Strategy.HybridShard, Shards = new Shards { Ranks = 2, Stride = 2 },
                };
                using (Model model = ModelTests.Sealed(c, options))
                {
                    held[c.Rank] = model.Memory.PlannedParameters;
                }

                Check.Throws<InvalidArgumentException>(() => new Model(
                    c,
                    new ModelOptions
                    {
                        Strategy = Strategy.HybridShard, Shards = new Shards { Ranks = 2, Stride = 3 },
                    }));
            });

            // 15 and 5 elements; the first two ranks keep the first 8 and the first 3 of them.
            Check.Equal(44ul, held[0]);
            Check.Equal(44ul, held[1]);
            Check.Equal(36ul, held[2]);
            Check.Equal(36ul, held[3]);
        }

        [Test]
        public static void Kept_units_are_gathered_once_a_step()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var options = new ModelOptions
                {
                    Strategy = Strategy.Zero3, Shards = new Shards { Share = ShareParameters.Never },
                    Flags = ModelFlags.KeepGathered,
                };
                using (Model model = ModelTests.Sealed(c, options))
                using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
                {
                    for (ulong step = 1; step <= 2; ++step)
                    {
                        foreach (ulong unit in new ulong[] { 0, 1, 1, 0, 0, 1 })
                        {
                            model.GatherUnit(unit);
                            model.ReleaseUnit(unit);
                        }

                        Check.Equal(2 * step, model.Statistics.Gathers);
                        model.AccumulateFlat<float>(new float[20]);
                        optimizer.Step();
                    }
                }
            });
        }

        [Test]
        public static void Buckets_are_updated_in_backward()
        {
            foreach (Strategy strategy in new[] { Strategy.DataParallel, Strategy.Zero3 })
            {
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    var options = new ModelOptions
                    {
                        Strategy = strategy, Flags = ModelFlags.UpdateInBackward,
                    };
                    using (Model model = ModelTests.Sealed(c, options))
                    {
                        var values = new float[20];
                        Check.Throws<InvalidStateException>(
                            () => model.AccumulateFlat<float>(new float[20]));
                        OptimizerOptions clipped = ModelTests.Sgd();
                        clipped.Clipping = 1;
                        Check.Throws<UnsupportedException>(() => new Optimizer(model, clipped));
                        using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
                        {
                            for (int i = 0; i < 20; ++i) values[i] = 1;
                            model.AccumulateFlat<float>(values);
                            optimizer.Step();
                            model.GetParameters<float>(values);
                            foreach (float value in values) Check.That(value < 0, "updated");
                            Check.Equal(0ul, model.Memory.PlannedGradients);
                        }
                    }
                });
            }
        }

        [Test]
        public static void Units_are_gathered_again_by_a_few()
        {
            Ranks.RunAndLeaveTogether(4, c =>
            {
                var options = new ModelOptions
                {
                    Strategy = Strategy.Zero3, Shards = new Shards { Share = ShareParameters.Never },
                    Units = new Units { ReshardRanks = 2 },
                };
                using (Model model = ModelTests.Sealed(c, options))
                using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
                {
                    for (ulong step = 1; step <= 2; ++step)
                    {
                        foreach (ulong unit in new ulong[] { 0, 1, 1, 0 })
                        {
                            model.GatherUnit(unit);
                            model.ReleaseUnit(unit);
                        }

                        Check.Equal(4 * step, model.Statistics.Gathers);
                        Check.Equal(2 * step, model.Statistics.ReshardGathers);
                        model.AccumulateFlat<float>(new float[20]);
                        optimizer.Step();
                    }
                }

                Check.Throws<InvalidArgumentException>(() => new Model(
                    c, new ModelOptions { Strategy = Strategy.Zero3, Units = new Units { ReshardRanks = 3 } }));
            });
        }

        [Test]
        public static void Shards_begin_and_end_with_rows()
        {
            var first = new ulong[4];
            var count = new ulong[4];
            Ranks.RunAndLeaveTogether(4, c =>
            {
                var options = new ModelOptions
                {
                    Strategy = Strategy.Zero3, Flags = ModelFlags.WholeRows,
                };
                using (var model = new Model(c, options))
                {
                    model.AddParameter(new ParameterOptions("weight", ElementType.F32, 7, 5));
                    model.Seal();
                    first[c.Rank] = model.GetUnit(0).ShardFirst;
                    count[c.Rank] = model.GetUnit(0).ShardCount;
                }
            });
            Check.Equal("0 10 20 25", string.Join(" ", first));
            Check.Equal("10 10 5 10", string.Join(" ", count));
        }

        private static ModelOptions Limited(Strategy strategy, ulong limit)
        {
            return new ModelOptions { Strategy = strategy, MemoryLimitBytes = limit };
        }
    }
}
