using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Whole training steps over layers of the caller.</summary>
    internal static class TrainerTests
    {
        private const int Inputs = 3;
        private const int Hidden = 4;
        private const int Steps = 5;
        private const double Rate = 0.25;
        private const int FirstBias = Hidden * Inputs;
        private const int Second = FirstBias + Hidden;
        private const int SecondBias = Second + Hidden;

        private delegate void Trouble(LayerCall call);

        [Test]
        public static void The_name_of_a_layer_is_whole_or_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero2))
            using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
            {
                foreach (string name in new[] { "a\0b", "\0" })
                {
                    var layers = new[]
                    {
                        new Layer(name, call => { }, call => { }) { ParameterCount = 3 },
                    };
                    Check.Contains(
                        "NUL",
                        Check.Throws<ArgumentException>(
                            () => new Trainer(optimizer, layers)).Message);
                }
            }
        }

        [Test]
        public static void Training_is_that_of_plain_loops()
        {
            double[] expectedLosses;
            double[] expected = Alone(4, Steps, out expectedLosses);
            double[] first = null;
            var gate = new object();
            foreach (int worldSize in new[] { 1, 2, 3 })
            {
                foreach (Strategy strategy in new[] { Strategy.DataParallel, Strategy.Zero3 })
                {
                    Ranks.RunAndLeaveTogether(worldSize, c => With(
                        c, strategy, 4, null, null, (trainer, model, optimizer) =>
                    {
                        Near(expectedLosses[0], trainer.Evaluate(new Samples()), "evaluate");
                        for (int step = 0; step < Steps; ++step)
                        {
                            GC.Collect(); // what native code calls is held
                            TrainerMetrics metrics = trainer.Step(new Samples());
                            Near(expectedLosses[step], metrics.Loss, "loss");
                            Check.Equal((ulong)step + 1, metrics.Step);
                            Check.Equal(4ul, metrics.MicroBatches);
                            Check.Equal(Rate, metrics.LearningRate);
                            Check.Equal(-1.0, metrics.GradientNorm);
                            Check.That(!metrics.Stop && !metrics.Skipped, "goes on");
                        }

                        double[] found = Parameters(model);
                        for (int i = 0; i < found.Length; ++i)
                        {
                            Near(expected[i], found[i], "parameter " + i);
                        }

                        lock (gate)
                        {
                            first = first ?? found;
                            Check.Same(first, found, "the same bits");
                        }
                    }));
                }
            }
        }

        [Test]
        public static void A_gradient_that_is_not_written_is_named_or_zero()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var modelOptions = new ModelOptions { Strategy = Strategy.Zero2 };
                using (var model = new Model(c, modelOptions))
                {
                    model.AddParameter(new ParameterOptions("w", ElementType.F64, 3));
                    model.Seal();
                    model.SetParameters<double>(new double[] { 5, 5, 5 });
                    LayerFunction backward = call => call.Gradient<double>(0)[0] += 1;
                    var layer = new Layer("all", call => { }, backward) { ParameterCount = 1 };
                    var rule = new OptimizerOptions
                    {
                        Rule = RuleKind.Sgd, LearningRate = 1,
                    };
                    using (var optimizer = new Optimizer(model, rule))
                    {
                        using (var trainer = new Trainer(optimizer, new[] { layer }))
                        {
                            var error = Check.Throws<CallbackException>(
                                () => trainer.Step(null));
                            Check.Contains(
                                "layer 0 (\"all\") did not write 1 of its 1 gradient: \"w\"",
                                error.Message);
                        }

                        var zeros = new TrainerOptions { ZeroGradients = true };
                        using (var trainer = new Trainer(optimizer, new[] { layer }, zeros))
                        {
                            trainer.Step(null);
                            var found = new double[3];
                            model.GetParameters<double>(found);
                            Check.Same(new double[] { 4, 5, 5 }, found, "one");
                        }
                    }
                }
            });
        }

        [Test]
        public static void Checkpoints_give_the_same_bits()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                double[] first = null;
                foreach (ulong every in new ulong[] { 0, 1 })
                {
                    int recomputed = 0;
                    var options = new TrainerOptions { CheckpointEvery = every };
                    Trouble count = call => recomputed += Is(call, LayerPhase.Recompute) ? 1 : 0;
                    With(c, Strategy.Zero3, 4, options, count, (trainer, model, optimizer) =>
                    {
                        trainer.Step(new Samples());
                        trainer.Step(new Samples());
                        Check.That((recomputed > 0) == (every > 0), recomputed + " times");
                        Check.That((trainer.Info.Recomputed > 0) == (every > 0), "the plan");
                        Check.Equal(2ul, trainer.Info.Layers);
                        double[] found = Parameters(model);
                        first = first ?? found;
                        Check.Same(first, found, "the same bits");
                    });
                }
            });
        }

        [Test]
        public static void Activations_in_a_file_give_the_same_bits()
        {
            string folder = Path.GetTempPath();
            Ranks.RunAndLeaveTogether(2, c =>
            {
                double[] first = null;
                foreach (string path in new[] { null, folder })
                {
                    var options = new TrainerOptions { Offload = path };
                    With(c, Strategy.Zero3, 4, options, null, (trainer, model, optimizer) =>
                    {
                        trainer.Step(new Samples());
                        trainer.Step(new Samples());
                        double[] found = Parameters(model);
                        first = first ?? found;
                        Check.Same(first, found, "the same bits");
                        if (path == null)
                        {
                            Check.Equal(0ul, trainer.Info.PlannedWindowBytes);
                            Check.Throws<InvalidStateException>(
                                () => trainer.OffloadInfo.ToString());
                            return;
                        }

                        OffloadInfo info = trainer.OffloadInfo;
                        Check.Equal(folder, info.Path);
                        Check.Equal(trainer.Info.PlannedWindowBytes, info.BufferBytes);
                        Check.That(info.BlockBytes > 0, "items");
                        Check.Equal(0ul, info.FailedWrites);
                    });
                }

                foreach (TrainerOptions options in new[]
                {
                    new TrainerOptions { Offload = string.Empty },
                    new TrainerOptions { Offload = new Offload(folder) { Ratio = 0.5 } },
                })
                {
                    Check.Throws<InvalidArgumentException>(
                        () => With(c, Strategy.Zero3, 4, options, null, (t, m, o) => { }));
                }

                var little = new TrainerOptions
                {
                    Offload = new Offload(folder) { BufferBytes = 1 },
                };
                Check.Throws<HostMemoryException>(
                    () => With(c, Strategy.Zero3, 4, little, null, (t, m, o) => { }));
            });
        }

        [Test]
        public static void A_layer_that_throws_fails_on_all_ranks_and_training_goes_on()
        {
            double[] losses;
            double[] expected = Alone(4, 2, out losses);
            foreach (LayerPhase phase in new[] { LayerPhase.Forward, LayerPhase.Backward })
            {
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    bool broken = true;
                    Trouble trouble = call =>
                    {
                        if (broken && c.Rank == 1 && Is(call, phase) && call.Layer == 0)
                        {
                            throw new InvalidTimeZoneException("no such sample");
                        }
                    };
                    With(c, Strategy.Zero3, 4, null, trouble, (trainer, model, optimizer) =>
                    {
                        for (int i = 0; i < 2; ++i)
                        {
                            if (c.Rank == 1)
                            {
                                Check.Throws<InvalidTimeZoneException>(
                                    () => trainer.Step(new Samples()));
                            }
                            else
                            {
                                Check.Throws<CallbackException>(
                                    () => trainer.Step(new Samples()));
                            }
                        }

                        broken = false;
                        Near(losses[0], trainer.Step(new Samples()).Loss, "loss");
                        Near(losses[1], trainer.Step(new Samples()).Loss, "loss");
                        double[] found = Parameters(model);
                        for (int i = 0; i < found.Length; ++i)
                        {
                            Near(expected[i], found[i], "parameter " + i);
                        }
                    });
                });
            }
        }

        [Test]
        public static void What_is_thrown_while_the_disk_fails_does_not_come_out_later()
        {
            foreach (bool bySchedule in new[] { false, true })
            {
                Ranks.RunAndLeaveTogether(2, c => FailTwice(c, bySchedule));
            }
        }

        [Test]
        public static void What_a_layer_throws_comes_out_of_Evaluate()
        {
            double[] losses;
            Alone(4, 1, out losses);
            Ranks.RunAndLeaveTogether(2, c =>
            {
                bool broken = true;
                Trouble trouble = call =>
                {
                    if (broken && c.Rank == 0 && Is(call, LayerPhase.Evaluate))
                    {
                        throw new InvalidTimeZoneException("no such sample");
                    }
                };
                With(c, Strategy.Zero3, 4, null, trouble, (trainer, model, optimizer) =>
                {
                    for (int i = 0; i < 2; ++i)
                    {
                        if (c.Rank == 0)
                        {
                            Check.Throws<InvalidTimeZoneException>(
                                () => trainer.Evaluate(new Samples()));
                        }
                        else
                        {
                            Check.Throws<CallbackException>(
                                () => trainer.Evaluate(new Samples()));
                        }
                    }

                    broken = false;
                    Near(losses[0], trainer.Evaluate(new Samples()), "loss");
                    Near(losses[0], trainer.Step(new Samples()).Loss, "loss");
                });
            });
        }

        [Test]
        public static void An_optimizer_that_is_disposed_of_goes_on_in_its_trainer()
        {
            double[] losses;
            double[] expected = Alone(4, 2, out losses);
            Ranks.RunAndLeaveTogether(2, c =>
            {
                int updates = 0;
                var rule = new OptimizerOptions
                {
                    LearningRate = 2 * Rate,
                    Rule = new UserRule(update =>
                    {
                        ++updates;
                        Span<double> parameters = update.Parameters<double>();
                        ReadOnlySpan<double> gradients = update.Gradients<double>();
                        for (int i = 0; i < update.Count; ++i)
                        {
                            parameters[i] -= update.LearningRate * gradients[i];
                        }
                    }),
                };
                Action<Trainer, Model, Optimizer> body = (trainer, model, optimizer) =>
                {
                    bool broken = false;
                    optimizer.SetSchedule(new UserSchedule(
                        step => broken
                            ? throw new InvalidTimeZoneException("no factor") : 0.5));
                    optimizer.Dispose();
                    // Memory that was freed too early now belongs to these.
                    Optimizer[] others = Enumerable.Range(0, 10).Select(i => Other(c)).ToArray();
                    GC.Collect();
                    Near(losses[0], trainer.Step(new Samples()).Loss, "loss");
                    broken = true;
                    Check.Throws<InvalidTimeZoneException>(() => trainer.Step(new Samples()));
                    broken = false;
                    TrainerMetrics metrics = trainer.Step(new Samples());
                    Near(losses[1], metrics.Loss, "loss");
                    Check.Equal(Rate, metrics.LearningRate);
                    Check.That(updates > 0, "the rule has run");
                    double[] found = Parameters(model);
                    for (int i = 0; i < found.Length; ++i)
                    {
                        Near(expected[i], found[i], "parameter " + i);
                    }

                    Check.Throws<InvalidStateException>(() => new Optimizer(model, rule));
                    trainer.Dispose();
                    new Optimizer(model, rule).Dispose();
                    foreach (Optimizer other in others)
                    {
                        other.Dispose();
                    }
                };
                With(c, Strategy.Zero2, 4, null, null, body, rule);
            });
        }

        [Test]
        public static void A_layer_that_calls_the_library_is_refused()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                Trainer own = null;
                Model owned = null;
                int calls = 0;
                Trouble trouble = call =>
                {
                    ++calls;
                    Check.That(call.Batch is Samples, "the batch");
                    Check.Throws<InvalidStateException>(() => own.Step());
                    Check.Throws<InvalidStateException>(() => own.Evaluate());
                    Check.Throws<InvalidStateException>(() => own.Info.ToString());
                    Check.Throws<InvalidStateException>(
                        () => owned.GetParameters<double>(new double[SecondBias + 1]));
                };
                With(c, Strategy.Zero2, 2, null, trouble, (trainer, model, optimizer) =>
                {
                    own = trainer;
                    owned = model;
                    trainer.Step(new Samples());
                    Check.Equal(4, calls);
                });
            });
        }

        [Test]
        public static void All_ranks_stop_after_the_same_step()
        {
            var stopped = new ulong[2];
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var options = new TrainerOptions
                {
                    AfterStep = metrics => c.Rank == 1 && metrics.Step == 2,
                };
                With(c, Strategy.Zero1, 2, options, null, (trainer, model, optimizer) =>
                {
                    TrainerMetrics metrics;
                    do
                    {
                        metrics = trainer.Step(new Samples());
                    }
                    while (!metrics.Stop);

                    stopped[c.Rank] = metrics.Step;
                    trainer.RequestStop();
                });
            });
            Check.Equal(stopped[0], stopped[1]);
            Check.That(stopped[0] >= 2 && stopped[0] <= 4, "step " + stopped[0]);
        }

        [Test]
        public static void What_does_not_fit_is_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                Trouble trouble = call =>
                {
                    int refused = 0;
                    try
                    {
                        call.Parameter<float>(0);
                    }
                    catch (ArgumentException)
                    {
                        ++refused;
                    }

                    try
                    {
                        call.Parameter<double>(2);
                    }
                    catch (ArgumentOutOfRangeException)
                    {
                        ++refused;
                    }

                    try
                    {
                        call.Gradient<float>(0);
                    }
                    catch (Exception exception) when (
                        exception is ArgumentException || exception is InvalidOperationException)
                    {
                        ++refused;
                    }

                    Check.Equal(3, refused);
                };
                With(c, Strategy.Zero3, 2, null, trouble, (trainer, model, optimizer) =>
                {
                    trainer.Step(new Samples());
                    Check.Throws<InvalidArgumentException>(
                        () => new Trainer(optimizer, new Layer[0]));
                    Check.Throws<ArgumentNullException>(() => new Trainer(null, new Layer[0]));
                    Check.Throws<ArgumentNullException>(() => new Trainer(optimizer, null));
                    Check.Throws<ArgumentNullException>(
                        () => new Layer("a", null, call => { }).ToString());
                    Check.Throws<InvalidArgumentException>(
                        () => new Trainer(optimizer, new[] { Layers(null)[0] }));
                    trainer.Dispose();
                    Check.Throws<ObjectDisposedException>(() => trainer.Step());
                    Check.Throws<ObjectDisposedException>(() => trainer.RequestStop());
                });
            }
        }

        /// <summary>A step in which rank 0's file fails and rank 1 throws, and good ones.</summary>
        private static void FailTwice(Communicator c, bool bySchedule)
        {
            bool broken = c.Rank == 1;
            LayerFunction forward = call =>
            {
                if (broken && !bySchedule && call.Layer == 1)
                {
                    throw new KeyNotFoundException("of the broken step");
                }

                if (call.Layer == 4)
                {
                    call.Loss = 1;
                }
            };
            LayerFunction backward = call =>
            {
                Span<double> gradient = call.Gradient<double>(0);
                gradient[0] = 1;
            };
            var schedule = new UserSchedule(
                step => broken && bySchedule
                    ? throw new KeyNotFoundException("of the broken step") : 1.0);
            var rule = new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = 1 };
            var window = new TrainerOptions
            {
                Offload = new Offload(Path.GetTempPath()) { BufferBytes = 8192 },
            };
            var layers = new List<Layer>();
            using (var model = new Model(
                       c, new ModelOptions { Strategy = Strategy.DataParallel }))
            {
                for (ulong i = 0; i < 5; ++i)
                {
                    model.AddParameter(new ParameterOptions("p" + i, ElementType.F64, 1));
                    layers.Add(new Layer("l" + i, forward, backward)
                    {
                        FirstParameter = i, ParameterCount = 1, OutputBytes = i < 4 ? 64ul : 0,
                    });
                }

                model.Seal();
                model.SetParameters<double>(new double[5]);
                using (var optimizer = new Optimizer(model, rule))
                using (var trainer = new Trainer(optimizer, layers, window))
                {
                    optimizer.SetSchedule(schedule);
                    c.Barrier();
                    if (c.Rank == 0)
                    {
                        Failpoint.Set("file.read=fail(5)@1+"); // of backward, of both ranks
                    }

                    c.Barrier();
                    SystemErrorException failure;
                    try
                    {
                        failure = Check.Throws<SystemErrorException>(() => trainer.Step());
                        c.Barrier();
                    }
                    finally
                    {
                        Failpoint.Set(null);
                    }

                    Check.Contains("cannot be read", failure.Message);
                    Check.Equal(c.Rank == 1, failure.InnerException is KeyNotFoundException);
                    broken = false;
                    c.Barrier();
                    Check.Equal(1ul, trainer.Step().Step);
                    Check.Equal(2ul, trainer.Step().Step);
                    Near(1, trainer.Evaluate(), "the loss");
                    var found = new double[5];
                    model.GetParameters<double>(found);
                    Check.Same(Enumerable.Repeat(-2.0, 5).ToArray(), found, "parameters");
                }
            }
        }

        private static bool Is(LayerCall call, LayerPhase phase)
        {
            return call.Phase == phase;
        }

        private static void Near(double expected, double found, string what)
        {
            Check.That(
                Math.Abs(expected - found) < 1e-12, what + " is " + found + ", not " + expected);
        }

        private static double[] Parameters(Model model)
        {
            var result = new double[SecondBias + 1];
            model.GetParameters<double>(result);
            return result;
        }

        private static double[] FirstWeights()
        {
            return Enumerable.Range(0, SecondBias + 1).Select(i => Math.Sin(i * 1.7)).ToArray();
        }

        private static void With(
            Communicator communicator, Strategy strategy, uint leaves, TrainerOptions options,
            Trouble trouble, Action<Trainer, Model, Optimizer> body, OptimizerOptions rule = null)
        {
            var modelOptions = new ModelOptions { Strategy = strategy, Leaves = leaves };
            using (var model = new Model(communicator, modelOptions))
            {
                model.AddParameter(new ParameterOptions("w1", ElementType.F64, Hidden, Inputs));
                model.AddParameter(new ParameterOptions("b1", ElementType.F64, Hidden));
                model.AddParameter(new ParameterOptions("w2", ElementType.F64, Hidden));
                model.AddParameter(new ParameterOptions("b2", ElementType.F64, 1));
                model.Seal();
                model.SetParameters<double>(FirstWeights());
                rule = rule ?? new OptimizerOptions
                {
                    Rule = RuleKind.Sgd, LearningRate = Rate,
                };
                using (var optimizer = new Optimizer(model, rule))
                using (var trainer = new Trainer(optimizer, Layers(trouble), options))
                {
                    body(trainer, model, optimizer);
                }
            }
        }

        /// <summary>Of a model of its own, with a rule and a schedule that must not run.</summary>
        private static Optimizer Other(Communicator communicator)
        {
            var model = new Model(
                communicator, new ModelOptions { Strategy = Strategy.DataParallel });
            model.AddParameter(new ParameterOptions("w", ElementType.F64, 1));
            model.Seal();
            var optimizer = new Optimizer(model, new OptimizerOptions
            {
                Rule = new UserRule(update => throw new NotSupportedException("another's rule")),
            });
            optimizer.SetSchedule(new UserSchedule(
                step => throw new NotSupportedException("another's schedule")));
            return optimizer;
        }

        private static Layer[] Layers(Trouble trouble)
        {
            LayerFunction hiddenForward = call =>
            {
                trouble?.Invoke(call);
                double[] x = ((Samples)call.Batch).X(call.Leaf);
                ReadOnlySpan<double> w = call.Parameter<double>(0);
                ReadOnlySpan<double> b = call.Parameter<double>(1);
                Span<double> output = call.Output<double>();
                for (int i = 0; i < Hidden; ++i)
                {
                    double sum = b[i];
                    for (int j = 0; j < Inputs; ++j)
                    {
                        sum += w[(i * Inputs) + j] * x[j];
                    }

                    output[i] = Math.Tanh(sum);
                }
            };
            LayerFunction hiddenBackward = call =>
            {
                trouble?.Invoke(call);
                double[] x = ((Samples)call.Batch).X(call.Leaf);
                ReadOnlySpan<double> g = call.OutputGradient<double>();
                Span<double> h = call.Output<double>();
                Span<double> w = call.Gradient<double>(0);
                Span<double> b = call.Gradient<double>(1);
                for (int i = 0; i < Hidden; ++i)
                {
                    b[i] = g[i] * (1 - (h[i] * h[i]));
                    for (int j = 0; j < Inputs; ++j)
                    {
                        w[(i * Inputs) + j] = b[i] * x[j];
                    }
                }
            };
            LayerFunction lastForward = call =>
            {
                trouble?.Invoke(call);
                ReadOnlySpan<double> h = call.Input<double>();
                ReadOnlySpan<double> w = call.Parameter<double>(0);
                double delta = call.Parameter<double>(1)[0] -
                               ((Samples)call.Batch).Target(call.Leaf);
                for (int i = 0; i < Hidden; ++i)
                {
                    delta += w[i] * h[i];
                }

                Span<double> saved = call.Saved<double>();
                saved[0] = delta;
                if (call.Phase != LayerPhase.Recompute)
                {
                    call.Loss = delta * delta / 2;
                }
            };
            LayerFunction lastBackward = call =>
            {
                trouble?.Invoke(call);
                double delta = call.Saved<double>()[0] * call.LossScale;
                ReadOnlySpan<double> h = call.Input<double>();
                ReadOnlySpan<double> w = call.Parameter<double>(0);
                Span<double> back = call.InputGradient<double>();
                Span<double> gradient = call.Gradient<double>(0);
                Span<double> bias = call.Gradient<double>(1);
                bias[0] = delta;
                for (int i = 0; i < Hidden; ++i)
                {
                    gradient[i] = delta * h[i];
                    back[i] = delta * w[i];
                }
            };
            return new[]
            {
                new Layer("hidden", hiddenForward, hiddenBackward)
                {
                    ParameterCount = 2, OutputBytes = Hidden * sizeof(double),
                },
                new Layer("last", lastForward, lastBackward)
                {
                    FirstParameter = 2, ParameterCount = 2, SavedBytes = sizeof(double),
                },
            };
        }

        /// <summary>Losses and parameters by plain loops over the whole batch.</summary>
        private static double[] Alone(uint leaves, int steps, out double[] losses)
        {
            double[] p = FirstWeights();
            var data = new Samples();
            var found = new List<double>();
            for (int step = 0; step < steps; ++step)
            {
                var gradient = new double[p.Length];
                double loss = 0;
                for (uint leaf = 0; leaf < leaves; ++leaf)
                {
                    double[] x = data.X(leaf);
                    var h = new double[Hidden];
                    double delta = p[SecondBias] - data.Target(leaf);
                    for (int i = 0; i < Hidden; ++i)
                    {
                        double sum = p[FirstBias + i];
                        for (int j = 0; j < Inputs; ++j)
                        {
                            sum += p[(i * Inputs) + j] * x[j];
                        }

                        h[i] = Math.Tanh(sum);
                        delta += p[Second + i] * h[i];
                    }

                    loss += delta * delta / 2;
                    gradient[SecondBias] += delta;
                    for (int i = 0; i < Hidden; ++i)
                    {
                        gradient[Second + i] += delta * h[i];
                        double before = delta * p[Second + i] * (1 - (h[i] * h[i]));
                        gradient[FirstBias + i] += before;
                        for (int j = 0; j < Inputs; ++j)
                        {
                            gradient[(i * Inputs) + j] += before * x[j];
                        }
                    }
                }

                found.Add(loss / leaves);
                for (int i = 0; i < p.Length; ++i)
                {
                    p[i] -= Rate * gradient[i] / leaves;
                }
            }

            losses = found.ToArray();
            return p;
        }

        private sealed class Samples
        {
            public double[] X(uint number)
            {
                return Enumerable.Range(0, Inputs).Select(
                    i => Math.Sin((number * 3) + i)).ToArray();
            }

            public double Target(uint number)
            {
                return Math.Cos(number) * 0.5;
            }
        }
    }
}
