using System;
using System.Collections.Generic;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>
    /// AsDistributed() against a plain computation by hand: each option, then its effect; each way to
    /// change the parameters, then a step. All numbers are short binary fractions, so that equality
    /// is exact.
    /// </summary>
    internal static class WrapperTests
    {
        private static readonly double[] Start = { 1, -2, 3, 0.5, -0.25, 8, 16 };

        [Test]
        public static void A_step_after_a_load_is_taken_at_the_loaded_parameters()
        {
            Everywhere((c, options) =>
            {
                var model = new Pull(c.Rank);
                var plain = new Plain();
                using (var spread = model.AsDistributed(c, options))
                {
                    Step(spread, plain, 3, 5);
                    byte[] state = spread.Optimizer.Save();
                    double[] saved = plain.Values.ToArray();
                    Step(spread, plain, 20, 40);
                    spread.Optimizer.Load(state);
                    plain.Values = saved.ToArray();
                    Same(plain, model, spread, "after Load()");
                    Step(spread, plain, 7, 9);
                    Same(plain, model, spread, "a step after Load()");
                }
            });
        }

        [Test]
        public static void A_step_after_SetParameters_is_taken_there()
        {
            Everywhere((c, options) =>
            {
                var model = new Pull(c.Rank);
                var plain = new Plain();
                using (var spread = model.AsDistributed(c, options))
                {
                    Step(spread, plain, 3, 5);
                    plain.Values = Start.Select(v => v / 2 + 32).ToArray();
                    spread.Model.SetParameters<double>(plain.Values, c.WorldSize - 1);
                    Same(plain, model, spread, "after SetParameters()");
                    Step(spread, plain, 7, 9);
                    Same(plain, model, spread, "a step after SetParameters()");
                }
            });
        }

        [Test]
        public static void A_step_after_ranges_are_written_is_taken_there()
        {
            foreach (bool span in new[] { false, true })
            {
                Everywhere((c, options) =>
                {
                    var model = new Pull(c.Rank);
                    var plain = new Plain();
                    using (var spread = model.AsDistributed(c, options))
                    {
                        Step(spread, plain, 3, 5);
                        plain.Values = Start.Select(v => v / 4 - 8).ToArray();
                        WriteParameters(spread.Optimizer, plain.Values, span);
                        if (options.Strategy != Strategy.Zero3
                            && options.Strategy != Strategy.HybridShard)
                        {
                            // Each rank's copy: SetParameters() makes them one again.
                            spread.Model.SetParameters<double>(plain.Values);
                        }

                        c.Barrier(); // ranks that share parameters read what the others write
                        Step(spread, plain, 7, 9);
                        Same(plain, model, spread, "a step after WriteRange()");
                        plain.Values = Start.ToArray();
                        c.Barrier();
                        WriteParameters(spread.Optimizer, plain.Values, span);
                        c.Barrier();
                        spread.Refresh();
                        if (c.WorldSize == 1 || options.Strategy == Strategy.Zero3)
                        {
                            Same(plain, model, spread, "Refresh()");
                        }

                        spread.Optimizer.Restore(spread.Optimizer.Counters);
                        Same(plain, model, spread, "Restore()");
                        Step(spread, plain, 7, 9);
                        Same(plain, model, spread, "a step after Restore()");
                    }
                });
            }
        }

        [Test]
        public static void Parameters_written_into_the_model_are_where_the_next_step_is_taken()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                var model = new Pull(0);
                var plain = new Plain();
                using (var spread = model.AsDistributed(c, Options()))
                {
                    spread.Model.GatherUnit(0);
                    Span<double> values = spread.Model.GetParameterData<double>(0);
                    values[3] = 64;
                    plain.Values[3] = 64;
                    spread.Model.ReleaseUnit(0);
                    Step(spread, plain, 3, 5);
                    Same(plain, model, spread, "a step after GetParameterData()");
                }
            }
        }

        [Test]
        public static void What_is_set_in_the_wrapped_model_alone_is_replaced()
        {
            Everywhere((c, options) =>
            {
                var model = new Pull(c.Rank);
                var plain = new Plain();
                using (var spread = model.AsDistributed(c, options))
                {
                    model.SetParameters(Start.Select(v => v + c.Rank + 1).ToArray());
                    Step(spread, plain, 3, 5);
                    Same(plain, model, spread, "the native model's");
                }
            });
        }

        [Test]
        public static void Steps_by_hand_reach_the_wrapped_model()
        {
            Everywhere((c, options) =>
            {
                var model = new Pull(c.Rank);
                var plain = new Plain();
                using (var spread = model.AsDistributed(c, options))
                {
                    spread.Model.AccumulateFlat<double>(Start);
                    spread.Optimizer.Step();
                    plain.Move(Start);
                    Same(plain, model, spread, "Optimizer.Step()");
                    Step(spread, plain, 7, 9);
                    var layer = new Layer(
                        "all", call => call.Loss = 0,
                        call => Start.AsSpan().CopyTo(call.Gradient<double>(0)))
                    {
                        ParameterCount = 1,
                    };
                    using (var trainer = new Trainer(spread.Optimizer, new[] { layer }))
                    {
                        trainer.Step();
                    }

                    plain.Move(Start);
                    Same(plain, model, spread, "Trainer.Step()");
                    Step(spread, plain, 1, 2);
                    Same(plain, model, spread, "a step after Trainer.Step()");
                }
            });
        }

        [Test]
        public static void A_loss_scale_changes_no_number()
        {
            foreach (double scale in new[] { 1024.0, 0.5 })
            {
                Everywhere((c, options) =>
                {
                    options.Optimizer.LossScale = new LossScale
                    {
                        InitialScale = scale, GrowthInterval = 2,
                    };
                    var model = new Pull(c.Rank);
                    var plain = new Plain();
                    using (var spread = model.AsDistributed(c, options))
                    {
                        for (int step = 0; step < 5; ++step)
                        {
                            Check.Equal(scale * (1 << (step / 2)), spread.Optimizer.LossScale);
                            Step(spread, plain, 3 + step, 5, 6, 1);
                            Same(plain, model, spread, "scale " + scale);
                        }
                    }
                });
            }
        }

        [Test]
        public static void A_step_that_overflows_is_skipped_and_the_scale_falls()
        {
            Everywhere((c, options) =>
            {
                options.Optimizer.LossScale = 4;
                var model = new Pull(c.Rank);
                var plain = new Plain();
                using (var spread = model.AsDistributed(c, options))
                {
                    foreach (double bad in new[] { double.PositiveInfinity, double.NaN })
                    {
                        spread.Step(c.Rank == 0 ? bad : 2);
                        Check.Equal(true, spread.Optimizer.LossScaleInfo.Skipped);
                        Same(plain, model, spread, "skipped");
                    }

                    Check.Equal(1.0, spread.Optimizer.LossScale);
                    Step(spread, plain, 3, 5);
                    Same(plain, model, spread, "after it");
                }
            });
        }

        [Test]
        public static void Any_number_of_micro_batches_is_averaged_and_summed_with_Sum()
        {
            foreach (Gradients gradients in new[] { Gradients.Average, Gradients.Sum })
            {
                Everywhere((c, options) =>
                {
                    options.Gradients = gradients;
                    var model = new Pull(c.Rank);
                    var plain = new Plain { Sum = gradients == Gradients.Sum };
                    using (var spread = model.AsDistributed(c, options))
                    {
                        Step(spread, plain, 4);
                        Step(spread, plain, 1, 2, 3, 4);
                        Step(spread, plain, 5, 6);
                        Step(spread, plain, 7, 8, 9, 10);
                        Same(plain, model, spread, gradients.ToString());
                    }
                });
            }
        }

        [Test]
        public static void Leaves_are_averaged_and_summed_with_Sum()
        {
            foreach (Gradients gradients in new[] { Gradients.Average, Gradients.Sum })
            {
                foreach (double scale in new[] { 0.0, 256.0 })
                {
                    Everywhere((c, options) =>
                    {
                        options.Gradients = gradients;
                        options.Leaves = 4;
                        options.Optimizer.LossScale = scale;
                        var model = new Pull(c.Rank);
                        var plain = new Plain { Sum = gradients == Gradients.Sum };
                        using (var spread = model.AsDistributed(c, options))
                        {
                            for (int step = 0; step < 3; ++step)
                            {
                                spread.Step(leaf => 3 * leaf + step);
                                plain.Step(Enumerable.Range(0, 4).Select(l => 3.0 * l + step));
                            }

                            Same(plain, model, spread, gradients + " of leaves");
                        }
                    });
                }
            }
        }

        [Test]
        public static void Units_ties_and_frozen_parameters_are_as_described()
        {
            Everywhere((c, options) =>
            {
                // As elements of the flat vector: a 0-1, b 2-3, frozen 4, c 5-6; d is a again.
                options.Buckets = new Buckets { Bytes = 16 };
                options.Optimizer.Groups = new[]
                {
                    new ParameterGroup(), new ParameterGroup { RateFactor = 0.25 },
                };
                options.Optimizer.LossScale = 8;
                options.Parameters = new[]
                {
                    new ParameterOptions("a", ElementType.F64, 2),
                    new ParameterOptions("b", ElementType.F64, 1, 2) { Unit = "u", ParameterGroup = 1 },
                    new ParameterOptions("frozen", ElementType.F64)
                    {
                        Unit = "u", Flags = ParameterFlags.Frozen,
                    },
                    new ParameterOptions("d", ElementType.F64, 2) { TiedTo = "a" },
                    new ParameterOptions("c", ElementType.F64, 2),
                };
                var model = new Pull(c.Rank);
                var plain = new Plain { Rates = new[] { 1, 1, 0.25, 0.25, 0, 1, 1 } };
                using (var spread = model.AsDistributed(c, options))
                {
                    for (int step = 0; step < 3; ++step)
                    {
                        Step(spread, plain, 3 + step, 6);
                    }

                    Same(plain, model, spread, "units");
                    Check.Equal(3ul, spread.Model.Info.Units);
                }
            });
        }

        [Test]
        public static void What_the_callers_code_throws_fails_the_step_and_not_the_group()
        {
            foreach (Throwing where in new[] { Throwing.Compute, Throwing.Set, Throwing.Batch })
            {
                foreach (bool leaves in new[] { false, true })
                {
                    Everywhere((c, options) =>
                    {
                        options.Leaves = leaves ? 4u : 0;
                        options.Optimizer.LossScale = 16;
                        var model = new Pull(c.Rank);
                        var plain = new Plain();
                        int culprit = c.WorldSize - 1;
                        using (var spread = model.AsDistributed(c, options))
                        {
                            for (int step = 0; step < 3; ++step)
                            {
                                Throwing now =
                                    c.Rank == culprit && step == 1 ? where : Throwing.Nowhere;
                                model.Throws = now;
                                Action make = () => spread.Step(1.0, 2.0);
                                if (leaves)
                                {
                                    make = () => spread.Step(leaf => Batch(now, leaf));
                                }

                                if (step != 1 || (!leaves && where == Throwing.Batch))
                                {
                                    make();
                                    plain.Step(leaves ? new double[] { 0, 1, 2, 3 }
                                                      : new double[] { 1, 2 });
                                }
                                else if (c.Rank == culprit)
                                {
                                    Check.Throws<TimeZoneNotFoundException>(make);
                                }
                                else
                                {
                                    var failure = Check.Throws<CallbackException>(make);
                                    Check.Contains("on rank " + culprit, failure.Message);
                                }

                                model.Throws = Throwing.Nowhere;
                            }

                            Same(plain, model, spread, where + " threw in step 1");
                            Check.Equal(16.0, spread.Optimizer.LossScale);
                        }
                    });
                }
            }
        }

        [Test]
        public static void A_rule_and_a_schedule_of_the_callers_are_used()
        {
            Everywhere((c, options) =>
            {
                options.Optimizer.LearningRate = 0.5;
                options.Optimizer.LossScale = 32;
                options.Optimizer.Rule = new UserRule(update =>
                {
                    Span<double> values = update.Parameters<double>();
                    ReadOnlySpan<double> gradients = update.Gradients<double>();
                    for (int i = 0; i < values.Length; ++i)
                    {
                        values[i] -= update.LearningRate * gradients[i];
                    }
                });
                var model = new Pull(c.Rank);
                var plain = new Plain();
                using (var spread = model.AsDistributed(c, options))
                {
                    Step(spread, plain, 3, 5);
                    spread.Optimizer.SetSchedule(new UserSchedule(step => 0.5));
                    plain.Rates = plain.Rates.Select(r => r / 2).ToArray();
                    Step(spread, plain, 2, 4);
                    spread.Optimizer.SetSchedule(null);
                    spread.Optimizer.LearningRate = 0.125;
                    plain.Rates = plain.Rates.Select(r => r / 2).ToArray();
                    Step(spread, plain, 2, 4);
                    Same(plain, model, spread, "rule");
                }
            });
        }

        [Test]
        public static void The_norm_is_that_of_the_gradients_without_the_scale()
        {
            foreach (double scale in new[] { 0.0, 128.0 })
            {
                using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
                {
                    DistributedOptions options = Options();
                    options.Optimizer.LossScale = scale;
                    options.Optimizer.Clipping = 1e-3;
                    var model = new Pull(0);
                    var plain = new Plain();
                    double norm = Math.Sqrt(
                        new[] { 3.0, 5.0 }.Select(plain.Gradient)
                            .Aggregate((a, b) => a.Zip(b, (x, y) => (x + y) / 2).ToArray())
                            .Sum(g => g * g));
                    using (var spread = model.AsDistributed(c, options))
                    {
                        spread.Step(3.0, 5.0);
                        Check.That(
                            Math.Abs(spread.Optimizer.GradientNorm - norm) < 1e-9 * norm,
                            spread.Optimizer.GradientNorm + " for " + norm);
                        double moved = Math.Sqrt(
                            model.GetParameters().Zip(Start, (a, b) => (a - b) * (a - b)).Sum());
                        Check.That(Math.Abs(moved - 0.5e-3) < 1e-9, "moved " + moved);
                    }
                }
            }
        }

        [Test]
        public static void A_timeout_ends_a_step_that_a_rank_does_not_make()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                DistributedOptions options = Options();
                options.Timeout = TimeSpan.FromSeconds(2);
                var model = new Pull(c.Rank);
                using (var spread = model.AsDistributed(c, options))
                {
                    spread.Step(1.0);
                    if (c.Rank == 0)
                    {
                        Check.Throws<TriremeTimeoutException>(() => spread.Step(1.0));
                    }
                }
            });
        }

        [Test]
        public static void Any_sequence_of_calls_trains_as_plain_arithmetic()
        {
            int trials = Environment.GetEnvironmentVariable("TRIREME_TEST_LONG") == null ? 40 : 400;
            for (int trial = 0; trial < trials; ++trial)
            {
                int seed = trial;
                int world = 1 + (seed % 3);
                Strategy strategy = ModelTests.Strategies[seed % 5];
                Ranks.RunAndLeaveTogether(world, c => RunSequence(c, strategy, seed));
            }
        }

        // The same calls on all ranks, drawn from the seed; SGD with momentum is the oracle.
        private static void RunSequence(Communicator c, Strategy strategy, int seed)
        {
            var random = new Random(seed);
            DistributedOptions options = Options();
            options.Strategy = strategy;
            options.Shards = ModelTests.ShardsOf(strategy, c.WorldSize);
            options.Leaves = random.Next(2) == 0 ? 0u : 3;
            options.Buckets = new Buckets { Bytes = random.Next(2) == 0 ? 0ul : 16 };
            options.Optimizer.Rule = new Sgd { Momentum = 0.5 };
            options.Optimizer.LossScale = random.Next(2) == 0 ? 0 : 64;
            var model = new Pull(c.Rank);
            double[] values = Start.ToArray();
            var velocity = new double[values.Length];
            double rate = 0.5, savedRate = rate, factor = 1;
            double[] savedValues = null, savedVelocity = null;
            byte[] saved = null;
            var plain = new Plain();
            string calls = "seed " + seed + ":";
            Action<double[]> move = gradient =>
            {
                for (int k = 0; k < values.Length; ++k)
                {
                    velocity[k] = (0.5 * velocity[k]) + gradient[k];
                    values[k] -= rate * factor * velocity[k];
                }
            };
            using (var spread = model.AsDistributed(c, options))
            {
                for (int i = 0; i < 25; ++i)
                {
                    int what = random.Next(9);
                    calls += " " + what;
                    double batch = random.Next(-8, 9);
                    plain.Values = values;
                    if (what <= 2) // a step
                    {
                        double[] batches = options.Leaves > 0
                            ? new[] { batch, batch + 1, batch + 2 }
                            : Enumerable.Range(0, 1 + random.Next(3)).Select(k => batch + k)
                                .ToArray();
                        if (options.Leaves > 0)
                        {
                            spread.Step(leaf => batches[leaf]);
                        }
                        else
                        {
                            spread.Step(batches);
                        }

                        move(batches.Select(plain.Gradient).Aggregate(
                                 (a, b) => a.Zip(b, (x, y) => x + y).ToArray())
                                 .Select(g => g / batches.Length).ToArray());
                    }
                    else if (what == 3)
                    {
                        saved = spread.Optimizer.Save();
                        savedValues = values.ToArray();
                        savedVelocity = velocity.ToArray();
                        savedRate = rate;
                    }
                    else if (what == 4 && saved != null)
                    {
                        spread.Optimizer.Load(saved);
                        values = savedValues.ToArray();
                        velocity = savedVelocity.ToArray();
                        rate = savedRate;
                        factor = 1; // schedules are set again after Load()
                        spread.Optimizer.SetSchedule(null);
                    }
                    else if (what == 5)
                    {
                        values = values.Select(v => (v / 2) + 1).ToArray();
                        spread.Model.SetParameters<double>(values, random.Next(c.WorldSize));
                    }
                    else if (what == 6)
                    {
                        rate = 0.25 * (1 + random.Next(3));
                        spread.Optimizer.LearningRate = rate;
                    }
                    else if (what == 7)
                    {
                        factor = 0.5 + (0.25 * random.Next(3));
                        double now = factor;
                        spread.Optimizer.SetSchedule(new UserSchedule(step => now));
                    }
                    else if (what == 8) // a step that fails
                    {
                        int culprit = random.Next(c.WorldSize);
                        if (options.Leaves > 0)
                        {
                            culprit = 0; // the others may have no leaf
                        }

                        model.Throws = c.Rank == culprit ? Throwing.Compute : Throwing.Nowhere;
                        try
                        {
                            if (options.Leaves > 0)
                            {
                                spread.Step(leaf => batch);
                            }
                            else
                            {
                                spread.Step(batch, batch);
                            }

                            throw new FailureException("a step without a gradient went well");
                        }
                        catch (TimeZoneNotFoundException)
                        {
                            Check.Equal(culprit, c.Rank, calls);
                        }
                        catch (CallbackException)
                        {
                            Check.That(culprit != c.Rank, calls);
                        }

                        model.Throws = Throwing.Nowhere;
                    }

                    double[] got = model.GetParameters();
                    for (int k = 0; k < values.Length; ++k)
                    {
                        Check.That(
                            Math.Abs(got[k] - values[k]) <= 1e-9 * Math.Max(1, Math.Abs(values[k])),
                            calls + ": element " + k + " is " + got[k] + ", not " + values[k]);
                    }
                }
            }
        }

        [Test]
        public static void Disposing_of_a_part_first_is_an_error_and_no_harm()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                for (int order = 0; order < 4; ++order)
                {
                    var spread = new Pull(0).AsDistributed(c, Options());
                    spread.Step(1.0);
                    if (order == 1)
                    {
                        spread.Optimizer.Dispose();
                    }
                    else if (order == 2)
                    {
                        spread.Model.Dispose();
                        Check.Throws<ObjectDisposedException>(() => spread.Step(1.0));
                        Check.Throws<ObjectDisposedException>(() => spread.Refresh());
                    }

                    spread.Dispose();
                    spread.Dispose();
                    Check.Throws<ObjectDisposedException>(() => spread.Step(1.0));
                    Check.Throws<ObjectDisposedException>(() => spread.Refresh());
                }
            }
        }

        private static double Batch(Throwing now, int leaf)
        {
            if (now == Throwing.Batch)
            {
                throw new TimeZoneNotFoundException("no batch today");
            }

            return leaf;
        }

        private static void WriteParameters(Optimizer optimizer, double[] values, bool span)
        {
            StateRange[] ranges = optimizer.GetRanges();
            for (int i = 0; i < ranges.Length; ++i)
            {
                if (ranges[i].Kind != StateKind.Parameter)
                {
                    continue;
                }

                var piece = new ReadOnlySpan<double>(
                    values, (int)ranges[i].First, (int)ranges[i].Count);
                if (span)
                {
                    piece.CopyTo(ranges[i].GetData<double>());
                }
                else
                {
                    optimizer.WriteRange(i, piece);
                }
            }
        }

        // Worlds 1 and 2 by every strategy.
        private static void Everywhere(Action<Communicator, DistributedOptions> function)
        {
            foreach (int world in new[] { 1, 2 })
            {
                foreach (Strategy strategy in ModelTests.Strategies)
                {
                    Ranks.RunAndLeaveTogether(world, c =>
                    {
                        DistributedOptions options = Options();
                        options.Strategy = strategy;
                        options.Shards = ModelTests.ShardsOf(strategy, world);
                        function(c, options);
                    });
                }
            }
        }

        private static DistributedOptions Options()
        {
            return new DistributedOptions { Optimizer = ModelTests.Sgd() };
        }

        // The ranks have the same batches, so that their mean is that of one.
        private static void Step(
            DistributedModel<double, double> spread, Plain plain, params double[] batches)
        {
            spread.Step(batches);
            plain.Step(plain.Sum
                ? Enumerable.Repeat(batches, spread.WorldSize).SelectMany(b => b)
                : batches);
        }

        private static void Same(
            Plain plain, Pull model, DistributedModel<double, double> spread, string what)
        {
            string where = what + ", " + spread.Model.Info.Strategy + " of " + spread.WorldSize;
            Check.Same(plain.Values, model.GetParameters(), where + ": wrapped");
            Check.Same(plain.Values, spread.Parameters.ToArray(), where + ": Parameters");
            var native = new double[plain.Values.Length];
            spread.Model.GetParameters<double>(native);
            Check.Same(plain.Values, native, where + ": native");
        }

        private enum Throwing
        {
            Nowhere,
            Compute,
            Set,
            Batch,
        }

        /// <summary>The training by hand: SGD with rate 0.5 on one vector.</summary>
        private sealed class Plain
        {
            public double[] Values { get; set; } = Start.ToArray();

            public double[] Rates { get; set; } = { 1, 1, 1, 1, 1, 1, 1 };

            public bool Sum { get; set; }

            public double[] Gradient(double batch)
            {
                return Values.Select((v, i) => 0.5 * v - batch * (i + 1)).ToArray();
            }

            public void Step(IEnumerable<double> batches)
            {
                double[][] all = batches.Select(Gradient).ToArray();
                double by = Sum ? 1 : 1.0 / all.Length;
                Move(Start.Select((_, i) => all.Sum(g => g[i]) * by).ToArray());
            }

            public void Move(double[] gradient)
            {
                Values = Values.Select((v, i) => v - (0.5 * Rates[i] * gradient[i])).ToArray();
            }
        }

        /// <summary>The same gradient, of a framework's model.</summary>
        private sealed class Pull : IGradientModel<double, double>
        {
            private readonly double[] values;

            public Pull(int rank)
            {
                values = Start.Select(v => v + rank).ToArray(); // rank 0's counts
            }

            public Throwing Throws { get; set; }

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
                ThrowIf(Throwing.Set);
                parameters.CopyTo(values, 0);
            }

            public double[] ComputeGradients(double batch)
            {
                ThrowIf(Throwing.Compute);
                return values.Select((v, i) => 0.5 * v - batch * (i + 1)).ToArray();
            }

            private void ThrowIf(Throwing where)
            {
                if (Throws == where)
                {
                    throw new TimeZoneNotFoundException("not today");
                }
            }
        }
    }
}
