using System;

namespace Trireme
{
    /// <summary>
    /// Memory of a communicator's device, at first zero. The host cannot read it. Hold it as long
    /// as its address is in use. Operations of the library keep the memory until they are over, and
    /// Dispose() keeps it until the work in the device's default stream is done. Work in other
    /// streams is done before.
    /// </summary>
    public sealed class DeviceBuffer : IDisposable
    {
        private readonly BufferHandle handle;
        private readonly IntPtr address;

        public DeviceBuffer(Communicator communicator, long bytes)
        {
            if (communicator == null)
            {
                throw new ArgumentNullException(nameof(communicator));
            }

            if (bytes < 0)
            {
                throw new ArgumentOutOfRangeException(nameof(bytes), bytes, "A size below 0.");
            }

            TriremeException.Check(NativeMethods.trireme_buffer_alloc_kind(
                communicator.Handle, MemoryKind.Device, (ulong)bytes, out handle));
            handle.Parent = communicator;
            TriremeException.Check(NativeMethods.trireme_buffer_get_data(handle, out address));
            Bytes = bytes;
        }

        /// <summary>Size in bytes.</summary>
        public long Bytes { get; }

        /// <summary>Its first byte on the device; zero if it has none.</summary>
        public IntPtr Address
        {
            get
            {
                if (handle.IsClosed)
                {
                    throw new ObjectDisposedException(nameof(DeviceBuffer));
                }

                return address;
            }
        }

        /// <summary>Gives the memory back, once no operation uses it.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }
    }
}
