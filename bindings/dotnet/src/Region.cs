using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>Sizes and counts of a region on this rank.</summary>
    public struct RegionInfo
    {
        internal RegionInfo(NativeRegionInfo info)
        {
            ForwardPasses = (long)info.ForwardPasses;
            BackwardPasses = (long)info.BackwardPasses;
            InputCount = (long)info.InputCount;
            OutputCount = (long)info.OutputCount;
            ForwardParts = (int)info.ForwardParts;
            BackwardParts = (int)info.BackwardParts;
            ForwardBytes = (long)info.ForwardBytes;
            BackwardBytes = (long)info.BackwardBytes;
        }

        /// <summary>Forward passes that have succeeded.</summary>
        public long ForwardPasses { get; }

        /// <summary>Backward passes that have succeeded.</summary>
        public long BackwardPasses { get; }

        /// <summary>
        /// Elements of each part of a forward pass, and of the result of a backward pass.
        /// </summary>
        public long InputCount { get; }

        /// <summary>
        /// Elements of the result of a forward pass, and of each part of a backward pass.
        /// </summary>
        public long OutputCount { get; }

        /// <summary>Arrays that a forward pass takes.</summary>
        public int ForwardParts { get; }

        /// <summary>Arrays that a backward pass takes.</summary>
        public int BackwardParts { get; }

        /// <summary>Bytes of this rank that peers read in a forward pass.</summary>
        public long ForwardBytes { get; }

        /// <summary>Bytes of this rank that peers read in a backward pass.</summary>
        public long BackwardBytes { get; }
    }

    /// <summary>
    /// One place of a model where an array changes its form: <see cref="Tensor.Region"/>. Forward
    /// converts the array, and Backward its gradient. One thread at a time may use a region.
    /// </summary>
    public sealed class Region : IDisposable
    {
        private readonly RegionHandle handle;
        private readonly ElementType elementType;

        internal Region(RegionHandle handle, ElementType elementType)
        {
            this.handle = handle;
            this.elementType = elementType;
        }

        private unsafe delegate Status Call(
            RegionHandle region, void** parts, uint count, void* output,
            ref NativePassOptions options);

        /// <summary>Sizes and counts so far.</summary>
        public unsafe RegionInfo Info
        {
            get
            {
                var info = new NativeRegionInfo { StructSize = (uint)sizeof(NativeRegionInfo) };
                TriremeException.Check(NativeMethods.trireme_region_get_info(handle, ref info));
                return new RegionInfo(info);
            }
        }

        /// <summary>Converts an array from the region's first form to its second one.</summary>
        public void Forward<T>(T[] part, T[] output, TimeSpan timeout = default(TimeSpan))
            where T : struct
        {
            Forward(new[] { part }, output, timeout);
        }

        /// <summary>The same for several summands of this rank.</summary>
        public unsafe void Forward<T>(
            T[][] parts, T[] output, TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            RegionInfo info = Info;
            Pass(
                NativeMethods.trireme_region_forward, parts, info.InputCount, output,
                info.OutputCount, timeout);
        }

        /// <summary>Converts a gradient from the region's second form to its first one.</summary>
        public void Backward<T>(T[] part, T[] output, TimeSpan timeout = default(TimeSpan))
            where T : struct
        {
            Backward(new[] { part }, output, timeout);
        }

        /// <summary>The same for several summands of this rank.</summary>
        public unsafe void Backward<T>(
            T[][] parts, T[] output, TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            RegionInfo info = Info;
            Pass(
                NativeMethods.trireme_region_backward, parts, info.OutputCount, output,
                info.InputCount, timeout);
        }

        /// <summary>Destroys the region; its name is free again.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        private unsafe void Pass<T>(
            Call call, T[][] parts, long partLength, T[] output, long outputLength,
            TimeSpan timeout) where T : struct
        {
            if (parts == null)
            {
                throw new ArgumentNullException(nameof(parts));
            }

            if (output == null)
            {
                throw new ArgumentNullException(nameof(output));
            }

            Elements elements = Elements.Of<T>(elementType);
            foreach (T[] part in parts)
            {
                if (part == null)
                {
                    throw new ArgumentNullException(nameof(parts));
                }

                CheckLength(nameof(parts), elements, part.Length, partLength);
            }

            CheckLength(nameof(output), elements, output.Length, outputLength);
            var options = new NativePassOptions
            {
                StructSize = (uint)sizeof(NativePassOptions),
                TimeoutNs = Nanoseconds.From(timeout, nameof(timeout)),
            };
            var pins = new GCHandle[parts.Length + 1];
            var addresses = new IntPtr[parts.Length + 1]; // one at least, so that none is NULL
            try
            {
                for (int i = 0; i < parts.Length; ++i)
                {
                    pins[i] = GCHandle.Alloc(parts[i], GCHandleType.Pinned);
                    addresses[i] = pins[i].AddrOfPinnedObject();
                }

                pins[parts.Length] = GCHandle.Alloc(output, GCHandleType.Pinned);
                fixed (IntPtr* first = addresses)
                {
                    TriremeException.Check(call(
                        handle, (void**)first, (uint)parts.Length,
                        (void*)pins[parts.Length].AddrOfPinnedObject(), ref options));
                }
            }
            finally
            {
                foreach (GCHandle pin in pins)
                {
                    if (pin.IsAllocated)
                    {
                        pin.Free();
                    }
                }
            }
        }

        private static void CheckLength(string name, Elements elements, int length, long needed)
        {
            Elements.CheckLength(name, (long)elements.Count(length), needed);
        }
    }
}
