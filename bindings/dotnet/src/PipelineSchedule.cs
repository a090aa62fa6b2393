using System;
using System.Runtime.InteropServices;
using System.Text;

namespace Trireme
{
    /// <summary>Seconds and bytes of one stage.</summary>
    public struct StageCosts
    {
        /// <summary>Seconds of F.</summary>
        public double Forward;

        /// <summary>Seconds of I, backward for the input.</summary>
        public double Input;

        /// <summary>Seconds of W, backward for the weights.</summary>
        public double Weight;

        /// <summary>Seconds of B; 0 means those of I and W.</summary>
        public double Backward;

        /// <summary>Seconds of R.</summary>
        public double Recompute;

        /// <summary>Seconds of GATHER.</summary>
        public double Gather;

        /// <summary>Seconds of REDUCE.</summary>
        public double Reduce;

        /// <summary>Bytes of a micro-batch from F until I or B.</summary>
        public ulong KeptBytes;

        /// <summary>Bytes of a micro-batch from I until W.</summary>
        public ulong HeldBytes;

        /// <summary>Bytes of a micro-batch from F until R, where there is an R.</summary>
        public ulong CheckpointBytes;

        /// <summary>Bytes from GATHER until RELEASE.</summary>
        public ulong ParameterBytes;

        /// <summary>Bytes of the output, and of the gradient that comes back.</summary>
        public ulong MessageBytes;
    }

    /// <summary>Costs of all stages and of messages.</summary>
    public sealed class PipelineCosts
    {
        /// <summary>One for each stage.</summary>
        public StageCosts[] Stages { get; set; }

        /// <summary>Seconds of each action beyond its own.</summary>
        public double Overhead { get; set; }

        /// <summary>Seconds of each message.</summary>
        public double Latency { get; set; }

        /// <summary>Of a link from one rank to another; 0 is no limit.</summary>
        public double BytesPerSecond { get; set; }

        internal unsafe NativePipelineStageCosts[] NativeStages()
        {
            if (Stages == null)
            {
                throw new ArgumentException("Stages of the costs are null.");
            }

            // One at least, so that there is an address.
            var all = new NativePipelineStageCosts[Math.Max(Stages.Length, 1)];
            for (int i = 0; i < Stages.Length; ++i)
            {
                all[i] = new NativePipelineStageCosts
                {
                    StructSize = (uint)sizeof(NativePipelineStageCosts),
                    Forward = Stages[i].Forward, Input = Stages[i].Input,
                    Weight = Stages[i].Weight, Backward = Stages[i].Backward,
                    Recompute = Stages[i].Recompute, Gather = Stages[i].Gather,
                    Reduce = Stages[i].Reduce, KeptBytes = Stages[i].KeptBytes,
                    HeldBytes = Stages[i].HeldBytes, CheckpointBytes = Stages[i].CheckpointBytes,
                    ParameterBytes = Stages[i].ParameterBytes,
                    MessageBytes = Stages[i].MessageBytes,
                };
            }

            return all;
        }

        internal unsafe NativePipelineCosts Native(NativePipelineStageCosts* stages)
        {
            return new NativePipelineCosts
            {
                StructSize = (uint)sizeof(NativePipelineCosts), Stages = (IntPtr)stages,
                StageCount = (ulong)Stages.Length, Overhead = Overhead, Latency = Latency,
                BytesPerSecond = BytesPerSecond,
            };
        }
    }

    /// <summary>A schedule to be made.</summary>
    public sealed class PipelineOptions
    {
        /// <summary>The order.</summary>
        public PipelineOrder Order { get; set; }

        /// <summary>Ranks of the pipeline.</summary>
        public int Ranks { get; set; }

        /// <summary>
        /// Stages of each rank; 0 is one, or with RankOf those of the list. ZbV, VHalf, VMin and
        /// DualPipeV need 2, and Interleaved needs 2 or more.
        /// </summary>
        public int StagesPerRank { get; set; }

        /// <summary>Micro-batches of a step.</summary>
        public int MicroBatches { get; set; }

        /// <summary>Where stages lie.</summary>
        public PipelinePlacement Placement { get; set; }

        /// <summary>Best alone: the rank of each stage, in place of Placement.</summary>
        public int[] RankOf { get; set; }

        /// <summary>Whether the lists name SEND and RECV.</summary>
        public bool Messages { get; set; }

        /// <summary>Best alone: costs of the stages.</summary>
        public PipelineCosts Costs { get; set; }

        /// <summary>Best alone: bytes that each rank may hold; null is no limit.</summary>
        public ulong[] Limits { get; set; }

        /// <summary>Best alone: messages that may wait at a stage boundary; 0: any.</summary>
        public int Buffers { get; set; }

        /// <summary>Best alone: whether spans are to be small, and not the makespan.</summary>
        public bool Span { get; set; }

        /// <summary>Best alone: equal options and seeds give equal schedules.</summary>
        public ulong Seed { get; set; }

        /// <summary>Best alone: schedules that the search simulates; 0 is 2,000.</summary>
        public ulong Evaluations { get; set; }
    }

    /// <summary>One action of a rank.</summary>
    public struct PipelineAction
    {
        /// <summary>The kind.</summary>
        public PipelineKind Kind;

        /// <summary>Number of the stage.</summary>
        public int Stage;

        /// <summary>Number of the micro-batch.</summary>
        public int MicroBatch;

        /// <summary>A number that two neighbours share if they may overlap, else 0.</summary>
        public int Pair;

        internal PipelineAction(NativePipelineAction action)
        {
            Kind = (PipelineKind)action.Kind;
            Stage = (int)action.Stage;
            MicroBatch = (int)action.MicroBatch;
            Pair = (int)action.Pair;
        }

        internal NativePipelineAction Native()
        {
            return new NativePipelineAction
            {
                Kind = (int)Kind, Stage = PipelineSchedule.Count(Stage, nameof(Stage)),
                MicroBatch = PipelineSchedule.Count(MicroBatch, nameof(MicroBatch)),
                Pair = PipelineSchedule.Count(Pair, nameof(Pair)),
            };
        }
    }

    /// <summary>
    /// The actions of each rank of a pipeline, in order. It never changes. Every method may be
    /// called from any thread, also concurrently.
    /// </summary>
    public sealed partial class PipelineSchedule : IDisposable
    {
        private readonly PipelineScheduleHandle handle;
        private readonly NativePipelineScheduleInfo info;

        internal unsafe PipelineSchedule(PipelineScheduleHandle handle)
        {
            this.handle = handle;
            info.StructSize = (uint)sizeof(NativePipelineScheduleInfo);
            TriremeException.Check(
                NativeMethods.trireme_pipeline_schedule_get_info(handle, ref info));
        }

        internal PipelineScheduleHandle Handle
        {
            get { return handle; }
        }

        /// <summary>Ranks.</summary>
        public int Ranks
        {
            get { return (int)info.Ranks; }
        }

        /// <summary>Stages of all ranks.</summary>
        public int Stages
        {
            get { return (int)info.Stages; }
        }

        /// <summary>Micro-batches of a step.</summary>
        public int MicroBatches
        {
            get { return (int)info.MicroBatches; }
        }

        /// <summary>Best: the makespan that was reached. Else 0.</summary>
        public double Value
        {
            get { return info.Value; }
        }

        /// <summary>Best: no schedule of this placement comes below it. Else 0.</summary>
        public double Bound
        {
            get { return info.Bound; }
        }

        /// <summary>Makes the schedule of an order, or the best one that a search finds.</summary>
        public static unsafe PipelineSchedule Create(PipelineOptions options)
        {
            if (options == null)
            {
                throw new ArgumentNullException(nameof(options));
            }

            var native = new NativePipelineScheduleOptions
            {
                StructSize = (uint)sizeof(NativePipelineScheduleOptions),
                Order = (int)options.Order,
                Flags = options.Messages ? (uint)NativeMethods.TRIREME_PIPELINE_FLAG_MESSAGES : 0,
                Ranks = Count(options.Ranks, nameof(options.Ranks)),
                StagesPerRank = Count(options.StagesPerRank, nameof(options.StagesPerRank)),
                MicroBatches = Count(options.MicroBatches, nameof(options.MicroBatches)),
                Placement = (int)options.Placement, Seed = options.Seed,
                Objective = options.Span
                    ? NativeMethods.TRIREME_PIPELINE_OBJECTIVE_SPAN
                    : NativeMethods.TRIREME_PIPELINE_OBJECTIVE_MAKESPAN,
                Evaluations = options.Evaluations,
            };
            NativePipelineStageCosts[] stages =
                options.Costs == null ? new NativePipelineStageCosts[1]
                                      : options.Costs.NativeStages();
            ulong[] bytes = options.Limits ?? new ulong[1];
            uint[] placement = options.RankOf == null
                ? new uint[0]
                : RanksOf(options.RankOf, nameof(options.RankOf));
            fixed (NativePipelineStageCosts* first = stages)
            fixed (ulong* most = bytes)
            fixed (uint* ranks = placement)
            {
                if (options.RankOf != null)
                {
                    if (options.Placement != PipelinePlacement.Automatic)
                    {
                        throw new ArgumentException("RankOf comes with a Placement.");
                    }

                    native.Placement = NativeMethods.TRIREME_PIPELINE_PLACEMENT_LIST;
                    native.RankOf = (IntPtr)ranks;
                    native.StageCount = (uint)placement.Length;
                }

                NativePipelineCosts costs = default(NativePipelineCosts);
                if (options.Costs != null)
                {
                    costs = options.Costs.Native(first);
                    native.Costs = (IntPtr)(&costs);
                }

                NativePipelineLimits limits = LimitsOf(options.Limits, most);
                limits.Buffers = Count(options.Buffers, nameof(options.Buffers));
                if (options.Limits != null || options.Buffers != 0)
                {
                    native.Limits = (IntPtr)(&limits);
                }

                PipelineScheduleHandle made;
                TriremeException.Check(
                    NativeMethods.trireme_pipeline_schedule_create(ref native, out made));
                return new PipelineSchedule(made);
            }
        }

        /// <summary>Reads a text or CSV, such as PyTorch's. Does not check it.</summary>
        public static unsafe PipelineSchedule Parse(string text)
        {
            if (text == null)
            {
                throw new ArgumentNullException(nameof(text));
            }

            byte[] bytes = Encoding.UTF8.GetBytes(text + "\0");
            fixed (byte* first = bytes)
            {
                PipelineScheduleHandle made;
                TriremeException.Check(
                    NativeMethods.trireme_pipeline_schedule_parse(
                        (IntPtr)first, (ulong)bytes.Length - 1, out made));
                return new PipelineSchedule(made);
            }
        }

        /// <summary>The actions of a rank, in order.</summary>
        public PipelineAction[] Actions(int rank)
        {
            uint number = Count(rank, nameof(rank));
            var one = new NativePipelineAction[1];
            ulong count;
            TriremeException.Check(
                NativeMethods.trireme_pipeline_schedule_actions(
                    handle, number, ref one[0], 0, out count));
            var all = new NativePipelineAction[Math.Max(count, 1)];
            TriremeException.Check(
                NativeMethods.trireme_pipeline_schedule_actions(
                    handle, number, ref all[0], count, out count));
            Array.Resize(ref all, (int)count);
            return Array.ConvertAll(all, action => new PipelineAction(action));
        }

        /// <summary>Throws if the schedule cannot run, or a rank passes its limit.</summary>
        /// <param name="costs">Bytes of the stages; null does not look at memory.</param>
        /// <param name="limits">Bytes that each rank may hold; null is no limit.</param>
        /// <param name="buffers">Messages that may wait at a stage boundary; 0: any.</param>
        public void Check(PipelineCosts costs = null, ulong[] limits = null, int buffers = 0)
        {
            NativePipelineCheckReport report;
            TriremeException.Check(CheckInto(costs, limits, buffers, out report));
        }

        private unsafe Status CheckInto(
            PipelineCosts costs, ulong[] limits, int buffers, out NativePipelineCheckReport report)
        {
            NativePipelineStageCosts[] stages =
                costs == null ? new NativePipelineStageCosts[1] : costs.NativeStages();
            report = new NativePipelineCheckReport
            {
                StructSize = (uint)sizeof(NativePipelineCheckReport),
            };
            fixed (NativePipelineStageCosts* first = stages)
            fixed (ulong* most = limits ?? new ulong[1])
            {
                NativePipelineCosts native =
                    costs == null ? default(NativePipelineCosts) : costs.Native(first);
                NativePipelineCosts* given = costs == null ? null : &native;
                NativePipelineLimits limit = LimitsOf(limits, most);
                limit.Buffers = Count(buffers, nameof(buffers));
                return NativeMethods.trireme_pipeline_schedule_check(
                    handle, ref *given, ref limit, ref report);
            }
        }

        /// <summary>Times of a step.</summary>
        public StepReport Simulate(PipelineCosts costs, int buffers = 0)
        {
            var report = default(NativePipelineStepReport);
            var ranks = new NativePipelineRankTimes[Ranks];
            Simulated(costs, buffers, (ref NativePipelineCosts native,
                ref NativePipelineLimits limits) =>
            {
                report.StructSize = (uint)Marshal.SizeOf<NativePipelineStepReport>();
                TriremeException.Check(
                    NativeMethods.trireme_pipeline_schedule_simulate(
                        handle, ref native, ref limits, ref report, ref ranks[0],
                        (ulong)ranks.Length));
            });
            return new StepReport(report, ranks);
        }

        /// <summary>The schedule as text. A drawing may have costs of its own.</summary>
        public unsafe string Write(
            PipelineFormat format = PipelineFormat.Text, PipelineCosts costs = null)
        {
            NativePipelineStageCosts[] stages =
                costs == null ? new NativePipelineStageCosts[1] : costs.NativeStages();
            fixed (NativePipelineStageCosts* first = stages)
            {
                NativePipelineCosts native =
                    costs == null ? default(NativePipelineCosts) : costs.Native(first);
                NativePipelineCosts* given = costs == null ? null : &native;
                ulong length;
                TriremeException.Check(
                    NativeMethods.trireme_pipeline_schedule_write(
                        handle, format, ref *given, null, 0, out length));
                var text = new byte[length + 1];
                fixed (byte* memory = text)
                {
                    TriremeException.Check(
                        NativeMethods.trireme_pipeline_schedule_write(
                            handle, format, ref *given, memory, (ulong)text.Length, out length));
                }

                return Encoding.UTF8.GetString(text, 0, (int)length);
            }
        }

        /// <summary>Destroys the schedule.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        internal static uint Count(int value, string name)
        {
            if (value < 0)
            {
                throw new ArgumentOutOfRangeException(name, value, "must be 0 or more");
            }

            return (uint)value;
        }

        private static unsafe NativePipelineLimits LimitsOf(ulong[] limits, ulong* first)
        {
            return new NativePipelineLimits
            {
                StructSize = (uint)sizeof(NativePipelineLimits),
                Bytes = limits == null ? IntPtr.Zero : (IntPtr)first,
                RankCount = limits == null ? 0 : (ulong)limits.Length,
            };
        }
    }
}
