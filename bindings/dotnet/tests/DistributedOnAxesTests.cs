using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>A framework's model through AsDistributed(), along the axes of an object.</summary>
    internal static class DistributedOnAxesTests
    {
        private const int Leaves = 4;
        private const int Steps = 3;

        [Test]
        public static void Layouts_train_as_one_process()
        {
            double[] expected = Alone(0, Steps);
            foreach (int[] layout in new[]
            {
                new[] { 1, 1 }, new[] { 2, 1 }, new[] { 1, 2 }, new[] { 3, 1 }, new[] { 2, 2 },
            })
            {
                Ranks.RunAndLeaveTogether(layout[0] * layout[1], c =>
                {
                    using (ParallelContext parallel = Arrange(c, layout[0], layout[1], 1))
                    {
                        var model = new Quadratic(c.Rank);
                        using (var spread = model.AsDistributed(parallel, Options(layout[1])))
                        {
                            Check.Equal(c.Rank, spread.Rank, "rank");
                            Check.Equal(c.WorldSize, spread.WorldSize, "ranks");
                            byte[] state = null;
                            for (int step = 0; step < Steps; ++step)
                            {
                                GC.Collect();
                                spread.Step(leaf => leaf);
                                state = state ?? spread.Optimizer.Save();
                            }

                            Check.Same(expected, model.GetParameters(), "parameters");
                            spread.Optimizer.Load(state);
                            Check.Same(Alone(0, 1), model.GetParameters(), "loaded");
                            for (int step = 1; step < Steps; ++step)
                            {
                                spread.Step(leaf => leaf);
                            }

                            Check.Same(expected, model.GetParameters(), "parameters again");
                        }
                    }
                });
            }
        }

        [Test]
        public static void Ranks_along_tensor_have_models_of_their_own()
        {
            Ranks.RunAndLeaveTogether(4, c =>
            {
                using (ParallelContext parallel = Arrange(c, 2, 1, 2))
                {
                    var model = new Quadratic(c.Rank);
                    using (var spread = model.AsDistributed(parallel, Options(1)))
                    {
                        for (int step = 0; step < Steps; ++step)
                        {
                            spread.Step(leaf => leaf);
                        }

                        // Ranks 0 and 1 lie along Tensor, and begin a model each.
                        Check.Same(
                            Alone(c.Rank % 2, Steps), model.GetParameters(), "parameters");
                    }
                }
            });
        }

        [Test]
        public static void An_exception_fails_the_step_of_all_ranks()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (ParallelContext parallel = Arrange(c, 2, 1, 1))
                {
                    var model = new Quadratic(c.Rank) { Fails = c.Rank == 1 };
                    using (var spread = model.AsDistributed(parallel, Options(1)))
                    {
                        Action step = () => spread.Step(leaf => leaf);
                        if (c.Rank == 1)
                        {
                            Check.Throws<TimeZoneNotFoundException>(step);
                        }
                        else
                        {
                            Check.Throws<CallbackException>(step);
                        }

                        model.Fails = false;
                        step();
                        Check.Same(Alone(0, 1), model.GetParameters(), "nothing had changed");
                    }

                    ParallelContext none = null;
                    Check.Throws<ArgumentNullException>(
                        () => model.AsDistributed(none, Options(1)));
                    Check.Throws<ArgumentNullException>(
                        () => model.AsDistributed(parallel, null));
                }
            });
        }

        private static ParallelContext Arrange(Communicator c, int data, int shard, int tensor)
        {
            return ParallelContext.Create(c, new ParallelContextOptions
            {
                Data = data, Shard = shard, Tensor = tensor, Timeout = Ranks.Patience,
            });
        }

        private static DistributedOptions Options(int shards)
        {
            return new DistributedOptions
            {
                Strategy = shards > 1 ? Strategy.HybridShard : Strategy.Zero2, Leaves = Leaves,
                Optimizer = new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = 0.5 },
            };
        }

        // The model that a rank begins, in plain loops. All numbers are exact.
        private static double[] Alone(int rank, int steps)
        {
            var model = new Quadratic(rank);
            double[] values = model.GetParameters();
            for (int step = 0; step < steps; ++step)
            {
                double[][] gradients = Enumerable.Range(0, Leaves)
                    .Select(leaf => (double[])model.ComputeGradients(leaf).Clone()).ToArray();
                for (int i = 0; i < values.Length; ++i)
                {
                    values[i] -= 0.5 * (gradients.Sum(gradient => gradient[i]) / Leaves);
                }
            }

            return values;
        }

        /// <summary>Each number is pulled to the batch's own, half the way.</summary>
        private sealed class Quadratic : IGradientModel<double, int>
        {
            private readonly double[] values;

            public Quadratic(int rank)
            {
                values = Enumerable.Range(0, 7).Select(i => (double)(8 + (3 * rank) + i)).ToArray();
            }

            public bool Fails { get; set; }

            public int ParameterCount
            {
                get { return values.Length; }
            }

            public double[] GetParameters()
            {
                return values;
            }

            public void SetParameters(double[] parameters)
            {
                parameters.CopyTo(values, 0);
            }

            public double[] ComputeGradients(int batch)
            {
                if (Fails)
                {
                    throw new TimeZoneNotFoundException("of a model");
                }

                return values.Select((value, i) => 0.5 * (value - (6 * ((batch + i) % 4))))
                    .ToArray();
            }
        }
    }
}
