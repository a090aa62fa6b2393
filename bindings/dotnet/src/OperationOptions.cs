using System;

namespace Trireme
{
    /// <summary>Options of one operation; the default value changes nothing.</summary>
    public struct OperationOptions
    {
        /// <summary>Deadline of this call from now; zero is the communicator's.</summary>
        public TimeSpan Timeout { get; set; }

        /// <summary>Factor of <see cref="Reduction.ScaledSum"/>.</summary>
        public double Scale { get; set; }

        /// <summary>
        /// How urgent a collective is. Collectives run in order among those of one priority.
        /// </summary>
        public Priority Priority { get; set; }

        /// <summary>
        /// What the elements are, where the C# type does not tell: F16 in ushort.
        /// </summary>
        public ElementType ElementType { get; set; }

        internal unsafe NativeOperationOptions ToNative()
        {
            return new NativeOperationOptions
            {
                StructSize = (uint)sizeof(NativeOperationOptions),
                TimeoutNs = Nanoseconds.From(Timeout, nameof(Timeout)),
                Scale = Scale,
                Priority = (int)Priority,
            };
        }
    }

    internal static class Nanoseconds
    {
        private const long PerTick = 100;

        public static ulong From(TimeSpan time, string name)
        {
            if (time < TimeSpan.Zero)
            {
                throw new ArgumentOutOfRangeException(name, time, "A time below zero.");
            }

            // 292 years are enough, and do not overflow when the library adds the present.
            return time.Ticks > long.MaxValue / PerTick ? long.MaxValue
                                                        : (ulong)(time.Ticks * PerTick);
        }
    }
}
