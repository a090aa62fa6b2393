using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// A factor for each step, by which the learning rate is multiplied; steps are counted from 0. It
    /// is a <see cref="CosineSchedule"/> or another of the library, or a <see cref="UserSchedule"/>.
    /// </summary>
    public abstract class Schedule
    {
        internal Schedule(ScheduleKind kind)
        {
            Kind = kind;
        }

        /// <summary>The kind of the schedule.</summary>
        public ScheduleKind Kind { get; }

        /// <summary>
        /// The factor of the step that comes after this number of others. If the caller's own
        /// function throws, this throws the same exception.
        /// </summary>
        public unsafe double Value(ulong step)
        {
            ScheduleRunner runner = NewRunner();
            using (var memory = new CallMemory())
            {
                double factor;
                Status status =
                    NativeMethods.trireme_schedule_value(Put(memory, runner), step, out factor);
                ScheduleRunner.Check(runner, status);
                return factor;
            }
        }

        /// <summary>Of the caller's own function; null for a schedule of the library.</summary>
        internal virtual ScheduleRunner NewRunner()
        {
            return null;
        }

        /// <summary>The native options, which call the runner, if there is one.</summary>
        internal unsafe NativeScheduleOptions* Put(CallMemory memory, ScheduleRunner runner)
        {
            IntPtr options = runner == null
                ? Put(memory)
                : runner.Put(memory, Base<NativeUserScheduleOptions>());
            return (NativeScheduleOptions*)options;
        }

        /// <summary>The native options of a schedule of the library.</summary>
        internal virtual IntPtr Put(CallMemory memory)
        {
            return IntPtr.Zero;
        }

        /// <summary>The first part of native options.</summary>
        internal NativeScheduleOptions Base<T>() where T : struct
        {
            return new NativeScheduleOptions
            {
                StructSize = (uint)Marshal.SizeOf<T>(), Kind = (int)Kind,
            };
        }
    }

    /// <summary>A schedule of the caller.</summary>
    public sealed class UserSchedule : Schedule
    {
        /// <summary>A schedule that asks this function.</summary>
        public UserSchedule(Func<ulong, double> factor) : base(ScheduleKind.User)
        {
            Factor = factor ?? throw new ArgumentNullException(nameof(factor));
        }

        /// <summary>
        /// The factor of a step, finite and 0 or more, the same on all ranks. It must not use the
        /// model or optimizer.
        /// </summary>
        public Func<ulong, double> Factor { get; }

        internal override ScheduleRunner NewRunner()
        {
            return new ScheduleRunner(Factor);
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

        /// <summary>Native options that call this.</summary>
        internal IntPtr Put(CallMemory memory, NativeScheduleOptions first)
        {
            return memory.Put(new NativeUserScheduleOptions
            {
                Base = first, Factor = Pointer, UserData = UserData,
            });
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
