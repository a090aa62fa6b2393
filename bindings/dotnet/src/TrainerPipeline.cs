using System;
using System.Linq;

namespace Trireme
{
    /// <summary>
    /// The pipeline of a trainer, whose layers are those of this rank's stages alone.
    /// </summary>
    public sealed class TrainerPipeline
    {
        private readonly Communicator communicator;
        private readonly PipelineSchedule schedule;
        private readonly long[] cuts;

        /// <summary>The ranks of a pipeline, their actions and their layers.</summary>
        /// <param name="communicator">As many ranks as the schedule has.</param>
        /// <param name="schedule">The actions of all ranks. A trainer keeps a copy.</param>
        /// <param name="cuts">
        /// Stage s has the layers from cuts[s] up to, but without, cuts[s + 1], by their numbers in
        /// the whole model, as in a Partition.
        /// </param>
        public TrainerPipeline(Communicator communicator, PipelineSchedule schedule, long[] cuts)
        {
            this.communicator =
                communicator ?? throw new ArgumentNullException(nameof(communicator));
            this.schedule = schedule ?? throw new ArgumentNullException(nameof(schedule));
            this.cuts = (long[])(cuts ?? throw new ArgumentNullException(nameof(cuts))).Clone();
        }

        /// <summary>A schedule with W needs layers with Layer.BackwardWeight.</summary>
        public bool RequireSplit { get; set; }

        /// <summary>Layers of the whole model.</summary>
        internal int Layers =>
            (int)Math.Min(int.MaxValue, Math.Max(1, cuts.LastOrDefault()));

        internal unsafe NativeTrainerPipelineOptions Native(CallMemory memory)
        {
            return new NativeTrainerPipelineOptions
            {
                StructSize = (uint)sizeof(NativeTrainerPipelineOptions),
                Flags = RequireSplit
                    ? (uint)NativeMethods.TRIREME_TRAINER_PIPELINE_FLAG_REQUIRE_SPLIT
                    : 0,
                Communicator = memory.Hold(communicator.Handle),
                Schedule = memory.Hold(schedule.Handle),
                Cuts = memory.Put(cuts.Select(cut => checked((ulong)cut)).ToArray()),
                CutCount = (ulong)cuts.Length,
            };
        }
    }
}
