using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Describing a model, spreading it, and its optimizer.</summary>
    internal static class ModelTests
    {
        private const int Elements = 4 * 3 + 3 + 5;
        private const double Rate = 0.5;

        public static readonly Strategy[] Strategies =
        {
            Strategy.DataParallel, Strategy.Zero1, Strategy.Zero2, Strategy.Zero3,
            Strategy.HybridShard,
        };

        [Test]
        public static void A_sealed_model_tells_what_it_looks_like()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                foreach (Strategy strategy in Strategies)
                {
                    using (Model model = Sealed(c, strategy))
                    {
                        ModelInfo info = model.Info;
                        Check.Equal(strategy, info.Strategy);
                        Check.Equal(c.Rank, info.Rank);
                        Check.Equal(3, info.WorldSize);
                        Check.Equal(0u, info.Leaves);
                        Check.Equal(3ul, info.Parameters);
                        Check.Equal(2ul, info.Units);
                        Check.Equal((ulong)Elements, info.Elements);
                        Check.That(info.Buckets > 0, "buckets");
                        Check.Equal(2ul, info.UnitGroups);
                        UnitInfo unit = model.GetUnit(1);
                        Check.Equal(ElementType.F32, unit.Type);
                        Check.Equal(5ul, unit.Elements);
                        Check.Equal(15ul, unit.FlatFirst);
                        Check.Equal(1ul, unit.UnitGroup);
                        ulong[] counts = { 2, 2, 1 };
                        if (strategy == Strategy.Zero3)
                        {
                            Check.Equal(counts[c.Rank], unit.ShardCount);
                            Check.Equal(2ul * (ulong)c.Rank, unit.ShardFirst);
                        }

                        ModelMemory memory = model.Memory;
                        Check.Equal(memory.PlannedParameters, memory.AllocatedParameters);
                        Check.Equal(memory.PlannedGradients, memory.AllocatedGradients);
                        Check.Equal(0ul, memory.PlannedOptimizerState);
                        Check.Throws<InvalidArgumentException>(() => model.GetUnit(2));
                    }
                }
            });
        }

        [Test]
        public static void A_model_without_a_strategy_or_communicator_is_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                Check.Throws<ArgumentNullException>(() => new Model((Communicator)null, new ModelOptions()));
                Check.Throws<ArgumentNullException>(() => new Model((Mesh)null, new ModelOptions()));
                Check.Throws<ArgumentNullException>(() => new Model(c, null));
                Check.Throws<InvalidArgumentException>(() => new Model(c, new ModelOptions()));
                Check.Throws<InvalidArgumentException>(
                    () => new Model(c, new ModelOptions { Strategy = (Strategy)9 }));
                Check.Throws<InvalidArgumentException>(
                    () => new Model(
                        c, new ModelOptions { Strategy = Strategy.Zero1, Leaves = 70000 }));
            }
        }

        [Test]
        public static void Parameters_are_checked_when_they_are_added()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (var model = new Model(c, new ModelOptions { Strategy = Strategy.Zero2 }))
            {
                Check.Throws<InvalidStateException>(() => model.Info.ToString());
                Check.Equal(0ul, Add(model, "wéight", ElementType.F64, 2, 3));
                Check.Throws<ArgumentNullException>(() => model.AddParameter(null));
                Check.Throws<InvalidArgumentException>(() => Add(model, null, ElementType.F32, 1));
                Check.Throws<InvalidArgumentException>(() => Add(model, "", ElementType.F32, 1));
                var twice = Check.Throws<InvalidArgumentException>(
                    () => Add(model, "wéight", ElementType.F64, 1));
                Check.Contains("wéight", twice.Message);
                Check.Throws<ArgumentException>(() => Add(model, "a\0b", ElementType.F32, 1));
                Check.Throws<ArgumentException>(() => Add(model, "minus", ElementType.F32, -1));
                Check.Throws<InvalidArgumentException>(
                    () => Add(model, "huge", ElementType.F32, long.MaxValue, long.MaxValue));
                Check.Throws<UnsupportedException>(() => Add(model, "int", ElementType.I32, 1));
                Check.Throws<InvalidArgumentException>(
                    () => model.AddParameter(
                        new ParameterOptions("tied", ElementType.F64, 2) { TiedTo = "wéight" }));
                Check.Equal(1ul, Add(model, "scalar", ElementType.F64));
                model.Seal();
                Check.Throws<InvalidStateException>(() => Add(model, "late", ElementType.F64, 1));
                Check.Throws<InvalidStateException>(() => model.Seal());
                Check.Equal(7ul, model.Info.Elements);
            }
        }

        [Test]
        public static void A_registration_that_differs_is_named_on_every_rank()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                using (var model = new Model(c, new ModelOptions { Strategy = Strategy.Zero3 }))
                {
                    Add(model, "same", ElementType.F32, 2);
                    Add(model, c.Rank == 2 ? "other" : "layer", ElementType.F32, 3);
                    var failure = Check.Throws<MismatchException>(() => model.Seal());
                    Check.Contains("other", failure.Message);
                    Check.Contains("layer", failure.Message);
                }

                c.Barrier(); // the communicator lives on
            });
        }

        [Test]
        public static void Parameters_come_from_the_root_and_go_to_everybody()
        {
            foreach (int world in new[] { 1, 2, 3 })
            {
                Ranks.RunAndLeaveTogether(world, c =>
                {
                    foreach (Strategy strategy in Strategies)
                    {
                        using (Model model = Sealed(c, strategy))
                        {
                            var got = new float[Elements];
                            model.GetParameters<float>(got);
                            Check.Same(new float[Elements], got, "at first");
                            model.SetParameters<float>(Values(c.Rank), world - 1);
                            model.GetParameters<float>(got);
                            Check.Same(Values(world - 1), got, strategy.ToString());
                            Check.Throws<InvalidArgumentException>(
                                () => model.GetParameters<float>(new float[Elements - 1]));
                            Check.Throws<InvalidArgumentException>(
                                () => model.GetParameters<double>(new double[Elements]));
                            Check.Throws<InvalidArgumentException>(
                                () => model.SetParameters<float>(Values(0), world));
                        }
                    }
                });
            }
        }

        [Test]
        public static void Hooks_and_flat_vectors_train_alike()
        {
            foreach (int world in new[] { 1, 2, 3 })
            {
                Ranks.RunAndLeaveTogether(world, c =>
                {
                    foreach (Strategy strategy in Strategies)
                    {
                        float[] flat = Train(c, strategy, FlatPass);
                        float[] hooks = Train(c, strategy, HooksPass);
                        float[] wanted = PlainSgd(world);
                        for (int i = 0; i < Elements; ++i)
                        {
                            Check.That(
                                Math.Abs(flat[i] - wanted[i]) < 1e-4, "plain SGD, element " + i);
                        }

                        Check.Same(flat, hooks, strategy.ToString());
                    }
                });
            }
        }

        [Test]
        public static void Gradients_are_written_where_they_are_exchanged()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                foreach (Strategy strategy in Strategies)
                {
                    float[] there = Train(c, strategy, true);
                    Check.Same(Train(c, strategy, false), there, strategy.ToString());
                }
            });
        }

        // Two passes and a step; every gradient in its view where it has one, or copied.
        private static float[] Train(Communicator c, Strategy strategy, bool views)
        {
            int[] counts = { 12, 3, 5 };
            using (Model model = Sealed(c, strategy))
            using (var optimizer = new Optimizer(
                model, new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = Rate }))
            {
                for (int pass = 0; pass < 2; ++pass)
                {
                    model.BeginBackward(pass == 0 ? BackwardFlags.NoSync : BackwardFlags.None);
                    for (int number = 0; number < counts.Length; ++number)
                    {
                        bool adds = false;
                        Span<float> place = views
                            ? model.GetGradientData<float>((ulong)number, out adds)
                            : Span<float>.Empty;
                        if (views && strategy == Strategy.DataParallel)
                        {
                            Check.Equal(counts[number], place.Length);
                            Check.Equal(pass == 1, adds);
                        }

                        place = place.IsEmpty ? new float[counts[number]] : place;
                        for (int i = 0; i < place.Length; ++i)
                        {
                            float value = (c.Rank + 1) * (i + 3) + number + 7 * pass;
                            place[i] = adds ? place[i] + value : value;
                        }

                        model.GradientReady<float>((ulong)number, place);
                    }

                    model.EndBackward();
                }

                optimizer.Step();
                var values = new float[Elements];
                model.GetParameters<float>(values);
                return values;
            }
        }

        [Test]
        public static void A_backward_pass_is_checked()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = Sealed(c, Strategy.DataParallel))
            {
                var gradient = new float[12];
                Check.Throws<InvalidStateException>(
                    () => model.GradientReady<float>(0, gradient));
                Check.Throws<InvalidStateException>(() => model.EndBackward());
                Check.Throws<InvalidArgumentException>(
                    () => model.BeginBackward((BackwardFlags)8));
                bool adds;
                Check.Throws<InvalidStateException>(
                    () => model.GetGradientData<float>(0, out adds).Clear());
                model.BeginBackward();
                Check.Throws<InvalidStateException>(() => model.BeginBackward());
                Check.Throws<InvalidArgumentException>(
                    () => model.GetGradientData<float>(9, out adds).Clear());
                Check.Throws<ArgumentException>(
                    () => model.GetGradientData<double>(0, out adds).Clear());
                Check.Throws<InvalidArgumentException>(
                    () => model.GradientReady<float>(
                        1, model.GetGradientData<float>(0, out adds).Slice(1, 3)));
                Check.Throws<InvalidArgumentException>(
                    () => model.GradientReady<float>(9, gradient));
                Check.Throws<InvalidArgumentException>(
                    () => model.GradientReady<float>(0, new float[11]));
                Check.Throws<InvalidArgumentException>(
                    () => model.GradientReady<double>(0, new double[12]));
                model.GradientReady<float>(0, gradient);
                Check.Throws<InvalidStateException>(
                    () => model.GradientReady<float>(0, gradient));
                var missing = Check.Throws<InvalidStateException>(() => model.EndBackward());
                Check.Contains("bias", missing.Message);
                model.GradientReady<float>(1, new float[3]);
                model.GradientReady<float>(2, new float[5]);
                model.EndBackward();
                model.DiscardGradients();
                Check.Throws<InvalidArgumentException>(
                    () => model.AccumulateFlat<float>(new float[Elements + 1]));
            }
        }

        [Test]
        public static void Units_are_gathered_and_released()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (Model model = Sealed(c, Strategy.Zero3))
                {
                    model.SetParameters<float>(Values(0));
                    Check.Throws<InvalidStateException>(
                        () => model.GetParameterData<float>(2).ToArray());
                    model.GatherUnit(1);
                    float[] wanted = Values(0).Skip(15).ToArray();
                    Check.Same(wanted, model.GetParameterData<float>(2).ToArray(), "gathered");
                    model.ReleaseUnit(1);
                    Check.Throws<InvalidStateException>(() => model.ReleaseUnit(1));
                    Check.Throws<InvalidArgumentException>(() => model.GatherUnit(7));
                }
            });
        }

        [Test]
        public static void Leaves_are_dealt_to_ranks_in_turn()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                using (Model model = Sealed(c, Strategy.Zero1, 4))
                {
                    Check.Equal(2u, model.Info.MicroBatches);
                    Check.Equal((uint?)c.Rank, model.GetLeaf(0), "first");
                    Check.Equal(c.Rank == 0 ? 3u : (uint?)null, model.GetLeaf(1), "second");
                    Check.Throws<InvalidArgumentException>(() => model.GetLeaf(2));
                    Check.Throws<UnsupportedException>(
                        () => model.BeginBackward(BackwardFlags.NoSync));
                }
            });
        }

        [Test]
        public static void Frozen_and_tied_parameters_are_left_and_shared()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (var model = new Model(c, new ModelOptions { Strategy = Strategy.Zero2 }))
                {
                    Add(model, "a", ElementType.F64, 2);
                    model.AddParameter(new ParameterOptions("b", ElementType.F64, 1)
                    {
                        Flags = ParameterFlags.Frozen,
                    });
                    model.AddParameter(
                        new ParameterOptions("c", ElementType.F64, 2) { TiedTo = "a" });
                    model.Seal();
                    Check.Equal(3ul, model.Info.Elements);
                    using (var optimizer = new Optimizer(model, Sgd()))
                    {
                        model.SetParameters<double>(new[] { 1.0, 2.0, 3.0 });
                        model.BeginBackward();
                        model.GradientReady<double>(2, new[] { 1.0, 0.0 });
                        model.GradientReady<double>(0, new[] { 1.0, 1.0 });
                        Check.Throws<InvalidArgumentException>(
                            () => model.GradientReady<double>(1, new[] { 1.0 }));
                        model.EndBackward();
                        optimizer.Step();
                    }

                    var after = new double[3];
                    model.GetParameters<double>(after);
                    Check.Same(new[] { 0.0, 1.5, 3.0 }, after, "after a step");
                }
            });
        }

        [Test]
        public static void A_disposed_model_is_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                Model model = Sealed(c, Strategy.Zero1);
                var optimizer = new Optimizer(model, Sgd());
                model.Dispose();
                model.Dispose();
                Check.Throws<ObjectDisposedException>(() => model.Info.ToString());
                Check.Throws<ObjectDisposedException>(() => model.Memory.ToString());
                Check.Throws<ObjectDisposedException>(() => model.Seal());
                Check.Throws<ObjectDisposedException>(() => model.GatherUnit(0));
                Check.Throws<ObjectDisposedException>(() => model.GetLeaf(0));
                Check.Throws<ObjectDisposedException>(() => model.DiscardGradients());
                Check.Throws<ObjectDisposedException>(() => new Optimizer(model, Sgd()));
                Check.Equal(0ul, optimizer.StepCount);
                optimizer.Dispose();
                Check.Throws<ObjectDisposedException>(() => optimizer.Step());
                Check.Throws<ObjectDisposedException>(() => optimizer.LearningRate.ToString());
            }
        }

        public static OptimizerOptions Sgd()
        {
            return new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = Rate };
        }

        /// <summary>Two units: weight [4,3] with bias [3], and a vector [5].</summary>
        public static Model Sealed(Communicator communicator, Strategy strategy, uint leaves = 0)
        {
            return Sealed(
                communicator, new ModelOptions { Strategy = strategy, Leaves = leaves });
        }

        /// <summary>The same; units are not joined, unless the options say how.</summary>
        public static Model Sealed(Communicator communicator, ModelOptions options)
        {
            if (options.Shards == null)
            {
                options.Shards = ShardsOf(options.Strategy, communicator.WorldSize);
            }
            else if (options.Shards.Ranks == 0)
            {
                options.Shards.Ranks =
                    ShardsOf(options.Strategy, communicator.WorldSize)?.Ranks ?? 0;
            }

            options.Units = options.Units ?? new Units();
            options.Units.MinimumBytes = Math.Max(options.Units.MinimumBytes, 1);
            var model = new Model(communicator, options);
            model.AddParameter(
                new ParameterOptions("weight", ElementType.F32, 4, 3) { Unit = "layer" });
            model.AddParameter(
                new ParameterOptions("bias", ElementType.F32, 3) { Unit = "layer" });
            Add(model, "head", ElementType.F32, 5);
            model.Seal();
            return model;
        }

        /// <summary>Pairs where ranks can be paired, else all of them.</summary>
        public static Shards ShardsOf(Strategy strategy, int world)
        {
            return strategy != Strategy.HybridShard ? null : (Shards)(world % 2 == 0 ? 2 : world);
        }

        public static float[] Values(int rank)
        {
            return Enumerable.Range(0, Elements).Select(i => (float)(0.25 * (i + 1 + rank)))
                .ToArray();
        }

        private static ulong Add(Model model, string name, ElementType type, params long[] shape)
        {
            return model.AddParameter(new ParameterOptions(name, type, shape));
        }

        private static float[] Train(
            Communicator communicator, Strategy strategy, Action<Model, float[]> pass)
        {
            using (Model model = Sealed(communicator, strategy))
            using (var optimizer = new Optimizer(model, Sgd()))
            {
                model.SetParameters<float>(Values(0));
                for (int step = 0; step < 3; ++step)
                {
                    pass(model, Values(communicator.Rank + step));
                    optimizer.Step();
                }

                Check.Equal(3ul, optimizer.StepCount);
                var result = new float[Elements];
                model.GetParameters<float>(result);
                return result;
            }
        }

        private static void FlatPass(Model model, float[] gradients)
        {
            model.AccumulateFlat<float>(gradients);
        }

        private static void HooksPass(Model model, float[] gradients)
        {
            for (ulong unit = 0; unit < 2; ++unit)
            {
                model.GatherUnit(unit);
                model.ReleaseUnit(unit);
            }

            model.BeginBackward();
            model.GatherUnit(1);
            model.GradientReady<float>(2, gradients.AsSpan(15, 5));
            model.ReleaseUnit(1);
            model.GatherUnit(0);
            model.GradientReady<float>(1, gradients.AsSpan(12, 3));
            model.GradientReady<float>(0, gradients.AsSpan(0, 12));
            model.ReleaseUnit(0);
            model.EndBackward();
        }

        private static float[] PlainSgd(int world)
        {
            double[] parameters = Values(0).Select(v => (double)v).ToArray();
            for (int step = 0; step < 3; ++step)
            {
                for (int i = 0; i < Elements; ++i)
                {
                    double mean = Enumerable.Range(0, world).Average(r => Values(r + step)[i]);
                    parameters[i] -= Rate * mean;
                }
            }

            return parameters.Select(v => (float)v).ToArray();
        }
    }
}
