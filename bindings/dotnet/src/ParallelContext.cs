using System;
using System.Linq;

namespace Trireme
{
    /// <summary>
    /// Ranks along six axes, with everything that training on them needs: communicators, a tensor
    /// object, a schedule, models. If a rank dies, waits along all axes end. Every method may be
    /// called from any thread, also concurrently.
    /// </summary>
    public sealed class ParallelContext : IDisposable
    {
        private readonly ParallelHandle handle;
        private readonly NativeParallelInfo info;
        private readonly bool sequence;
        private readonly ProductRunner products;

        private unsafe ParallelContext(
            ParallelHandle handle, bool sequence, ProductRunner products)
        {
            this.handle = handle;
            this.sequence = sequence;
            this.products = products;
            info.StructSize = (uint)sizeof(NativeParallelInfo);
            TriremeException.Check(NativeMethods.trireme_parallel_get_info(handle, ref info));
        }

        /// <summary>
        /// Arranges the ranks of a communicator. All of its ranks call this with the same options.
        /// </summary>
        public static unsafe ParallelContext Create(
            Communicator communicator, ParallelContextOptions options)
        {
            if (communicator == null)
            {
                throw new ArgumentNullException(nameof(communicator));
            }

            if (options == null)
            {
                throw new ArgumentNullException(nameof(options));
            }

            var native = new NativeParallelOptions
            {
                StructSize = (uint)sizeof(NativeParallelOptions),
                Data = options.Data, Shard = options.Shard, Tensor = options.Tensor,
                Pipeline = options.Pipeline, Context = options.Context, Expert = options.Expert,
                MicroBatches =
                    PipelineSchedule.Count(options.MicroBatches, nameof(options.MicroBatches)),
                StagesPerRank =
                    PipelineSchedule.Count(options.StagesPerRank, nameof(options.StagesPerRank)),
                Order = (int)options.Order.GetValueOrDefault(),
                Placement = (int)options.Placement.GetValueOrDefault(),
                ActivationLimitBytes = options.ActivationLimitBytes,
                TimeoutNs = Nanoseconds.From(options.Timeout, nameof(options.Timeout)),
            };
            ParallelTensorOptions asked = options.TensorOptions ?? new ParallelTensorOptions();
            NativePipelineStageCosts[] stages =
                options.Costs == null ? new NativePipelineStageCosts[1]
                                      : options.Costs.NativeStages();
            using (var text =
                new Utf8(options.ScheduleText ?? "", nameof(options.ScheduleText)))
            using (var library = new Utf8(asked.Library ?? "", nameof(asked.Library)))
            fixed (NativePipelineStageCosts* first = stages)
            {
                NativePipelineCosts costs = default(NativePipelineCosts);
                if (options.Costs != null)
                {
                    costs = options.Costs.Native(first);
                    native.Costs = (IntPtr)(&costs);
                }

                NativeGemmOptions provider;
                ProductRunner products = asked.Runner();
                NativeTensorOptions tensor =
                    Trireme.Tensor.Native(asked, library, products, out provider);
                if (asked.HasProvider)
                {
                    tensor.Gemm = (IntPtr)(&provider);
                }

                if (options.TensorOptions != null)
                {
                    native.TensorOptions = (IntPtr)(&tensor);
                }

                if (options.ScheduleText != null)
                {
                    native.ScheduleText = text.Pointer;
                }

                ParallelHandle made;
                TriremeException.Check(NativeMethods.trireme_parallel_create(
                    communicator.Handle, ref native, out made));
                return new ParallelContext(made, asked.Sequence, products);
            }
        }

        internal ParallelHandle Handle
        {
            get { return handle; }
        }

        /// <summary>Ranks of the object.</summary>
        public int WorldSize
        {
            get { return info.WorldSize; }
        }

        /// <summary>This rank's number among them.</summary>
        public int Rank
        {
            get { return info.Rank; }
        }

        /// <summary>Ranks with rows of their own.</summary>
        public int Readers
        {
            get { return info.Readers; }
        }

        /// <summary>This rank's number among the readers.</summary>
        public int Reader
        {
            get { return info.Reader; }
        }

        /// <summary>Ranks over which gradients are added up.</summary>
        public int GradientRanks
        {
            get { return info.GradientRanks; }
        }

        /// <summary>The same for experts.</summary>
        public int ExpertGradientRanks
        {
            get { return info.ExpertGradientRanks; }
        }

        /// <summary>Micro-batches of a step for each reader.</summary>
        public int MicroBatches
        {
            get { return (int)info.MicroBatches; }
        }

        /// <summary>Stages of all ranks along Pipeline; 1 without a pipeline.</summary>
        public int Stages
        {
            get { return (int)info.Stages; }
        }

        /// <summary>Whether this rank has the first stage, which reads the rows.</summary>
        public bool HasFirstStage
        {
            get { return info.HasFirstStage != 0; }
        }

        /// <summary>Whether this rank has the last stage, which computes the loss.</summary>
        public bool HasLastStage
        {
            get { return info.HasLastStage != 0; }
        }

        /// <summary>Whether there is a tensor object.</summary>
        public bool HasTensor
        {
            get { return info.HasTensor != 0; }
        }

        /// <summary>The order of the schedule; null without a pipeline, and for a text.</summary>
        public PipelineOrder? Order
        {
            get { return info.Order == 0 ? (PipelineOrder?)null : (PipelineOrder)info.Order; }
        }

        /// <summary>The most micro-batches that this rank keeps, each stage counted.</summary>
        public long KeptMicroBatches
        {
            get { return (long)info.KeptMicroBatches; }
        }

        /// <summary>Time of a step: with costs in seconds.</summary>
        public double Makespan
        {
            get { return info.Makespan; }
        }

        /// <summary>The longest time from a rank's first action to its last one.</summary>
        public double Span
        {
            get { return info.Span; }
        }

        /// <summary>The part of the time in which ranks wait.</summary>
        public double Bubble
        {
            get { return info.Bubble; }
        }

        /// <summary>Ranks along axes together.</summary>
        public int Size(ParallelAxes axes)
        {
            int[] sizes =
            {
                info.Data, info.Shard, info.Tensor, info.Pipeline, info.Context, info.Expert,
            };
            return sizes.Where((size, axis) => ((int)axes >> axis & 1) != 0)
                .Aggregate(1, (product, size) => product * size);
        }

        /// <summary>
        /// A rank's place: Data, Shard, Tensor, Pipeline, Context, Expert.
        /// </summary>
        public unsafe int[] Coordinates(int rank)
        {
            var coordinates = new int[NativeMethods.TRIREME_PARALLEL_AXES];
            fixed (int* places = coordinates)
            {
                TriremeException.Check(NativeMethods.trireme_parallel_get_coordinates(
                    handle, rank, places, (ulong)coordinates.Length));
            }

            return coordinates;
        }

        /// <summary>The rank at a place, in the order of <see cref="Coordinates"/>.</summary>
        public unsafe int RankAt(params int[] coordinates)
        {
            if (coordinates == null)
            {
                throw new ArgumentNullException(nameof(coordinates));
            }

            fixed (int* places = coordinates)
            {
                int rank;
                TriremeException.Check(NativeMethods.trireme_parallel_get_rank(
                    handle, places, (ulong)coordinates.Length, out rank));
                return rank;
            }
        }

        /// <summary>
        /// The communicator of one axis, of Gradients, ExpertGradients or All. It belongs to this
        /// object and ends with it; to dispose of it changes nothing.
        /// </summary>
        public Communicator Communicator(ParallelAxes axes)
        {
            IntPtr found;
            TriremeException.Check(NativeMethods.trireme_parallel_get_communicator(
                handle, (uint)axes, out found));
            return Trireme.Communicator.Adopt(new CommunicatorHandle(found, this));
        }

        /// <summary>
        /// A new communicator over several axes together. All ranks of the object call this.
        /// </summary>
        public Communicator MakeCommunicator(
            ParallelAxes axes, string name = null, TimeSpan timeout = default(TimeSpan))
        {
            return Trireme.Communicator.MakeChild(
                name, timeout,
                (ref NativeChildOptions options, out CommunicatorHandle child) =>
                    NativeMethods.trireme_parallel_create_communicator(
                        handle, (uint)axes, ref options, out child));
        }

        /// <summary>The tensor object of the ranks along Tensor.</summary>
        public Tensor Tensor()
        {
            TensorHandle found;
            TriremeException.Check(
                NativeMethods.trireme_parallel_get_tensor(handle, out found));
            found.Parent = this;
            return new Tensor(found, info.TensorRank, sequence, products);
        }

        /// <summary>The schedule of the pipeline.</summary>
        public PipelineSchedule Schedule()
        {
            PipelineScheduleHandle found;
            TriremeException.Check(
                NativeMethods.trireme_parallel_get_schedule(handle, out found));
            return new PipelineSchedule(found);
        }

        /// <summary>The stages of this rank.</summary>
        public int[] OwnStages()
        {
            return StagesOf(info.PipelineRank);
        }

        /// <summary>The stages of a rank along Pipeline.</summary>
        public int[] StagesOf(int pipelineRank)
        {
            var stages = new uint[Stages];
            ulong count;
            TriremeException.Check(NativeMethods.trireme_parallel_get_stages(
                handle, pipelineRank, ref stages[0], (ulong)stages.Length, out count));
            return stages.Take((int)count).Select(stage => (int)stage).ToArray();
        }

        /// <summary>The rank that has a stage of this rank's pipeline.</summary>
        public int StageRank(int stage)
        {
            int rank;
            TriremeException.Check(NativeMethods.trireme_parallel_get_stage_rank(
                handle, PipelineSchedule.Count(stage, nameof(stage)), out rank));
            return rank;
        }

        /// <summary>
        /// Cuts layers into the stages of the pipeline. All ranks call this. Of each number of a
        /// layer the largest one of all ranks counts. So a rank may give 0 for layers that it has
        /// not measured. Bytes of a layer must be 0.
        /// </summary>
        public unsafe Partition Partition(LayerCosts[] layers)
        {
            NativePipelineLayerCosts[] native = Trireme.Partition.Native(layers);
            var cuts = new ulong[Stages + 1];
            double seconds;
            fixed (NativePipelineLayerCosts* first = native)
            {
                TriremeException.Check(NativeMethods.trireme_parallel_partition(
                    handle, first, (ulong)layers.Length, ref cuts[0], (ulong)cuts.Length,
                    out seconds));
            }

            return new Partition(Array.ConvertAll(cuts, cut => (long)cut), seconds);
        }

        /// <summary>The rows of one of this rank's micro-batches, of a global batch.</summary>
        public Share Rows(long rows, int microBatch = 0)
        {
            if (rows < 0)
            {
                throw new ArgumentOutOfRangeException(nameof(rows));
            }

            ulong first, count;
            TriremeException.Check(NativeMethods.trireme_parallel_get_rows(
                handle, (ulong)rows, PipelineSchedule.Count(microBatch, nameof(microBatch)),
                out first, out count));
            return new Share((long)first, (long)count);
        }

        /// <summary>Leaves the communicators of the axes.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }
    }
}
