using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// A file in place of memory, on each rank: for parameters of a model, state of an optimizer, or
    /// activations of a trainer. It has no name, and nothing is left of it when the process ends.
    /// The bits are the same. A text is the directory.
    /// </summary>
    public sealed class Offload
    {
        /// <summary>A file, whose Path is still to set.</summary>
        public Offload()
        {
        }

        /// <summary>A file in a directory of this rank's host.</summary>
        public Offload(string path)
        {
            Path = path ?? throw new ArgumentNullException(nameof(path));
        }

        /// <summary>The kind of place, a file by default.</summary>
        public OffloadKind Kind { get; set; }

        /// <summary>
        /// The directory of a file, which needs one; it may differ between ranks.
        /// </summary>
        public string Path { get; set; }

        /// <summary>
        /// Part of the bytes that lies in the file, in (0, 1]. Must be 0 for a trainer. 0: all.
        /// </summary>
        public double Ratio { get; set; }

        /// <summary>
        /// Most bytes of memory for blocks on their way to and from the file, at least 32,768. 0: 8
        /// MiB; for a trainer see TrainerOptions.Offload.
        /// </summary>
        public ulong BufferBytes { get; set; }

        /// <summary>The directory; null stays null.</summary>
        public static implicit operator Offload(string path)
        {
            return path == null ? null : new Offload(path);
        }

        internal unsafe NativeOffloadOptions Native(CallMemory memory)
        {
            return new NativeOffloadOptions
            {
                StructSize = (uint)sizeof(NativeOffloadOptions),
                Kind = (int)Kind,
                Path = memory.Put(Path, nameof(Path)),
                Ratio = Ratio,
                BufferBytes = BufferBytes,
            };
        }
    }

    /// <summary>
    /// Parameters, optimizer state or activations that lie in a file, of this rank.
    /// </summary>
    public struct OffloadInfo
    {
        internal OffloadInfo(NativeOffloadInfo native)
        {
            Path = Utf8.Read(native.Path);
            Direct = native.Direct != 0;
            IoUring = native.IoUring != 0;
            WhyNotDirect = Utf8.Read(native.WhyNotDirect);
            WhyNotIoUring = Utf8.Read(native.WhyNotIoUring);
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

        /// <summary>Transfers go by io_uring; else by threads of the library.</summary>
        public bool IoUring { get; }

        /// <summary>The reason why O_DIRECT is not in use; empty if it is.</summary>
        public string WhyNotDirect { get; }

        /// <summary>The reason why io_uring is not in use; empty if it is.</summary>
        public string WhyNotIoUring { get; }

        /// <summary>Bytes in the file.</summary>
        public ulong FileBytes { get; }

        /// <summary>
        /// Bytes that stay in memory: those that Ratio leaves there, and blocks that could not be
        /// written.
        /// </summary>
        public ulong ResidentBytes { get; }

        /// <summary>Bytes of memory for blocks on their way to and from the file.</summary>
        public ulong BufferBytes { get; }

        /// <summary>Bytes of the largest piece that is read or written at once.</summary>
        public ulong BlockBytes { get; }

        /// <summary>Bytes asked of the file so far.</summary>
        public ulong ReadBytes { get; }

        /// <summary>Bytes given to the file so far.</summary>
        public ulong WrittenBytes { get; }

        /// <summary>How long calls have waited for the disk so far.</summary>
        public TimeSpan Waited { get; }

        /// <summary>Blocks that could not be written; if they fit, they stay in memory.</summary>
        public ulong FailedWrites { get; }

        /// <summary>Where in the file the last failed write was, in bytes.</summary>
        public ulong FailedOffset { get; }

        /// <summary>errno of the last failed write; 0 if none failed.</summary>
        public int FailedErrno { get; }
    }

    public sealed partial class Optimizer
    {
        /// <summary>
        /// How the state lies, and what the disk has done; needs OptimizerOptions.Offload.
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
        /// Writes all elements of GetRanges()[index], wherever they lie. Parameters are refused if
        /// their unit was gathered since the last step, Load() or Model.SetParameters(), and ranks
        /// may keep copies: a copy would hide the new values.
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
