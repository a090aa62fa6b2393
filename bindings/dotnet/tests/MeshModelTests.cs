using System.Collections.Generic;

namespace Trireme.Tests
{
    /// <summary>Models on meshes: the axes tell how a model lies.</summary>
    internal static class MeshModelTests
    {
        private static readonly Dictionary<string, Placement> OnTensor =
            new Dictionary<string, Placement> { { "tensor", Placement.Whole } };

        [Test]
        public static void A_mesh_trains_as_one_process()
        {
            Ranks.RunAndLeaveTogether(4, c =>
            {
                using (Mesh mesh = Mesh.Create(
                    c, new[] { new MeshAxis("data", 2), new MeshAxis("tensor", 2) }))
                using (var model = new Model(mesh, new ModelOptions { Strategy = Strategy.Zero1 }))
                {
                    int[] at = mesh.Coordinates(c.Rank);
                    model.AddParameter(new ParameterOptions("part", ElementType.F32, 1));
                    model.AddParameter(
                        new ParameterOptions("common", ElementType.F32, 1) { Placements = OnTensor });
                    model.Seal();
                    var options = new OptimizerOptions
                    {
                        Rule = RuleKind.Sgd, LearningRate = 1, Clipping = 1.5,
                    };
                    using (var optimizer = new Optimizer(model, options))
                    {
                        // Averages over "data" are 1 and 2 of "part", and 2 of "common".
                        float part = 1f + at[1] + (at[0] == 0 ? -0.5f : 0.5f);
                        model.AccumulateFlat<float>(new[] { part, at[0] == 0 ? 1f : 3f });
                        optimizer.Step();
                        Check.Equal(3.0, optimizer.GradientNorm); // 1 + 4 + 4
                        var result = new float[2];
                        model.GetParameters<float>(result);
                        Check.Same(new[] { (at[1] + 1f) / -2, -1f }, result, "parameters");
                        model.CheckReplicas();
                    }
                }
            });
        }

        [Test]
        public static void Summands_are_added_up_along_an_axis()
        {
            Ranks.RunAndLeaveTogether(4, c =>
            {
                using (Mesh mesh = Mesh.Create(
                    c, new[] { new MeshAxis("data", 2), new MeshAxis("tensor", 2) }))
                using (var model = new Model(mesh, new ModelOptions { Strategy = Strategy.Zero2 }))
                {
                    model.AddParameter(
                        new ParameterOptions("norm", ElementType.F32, 2)
                        {
                            Placements = new Dictionary<string, Placement>
                            {
                                { "tensor", Placement.Shared },
                            },
                        });
                    model.Seal();
                    var options = new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = 1 };
                    using (var optimizer = new Optimizer(model, options))
                    {
                        model.AccumulateFlat<float>(new[] { c.Rank + 1f, c.Rank * 10f });
                        optimizer.Step();
                        var result = new float[2];
                        model.GetParameters<float>(result);
                        Check.Same(new[] { -5f, -30f }, result, "parameters"); // halves of 10, 60
                    }
                }
            });
        }

        private static void SealParts(Communicator c, params SplitPart[] parts)
        {
            using (Mesh mesh = Mesh.Create(
                c, new[] { new MeshAxis("data", 1), new MeshAxis("tensor", 2) }))
            using (var model = new Model(mesh, new ModelOptions { Strategy = Strategy.Zero2 }))
            {
                model.AddParameter(
                    new ParameterOptions("qkv", ElementType.F32, 4, 6)
                    {
                        Splits = new Dictionary<string, SplitPart>
                        {
                            { "tensor", parts[mesh.Coordinates(c.Rank)[1]] },
                        },
                    });
                model.Seal();
                // The parts are one matrix, and each rank keeps its own.
                using (var optimizer = new Optimizer(
                    model, new OptimizerOptions { Rule = RuleKind.Muon, LearningRate = 1 }))
                {
                    var values = new float[24];
                    for (int i = 0; i < values.Length; i++)
                    {
                        values[i] = i / 6 == i % 6 ? 1 : 0;
                    }
                    model.AccumulateFlat<float>(values);
                    optimizer.Step();
                    model.GetParameters<float>(values);
                    for (int i = 0; i < values.Length; i++)
                    {
                        Check.That((values[i] < -0.1f) == (i / 6 == i % 6), "element " + i);
                    }
                }
            }
        }

        [Test]
        public static void Parts_make_the_whole()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                SealParts(
                    c,
                    new SplitPart(1, 12, new Stretch(0, 2), new Stretch(4, 2), new Stretch(8, 2)),
                    new SplitPart(1, 12, new Stretch(2, 2), new Stretch(6, 2), new Stretch(10, 2)));
                var first = new SplitPart(1, 12, new Stretch(0, 6));
                var overlapping = new SplitPart(1, 12, new Stretch(5, 6));
                Check.Throws<InvalidArgumentException>(() => SealParts(c, first, overlapping));
                var few = new SplitPart(1, 12, new Stretch(0, 5));
                Check.Throws<InvalidArgumentException>(() => SealParts(c, few, few));
            });
        }

        [Test]
        public static void What_contradicts_the_axes_is_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Mesh mesh = Mesh.Create(
                c, new[] { new MeshAxis("data", 1), new MeshAxis("tensor", 1) }))
            {
                var hybrid = new ModelOptions { Strategy = Strategy.HybridShard };
                Check.Throws<InvalidArgumentException>(() => new Model(mesh, hybrid));
                var zero1 = new ModelOptions { Strategy = Strategy.Zero1 };
                var placed =
                    new ParameterOptions("x", ElementType.F32, 1) { Placements = OnTensor };
                using (var model = new Model(mesh, zero1))
                {
                    model.AddParameter(placed);
                    var other = new ParameterOptions("y", ElementType.F32, 1)
                    {
                        Placements =
                            new Dictionary<string, Placement> { { "data", Placement.Whole } },
                    };
                    Check.Throws<InvalidArgumentException>(() => model.AddParameter(other));
                    model.Seal();
                    var options = new OptimizerOptions
                    {
                        Rule = RuleKind.Sgd, Clipping = 1, NormRanks = c,
                    };
                    Check.Throws<InvalidArgumentException>(() => new Optimizer(model, options));
                }

                using (var model = new Model(c, zero1))
                {
                    Check.Throws<InvalidArgumentException>(() => model.AddParameter(placed));
                }
            }
        }
    }
}
