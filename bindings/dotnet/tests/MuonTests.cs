using System;

namespace Trireme.Tests
{
    /// <summary>The rule that makes matrices orthogonal, beside a scalar recursion.</summary>
    internal static class MuonTests
    {
        [Test]
        public static void A_matrix_goes_along_its_direction_and_other_groups_as_adamw()
        {
            for (int turn = 0; turn < 3; ++turn)
            {
                OptimizerOptions rule = Rule();
                rule.LearningRate = 0.5;
                rule.Groups = new[]
                {
                    new ParameterGroup(),
                    new ParameterGroup { Elementwise = true, RateFactor = 0.5 },
                };
                rule.Rule = new Muon
                {
                    OrthogonalSteps = turn == 1 ? 3u : 0u,
                    Nesterov = turn == 1,
                    RateAdjustment =
                        turn == 2 ? RateAdjustment.MatchAdamW : RateAdjustment.Original,
                };
                double length = 1;
                for (int step = 0; step < (turn == 1 ? 3 : 5); ++step)
                {
                    double square = length * length;
                    length *= 3.4445 - 4.7750 * square + 2.0315 * square * square;
                }

                double far = 0.5 * length * Math.Sqrt(2) * (turn == 2 ? 0.2 : 1);
                double[] expected = { -0.6 * far, -0.8 * far, -0.25, 0.25 };
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    using (Model model = Sealed(c))
                    using (var optimizer = new Optimizer(model, rule))
                    {
                        model.AccumulateFlat<double>(new[] { 3.0, 4.0, 7.0, -5.0 });
                        optimizer.Step();
                        var result = new double[4];
                        model.GetParameters<double>(result);
                        for (int i = 0; i < 4; ++i)
                        {
                            Check.That(
                                Math.Abs(result[i] - expected[i]) < 1e-7,
                                "parameter " + i + " is " + result[i]);
                        }
                    }
                });
            }
        }

        [Test]
        public static void Bad_options_are_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = Sealed(c))
            {
                OptimizerOptions steps = Rule();
                steps.Rule = new Muon { OrthogonalSteps = 100 };
                Check.Throws<InvalidArgumentException>(() => new Optimizer(model, steps));
                OptimizerOptions adjustment = Rule();
                adjustment.Rule = new Muon { RateAdjustment = (RateAdjustment)2 };
                Check.Throws<InvalidArgumentException>(() => new Optimizer(model, adjustment));
                OptimizerOptions few = Rule();
                few.Groups = new[] { new ParameterGroup { Elementwise = true } };
                Check.Throws<InvalidArgumentException>(() => new Optimizer(model, few));
                OptimizerOptions other = Rule();
                other.Rule = RuleKind.AdamW;
                other.Groups = new[]
                {
                    new ParameterGroup(), new ParameterGroup { Elementwise = true },
                };
                Check.Throws<InvalidArgumentException>(() => new Optimizer(model, other));
                OptimizerOptions sweep = Rule();
                sweep.Flags = OptimizerFlags.OneSweep;
                Check.Throws<UnsupportedException>(() => new Optimizer(model, sweep));
            }
        }

        private static OptimizerOptions Rule()
        {
            return new OptimizerOptions { Rule = RuleKind.Muon };
        }

        private static Model Sealed(Communicator c)
        {
            var model = new Model(c, new ModelOptions { Strategy = Strategy.Zero2 });
            model.AddParameter(new ParameterOptions("matrix", ElementType.F64, 2, 1));
            model.AddParameter(
                new ParameterOptions("embedding", ElementType.F64, 1, 2) { ParameterGroup = 1 });
            model.Seal();
            return model;
        }
    }
}
