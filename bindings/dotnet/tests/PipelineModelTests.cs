using System;
using System.Collections.Generic;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Training through PipelineParallelModel against a plain loop.</summary>
    internal static class PipelineModelTests
    {
        private const int Width = 3;
        private const int Leaves = 4;
        private const int Count = 4;
        private const int Steps = 4;
        private const double Rate = 0.25;

        private static readonly PipelineOrder[] Orders =
        {
            PipelineOrder.GPipe, PipelineOrder.OneForwardOneBackward, PipelineOrder.Interleaved,
            PipelineOrder.LoopedBfs, PipelineOrder.ZbH1, PipelineOrder.ZbH2, PipelineOrder.ZbV,
        };

        [Test]
        public static void Training_is_that_of_a_plain_loop()
        {
            double[] expectedLosses;
            double[] expected = Alone(out expectedLosses);
            Expect(1, 1, PipelineOrder.GPipe, expected, expectedLosses);
            Expect(2, 1, PipelineOrder.GPipe, expected, expectedLosses);
            foreach (PipelineOrder order in Orders)
            {
                Expect(2, 2, order, expected, expectedLosses);
            }

            Expect(4, 2, PipelineOrder.ZbH1, expected, expectedLosses);
        }

        [Test]
        public static void A_name_of_two_layers_is_refused()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                PipelineLayer[] layers = Layers();
                layers[Count - 1] =
                    new PipelineLayer(layers[Count - 1].Layer, layers[0].Parameters[0]);
                foreach (int along in new[] { 1, 2 })
                {
                    var config = new PipelineConfig(along, Leaves);
                    Check.Contains("belongs to two layers", Check.Throws<ArgumentException>(
                        () => new PipelineParallelModel(
                            c, config, layers,
                            new ModelOptions { Strategy = Strategy.Zero1 })).Message);
                }
            });
        }

        [Test]
        public static void A_target_comes_before_its_alias()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                PipelineLayer[] layers = Layers();
                layers[0].Parameters[0].TiedTo = "w3";
                foreach (int along in new[] { 1, 2 })
                {
                    var config = new PipelineConfig(along, Leaves);
                    Check.Contains("no earlier parameter", Check.Throws<ArgumentException>(
                        () => new PipelineParallelModel(
                            c, config, layers,
                            new ModelOptions { Strategy = Strategy.Zero1 })).Message);
                }
            });
        }

        /// <summary>Along a V rank 0 has both of its layers.</summary>
        [Test]
        public static void A_tied_parameter_may_have_placements()
        {
            foreach (PipelineOrder order in new[]
            {
                PipelineOrder.ZbV, PipelineOrder.OneForwardOneBackward,
            })
            {
                Ranks.RunAndLeaveTogether(4, c =>
                {
                    PipelineLayer[] layers = Layers();
                    layers[Count - 1].Parameters[0].TiedTo = "w0";
                    foreach (int i in new[] { 0, Count - 1 })
                    {
                        layers[i].Parameters[0].Placements =
                            new Dictionary<string, Placement> { { "tensor", Placement.Whole } };
                    }

                    var config = new PipelineConfig(2, Leaves) { Order = order };
                    var axes = new ParallelContextOptions { Tensor = 2 };
                    var options = new ModelOptions { Strategy = Strategy.Zero1, Leaves = Leaves };
                    using (var whole =
                        new PipelineParallelModel(c, config, layers, options, axes))
                    {
                        Check.Equal(2ul, whole.Model.Info.Parameters);
                    }
                });
            }
        }

        /// <summary>The last layer has the weight of the first one, on another rank.</summary>
        [Test]
        public static void Stages_share_a_parameter()
        {
            double[] losses;
            double[] expected = Alone(out losses, true);
            foreach (int[] ranks in new[] { new[] { 1, 1 }, new[] { 2, 2 }, new[] { 4, 2 } })
            {
                Ranks.RunAndLeaveTogether(ranks[0], c =>
                {
                    PipelineLayer[] layers = Layers();
                    layers[Count - 1].Parameters[0].TiedTo = "w0";
                    var config = new PipelineConfig(ranks[1], Leaves * ranks[1] / ranks[0]);
                    var options = new ModelOptions { Strategy = Strategy.Zero1, Leaves = Leaves };
                    using (var whole = new PipelineParallelModel(c, config, layers, options))
                    {
                        int[] own = OwnLayers(whole)
                            .Where(layer => layer + 1 < Count || ranks[1] > 1)
                            .Select(layer => layer % (Count - 1)).ToArray();
                        whole.Model.SetParameters<double>(own.SelectMany(Weights).ToArray());
                        var rule = new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = Rate };
                        using (var optimizer = new Optimizer(whole.Model, rule))
                        using (Trainer trainer = whole.Trainer(optimizer))
                        {
                            foreach (double loss in losses)
                            {
                                Check.Equal(loss, trainer.Step().Loss);
                            }
                        }

                        whole.Model.CheckReplicas();
                        var found = new double[own.Length * Width];
                        whole.Model.GetParameters<double>(found);
                        double[] right = own.SelectMany(
                            layer => expected.Skip(layer * Width).Take(Width)).ToArray();
                        Check.Same(right, found, "a tied weight on " + ranks[0]);
                    }
                });
            }
        }

        [Test]
        public static void Arguments_are_checked()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var options = new ModelOptions { Strategy = Strategy.Zero1, Leaves = Leaves };
                var config = new PipelineConfig(2, Leaves);
                Check.Throws<ArgumentNullException>(
                    () => new PipelineParallelModel(c, null, Layers(), options));
                Check.Throws<ArgumentNullException>(
                    () => new PipelineParallelModel(c, config, null, options));
                Check.Throws<ArgumentNullException>(
                    () => new PipelineParallelModel(c, config, Layers(), null));
                Check.Throws<ArgumentNullException>(
                    () => new PipelineParallelModel(null, config, Layers(), options));
                Check.Throws<ArgumentNullException>(() => new PipelineLayer(null));
                Check.Throws<ArgumentOutOfRangeException>(() => new PipelineConfig(0, Leaves));
                Check.Throws<ArgumentOutOfRangeException>(
                    () => new PipelineConfig(ParallelContextOptions.Rest, Leaves));
                config.LayerCosts = new LayerCosts[1];
                Check.Contains(
                    "LayerCosts has 1 entries for 4 layers",
                    Check.Throws<ArgumentException>(
                        () => new PipelineParallelModel(c, config, Layers(), options)).Message);
                config.LayerCosts = null;
                config.Order = PipelineOrder.ZbV;
                config.StagesPerRank = 3;
                Check.Throws<InvalidArgumentException>(
                    () => new PipelineParallelModel(c, config, Layers(), options));
            });
        }

        [Test]
        public static void Two_models_of_one_list_number_it_each_in_its_way()
        {
            double[] losses;
            double[] expected = Alone(out losses);
            var found = new double[Count * Width];
            Ranks.RunAndLeaveTogether(2, c =>
            {
                PipelineLayer[] layers = Layers();
                foreach (PipelineLayer layer in layers)
                {
                    layer.Layer.FirstParameter = 77;
                }

                var options = new ModelOptions { Strategy = Strategy.Zero1, Leaves = Leaves };
                var rule = new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = Rate };
                var config = new PipelineConfig(2, Leaves) { Order = PipelineOrder.ZbH1 };
                using (var whole = new PipelineParallelModel(c, config, layers, options))
                using (var optimizer = new Optimizer(whole.Model, rule))
                {
                    Check.Same(new long[] { 0, 2, 4 }, whole.Cuts, "cuts");
                    whole.Model.SetParameters<double>(
                        OwnLayers(whole).SelectMany(Weights).ToArray());
                    Trainer trainer = whole.Trainer(optimizer);
                    Check.Equal(losses[0], trainer.Step().Loss);
                    config = new PipelineConfig(2, Leaves)
                    {
                        Order = PipelineOrder.ZbH1,
                        LayerCosts = new[] { 3.0, 1, 1, 1 }
                            .Select(time => new LayerCosts { Seconds = time }).ToArray(),
                    };
                    using (var next = new PipelineParallelModel(c, config, layers, options))
                    using (var updated = new Optimizer(next.Model, rule))
                    {
                        Check.Same(new long[] { 0, 1, 4 }, next.Cuts, "new cuts");
                        Check.That(layers.All(layer => layer.Layer.FirstParameter == 77 &&
                            layer.Layer.ParameterCount == 0), "the caller's layers");
                        Check.Equal(losses[1], trainer.Step().Loss);
                        trainer.Dispose();
                        Check.Throws<MismatchException>(() => updated.TakeOver(
                            optimizer, c, new RebalanceOptions { Cuts = new long[] { c.Rank } }));
                        Check.Throws<ArgumentOutOfRangeException>(() => updated.TakeOver(
                            optimizer, c, new RebalanceOptions { Part = -1 }));
                        using (trainer = whole.Trainer(optimizer))
                        {
                            Check.Equal(losses[2], trainer.Step().Loss);
                        }

                        updated.TakeOver(
                            optimizer, c, new RebalanceOptions { Cuts = next.Cuts });
                        using (trainer = next.Trainer(updated))
                        {
                            Check.Equal(losses[3], trainer.Step().Loss);
                        }

                        Collect(next, found);
                    }
                }
            });
            Check.Same(expected, found, "by new cuts");
        }

        [Test]
        public static void What_the_model_does_not_read_is_refused()
        {
            var unread = new Dictionary<string, Action<ParallelContextOptions>>
            {
                { "Pipeline", axes => axes.Pipeline = 2 },
                { "MicroBatches", axes => axes.MicroBatches = 1 },
                { "StagesPerRank", axes => axes.StagesPerRank = 1 },
                { "Order", axes => axes.Order = PipelineOrder.GPipe },
                { "Placement", axes => axes.Placement = PipelinePlacement.Loop },
                { "ScheduleText", axes => axes.ScheduleText = "" },
                { "Costs", axes => axes.Costs = new PipelineCosts() },
                { "ActivationLimitBytes", axes => axes.ActivationLimitBytes = 1 },
            };
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var options = new ModelOptions { Strategy = Strategy.Zero1, Leaves = Leaves };
                var config = new PipelineConfig(2, Leaves);
                foreach (KeyValuePair<string, Action<ParallelContextOptions>> one in unread)
                {
                    var axes = new ParallelContextOptions();
                    one.Value(axes);
                    Check.Contains(
                        one.Key + " is set, but",
                        Check.Throws<ArgumentException>(() => new PipelineParallelModel(
                            c, config, Layers(), options, axes)).Message);
                }

                var read = new ParallelContextOptions
                {
                    Data = ParallelContextOptions.Rest, Timeout = Ranks.Patience,
                };
                config = new PipelineConfig(1, Leaves / 2);
                using (var whole =
                    new PipelineParallelModel(c, config, Layers(), options, read))
                {
                    Check.Equal(2, whole.Parallel.Size(ParallelAxes.Data));
                }
            });
        }

        [Test]
        public static void One_rank_checks_the_order()
        {
            Ranks.RunAndLeaveTogether(1, c =>
            {
                var options = new ModelOptions { Strategy = Strategy.Zero1, Leaves = Leaves };
                foreach (int order in new[] { 0, -1, 99 })
                {
                    var config = new PipelineConfig(1, Leaves) { Order = (PipelineOrder)order };
                    Check.Throws<InvalidArgumentException>(
                        () => new PipelineParallelModel(c, config, Layers(), options));
                }
            });
        }

        [Test]
        public static void Options_of_a_trainer_are_the_callers()
        {
            foreach (int ranks in new[] { 1, 2 })
            {
                Ranks.RunAndLeaveTogether(ranks, c =>
                {
                    var config = new PipelineConfig(ranks, 3);
                    var options = new ModelOptions { Strategy = Strategy.Zero1 };
                    using (var whole = new PipelineParallelModel(c, config, Layers(), options))
                    using (var optimizer = new Optimizer(
                        whole.Model, new OptimizerOptions { Rule = RuleKind.Sgd }))
                    {
                        foreach (uint given in new[] { 0u, 3u })
                        {
                            var own = new TrainerOptions { MicroBatches = given, Seed = 5 };
                            for (int i = 0; i < 2; ++i)
                            {
                                using (Trainer trainer = whole.Trainer(optimizer, own))
                                {
                                    Check.Equal(3u, trainer.Info.MicroBatches);
                                }

                                Check.Equal(given, own.MicroBatches);
                                Check.Equal(true, own.Pipeline == null);
                            }
                        }
                    }
                });
            }

            Ranks.RunAndLeaveTogether(1, c =>
            {
                var options = new ModelOptions { Strategy = Strategy.Zero1 };
                using (var whole = new PipelineParallelModel(
                    c, new PipelineConfig(1, 3), Layers(), options))
                using (var optimizer = new Optimizer(
                    whole.Model, new OptimizerOptions { Rule = RuleKind.Sgd }))
                using (Trainer trainer =
                    whole.Trainer(optimizer, new TrainerOptions { MicroBatches = 2 }))
                {
                    Check.Equal(2u, trainer.Info.MicroBatches);
                }
            });
        }

        private static void Expect(
            int ranks, int along, PipelineOrder order, double[] expected, double[] losses)
        {
            var found = new double[Count * Width];
            Ranks.RunAndLeaveTogether(ranks, c =>
            {
                var config =
                    new PipelineConfig(along, Leaves * along / ranks) { Order = order };
                var options = new ModelOptions { Strategy = Strategy.Zero1, Leaves = Leaves };
                using (var whole = new PipelineParallelModel(c, config, Layers(), options))
                {
                    Check.Equal(along == 1 ? 1 : along * StagesPerRank(order),
                        whole.Stages.Count, "stages");
                    Check.Equal((long)Count, whole.Stages.Sum(stage => stage.Layers.Count), "layers");
                    Check.Equal(true, whole.Stages[0].IsFirst, "first");
                    Check.Equal(true, whole.Stages[whole.Stages.Count - 1].IsLast, "last");
                    whole.Model.SetParameters<double>(
                        OwnLayers(whole).SelectMany(Weights).ToArray());
                    var rule = new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = Rate };
                    using (var optimizer = new Optimizer(whole.Model, rule))
                    using (Trainer trainer = whole.Trainer(optimizer))
                    {
                        for (int step = 0; step < Steps; ++step)
                        {
                            GC.Collect(); // what native code calls is held
                            Check.Equal(losses[step], trainer.Step().Loss);
                        }
                    }

                    Collect(whole, found);
                }
            });
            Check.Same(expected, found, order + " on " + ranks);
        }

        private static int[] OwnLayers(PipelineParallelModel whole)
        {
            return whole.OwnStages.SelectMany(stage => Enumerable.Range(
                (int)stage.Layers.First, (int)stage.Layers.Count)).ToArray();
        }

        /// <summary>Copies this rank's parameters to their places in the whole model.</summary>
        private static void Collect(PipelineParallelModel whole, double[] found)
        {
            int[] own = OwnLayers(whole);
            var values = new double[own.Length * Width];
            whole.Model.GetParameters<double>(values);
            lock (found)
            {
                for (int i = 0; i < own.Length; ++i)
                {
                    Array.Copy(values, i * Width, found, own[i] * Width, Width);
                }
            }
        }

        private static int StagesPerRank(PipelineOrder order)
        {
            return order == PipelineOrder.Interleaved || order == PipelineOrder.ZbV ? 2 : 1;
        }

        private static double[] Weights(int layer)
        {
            return Enumerable.Range(0, Width).Select(i => 1 + ((layer + i) * 0.25)).ToArray();
        }

        private static double Value(uint leaf, int i)
        {
            return ((leaf * 3) + i + 1) * 0.125;
        }

        // y = w x in each layer, and the loss is the sum of the last y.
        private static PipelineLayer[] Layers()
        {
            return Enumerable.Range(0, Count).Select(LayerAt).ToArray();
        }

        private static PipelineLayer LayerAt(int number)
        {
            bool first = number == 0, last = number + 1 == Count;
            LayerFunction forward = call =>
            {
                double sum = 0;
                Span<double> output = call.Output<double>();
                for (int i = 0; i < Width; ++i)
                {
                    double x = first ? Value(call.Leaf, i) : call.Input<double>()[i];
                    double y = call.Parameter<double>(0)[i] * x;
                    sum += y;
                    if (!last)
                    {
                        output[i] = y;
                    }
                }

                if (last)
                {
                    call.Loss = sum;
                }
            };
            LayerFunction input = call =>
            {
                Span<double> back = call.InputGradient<double>();
                for (int i = 0; i < Width && !first; ++i)
                {
                    double slope = last ? call.LossScale : call.OutputGradient<double>()[i];
                    back[i] = slope * call.Parameter<double>(0)[i];
                }
            };
            LayerFunction weight = call =>
            {
                Span<double> gradient = call.Gradient<double>(0);
                for (int i = 0; i < Width; ++i)
                {
                    double x = first ? Value(call.Leaf, i) : call.Input<double>()[i];
                    double slope = last ? call.LossScale : call.OutputGradient<double>()[i];
                    gradient[i] = slope * x;
                }
            };
            LayerFunction both = call =>
            {
                input(call);
                if (call.Phase == LayerPhase.Backward)
                {
                    weight(call);
                }
            };
            var layer = new Layer("layer" + number, forward, both)
            {
                BackwardWeight = weight,
                OutputBytes = last ? 0ul : Width * 8,
                InputBytes = first ? 0ul : Width * 8,
            };
            return new PipelineLayer(
                layer, new ParameterOptions("w" + number, ElementType.F64, Width));
        }

        private static double[] Alone(out double[] losses, bool tied = false)
        {
            const int Last = (Count - 1) * Width;
            double[] w = Enumerable.Range(0, Count).SelectMany(Weights).ToArray();
            for (int i = 0; i < Width && tied; ++i)
            {
                w[Last + i] = w[i];
            }

            losses = new double[Steps];
            for (int step = 0; step < Steps; ++step)
            {
                var gradients = new double[Leaves][];
                for (uint leaf = 0; leaf < Leaves; ++leaf)
                {
                    double[] gradient = gradients[leaf] = new double[w.Length];
                    double sum = 0;
                    for (int i = 0; i < Width; ++i)
                    {
                        var x = new double[Count + 1];
                        x[0] = Value(leaf, i);
                        for (int layer = 0; layer < Count; ++layer)
                        {
                            x[layer + 1] = w[(layer * Width) + i] * x[layer];
                        }

                        sum += x[Count];
                        double slope = 1;
                        for (int layer = Count - 1; layer >= 0; --layer)
                        {
                            gradient[(layer * Width) + i] = slope * x[layer];
                            slope *= w[(layer * Width) + i];
                        }

                        gradient[i] += tied ? gradient[Last + i] : 0;
                    }

                    losses[step] += sum;
                }

                losses[step] /= Leaves;
                for (int i = 0; i < w.Length; ++i)
                {
                    double sum = (gradients[0][i] + gradients[1][i]) +
                        (gradients[2][i] + gradients[3][i]);
                    w[i] -= Rate * (sum / Leaves);
                    w[i] = tied && i >= Last ? w[i - Last] : w[i];
                }
            }

            return w;
        }
    }
}
