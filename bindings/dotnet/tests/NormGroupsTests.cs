using System;
using System.Linq;

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
                rule.WeightDecay = 0.5; // that of the second group, which has none of its own
                rule.Groups = new[]
                {
                    new ParameterGroup { WeightDecay = 0 },
                    new ParameterGroup { RateFactor = 0.5 },
                    new ParameterGroup { RateFactor = 0, WeightDecay = 1 },
                };
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
                both.Clipping = 1;
                Check.Throws<UnsupportedException>(() => new Optimizer(model, both));
                OptimizerOptions wrong = Rule(1, 1, 1);
                wrong.Groups[2].RateFactor = -1;
                Check.Contains(
                    "options.groups[2].rate_factor",
                    Check.Throws<InvalidArgumentException>(
                        () => new Optimizer(model, wrong)).Message);
                wrong.Groups = new ParameterGroup[3];
                Check.Contains(
                    "Groups[0]",
                    Check.Throws<ArgumentException>(() => new Optimizer(model, wrong)).Message);
                using (var optimizer = new Optimizer(model, Rule(1, 1, 1)))
                {
                    Check.Throws<InvalidStateException>(() => optimizer.GroupNorm(0).ToString());
                    Check.Throws<InvalidArgumentException>(
                        () => optimizer.GroupNorm(3).ToString());
                }

                Check.Contains(
                    "options.group_count is 0",
                    Check.Throws<InvalidArgumentException>(
                        () => new Optimizer(model, Rule())).Message);
                using (var plain = new Optimizer(model, Rule(0, 0, 0)))
                {
                    Check.Throws<InvalidStateException>(() => plain.GroupNorm(0).ToString());
                }
            }
        }

        private static OptimizerOptions Rule(params double[] groups)
        {
            return new OptimizerOptions
            {
                Rule = RuleKind.Sgd, LearningRate = 1,
                Groups = groups.Select(norm => new ParameterGroup { MaxNorm = norm }).ToArray(),
            };
        }

        private static Model Sealed(Communicator communicator)
        {
            var model = new Model(communicator, new ModelOptions { Strategy = Strategy.Zero1 });
            model.AddParameter(new ParameterOptions("pair", ElementType.F32, 2));
            model.AddParameter(new ParameterOptions("free", ElementType.F32, 1) { ParameterGroup = 1 });
            model.AddParameter(new ParameterOptions("last", ElementType.F32, 1) { ParameterGroup = 2 });
            model.Seal();
            return model;
        }
    }
}
