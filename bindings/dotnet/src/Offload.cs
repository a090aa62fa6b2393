using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// Parameters, optimizer state or activations that lie in a file, of this rank.
    /// </summary>
    public struct OffloadInfo
    {
        internal OffloadInfo(NativeOffloadInfo native)
        {
            Path = Utf8.Read(native.Path);
            Direct = native.Direct != 0;
            Ring = native.Ring != 0;
            WhyNotDirect = Utf8.Read(native.WhyNotDirect);
            WhyNotRing = Utf8.Read(native.WhyNotRing);
            FileBytes = native.FileBytes;
            ResidentBytes = native.ResidentBytes;
            BufferBytes = native.BufferBytes;
            BlockBytes = native.BlockBytes;
            ReadBytes = native.ReadBytes;
            WrittenBytes = native.WrittenBytes;
            Waited = TimeSpan.FromSeconds(native.WaitedSeconds);
            FailedWrites = native.FailedWrites;
            FailedOffset = native.FailedOffset;
            FailedErrno = native.FailedErrno;
        }

        /// <summary>The directory, as given.</summary>
        public string Path { get; }

        /// <summary>The file is read and written past the system's cache (O_DIRECT).</summary>
        public bool Direct { get; }

        /// <summary>By io_uring; else by threads.</summary>
        public bool Ring { get; }

        /// <summary>What refused O_DIRECT; empty if it is in use.</summary>
        public string WhyNotDirect { get; }

        /// <summary>What refused io_uring; empty if it is in use.</summary>
        public string WhyNotRing { get; }

        /// <summary>
        /// What lies in the file; of a trainer, what a micro-batch writes and reads.
        /// </summary>
        public ulong FileBytes { get; }

        /// <summary>
        /// What stays in memory; of a trainer, what could not be written.
        /// </summary>
        public ulong ResidentBytes { get; }

        /// <summary>Memory for what is on its way.</summary>
        public ulong BufferBytes { get; }

        /// <summary>The largest piece that is read or written at once.</summary>
        public ulong BlockBytes { get; }

        /// <summary>Asked of the file so far.</summary>
        public ulong ReadBytes { get; }

        /// <summary>Given to the file so far.</summary>
        public ulong WrittenBytes { get; }

        /// <summary>How long calls waited for the disk.</summary>
        public TimeSpan Waited { get; }

        /// <summary>Blocks that could not be written; if they fit, they stay in memory.</summary>
        public ulong FailedWrites { get; }

        /// <summary>Where in the file the last one of them failed.</summary>
        public ulong FailedOffset { get; }

        /// <summary>And with which errno; 0 if none did.</summary>
        public int FailedErrno { get; }
    }

    public sealed partial class Optimizer
    {
        /// <summary>
        /// How the state lies, and what the disk has done; needs OptimizerOptions.OffloadPath.
        /// </summary>
        public unsafe OffloadInfo OffloadInfo
        {
            get
            {
                var native = new NativeOffloadInfo
                {
                    StructSize = (uint)sizeof(NativeOffloadInfo),
                };
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_get_offload_info(handle, ref native));
                var info = new OffloadInfo(native);
                GC.KeepAlive(this);
                return info;
            }
        }

        /// <summary>Copies the elements of GetRanges()[index], wherever they lie.</summary>
        public unsafe T[] ReadRange<T>(int index) where T : struct
        {
            var data = new T[checked((int)RangeOf<T>(index).Count)];
            fixed (byte* first = &Elements.First<T>(data))
            {
                TriremeException.Check(NativeMethods.trireme_optimizer_read_range(
                    handle, (ulong)index, first, BytesOf<T>(data.Length)));
            }

            return data;
        }

        /// <summary>
        /// Writes all elements of GetRanges()[index], wherever they lie. Parameters whose unit was
        /// gathered since the last step, Load() or Model.SetParameters() are refused if a copy of them
        /// stays, which would hide what is written.
        /// </summary>
        public unsafe void WriteRange<T>(int index, ReadOnlySpan<T> data) where T : struct
        {
            RangeOf<T>(index);
            fixed (byte* first = &Elements.First(data))
            {
                TriremeException.Check(NativeMethods.trireme_optimizer_write_range(
                    handle, (ulong)index, first, BytesOf<T>(data.Length)));
            }
        }

        private static ulong BytesOf<T>(int count) where T : struct
        {
            // Marshal.SizeOf() knows another size of char and bool.
            ReadOnlySpan<byte> one = MemoryMarshal.AsBytes(new ReadOnlySpan<T>(new T[1]));
            return (ulong)one.Length * (ulong)count;
        }

        private unsafe NativeStateRange RangeOf<T>(int index) where T : struct
        {
            var native = new NativeStateRange { StructSize = (uint)sizeof(NativeStateRange) };
            TriremeException.Check(NativeMethods.trireme_optimizer_get_range(
                handle, checked((ulong)index), ref native));
            if (!Elements.Fits<T>((ElementType)native.Dtype))
            {
                throw new ArgumentException(
                    "The elements are " + (ElementType)native.Dtype + ", not " + typeof(T) + ".");
            }

            return native;
        }
    }
}
