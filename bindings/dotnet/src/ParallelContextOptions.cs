using System;

namespace Trireme
{
    /// <summary>Axes of a <see cref="ParallelContext"/>, and the groups of gradients.</summary>
    [Flags]
    public enum ParallelAxes
    {
        /// <summary>No axis.</summary>
        None = 0,

        /// <summary>Copies of the model.</summary>
        Data = NativeMethods.TRIREME_PARALLEL_AXIS_DATA,

        /// <summary>Ranks that keep one copy of the model between them.</summary>
        Shard = NativeMethods.TRIREME_PARALLEL_AXIS_SHARD,

        /// <summary>Ranks that split layers.</summary>
        Tensor = NativeMethods.TRIREME_PARALLEL_AXIS_TENSOR,

        /// <summary>Ranks with other layers.</summary>
        Pipeline = NativeMethods.TRIREME_PARALLEL_AXIS_PIPELINE,

        /// <summary>Ranks that split positions.</summary>
        Context = NativeMethods.TRIREME_PARALLEL_AXIS_CONTEXT,

        /// <summary>Ranks with other experts.</summary>
        Expert = NativeMethods.TRIREME_PARALLEL_AXIS_EXPERT,

        /// <summary>Gradients of all parameters but experts are added up over these.</summary>
        Gradients = NativeMethods.TRIREME_PARALLEL_GROUP_GRADIENTS,

        /// <summary>Gradients of experts are added up over these.</summary>
        ExpertGradients = NativeMethods.TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS,

        /// <summary>All ranks.</summary>
        All = NativeMethods.TRIREME_PARALLEL_GROUP_ALL,
    }

    /// <summary>The parameters of a model.</summary>
    public enum ParallelContents
    {
        /// <summary>Those that ranks along Expert have in common.</summary>
        Common = NativeMethods.TRIREME_PARALLEL_CONTENTS_COMMON,

        /// <summary>Experts: each rank along Expert has other ones.</summary>
        Experts = NativeMethods.TRIREME_PARALLEL_CONTENTS_EXPERTS,
    }

    /// <summary>How ranks along Tensor split layers: see <see cref="Tensor.Create"/>.</summary>
    public sealed class ParallelTensorOptions
    {
        /// <summary>Blocks of every extent; 0 is one for each rank.</summary>
        public int Blocks { get; set; }

        /// <summary>The provider of the products of layers; null without layers.</summary>
        public GemmKind? Gemm { get; set; }

        /// <summary>Of Loaded: the file of the BLAS, or several with commas between.</summary>
        public string Library { get; set; }

        /// <summary>Of Loaded: threads of each product; 0 means one.</summary>
        public int GemmThreads { get; set; }

        /// <summary>
        /// Of Caller: the product. An exception of it comes out of the pass on its rank, and the
        /// other ranks get a CallbackException.
        /// </summary>
        public ProductFunction Product { get; set; }

        /// <summary>Whether activations between layers are split by rows.</summary>
        public bool Sequence { get; set; }

        /// <summary>Whether gathered inputs are kept for backward.</summary>
        public bool KeepGathered { get; set; }

        /// <summary>
        /// Rows that layers multiply at a time, and exchange while they multiply the next ones.
        /// 0 leaves it to the library.
        /// </summary>
        public int RowTile { get; set; }

        /// <summary>Longest time of a pass; zero is the communicator's.</summary>
        public TimeSpan Timeout { get; set; }

        /// <summary>
        /// Whether anything is said of a provider; the library refuses words on none.
        /// </summary>
        internal bool HasProvider
        {
            get { return Gemm.HasValue || Product != null || Library != null || GemmThreads != 0; }
        }

        /// <summary>Null without a product.</summary>
        internal ProductRunner Runner()
        {
            return Product == null ? null : new ProductRunner(Product);
        }
    }

    /// <summary>A layout. The product of the sizes is the world size.</summary>
    public sealed class ParallelContextOptions
    {
        /// <summary>One size may be this: that axis gets the ranks that the others leave.</summary>
        public const int Rest = NativeMethods.TRIREME_PARALLEL_REST;

        /// <summary>Ranks along Data.</summary>
        public int Data { get; set; } = 1;

        /// <summary>Ranks along Shard.</summary>
        public int Shard { get; set; } = 1;

        /// <summary>Ranks along Tensor.</summary>
        public int Tensor { get; set; } = 1;

        /// <summary>Ranks along Pipeline.</summary>
        public int Pipeline { get; set; } = 1;

        /// <summary>Ranks along Context.</summary>
        public int Context { get; set; } = 1;

        /// <summary>Ranks along Expert.</summary>
        public int Expert { get; set; } = 1;

        /// <summary>Micro-batches of a step for each reader; required with a pipeline.</summary>
        public int MicroBatches { get; set; }

        /// <summary>
        /// Stages of each rank along Pipeline; 0 is one, or those of the text. ZbV, VHalf, VMin and
        /// DualPipeV need 2, and Interleaved needs 2 or more.
        /// </summary>
        public int StagesPerRank { get; set; }

        /// <summary>
        /// The order of the schedule. Null is OneForwardOneBackward, or Interleaved if ranks have
        /// several stages. Best needs <see cref="Costs"/>.
        /// </summary>
        public PipelineOrder? Order { get; set; }

        /// <summary>Best alone: where stages lie; null tries some.</summary>
        public PipelinePlacement? Placement { get; set; }

        /// <summary>A schedule as text or CSV, in place of an order. It is checked.</summary>
        public string ScheduleText { get; set; }

        /// <summary>Times and bytes of each stage; null is equal times and no bytes.</summary>
        public PipelineCosts Costs { get; set; }

        /// <summary>
        /// Bytes of activations that each rank along Pipeline may keep; 0 is any. Schedules with
        /// costs and partitions are within it.
        /// </summary>
        public ulong ActivationLimitBytes { get; set; }

        /// <summary>Null is no tensor object with 1 rank along Tensor, else the defaults.</summary>
        public ParallelTensorOptions TensorOptions { get; set; }

        /// <summary>Longest that the creation may wait; zero is the communicator's.</summary>
        public TimeSpan Timeout { get; set; }
    }
}
