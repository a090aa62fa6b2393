using System;

namespace Trireme
{
    /// <summary>
    /// The decisions of one route pass, which the other passes of its rows need.
    /// </summary>
    public sealed class Routing
    {
        private readonly ulong[] segments;
        private readonly Share ownExperts;
        private readonly int leaves;

        internal Routing(ExpertsInfo info, int rows, int experts, int topK)
        {
            Rows = rows;
            ownExperts = info.OwnExperts;
            leaves = info.Leaves;
            segments = new ulong[checked((ownExperts.Count * leaves) + 1)];
            Kept = new byte[info.KeptBytes];
            Chosen = new int[checked(rows * topK)];
            Weights = new float[Chosen.Length];
            ExpertRows = new ulong[experts];
            ExpertDropped = new ulong[experts];
            MeanProbabilities = new double[experts];
        }

        /// <summary>Rows of this rank.</summary>
        public int Rows { get; }

        /// <summary>Rows of TopK experts. -1 for a slot that is not routed.</summary>
        public int[] Chosen { get; }

        /// <summary>Rows of TopK weights; 0 in padding rows.</summary>
        public float[] Weights { get; }

        /// <summary>
        /// For each expert the rows of all ranks that chose it, dropped ones among them.
        /// </summary>
        public ulong[] ExpertRows { get; }

        /// <summary>For each expert the rows of all ranks that it dropped.</summary>
        public ulong[] ExpertDropped { get; }

        /// <summary>
        /// For each expert the mean of its probabilities over all rows that are no padding.
        /// </summary>
        public double[] MeanProbabilities { get; }

        /// <summary>Rows that Dispatch brings to this rank.</summary>
        public long ReceivedRows { get; private set; }

        /// <summary>Slots of this rank that are routed.</summary>
        public long SentRows { get; private set; }

        /// <summary>Rows of all ranks that are no padding.</summary>
        public long RealRows { get; private set; }

        /// <summary>
        /// Bytes of this rank that peers read in Dispatch or CombineBackward.
        /// </summary>
        public long DispatchBytes { get; private set; }

        /// <summary>
        /// Bytes of this rank that peers read in Combine or DispatchBackward.
        /// </summary>
        public long CombineBytes { get; private set; }

        internal byte[] Kept { get; }

        /// <summary>The received rows of an expert of this rank that come from a leaf.</summary>
        public Share Segment(int expert, int leaf)
        {
            if (expert < ownExperts.First || expert >= ownExperts.First + ownExperts.Count)
            {
                throw new ArgumentOutOfRangeException(
                    nameof(expert), expert, "No expert of this rank.");
            }

            if (leaf < 0 || leaf >= leaves)
            {
                throw new ArgumentOutOfRangeException(nameof(leaf), leaf, "No leaf.");
            }

            long at = ((expert - ownExperts.First) * leaves) + leaf;
            return new Share((long)segments[at], (long)(segments[at + 1] - segments[at]));
        }

        /// <summary>Makes the route pass. Inputs that are null are left out.</summary>
        internal unsafe void Run(
            ExpertsHandle handle, void* scores, void* padding, void* leafRows, TimeSpan timeout)
        {
            var info = new NativeExpertsRouteInfo
            {
                StructSize = (uint)sizeof(NativeExpertsRouteInfo),
            };
            NativePassOptions options = Vocabulary.PassOptions(timeout);
            fixed (byte* kept = Kept)
            fixed (ulong* places = segments)
            fixed (int* chosen = Chosen)
            fixed (float* weights = Weights)
            fixed (ulong* expertRows = ExpertRows)
            fixed (ulong* expertDropped = ExpertDropped)
            fixed (double* means = MeanProbabilities)
            {
                var arrays = new NativeExpertsRouteArrays
                {
                    StructSize = (uint)sizeof(NativeExpertsRouteArrays),
                    Rows = (ulong)Rows,
                    Scores = (IntPtr)scores,
                    Padding = (IntPtr)padding,
                    LeafRows = (IntPtr)leafRows,
                    Kept = (IntPtr)kept,
                    Segments = (IntPtr)places,
                    Chosen = (IntPtr)chosen,
                    Weights = (IntPtr)weights,
                    ExpertRows = (IntPtr)expertRows,
                    ExpertDropped = (IntPtr)expertDropped,
                    MeanProbabilities = (IntPtr)means,
                };
                TriremeException.Check(NativeMethods.trireme_experts_route(
                    handle, ref arrays, ref info, ref options));
            }

            ReceivedRows = (long)info.ReceivedRows;
            SentRows = (long)info.SentRows;
            RealRows = (long)info.RealRows;
            DispatchBytes = (long)info.DispatchBytes;
            CombineBytes = (long)info.CombineBytes;
        }
    }
}
