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
