using System;
using System.Collections.Generic;

namespace Trireme.Tests
{
    /// <summary>Dynamic loss scale: steps that overflow are skipped by all ranks.</summary>
    internal static class LossScaleTests
    {
        [Test]
        public static void A_step_that_overflows_is_skipped_by_all_ranks()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                OptimizerOptions rule = Rule(4);
                rule.LossScale.MinimumScale = 2;
                rule.LossScale.GrowthInterval = 2;
                using (Model model = Sealed(c))
                using (var optimizer = new Optimizer(model, rule))
                {
                    var scales = new List<float>();
                    for (int step = 0; step < 5; ++step)
                    {
                        float scale = (float)optimizer.LossScale;
                        scales.Add(scale);
                        bool bad = step == 1 || step == 2;
                        float last = bad && c.Rank == 1 ? float.NaN : scale;
                        model.AccumulateFlat<float>(new[] { scale, 2 * scale, last });
                        if (step == 2)
                        {
                            var failure = Check.Throws<InvalidStateException>(optimizer.Step);
                            Check.That(
                                failure.Message.Contains("(\"b\"), as rank 1 handed it in"),
                                failure.Message);
                        }
                        else
                        {
                            optimizer.Step();
                        }

                        LossScaleInfo info = optimizer.LossScaleInfo;
                        Check.Equal(bad, info.Skipped);
                        Check.Equal(step == 2, info.AtFloor);
                        Check.Equal(bad ? 1UL : (ulong?)null, info.Parameter);
                        Check.Equal(bad ? 1 : (int?)null, info.Rank);
                    }

                    Check.Same(new[] { 4f, 4f, 2f, 2f, 2f }, scales.ToArray(), "scales");
                    LossScaleInfo end = optimizer.LossScaleInfo;
                    Check.Equal(4.0, end.Scale);
                    Check.Equal(2UL, end.SkippedSteps);
                    Check.Equal(0UL, end.CleanSteps);
                    Check.Equal(0UL, end.Overflows);
                    var result = new float[3];
                    model.GetParameters<float>(result);
                    Check.Same(new[] { -3f, -6f, -3f }, result, "parameters");
                }
            });
        }

        [Test]
        public static void What_does_not_fit_is_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = Sealed(c))
            {
                var wrong = new Action<OptimizerOptions>[]
                {
                    o => o.LossScale = 3,
                    o => o.LossScale.GrowthFactor = 1.5,
                    o => o.LossScale.BackoffFactor = 2,
                    o => o.LossScale.MinimumScale = 8,
                };
                foreach (Action<OptimizerOptions> change in wrong)
                {
                    OptimizerOptions rule = Rule(4);
                    change(rule);
                    Check.Throws<InvalidArgumentException>(() => new Optimizer(model, rule));
                }

                using (var optimizer = new Optimizer(model, Rule(0)))
                {
                    Check.Equal(1.0, optimizer.LossScale);
                    Check.Throws<InvalidStateException>(
                        () => optimizer.LossScaleInfo.ToString());
                }
            }
        }

        private static OptimizerOptions Rule(double scale)
        {
            return new OptimizerOptions
            {
                Rule = RuleKind.Sgd, LearningRate = 1, LossScale = scale,
            };
        }

        private static Model Sealed(Communicator communicator)
        {
            var model = new Model(communicator, new ModelOptions { Strategy = Strategy.Zero2 });
            model.AddParameter(new ParameterOptions("a", ElementType.F32, 2));
            model.AddParameter(new ParameterOptions("b", ElementType.F32, 1));
            model.Seal();
            return model;
        }
    }
}
