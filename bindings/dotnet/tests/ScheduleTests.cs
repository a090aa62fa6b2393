using System;

namespace Trireme.Tests
{
    /// <summary>Learning rates that follow a schedule.</summary>
    internal static class ScheduleTests
    {
        private static readonly float[] Gradients = { 1, 2, 4 };

        [Test]
        public static void Factors_are_those_of_the_formulas()
        {
            Schedule plan = new CosineSchedule
            {
                TotalSteps = 10, WarmUpSteps = 2, EndFactor = 0.2,
            };
            for (ulong step = 0; step < 13; ++step)
            {
                double part = Math.Min(1, Math.Max(0, ((double)step - 2) / 8));
                double expected = step < 2
                    ? (step + 1) / 2.0
                    : 0.2 + (0.8 * (1 + Math.Cos(Math.PI * part)) / 2);
                Check.That(Math.Abs(plan.Value(step) - expected) < 1e-14, "step " + step);
            }

            plan = new OneCycleSchedule
            {
                LinearAnnealing = true, TotalSteps = 9, PctStart = 5 / 9.0, DivFactor = 2,
                FinalDivFactor = 4,
            };
            Check.Equal(0.5, plan.Value(0));
            Check.Equal(1.0, plan.Value(4));
            Check.Equal(0.125, plan.Value(8));
            plan = new ConstantSchedule { FromZero = true, WarmUpSteps = 4 };
            Check.Equal(0.25, plan.Value(1));
            Check.Equal(1.0, plan.Value(4));
            plan = new LinearSchedule { TotalSteps = 8, WarmUpSteps = 4, WarmUpFactor = 0.5 };
            Check.Equal(0.75, plan.Value(2));
            Check.Equal(0.5, plan.Value(6));
            plan = new UserSchedule(step => 2 * step);
            Check.Equal(ScheduleKind.User, plan.Kind);
            Check.Equal(6.0, plan.Value(3));
            plan = new UserSchedule(step => Fail("step " + step));
            Check.Throws<InvalidTimeZoneException>(() => plan.Value(7));
            plan = new UserSchedule(step => -1);
            Check.Throws<CallbackException>(() => plan.Value(7));
        }

        [Test]
        public static void Options_that_mean_nothing_are_refused()
        {
            Check.Throws<InvalidArgumentException>(() => new LinearSchedule().Value(0));
            Check.Throws<InvalidArgumentException>(
                () => new ConstantSchedule { FromZero = true }.Value(0));
            Check.Throws<InvalidArgumentException>(
                () => new CosineSchedule { TotalSteps = 3, EndFactor = 1.5 }.Value(0));
            Check.Throws<InvalidArgumentException>(
                () => new OneCycleSchedule { TotalSteps = 3, PctStart = 2 }.Value(0));
            Check.Throws<ArgumentNullException>(() => new UserSchedule(null));
        }

        [Test]
        public static void Training_follows_a_schedule()
        {
            var plans = new Schedule[]
            {
                new LinearSchedule { TotalSteps = 4 },
                new UserSchedule(step => 1 - (step / 4.0)),
            };
            foreach (Schedule plan in plans)
            {
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    using (Model model = Sealed(c))
                    using (var optimizer = new Optimizer(model, Rule()))
                    {
                        optimizer.SetSchedule(plan);
                        for (int step = 0; step < 3; ++step)
                        {
                            GC.Collect(); // the schedule is held
                            Check.Equal(0.5 * (1 - (step / 4.0)), optimizer.StepRate);
                            Check.Equal(0.5, optimizer.LearningRate);
                            model.AccumulateFlat<float>(Gradients);
                            optimizer.Step();
                        }

                        optimizer.SetGroupRateFactor(1, 0);
                        optimizer.SetSchedule(null);
                        Check.Equal(0.5, optimizer.StepRate);
                        model.AccumulateFlat<float>(Gradients);
                        optimizer.Step();
                        var result = new float[3];
                        model.GetParameters<float>(result);
                        Check.Same(new[] { -1.625f, -3.25f, -9f }, result, "parameters");
                    }
                });
            }
        }

        [Test]
        public static void A_function_that_throws_may_be_asked_again()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (Model model = Sealed(c))
                using (var optimizer = new Optimizer(model, Rule()))
                {
                    bool broken = c.Rank == 0;
                    optimizer.SetSchedule(new UserSchedule(step =>
                    {
                        Check.Throws<InvalidStateException>(() => optimizer.StepRate.ToString());
                        return broken ? Fail("broken") : 1;
                    }));
                    model.AccumulateFlat<float>(Gradients);
                    if (broken)
                    {
                        Check.Throws<InvalidTimeZoneException>(() => optimizer.Step());
                        Check.Throws<InvalidTimeZoneException>(
                            () => optimizer.StepRate.ToString());
                        broken = false;
                    }

                    optimizer.Step();
                    var result = new float[3];
                    model.GetParameters<float>(result);
                    Check.Same(new[] { -0.5f, -1f, -4f }, result, "parameters");
                }
            });
        }

        [Test]
        public static void Wrong_calls_are_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = Sealed(c))
            {
                var optimizer = new Optimizer(model, Rule());
                Check.Throws<InvalidArgumentException>(() => optimizer.SetGroupRateFactor(2, 1));
                Check.Throws<InvalidArgumentException>(() => optimizer.SetGroupRateFactor(0, -1));
                optimizer.SetSchedule(new LinearSchedule { TotalSteps = 4 });
                Check.Throws<InvalidArgumentException>(
                    () => optimizer.SetSchedule(new LinearSchedule()));
                Check.Throws<InvalidArgumentException>(
                    () => optimizer.SetSchedule(new ConstantSchedule { WarmUpFactor = 0.5 }));
                model.AccumulateFlat<float>(Gradients);
                optimizer.Step();
                Check.Equal(0.375, optimizer.StepRate);
                optimizer.Dispose();
                Check.Throws<ObjectDisposedException>(() => optimizer.SetSchedule(null));
                Check.Throws<ObjectDisposedException>(() => optimizer.StepRate.ToString());
                Check.Throws<ObjectDisposedException>(() => optimizer.SetGroupRateFactor(0, 1));
            }
        }

        private static double Fail(string why)
        {
            throw new InvalidTimeZoneException(why);
        }

        private static OptimizerOptions Rule()
        {
            return new OptimizerOptions
            {
                Rule = RuleKind.Sgd, LearningRate = 0.5,
                Groups = new[] { new ParameterGroup(), new ParameterGroup { RateFactor = 2 } },
            };
        }

        private static Model Sealed(Communicator communicator)
        {
            var model = new Model(communicator, new ModelOptions { Strategy = Strategy.Zero2 });
            model.AddParameter(new ParameterOptions("pair", ElementType.F32, 2));
            model.AddParameter(new ParameterOptions("last", ElementType.F32, 1) { ParameterGroup = 1 });
            model.Seal();
            return model;
        }
    }
}
