using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Ranks along six axes, and what lies on them.</summary>
    internal static class ParallelContextTests
    {
        private const int Rest = ParallelContextOptions.Rest;

        [Test]
        public static void Every_rank_has_its_place()
        {
            Ranks.RunAndLeaveTogether(8, communicator =>
            {
                var options = new ParallelContextOptions
                {
                    Data = Rest, Tensor = 2, Pipeline = 2, MicroBatches = 4,
                    Timeout = Ranks.Patience,
                };
                using (ParallelContext context = ParallelContext.Create(communicator, options))
                {
                    int own = communicator.Rank;
                    Check.Equal(own, context.Rank, "rank");
                    Check.Equal(8, context.WorldSize, "ranks");
                    Check.Equal(2, context.Size(ParallelAxes.Data), "data");
                    Check.Equal(2, context.Readers, "readers");
                    Check.Equal(own >> 1 & 1, context.Reader, "reader");
                    for (int rank = 0; rank < 8; ++rank)
                    {
                        int[] place = context.Coordinates(rank);
                        Check.Same(
                            new[] { rank >> 1 & 1, 0, rank & 1, rank >> 2, 0, 0 }, place, "place");
                        Check.Equal(rank, context.RankAt(place), "rank");
                    }

                    CheckMembers(new[] { own & ~1, own | 1 },
                        context.Communicator(ParallelAxes.Tensor), own);
                    CheckMembers(new[] { own & ~2, own | 2 },
                        context.Communicator(ParallelAxes.Data), own);
                    CheckMembers(new[] { own & ~2, own | 2 },
                        context.Communicator(ParallelAxes.Gradients), own);
                    CheckMembers(new[] { own }, context.Communicator(ParallelAxes.Expert), own);
                    Communicator all = context.Communicator(ParallelAxes.All);
                    all.Dispose();
                    CheckMembers(
                        Enumerable.Range(0, 8).ToArray(), context.Communicator(ParallelAxes.All),
                        own);
                    const ParallelAxes Both = ParallelAxes.Tensor | ParallelAxes.Data;
                    using (Communicator half = context.MakeCommunicator(Both))
                    {
                        CheckMembers(Enumerable.Range(own & 4, 4).ToArray(), half, own);
                    }
                }
            });
        }

        [Test]
        public static void Schedules_and_stages()
        {
            Ranks.RunAndLeaveTogether(4, communicator =>
            {
                var options = new ParallelContextOptions
                {
                    Pipeline = 4, MicroBatches = 8, StagesPerRank = 2, Order = PipelineOrder.ZbV,
                };
                int own = communicator.Rank;
                string text;
                using (ParallelContext context = ParallelContext.Create(communicator, options))
                using (PipelineSchedule schedule = context.Schedule())
                {
                    Check.Equal(25.5, context.Makespan, "makespan");
                    Check.Equal(24.0, context.Span, "span");
                    Check.Equal(8L, context.KeptMicroBatches, "kept");
                    Check.Equal(8, context.Stages, "stages");
                    Check.Same(new[] { own, 7 - own }, context.OwnStages(), "own stages");
                    Check.Same(new[] { 1, 6 }, context.StagesOf(1), "stages of 1");
                    Check.Equal(1, context.StageRank(6), "rank of stage 6");
                    Check.Equal(own == 0, context.HasFirstStage, "first stage");
                    Check.Equal(own == 0, context.HasLastStage, "last stage");
                    Check.That(context.Order == PipelineOrder.ZbV, "order");
                    text = schedule.Write(PipelineFormat.Text);
                }

                using (ParallelContext again = ParallelContext.Create(
                    communicator,
                    new ParallelContextOptions { Pipeline = Rest, ScheduleText = text }))
                {
                    Check.Equal(8, again.MicroBatches, "micro-batches");
                    Check.Equal(25.5, again.Makespan, "makespan");
                    Check.That(again.Order == null, "order");
                }
            });
        }

        [Test]
        public static void The_best_schedule_is_within_the_limit()
        {
            Ranks.RunAndLeaveTogether(3, communicator =>
            {
                var options = new ParallelContextOptions
                {
                    Pipeline = 3, MicroBatches = 6, Order = PipelineOrder.Best,
                };
                Check.Throws<InvalidArgumentException>(
                    () => ParallelContext.Create(communicator, options));
                options.Costs = new PipelineCosts
                {
                    Stages = Enumerable.Range(0, 3).Select(stage => new StageCosts
                    {
                        Forward = 1 + stage / 4.0, Input = 1, Weight = 1, KeptBytes = 10,
                        HeldBytes = 10,
                    }).ToArray(),
                };
                options.ActivationLimitBytes = 30;
                double best;
                using (ParallelContext context = ParallelContext.Create(communicator, options))
                {
                    best = context.Makespan;
                    Check.That(context.KeptMicroBatches <= 3, "kept");
                }

                options.Order = PipelineOrder.OneForwardOneBackward;
                using (ParallelContext context = ParallelContext.Create(communicator, options))
                {
                    Check.That(best < context.Makespan, "makespan");
                }
            });
        }

        [Test]
        public static void Cuts_and_rows()
        {
            Ranks.RunAndLeaveTogether(4, communicator =>
            {
                var options = new ParallelContextOptions
                {
                    Pipeline = 2, Data = 2, MicroBatches = 3,
                };
                using (ParallelContext context = ParallelContext.Create(communicator, options))
                {
                    // Each rank along Pipeline has measured two layers: 5, 1, 2, 2.
                    int stage = context.OwnStages()[0];
                    double[] seconds = { 5, 1, 2, 2 };
                    Partition cut = context.Partition(seconds.Select((time, layer) =>
                        new LayerCosts { Seconds = layer / 2 == stage ? time : 0 }).ToArray());
                    Check.Same(new long[] { 0, 1, 4 }, cut.Cuts, "cuts");
                    Check.Equal(5.0, cut.Seconds, "seconds");
                    for (int k = 0; k < 3; ++k)
                    {
                        int part = 2 * k + context.Reader;
                        long first = part * 13 / 6, end = (part + 1) * 13 / 6;
                        Check.Equal(new Share(first, end - first), context.Rows(13, k), "rows");
                    }
                }
            });
        }

        [Test]
        public static void The_tensor_object_has_the_options()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                var options = new ParallelContextOptions
                {
                    Tensor = 2,
                    TensorOptions = new ParallelTensorOptions
                    {
                        Blocks = 6, Gemm = GemmKind.Builtin, Sequence = true, RowTile = 3,
                    },
                };
                using (ParallelContext context = ParallelContext.Create(communicator, options))
                using (Tensor tensor = context.Tensor())
                {
                    Check.That(context.HasTensor && tensor.IsSequence, "tensor");
                    Check.Equal(6, tensor.Blocks, "blocks");
                    using (var layer = new ColumnParallelLinear(tensor, "fc", 4, 6, 7))
                    {
                        Check.Equal(3L, layer.Info.TileRows, "rows of a tile");
                    }

                    Check.Equal(
                        new Share(6 * communicator.Rank, 6), tensor.Range(12), "own range");
                }
            });
        }

        [Test]
        public static void Models_lie_on_the_axes()
        {
            Ranks.RunAndLeaveTogether(4, communicator =>
            {
                int own = communicator.Rank;
                var options = new ParallelContextOptions { Data = 2, Expert = 2 };
                using (ParallelContext context = ParallelContext.Create(communicator, options))
                {
                    Check.Equal(4, context.GradientRanks, "gradient ranks");
                    Check.Equal(2, context.ExpertGradientRanks, "expert gradient ranks");
                    Check.Throws<InvalidArgumentException>(() => new Model(
                        context, new ModelOptions { Strategy = Strategy.Zero1 },
                        ParallelContents.Experts));
                    Check.Equal(-10f, Train(context, ParallelContents.Common), "common");
                    Check.Equal(
                        -4f * (own % 2 + 1 + own % 2 + 3),
                        Train(context, ParallelContents.Experts), "experts");
                }
            });
        }

        [Test]
        public static void Options_that_differ_are_a_mismatch_on_all_ranks()
        {
            Ranks.RunAndLeaveTogether(3, communicator =>
            {
                var options = new ParallelContextOptions();
                if (communicator.Rank == 0)
                {
                    options.Data = 3;
                }
                else
                {
                    options.Context = 3;
                }

                var failure = Check.Throws<MismatchException>(
                    () => ParallelContext.Create(communicator, options));
                Check.That(failure.Message.Contains("options.data is 3 on rank 0 and 1 on rank 1"),
                    failure.Message);
            });
        }

        [Test]
        public static void Wrong_arguments_are_refused()
        {
            using (Communicator alone = Trireme.Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                var good = new ParallelContextOptions();
                Check.Throws<ArgumentNullException>(() => ParallelContext.Create(null, good));
                Check.Throws<ArgumentNullException>(() => ParallelContext.Create(alone, null));
                foreach (ParallelContextOptions wrong in new[]
                {
                    new ParallelContextOptions { Data = 2 },
                    new ParallelContextOptions { Data = -2 },
                    new ParallelContextOptions { Data = Rest, Expert = Rest },
                    new ParallelContextOptions { Order = PipelineOrder.GPipe },
                    new ParallelContextOptions { ScheduleText = "0F0" },
                })
                {
                    Check.Throws<InvalidArgumentException>(
                        () => ParallelContext.Create(alone, wrong));
                }

                ParallelContext context = ParallelContext.Create(alone, good);
                Check.Throws<InvalidArgumentException>(() => context.Coordinates(1));
                Check.Throws<InvalidArgumentException>(() => context.RankAt(0));
                Check.Throws<ArgumentNullException>(() => context.RankAt(null));
                Check.Throws<InvalidArgumentException>(
                    () => context.Communicator(ParallelAxes.None));
                Check.Throws<InvalidArgumentException>(() => context.StagesOf(1));
                Check.Throws<InvalidArgumentException>(() => context.StageRank(1));
                Check.Throws<InvalidArgumentException>(() => context.Rows(4, 1));
                Check.Throws<ArgumentOutOfRangeException>(() => context.Rows(-1));
                Check.Throws<ArgumentNullException>(() => context.Partition(null));
                Check.Throws<InvalidArgumentException>(
                    () => context.Partition(new LayerCosts[0]));
                Check.Throws<InvalidStateException>(() => context.Tensor());
                Check.Throws<InvalidStateException>(() => context.Schedule());
                Communicator data = context.Communicator(ParallelAxes.Data);
                context.Dispose();
                Check.Throws<InvalidHandleException>(() => data.Barrier());
                Check.Throws<ObjectDisposedException>(() => context.Coordinates(0));
            }
        }

        private static float Train(ParallelContext context, ParallelContents contents)
        {
            bool experts = contents == ParallelContents.Experts;
            var options = new ModelOptions
            {
                Strategy = Strategy.Zero1,
                Gradients = experts ? Gradients.Sum : Gradients.Average,
            };
            using (var model = new Model(context, options, contents))
            {
                model.AddParameter(new ParameterOptions("w", ElementType.F32, 1));
                model.Seal();
                var rule = new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = 1 };
                using (var optimizer = new Optimizer(model, rule))
                {
                    model.AccumulateFlat<float>(new[] { 4f * (context.Rank + 1) });
                    optimizer.Step();
                    var result = new float[1];
                    model.GetParameters<float>(result);
                    return result[0];
                }
            }
        }

        private static void CheckMembers(int[] expected, Communicator group, int own)
        {
            Check.Equal(expected.Length, group.WorldSize, "ranks");
            var seen = new int[expected.Length];
            group.AllGather<int>(new[] { own }, seen);
            Check.Same(expected, seen, "members");
        }
    }
}
