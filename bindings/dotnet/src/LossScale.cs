namespace Trireme
{
    /// <summary>
    /// How losses are scaled; 0 is the default of each number. The caller multiplies its loss by
    /// Optimizer.LossScale. A number is the first scale, and 0 is null: losses are not scaled.
    /// </summary>
    public sealed class LossScale
    {
        /// <summary>The first scale: a power of two in [2^-64, 2^64]. Default: 65536.</summary>
        public double InitialScale { get; set; }

        /// <summary>
        /// The scale grows by this factor, up to 2^64. A power of two in [1, 2^64]. Default: 2.
        /// </summary>
        public double GrowthFactor { get; set; }

        /// <summary>
        /// The scale is multiplied by this after an overflow. A power of two in [2^-64, 1).
        /// Default: 0.5.
        /// </summary>
        public double BackoffFactor { get; set; }

        /// <summary>
        /// The scale never falls below this: a power of two, at most InitialScale. To fix the
        /// scale, set this to InitialScale and GrowthFactor to 1. Default: 1, or InitialScale if
        /// that is less.
        /// </summary>
        public double MinimumScale { get; set; }

        /// <summary>
        /// The scale grows after this many steps in a row without an overflow. Default: 2000.
        /// </summary>
        public ulong GrowthInterval { get; set; }

        /// <summary>
        /// The scale backs off at this overflow since it last grew, and at each further one.
        /// Earlier overflows only skip their step. Default: 1.
        /// </summary>
        public ulong Hysteresis { get; set; }

        /// <summary>The first scale; 0 is null.</summary>
        public static implicit operator LossScale(double initialScale)
        {
            // 0 would else be the default, 65536.
            return initialScale == 0 ? null : new LossScale { InitialScale = initialScale };
        }

        internal unsafe NativeLossScaleOptions Native()
        {
            return new NativeLossScaleOptions
            {
                StructSize = (uint)sizeof(NativeLossScaleOptions),
                InitialScale = InitialScale,
                GrowthFactor = GrowthFactor,
                BackoffFactor = BackoffFactor,
                MinimumScale = MinimumScale,
                GrowthInterval = GrowthInterval,
                Hysteresis = Hysteresis,
            };
        }
    }

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

        /// <summary>The caller multiplies the next loss by this.</summary>
        public double Scale { get; }

        /// <summary>The last step was skipped, as a gradient was inf or NaN.</summary>
        public bool Skipped { get; }

        /// <summary>
        /// The last step overflowed with the scale at its floor, and threw an
        /// InvalidStateException.
        /// </summary>
        public bool AtFloor { get; }

        /// <summary>Steps since the scale last grew or a step was skipped.</summary>
        public ulong CleanSteps { get; }

        /// <summary>Skipped steps since the scale last grew.</summary>
        public ulong Overflows { get; }

        /// <summary>All skipped steps.</summary>
        public ulong SkippedSteps { get; }

        /// <summary>
        /// If the last step was skipped: the lowest number of a parameter that overflowed. Null:
        /// all of them are in other models of NormRanks.
        /// </summary>
        public ulong? Parameter { get; }

        /// <summary>
        /// The lowest rank that handed in an inf or NaN for it. Null: only the sum, or a hook, made
        /// one.
        /// </summary>
        public int? Rank { get; }
    }

    public sealed partial class Optimizer
    {
        /// <summary>
        /// The caller multiplies the loss of the next backward pass by this; 1 without a loss
        /// scale.
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
