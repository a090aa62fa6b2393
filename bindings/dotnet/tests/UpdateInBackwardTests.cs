using System;
using System.Threading;

namespace Trireme.Tests
{
    /// <summary>
    /// With ModelFlags.UpdateInBackward the calls of a model run the caller's schedule, hook and
    /// rule.
    /// </summary>
    internal static class UpdateInBackwardTests
    {
        private const int Elements = 8;

        [Test]
        public static void What_a_rule_throws_in_backward_comes_out_of_the_step()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (Model model = Sealed(c))
                using (Optimizer optimizer = By(model, Throwing(c.Rank == 0)))
                {
                    model.AccumulateFlat<float>(new float[Elements]);
                    if (c.Rank == 0)
                    {
                        Check.Throws<InvalidTimeZoneException>(() => optimizer.Step());
                    }
                    else
                    {
                        Check.Throws<CallbackException>(() => optimizer.Step());
                    }
                }
            });
        }

        [Test]
        public static void What_a_rule_throws_is_the_reason_if_the_step_cannot_be_discarded()
        {
            Ranks.RunAndLeaveTogether(1, c =>
            {
                using (Model model = Sealed(c))
                using (Optimizer optimizer = By(model, Throwing(true)))
                {
                    model.AccumulateFlat<float>(new float[Elements]);
                    Exception failure =
                        Check.Throws<InvalidStateException>(() => model.DiscardGradients());
                    Check.That(failure.InnerException is InvalidTimeZoneException, "the reason");
                    failure = Check.Throws<InvalidStateException>(() => optimizer.Step());
                    Check.That(failure.InnerException == null, "told once");
                }
            });
        }

        [Test]
        public static void What_a_schedule_throws_comes_out_of_the_call_that_asks_it()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (Model model = Sealed(c))
                using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
                {
                    float[] gradients = new float[Elements];
                    int asked = 0;
                    optimizer.SetSchedule(new UserSchedule(step => ++asked > 2
                        ? 1
                        : throw new InvalidTimeZoneException("time " + asked)));
                    Check.Contains(
                        "time 1",
                        Check.Throws<InvalidTimeZoneException>(() => model.BeginBackward()).Message);
                    Check.Contains(
                        "time 2",
                        Check.Throws<InvalidTimeZoneException>(
                            () => model.AccumulateFlat<float>(gradients)).Message);

                    // The pass has not begun, and nothing is kept: this failure has no reason.
                    Exception failure = Check.Throws<InvalidStateException>(() => optimizer.Step());
                    Check.That(failure.InnerException == null, "told once");
                    model.AccumulateFlat<float>(gradients);
                    optimizer.Step();
                    Check.Equal(1ul, optimizer.StepCount);
                }
            });
        }

        [Test]
        public static void A_rule_that_disposes_of_its_optimizer_goes_on_in_the_call()
        {
            Ranks.RunAndLeaveTogether(1, c =>
            {
                Optimizer optimizer = null;
                int calls = 0;
                var rule = new UserRule(update =>
                {
                    ++calls;
                    optimizer.Dispose();
                });
                using (Model model = Sealed(c))
                using (optimizer = By(model, rule))
                {
                    model.AccumulateFlat<float>(new float[Elements]);
                    Check.Equal(2, calls, "one call for each parameter of the bucket");
                }
            });
        }

        [Test]
        public static void A_model_survives_collections_during_each_call_that_calls_back()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                // A collection moves a young handle, so each model is new.
                for (int round = 0; round < 20; ++round)
                {
                    using (Model model = Sealed(c))
                    using (Optimizer optimizer = By(model, new UserRule(update => CollectElsewhere())))
                    {
                        optimizer.SetSchedule(new UserSchedule(step =>
                        {
                            CollectElsewhere();
                            return 1;
                        }));
                        model.BeginBackward();
                        for (ulong number = 0; number < Elements; ++number)
                        {
                            model.GradientReady<float>(number, new float[1]);
                        }

                        model.EndBackward();
                        optimizer.Step();
                    }
                }
            });
        }

        private static void CollectElsewhere()
        {
            var collector = new Thread(GC.Collect);
            collector.Start();
            collector.Join();
        }

        private static UserRule Throwing(bool throws)
        {
            return new UserRule(update =>
            {
                if (throws)
                {
                    throw new InvalidTimeZoneException("in backward");
                }
            });
        }

        private static Optimizer By(Model model, Rule rule)
        {
            return new Optimizer(model, new OptimizerOptions { Rule = rule });
        }

        // Buckets of two parameters. Two are in flight, so the others are updated in backward.
        private static Model Sealed(Communicator c)
        {
            var model = new Model(c, new ModelOptions
            {
                Strategy = Strategy.DataParallel,
                Flags = ModelFlags.UpdateInBackward,
                Buckets = new Buckets { Bytes = 1 },
                Units = new Units { MinimumBytes = 1 },
            });
            for (int i = 0; i < Elements; ++i)
            {
                model.AddParameter(new ParameterOptions("p" + i, ElementType.F32, 1)
                {
                    Unit = "unit " + (i / 2),
                });
            }

            model.Seal();
            return model;
        }
    }
}
