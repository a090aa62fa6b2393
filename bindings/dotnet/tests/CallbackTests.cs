using System;

namespace Trireme.Tests
{
    /// <summary>
    /// From inside, a bucket hook and an update rule may do nothing with their own model but
    /// dispose of it.
    /// </summary>
    internal static class CallbackTests
    {
        [Test]
        public static void Calls_on_the_model_from_inside_are_refused()
        {
            foreach (Strategy strategy in ModelTests.Strategies)
            {
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    int visits = 0;
                    Model model = null;
                    Optimizer optimizer = null;
                    var options = new ModelOptions
                    {
                        Strategy = strategy,
                        Buckets = new Buckets
                        {
                            Hook = bucket =>
                            {
                                ++visits;
                                Refuses(model, optimizer);
                            },
                        },
                    };
                    using (model = ModelTests.Sealed(c, options))
                    using (optimizer = new Optimizer(model, ModelTests.Sgd()))
                    {
                        model.AccumulateFlat<float>(ModelTests.Values(0));
                        optimizer.Step();
                        Check.That(visits > 0, "visits");
                        Check.Equal(1UL, optimizer.StepCount, "steps");
                    }
                });
            }
        }

        [Test]
        public static unsafe void Parts_of_a_later_library_are_larger()
        {
            fixed (ulong* words = new ulong[] { 7, 2, 3, 0, 99, 8, 4, 5, 3, 99 })
            {
                var native = new NativeBucket
                {
                    PartCount = 2, PartBytes = 40, Parts = (IntPtr)words,
                };
                var bucket = new Bucket(&native);
                BucketPart first = bucket.Part(0);
                BucketPart second = bucket.Part(1);
                Check.Equal(7UL, first.Parameter, "parameter of the first part");
                Check.Equal(3, first.Count, "elements of the first part");
                Check.Equal(8UL, second.Parameter, "parameter of the second part");
                Check.Equal(4UL, second.First, "first element of the second part");
                Check.Equal(5, second.Count, "elements of the second part");
                Check.Equal(3, second.Position, "position of the second part");
            }
        }

        [Test]
        public static void A_model_may_be_disposed_of_inside()
        {
            foreach (Strategy strategy in ModelTests.Strategies)
            {
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    Model model = null;
                    Optimizer optimizer = null;
                    var options = new ModelOptions
                    {
                        Strategy = strategy,
                        Buckets = new Buckets
                        {
                            Hook = bucket =>
                            {
                                if (bucket.Moment == HookMoment.After)
                                {
                                    optimizer.Dispose();
                                    model.Dispose();
                                }
                            },
                        },
                    };
                    model = ModelTests.Sealed(c, options);
                    optimizer = new Optimizer(model, ModelTests.Sgd());
                    model.AccumulateFlat<float>(ModelTests.Values(0));
                    optimizer.Step();
                    Check.Throws<ObjectDisposedException>(() => optimizer.Step());
                    c.Barrier();
                });
            }
        }

        private static void Refuses(Model model, Optimizer optimizer)
        {
            var calls = new Action[]
            {
                () => Parameters(model),
                () => model.DiscardGradients(),
                () => model.AccumulateFlat<float>(ModelTests.Values(0)),
                () => optimizer.Step(),
                () => optimizer.Save(),
                () => Check.Equal(0UL, model.Memory.PlannedParameters, "never"),
            };
            foreach (Action call in calls)
            {
                Check.Throws<InvalidStateException>(() => call());
            }
        }

        private static void Parameters(Model model)
        {
            model.GetParameters<float>(new float[20]);
        }
    }
}
