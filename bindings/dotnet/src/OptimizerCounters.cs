using System;

namespace Trireme
{
    /// <summary>
    /// The counts of an optimizer, the same on all ranks: the state of training that is in no
    /// range. A later release may count more, and then has another version.
    /// </summary>
    public sealed class OptimizerCounters
    {
        /// <summary>To be kept with the numbers; Restore() refuses one that it does not know.</summary>
        public uint Version { get; set; } =
            NativeMethods.TRIREME_OPTIMIZER_COUNTERS_VERSION;

        /// <summary>Steps that were made.</summary>
        public ulong Steps { get; set; }

        /// <summary>The learning rate as set, without the factor of a schedule.</summary>
        public double LearningRate { get; set; } = double.NaN;

        /// <summary>The caller multiplies the next loss by this; 0: no loss scale.</summary>
        public double LossScale { get; set; }

        /// <summary>Steps since the scale grew or one was skipped.</summary>
        public ulong CleanSteps { get; set; }

        /// <summary>Skipped steps since the scale grew.</summary>
        public ulong Overflows { get; set; }

        /// <summary>Skipped steps in all.</summary>
        public ulong SkippedSteps { get; set; }

        /// <summary>
        /// By number of the parameter, the steps in which it had a gradient; with
        /// Unused.Skip, else empty.
        /// </summary>
        public ulong[] ParameterSteps { get; set; } = new ulong[0];

        /// <summary>
        /// For each group of parameters, its factor of the learning rate; empty without groups.
        /// </summary>
        public double[] GroupRateFactors { get; set; } = new double[0];
    }

    public sealed partial class Optimizer
    {
        /// <summary>
        /// Its counts: with them and all ranges, a training goes on in another layout.
        /// </summary>
        public unsafe OptimizerCounters Counters
        {
            get
            {
                NativeOptimizerCounters native = NewCounters();
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_get_counters(handle, ref native));
                var steps = new ulong[checked((int)native.ParameterCount)];
                var factors = new double[checked((int)native.GroupCount)];
                fixed (ulong* firstSteps = steps)
                fixed (double* firstFactor = factors)
                {
                    native.ParameterSteps = (IntPtr)firstSteps;
                    native.GroupRateFactors = (IntPtr)firstFactor;
                    TriremeException.Check(
                        NativeMethods.trireme_optimizer_get_counters(handle, ref native));
                }

                return new OptimizerCounters
                {
                    Version = native.Version,
                    Steps = native.Steps,
                    LearningRate = native.LearningRate,
                    LossScale = native.LossScale,
                    CleanSteps = native.CleanSteps,
                    Overflows = native.Overflows,
                    SkippedSteps = native.SkippedSteps,
                    ParameterSteps = steps,
                    GroupRateFactors = factors,
                };
            }
        }

        /// <summary>
        /// Goes on with a training whose ranges each rank has written: gives every rank what the
        /// owners of the ranges have written, and sets what the optimizer counts. Nothing changes
        /// unless all ranks give the same counters. A schedule is to be set again. Collective.
        /// </summary>
        public unsafe void Restore(OptimizerCounters counters)
        {
            if (counters == null)
            {
                throw new ArgumentNullException(nameof(counters));
            }

            ulong[] steps = counters.ParameterSteps ?? new ulong[0];
            double[] factors = counters.GroupRateFactors ?? new double[0];
            NativeOptimizerCounters native = NewCounters();
            native.Version = counters.Version;
            native.Steps = counters.Steps;
            native.LearningRate = counters.LearningRate;
            native.LossScale = counters.LossScale;
            native.CleanSteps = counters.CleanSteps;
            native.Overflows = counters.Overflows;
            native.SkippedSteps = counters.SkippedSteps;
            fixed (ulong* firstSteps = steps)
            fixed (double* firstFactor = factors)
            {
                native.ParameterSteps = (IntPtr)firstSteps;
                native.ParameterCount = (ulong)steps.Length;
                native.GroupRateFactors = (IntPtr)firstFactor;
                native.GroupCount = (ulong)factors.Length;
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_restore(handle, ref native));
            }

            Model.Changed?.Invoke();
        }

        private static unsafe NativeOptimizerCounters NewCounters()
        {
            return new NativeOptimizerCounters
            {
                StructSize = (uint)sizeof(NativeOptimizerCounters),
            };
        }
    }
}
