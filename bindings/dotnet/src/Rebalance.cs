using System;
using System.Linq;

namespace Trireme
{
    /// <summary>How a training moves; zero is the default.</summary>
    public sealed class RebalanceOptions
    {
        /// <summary>
        /// The new cuts, which ranks compare. Null: they compare what they hold alone.
        /// </summary>
        public long[] Cuts { get; set; }

        /// <summary>This rank's place along tensor, if that has several ranks.</summary>
        public uint Part { get; set; }

        /// <summary>Bytes of each of two buffers, the same on all ranks.</summary>
        public ulong BufferBytes { get; set; }

        /// <summary>Deadline of each wait. Zero: that of the communicator.</summary>
        public TimeSpan Timeout { get; set; }
    }

    /// <summary>Bytes that moved, and the memory for it, on this rank.</summary>
    public struct RebalanceReport
    {
        internal RebalanceReport(NativeRebalanceReport native)
        {
            SentBytes = native.SentBytes;
            ReceivedBytes = native.ReceivedBytes;
            KeptBytes = native.KeptBytes;
            BufferBytes = native.BufferBytes;
            PeakBytes = native.PeakBytes;
        }

        /// <summary>State that went to other ranks.</summary>
        public ulong SentBytes { get; }

        /// <summary>State that came from other ranks.</summary>
        public ulong ReceivedBytes { get; }

        /// <summary>State that stayed on this rank.</summary>
        public ulong KeptBytes { get; }

        /// <summary>Both buffers.</summary>
        public ulong BufferBytes { get; }

        /// <summary>Both models, both optimizers and the buffers.</summary>
        public ulong PeakBytes { get; }
    }

    /// <summary>
    /// Times and bytes of a pipeline's layer for a micro-batch, the same on all ranks.
    /// </summary>
    public struct MeasuredCosts
    {
        internal MeasuredCosts(NativeMeasuredCosts native)
        {
            ForwardSeconds = native.ForwardSeconds;
            InputSeconds = native.InputSeconds;
            WeightSeconds = native.WeightSeconds;
            ParameterBytes = native.ParameterBytes;
            KeptBytes = native.KeptBytes;
            OutputBytes = native.OutputBytes;
        }

        public double ForwardSeconds { get; }

        /// <summary>
        /// Of Layer.Backward, with the parameters where there is no Layer.BackwardWeight.
        /// </summary>
        public double InputSeconds { get; }

        public double WeightSeconds { get; }

        public ulong ParameterBytes { get; }

        /// <summary>Output and saved.</summary>
        public ulong KeptBytes { get; }

        public ulong OutputBytes { get; }

        /// <summary>Of all passes, as LayerCosts has them.</summary>
        public double Seconds => ForwardSeconds + InputSeconds + WeightSeconds;
    }

    public sealed partial class Optimizer
    {
        /// <summary>
        /// Takes over the training of another optimizer between steps: parameters, state and
        /// counters. This one's model has the parameters of this rank from now on. Set the schedule
        /// again. If this fails, the other one goes on as it was. It may not if a rank is lost or
        /// late, or if memory or a file fails it in the middle of the move. Collective over all
        /// ranks of the communicator: those of the old models and of the new ones.
        /// </summary>
        public unsafe RebalanceReport TakeOver(
            Optimizer old, Communicator communicator, RebalanceOptions options = null)
        {
            if (old == null)
            {
                throw new ArgumentNullException(nameof(old));
            }

            if (communicator == null)
            {
                throw new ArgumentNullException(nameof(communicator));
            }

            options = options ?? new RebalanceOptions();
            long[] cuts = options.Cuts ?? new long[0];
            var report = new NativeRebalanceReport
            {
                StructSize = (uint)sizeof(NativeRebalanceReport),
            };
            using (var memory = new CallMemory())
            {
                var native = new NativeRebalanceOptions
                {
                    StructSize = (uint)sizeof(NativeRebalanceOptions),
                    Part = options.Part,
                    Communicator = memory.Hold(communicator.Handle),
                    Cuts = memory.Put(cuts.Select(cut => checked((ulong)cut)).ToArray()),
                    CutCount = (ulong)cuts.Length,
                    BufferBytes = options.BufferBytes,
                    TimeoutNs = Nanoseconds.From(options.Timeout, nameof(options)),
                };
                TriremeException.Check(NativeMethods.trireme_parallel_rebalance(
                    old.handle, handle, ref native, ref report));
            }

            Model.Changed?.Invoke();
            return new RebalanceReport(report);
        }
    }
}
