using System;
using System.Buffers;
using System.Runtime.InteropServices;
using System.Threading;

namespace Trireme
{
    /// <summary>
    /// Memory that the peers of this host read without a copy. Hold it as long as a span of it is
    /// in use: a span does not keep it alive, its <see cref="MemoryManager{T}.Memory"/> does. A
    /// communicator of a device has <see cref="Pinned"/> memory and a <see cref="DeviceBuffer"/>.
    /// </summary>
    public sealed class Buffer<T> : MemoryManager<T> where T : struct
    {
        private readonly BufferHandle handle;
        private readonly IntPtr data;
        private bool disposed;

        public Buffer(Communicator communicator, int length)
            : this(communicator, length, MemoryKind.Host)
        {
        }

        private Buffer(Communicator communicator, int length, MemoryKind kind)
        {
            if (communicator == null)
            {
                throw new ArgumentNullException(nameof(communicator));
            }

            if (length < 0)
            {
                throw new ArgumentOutOfRangeException(nameof(length), length, "A length below 0.");
            }

            // A type with references is refused here, before there is native memory for it.
            ulong bytes = Elements.Of<T>(ElementType.Bytes).Count(length);
            TriremeException.Check(
                NativeMethods.trireme_buffer_alloc_kind(
                    communicator.Handle, kind, bytes, out handle));
            handle.Parent = communicator;
            TriremeException.Check(NativeMethods.trireme_buffer_get_data(handle, out data));
            Length = length;
        }

        /// <summary>
        /// Memory of the host that the communicator's device reaches, too, at
        /// <see cref="Address"/>.
        /// </summary>
        public static Buffer<T> Pinned(Communicator communicator, int length)
        {
            return new Buffer<T>(communicator, length, MemoryKind.Pinned);
        }

        /// <summary>Its first element. Hold the buffer as long as the address is in use.</summary>
        public IntPtr Address
        {
            get
            {
                if (disposed)
                {
                    throw new ObjectDisposedException(nameof(Buffer<T>));
                }

                return data;
            }
        }

        public int Length { get; }

        /// <summary>Size in bytes, as the library knows it.</summary>
        public ulong Bytes
        {
            get
            {
                ulong bytes;
                TriremeException.Check(NativeMethods.trireme_buffer_get_bytes(handle, out bytes));
                return bytes;
            }
        }

        public Span<T> Span
        {
            get { return GetSpan(); }
        }

        public override unsafe Span<T> GetSpan()
        {
            if (disposed) // the handle closes only when nothing has it pinned
            {
                throw new ObjectDisposedException(nameof(Buffer<T>));
            }

            return new Span<T>((void*)data, Length);
        }

        public override unsafe MemoryHandle Pin(int elementIndex = 0)
        {
            if (elementIndex < 0 || elementIndex > Length)
            {
                throw new ArgumentOutOfRangeException(nameof(elementIndex));
            }

            bool added = false;
            handle.DangerousAddRef(ref added);
            byte* first = (byte*)data + Elements.Of<T>(ElementType.Bytes).Count(elementIndex);
            return new MemoryHandle(first, default(GCHandle), this);
        }

        public override void Unpin()
        {
            handle.DangerousRelease();
        }

        /// <summary>Gives the memory back, once nothing has it pinned.</summary>
        public void Dispose()
        {
            Dispose(true);
        }

        protected override void Dispose(bool disposing)
        {
            disposed = true;
            handle.Dispose();
        }
    }
}
