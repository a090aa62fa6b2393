using System;

namespace Trireme.Tests
{
    /// <summary>Clipping groups of parameters, each by its own norm.</summary>
    internal static class NormGroupsTests
    {
        [Test]
        public static void Each_group_is_clipped_by_its_own_norm()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (Model model = Sealed(c))
                using (var optimizer = new Optimizer(model, Rule(2.5, 0, 3)))
                {
                    model.AccumulateFlat<float>(new[] { 3f, 4f, 2f, 6f });
                    optimizer.Step();
                    Check.Equal(5.0, optimizer.GroupNorm(0));
                    Check.Equal(2.0, optimizer.GroupNorm(1));
                    Check.Equal(6.0, optimizer.GroupNorm(2));
                    var result = new float[4];
                    model.GetParameters<float>(result);
                    Check.Same(new[] { -1.5f, -2f, -2f, -3f }, result, "parameters");
                }
            });
        }

        [Test]
        public static void A_group_that_is_no_number_leaves_the_others()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = Sealed(c))
            using (var optimizer = new Optimizer(model, Rule(2.5, 0, 3)))
            {
                model.AccumulateFlat<float>(new[] { 3f, 4f, 2f, float.PositiveInfinity });
                optimizer.Step();
                Check.Equal(5.0, optimizer.GroupNorm(0));
                Check.That(double.IsNaN(optimizer.GroupNorm(2)), "the norm is no number");
                var result = new float[4];
                model.GetParameters<float>(result);
                Check.Same(
                    new[] { -1.5f, -2f, -2f, float.NegativeInfinity }, result, "parameters");
            }
        }

        [Test]
        public static void Each_group_has_its_rate_and_weight_decay()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                OptimizerOptions rule = Rule();
                rule.GroupRateFactors = new[] { 1, 0.5, 0 };
                rule.GroupWeightDecays = new[] { 0, 0.5, 1 };
                using (Model model = Sealed(c))
                using (var optimizer = new Optimizer(model, rule))
                {
                    model.SetParameters<float>(new[] { 1f, 1f, 2f, 4f });
                    model.AccumulateFlat<float>(new[] { 3f, 4f, 2f, 6f });
                    optimizer.Step();
                    var result = new float[4];
                    model.GetParameters<float>(result);
                    Check.Same(new[] { -2f, -3f, 0.5f, 4f }, result, "parameters");
                }
            });
        }

        [Test]
        public static void What_does_not_fit_is_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = Sealed(c))
            {
                Check.Throws<InvalidArgumentException>(() => new Optimizer(model, Rule(1, 1)));
                Check.Throws<InvalidArgumentException>(() => new Optimizer(model, Rule(1, 1, -1)));
                OptimizerOptions both = Rule(1, 1, 1);
                both.MaxNorm = 1;
                Check.Throws<UnsupportedException>(() => new Optimizer(model, both));
                OptimizerOptions uneven = Rule(1, 1, 1);
                uneven.GroupRateFactors = new[] { 1.0, 1.0 };
                Check.Throws<ArgumentException>(() => new Optimizer(model, uneven));
                uneven.GroupRateFactors = new[] { 1.0, 1.0, -1.0 };
                Check.Throws<InvalidArgumentException>(() => new Optimizer(model, uneven));
                using (var optimizer = new Optimizer(model, Rule(1, 1, 1)))
                {
                    Check.Throws<InvalidStateException>(() => optimizer.GroupNorm(0).ToString());
                    Check.Throws<InvalidArgumentException>(
                        () => optimizer.GroupNorm(3).ToString());
                }

                using (var plain = new Optimizer(model, Rule()))
                {
                    Check.Throws<InvalidStateException>(() => plain.GroupNorm(0).ToString());
                }
            }
        }

        private static OptimizerOptions Rule(params double[] groups)
        {
            return new OptimizerOptions
            {
                Kind = RuleKind.Sgd, LearningRate = 1, GroupMaxNorms = groups,
            };
        }

        private static Model Sealed(Communicator communicator)
        {
            var model = new Model(communicator, new ModelOptions { Strategy = Strategy.Zero1 });
            model.AddParameter(new ParameterOptions("pair", ElementType.F32, 2));
            model.AddParameter(new ParameterOptions("free", ElementType.F32, 1) { NormGroup = 1 });
            model.AddParameter(new ParameterOptions("last", ElementType.F32, 1) { NormGroup = 2 });
            model.Seal();
            return model;
        }
    }
}
