using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>A schedule of the caller's trains a model along two axes.</summary>
    internal static class PipelineOnAxesTests
    {
        private const int Width = PipelineTrainerTests.Width;
        private const int Steps = PipelineTrainerTests.Steps;

        [Test]
        public static void Own_schedules_train_as_plain_loops_do()
        {
            double[] losses;
            double[] expected = PipelineTrainerTests.Alone(out losses);
            for (int data = 1; data <= 2; ++data)
            {
                string text = OwnSchedule(PipelineTrainerTests.Leaves / data);
                Ranks.RunAndLeaveTogether(2 * data, communicator =>
                {
                    using (ParallelContext context = Arrange(communicator, text))
                    using (Model model = ModelOf(context))
                    using (var optimizer = new Optimizer(model, PipelineTrainerTests.Sgd()))
                    using (Trainer trainer = TrainerOf(context, optimizer, null))
                    {
                        byte[] saved = null;
                        for (int step = 0; step < Steps; ++step)
                        {
                            GC.Collect(); // the trainer holds what it needs of the context
                            Check.Equal(losses[step], trainer.Step().Loss, "loss");
                            saved = saved ?? optimizer.Save();
                        }

                        CheckParameters(context, model, expected);
                        optimizer.Load(saved);
                        for (int step = 1; step < Steps; ++step)
                        {
                            Check.Equal(losses[step], trainer.Step().Loss, "loss again");
                        }

                        CheckParameters(context, model, expected);
                    }
                });
            }
        }

        [Test]
        public static void An_exception_fails_the_step_of_all_ranks()
        {
            double[] losses;
            PipelineTrainerTests.Alone(out losses);
            string text = OwnSchedule(PipelineTrainerTests.Leaves / 2);
            Ranks.RunAndLeaveTogether(4, communicator =>
            {
                bool bad = true;
                using (ParallelContext context = Arrange(communicator, text))
                using (Model model = ModelOf(context))
                using (var optimizer = new Optimizer(model, PipelineTrainerTests.Sgd()))
                using (Trainer trainer = TrainerOf(context, optimizer, call =>
                {
                    if (bad && context.Reader == 1)
                    {
                        throw new TimeZoneNotFoundException("of the second reader");
                    }
                }))
                {
                    if (context.HasFirstStage && context.Reader == 1)
                    {
                        Check.Throws<TimeZoneNotFoundException>(() => trainer.Step());
                    }
                    else
                    {
                        Check.Throws<CallbackException>(() => trainer.Step());
                    }

                    bad = false;
                    Check.Equal(losses[0], trainer.Step().Loss, "nothing has changed");
                }
            });
        }

        [Test]
        public static void A_schedule_that_cannot_run_is_refused_on_all_ranks()
        {
            const string Broken = "0B0,0F0\n1F0,1B0\n";
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                Check.Contains(
                    "comes before 0F0",
                    Check.Throws<InvalidStateException>(
                        () => Arrange(communicator, Broken)).Message);
            });
        }

        // The actions of an order, given as lists of one's own.
        private static string OwnSchedule(int microBatches)
        {
            using (PipelineSchedule made = PipelineSchedule.Create(new PipelineOptions
            {
                Order = PipelineOrder.ZbH1, Ranks = 2, MicroBatches = microBatches,
            }))
            using (PipelineSchedule own = PipelineSchedule.FromActions(
                new[] { made.Actions(0), made.Actions(1) }, microBatches, made.Placement()))
            {
                own.Check();
                return own.Write();
            }
        }

        private static ParallelContext Arrange(Communicator communicator, string text)
        {
            return ParallelContext.Create(communicator, new ParallelContextOptions
            {
                Pipeline = 2, Data = ParallelContextOptions.Rest, ScheduleText = text,
                Timeout = Ranks.Patience,
            });
        }

        private static Model ModelOf(ParallelContext context)
        {
            var model = new Model(context, new ModelOptions
            {
                Strategy = Strategy.Zero1, Leaves = PipelineTrainerTests.Leaves,
            });
            int stage = context.OwnStages().Single();
            model.AddParameter(new ParameterOptions("w" + stage, ElementType.F64, Width));
            model.Seal();
            model.SetParameters<double>(
                PipelineTrainerTests.Weights().Skip(stage * Width).Take(Width).ToArray());
            return model;
        }

        private static Trainer TrainerOf(
            ParallelContext context, Optimizer optimizer, PipelineTrainerTests.Trouble trouble)
        {
            LayerCosts[] layers = Enumerable.Repeat(new LayerCosts { Seconds = 1 }, 2).ToArray();
            Layer[] own = PipelineTrainerTests.Own(trouble, context.OwnStages().Single(), 1);
            using (PipelineSchedule schedule = context.Schedule())
            {
                return new Trainer(optimizer, own, new TrainerOptions
                {
                    Pipeline = new TrainerPipeline(
                        context.Communicator(ParallelAxes.Pipeline), schedule,
                        context.Partition(layers).Cuts),
                });
            }
        }

        private static void CheckParameters(ParallelContext context, Model model, double[] expected)
        {
            var own = new double[Width];
            model.GetParameters<double>(own);
            int first = context.OwnStages().Single() * Width;
            Check.Same(expected.Skip(first).Take(Width).ToArray(), own, "parameters");
        }
    }
}
