using System;

namespace Trireme
{
    // Copies of this rank between memory of the communicator's device and memory of the host. Each
    // begins when the earlier work in the stream is done, and returns when the bytes are there. If
    // one fails with the words "may still copy", keep its memory.
    public sealed partial class Communicator
    {
        /// <summary>
        /// Copies bytes between memory of the device, pinned memory and other memory of the host.
        /// With 0 bytes it waits for the stream alone. The zero stream is the default one.
        /// </summary>
        public unsafe void CopyMemory(
            IntPtr to, IntPtr from, long bytes, IntPtr stream = default(IntPtr))
        {
            TriremeException.Check(NativeMethods.trireme_memory_copy(
                handle, (void*)to, (void*)from, CountOnDevice(bytes, nameof(bytes)),
                (void*)stream));
        }

        /// <summary>Copies elements of the device to the host.</summary>
        public unsafe void CopyToHost<T>(
            IntPtr from, Span<T> to, IntPtr stream = default(IntPtr)) where T : struct
        {
            fixed (byte* first = &Elements.First<T>(to))
            {
                CopyMemory(
                    (IntPtr)first, from, (long)to.Length * Elements.SizeOf<T>(), stream);
            }
        }

        /// <summary>Copies elements of the host to the device.</summary>
        public unsafe void CopyToDevice<T>(
            ReadOnlySpan<T> from, IntPtr to, IntPtr stream = default(IntPtr)) where T : struct
        {
            fixed (byte* first = &Elements.First(from))
            {
                CopyMemory(
                    to, (IntPtr)first, (long)from.Length * Elements.SizeOf<T>(), stream);
            }
        }
    }
}
