using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>One copy for ranks that share memory, and the state of training.</summary>
    internal static class StateTests
    {
        private const int Elements = 20;
        private const int SavedAt = 2;
        private const int Steps = 4;

        private static readonly int[] Firsts = { 0, 12, 15 };
        private static readonly int[] Counts = { 12, 3, 5 };
        private static readonly string[] Names = { "weight", "bias", "head" };

        [Test]
        public static void Ranks_share_one_copy_and_train_the_same()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                foreach (Strategy strategy in ModelTests.Strategies)
                {
                    bool sharded =
                        strategy == Strategy.Zero3 || strategy == Strategy.HybridShard;
                    float[] never = TrainShared(c, strategy, ShareParameters.Never, 0);
                    ulong shared = sharded ? 4ul * Elements : 0;
                    Check.Same(
                        never, TrainShared(c, strategy, ShareParameters.Auto, shared), "auto");
                    if (strategy != Strategy.DataParallel)
                    {
                        float[] always = TrainShared(
                            c, strategy, ShareParameters.Always, 4ul * Elements);
                        Check.Same(never, always, "always");
                    }
                }
            });
        }

        [Test]
        public static void What_cannot_be_shared_is_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                var failure = Check.Throws<InvalidArgumentException>(
                    () => new Model(c, Options(Strategy.DataParallel, ShareParameters.Always)));
                Check.Contains("zero1 trains the same", failure.Message);
                Check.Throws<InvalidArgumentException>(
                    () => new Model(c, Options(Strategy.Zero3, (ShareParameters)3)));
            }
        }

        [Test]
        public static void Different_sharing_is_a_mismatch_that_names_it()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                ShareParameters share =
                    c.Rank == 0 ? ShareParameters.Always : ShareParameters.Never;
                var failure = Check.Throws<MismatchException>(
                    () => ModelTests.Sealed(c, Options(Strategy.Zero1, share)));
                Check.Contains("options.shards.share", failure.Message);
                c.Barrier(); // the group lives on
            });
        }

        [Test]
        public static void Ranges_hold_every_element_once()
        {
            foreach (int world in new[] { 1, 2, 3 })
            {
                foreach (Strategy strategy in ModelTests.Strategies)
                {
                    // Of p, m and v: how often an element was in a range of any rank.
                    var seen = new int[3][];
                    for (int i = 0; i < seen.Length; ++i)
                    {
                        seen[i] = new int[Elements];
                    }

                    Ranks.RunAndLeaveTogether(world, c => CountRanges(c, strategy, seen));
                    foreach (int[] counts in seen)
                    {
                        Check.Same(
                            Enumerable.Repeat(1, Elements).ToArray(), counts,
                            strategy + " of " + world);
                    }
                }
            }
        }

        [Test]
        public static void A_range_is_of_its_type_and_its_optimizer()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
            {
                var optimizer = new Optimizer(model, ModelTests.Sgd());
                StateRange range = optimizer.GetRanges()[0];
                Check.Throws<ArgumentException>(() => range.GetData<double>().ToArray());
                Span<float> data = range.GetData<float>();
                data[0] = 5;
                var values = new float[Elements];
                model.GetParameters<float>(values);
                Check.Equal(5f, values[0], "written to the range");
                optimizer.Dispose();
                Check.Throws<ObjectDisposedException>(() => range.GetData<float>().ToArray());
                Check.Throws<ObjectDisposedException>(() => optimizer.GetRanges());
            }
        }

        [Test]
        public static void A_training_that_is_resumed_has_the_same_bits()
        {
            foreach (int world in new[] { 1, 2, 3 })
            {
                foreach (Strategy strategy in ModelTests.Strategies)
                {
                    var parts = new byte[world][];
                    float[] whole = TrainAndSave(world, strategy, SavedAt, parts);
                    Ranks.RunAndLeaveTogether(world, c =>
                    {
                        using (Model model = ModelTests.Sealed(c, strategy))
                        using (var optimizer = new Optimizer(model, Adamw(7)))
                        {
                            optimizer.Load(parts[c.Rank]);
                            Check.Equal((ulong)SavedAt, optimizer.StepCount);
                            Check.Equal(0.1, optimizer.LearningRate);
                            Check.Same(parts[c.Rank], optimizer.Save(), "saved again");
                            Train(model, optimizer, SavedAt, Steps);
                            Check.Same(whole, Parameters(model), strategy + " of " + world);
                        }
                    });
                }
            }
        }

        [Test]
        public static void Damaged_state_is_refused_by_all_and_changes_nothing()
        {
            foreach (Strategy strategy in ModelTests.Strategies)
            {
                var parts = new byte[2][];
                TrainAndSave(2, strategy, SavedAt, parts);
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    using (Model model = ModelTests.Sealed(c, strategy))
                    using (var optimizer = new Optimizer(model, Adamw(0.1)))
                    {
                        byte[] mine = parts[c.Rank];
                        foreach (int at in new[] { 0, parts[1].Length / 2, parts[1].Length - 1 })
                        {
                            var copy = (byte[])mine.Clone();
                            copy[c.Rank == 1 ? at : 0] ^= (byte)c.Rank; // as it was on rank 0
                            Check.Throws<CorruptException>(() => optimizer.Load(copy));
                        }

                        int length = mine.Length - c.Rank;
                        Check.Throws<CorruptException>(
                            () => optimizer.Load(mine.AsSpan(0, length)));
                        byte[] empty = c.Rank == 1 ? new byte[0] : mine;
                        Check.Throws<InvalidArgumentException>(() => optimizer.Load(empty));
                        Check.Equal(0ul, optimizer.StepCount);
                        Check.Same(new float[Elements], Parameters(model), "parameters");
                        optimizer.Load(mine);
                        Check.Equal((ulong)SavedAt, optimizer.StepCount);
                    }
                });
            }
        }

        [Test]
        public static void The_state_of_another_training_is_refused()
        {
            var parts = new byte[2][];
            TrainAndSave(2, Strategy.Zero3, SavedAt, parts);
            Refused(3, Strategy.Zero3, Adamw(0.1), rank => parts[rank % 2], "world size");
            Refused(2, Strategy.Zero2, Adamw(0.1), rank => parts[rank], "strategy");
            Refused(2, Strategy.Zero3, ModelTests.Sgd(), rank => parts[rank], "other");
            Refused(2, Strategy.Zero3, Adamw(0.1), rank => parts[1 - rank], "of rank");
        }

        [Test]
        public static void Parts_of_different_steps_are_a_mismatch()
        {
            var early = new byte[2][];
            var late = new byte[2][];
            TrainAndSave(2, Strategy.Zero3, SavedAt, early);
            TrainAndSave(2, Strategy.Zero3, SavedAt + 1, late);
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (Model model = ModelTests.Sealed(c, Strategy.Zero3))
                using (var optimizer = new Optimizer(model, Adamw(0.1)))
                {
                    byte[] part = c.Rank == 0 ? early[0] : late[1];
                    var failure = Check.Throws<MismatchException>(() => optimizer.Load(part));
                    Check.Contains("number of steps is 2 on rank 0", failure.Message);
                    optimizer.Load(early[c.Rank]);
                }
            });
        }

        [Test]
        public static void Saving_and_loading_at_the_wrong_moment_is_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
            {
                var optimizer = new Optimizer(model, ModelTests.Sgd());
                byte[] state = optimizer.Save();
                model.BeginBackward();
                Check.Throws<InvalidStateException>(() => optimizer.Save());
                Check.Throws<InvalidStateException>(() => optimizer.Load(state));
                model.DiscardGradients();
                optimizer.Load(state);
                optimizer.Dispose();
                Check.Throws<ObjectDisposedException>(() => optimizer.Save());
                Check.Throws<ObjectDisposedException>(() => optimizer.Load(state));
            }
        }

        private static ModelOptions Options(Strategy strategy, ShareParameters share)
        {
            return new ModelOptions { Strategy = strategy, Shards = new Shards { Share = share } };
        }

        private static OptimizerOptions Adamw(double rate)
        {
            return new OptimizerOptions
            {
                Rule = RuleKind.AdamW, LearningRate = rate, WeightDecay = 0.1, Clipping = 3,
            };
        }

        private static void Train(Model model, Optimizer optimizer, int first, int end)
        {
            for (int step = first; step < end; ++step)
            {
                model.AccumulateFlat<float>(ModelTests.Values(model.Info.Rank + step));
                optimizer.Step();
            }
        }

        private static float[] TrainShared(
            Communicator c, Strategy strategy, ShareParameters share, ulong sharedBytes)
        {
            using (Model model = ModelTests.Sealed(c, Options(strategy, share)))
            using (var optimizer = new Optimizer(model, Adamw(0.1)))
            {
                Check.Equal(sharedBytes, model.Info.SharedBytes, strategy + " " + share);
                model.SetParameters<float>(ModelTests.Values(3));
                Train(model, optimizer, 0, 2);
                ulong before = model.Statistics.Gathers;
                model.GatherUnit(1);
                float[] head = model.GetParameterData<float>(2).ToArray();
                model.ReleaseUnit(1);
                bool gathers = model.Statistics.Gathers > before;
                bool sharded = strategy == Strategy.Zero3 || strategy == Strategy.HybridShard;
                Check.Equal(sharded && sharedBytes == 0, gathers, "gathered");
                float[] values = Parameters(model);
                Check.Same(values.Skip(15).ToArray(), head, "the gathered unit");
                return values;
            }
        }

        [Test]
        public static void A_matrix_of_Adafactor_has_rows_and_columns()
        {
            Ranks.RunAndLeaveTogether(1, c =>
            {
                using (var model = new Model(c, new ModelOptions { Strategy = Strategy.Zero1 }))
                {
                    model.AddParameter(new ParameterOptions("matrix", ElementType.F32, 2, 3));
                    model.Seal();
                    var options = new OptimizerOptions
                    {
                        Rule = new Adafactor
                        {
                            Beta2Decay = -1, MaxUpdateRms = 0.5, MinParameterRms = 2,
                        },
                        LearningRate = 0.5,
                    };
                    using (var optimizer = new Optimizer(model, options))
                    {
                        model.AccumulateFlat<float>(new float[] { 1, 2, 3, 4, 5, 6 });
                        optimizer.Step();
                        double squares = 0;
                        var values = new float[6];
                        model.GetParameters<float>(values);
                        foreach (float value in values)
                        {
                            squares += (double)value * value;
                        }

                        double root = Math.Sqrt(squares / 6);
                        Check.That(Math.Abs(root - 0.5) < 1e-6, "0.5 * 2 * 0.5, not " + root);
                        model.AccumulateFlat<float>(new float[6]);
                        optimizer.Step(); // the means of squares halve
                        int seen = 0;
                        foreach (StateRange range in optimizer.GetRanges())
                        {
                            double[] means = range.Kind == StateKind.Rows
                                ? new double[] { 14.0 / 3, 77.0 / 3 }
                                : new double[] { 17.0 / 2, 29.0 / 2, 45.0 / 2 };
                            if (range.Kind == StateKind.Parameter)
                            {
                                continue;
                            }

                            Check.Same(new long[] { means.Length }, range.Shape, "shape");
                            Span<float> data = range.GetData<float>();
                            for (int i = 0; i < data.Length; ++i)
                            {
                                Check.That(Math.Abs(data[i] - means[i] / 2) < 1e-5, "mean " + i);
                            }

                            seen += data.Length;
                        }

                        Check.Equal(5, seen);
                    }
                }
            });
        }

        private static void CountRanges(Communicator c, Strategy strategy, int[][] seen)
        {
            using (Model model = ModelTests.Sealed(c, strategy))
            using (var optimizer = new Optimizer(model, Adamw(0.1)))
            {
                model.SetParameters<float>(ModelTests.Values(3));
                Train(model, optimizer, 0, 1);
                float[] values = Parameters(model);
                foreach (StateRange range in optimizer.GetRanges())
                {
                    var number = (int)range.Parameter;
                    Check.Equal(Names[number], range.Name);
                    Check.Equal(ElementType.F32, range.Type);
                    long[] shape = number == 0 ? new long[] { 4, 3 }
                                               : new long[] { Counts[number] };
                    Check.Same(shape, range.Shape, range.Name);
                    Check.That(range.First + range.Count <= (ulong)Counts[number], "its end");
                    Span<float> data = range.GetData<float>();
                    Check.Equal(range.Count, (ulong)data.Length);
                    bool state = range.Kind == StateKind.Optimizer;
                    Check.That(state || range.Kind == StateKind.Parameter, "kind");
                    for (int i = 0; i < data.Length; ++i)
                    {
                        int at = Firsts[number] + (int)range.First + i;
                        System.Threading.Interlocked.Increment(
                            ref seen[state ? 1 + range.Vector : 0][at]);
                        Check.That(state || data[i] == values[at], "element " + at);
                        Check.That(!state || data[i] > 0, "gradients are positive");
                    }
                }
            }
        }

        private static float[] TrainAndSave(
            int world, Strategy strategy, int savedAt, byte[][] parts)
        {
            float[] whole = null;
            Ranks.RunAndLeaveTogether(world, c =>
            {
                using (Model model = ModelTests.Sealed(c, strategy))
                using (var optimizer = new Optimizer(model, Adamw(0.1)))
                {
                    model.SetParameters<float>(ModelTests.Values(3));
                    Train(model, optimizer, 0, savedAt);
                    parts[c.Rank] = optimizer.Save();
                    Train(model, optimizer, savedAt, Steps);
                    float[] values = Parameters(model);
                    if (c.Rank == 0)
                    {
                        whole = values;
                    }
                }
            });
            return whole;
        }

        private static void Refused(
            int world, Strategy strategy, OptimizerOptions rule, Func<int, byte[]> part,
            string words)
        {
            Ranks.RunAndLeaveTogether(world, c =>
            {
                using (Model model = ModelTests.Sealed(c, strategy))
                using (var optimizer = new Optimizer(model, rule))
                {
                    var failure = Check.Throws<InvalidArgumentException>(
                        () => optimizer.Load(part(c.Rank)));
                    Check.Contains(words, failure.Message);
                    Check.Equal(0ul, optimizer.StepCount);
                }
            });
        }

        private static float[] Parameters(Model model)
        {
            var values = new float[Elements];
            model.GetParameters<float>(values);
            return values;
        }
    }
}
