using System;
using System.Collections.Generic;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>A training goes on in another layout: ranges and counters of one, written there.</summary>
    internal static class RestoreTests
    {
        private const int Elements = 11;
        private const int Before = 3;
        private const int Steps = 6;

        private static readonly KeyValuePair<int, Strategy>[] Layouts =
        {
            new KeyValuePair<int, Strategy>(4, Strategy.Zero3),
            new KeyValuePair<int, Strategy>(2, Strategy.Zero2),
            new KeyValuePair<int, Strategy>(3, Strategy.DataParallel),
            new KeyValuePair<int, Strategy>(4, Strategy.HybridShard),
            new KeyValuePair<int, Strategy>(1, Strategy.Zero1),
        };

        [Test]
        public static void A_training_goes_on_in_another_layout()
        {
            double[] expected = PlainAdamw();
            foreach (KeyValuePair<int, Strategy> from in Layouts)
            {
                var state = new float[3][];
                for (int i = 0; i < state.Length; ++i)
                {
                    state[i] = new float[Elements];
                }

                var counted = new OptimizerCounters[from.Key];
                Ranks.RunAndLeaveTogether(from.Key, c =>
                {
                    using (Model model = Sealed(c, from.Value))
                    using (Optimizer optimizer = Adamw(model))
                    {
                        model.SetParameters<float>(
                            Enumerable.Range(0, Elements).Select(i => i % 7 - 3f).ToArray());
                        Train(model, optimizer, 0, Before);
                        StateRange[] ranges = optimizer.GetRanges();
                        for (int i = 0; i < ranges.Length; ++i)
                        {
                            optimizer.ReadRange<float>(i).CopyTo(
                                state[VectorOf(ranges[i])], FirstOf(ranges[i]));
                        }

                        counted[c.Rank] = optimizer.Counters;
                    }
                });
                foreach (KeyValuePair<int, Strategy> to in Layouts)
                {
                    GoOn(to, state, counted[from.Key - 1], expected);
                }
            }
        }

        [Test]
        public static void What_cannot_be_restored_is_refused()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (Model model = Sealed(c, Strategy.DataParallel))
                using (Optimizer optimizer = Adamw(model))
                {
                    var changes = new Dictionary<string, Action<OptimizerCounters>>
                    {
                        ["counters.version is 2"] = o => o.Version = 2,
                        ["without options.loss_scale"] = o => o.LossScale = 4,
                        ["learning_rate"] = o => o.LearningRate = double.NaN,
                        ["counters.parameter_count is 0"] = o => o.ParameterSteps = null,
                        ["counters.group_count is 1"] = o => o.GroupRateFactors = new[] { 1.0 },
                    };
                    foreach (KeyValuePair<string, Action<OptimizerCounters>> change in changes)
                    {
                        OptimizerCounters counters = optimizer.Counters;
                        change.Value(counters);
                        var refused = Check.Throws<InvalidArgumentException>(
                            () => optimizer.Restore(counters));
                        Check.Contains(change.Key, refused.Message);
                    }

                    OptimizerCounters other = optimizer.Counters;
                    other.Steps = 4 + (ulong)c.Rank;
                    var mismatch = Check.Throws<MismatchException>(() => optimizer.Restore(other));
                    Check.Contains("steps is 4 on rank 0 and 5 on rank 1", mismatch.Message);
                    Check.Throws<ArgumentNullException>(() => optimizer.Restore(null));
                    optimizer.Restore(optimizer.Counters);
                    Check.Equal(0ul, optimizer.StepCount);
                }
            });
        }

        private static void GoOn(
            KeyValuePair<int, Strategy> to, float[][] state, OptimizerCounters counters,
            double[] expected)
        {
            Ranks.RunAndLeaveTogether(to.Key, c =>
            {
                using (Model model = Sealed(c, to.Value))
                using (Optimizer optimizer = Adamw(model))
                {
                    StateRange[] ranges = optimizer.GetRanges();
                    for (int i = 0; i < ranges.Length; ++i)
                    {
                        optimizer.WriteRange<float>(i, state[VectorOf(ranges[i])].AsSpan(
                            FirstOf(ranges[i]), (int)ranges[i].Count));
                    }

                    optimizer.Restore(counters);
                    Check.Equal((ulong)Before, optimizer.StepCount);
                    Check.Equal(0.05, optimizer.LearningRate);
                    Train(model, optimizer, Before, Steps);
                    Check.Same(
                        new[] { (ulong)Steps, (ulong)Steps - 1 },
                        optimizer.Counters.ParameterSteps, "steps of each parameter");
                    var values = new float[Elements];
                    model.GetParameters<float>(values);
                    for (int i = 0; i < Elements; ++i)
                    {
                        Check.That(
                            Math.Abs(values[i] - expected[i]) < 2e-6,
                            to.Value + ": " + values[i] + " for " + expected[i]);
                    }
                }
            });
        }

        private static int VectorOf(StateRange range)
        {
            return range.Kind == StateKind.Parameter ? 0 : 1 + (int)range.Vector;
        }

        private static int FirstOf(StateRange range)
        {
            return (int)range.First + 6 * (int)range.Parameter;
        }

        private static float Gradient(int step, int i)
        {
            return (3 * i + 5 * step) % 11 - 4.5f;
        }

        /// <summary>Of one process, in f64, which knows nothing of the library.</summary>
        private static double[] PlainAdamw()
        {
            var values = new double[Elements];
            for (int i = 0; i < Elements; ++i)
            {
                double p = i % 7 - 3, m = 0, v = 0;
                int t = 0;
                for (int step = 0; step < Steps; ++step)
                {
                    if (i >= 6 && step == 1)
                    {
                        continue; // "b" has no gradient there
                    }

                    ++t;
                    double rate = step < 1 ? 0.1 : 0.05, g = Gradient(step, i);
                    p -= rate * 0.1 * p;
                    m = 0.9 * m + 0.1 * g;
                    v = 0.999 * v + 0.001 * g * g;
                    p -= rate / (1 - Math.Pow(0.9, t)) * m /
                        (Math.Sqrt(v / (1 - Math.Pow(0.999, t))) + 1e-8);
                }

                values[i] = p;
            }

            return values;
        }

        private static Model Sealed(Communicator c, Strategy strategy)
        {
            var options = new ModelOptions
            {
                Strategy = strategy,
                Units = new Units { MinimumBytes = 1 },
                Unused = Unused.Skip,
            };
            if (strategy == Strategy.HybridShard)
            {
                options.Shards = 2;
            }

            var model = new Model(c, options);
            model.AddParameter(new ParameterOptions("a", ElementType.F32, 3, 2));
            model.AddParameter(new ParameterOptions("b", ElementType.F32, 5));
            model.Seal();
            return model;
        }

        private static Optimizer Adamw(Model model)
        {
            return new Optimizer(model, new OptimizerOptions
            {
                Rule = RuleKind.AdamW,
                LearningRate = 0.1,
                WeightDecay = 0.1,
            });
        }

        private static void Train(Model model, Optimizer optimizer, int first, int end)
        {
            for (int step = first; step < end; ++step)
            {
                float[] values =
                    Enumerable.Range(0, Elements).Select(i => Gradient(step, i)).ToArray();
                model.BeginBackward();
                if (step == 1)
                {
                    optimizer.LearningRate = 0.05;
                }
                else
                {
                    model.GradientReady<float>(1, values.Skip(6).ToArray());
                }

                model.GradientReady<float>(0, values.Take(6).ToArray());
                model.EndBackward();
                optimizer.Step();
            }
        }
    }
}
