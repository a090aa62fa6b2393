using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Schedules of the caller's, their places, times and faults.</summary>
    internal static class PipelineDetailsTests
    {
        [Test]
        public static void Own_lists_are_kept()
        {
            PipelineAction[][] lists = { List("F 0", "B 0"), List("F 1", "B 1") };
            using (PipelineSchedule schedule =
                PipelineSchedule.FromActions(lists, 1, new[] { 0, 1 }))
            {
                GC.Collect();
                schedule.Check();
                Check.Same(new[] { 0, 1 }, schedule.Placement(), "placement");
                Check.Same(lists[1], schedule.Actions(1), "actions");
                Check.Equal(4L, schedule.ActionCount, "actions");
                Check.That(schedule.Order == null, "no order");
                Check.Equal(false, schedule.HasMessages, "messages");
                Check.Equal(0ul, schedule.Evaluations, "evaluations");
                Check.Equal("0F0,0B0\n1F0,1B0\n", schedule.Write(PipelineFormat.Csv), "text");
                Check.Equal(PipelineRule.None, schedule.Inspect().Rule, "rule");
                Check.That(schedule.Inspect().Message == null, "no message");
            }
        }

        [Test]
        public static void A_broken_rule_is_told_with_its_place()
        {
            PipelineAction[][] lists = { List("B 0", "F 0"), List("F 1", "B 1") };
            using (PipelineSchedule schedule =
                PipelineSchedule.FromActions(lists, 1, new[] { 0, 1 }))
            {
                PipelineCheck found = schedule.Inspect();
                Check.Equal(PipelineRule.Order, found.Rule, "rule");
                Check.Equal(0, found.Rank, "rank");
                Check.Equal(0L, found.Index, "index");
                Check.Equal(PipelineKind.B, found.Action.Kind, "kind");
                Check.Equal(0, found.Action.Stage, "stage");
                Check.Contains("rank 0, action 0 (0B0): comes before 0F0", found.Message);
                string thrown =
                    Check.Throws<InvalidStateException>(() => schedule.Check()).Message;
                Check.Equal(found.Message, thrown, "message");
                Check.Throws<InvalidStateException>(() => schedule.Times(0, Costs(2)));
                Check.Throws<InvalidStateException>(() => schedule.CriticalPath(Costs(2)));
                Check.Throws<InvalidArgumentException>(() => schedule.Inspect(Costs(3)));
            }

            using (PipelineSchedule schedule = Make(PipelineOrder.OneForwardOneBackward, 4, 8))
            {
                PipelineCheck found = schedule.Inspect(Costs(4), new ulong[] { 40, 30, 19, 10 });
                Check.Equal(PipelineRule.Memory, found.Rule, "rule");
                Check.Equal(2, found.Rank, "rank");
                found = schedule.Inspect(Costs(4), new ulong[] { 40, 30, 20, 10 });
                Check.Equal(PipelineRule.None, found.Rule, "rule");
                Check.Equal(40ul, found.PeakBytes, "peak");
            }
        }

        [Test]
        public static void Bad_lists_are_refused()
        {
            PipelineAction[][] lists = { List("F 0", "B 0") };
            Check.Throws<ArgumentNullException>(
                () => PipelineSchedule.FromActions(null, 1, new[] { 0 }));
            Check.Throws<ArgumentNullException>(
                () => PipelineSchedule.FromActions(new PipelineAction[1][], 1, new[] { 0 }));
            Check.Throws<ArgumentNullException>(
                () => PipelineSchedule.FromActions(lists, 1, null));
            Check.Throws<ArgumentOutOfRangeException>(
                () => PipelineSchedule.FromActions(lists, 1, new[] { -1 }));
            Check.Throws<ArgumentOutOfRangeException>(
                () => PipelineSchedule.FromActions(
                    new[] { new[] { new PipelineAction { Stage = -1 } } }, 1, new[] { 0 }));
            Check.Throws<InvalidArgumentException>(
                () => PipelineSchedule.FromActions(lists, 1, new[] { 1 }));
            Check.Throws<InvalidArgumentException>(
                () => PipelineSchedule.FromActions(lists, 0, new[] { 0 }));
            Check.Throws<InvalidArgumentException>(
                () => PipelineSchedule.FromActions(new PipelineAction[0][], 1, new int[0]));
            using (PipelineSchedule empty =
                PipelineSchedule.FromActions(new[] { new PipelineAction[0] }, 1, new[] { 0 }))
            {
                Check.Equal(0, empty.Actions(0).Length, "actions");
                Check.Equal(PipelineRule.Complete, empty.Inspect().Rule, "rule");
            }
        }

        [Test]
        public static void Times_add_up_to_the_report()
        {
            using (PipelineSchedule schedule = Make(PipelineOrder.OneForwardOneBackward, 4, 8))
            {
                // F takes 1 second and B takes 2, on each of 4 ranks for each of 8 micro-batches.
                StepReport report = schedule.Simulate(Costs(4));
                Check.Equal(96.0, report.Work, "work");
                Check.Equal((4 * 33.0) - 96, report.Idle, "idle");
                Check.Equal(4, report.Ranks.Length, "ranks");
                for (int rank = 0; rank < 4; ++rank)
                {
                    ActionTimes[] times = schedule.Times(rank, Costs(4));
                    PipelineAction[] actions = schedule.Actions(rank);
                    Check.Equal(actions.Length, times.Length, "times");
                    for (int i = 0; i < times.Length; ++i)
                    {
                        double seconds = actions[i].Kind == PipelineKind.F ? 1 : 2;
                        Check.Equal(seconds, times[i].End - times[i].Start, "seconds");
                    }

                    RankTimes own = report.Ranks[rank];
                    Check.Equal((double)rank, own.FirstStart, "a forward of each rank before");
                    Check.Equal(times[0].Start, own.FirstStart, "first start");
                    Check.Equal(times[times.Length - 1].End, own.LastEnd, "last end");
                    Check.Equal(24.0, own.Work, "work");
                    Check.Equal((ulong)(40 - (10 * rank)), own.PeakBytes, "peak");
                }

                Check.Throws<InvalidArgumentException>(() => schedule.Times(4, Costs(4)));
                Check.Throws<InvalidArgumentException>(() => schedule.Times(0, Costs(3)));
                Check.Throws<ArgumentNullException>(() => schedule.Times(0, null));
                Check.Throws<ArgumentOutOfRangeException>(() => schedule.Times(-1, Costs(4)));
                Check.Throws<ArgumentNullException>(() => schedule.CriticalPath(null));
                Check.Throws<InvalidArgumentException>(() => schedule.CriticalPath(Costs(5)));
            }
        }

        [Test]
        public static void The_critical_path_is_as_long_as_the_step()
        {
            foreach (PipelineOrder order in new[]
            {
                PipelineOrder.GPipe, PipelineOrder.OneForwardOneBackward, PipelineOrder.ZbH1,
            })
            {
                PipelineCosts costs = Costs(3);
                costs.Latency = 2;
                using (PipelineSchedule schedule = Make(order, 3, 5))
                {
                    double seconds = 0;
                    int waits = 0;
                    CriticalStep before = default(CriticalStep);
                    CriticalStep[] path = schedule.CriticalPath(costs);
                    for (int i = 0; i < path.Length; ++i)
                    {
                        CriticalStep step = path[i];
                        Check.Equal(i > 0 && step.Rank != before.Rank, step.Waited, "waited");
                        waits += step.Waited ? 1 : 0;
                        PipelineKind kind = schedule.Actions(step.Rank)[step.Index].Kind;
                        seconds += kind == PipelineKind.B ? 2 : 1;
                        before = step;
                    }

                    Check.That(waits > 0, "a message decides");
                    Check.Equal(
                        schedule.Simulate(costs).Makespan, seconds + (2 * waits), "makespan");
                }
            }
        }

        [Test]
        public static void Best_lies_where_it_is_told()
        {
            var options = new PipelineOptions
            {
                Order = PipelineOrder.Best, Ranks = 2, MicroBatches = 4, Costs = Costs(5),
                RankOf = new[] { 0, 1, 1, 0, 1 }, Messages = true, Evaluations = 50,
            };
            using (PipelineSchedule best = PipelineSchedule.Create(options))
            {
                Check.Same(options.RankOf, best.Placement(), "placement");
                Check.Equal(true, best.HasMessages, "messages");
                Check.That(best.Evaluations > 0, "evaluations");
            }

            options.Placement = PipelinePlacement.Wave;
            Check.Throws<ArgumentException>(() => PipelineSchedule.Create(options));
            options.Placement = PipelinePlacement.Automatic;
            options.StagesPerRank = 2;
            Check.Throws<InvalidArgumentException>(() => PipelineSchedule.Create(options));
            options.StagesPerRank = 0;
            options.RankOf = new[] { 0, 0, 0, 0, 0 };
            Check.Throws<InvalidArgumentException>(() => PipelineSchedule.Create(options));
            options.RankOf = new int[0];
            Check.Throws<InvalidArgumentException>(() => PipelineSchedule.Create(options));
        }

        [Test]
        public static void Orders_have_names()
        {
            foreach (PipelineOrder order in Enum.GetValues(typeof(PipelineOrder)))
            {
                string name = PipelineOrders.Name(order);
                Check.Equal(order, PipelineOrders.Parse(name), name);
                if (order != PipelineOrder.Best)
                {
                    int stages = order == PipelineOrder.OneForwardOneBackward ||
                        order == PipelineOrder.ZbH1 || order == PipelineOrder.ZbH2 ? 1 : 2;
                    using (PipelineSchedule made = PipelineSchedule.Create(new PipelineOptions
                    {
                        Order = order, Ranks = 2, MicroBatches = 4, StagesPerRank = stages,
                    }))
                    {
                        Check.Equal(order, made.Order.Value, name);
                    }
                }
            }

            Check.Equal(PipelineOrder.Interleaved, PipelineOrders.Parse("Interleaved1F1B"));
            Check.Equal("unknown", PipelineOrders.Name((PipelineOrder)99));
            Check.Contains(
                "names are gpipe",
                Check.Throws<InvalidArgumentException>(
                    () => PipelineOrders.Parse("fastest")).Message);
            Check.Throws<ArgumentNullException>(() => PipelineOrders.Parse(null));
        }

        [Test]
        public static void Micro_batches_in_flight_take_memory()
        {
            LayerCosts[] layers =
                Enumerable.Repeat(new LayerCosts { Seconds = 1, KeptBytes = 10 }, 4).ToArray();
            var limits = new ulong[] { 20, 30 };
            Check.Same(new long[] { 0, 2, 4 }, Partition.Cut(layers, 2, limits: limits).Cuts);
            Partition held = Partition.Cut(layers, 2, limits: limits, inFlight: new[] { 2, 1 });
            Check.Same(new long[] { 0, 1, 4 }, held.Cuts, "a layer has 20 bytes on rank 0");
            Check.Equal(3.0, held.Seconds, "seconds");
            Check.Throws<InvalidArgumentException>(
                () => Partition.Cut(layers, 2, limits: limits, inFlight: new[] { 2, 2 }));
            Check.Throws<InvalidArgumentException>(
                () => Partition.Cut(layers, 2, inFlight: new[] { 65, 1 }));
            Check.Throws<ArgumentException>(
                () => Partition.Cut(layers, 2, inFlight: new[] { 1 }));
            Check.Throws<ArgumentOutOfRangeException>(
                () => Partition.Cut(layers, 2, inFlight: new[] { 1, -1 }));
        }

        // Such as "F 1": of stage 1 and micro-batch 0.
        private static PipelineAction[] List(params string[] actions)
        {
            return actions.Select(action => new PipelineAction
            {
                Kind = (PipelineKind)Enum.Parse(typeof(PipelineKind), action.Split(' ')[0]),
                Stage = int.Parse(action.Split(' ')[1]),
            }).ToArray();
        }

        private static PipelineSchedule Make(PipelineOrder order, int ranks, int microBatches)
        {
            return PipelineSchedule.Create(
                new PipelineOptions { Order = order, Ranks = ranks, MicroBatches = microBatches });
        }

        private static PipelineCosts Costs(int stages)
        {
            var one = new StageCosts
            {
                Forward = 1, Input = 1, Weight = 1, KeptBytes = 10, HeldBytes = 10,
            };
            return new PipelineCosts { Stages = Enumerable.Repeat(one, stages).ToArray() };
        }
    }
}
