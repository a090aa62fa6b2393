using System;

namespace Trireme
{
    /// <summary>The shape of a sealed model.</summary>
    public struct ModelInfo
    {
        internal ModelInfo(NativeModelInfo native)
        {
            Strategy = (Strategy)native.Strategy;
            Rank = native.Rank;
            WorldSize = native.WorldSize;
            Leaves = native.Leaves;
            MicroBatches = native.MicroBatches;
            Parameters = native.Parameters;
            Units = native.Units;
            Elements = native.Elements;
            Buckets = native.Buckets;
            UnitGroups = native.UnitGroups;
            SharedBytes = native.SharedBytes;
        }

        public Strategy Strategy { get; }

        public int Rank { get; }

        public int WorldSize { get; }

        /// <summary>0 if the model is not reproducible.</summary>
        public uint Leaves { get; }

        /// <summary>Most leaves a rank has in a step; 0 if not reproducible.</summary>
        public uint MicroBatches { get; }

        /// <summary>Parameters added, aliases included.</summary>
        public ulong Parameters { get; }

        public ulong Units { get; }

        /// <summary>Elements of the flat vectors; aliases are left out.</summary>
        public ulong Elements { get; }

        /// <summary>Buckets in which gradients are reduced.</summary>
        public ulong Buckets { get; }

        /// <summary>Unit groups, those of persistent units included.</summary>
        public ulong UnitGroups { get; }

        /// <summary>
        /// Size of the one copy of the parameters that ranks share; 0: each has its own memory.
        /// </summary>
        public ulong SharedBytes { get; }
    }

    /// <summary>The place of one unit on this rank.</summary>
    public struct UnitInfo
    {
        internal UnitInfo(NativeUnitInfo native)
        {
            Type = (ElementType)native.Dtype;
            Elements = native.Elements;
            ShardFirst = native.ShardFirst;
            ShardCount = native.ShardCount;
            FlatFirst = native.FlatFirst;
            UnitGroup = native.UnitGroup;
        }

        public ElementType Type { get; }

        /// <summary>Elements of the whole unit.</summary>
        public ulong Elements { get; }

        /// <summary>First element this rank owns.</summary>
        public ulong ShardFirst { get; }

        /// <summary>Elements this rank owns.</summary>
        public ulong ShardCount { get; }

        /// <summary>Where the unit begins in the flat vectors.</summary>
        public ulong FlatFirst { get; }

        /// <summary>Number of its unit group, from 0.</summary>
        public ulong UnitGroup { get; }
    }

    /// <summary>Bytes of this rank by kind: as the plan says, and as really allocated.</summary>
    public struct ModelMemory
    {
        internal ModelMemory(NativeModelMemory native)
        {
            PlannedParameters = native.PlannedParameters;
            PlannedGradients = native.PlannedGradients;
            PlannedOptimizerState = native.PlannedOptimizerState;
            PlannedWorking = native.PlannedWorking;
            AllocatedParameters = native.AllocatedParameters;
            AllocatedGradients = native.AllocatedGradients;
            AllocatedOptimizerState = native.AllocatedOptimizerState;
            AllocatedWorking = native.AllocatedWorking;
            PlannedStepBytes = native.PlannedStepBytes;
            SentStepBytes = native.SentStepBytes;
        }

        public ulong PlannedParameters { get; }

        public ulong PlannedGradients { get; }

        public ulong PlannedOptimizerState { get; }

        public ulong PlannedWorking { get; }

        public ulong AllocatedParameters { get; }

        public ulong AllocatedGradients { get; }

        public ulong AllocatedOptimizerState { get; }

        public ulong AllocatedWorking { get; }

        /// <summary>Bytes given to peers in a step of one micro-batch.</summary>
        public ulong PlannedStepBytes { get; }

        /// <summary>Bytes given in the last step.</summary>
        public ulong SentStepBytes { get; }
    }

    /// <summary>
    /// Counts of the model's calls on this rank since it was sealed.
    /// </summary>
    public struct ModelStatistics
    {
        internal ModelStatistics(NativeModelStatistics native)
        {
            Steps = native.Steps;
            Gathers = native.Gathers;
            Prefetched = native.Prefetched;
            Reductions = native.Reductions;
            PeakUnitGroups = native.PeakUnitGroups;
            const ulong NanosecondsInTick = 100;
            Exposed = TimeSpan.FromTicks((long)(native.ExposedNs / NanosecondsInTick));
            ExtraBuckets = native.ExtraBuckets;
            MovedBuckets = native.MovedBuckets;
            ReshardGathers = native.ReshardGathers;
        }

        /// <summary>Optimizer steps, with those that Join() followed.</summary>
        public ulong Steps { get; }

        /// <summary>Unit groups that this rank gathered from their owners.</summary>
        public ulong Gathers { get; }

        /// <summary>Those of Gathers that began before the caller asked for them.</summary>
        public ulong Prefetched { get; }

        /// <summary>Buckets that were reduced, once for each pass.</summary>
        public ulong Reductions { get; }

        /// <summary>Most unit groups that were whole, or on their way, at one time.</summary>
        public ulong PeakUnitGroups { get; }

        /// <summary>
        /// Time in which calls waited: communication that compute did not hide.
        /// </summary>
        public TimeSpan Exposed { get; }

        /// <summary>
        /// How often a bucket took memory beyond the plan, because gradients came in another order.
        /// </summary>
        public ulong ExtraBuckets { get; }

        /// <summary>Buckets reduced at another place than in the first step.</summary>
        public ulong MovedBuckets { get; }

        /// <summary>Those of Gathers that came from ReshardRanks only.</summary>
        public ulong ReshardGathers { get; }
    }
}
