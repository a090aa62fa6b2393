using System;

namespace Trireme
{
    /// <summary>The answer of a call of the native library.</summary>
    public enum Status
    {
        Ok = NativeMethods.TRIREME_OK,
        InvalidArgument = NativeMethods.TRIREME_ERROR_INVALID_ARGUMENT,
        InvalidHandle = NativeMethods.TRIREME_ERROR_INVALID_HANDLE,
        InvalidState = NativeMethods.TRIREME_ERROR_INVALID_STATE,
        Unsupported = NativeMethods.TRIREME_ERROR_UNSUPPORTED,
        OutOfMemory = NativeMethods.TRIREME_ERROR_OUT_OF_MEMORY,
        Timeout = NativeMethods.TRIREME_ERROR_TIMEOUT,
        Aborted = NativeMethods.TRIREME_ERROR_ABORTED,
        PeerLost = NativeMethods.TRIREME_ERROR_PEER_LOST,
        Mismatch = NativeMethods.TRIREME_ERROR_MISMATCH,
        Corrupt = NativeMethods.TRIREME_ERROR_CORRUPT,
        Authentication = NativeMethods.TRIREME_ERROR_AUTHENTICATION,
        System = NativeMethods.TRIREME_ERROR_SYSTEM,
        Callback = NativeMethods.TRIREME_ERROR_CALLBACK,
        Cancelled = NativeMethods.TRIREME_ERROR_CANCELLED,
        Internal = NativeMethods.TRIREME_ERROR_INTERNAL,
        Device = NativeMethods.TRIREME_ERROR_DEVICE,
    }

    /// <summary>Type of the elements of a buffer.</summary>
    public enum ElementType
    {
        /// <summary>The type that belongs to the C# type, for example F32 for float.</summary>
        Automatic = 0,
        I8 = NativeMethods.TRIREME_DTYPE_I8,
        U8 = NativeMethods.TRIREME_DTYPE_U8,
        I16 = NativeMethods.TRIREME_DTYPE_I16,
        U16 = NativeMethods.TRIREME_DTYPE_U16,
        I32 = NativeMethods.TRIREME_DTYPE_I32,
        U32 = NativeMethods.TRIREME_DTYPE_U32,
        I64 = NativeMethods.TRIREME_DTYPE_I64,
        U64 = NativeMethods.TRIREME_DTYPE_U64,

        /// <summary>IEEE binary16, in any 2-byte type.</summary>
        F16 = NativeMethods.TRIREME_DTYPE_F16,

        /// <summary>bfloat16, in any 2-byte type.</summary>
        Bf16 = NativeMethods.TRIREME_DTYPE_BF16,
        F32 = NativeMethods.TRIREME_DTYPE_F32,
        F64 = NativeMethods.TRIREME_DTYPE_F64,
        F8E4M3 = NativeMethods.TRIREME_DTYPE_F8E4M3,
        F8E5M2 = NativeMethods.TRIREME_DTYPE_F8E5M2,
        Bool = NativeMethods.TRIREME_DTYPE_BOOL,

        /// <summary>Moved and never reduced; works for every type without references.</summary>
        Bytes = NativeMethods.TRIREME_DTYPE_BYTES,
    }

    /// <summary>How contributions of ranks become one value.</summary>
    public enum Reduction
    {
        Sum = NativeMethods.TRIREME_REDUCTION_SUM,
        Average = NativeMethods.TRIREME_REDUCTION_AVERAGE,
        Product = NativeMethods.TRIREME_REDUCTION_PRODUCT,
        Min = NativeMethods.TRIREME_REDUCTION_MIN,
        Max = NativeMethods.TRIREME_REDUCTION_MAX,
        Band = NativeMethods.TRIREME_REDUCTION_BAND,
        Bor = NativeMethods.TRIREME_REDUCTION_BOR,
        Bxor = NativeMethods.TRIREME_REDUCTION_BXOR,

        /// <summary>Sum, then multiplication by <see cref="OperationOptions.Scale"/>.</summary>
        ScaledSum = NativeMethods.TRIREME_REDUCTION_SCALED_SUM,
    }

    /// <summary>Where a buffer lives.</summary>
    public enum DeviceKind
    {
        Default = NativeMethods.TRIREME_DEVICE_DEFAULT,
        Host = NativeMethods.TRIREME_DEVICE_HOST,
        Cuda = NativeMethods.TRIREME_DEVICE_CUDA,
    }

    /// <summary>Whose memory an address is.</summary>
    public enum MemoryKind
    {
        /// <summary>As an argument: the kind where the communicator works.</summary>
        Default = NativeMethods.TRIREME_MEMORY_KIND_DEFAULT,

        /// <summary>Memory of the host that no device knows.</summary>
        Host = NativeMethods.TRIREME_MEMORY_KIND_HOST,

        /// <summary>Memory of the host that is locked for CUDA devices.</summary>
        Pinned = NativeMethods.TRIREME_MEMORY_KIND_PINNED,

        /// <summary>Memory of a CUDA device.</summary>
        Device = NativeMethods.TRIREME_MEMORY_KIND_DEVICE,

        /// <summary>Memory that moves between host and devices on demand.</summary>
        Managed = NativeMethods.TRIREME_MEMORY_KIND_MANAGED,
    }

    /// <summary>Operations a backend can be asked about.</summary>
    public enum Operation
    {
        Any = 0,
        AllReduce = NativeMethods.TRIREME_OPERATION_KIND_ALL_REDUCE,
        ReduceScatter = NativeMethods.TRIREME_OPERATION_KIND_REDUCE_SCATTER,
        ReduceScatterV = NativeMethods.TRIREME_OPERATION_KIND_REDUCE_SCATTER_V,
        AllGather = NativeMethods.TRIREME_OPERATION_KIND_ALL_GATHER,
        AllGatherV = NativeMethods.TRIREME_OPERATION_KIND_ALL_GATHER_V,
        Broadcast = NativeMethods.TRIREME_OPERATION_KIND_BROADCAST,
        Barrier = NativeMethods.TRIREME_OPERATION_KIND_BARRIER,
        Send = NativeMethods.TRIREME_OPERATION_KIND_SEND,
        Receive = NativeMethods.TRIREME_OPERATION_KIND_RECEIVE,
        Reduce = NativeMethods.TRIREME_OPERATION_KIND_REDUCE,
        Gather = NativeMethods.TRIREME_OPERATION_KIND_GATHER,
        GatherV = NativeMethods.TRIREME_OPERATION_KIND_GATHER_V,
        Scatter = NativeMethods.TRIREME_OPERATION_KIND_SCATTER,
        ScatterV = NativeMethods.TRIREME_OPERATION_KIND_SCATTER_V,
        AllToAll = NativeMethods.TRIREME_OPERATION_KIND_ALL_TO_ALL,
        AllToAllV = NativeMethods.TRIREME_OPERATION_KIND_ALL_TO_ALL_V,
        Probe = NativeMethods.TRIREME_OPERATION_KIND_PROBE,
    }

    /// <summary>How a collective is made of messages between two ranks.</summary>
    public enum Algorithm
    {
        /// <summary>The library chooses.</summary>
        Automatic = NativeMethods.TRIREME_ALGORITHM_AUTOMATIC,
        Direct = NativeMethods.TRIREME_ALGORITHM_DIRECT,
        Ring = NativeMethods.TRIREME_ALGORITHM_RING,
        HalvingDoubling = NativeMethods.TRIREME_ALGORITHM_HALVING_DOUBLING,
        Binomial = NativeMethods.TRIREME_ALGORITHM_BINOMIAL,
        DoubleTree = NativeMethods.TRIREME_ALGORITHM_DOUBLE_TREE,
        Bruck = NativeMethods.TRIREME_ALGORITHM_BRUCK,
        Pairwise = NativeMethods.TRIREME_ALGORITHM_PAIRWISE,
        Native = NativeMethods.TRIREME_ALGORITHM_NATIVE,
    }

    /// <summary>Flags of one call, as the library numbers them.</summary>
    [System.Flags]
    internal enum OperationFlags : uint
    {
        Reproducible = NativeMethods.TRIREME_OPERATION_FLAG_REPRODUCIBLE,
        Buffered = NativeMethods.TRIREME_OPERATION_FLAG_BUFFERED,
        AnyTag = NativeMethods.TRIREME_OPERATION_FLAG_ANY_TAG,
    }

    /// <summary>How urgent a collective is.</summary>
    public enum Priority
    {
        Normal = NativeMethods.TRIREME_PRIORITY_NORMAL,

        /// <summary>Does not wait behind normal ones: it has a queue of its own.</summary>
        High = NativeMethods.TRIREME_PRIORITY_HIGH,
    }

    /// <summary>How chunks of a sequence lie on ranks. C is the number of ranks.</summary>
    public enum ContextLayout
    {
        /// <summary>In one stretch for each rank.</summary>
        Contiguous = NativeMethods.TRIREME_CONTEXT_LAYOUT_CONTIGUOUS,

        /// <summary>
        /// In stretches r and 2C-1-r of 2C: ranks have equal work in a causal attention.
        /// </summary>
        Zigzag = NativeMethods.TRIREME_CONTEXT_LAYOUT_ZIGZAG,
    }

    /// <summary>How keys and values come to a rank.</summary>
    public enum ContextMethod
    {
        /// <summary>Those of all ranks first.</summary>
        Gather = NativeMethods.TRIREME_CONTEXT_METHOD_GATHER,

        /// <summary>Those of one rank at a time, while pairs are computed.</summary>
        Ring = NativeMethods.TRIREME_CONTEXT_METHOD_RING,
    }

    /// <summary>Meaning of the numbers that a router gives.</summary>
    public enum ExpertScores
    {
        /// <summary>Their soft-max over all experts gives the probabilities.</summary>
        Logits = NativeMethods.TRIREME_EXPERTS_SCORES_LOGITS,

        /// <summary>Probabilities, or other numbers that are 0 or more.</summary>
        Probabilities = NativeMethods.TRIREME_EXPERTS_SCORES_PROBABILITIES,
    }

    /// <summary>Rows that are dropped where more choose an expert than it takes.</summary>
    public enum ExpertDrop
    {
        /// <summary>No row is dropped.</summary>
        None = NativeMethods.TRIREME_EXPERTS_DROP_NONE,

        /// <summary>The last rows of the leaf.</summary>
        Last = NativeMethods.TRIREME_EXPERTS_DROP_LAST,

        /// <summary>Those with the lowest weights.</summary>
        LowestWeight = NativeMethods.TRIREME_EXPERTS_DROP_LOWEST_WEIGHT,
    }

    /// <summary>Keys of a chunk pair that its queries see.</summary>
    public enum AttentionMask
    {
        /// <summary>Each query sees all keys.</summary>
        Full = NativeMethods.TRIREME_ATTENTION_MASK_FULL,

        /// <summary>Both chunks are the same one. Query i sees keys 0 to i.</summary>
        Diagonal = NativeMethods.TRIREME_ATTENTION_MASK_DIAGONAL,

        /// <summary>A query sees those from VisibleFirst to VisibleEnd.</summary>
        Ranges = NativeMethods.TRIREME_ATTENTION_MASK_RANGES,
    }

    /// <summary>The provider of the matrix products of layers.</summary>
    public enum GemmKind
    {
        /// <summary>A function of the caller.</summary>
        Caller = NativeMethods.TRIREME_GEMM_KIND_CALLER,

        /// <summary>A BLAS that the library opens at run time.</summary>
        Loaded = NativeMethods.TRIREME_GEMM_KIND_LOADED,

        /// <summary>The library's own loops, with the same bits on all machines.</summary>
        Builtin = NativeMethods.TRIREME_GEMM_KIND_BUILTIN,
    }

    /// <summary>
    /// How the array of a region changes its form: <see cref="Tensor.Region"/>.
    /// </summary>
    public enum RegionKind
    {
        /// <summary>
        /// Whole to shared. Forward: nothing moves. Backward: the sum of all ranks.
        /// </summary>
        Copy = NativeMethods.TRIREME_REGION_KIND_COPY,

        /// <summary>
        /// Partial to whole. Forward: the sum of all ranks. Backward: nothing moves.
        /// </summary>
        Reduce = NativeMethods.TRIREME_REGION_KIND_REDUCE,

        /// <summary>Split to whole. Forward: all parts. Backward: this rank's part.</summary>
        Gather = NativeMethods.TRIREME_REGION_KIND_GATHER,

        /// <summary>
        /// Split to shared. Forward: all parts. Backward: this rank's part of the sum.
        /// </summary>
        GatherSum = NativeMethods.TRIREME_REGION_KIND_GATHER_SUM,

        /// <summary>Whole to split. Forward: this rank's part. Backward: all parts.</summary>
        Scatter = NativeMethods.TRIREME_REGION_KIND_SCATTER,

        /// <summary>
        /// Partial to split. Forward: this rank's part of the sum. Backward: all parts.
        /// </summary>
        ReduceScatter = NativeMethods.TRIREME_REGION_KIND_REDUCE_SCATTER,

        /// <summary>
        /// Split along one dimension to split along the other one, in both directions.
        /// </summary>
        Exchange = NativeMethods.TRIREME_REGION_KIND_EXCHANGE,
    }

    /// <summary>The dimension along which the split form of a region is cut.</summary>
    public enum RegionDimension
    {
        /// <summary>For kinds without a split form.</summary>
        None = NativeMethods.TRIREME_REGION_DIMENSION_NONE,

        Rows = NativeMethods.TRIREME_REGION_DIMENSION_ROWS,

        Columns = NativeMethods.TRIREME_REGION_DIMENSION_COLUMNS,
    }

    /// <summary>How ranks are numbered along the axes of a mesh.</summary>
    public enum MeshOrder
    {
        /// <summary>
        /// "tensor" is fastest, then "context", "expert", "shard", "data", "pipeline"; other names
        /// are slower than these.
        /// </summary>
        ByName = NativeMethods.TRIREME_MESH_ORDER_BY_NAME,

        /// <summary>The last axis of the list is fastest.</summary>
        LastFastest = NativeMethods.TRIREME_MESH_ORDER_LAST_FASTEST,

        /// <summary>The first axis of the list is fastest.</summary>
        FirstFastest = NativeMethods.TRIREME_MESH_ORDER_FIRST_FASTEST,
    }

    /// <summary>How much a log message matters.</summary>
    public enum LogLevel
    {
        Error = NativeMethods.TRIREME_LOG_ERROR,
        Warning = NativeMethods.TRIREME_LOG_WARNING,
        Info = NativeMethods.TRIREME_LOG_INFO,
        Debug = NativeMethods.TRIREME_LOG_DEBUG,
    }

    /// <summary>How a model is spread over the ranks.</summary>
    public enum Strategy
    {
        /// <summary>Everything on every rank (DDP).</summary>
        DataParallel = NativeMethods.TRIREME_STRATEGY_DATA_PARALLEL,

        /// <summary>Optimizer state sharded.</summary>
        Zero1 = NativeMethods.TRIREME_STRATEGY_ZERO1,

        /// <summary>Gradients too.</summary>
        Zero2 = NativeMethods.TRIREME_STRATEGY_ZERO2,

        /// <summary>Parameters too (fully sharded).</summary>
        Zero3 = NativeMethods.TRIREME_STRATEGY_ZERO3,

        /// <summary>
        /// Parameters within groups of Shards.Ranks, gradients and state over all ranks.
        /// </summary>
        HybridShard = NativeMethods.TRIREME_STRATEGY_HYBRID_SHARD,

        /// <summary>Another name of DataParallel; Library.NameOf() prints one for both.</summary>
        NoShard = DataParallel,

        /// <summary>Another name of Zero2.</summary>
        ShardGradOp = Zero2,

        /// <summary>Another name of Zero3.</summary>
        FullShard = Zero3,
    }

    /// <summary>How the gradients of ranks, or of leaves, become one.</summary>
    public enum Gradients
    {
        Average = NativeMethods.TRIREME_GRADIENTS_AVERAGE,
        Sum = NativeMethods.TRIREME_GRADIENTS_SUM,
    }

    /// <summary>
    /// How the end of a backward pass treats gradients that the caller did not hand in.
    /// </summary>
    public enum Unused
    {
        /// <summary>The end of the backward pass fails and names them.</summary>
        Error = NativeMethods.TRIREME_UNUSED_ERROR,

        /// <summary>The gradient counts as zero.</summary>
        Zero = NativeMethods.TRIREME_UNUSED_ZERO,

        /// <summary>
        /// As Zero, but a parameter that no rank had a gradient for is not updated in that step.
        /// </summary>
        Skip = NativeMethods.TRIREME_UNUSED_SKIP,
    }

    /// <summary>
    /// Whether ranks that share memory keep one copy of the parameters between them.
    /// </summary>
    public enum ShareParameters
    {
        /// <summary>Zero3 and HybridShard do, if the ranks of a copy share memory.</summary>
        Auto = NativeMethods.TRIREME_SHARE_AUTO,

        /// <summary>Zero1 and Zero2 too, or the model is refused.</summary>
        Always = NativeMethods.TRIREME_SHARE_ALWAYS,

        /// <summary>Every rank has memory of its own, and gathers copy.</summary>
        Never = NativeMethods.TRIREME_SHARE_NEVER,
    }

    [Flags]
    public enum ModelFlags
    {
        None = 0,

        /// <summary>
        /// Ranks may be absent from a pass, and join the others when they run out of data.
        /// </summary>
        Uneven = NativeMethods.TRIREME_MODEL_FLAG_UNEVEN,

        /// <summary>
        /// Buckets are reduced in the reverse order of registration in all steps, and not in the
        /// order in which the first step's gradients came.
        /// </summary>
        FixedOrder = NativeMethods.TRIREME_MODEL_FLAG_FIXED_ORDER,

        /// <summary>Shards are cut between rows of parameters.</summary>
        WholeRows = NativeMethods.TRIREME_MODEL_FLAG_WHOLE_ROWS,

        /// <summary>
        /// Zero3, HybridShard: units stay whole after their release until parameters change.
        /// </summary>
        KeepGathered = NativeMethods.TRIREME_MODEL_FLAG_KEEP_GATHERED,

        /// <summary>
        /// Each bucket is updated as soon as it is reduced, and no gradients are kept: a parameter may
        /// change from the moment its gradient is handed in until the step ends.
        /// </summary>
        UpdateInBackward = NativeMethods.TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD,
    }

    /// <summary>A place other than memory.</summary>
    public enum OffloadKind
    {
        /// <summary>A file of this rank in a directory.</summary>
        File = NativeMethods.TRIREME_OFFLOAD_KIND_FILE,

        /// <summary>Pinned memory, for optimizer state of a device.</summary>
        Pinned = NativeMethods.TRIREME_OFFLOAD_KIND_PINNED,
    }

    /// <summary>When a bucket hook is called.</summary>
    public enum HookMoment
    {
        /// <summary>This rank's contribution is complete and no peer sees it yet.</summary>
        Before = NativeMethods.TRIREME_HOOK_BEFORE,

        /// <summary>
        /// The part of the reduced gradients that this rank updates, before it is clipped.
        /// </summary>
        After = NativeMethods.TRIREME_HOOK_AFTER,
    }

    /// <summary>Why a layer of a trainer is called.</summary>
    public enum LayerPhase
    {
        /// <summary>Before backward.</summary>
        Forward = NativeMethods.TRIREME_PHASE_FORWARD,

        /// <summary>Forward again, of what was not kept.</summary>
        Recompute = NativeMethods.TRIREME_PHASE_RECOMPUTE,

        /// <summary>Gradients.</summary>
        Backward = NativeMethods.TRIREME_PHASE_BACKWARD,

        /// <summary>Forward that no backward follows.</summary>
        Evaluate = NativeMethods.TRIREME_PHASE_EVALUATE,

        /// <summary>
        /// Of a layer with BackwardWeight: the gradient of the input alone.
        /// </summary>
        BackwardInput = NativeMethods.TRIREME_PHASE_BACKWARD_INPUT,

        /// <summary>Of such a layer: the gradients of the parameters.</summary>
        BackwardWeight = NativeMethods.TRIREME_PHASE_BACKWARD_WEIGHT,
    }

    /// <summary>How a parameter lies on an axis of a mesh.</summary>
    public enum Placement
    {
        /// <summary>
        /// Every rank along the axis holds the same parameter and hands in its whole gradient. A
        /// norm counts it once.
        /// </summary>
        Whole = NativeMethods.TRIREME_PLACEMENT_WHOLE,

        /// <summary>
        /// Every rank along the axis holds the same parameter, and its gradient is a summand. The
        /// library adds the gradients up along the axis. A norm counts it once.
        /// </summary>
        Shared = NativeMethods.TRIREME_PLACEMENT_SHARED,

        /// <summary>
        /// Along "pipeline": layers of some ranks use the parameter, and each of these ranks adds
        /// it by the same name. A trainer adds up their gradients. A norm counts it once.
        /// </summary>
        Tied = NativeMethods.TRIREME_PLACEMENT_TIED,

        /// <summary>
        /// Every rank along the axis holds a part: see <see cref="ParameterOptions.Splits"/>.
        /// </summary>
        Split = NativeMethods.TRIREME_PLACEMENT_SPLIT,
    }

    [Flags]
    public enum ParameterFlags
    {
        None = 0,

        /// <summary>Has no gradient and is not updated.</summary>
        Frozen = NativeMethods.TRIREME_PARAMETER_FLAG_FROZEN,
    }

    [Flags]
    public enum BackwardFlags
    {
        None = 0,

        /// <summary>Keep the gradients here and add the next pass to them.</summary>
        NoSync = NativeMethods.TRIREME_BACKWARD_FLAG_NO_SYNC,

        /// <summary>
        /// This rank of an uneven model has no data for the pass and hands in nothing.
        /// </summary>
        Absent = NativeMethods.TRIREME_BACKWARD_FLAG_ABSENT,
    }

    /// <summary>The factor by which Muon multiplies the learning rate of a matrix.</summary>
    public enum RateAdjustment
    {
        /// <summary>sqrt(max(1, rows / columns)).</summary>
        Original = NativeMethods.TRIREME_MUON_RATE_ORIGINAL,

        /// <summary>0.2 * sqrt(max(rows, columns)): rates and decays as for AdamW.</summary>
        MatchAdamW = NativeMethods.TRIREME_MUON_RATE_MATCH_ADAMW,
    }

    /// <summary>The kinds of state that a range can hold.</summary>
    public enum StateKind
    {
        /// <summary>The parameter's own values.</summary>
        Parameter = NativeMethods.TRIREME_STATE_KIND_PARAMETER,

        /// <summary>A state vector of the update rule.</summary>
        Optimizer = NativeMethods.TRIREME_STATE_KIND_OPTIMIZER,

        /// <summary>Of Adafactor and a matrix: a number for each row.</summary>
        Rows = NativeMethods.TRIREME_STATE_KIND_ROWS,

        /// <summary>Of Adafactor and a matrix: a number for each column.</summary>
        Columns = NativeMethods.TRIREME_STATE_KIND_COLUMNS,
    }

    /// <summary>How the factor of the learning rate goes; schedule.h has the formulas.</summary>
    public enum ScheduleKind
    {
        Constant = NativeMethods.TRIREME_SCHEDULE_KIND_CONSTANT,

        /// <summary>Falls along a straight line.</summary>
        Linear = NativeMethods.TRIREME_SCHEDULE_KIND_LINEAR,

        /// <summary>Falls along half a cosine.</summary>
        Cosine = NativeMethods.TRIREME_SCHEDULE_KIND_COSINE,

        /// <summary>Rises and falls.</summary>
        OneCycle = NativeMethods.TRIREME_SCHEDULE_KIND_ONE_CYCLE,

        /// <summary>The caller's own function.</summary>
        User = NativeMethods.TRIREME_SCHEDULE_KIND_USER,
    }

    [Flags]
    public enum OptimizerFlags
    {
        None = 0,

        /// <summary>
        /// zero1: gradients are reduced in the step, which updates each while its sum is in the
        /// cache: the fewest bytes, the same bits. See optimizer.h for what it goes with.
        /// </summary>
        OneSweep = NativeMethods.TRIREME_OPTIMIZER_FLAG_ONE_SWEEP,

        /// <summary>
        /// Parameters of F16 and Bf16 are the roundings of masters of F32, which the rule changes.
        /// </summary>
        MasterWeights = NativeMethods.TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS,

        /// <summary>
        /// Parameters of Bf16 are rounded by chance: right on average. See
        /// <see cref="OptimizerOptions.RoundingSeed"/>.
        /// </summary>
        StochasticRounding = NativeMethods.TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING,
    }
}
