using System;

namespace Trireme.Tests
{
    /// <summary>Schedules of pipelines, and layers cut to stages.</summary>
    internal static class PipelineTests
    {
        [Test]
        public static void Lists_and_reports()
        {
            using (PipelineSchedule schedule = Make(PipelineOrder.OneForwardOneBackward, 4, 8))
            {
                StepReport report = schedule.Simulate(Costs(4));
                Check.Equal(33.0, report.Makespan);
                Check.Equal(27.0, report.LowerBound);
                Check.Equal(40UL, report.PeakBytes);
                PipelineAction[] last = schedule.Actions(3);
                Check.Equal(16, last.Length);
                Check.Equal(PipelineKind.B, last[1].Kind);
                Check.Equal(3, last[1].Stage);
                schedule.Check();
                schedule.Check(Costs(4), new ulong[] { 40, 30, 20, 10 });
                var error = Check.Throws<InvalidStateException>(
                    () => schedule.Check(Costs(4), new ulong[] { 40, 30, 19, 10 }));
                Check.Contains("rank 2", error.Message);
            }
        }

        [Test]
        public static void Texts_read_back()
        {
            const string Text = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
            using (PipelineSchedule schedule = PipelineSchedule.Parse(Text))
            using (PipelineSchedule again = PipelineSchedule.Parse(schedule.Write()))
            {
                Check.Equal(Text, schedule.Write(PipelineFormat.Csv));
                Check.Equal(Text, again.Write(PipelineFormat.Csv));
                Check.Contains("1B1", schedule.Write(PipelineFormat.Drawing));
                Check.Contains("<svg", schedule.Write(PipelineFormat.Svg, Costs(2)));
                Check.Contains("traceEvents", schedule.Write(PipelineFormat.Trace));
            }

            Check.Throws<InvalidArgumentException>(() => PipelineSchedule.Parse("0F"));
        }

        [Test]
        public static void Best_is_within_its_limits()
        {
            var limits = new ulong[] { 60, 60, 60, 60 };
            var options = new PipelineOptions
            {
                Order = PipelineOrder.Best, Ranks = 4, StagesPerRank = 2, MicroBatches = 8,
                Costs = Costs(8), Limits = limits, Messages = true,
            };
            using (PipelineSchedule best = PipelineSchedule.Create(options))
            {
                GC.Collect();
                Check.That(best.Bound <= best.Value && best.Value <= 53, "no worse than V-Half");
                best.Check(Costs(8), limits);
                Check.Equal(8, best.Stages);
            }

            options.Limits = null;
            options.Buffers = 1;
            options.Span = true;
            using (PipelineSchedule best = PipelineSchedule.Create(options))
            {
                best.Check(Costs(8), null, 1);
                Check.That(best.Value >= 48, "the work of a rank");
            }

            options.Costs = null;
            Check.Throws<InvalidArgumentException>(() => PipelineSchedule.Create(options));
        }

        [Test]
        public static void Layers_are_cut()
        {
            var layers = new LayerCosts[5];
            var seconds = new double[] { 1, 1, 1, 3, 2 };
            for (int i = 0; i < 5; ++i)
            {
                layers[i] = new LayerCosts { Seconds = seconds[i], Bytes = 4 };
            }

            Partition plain = Partition.Cut(layers, 2);
            Check.Same(new long[] { 0, 3, 5 }, plain.Cuts);
            Check.Equal(5.0, plain.Seconds);
            Check.Equal(4.0, Partition.Cut(layers, 2, 2, PipelinePlacement.V).Seconds);
            Check.Throws<InvalidArgumentException>(
                () => Partition.Cut(layers, 2, limits: new ulong[] { 7, 7 }));
        }

        private static PipelineSchedule Make(PipelineOrder order, int ranks, int microBatches)
        {
            return PipelineSchedule.Create(
                new PipelineOptions { Order = order, Ranks = ranks, MicroBatches = microBatches });
        }

        private static PipelineCosts Costs(int stages)
        {
            var all = new StageCosts[stages];
            for (int i = 0; i < stages; ++i)
            {
                all[i] = new StageCosts
                {
                    Forward = 1, Input = 1, Weight = 1, KeptBytes = 10, HeldBytes = 10,
                };
            }

            return new PipelineCosts { Stages = all };
        }
    }
}
