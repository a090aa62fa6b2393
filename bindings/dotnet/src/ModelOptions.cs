using System;

namespace Trireme
{
    /// <summary>When gradients are reduced; zero is the default.</summary>
    public sealed class Buckets
    {
        /// <summary>Gradients are reduced once this many bytes are ready. 0: 25 MiB.</summary>
        public ulong Bytes { get; set; }

        /// <summary>
        /// As Bytes, for the bucket that backward fills first: a small one begins the exchange
        /// early. 0: 1 MiB, or Bytes if that is less.
        /// </summary>
        public ulong FirstBytes { get; set; }

        /// <summary>The caller's own work on each bucket; all ranks have one or none has.</summary>
        public BucketHook Hook { get; set; }

        internal unsafe NativeBucketOptions Native(HookRunner hook)
        {
            return new NativeBucketOptions
            {
                StructSize = (uint)sizeof(NativeBucketOptions),
                Bytes = Bytes,
                FirstBytes = FirstBytes,
                Hook = hook == null ? IntPtr.Zero : HookRunner.Pointer,
                UserData = hook == null ? IntPtr.Zero : hook.UserData,
            };
        }
    }

    /// <summary>How Zero3 and HybridShard gather units for use; zero is the default.</summary>
    public sealed class Units
    {
        /// <summary>
        /// This many neighbouring ranks keep each unit spread between them after its first gather,
        /// until parameters change. Later gathers, as for backward, come from these ranks alone. 0:
        /// each gather comes from all ranks that keep a copy.
        /// </summary>
        public uint ReshardRanks { get; set; }

        /// <summary>
        /// Neighbouring units are gathered together until they have this many bytes; 1 joins none.
        /// 0: 1 MiB.
        /// </summary>
        public ulong MinimumBytes { get; set; }

        /// <summary>
        /// Units below this many bytes stay whole on every rank and need no gather.
        /// </summary>
        public ulong PersistentBytes { get; set; }

        /// <summary>
        /// Bytes that gathered units may take beyond the unit in use. 0: those of the largest unit.
        /// </summary>
        public ulong PrefetchBytes { get; set; }

        internal unsafe NativeUnitOptions Native()
        {
            return new NativeUnitOptions
            {
                StructSize = (uint)sizeof(NativeUnitOptions),
                ReshardRanks = ReshardRanks,
                MinimumBytes = MinimumBytes,
                PersistentBytes = PersistentBytes,
                PrefetchBytes = PrefetchBytes,
            };
        }
    }

    /// <summary>
    /// The ranks that keep a copy of the parameters between them; zero is the default. A number
    /// stands for Ranks.
    /// </summary>
    public sealed class Shards
    {
        /// <summary>
        /// HybridShard: this many ranks keep one copy of the parameters between them. It divides
        /// the number of ranks. 0: the ranks of a host.
        /// </summary>
        public uint Ranks { get; set; }

        /// <summary>
        /// HybridShard: the ranks of a copy are this far apart; 0 is 1, neighbours.
        /// </summary>
        public uint Stride { get; set; }

        /// <summary>Whether the ranks of a host share one copy.</summary>
        public ShareParameters Share { get; set; }

        /// <summary>This many neighbouring ranks keep a copy.</summary>
        public static implicit operator Shards(int ranks)
        {
            if (ranks < 0)
            {
                throw new ArgumentOutOfRangeException(
                    nameof(ranks), ranks, "A copy is kept by 1 rank or more; 0 is the default.");
            }

            return new Shards { Ranks = (uint)ranks };
        }

        internal unsafe NativeShardOptions Native()
        {
            return new NativeShardOptions
            {
                StructSize = (uint)sizeof(NativeShardOptions),
                Ranks = Ranks,
                Stride = Stride,
                Share = (int)Share,
            };
        }
    }

    /// <summary>How to spread a model; null and zero are the defaults.</summary>
    public class ModelOptions
    {
        /// <summary>Required.</summary>
        public Strategy Strategy { get; set; }

        public Gradients Gradients { get; set; }

        /// <summary>
        /// Leaves of the global batch: the result is then the same bits for every number of ranks
        /// and strategy. 0: every rank brings a batch of its own.
        /// </summary>
        public uint Leaves { get; set; }

        /// <summary>
        /// How the end of a backward pass treats gradients that the caller did not hand in.
        /// </summary>
        public Unused Unused { get; set; }

        public ModelFlags Flags { get; set; }

        /// <summary>
        /// F16 or Bf16: each rank rounds its contribution to a gradient to this type and sends 2
        /// bytes an element; sums stay F32. Automatic: gradients travel as they are.
        /// </summary>
        public ElementType ReduceType { get; set; }

        /// <summary>
        /// Seal() counts the state of this rule with its defaults against MemoryLimitBytes, which
        /// it needs. Not RuleKind.User. Null: no rule is counted.
        /// </summary>
        public RuleKind? PlannedRule { get; set; }

        /// <summary>
        /// Most bytes that any rank may plan to hold. Above it Seal() fails on all ranks, and the
        /// message tells which settings would fit. The creation of an optimizer counts its state
        /// and fails likewise. 0 is no limit.
        /// </summary>
        public ulong MemoryLimitBytes { get; set; }

        /// <summary>Longest any call may wait; zero is the communicator's.</summary>
        public TimeSpan Timeout { get; set; }

        /// <summary>When gradients are reduced. Null: with its defaults.</summary>
        public Buckets Buckets { get; set; }

        /// <summary>How units are gathered for use. Null: with its defaults.</summary>
        public Units Units { get; set; }

        /// <summary>
        /// The ranks that keep a copy of the parameters between them; a number stands for
        /// Shards.Ranks. Null: with its defaults.
        /// </summary>
        public Shards Shards { get; set; }

        /// <summary>
        /// Zero3, HybridShard: a file of this rank's part of the parameters, which come to memory
        /// unit by unit. A directory alone will do. Null: parameters stay in memory.
        /// </summary>
        public Offload Offload { get; set; }

        internal unsafe NativeModelOptions Native(CallMemory memory, HookRunner hook)
        {
            return new NativeModelOptions
            {
                StructSize = (uint)sizeof(NativeModelOptions),
                Strategy = (int)Strategy,
                Gradients = (int)Gradients,
                Leaves = Leaves,
                Unused = (int)Unused,
                Flags = (uint)Flags,
                ReduceDtype = (int)ReduceType,
                PlannedRule = (int)(PlannedRule ?? 0),
                MemoryLimitBytes = MemoryLimitBytes,
                TimeoutNs = Nanoseconds.From(Timeout, nameof(Timeout)),
                Buckets = Buckets == null ? IntPtr.Zero : memory.Put(Buckets.Native(hook)),
                Units = Units == null ? IntPtr.Zero : memory.Put(Units.Native()),
                Shards = Shards == null ? IntPtr.Zero : memory.Put(Shards.Native()),
                Offload = Offload == null ? IntPtr.Zero : memory.Put(Offload.Native(memory)),
            };
        }
    }
}
