using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Update rules of the library and of the caller.</summary>
    internal static class OptimizerTests
    {
        [Test]
        public static void Options_are_checked()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
            {
                Check.Throws<ArgumentNullException>(() => new Optimizer(null, ModelTests.Sgd()));
                Check.Throws<ArgumentNullException>(() => new Optimizer(model, null));
                Check.Throws<ArgumentNullException>(
                    () => new Optimizer(model, new OptimizerOptions()));
                Check.Throws<ArgumentNullException>(() => new UserRule(null));
                foreach (Rule bad in new Rule[]
                {
                    RuleKind.User, (RuleKind)99, new UserRule(u => { }) { StateCount = 9 },
                    new Adam { Beta1 = 1.5 },
                })
                {
                    Check.Throws<InvalidArgumentException>(
                        () => new Optimizer(model, new OptimizerOptions { Rule = bad }));
                }

                using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
                {
                    Check.Throws<InvalidStateException>(
                        () => new Optimizer(model, ModelTests.Sgd()));
                    Check.Throws<InvalidStateException>(() => optimizer.Step());
                    Check.Throws<InvalidStateException>(() => optimizer.GradientNorm.ToString());
                }

                new Optimizer(model, ModelTests.Sgd()).Dispose(); // there is room again
            }
        }

        [Test]
        public static void The_learning_rate_can_be_changed()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero3))
            using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
            {
                Check.Equal(0.5, optimizer.LearningRate);
                optimizer.LearningRate = 2;
                Check.Equal(2.0, optimizer.LearningRate);
                Check.Throws<InvalidArgumentException>(() => optimizer.LearningRate = -1);
                Check.Throws<InvalidArgumentException>(() => optimizer.LearningRate = double.NaN);
                float[] before = Parameters(model);
                model.AccumulateFlat<float>(ModelTests.Values(0));
                optimizer.Step();
                Check.Same(
                    before.Zip(ModelTests.Values(0), (p, g) => p - 2 * g).ToArray(),
                    Parameters(model), "after a step");
            }
        }

        [Test]
        public static void The_norm_is_that_of_all_gradients_and_clips()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                OptimizerOptions options = ModelTests.Sgd();
                options.Clipping = 1;
                using (Model model = ModelTests.Sealed(c, Strategy.Zero2))
                using (var optimizer = new Optimizer(model, options))
                {
                    float[] gradients = ModelTests.Values(0);
                    model.AccumulateFlat<float>(gradients);
                    optimizer.Step();
                    double norm = Math.Sqrt(gradients.Sum(g => (double)g * g));
                    Check.That(Math.Abs(optimizer.GradientNorm - norm) < 1e-9 * norm, "norm");
                    float[] after = Parameters(model);
                    for (int i = 0; i < after.Length; ++i)
                    {
                        Check.That(
                            Math.Abs(after[i] + 0.5 * gradients[i] / norm) < 1e-6, "clipped " + i);
                    }
                }
            });
        }

        [Test]
        public static void A_rule_of_the_caller_equals_the_librarys_own()
        {
            foreach (int world in new[] { 1, 2, 3 })
            {
                Ranks.RunAndLeaveTogether(world, c =>
                {
                    foreach (Strategy strategy in ModelTests.Strategies)
                    {
                        OptimizerOptions own = ModelTests.Sgd();
                        own.Rule = new Sgd { Momentum = 0.5 };
                        var mine = new OptimizerOptions
                        {
                            LearningRate = own.LearningRate,
                            Rule = new UserRule(Momentum) { StateCount = 1 },
                        };
                        Check.Same(
                            Train(c, strategy, own), Train(c, strategy, mine),
                            strategy.ToString());
                    }
                });
            }
        }

        [Test]
        public static void A_rule_is_told_everything_about_its_piece()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.DataParallel))
            {
                var seen = new int[3];
                Exception problem = null;
                UpdateRule rule = update =>
                {
                    seen[(int)update.Parameter] += update.Count;
                    Check.Equal(ElementType.F32, update.Type);
                    Check.Equal(1ul, update.Step);
                    Check.Equal(0.125, update.LearningRate);
                    Check.Equal(0f, update.State<float>(1)[0]);
                    Check.Equal((ulong)0, update.First);
                    problem = Caught(update);
                };
                var options = new OptimizerOptions
                {
                    LearningRate = 0.125, Rule = new UserRule(rule) { StateCount = 2 },
                };
                using (var optimizer = new Optimizer(model, options))
                {
                    model.AccumulateFlat<float>(ModelTests.Values(0));
                    optimizer.Step();
                }

                Check.Same(new[] { 12, 3, 5 }, seen, "pieces");
                Check.That(problem == null, "" + problem);
            }
        }

        [Test]
        public static void What_a_rule_throws_is_thrown_from_step()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                var options = new OptimizerOptions
                {
                    LearningRate = 1,
                    Rule = new UserRule(update =>
                    {
                        if (c.Rank == 1)
                        {
                            throw new TimeZoneNotFoundException("mine");
                        }
                    }),
                };
                using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
                using (var optimizer = new Optimizer(model, options))
                {
                    model.AccumulateFlat<float>(ModelTests.Values(0));
                    if (c.Rank == 1)
                    {
                        var mine = Check.Throws<TimeZoneNotFoundException>(
                            () => optimizer.Step());
                        Check.Equal("mine", mine.Message);
                    }
                    else
                    {
                        var failure = Check.Throws<CallbackException>(() => optimizer.Step());
                        Check.Equal(Status.Callback, failure.Status);
                    }
                }
            });
        }

        [Test]
        public static void Different_options_are_a_mismatch_and_can_be_tried_again()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (Model model = ModelTests.Sealed(c, Strategy.Zero2))
                {
                    OptimizerOptions options = ModelTests.Sgd();
                    options.Rule = new Sgd { Momentum = 0.1 * c.Rank };
                    Check.Throws<MismatchException>(() => new Optimizer(model, options));
                    new Optimizer(model, ModelTests.Sgd()).Dispose();
                }
            });
        }

        [Test]
        public static void A_micro_batch_kept_back_needs_another()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
            using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
            {
                model.AccumulateFlat<float>(ModelTests.Values(0), BackwardFlags.NoSync);
                Check.Throws<InvalidStateException>(() => optimizer.Step());
                model.AccumulateFlat<float>(ModelTests.Values(1));
                optimizer.Step();
                Check.Same(
                    ModelTests.Values(0).Zip(ModelTests.Values(1), (a, b) => -0.5f * (a + b))
                        .ToArray(),
                    Parameters(model), "both");
            }
        }

        private static Exception Caught(Update update)
        {
            try
            {
                update.State<float>(2);
                return new FailureException("a third state");
            }
            catch (ArgumentOutOfRangeException)
            {
            }

            try
            {
                update.State<float>(8);
                return new FailureException("a ninth state");
            }
            catch (ArgumentOutOfRangeException)
            {
            }

            try
            {
                update.Parameters<double>();
                return new FailureException("doubles");
            }
            catch (ArgumentException)
            {
                return null;
            }
        }

        // As the library writes it: v = momentum * v + g, v = g at first; p -= rate * v.
        private static void Momentum(Update update)
        {
            Span<float> parameters = update.Parameters<float>();
            ReadOnlySpan<float> gradients = update.Gradients<float>();
            Span<float> velocity = update.State<float>(0);
            var rate = (float)update.LearningRate;
            for (int i = 0; i < update.Count; ++i)
            {
                velocity[i] = (float)((float)(0.5f * velocity[i]) + gradients[i]);
                parameters[i] = (float)(parameters[i] - (float)(rate * velocity[i]));
            }
        }

        private static float[] Train(
            Communicator communicator, Strategy strategy, OptimizerOptions options)
        {
            using (Model model = ModelTests.Sealed(communicator, strategy))
            using (var optimizer = new Optimizer(model, options))
            {
                model.SetParameters<float>(ModelTests.Values(3));
                for (int step = 0; step < 4; ++step)
                {
                    model.AccumulateFlat<float>(ModelTests.Values(communicator.Rank + step));
                    optimizer.Step();
                }

                return Parameters(model);
            }
        }

        private static float[] Parameters(Model model)
        {
            var values = new float[model.Info.Elements];
            model.GetParameters<float>(values);
            return values;
        }
    }
}
