using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// A factor for each step, by which the learning rate is multiplied; steps are counted from 0.
    /// In every number 0 is the default.
    /// </summary>
    public sealed class Schedule
    {
        public ScheduleKind Kind { get; set; }

        public ScheduleFlags Flags { get; set; }

        /// <summary>Linear, Cosine, OneCycle: steps until the end.</summary>
        public ulong TotalSteps { get; set; }

        /// <summary>
        /// Constant, Linear, Cosine: the first steps, in which the factor rises to 1.
        /// </summary>
        public ulong WarmUpSteps { get; set; }

        /// <summary>With WarmUpSteps: the first factor; 0 is 1 / WarmUpSteps.</summary>
        public double WarmUpFactor { get; set; }

        /// <summary>Linear, Cosine: the factor at the end.</summary>
        public double EndFactor { get; set; }

        /// <summary>OneCycle: the part of TotalSteps in which the factor rises; 0 is 0.3.</summary>
        public double PctStart { get; set; }

        /// <summary>OneCycle: the peak divided by the first factor; 0 is 25.</summary>
        public double DivFactor { get; set; }

        /// <summary>OneCycle: the first factor divided by the last; 0 is 1e4.</summary>
        public double FinalDivFactor { get; set; }

        /// <summary>
        /// User: the factor of a step, finite and 0 or more, the same on all ranks. It must not use
        /// the model or optimizer.
        /// </summary>
        public Func<ulong, double> Factor { get; set; }

        /// <summary>
        /// The factor of the step that comes after this number of others. If the caller's own
        /// function throws, this throws the same exception.
        /// </summary>
        public double Value(ulong step)
        {
            NativeScheduleOptions options = Native();
            ScheduleRunner runner = Factor == null ? null : new ScheduleRunner(Factor);
            runner?.GiveTo(ref options);
            double factor;
            Status status = NativeMethods.trireme_schedule_value(ref options, step, out factor);
            ScheduleRunner.Check(runner, status);
            return factor;
        }

        /// <summary>All but what calls the caller's own function.</summary>
        internal unsafe NativeScheduleOptions Native()
        {
            return new NativeScheduleOptions
            {
                StructSize = (uint)sizeof(NativeScheduleOptions),
                Kind = (int)Kind,
                Flags = (uint)Flags,
                TotalSteps = TotalSteps,
                WarmUpSteps = WarmUpSteps,
                WarmUpFactor = WarmUpFactor,
                EndFactor = EndFactor,
                PctStart = PctStart,
                DivFactor = DivFactor,
                FinalDivFactor = FinalDivFactor,
            };
        }
    }

    /// <summary>
    /// Asks the caller's own function, for the optimizer that has the schedule and refers to this, or
    /// for one call.
    /// </summary>
    internal sealed class ScheduleRunner : CallbackRunner<ScheduleRunner>
    {
        // In a field for as long as the process lives: native code calls it in every step.
        private static readonly NativeMethods.ScheduleCallback Callback = Run;
        private static readonly IntPtr Pointer =
            Marshal.GetFunctionPointerForDelegate(Callback);

        private readonly Func<ulong, double> factor;

        internal ScheduleRunner(Func<ulong, double> factor)
        {
            this.factor = factor;
        }

        /// <summary>
        /// Throws for a call that failed; what the function of `runner`, which may be null, threw
        /// comes first.
        /// </summary>
        internal static void Check(ScheduleRunner runner, Status status)
        {
            if (status == Status.Ok)
            {
                GC.KeepAlive(runner);
                return;
            }

            TriremeException failure = TriremeException.FromLastError(status);
            runner?.TakeThrown()?.Throw();
            throw failure;
        }

        /// <summary>Makes native options call this.</summary>
        internal void GiveTo(ref NativeScheduleOptions options)
        {
            options.Factor = Pointer;
            options.UserData = UserData;
        }

        private static double Run(ulong step, IntPtr userData)
        {
            // Called from native code: no exception may leave.
            try
            {
                return Of(userData).Ask(step);
            }
            catch (Exception)
            {
                return double.NaN;
            }
        }

        private double Ask(ulong step)
        {
            try
            {
                return factor(step);
            }
            catch (Exception exception)
            {
                Keep(exception);
                return double.NaN;
            }
        }
    }
}
