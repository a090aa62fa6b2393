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
        /// Type of the elements, where the C# type does not tell it, such as F16 in ushort.
        /// </summary>
        public ElementType ElementType { get; set; }

        /// <summary>
        /// Collectives combine in rank order, so that every backend and algorithm gives the same
        /// bits.
        /// </summary>
        public bool Reproducible { get; set; }

        /// <summary>How a collective is made of messages; all ranks name the same.</summary>
        public Algorithm Algorithm { get; set; }

        /// <summary>
        /// F16, Bf16, F8E4M3 or F8E5M2: float elements are rounded to this type before they travel.
        /// </summary>
        public ElementType WireType { get; set; }

        /// <summary>A send copies its elements and does not wait for the receiver.</summary>
        public bool Buffered { get; set; }

        /// <summary>A receive or probe takes any tag; the tag it names must be 0.</summary>
        public bool AnyTag { get; set; }

        /// <summary>
        /// Memory of a device: the stream whose earlier work the operation follows, a cudaStream_t
        /// or CUstream of the device's primary context. Zero is the device's default stream.
        /// </summary>
        public IntPtr Stream { get; set; }

        internal unsafe NativeOperationOptions ToNative()
        {
            bool hasStream = Stream != IntPtr.Zero;
            return new NativeOperationOptions
            {
                Stream = new NativeStream
                {
                    Kind = (int)(hasStream ? DeviceKind.Cuda : DeviceKind.Default),
                    Native = Stream,
                },
                StructSize = (uint)sizeof(NativeOperationOptions),
                Flags = (Reproducible ? (uint)OperationFlags.Reproducible : 0) |
                        (Buffered ? (uint)OperationFlags.Buffered : 0) |
                        (AnyTag ? (uint)OperationFlags.AnyTag : 0),
                TimeoutNs = Nanoseconds.From(Timeout, nameof(Timeout)),
                Scale = Scale,
                Priority = (int)Priority,
                Algorithm = (int)Algorithm,
                WireDtype = (int)WireType,
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
