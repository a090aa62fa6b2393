using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Parameters of 16 bits: bits in ushort; gradients and state are float.</summary>
    internal static class NarrowTests
    {
        private const int Elements = 7;

        [Test]
        public static void Gradients_of_either_type_train()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                foreach (Strategy strategy in ModelTests.Strategies)
                {
                    using (Model model = Sealed(c, strategy))
                    using (var optimizer = new Optimizer(
                        model,
                        new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = 0.25 }))
                    {
                        model.SetParameters<ushort>(Bits(1), 0, ElementType.Bf16);
                        model.AccumulateFlat<float>(Enumerable.Repeat(2f, Elements).ToArray());
                        optimizer.Step();
                        model.AccumulateFlat<ushort>(
                            Bits(c.Rank), BackwardFlags.None, ElementType.Bf16);
                        optimizer.Step();
                        model.BeginBackward();
                        model.GradientReady<ushort>(0, Bits(1), ElementType.Bf16);
                        model.EndBackward();
                        optimizer.Step();
                        var result = new ushort[Elements];
                        model.GetParameters<ushort>(result, ElementType.Bf16);
                        // Averages of 2, of 0 and 1, and of 1.
                        Check.Same(Bits(1 - 0.25f * (2 + 0.5f + 1)), result, "bits");
                        model.GatherUnit(0);
                        Check.Same(
                            result, model.GetParameterData<ushort>(0).ToArray(), "in place");
                        model.ReleaseUnit(0);
                    }
                }
            });
        }

        [Test]
        public static void Masters_keep_what_rounding_would_lose()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = Sealed(c, Strategy.Zero2))
            {
                model.SetParameters<ushort>(Bits(1), 0, ElementType.Bf16);
                foreach (OptimizerFlags flags in
                         new[] { OptimizerFlags.None, OptimizerFlags.MasterWeights })
                {
                    // A sixteenth of the distance between 1 and the number before it.
                    using (var optimizer = new Optimizer(
                        model,
                        new OptimizerOptions
                        {
                            Rule = RuleKind.Sgd, LearningRate = 1.0 / 4096, Flags = flags,
                        }))
                    {
                        for (int step = 0; step < 16; ++step)
                        {
                            model.AccumulateFlat<float>(Enumerable.Repeat(1f, Elements).ToArray());
                            optimizer.Step();
                        }
                    }

                    var result = new ushort[Elements];
                    model.GetParameters<ushort>(result, ElementType.Bf16);
                    Check.Same(
                        Bits(flags == OptimizerFlags.None ? 1 : 1 - (1f / 256)), result, "bits");
                }
            }
        }

        [Test]
        public static void Rounding_by_chance_goes_to_a_neighbour()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = Sealed(c, Strategy.Zero2))
            {
                model.SetParameters<ushort>(Bits(1), 0, ElementType.Bf16);
                var options = new OptimizerOptions
                {
                    Rule = RuleKind.Sgd,
                    LearningRate = 0.5 / 256, // half the distance
                    Flags = OptimizerFlags.StochasticRounding,
                    RoundingSeed = 3,
                };
                using (var optimizer = new Optimizer(model, options))
                {
                    model.AccumulateFlat<float>(Enumerable.Repeat(1f, Elements).ToArray());
                    optimizer.Step();
                }

                var result = new ushort[Elements];
                model.GetParameters<ushort>(result, ElementType.Bf16);
                ushort up = Bits(1)[0], down = Bits(1 - (1f / 256))[0];
                Check.That(result.All(value => value == up || value == down), "a neighbour");
                Check.That(result.Contains(up) && result.Contains(down), "by chance");
                options.Flags |= OptimizerFlags.MasterWeights;
                Check.Throws<UnsupportedException>(() => new Optimizer(model, options));
            }
        }

        [Test]
        public static void A_rule_and_the_state_see_floats()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = Sealed(c, Strategy.Zero1))
            {
                Exception seen = null;
                var options = new OptimizerOptions
                {
                    Rule = new UserRule(update =>
                    {
                        Check.Equal(ElementType.Bf16, update.Type);
                        Check.Equal(ElementType.F32, update.GradientType);
                        Span<float> state = update.State<float>(0);
                        state[0] = update.Gradients<float>()[0];
                        Span<ushort> parameters = update.Parameters<ushort>();
                        parameters[0] = 0x3f80;
                        try
                        {
                            update.Gradients<ushort>();
                        }
                        catch (ArgumentException exception)
                        {
                            seen = exception;
                        }

                        try
                        {
                            update.Parameters<float>();
                            seen = null;
                        }
                        catch (ArgumentException)
                        {
                        }
                    })
                    {
                        StateCount = 1,
                    },
                };
                using (var optimizer = new Optimizer(model, options))
                {
                    model.AccumulateFlat<float>(Enumerable.Repeat(3f, Elements).ToArray());
                    optimizer.Step();
                    Check.That(seen != null, "other types are refused");
                    StateRange[] ranges = optimizer.GetRanges();
                    Check.Equal(2, ranges.Length);
                    Check.Equal(ElementType.Bf16, ranges[0].Type);
                    Check.Equal((ushort)0x3f80, ranges[0].GetData<ushort>()[0]);
                    Check.Throws<ArgumentException>(() => ranges[0].GetData<float>().ToArray());
                    Check.Equal(ElementType.F32, ranges[1].Type);
                    Check.Equal(3f, ranges[1].GetData<float>()[0]);
                    Check.Throws<ArgumentException>(() => ranges[1].GetData<ushort>().ToArray());
                }
            }
        }

        [Test]
        public static void Other_types_are_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = Sealed(c, Strategy.Zero3))
            {
                Check.Throws<InvalidArgumentException>(
                    () => model.SetParameters<ushort>(Bits(1))); // numbers, no bits
                Check.Throws<InvalidArgumentException>(
                    () => model.SetParameters<ushort>(Bits(1), 0, ElementType.F16));
                Check.Throws<InvalidArgumentException>(
                    () => model.GetParameters<float>(new float[Elements]));
                Check.Throws<ArgumentException>(
                    () => model.GetParameters<float>(new float[Elements], ElementType.Bf16));
                Check.Throws<InvalidArgumentException>(
                    () => model.AccumulateFlat<double>(new double[Elements]));
                model.GatherUnit(0);
                Check.Throws<ArgumentException>(() => model.GetParameterData<float>(0));
                model.ReleaseUnit(0);
                model.BeginBackward();
                Check.Throws<InvalidArgumentException>(
                    () => model.GradientReady<ushort>(0, Bits(1)));
            }
        }

        private static Model Sealed(Communicator communicator, Strategy strategy)
        {
            var options = new ModelOptions
            {
                Strategy = strategy,
                Shards = ModelTests.ShardsOf(strategy, communicator.WorldSize),
            };
            var model = new Model(communicator, options);
            model.AddParameter(new ParameterOptions("weight", ElementType.Bf16, Elements));
            model.Seal();
            return model;
        }

        // The upper half of a float that bf16 has exactly, in each element.
        private static ushort[] Bits(float value)
        {
            var bits = (ushort)(BitConverter.ToUInt32(BitConverter.GetBytes(value), 0) >> 16);
            return Enumerable.Repeat(bits, Elements).ToArray();
        }
    }
}
