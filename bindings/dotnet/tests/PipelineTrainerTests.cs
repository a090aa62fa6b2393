using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Training with a pipeline, over layers of the caller.</summary>
    internal static class PipelineTrainerTests
    {
        internal const int Width = 3;
        internal const int Leaves = 4;
        internal const int Steps = 3;
        private const double Rate = 0.25;

        /// <summary>Throws where it is told to.</summary>
        internal delegate void Trouble(LayerCall call);

        [Test]
        public static void Training_is_that_of_plain_loops()
        {
            double[] expectedLosses;
            double[] expected = Alone(out expectedLosses);
            foreach (PipelineOrder order in new[]
            {
                PipelineOrder.GPipe, PipelineOrder.OneForwardOneBackward, PipelineOrder.ZbH1,
            })
            {
                for (int ranks = 1; ranks <= 3; ++ranks)
                {
                    var found = new double[2 * Width];
                    Ranks.RunAndLeaveTogether(ranks, c => With(
                        c, order, null, (trainer, model, first) =>
                    {
                        TrainerInfo info = trainer.Info;
                        Check.Equal(1ul, info.Stages);
                        Check.Equal(first == 0 ? 1ul : 0ul, info.SplitLayers);
                        Check.Equal(expectedLosses[0], trainer.Evaluate());
                        for (int step = 0; step < Steps; ++step)
                        {
                            GC.Collect(); // what native code calls is held
                            Check.Equal(expectedLosses[step], trainer.Step().Loss);
                        }

                        var own = new double[(int)info.Layers * Width];
                        model.GetParameters<double>(own);
                        Array.Copy(own, 0, found, first * Width, own.Length);
                    }));
                    Check.Same(expected, found, order + " on " + ranks);
                }
            }
        }

        [Test]
        public static void Layers_run_forward_again_by_the_schedule_and_by_options()
        {
            const string Again = "pipeline ranks=2 stages=2 micro_batches=4 placement=0,1\n"
                + "0F0 0F1 0F2 0F3 0R0 0B0 0R1 0B1 0R2 0B2 0B3\n"
                + "1F0 1F1 1F2 1F3 1R0 1B0 1B1 1B2 1B3\n";
            double[] losses;
            double[] expected = Alone(out losses);
            RunAgain(Again, new TrainerOptions(), new[] { 3, 1 }, losses, expected);
            var every = new TrainerOptions { CheckpointEvery = 1 };
            RunAgain("gpipe", every, new[] { 4, 4 }, losses, expected);
            RunAgain("1f1b", every, new[] { 4, 0 }, losses, expected);
            var budget = new TrainerOptions { ActivationBudgetBytes = 1 << 20 };
            RunAgain("gpipe", budget, new[] { 0, 0 }, losses, expected);
            var file = new TrainerOptions { Offload = Path.GetTempPath() };
            RunAgain("gpipe", file, new[] { 0, 0 }, losses, expected);
        }

        private static void RunAgain(
            string text, TrainerOptions how, int[] counts, double[] losses, double[] expected)
        {
            var found = new double[2 * Width];
            Ranks.RunAndLeaveTogether(2, c =>
            {
                int again = 0, first = c.Rank;
                using (Communicator alone = c.Split(first))
                using (Model model = ModelOf(alone, first, 1))
                using (var optimizer = new Optimizer(model, Sgd()))
                using (PipelineSchedule schedule = text.Contains("\n")
                    ? PipelineSchedule.Parse(text)
                    : Schedule(
                        text == "gpipe"
                            ? PipelineOrder.GPipe : PipelineOrder.OneForwardOneBackward,
                        2))
                {
                    Layer own = Own(null, first, 1)[0];
                    LayerFunction counted = call =>
                    {
                        again += call.Phase == LayerPhase.Recompute ? 1 : 0;
                        own.Forward(call);
                    };
                    var layers = new[]
                    {
                        new Layer(own.Name, counted, own.Backward)
                        {
                            BackwardWeight = own.BackwardWeight,
                            ParameterCount = own.ParameterCount,
                            OutputBytes = own.OutputBytes,
                            InputBytes = own.InputBytes,
                        },
                    };
                    var options = new TrainerOptions
                    {
                        Pipeline = new TrainerPipeline(c, schedule, new long[] { 0, 1, 2 }),
                        ActivationBudgetBytes = 1,
                    };
                    Check.Contains(
                        "activation_budget_bytes is 1, but the least that works is",
                        Check.Throws<HostMemoryException>(
                            () => new Trainer(optimizer, layers, options)).Message);
                    options.CheckpointEvery = how.CheckpointEvery;
                    options.ActivationBudgetBytes = how.ActivationBudgetBytes;
                    options.Offload = how.Offload;
                    using (var trainer = new Trainer(optimizer, layers, options))
                    {
                        foreach (double loss in losses)
                        {
                            Check.Equal(loss, trainer.Step().Loss);
                        }

                        Check.Equal(counts[first] * Steps, again);
                        if (how.Offload != null)
                        {
                            Check.Equal(Path.GetTempPath(), trainer.OffloadInfo.Path);
                            Check.Equal(
                                trainer.OffloadInfo.BufferBytes, trainer.Info.PlannedWindowBytes);
                        }

                        var values = new double[Width];
                        model.GetParameters<double>(values);
                        Array.Copy(values, 0, found, first * Width, Width);
                    }
                }
            });
            Check.Same(expected, found, text);
        }

        // y = w x for as many numbers as the leaf says, none in the first one. All are exact.
        [Test]
        public static void Sizes_vary_with_each_micro_batch()
        {
            LayerFunction forward = call =>
            {
                int count = (int)call.Leaf;
                Check.Equal(0ul, call.InputUsed);
                Check.Equal(0, call.InputShape.Length);
                Check.Equal((ulong)Width * 8, call.OutputUsed);
                Span<double> output = call.Output<double>();
                for (int i = 0; i < count; ++i)
                {
                    output[i] = call.Parameter<double>(0)[i] * Value(call.Leaf, i);
                }

                call.OutputUsed = (ulong)count * 8;
                bool refused = false;
                try
                {
                    call.SetOutputShape(new ulong[9]);
                }
                catch (ArgumentException)
                {
                    refused = true;
                }

                Check.That(refused, "nine numbers");
                call.SetOutputShape((ulong)count, ulong.MaxValue);
            };
            LayerFunction backward = call =>
            {
                int count = (int)call.Leaf;
                Check.Equal((ulong)count * 8, call.OutputUsed);
                Check.Equal(ulong.MaxValue, call.OutputShape[1]);
                Check.Equal(count, call.OutputGradient<double>().Length);
                bool refused = false;
                try
                {
                    call.OutputUsed = 0;
                }
                catch (InvalidOperationException)
                {
                    refused = true;
                }

                Check.That(refused, "backward says nothing");
                Span<double> gradient = call.Gradient<double>(0);
                for (int i = 0; i < Width; ++i)
                {
                    gradient[i] = i < count
                        ? call.OutputGradient<double>()[i] * Value(call.Leaf, i) : 0;
                }
            };
            LayerFunction total = call =>
            {
                Check.Equal((ulong)call.Leaf * 8, call.InputUsed);
                Check.Equal((ulong)call.Leaf, call.InputShape[0]);
                double sum = 0;
                foreach (double y in call.Input<double>())
                {
                    sum += y;
                }

                call.Loss = sum;
            };
            LayerFunction totalBackward = call =>
            {
                Check.Equal((int)call.Leaf, call.InputGradient<double>().Length);
                call.InputGradient<double>().Fill(call.LossScale);
            };
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var both = new[]
                {
                    new Layer("varying", forward, backward)
                    {
                        ParameterCount = 1, OutputBytes = Width * 8,
                    },
                    new Layer("total", total, totalBackward),
                };
                using (Communicator alone = c.Split(c.Rank))
                using (Model model = ModelOf(alone, 0, 1 - c.Rank))
                using (var optimizer = new Optimizer(model, Sgd()))
                using (PipelineSchedule schedule =
                    Schedule(PipelineOrder.OneForwardOneBackward, 2))
                using (var trainer = new Trainer(
                    optimizer, new[] { both[c.Rank] }, new TrainerOptions
                    {
                        Pipeline = new TrainerPipeline(c, schedule, new long[] { 0, 1, 2 }),
                    }))
                {
                    double[] w = Weights();
                    for (int step = 0; step < Steps; ++step)
                    {
                        double loss = 0;
                        var gradient = new double[Width];
                        for (uint leaf = 0; leaf < Leaves; ++leaf)
                        {
                            for (int i = 0; i < leaf; ++i)
                            {
                                loss += w[i] * Value(leaf, i);
                                gradient[i] += Value(leaf, i);
                            }
                        }

                        Check.Equal(loss / Leaves, trainer.Step().Loss);
                        for (int i = 0; i < Width; ++i)
                        {
                            w[i] -= Rate * (gradient[i] / Leaves);
                        }
                    }
                }
            });
        }

        // The loss is the sum of its input and of twice what it reads.
        [Test]
        public static void Layers_read_outputs_of_earlier_ones()
        {
            LayerFunction hand = call => call.Input<double>().CopyTo(call.Output<double>());
            LayerFunction handBack =
                call => call.OutputGradient<double>().CopyTo(call.InputGradient<double>());
            LayerFunction read = call =>
            {
                Check.Equal(1, call.ReadCount);
                Check.Equal(0ul, call.ReadShape(0)[0]);
                Check.Equal((ulong)Width * 8, call.ReadBytes(0));
                Check.Equal(0, call.ReadGradient<double>(0).Length);
                double sum = 0;
                for (int i = 0; i < Width; ++i)
                {
                    sum += call.Input<double>()[i] + (2 * call.ReadInput<double>(0)[i]);
                }

                call.Loss = sum;
                bool refused = false;
                try
                {
                    call.ReadInput<double>(1);
                }
                catch (ArgumentOutOfRangeException)
                {
                    refused = true;
                }

                Check.That(refused, "one output is read");
            };
            LayerFunction readBack = call =>
            {
                call.InputGradient<double>().Fill(call.LossScale);
                call.ReadGradient<double>(0).Fill(2 * call.LossScale);
            };
            Ranks.RunAndLeaveTogether(2, c =>
            {
                Layer scale = Own(null, 0, 1)[0];
                scale.OutputType = ElementType.F64;
                var hands = new Layer("hands", hand, handBack) { OutputBytes = Width * 8 };
                var reader = new Layer("reader", read, readBack) { Reads = new long[] { 0 } };
                using (Communicator alone = c.Split(c.Rank))
                using (Model model = ModelOf(alone, 0, 1 - c.Rank))
                using (var optimizer = new Optimizer(model, Sgd()))
                using (PipelineSchedule schedule =
                    Schedule(PipelineOrder.OneForwardOneBackward, 2))
                using (var trainer = new Trainer(
                    optimizer, c.Rank == 0 ? new[] { scale, hands } : new[] { reader },
                    new TrainerOptions
                    {
                        Pipeline = new TrainerPipeline(c, schedule, new long[] { 0, 2, 3 }),
                    }))
                {
                    double[] w = Weights();
                    for (int step = 0; step < Steps; ++step)
                    {
                        double loss = 0;
                        var gradient = new double[Width];
                        for (uint leaf = 0; leaf < Leaves; ++leaf)
                        {
                            for (int i = 0; i < Width; ++i)
                            {
                                loss += 3 * w[i] * Value(leaf, i);
                                gradient[i] += 3 * Value(leaf, i);
                            }
                        }

                        Check.Equal(loss / Leaves, trainer.Step().Loss);
                        for (int i = 0; i < Width; ++i)
                        {
                            w[i] -= Rate * (gradient[i] / Leaves);
                        }
                    }
                }
            });
        }

        [Test]
        public static void An_exception_is_thrown_here_and_told_there()
        {
            Trouble trouble = call =>
            {
                if (call.Phase == LayerPhase.BackwardWeight && call.MicroBatch == 2)
                {
                    Check.Equal(0ul, call.Number);
                    Check.Equal(0, call.Stage);
                    throw new InvalidOperationException("the third sample");
                }
            };
            Ranks.RunAndLeaveTogether(2, c => With(
                c, PipelineOrder.ZbH1, trouble, (trainer, model, first) =>
            {
                if (c.Rank == 0)
                {
                    Check.Equal(
                        "the third sample",
                        Check.Throws<InvalidOperationException>(() => trainer.Step()).Message);
                }
                else
                {
                    string message =
                        Check.Throws<CallbackException>(() => trainer.Step()).Message;
                    Check.Contains("rank 0 of the pipeline", message);
                    Check.Contains("layer 0 (\"scale\") of stage 0", message);
                    Check.Contains("micro-batch 2", message);
                }
            }));
        }

        [Test]
        public static void Options_of_a_pipeline_are_checked()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (PipelineSchedule schedule = Schedule(PipelineOrder.ZbH1, 2))
                {
                    Check.Throws<ArgumentNullException>(
                        () => new TrainerPipeline(null, schedule, new long[] { 0, 1, 2 }));
                    Check.Throws<ArgumentNullException>(
                        () => new TrainerPipeline(c, null, new long[] { 0, 1, 2 }));
                    Check.Throws<ArgumentNullException>(
                        () => new TrainerPipeline(c, schedule, null));
                    using (Communicator alone = c.Split(c.Rank))
                    using (Model model = ModelOf(alone, c.Rank, 1))
                    using (var optimizer = new Optimizer(model, Sgd()))
                    {
                        Layer[] layers = Own(null, c.Rank, 1);
                        var options = new TrainerOptions
                        {
                            Pipeline = new TrainerPipeline(c, schedule, new long[] { 0, 2, 1 }),
                        };
                        Check.Contains(
                            "cuts[2] is 1, below cuts[1], 2",
                            Check.Throws<InvalidArgumentException>(
                                () => new Trainer(optimizer, layers, options)).Message);
                        options.Pipeline =
                            new TrainerPipeline(c, schedule, new long[] { 0, 1, 2 })
                            {
                                RequireSplit = true,
                            };
                        Check.Contains(
                            c.Rank == 1 ? "has no backward_weight" : "rank 1 answered",
                            Check.Throws<InvalidArgumentException>(
                                () => new Trainer(optimizer, layers, options)).Message);
                        options.Pipeline.RequireSplit = false;
                        layers[0].InputBytes = (ulong)c.Rank * 8;
                        Check.Contains(
                            "has input_bytes 8, but stage 0 puts out 24",
                            Check.Throws<InvalidArgumentException>(
                                () => new Trainer(optimizer, layers, options)).Message);
                        schedule.Dispose();
                        Check.Throws<ObjectDisposedException>(
                            () => new Trainer(optimizer, layers, options));
                    }
                }
            });
        }

        [Test]
        public static void A_trainer_has_copies_of_its_layers()
        {
            double[] losses;
            Alone(out losses);
            Ranks.RunAndLeaveTogether(1, c =>
            {
                Layer[] layers = Own(null, 0, 2);
                using (Model model = ModelOf(c, 0, 2))
                using (var optimizer = new Optimizer(model, Sgd()))
                using (var trainer = new Trainer(optimizer, layers))
                {
                    foreach (Layer layer in layers)
                    {
                        layer.FirstParameter += 2;
                        layer.BackwardWeight = null;
                    }

                    Check.Equal(losses[0], trainer.Step().Loss);
                    Check.Equal(losses[1], trainer.Step().Loss);
                }
            });
        }

        [Test]
        public static void Layers_change_their_ranks_and_no_bit_changes()
        {
            double[] losses;
            double[] expected = Alone(out losses);
            var found = new double[2 * Width];
            Ranks.RunAndLeaveTogether(2, c =>
            {
                // The ranks of the pipeline change places.
                using (Communicator other = c.Split(0, 1 - c.Rank))
                using (Communicator alone = c.Split(c.Rank))
                using (Model model = ModelOf(alone, c.Rank, 1))
                using (var optimizer = new Optimizer(model, Sgd()))
                using (Model next = ModelOf(alone, other.Rank, 1))
                using (var updated = new Optimizer(next, Sgd()))
                {
                    next.SetParameters<double>(new double[] { 9, 9, 9 });
                    using (Trainer trainer = TwoStages(c, optimizer))
                    {
                        Check.Throws<InvalidStateException>(() => trainer.LayerCosts());
                        Check.Equal(losses[0], trainer.Step().Loss);
                        MeasuredCosts[] costs = trainer.LayerCosts();
                        Check.Equal(2, costs.Length);
                        Check.Equal(24ul, costs[0].ParameterBytes);
                        Check.Equal(24ul, costs[0].OutputBytes);
                        Check.Equal(0ul, costs[1].OutputBytes);
                        Check.That(costs.All(x => x.ForwardSeconds > 0 && x.InputSeconds > 0), "costs");
                        Check.That(costs[0].WeightSeconds > 0 && costs[1].WeightSeconds == 0, "costs");
                        Check.That(costs[0].Seconds > costs[0].WeightSeconds, "costs");
                        LayerCosts cost = costs[0].ToLayerCosts();
                        Check.Equal(costs[0].Seconds, cost.Seconds);
                        Check.Equal(24ul, cost.KeptBytes);
                        Check.Equal(0ul, cost.Bytes);
                    }

                    Check.Throws<ArgumentNullException>(() => updated.TakeOver(null, c));
                    Check.Throws<ArgumentNullException>(() => updated.TakeOver(optimizer, null));
                    var options = new RebalanceOptions
                    {
                        Cuts = new long[] { 0, 2 - c.Rank, 2 },
                        BufferBytes = 64,
                        Timeout = TimeSpan.FromSeconds(20),
                    };
                    Check.Throws<MismatchException>(
                        () => updated.TakeOver(optimizer, c, options));
                    options.Cuts = new long[] { 0, 1, 2 };
                    RebalanceReport report = updated.TakeOver(optimizer, c, options);
                    Check.Equal(24ul, report.SentBytes);
                    Check.Equal(24ul, report.ReceivedBytes);
                    Check.Equal(0ul, report.KeptBytes);
                    Check.That(report.BufferBytes >= 128 && report.PeakBytes > report.BufferBytes, "peak");
                    using (Trainer trainer = TwoStages(other, updated))
                    {
                        for (int step = 1; step < Steps; ++step)
                        {
                            Check.Equal(losses[step], trainer.Step().Loss);
                        }
                    }

                    var own = new double[Width];
                    next.GetParameters<double>(own);
                    Array.Copy(own, 0, found, other.Rank * Width, Width);
                }
            });
            Check.Same(expected, found, "by new cuts");
        }

        private static Trainer TwoStages(Communicator c, Optimizer optimizer)
        {
            using (PipelineSchedule schedule = Schedule(PipelineOrder.ZbH1, 2))
            {
                return new Trainer(optimizer, Own(null, c.Rank, 1), new TrainerOptions
                {
                    Pipeline = new TrainerPipeline(c, schedule, new long[] { 0, 1, 2 }),
                });
            }
        }

        private delegate void Body(Trainer trainer, Model model, int first);

        private static void With(Communicator c, PipelineOrder order, Trouble trouble, Body body)
        {
            int ranks = c.WorldSize;
            long[] cuts = ranks == 1 ? new long[] { 0, 2 }
                : ranks == 2 ? new long[] { 0, 1, 2 }
                : new long[] { 0, 1, 1, 2 }; // the second of three ranks has no layers
            int first = (int)cuts[c.Rank], count = (int)cuts[c.Rank + 1] - first;
            using (Communicator alone = c.Split(c.Rank))
            using (Model model = ModelOf(alone, first, count))
            using (var optimizer = new Optimizer(model, Sgd()))
            {
                Layer[] layers = Own(trouble, first, count);
                Trainer trainer;
                using (PipelineSchedule schedule = Schedule(order, ranks))
                {
                    trainer = new Trainer(optimizer, layers, new TrainerOptions
                    {
                        Pipeline = new TrainerPipeline(c, schedule, cuts),
                    });
                }

                using (trainer)
                {
                    body(trainer, model, first);
                }
            }
        }

        private static PipelineSchedule Schedule(PipelineOrder order, int ranks)
        {
            return PipelineSchedule.Create(
                new PipelineOptions { Order = order, Ranks = ranks, MicroBatches = Leaves });
        }

        internal static OptimizerOptions Sgd()
        {
            return new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = Rate };
        }

        private static Model ModelOf(Communicator c, int first, int count)
        {
            var model = new Model(
                c, new ModelOptions { Strategy = Strategy.Zero1, Leaves = Leaves });
            for (int i = first; i < first + count; ++i)
            {
                model.AddParameter(new ParameterOptions("w" + i, ElementType.F64, Width));
            }

            model.Seal();
            model.SetParameters<double>(Weights().Skip(first * Width).Take(count * Width).ToArray());
            return model;
        }

        internal static double[] Weights()
        {
            return Enumerable.Range(0, 2 * Width).Select(i => 1 + (i * 0.25)).ToArray();
        }

        private static double Value(uint leaf, int i)
        {
            return ((leaf * 3) + i) * 0.125;
        }

        internal static Layer[] Own(Trouble trouble, int first, int count)
        {
            Layer[] layers = Layers(trouble).Skip(first).Take(count).ToArray();
            for (int i = 0; i < layers.Length; ++i)
            {
                layers[i].FirstParameter = (ulong)i;
            }

            return layers;
        }

        // y = w x, and the loss is the sum of w y. All numbers are exact.
        private static Layer[] Layers(Trouble trouble)
        {
            LayerFunction trap = call => trouble?.Invoke(call);
            return new[]
            {
                new Layer(
                    "scale",
                    call =>
                    {
                        Span<double> y = call.Output<double>();
                        for (int i = 0; i < Width; ++i)
                        {
                            y[i] =
                                call.Parameter<double>(0)[i] * Value(call.Leaf, i);
                        }
                    },
                    call => Check.Equal(0, call.InputGradient<double>().Length))
                {
                    BackwardWeight = call =>
                    {
                        trap(call);
                        Span<double> gradient = call.Gradient<double>(0);
                        for (int i = 0; i < Width; ++i)
                        {
                            gradient[i] =
                                call.OutputGradient<double>()[i] * Value(call.Leaf, i);
                        }
                    },
                    ParameterCount = 1,
                    OutputBytes = Width * 8,
                },
                new Layer(
                    "sum",
                    call =>
                    {
                        double sum = 0;
                        for (int i = 0; i < Width; ++i)
                        {
                            sum += call.Parameter<double>(0)[i] * call.Input<double>()[i];
                        }

                        call.Loss = sum;
                    },
                    call =>
                    {
                        Span<double> gradient = call.Gradient<double>(0);
                        Span<double> back = call.InputGradient<double>();
                        for (int i = 0; i < Width; ++i)
                        {
                            gradient[i] = call.LossScale * call.Input<double>()[i];
                            back[i] =
                                call.LossScale * call.Parameter<double>(0)[i];
                        }
                    })
                {
                    ParameterCount = 1,
                    InputBytes = Width * 8,
                },
            };
        }

        internal static double[] Alone(out double[] losses)
        {
            double[] w = Weights();
            losses = new double[Steps];
            for (int step = 0; step < Steps; ++step)
            {
                var gradient = new double[w.Length];
                for (uint leaf = 0; leaf < Leaves; ++leaf)
                {
                    double sum = 0;
                    for (int i = 0; i < Width; ++i)
                    {
                        double y = w[i] * Value(leaf, i);
                        sum += w[Width + i] * y;
                        gradient[Width + i] += y;
                        gradient[i] += w[Width + i] * Value(leaf, i);
                    }

                    losses[step] += sum;
                }

                losses[step] /= Leaves;
                for (int i = 0; i < w.Length; ++i)
                {
                    w[i] -= Rate * (gradient[i] / Leaves);
                }
            }

            return w;
        }
    }
}
