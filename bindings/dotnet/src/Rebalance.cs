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
        public int Part { get; set; }

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

        /// <summary>Of Layer.Forward.</summary>
        public double ForwardSeconds { get; }

        /// <summary>
        /// Of Layer.Backward, with the parameters where there is no Layer.BackwardWeight.
        /// </summary>
        public double InputSeconds { get; }

        /// <summary>Of Layer.BackwardWeight; 0 without.</summary>
        public double WeightSeconds { get; }

        /// <summary>
        /// Of the layer's parameters, whole. Those that are tied within it count once.
        /// </summary>
        public ulong ParameterBytes { get; }

        /// <summary>Output and saved.</summary>
        public ulong KeptBytes { get; }

        /// <summary>Layer.OutputBytes.</summary>
        public ulong OutputBytes { get; }

        /// <summary>Of all passes, as LayerCosts has them.</summary>
        public double Seconds => ForwardSeconds + InputSeconds + WeightSeconds;

        /// <summary>
        /// For ParallelContext.Partition and PipelineConfig. Bytes is 0, as these want it.
        /// </summary>
        public LayerCosts ToLayerCosts()
        {
            return new LayerCosts { Seconds = Seconds, KeptBytes = KeptBytes };
        }
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
        /// <remarks>
        /// Both optimizers have the same rule and groups. No unit of this one's model was gathered
        /// since BroadcastParameters(). Dispose of the old trainer first: its activations take
        /// memory.
        /// </remarks>
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
                    Part = PipelineSchedule.Count(options.Part, nameof(options)),
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
