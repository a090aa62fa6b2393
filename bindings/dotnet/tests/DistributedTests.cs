using System;
using System.IO;
using System.Linq;
using System.Threading;

namespace Trireme.Tests
{
    using Spread = DistributedModel<float, int>;

    /// <summary>A framework's model through AsDistributed().</summary>
    internal static class DistributedTests
    {
        private const int Leaves = 6;

        [Test]
        public static void The_same_bits_come_out_of_every_world_and_strategy()
        {
            Regression<float> alone = null;
            foreach (int world in new[] { 1, 2, 3, 4 })
            {
                foreach (Strategy strategy in ModelTests.Strategies)
                {
                    var models = new Regression<float>[world];
                    Ranks.RunAndLeaveTogether(world, c =>
                    {
                        models[c.Rank] = new Regression<float>(v => (float)v, v => v, c.Rank);
                        Train(models[c.Rank], c, strategy);
                    });
                    alone = alone ?? models[0];
                    foreach (Regression<float> model in models)
                    {
                        Check.Same(
                            alone.GetParameters(), model.GetParameters(),
                            strategy + " on " + world);
                    }
                }
            }

            Check.That(alone.GetParameters()[0] != 1f, "something was learned");
        }

        [Test]
        public static void Doubles_train_as_well()
        {
            double[] alone = null;
            foreach (int world in new[] { 1, 3 })
            {
                Ranks.RunAndLeaveTogether(world, c =>
                {
                    var model = new Regression<double>(v => v, v => v, c.Rank);
                    Train(model, c, Strategy.Zero3);
                    if (world == 1)
                    {
                        alone = model.GetParameters();
                    }

                    Check.Same(alone, model.GetParameters(), "world " + world);
                });
            }
        }

        [Test]
        public static void Batches_of_the_ranks_and_micro_batches_are_averaged()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var model = new Regression<double>(v => v, v => v, c.Rank);
                var options = new DistributedOptions { Optimizer = ModelTests.Sgd() };
                double[] start = new Regression<double>(v => v, v => v, 0).GetParameters();
                using (var spread = model.AsDistributed(c, options))
                {
                    Check.Equal(c.Rank, spread.Rank);
                    Check.Equal(2, spread.WorldSize);
                    Check.Same(start, model.GetParameters(), "rank 0's");
                    spread.Step(10 + c.Rank, 20);
                    Check.Same(model.GetParameters(), spread.Parameters.ToArray(), "parameters");
                    Check.Equal(1ul, spread.Optimizer.StepCount);
                }

                var reference = new Regression<double>(v => v, v => v, 0);
                double[][] gradients = new[] { 10, 11, 20 }
                    .Select(b => (double[])reference.ComputeGradients(b).Clone()).ToArray();
                for (int i = 0; i < start.Length; ++i)
                {
                    double mean =
                        (gradients[0][i] + gradients[1][i] + 2 * gradients[2][i]) / 4;
                    Check.That(
                        Math.Abs(model.GetParameters()[i] - (start[i] - 0.5 * mean)) < 1e-12,
                        "element " + i);
                }
            });
        }

        [Test]
        public static void What_is_restored_reaches_the_model()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var model = new Regression<double>(v => v, v => v, c.Rank);
                var options = new DistributedOptions { Optimizer = ModelTests.Sgd() };
                using (var spread = model.AsDistributed(c, options))
                {
                    StateRange[] ranges = spread.Optimizer.GetRanges();
                    for (int i = 0; i < ranges.Length; ++i)
                    {
                        if (ranges[i].Kind == StateKind.Parameter)
                        {
                            spread.Optimizer.WriteRange<double>(
                                i, Enumerable.Repeat(5.0, (int)ranges[i].Count).ToArray());
                        }
                    }

                    spread.Optimizer.Restore(spread.Optimizer.Counters);
                    Check.Same(Enumerable.Repeat(5.0, 7).ToArray(), model.GetParameters(), "all");
                }
            });
        }

        [Test]
        public static void What_a_model_throws_comes_out_and_the_peers_are_told()
        {
            using (var begun = new CountdownEvent(3))
            {
                Ranks.RunAndLeaveTogether(3, c =>
                {
                    var model = new Regression<float>(v => (float)v, v => v, c.Rank)
                    {
                        Throws = c.Rank == 2,
                    };
                    var options = new DistributedOptions
                    {
                        Optimizer = ModelTests.Sgd(), Strategy = Strategy.Zero2,
                    };
                    using (var spread = model.AsDistributed(c, options))
                    {
                        begun.Signal();
                        begun.Wait(Ranks.Patience);
                        if (c.Rank == 2)
                        {
                            Check.Throws<TimeZoneNotFoundException>(() => spread.Step(1));
                            return;
                        }

                        var failure = Check.Throws<CallbackException>(() => spread.Step(1));
                        Check.Contains("\"ComputeGradients()\"", failure.Message);
                        Check.Contains("on rank 2", failure.Message);
                    }
                });
            }
        }

        [Test]
        public static void Gradients_of_the_wrong_length_are_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                var model = new Regression<float>(v => (float)v, v => v, 0) { Wrong = true };
                var options = new DistributedOptions { Optimizer = ModelTests.Sgd() };
                using (var spread = model.AsDistributed(c, options))
                {
                    var failure = Check.Throws<ArgumentException>(() => spread.Step(1));
                    Check.Contains("ComputeGradients() gave 3", failure.Message);
                }
            }
        }

        [Test]
        public static void Steps_by_leaf_and_by_batch_are_told_apart()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                var model = new Regression<float>(v => (float)v, v => v, 0);
                var options = new DistributedOptions { Optimizer = ModelTests.Sgd() };
                using (var spread = model.AsDistributed(c, options))
                {
                    Check.Throws<InvalidOperationException>(() => spread.Step(leaf => leaf));
                    Check.Throws<ArgumentException>(() => spread.Step());
                    Check.Throws<ArgumentNullException>(() => spread.Step((Func<int, int>)null));
                }

                options.Leaves = 2;
                using (var spread = model.AsDistributed(c, options))
                {
                    Check.Throws<InvalidOperationException>(() => spread.Step(1));
                    spread.Step(leaf => leaf);
                }
            }
        }

        [Test]
        public static void Wrong_arguments_are_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                var model = new Regression<float>(v => (float)v, v => v, 0);
                var options = new DistributedOptions { Optimizer = ModelTests.Sgd() };
                Check.Throws<ArgumentNullException>(
                    () => model.AsDistributed((Communicator)null, options));
                Check.Throws<ArgumentNullException>(() => model.AsDistributed(c, null));
                Check.Throws<ArgumentNullException>(
                    () => model.AsDistributed(c, new DistributedOptions()));
                Check.Throws<ArgumentNullException>(
                    () => ((Regression<float>)null).AsDistributed(c, options));
                var integers = new Regression<int>(v => (int)v, v => v, 0);
                Check.Throws<NotSupportedException>(() => integers.AsDistributed(c, options));
                options.Parameters = new[] { new ParameterOptions("a", ElementType.F32, 3) };
                var failure = Check.Throws<ArgumentException>(
                    () => model.AsDistributed(c, options));
                Check.Contains("describes 3 elements", failure.Message);
                var empty = new Regression<float>(v => (float)v, v => v, 0) { Wrong = true };
                Check.Throws<ArgumentException>(() => empty.AsDistributed(c, options));
            }
        }

        [Test]
        public static void A_described_model_is_spread_by_its_units()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var model = new Regression<float>(v => (float)v, v => v, c.Rank);
                var options = new DistributedOptions
                {
                    Optimizer = ModelTests.Sgd(), Strategy = Strategy.Zero3,
                    Parameters = new[]
                    {
                        new ParameterOptions("first", ElementType.F32, 3),
                        new ParameterOptions("second", ElementType.F32, 2, 2),
                    },
                };
                using (var spread = model.AsDistributed(c, options))
                {
                    Check.Equal(2ul, spread.Model.Info.Units);
                    spread.Step(5);
                }
            });
        }

        [Test]
        public static void Options_of_a_model_and_of_an_optimizer_go_through()
        {
            string path = Path.Combine(Path.GetTempPath(), "trireme-" + Guid.NewGuid());
            Directory.CreateDirectory(path);
            var never = new Shards { Share = ShareParameters.Never };
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var calls = new int[1];
                BucketHook hook = bucket => calls[0] += 1;
                float[] plain = StepLoadStep(
                    c, o => { }, m => m.Model.Info.Buckets == 1 && m.Model.Info.UnitGroups == 1);
                Action<Action<DistributedOptions>, Func<Spread, bool>> same = (change, right) =>
                    Check.Same(plain, StepLoadStep(c, change, right), "the bits");
                same(
                    o =>
                    {
                        o.Buckets = new Buckets { Bytes = 1, Hook = hook };
                        o.Units = new Units { MinimumBytes = 1 };
                    },
                    m => m.Model.Info.Buckets == 2 && calls[0] > 0);
                same(
                    o => o.Units = new Units { MinimumBytes = 1 }, m => m.Model.Info.UnitGroups == 2);
                same(o => o.Shards = never, m => m.Model.Info.SharedBytes == 0);
                same(o => o.Offload = path, m => m.Model.OffloadInfo.Path == path);
                same(
                    o => o.Flags = ModelFlags.UpdateInBackward,
                    m => m.Model.Memory.PlannedGradients == 0);
                same(o => o.MemoryLimitBytes = 1 << 20, m => true);
                same(
                    o => o.Optimizer.Offload = path, m => m.Optimizer.OffloadInfo.Path == path);
                same(o => o.Optimizer.LossScale = 8, m => m.Optimizer.LossScale == 8);
                same(
                    o => o.Optimizer.Groups = new[] { new ParameterGroup { RateFactor = 1 } },
                    m => m.Optimizer.Counters.GroupRateFactors.Length == 1);

                foreach (Action<DistributedOptions> change in new Action<DistributedOptions>[]
                {
                    o => o.Optimizer.Clipping = 0.125,
                    o => o.Optimizer.Rule = new Adam { Beta2 = 0.5 },
                    o => o.Optimizer.WeightDecay = 0.25,
                    o => o.ReduceType = ElementType.Bf16,
                })
                {
                    float[] other = StepLoadStep(c, change, m => true);
                    Check.That(!plain.SequenceEqual(other), "it has an effect");
                }

                Check.Throws<HostMemoryException>(
                    () => StepLoadStep(c, o => o.MemoryLimitBytes = 1, m => true));
                Check.Throws<InvalidArgumentException>(
                    () => StepLoadStep(c, o => o.Shards = 2, m => true)); // not of Zero3
            });
            Directory.Delete(path); // and nothing in it
        }

        // A step, another two, and back to where the first one led: the last two again.
        private static float[] StepLoadStep(
            Communicator c, Action<DistributedOptions> change, Func<Spread, bool> right)
        {
            var options = new DistributedOptions
            {
                Strategy = Strategy.Zero3,
                Optimizer = new OptimizerOptions { Rule = RuleKind.Adam, LearningRate = 0.125 },
                Parameters = new[]
                {
                    new ParameterOptions("first", ElementType.F32, 3),
                    new ParameterOptions("second", ElementType.F32, 2, 2),
                },
            };
            change(options);
            var model = new Regression<float>(v => (float)v, v => v, c.Rank);
            using (Spread spread = model.AsDistributed(c, options))
            {
                spread.Step(c.Rank);
                byte[] state = spread.Optimizer.Save();
                spread.Step(2 + c.Rank);
                spread.Step(4 + c.Rank);
                float[] first = model.GetParameters().ToArray();
                spread.Optimizer.Load(state);
                Check.That(!first.SequenceEqual(model.GetParameters()), "loaded");
                spread.Step(2 + c.Rank);
                spread.Step(4 + c.Rank);
                Check.Same(first, model.GetParameters(), "after a load");
                Check.That(right(spread), "the option has its effect");
                return first;
            }
        }

        private static void Train<T>(Regression<T> model, Communicator c, Strategy strategy)
            where T : struct
        {
            var options = new DistributedOptions
            {
                Strategy = strategy,
                Shards = ModelTests.ShardsOf(strategy, c.WorldSize),
                Leaves = Leaves,
                Optimizer = new OptimizerOptions
                {
                    Rule = RuleKind.AdamW, LearningRate = 0.01, WeightDecay = 0.1,
                    Clipping = 0.5,
                },
            };
            using (DistributedModel<T, int> spread = model.AsDistributed(c, options))
            {
                for (int step = 0; step < 5; ++step)
                {
                    spread.Step(leaf => 100 * step + leaf);
                }
            }
        }

        /// <summary>Seven numbers that a batch, which is a seed, pulls at.</summary>
        private sealed class Regression<T> : IGradientModel<T, int> where T : struct
        {
            private readonly Func<double, T> from;
            private readonly Func<T, object> box;
            private readonly T[] parameters = new T[7];
            private readonly T[] gradients = new T[7];

            public Regression(Func<double, T> from, Func<T, object> box, int rank)
            {
                this.from = from;
                this.box = box;
                for (int i = 0; i < parameters.Length; ++i)
                {
                    parameters[i] = from(1 + i + rank);
                }
            }

            public bool Throws { get; set; }

            public bool Wrong { get; set; }

            public int ParameterCount
            {
                get { return parameters.Length; }
            }

            public T[] GetParameters()
            {
                return parameters;
            }

            public void SetParameters(T[] values)
            {
                Array.Copy(values, parameters, values.Length);
            }

            public T[] ComputeGradients(int batch)
            {
                if (Throws)
                {
                    throw new TimeZoneNotFoundException("no gradient today");
                }

                for (int i = 0; i < parameters.Length; ++i)
                {
                    double target = ((batch * 7 + i) * 2654435761L % 1000) / 1000.0;
                    gradients[i] = from(Convert.ToDouble(box(parameters[i])) - target);
                }

                return Wrong ? new T[3] : gradients;
            }
        }
    }
}
