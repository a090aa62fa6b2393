using System;

namespace Trireme
{
    /// <summary>A layer of experts that lie on several ranks.</summary>
    public sealed class ExpertsOptions
    {
        /// <summary>Name for messages, which ranks compare. Required.</summary>
        public string Name { get; set; }

        /// <summary>Experts of all ranks together. Required.</summary>
        public int Experts { get; set; }

        /// <summary>Experts that a row chooses. Required.</summary>
        public int TopK { get; set; }

        /// <summary>Elements of a row.</summary>
        public long Width { get; set; }

        /// <summary>Most rows of this rank in a pass.</summary>
        public long Rows { get; set; }

        /// <summary>F32, F64, F16 or Bf16.</summary>
        public ElementType ElementType { get; set; } = ElementType.F32;

        public ExpertScores Scores { get; set; } = ExpertScores.Logits;

        /// <summary>The weights of a row are divided by their sum.</summary>
        public bool Normalize { get; set; }

        /// <summary>Most rows of a leaf that an expert takes; 0 means all.</summary>
        public long Capacity { get; set; }

        /// <summary>Rows that are dropped. Required with a capacity.</summary>
        public ExpertDrop Drop { get; set; } = ExpertDrop.None;

        /// <summary>
        /// Leaves of a pass over all ranks; 0 means one for each rank. Bits depend on this number,
        /// and not on the number of ranks.
        /// </summary>
        public int Leaves { get; set; }

        /// <summary>Longest time of a pass; zero is the communicator's.</summary>
        public TimeSpan Timeout { get; set; }

        internal unsafe NativeExpertsOptions Native(IntPtr name)
        {
            return new NativeExpertsOptions
            {
                StructSize = (uint)sizeof(NativeExpertsOptions),
                Flags = Normalize ? (uint)NativeMethods.TRIREME_EXPERTS_FLAG_NORMALIZE : 0,
                Name = name,
                Experts = (uint)Vocabulary.Positive(Experts, nameof(Experts)),
                TopK = (uint)Vocabulary.Positive(TopK, nameof(TopK)),
                Width = Vocabulary.Positive(Width, nameof(Width)),
                Rows = Vocabulary.Positive(Rows, nameof(Rows)),
                Dtype = (int)ElementType,
                Scores = (int)Scores,
                Capacity = Vocabulary.Positive(Capacity, nameof(Capacity)),
                Drop = (int)Drop,
                Leaves = (uint)Vocabulary.Positive(Leaves, nameof(Leaves)),
                TimeoutNs = Nanoseconds.From(Timeout, nameof(Timeout)),
            };
        }
    }

    /// <summary>Sizes and counts of a layer of experts on this rank.</summary>
    public struct ExpertsInfo
    {
        internal ExpertsInfo(NativeExpertsInfo info)
        {
            OwnExperts = new Share(info.FirstExpert, info.ExpertCount);
            OwnLeaves = new Share(info.FirstLeaf, info.LeafCount);
            Leaves = (int)info.Leaves;
            MostReceived = (long)info.MostReceived;
            MostSent = (long)info.MostSent;
            KeptBytes = (long)info.KeptBytes;
            TableBytes = (long)info.TableBytes;
            PassMemory = (long)info.PassMemory;
            HeldMemory = (long)info.HeldMemory;
            RouteBytes = (long)info.RouteBytes;
            Routes = (long)info.Routes;
            Dispatches = (long)info.Dispatches;
            Combines = (long)info.Combines;
            CombinesBackward = (long)info.CombinesBackward;
            DispatchesBackward = (long)info.DispatchesBackward;
        }

        /// <summary>The experts of this rank; may be none.</summary>
        public Share OwnExperts { get; }

        /// <summary>The leaves of this rank's rows.</summary>
        public Share OwnLeaves { get; }

        /// <summary>Leaves of all ranks.</summary>
        public int Leaves { get; }

        /// <summary>Most rows that a dispatch pass brings to this rank.</summary>
        public long MostReceived { get; }

        /// <summary>Most slots of this rank's rows that are routed in a pass.</summary>
        public long MostSent { get; }

        /// <summary>Bytes that a routing keeps.</summary>
        public long KeptBytes { get; }

        /// <summary>Memory of the layer's tables.</summary>
        public long TableBytes { get; }

        /// <summary>Bytes of memory that the passes which move rows need here.</summary>
        public long PassMemory { get; }

        /// <summary>Bytes of it that the layer holds: none before the first such pass.</summary>
        public long HeldMemory { get; }

        /// <summary>Bytes of this rank that peers read in a route pass.</summary>
        public long RouteBytes { get; }

        /// <summary>Route passes that have succeeded.</summary>
        public long Routes { get; }

        /// <summary>Dispatch passes that have succeeded.</summary>
        public long Dispatches { get; }

        /// <summary>Combine passes that have succeeded.</summary>
        public long Combines { get; }

        /// <summary>Backward combine passes that have succeeded.</summary>
        public long CombinesBackward { get; }

        /// <summary>Backward dispatch passes that have succeeded.</summary>
        public long DispatchesBackward { get; }
    }
}
