namespace Trireme
{
    /// <summary>The loss scale, and how the last step went with it.</summary>
    public struct LossScaleInfo
    {
        internal LossScaleInfo(NativeLossScaleInfo native)
        {
            Scale = native.Scale;
            Skipped = native.Skipped != 0;
            AtFloor = native.AtFloor != 0;
            CleanSteps = native.CleanSteps;
            Overflows = native.Overflows;
            SkippedSteps = native.SkippedSteps;
            Parameter = native.Parameter == ulong.MaxValue ? (ulong?)null : native.Parameter;
            Rank = native.Rank < 0 ? (int?)null : native.Rank;
        }

        /// <summary>What the next loss is multiplied by.</summary>
        public double Scale { get; }

        /// <summary>The last step was skipped, as a gradient was inf or NaN.</summary>
        public bool Skipped { get; }

        /// <summary>
        /// And the scale is at its floor: that step has thrown an InvalidStateException.
        /// </summary>
        public bool AtFloor { get; }

        /// <summary>Steps since the scale grew or one was skipped.</summary>
        public ulong CleanSteps { get; }

        /// <summary>Skipped steps since the scale grew.</summary>
        public ulong Overflows { get; }

        /// <summary>Skipped steps in all.</summary>
        public ulong SkippedSteps { get; }

        /// <summary>
        /// If the last step was skipped: the first parameter that overflowed. Null: one of another
        /// model of NormRanks.
        /// </summary>
        public ulong? Parameter { get; }

        /// <summary>
        /// The first rank that handed in an inf or NaN for it. Null: only the sum overflowed.
        /// </summary>
        public int? Rank { get; }
    }

    public sealed partial class Optimizer
    {
        /// <summary>
        /// What the loss of the next backward pass is multiplied by; 1 without a loss scale.
        /// </summary>
        public double LossScale
        {
            get
            {
                double scale;
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_get_loss_scale(handle, out scale));
                return scale;
            }
        }

        /// <summary>How the last step went with the loss scale.</summary>
        public unsafe LossScaleInfo LossScaleInfo
        {
            get
            {
                var native = new NativeLossScaleInfo
                {
                    StructSize = (uint)sizeof(NativeLossScaleInfo),
                };
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_get_loss_scale_info(handle, ref native));
                return new LossScaleInfo(native);
            }
        }
    }
}
