using System;

namespace Trireme
{
    /// <summary>What a call of the native library answered.</summary>
    public enum Status
    {
        Ok = 0,
        InvalidArgument = -1,
        InvalidHandle = -2,
        InvalidState = -3,
        Unsupported = -4,
        OutOfMemory = -5,
        Timeout = -6,
        Aborted = -7,
        PeerLost = -8,
        Mismatch = -9,
        Corrupt = -10,
        Authentication = -11,
        System = -12,
        Callback = -13,
        Cancelled = -14,
        Internal = -15,
    }

    /// <summary>Type of the elements of a buffer.</summary>
    public enum ElementType
    {
        /// <summary>The one that belongs to the C# type, for example F32 for float.</summary>
        Automatic = 0,
        I8 = 1,
        U8 = 2,
        I16 = 3,
        U16 = 4,
        I32 = 5,
        U32 = 6,
        I64 = 7,
        U64 = 8,

        /// <summary>IEEE binary16, in any 2-byte type.</summary>
        F16 = 9,

        /// <summary>bfloat16, in any 2-byte type.</summary>
        Bf16 = 10,
        F32 = 11,
        F64 = 12,
        F8E4M3 = 13,
        F8E5M2 = 14,
        Bool = 15,

        /// <summary>Moved and never reduced; works for every type without references.</summary>
        Bytes = 16,
    }

    /// <summary>How contributions of ranks become one value.</summary>
    public enum Reduction
    {
        Sum = 1,
        Average = 2,
        Product = 3,
        Min = 4,
        Max = 5,
        Band = 6,
        Bor = 7,
        Bxor = 8,

        /// <summary>Sum, then multiplication by <see cref="OperationOptions.Scale"/>.</summary>
        ScaledSum = 9,
    }

    /// <summary>Where a buffer lives.</summary>
    public enum DeviceKind
    {
        Default = 0,
        Host = 1,
        Cuda = 2,
    }

    /// <summary>Operations a backend can be asked about.</summary>
    public enum Operation
    {
        Any = 0,
        AllReduce = 1,
        ReduceScatter = 2,
        ReduceScatterV = 3,
        AllGather = 4,
        AllGatherV = 5,
        Broadcast = 6,
        Barrier = 7,
        Send = 8,
        Receive = 9,
        Reduce = 10,
        Gather = 11,
        GatherV = 12,
        Scatter = 13,
        ScatterV = 14,
        AllToAll = 15,
        AllToAllV = 16,
        Probe = 17,
    }

    /// <summary>How a collective is made of messages between two ranks.</summary>
    public enum Algorithm
    {
        /// <summary>The library chooses.</summary>
        Automatic = 0,
        Direct = 1,
        Ring = 2,
        HalvingDoubling = 3,
        Binomial = 4,
        DoubleTree = 5,
        Bruck = 6,
        Pairwise = 7,
        Native = 8,
    }

    /// <summary>Flags of one call, as the library numbers them.</summary>
    [System.Flags]
    internal enum CallFlags : uint
    {
        Reproducible = 1,
        Buffered = 2,
        AnyTag = 4,
    }

    /// <summary>How urgent a collective is.</summary>
    public enum Priority
    {
        Normal = 0,

        /// <summary>Does not wait behind normal ones: it has a queue of its own.</summary>
        High = 1,
    }

    /// <summary>How ranks are numbered along the axes of a mesh.</summary>
    public enum MeshOrder
    {
        /// <summary>
        /// "tensor" is fastest, then "context", "expert", "shard", "data", "pipeline"; other names
        /// are slower than these.
        /// </summary>
        ByName = 0,

        /// <summary>The last axis of the list is fastest.</summary>
        LastFastest = 1,

        /// <summary>The first axis of the list is fastest.</summary>
        FirstFastest = 2,
    }

    /// <summary>How much a log message matters.</summary>
    public enum LogLevel
    {
        Error = 1,
        Warning = 2,
        Info = 3,
        Debug = 4,
    }

    /// <summary>How a model is spread over the ranks.</summary>
    public enum Strategy
    {
        /// <summary>Everything on every rank (DDP).</summary>
        DataParallel = 1,

        /// <summary>Optimizer state sharded.</summary>
        Zero1 = 2,

        /// <summary>Gradients too.</summary>
        Zero2 = 3,

        /// <summary>Parameters too (fully sharded).</summary>
        Zero3 = 4,

        /// <summary>
        /// Parameters within groups of ShardRanks, gradients and state over all ranks.
        /// </summary>
        HybridShard = 5,

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
        Average = 0,
        Sum = 1,
    }

    /// <summary>What becomes of parameters whose gradient is not handed in.</summary>
    public enum Unused
    {
        /// <summary>The end of the backward pass fails and names them.</summary>
        Error = 0,

        /// <summary>The gradient counts as zero.</summary>
        Zero = 1,

        /// <summary>
        /// As Zero, but a parameter that no rank had a gradient for is not updated in that step.
        /// </summary>
        Skip = 2,
    }

    /// <summary>
    /// Whether ranks that share memory keep one copy of the parameters between them.
    /// </summary>
    public enum ShareParameters
    {
        /// <summary>Zero3 and HybridShard do, if the ranks of a copy share memory.</summary>
        Auto = 0,

        /// <summary>Zero1 and Zero2 too, or the model is refused.</summary>
        Always = 1,

        /// <summary>Every rank has memory of its own, and gathers copy.</summary>
        Never = 2,
    }

    [Flags]
    public enum ModelFlags
    {
        None = 0,

        /// <summary>
        /// Ranks may be absent from a pass, and join the others when they run out of data.
        /// </summary>
        Uneven = 1,

        /// <summary>
        /// Buckets are reduced in the reverse order of registration in all steps, and not in the
        /// order in which the first step's gradients came.
        /// </summary>
        FixedOrder = 2,

        /// <summary>Shards are cut between rows of parameters.</summary>
        WholeRows = 4,

        /// <summary>
        /// Zero3, HybridShard: units stay whole after their release until parameters change.
        /// </summary>
        KeepGathered = 8,

        /// <summary>
        /// Each bucket is updated as soon as it is reduced, and no gradients are kept: a parameter may
        /// change from the moment its gradient is handed in until the step ends.
        /// </summary>
        UpdateInBackward = 16,
    }

    /// <summary>When a bucket hook is called.</summary>
    public enum HookPhase
    {
        /// <summary>This rank's contribution is complete and no peer sees it yet.</summary>
        Before = 1,

        /// <summary>
        /// The part of the reduced gradients that this rank updates, before it is clipped.
        /// </summary>
        After = 2,
    }

    /// <summary>Why a layer of a trainer is called.</summary>
    public enum LayerPhase
    {
        /// <summary>Before backward.</summary>
        Forward = 1,

        /// <summary>Forward again, of what was not kept.</summary>
        Recompute = 2,

        /// <summary>Gradients.</summary>
        Backward = 3,

        /// <summary>Forward that no backward follows.</summary>
        Evaluate = 4,
    }

    [Flags]
    public enum ParameterFlags
    {
        None = 0,

        /// <summary>Has no gradient and is not updated.</summary>
        Frozen = 1,
    }

    [Flags]
    public enum BackwardFlags
    {
        None = 0,

        /// <summary>Keep the gradients here and add the next pass to them.</summary>
        NoSync = 1,

        /// <summary>
        /// This rank of an uneven model has no data for the pass and hands in nothing.
        /// </summary>
        Absent = 2,
    }

    /// <summary>An update rule.</summary>
    public enum OptimizerKind
    {
        Sgd = 1,
        Adam = 2,
        Adamw = 3,

        /// <summary>The delegate <see cref="OptimizerOptions.Rule"/>.</summary>
        User = 4,
        Adagrad = 5,
        Rmsprop = 6,
        Lion = 7,
        Lamb = 8,
        Lars = 9,
        Adafactor = 10,

        /// <summary>Matrices go along orthogonal ones, all else goes as with Adamw.</summary>
        Muon = 11,
    }

    /// <summary>What is different for one group of parameters.</summary>
    [Flags]
    public enum GroupFlags
    {
        None = 0,

        /// <summary>Of Muon: none of its parameters is a matrix.</summary>
        Elementwise = 1,
    }

    /// <summary>By what Muon multiplies the learning rate of a matrix.</summary>
    public enum RateAdjustment
    {
        /// <summary>sqrt(max(1, rows / columns)).</summary>
        Original = 0,

        /// <summary>0.2 * sqrt(max(rows, columns)): rates and decays as for Adamw.</summary>
        MatchAdamw = 1,
    }

    /// <summary>What a range of state belongs to.</summary>
    public enum StateKind
    {
        /// <summary>The parameter's own values.</summary>
        Parameter = 1,

        /// <summary>A state vector of the update rule.</summary>
        Optimizer = 2,

        /// <summary>Of Adafactor and a matrix: a number for each row.</summary>
        Rows = 3,

        /// <summary>Of Adafactor and a matrix: a number for each column.</summary>
        Columns = 4,
    }

    /// <summary>How the factor of the learning rate goes; schedule.h has the formulas.</summary>
    public enum ScheduleKind
    {
        Constant = 1,

        /// <summary>Falls along a straight line.</summary>
        Linear = 2,

        /// <summary>Falls along half a cosine.</summary>
        Cosine = 3,

        /// <summary>Rises and falls.</summary>
        OneCycle = 4,

        /// <summary>The caller's own function.</summary>
        User = 5,
    }

    /// <summary>How a schedule begins and bends.</summary>
    [Flags]
    public enum ScheduleFlags
    {
        None = 0,

        /// <summary>With WarmUpSteps: the first factor is 0.</summary>
        FromZero = 1,

        /// <summary>OneCycle only: straight lines.</summary>
        LinearAnnealing = 2,
    }

    [Flags]
    public enum OptimizerFlags
    {
        None = 0,
        Nesterov = 1,

        /// <summary>
        /// zero1: gradients are reduced in the step, which updates each while its sum is in the
        /// cache: the fewest bytes, the same bits. See optimizer_shard.h for what it goes with.
        /// </summary>
        OneSweep = 2,

        /// <summary>Rmsprop: gradients are divided by their spread around their mean.</summary>
        Centered = 4,

        /// <summary>
        /// Parameters of F16 and Bf16 are the roundings of masters of F32, which the rule changes.
        /// </summary>
        MasterWeights = 8,

        /// <summary>
        /// Parameters of Bf16 are rounded by chance: right on average. See
        /// <see cref="OptimizerOptions.RoundingSeed"/>.
        /// </summary>
        StochasticRounding = 16,
    }
}
