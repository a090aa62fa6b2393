using System;

namespace Trireme.Tests
{
    /// <summary>Clipping by the norm of several models that step together.</summary>
    internal static class NormRanksTests
    {
        [Test]
        public static void Two_models_clip_by_one_norm()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (Communicator alone = c.Split(c.Rank, 0))
                using (Model model = Sealed(alone))
                {
                    var options = new OptimizerOptions
                    {
                        Rule = RuleKind.Sgd, LearningRate = 1, Clipping = 1.5, NormRanks = c,
                    };
                    using (var optimizer = new Optimizer(model, options))
                    {
                        model.AccumulateFlat<float>(new[] { c.Rank + 1f, 2f });
                        optimizer.Step();
                        Check.Equal(3.0, optimizer.GradientNorm); // 1 + 4 + 4
                        var result = new float[2];
                        model.GetParameters<float>(result);
                        Check.Same(new[] { (c.Rank + 1f) / -2, -1f }, result, "parameters");
                    }
                }
            });
        }

        [Test]
        public static void What_does_not_fit_is_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = Sealed(c))
            {
                var options = new OptimizerOptions { Rule = RuleKind.Sgd, NormRanks = c };
                Check.Throws<InvalidArgumentException>(() => new Optimizer(model, options));
                options.Clipping = 1; // but two replicas on one rank
                Check.Throws<InvalidArgumentException>(() => new Optimizer(model, options));
            }
        }

        [Test]
        public static void Two_optimizers_of_a_rank_step_with_one_norm()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (Model common = Alone(c))
                using (Model experts = Alone(c))
                using (Optimizer first = Clipped(common, 2.5))
                using (Optimizer second = Clipped(experts, 2.5))
                {
                    foreach (float last in new[] { 4f, float.PositiveInfinity })
                    {
                        float scale = (float)first.LossScale;
                        common.AccumulateFlat<float>(new[] { 3 * scale });
                        experts.AccumulateFlat<float>(new[] { last * scale });
                        Optimizer.StepTogether(first, second);
                    }

                    Check.Equal(5.0, first.GradientNorm); // 3 * 3 + 4 * 4; then both skip
                    Check.Equal(5.0, second.GradientNorm);
                    Check.Equal(true, first.LossScaleInfo.Skipped);
                    Check.Equal(true, second.LossScaleInfo.Skipped);
                    var value = new float[1];
                    common.GetParameters<float>(value);
                    Check.Same(new[] { -1.5f }, value, "common");
                    experts.GetParameters<float>(value);
                    Check.Same(new[] { -2f }, value, "experts");
                }
            });
        }

        [Test]
        public static void Optimizers_that_do_not_fit_are_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = Alone(c))
            using (Model another = Alone(c))
            using (Optimizer first = Clipped(model, 1))
            using (Optimizer other = Clipped(another, 2))
            {
                Check.Throws<InvalidArgumentException>(() => Optimizer.StepTogether());
                Check.Throws<InvalidArgumentException>(() => Optimizer.StepTogether(first, first));
                Check.Throws<InvalidArgumentException>(() => Optimizer.StepTogether(first, other));
                Check.Throws<ArgumentNullException>(() => Optimizer.StepTogether(first, null));
                Check.Throws<ArgumentNullException>(() => Optimizer.StepTogether(null));
                other.Dispose();
                Check.Throws<ObjectDisposedException>(() => Optimizer.StepTogether(first, other));
            }
        }

        private static Model Alone(Communicator communicator)
        {
            var model = new Model(communicator, new ModelOptions { Strategy = Strategy.Zero1 });
            model.AddParameter(new ParameterOptions("w", ElementType.F32, 1));
            model.Seal();
            return model;
        }

        private static Optimizer Clipped(Model model, double limit)
        {
            return new Optimizer(model, new OptimizerOptions
            {
                Rule = RuleKind.Sgd, LearningRate = 1, Clipping = limit, LossScale = 2,
            });
        }

        private static Model Sealed(Communicator communicator)
        {
            var model = new Model(communicator, new ModelOptions { Strategy = Strategy.Zero1 });
            model.AddParameter(new ParameterOptions("part", ElementType.F32, 1));
            model.AddParameter(
                new ParameterOptions("common", ElementType.F32, 1) { Replicas = 2 });
            model.Seal();
            return model;
        }
    }
}
