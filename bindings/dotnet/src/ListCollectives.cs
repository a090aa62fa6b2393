using System;
using System.Collections.Generic;

namespace Trireme
{
    // Several buffers as one operation. All ranks name lists of the same lengths.
    public sealed partial class Communicator
    {
        /// <summary>
        /// Reduces several buffers over all ranks, in place; small ones travel together.
        /// </summary>
        public void AllReduceList<T>(
            IReadOnlyList<Memory<T>> data, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            ReadOnlyMemory<T>[] list = BufferLists.Read(data, nameof(data));
            RunAllReduceList(list, list, reduction, options);
        }

        /// <summary>
        /// Reduces several buffers over all ranks, in place; small ones travel together.
        /// </summary>
        public void AllReduceList<T>(
            T[][] data, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            ReadOnlyMemory<T>[] list = BufferLists.Read(data, nameof(data));
            RunAllReduceList(list, list, reduction, options);
        }

        /// <summary>Reduces several buffers over all ranks; small ones travel together.</summary>
        public void AllReduceList<T>(
            IReadOnlyList<ReadOnlyMemory<T>> sends, IReadOnlyList<Memory<T>> receives,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            RunAllReduceList(
                BufferLists.Read(sends, nameof(sends)),
                BufferLists.Read(receives, nameof(receives)), reduction, options);
        }

        /// <summary>Reduces several buffers over all ranks; small ones travel together.</summary>
        public void AllReduceList<T>(
            T[][] sends, T[][] receives, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            RunAllReduceList(
                BufferLists.Read(sends, nameof(sends)),
                BufferLists.Read(receives, nameof(receives)), reduction, options);
        }

        /// <summary>
        /// Reduces several buffers and gives rank r block r of each; small ones travel together.
        /// </summary>
        public void ReduceScatterList<T>(
            IReadOnlyList<ReadOnlyMemory<T>> sends, IReadOnlyList<Memory<T>> receives,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            RunReduceScatterList(
                BufferLists.Read(sends, nameof(sends)),
                BufferLists.Read(receives, nameof(receives)), reduction, options);
        }

        /// <summary>
        /// Reduces several buffers and gives rank r block r of each; small ones travel together.
        /// </summary>
        public void ReduceScatterList<T>(
            T[][] sends, T[][] receives, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            RunReduceScatterList(
                BufferLists.Read(sends, nameof(sends)),
                BufferLists.Read(receives, nameof(receives)), reduction, options);
        }

        /// <summary>
        /// Gives every rank the blocks of all ranks for several buffers; small ones travel
        /// together.
        /// </summary>
        public void AllGatherList<T>(
            IReadOnlyList<ReadOnlyMemory<T>> sends, IReadOnlyList<Memory<T>> receives,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            RunAllGatherList(
                BufferLists.Read(sends, nameof(sends)),
                BufferLists.Read(receives, nameof(receives)), options);
        }

        /// <summary>
        /// Gives every rank the blocks of all ranks for several buffers; small ones travel
        /// together.
        /// </summary>
        public void AllGatherList<T>(
            T[][] sends, T[][] receives,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            RunAllGatherList(
                BufferLists.Read(sends, nameof(sends)),
                BufferLists.Read(receives, nameof(receives)), options);
        }

        /// <summary>
        /// Gives every rank the root's elements for several buffers; small ones travel together.
        /// </summary>
        public void BroadcastList<T>(
            IReadOnlyList<Memory<T>> data, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            RunBroadcastList(
                BufferLists.Read(data, nameof(data)), root, options);
        }

        /// <summary>
        /// Gives every rank the root's elements for several buffers; small ones travel together.
        /// </summary>
        public void BroadcastList<T>(
            T[][] data, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            RunBroadcastList(
                BufferLists.Read(data, nameof(data)), root, options);
        }

        /// <summary>Starts an all-reduce of several buffers, in place.</summary>
        public Request StartAllReduceList<T>(
            IReadOnlyList<Memory<T>> data, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            ReadOnlyMemory<T>[] list = BufferLists.Read(data, nameof(data));
            return BeginAllReduceList(list, list, reduction, options);
        }

        /// <summary>Starts an all-reduce of several buffers, in place.</summary>
        public Request StartAllReduceList<T>(
            T[][] data, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            ReadOnlyMemory<T>[] list = BufferLists.Read(data, nameof(data));
            return BeginAllReduceList(list, list, reduction, options);
        }

        /// <summary>Starts an all-reduce of several buffers.</summary>
        public Request StartAllReduceList<T>(
            IReadOnlyList<ReadOnlyMemory<T>> sends, IReadOnlyList<Memory<T>> receives,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return BeginAllReduceList(
                BufferLists.Read(sends, nameof(sends)),
                BufferLists.Read(receives, nameof(receives)), reduction, options);
        }

        /// <summary>Starts an all-reduce of several buffers.</summary>
        public Request StartAllReduceList<T>(
            T[][] sends, T[][] receives, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return BeginAllReduceList(
                BufferLists.Read(sends, nameof(sends)),
                BufferLists.Read(receives, nameof(receives)), reduction, options);
        }

        /// <summary>Starts a reduce-scatter of several buffers.</summary>
        public Request StartReduceScatterList<T>(
            IReadOnlyList<ReadOnlyMemory<T>> sends, IReadOnlyList<Memory<T>> receives,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return BeginReduceScatterList(
                BufferLists.Read(sends, nameof(sends)),
                BufferLists.Read(receives, nameof(receives)), reduction, options);
        }

        /// <summary>Starts a reduce-scatter of several buffers.</summary>
        public Request StartReduceScatterList<T>(
            T[][] sends, T[][] receives, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return BeginReduceScatterList(
                BufferLists.Read(sends, nameof(sends)),
                BufferLists.Read(receives, nameof(receives)), reduction, options);
        }

        /// <summary>Starts an all-gather of several buffers.</summary>
        public Request StartAllGatherList<T>(
            IReadOnlyList<ReadOnlyMemory<T>> sends, IReadOnlyList<Memory<T>> receives,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return BeginAllGatherList(
                BufferLists.Read(sends, nameof(sends)),
                BufferLists.Read(receives, nameof(receives)), options);
        }

        /// <summary>Starts an all-gather of several buffers.</summary>
        public Request StartAllGatherList<T>(
            T[][] sends, T[][] receives,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return BeginAllGatherList(
                BufferLists.Read(sends, nameof(sends)),
                BufferLists.Read(receives, nameof(receives)), options);
        }

        /// <summary>Starts a broadcast of several buffers.</summary>
        public Request StartBroadcastList<T>(
            IReadOnlyList<Memory<T>> data, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return BeginBroadcastList(
                BufferLists.Read(data, nameof(data)), root, options);
        }

        /// <summary>Starts a broadcast of several buffers.</summary>
        public Request StartBroadcastList<T>(
            T[][] data, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return BeginBroadcastList(
                BufferLists.Read(data, nameof(data)), root, options);
        }

        private unsafe void RunAllReduceList<T>(
            ReadOnlyMemory<T>[] sends, ReadOnlyMemory<T>[] receives,
            Reduction reduction, OperationOptions options) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            using (BufferLists lists = BufferLists.Of(elements, sends, receives))
            {
                fixed (IntPtr* given = lists.Sends)
                fixed (IntPtr* taken = lists.Receives)
                fixed (ulong* counts = lists.Counts)
                {
                    TriremeException.Check(NativeMethods.trireme_all_reduce_list(
                        handle, (void**)given, (void**)taken, counts, lists.Length,
                        elements.Type, reduction, &native));
                }
            }
        }

        private unsafe void RunReduceScatterList<T>(
            ReadOnlyMemory<T>[] sends, ReadOnlyMemory<T>[] receives,
            Reduction reduction, OperationOptions options) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            using (BufferLists lists =
                       BufferLists.Of(elements, sends, receives, sendBlocks: WorldSize))
            {
                fixed (IntPtr* given = lists.Sends)
                fixed (IntPtr* taken = lists.Receives)
                fixed (ulong* counts = lists.Counts)
                {
                    TriremeException.Check(NativeMethods.trireme_reduce_scatter_list(
                        handle, (void**)given, (void**)taken, counts, lists.Length,
                        elements.Type, reduction, &native));
                }
            }
        }

        private unsafe void RunAllGatherList<T>(
            ReadOnlyMemory<T>[] sends, ReadOnlyMemory<T>[] receives,
            OperationOptions options) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            using (BufferLists lists =
                       BufferLists.Of(elements, sends, receives, receiveBlocks: WorldSize))
            {
                fixed (IntPtr* given = lists.Sends)
                fixed (IntPtr* taken = lists.Receives)
                fixed (ulong* counts = lists.Counts)
                {
                    TriremeException.Check(NativeMethods.trireme_all_gather_list(
                        handle, (void**)given, (void**)taken, counts, lists.Length,
                        elements.Type, &native));
                }
            }
        }

        private unsafe void RunBroadcastList<T>(
            ReadOnlyMemory<T>[] data, int root, OperationOptions options) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            using (BufferLists lists = BufferLists.Of(elements, data, data))
            {
                fixed (IntPtr* taken = lists.Receives)
                fixed (ulong* counts = lists.Counts)
                {
                    TriremeException.Check(NativeMethods.trireme_broadcast_list(
                        handle, (void**)taken, counts, lists.Length, elements.Type, root,
                        &native));
                }
            }
        }

        private unsafe Request BeginAllReduceList<T>(
            ReadOnlyMemory<T>[] sends, ReadOnlyMemory<T>[] receives,
            Reduction reduction, OperationOptions options) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            BufferLists lists = BufferLists.Of(elements, sends, receives);
            Completion completion = Completion.Of(this, lists);
            fixed (IntPtr* given = lists.Sends)
            fixed (IntPtr* taken = lists.Receives)
            fixed (ulong* counts = lists.Counts)
            {
                return completion.Begin(
                    NativeMethods.trireme_all_reduce_list_start(
                        handle, (void**)given, (void**)taken, counts, lists.Length,
                        elements.Type, reduction, &native, out RequestHandle started),
                    started);
            }
        }

        private unsafe Request BeginReduceScatterList<T>(
            ReadOnlyMemory<T>[] sends, ReadOnlyMemory<T>[] receives,
            Reduction reduction, OperationOptions options) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            BufferLists lists = BufferLists.Of(elements, sends, receives, sendBlocks: WorldSize);
            Completion completion = Completion.Of(this, lists);
            fixed (IntPtr* given = lists.Sends)
            fixed (IntPtr* taken = lists.Receives)
            fixed (ulong* counts = lists.Counts)
            {
                return completion.Begin(
                    NativeMethods.trireme_reduce_scatter_list_start(
                        handle, (void**)given, (void**)taken, counts, lists.Length,
                        elements.Type, reduction, &native, out RequestHandle started),
                    started);
            }
        }

        private unsafe Request BeginAllGatherList<T>(
            ReadOnlyMemory<T>[] sends, ReadOnlyMemory<T>[] receives,
            OperationOptions options) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            BufferLists lists = BufferLists.Of(elements, sends, receives, receiveBlocks: WorldSize);
            Completion completion = Completion.Of(this, lists);
            fixed (IntPtr* given = lists.Sends)
            fixed (IntPtr* taken = lists.Receives)
            fixed (ulong* counts = lists.Counts)
            {
                return completion.Begin(
                    NativeMethods.trireme_all_gather_list_start(
                        handle, (void**)given, (void**)taken, counts, lists.Length,
                        elements.Type, &native, out RequestHandle started),
                    started);
            }
        }

        private unsafe Request BeginBroadcastList<T>(
            ReadOnlyMemory<T>[] data, int root, OperationOptions options) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            BufferLists lists = BufferLists.Of(elements, data, data);
            Completion completion = Completion.Of(this, lists);
            fixed (IntPtr* taken = lists.Receives)
            fixed (ulong* counts = lists.Counts)
            {
                return completion.Begin(
                    NativeMethods.trireme_broadcast_list_start(
                        handle, (void**)taken, counts, lists.Length, elements.Type, root,
                        &native, out RequestHandle started),
                    started);
            }
        }
    }
}
