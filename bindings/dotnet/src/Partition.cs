using System;

namespace Trireme
{
    /// <summary>Seconds and bytes of one layer.</summary>
    public struct LayerCosts
    {
        /// <summary>Seconds of F, I and W together.</summary>
        public double Seconds;

        /// <summary>Bytes of parameters, gradients and state.</summary>
        public ulong Bytes;

        /// <summary>Bytes of each micro-batch that a rank keeps.</summary>
        public ulong KeptBytes;
    }

    /// <summary>Layers cut into the stages of a pipeline.</summary>
    public sealed class Partition
    {
        internal Partition(long[] cuts, double seconds)
        {
            Cuts = cuts;
            Seconds = seconds;
        }

        /// <summary>The first layer of each stage, and the number of layers.</summary>
        public long[] Cuts { get; }

        /// <summary>Of the slowest stage, or with V and Wave of the slowest rank.</summary>
        public double Seconds { get; }

        /// <summary>Cuts layers so that the slowest stage or rank is as fast as can be.</summary>
        /// <param name="layers">Costs of the layers.</param>
        /// <param name="ranks">Ranks of the pipeline.</param>
        /// <param name="stagesPerRank">Stages of each rank.</param>
        /// <param name="placement">Loop, V or Wave.</param>
        /// <param name="allowEmpty">Whether stages may be without layers.</param>
        /// <param name="limits">Bytes of each rank; null is no limit.</param>
        /// <param name="inFlight">
        /// Micro-batches that each rank keeps at a time; null is one each.
        /// </param>
        public static unsafe Partition Cut(
            LayerCosts[] layers, int ranks, int stagesPerRank = 1,
            PipelinePlacement placement = PipelinePlacement.Loop, bool allowEmpty = false,
            ulong[] limits = null, int[] inFlight = null)
        {
            NativePipelineLayerCosts[] native = Native(layers);
            CheckLength(limits, ranks, nameof(limits));
            CheckLength(inFlight, ranks, nameof(inFlight));
            uint[] kept = Array.ConvertAll(
                inFlight ?? new int[1], count => PipelineSchedule.Count(count, nameof(inFlight)));

            var options = new NativePartitionOptions
            {
                StructSize = (uint)sizeof(NativePartitionOptions),
                Flags = allowEmpty ? (uint)NativeMethods.TRIREME_PARTITION_FLAG_ALLOW_EMPTY : 0,
                Ranks = PipelineSchedule.Count(ranks, nameof(ranks)),
                StagesPerRank = PipelineSchedule.Count(stagesPerRank, nameof(stagesPerRank)),
                Placement = (int)placement,
            };
            long stages = Math.Min((long)ranks * Math.Max(stagesPerRank, 1), 1 << 18);
            var cuts = new ulong[stages + 1];
            double seconds;
            fixed (NativePipelineLayerCosts* first = native)
            fixed (ulong* most = limits ?? new ulong[1])
            fixed (uint* held = kept)
            {
                options.Limits = limits == null ? IntPtr.Zero : (IntPtr)most;
                options.InFlight = inFlight == null ? IntPtr.Zero : (IntPtr)held;

                TriremeException.Check(
                    NativeMethods.trireme_partition(
                        first, (ulong)layers.Length, ref options, ref cuts[0], (ulong)cuts.Length,
                        out seconds));
            }

            return new Partition(Array.ConvertAll(cuts, cut => (long)cut), seconds);
        }

        private static void CheckLength(Array values, int ranks, string name)
        {
            if (values != null && values.Length != ranks)
            {
                throw new ArgumentException(
                    values.Length + " numbers for " + ranks + " ranks", name);
            }
        }

        internal static unsafe NativePipelineLayerCosts[] Native(LayerCosts[] layers)
        {
            if (layers == null)
            {
                throw new ArgumentNullException(nameof(layers));
            }

            // One at least, so that there is an address.
            var native = new NativePipelineLayerCosts[Math.Max(layers.Length, 1)];
            for (int i = 0; i < layers.Length; ++i)
            {
                native[i] = new NativePipelineLayerCosts
                {
                    StructSize = (uint)sizeof(NativePipelineLayerCosts),
                    Seconds = layers[i].Seconds, Bytes = layers[i].Bytes,
                    KeptBytes = layers[i].KeptBytes,
                };
            }

            return native;
        }
    }
}
