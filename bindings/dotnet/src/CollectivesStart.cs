using System;
using System.Buffers;

namespace Trireme
{
    // The started form of every operation: returns at once. The memory is pinned until the
    // operation is done, whatever becomes of the request and the caller's references.
    public sealed partial class Communicator
    {
        /// <summary>Starts an in-place all-reduce.</summary>
        public Request StartAllReduce<T>(
            Memory<T> data, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartAllReduce((ReadOnlyMemory<T>)data, data, reduction, options);
        }

        /// <summary>Starts an out-of-place all-reduce.</summary>
        public unsafe Request StartAllReduce<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            Elements.CheckLength(nameof(receive), receive.Length, send.Length);
            NativeOperationOptions native = options.ToNative();
            var completion = new Completion(this, send.Pin(), receive.Pin());
            RequestHandle started;
            Status status = NativeMethods.trireme_all_reduce_start(
                handle, completion.First, completion.Second, elements.Count(send.Length),
                elements.Type, reduction, &native, out started);
            return completion.Begin(status, started);
        }

        /// <summary>Starts a reduce-scatter of equal blocks.</summary>
        public unsafe Request StartReduceScatter<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            Elements.CheckLength(
                nameof(send), send.Length, (long)receive.Length * WorldSize);
            NativeOperationOptions native = options.ToNative();
            var completion = new Completion(this, send.Pin(), receive.Pin());
            RequestHandle started;
            Status status = NativeMethods.trireme_reduce_scatter_start(
                handle, completion.First, completion.Second, elements.Count(receive.Length),
                elements.Type, reduction, &native, out started);
            return completion.Begin(status, started);
        }

        /// <summary>Starts a reduce-scatter of unequal blocks.</summary>
        public unsafe Request StartReduceScatter<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, ReadOnlySpan<int> counts,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            ulong[] numbers = elements.Counts(counts, WorldSize, send.Length);
            Elements.CheckLength(nameof(receive), receive.Length, counts[Rank]);
            NativeOperationOptions native = options.ToNative();
            var completion = new Completion(this, send.Pin(), receive.Pin());
            RequestHandle started;
            Status status;
            fixed (ulong* numbersPointer = numbers)
            {
                status = NativeMethods.trireme_reduce_scatter_v_start(
                    handle, completion.First, completion.Second, numbersPointer, elements.Type,
                    reduction, &native, out started);
            }

            return completion.Begin(status, started);
        }

        /// <summary>Starts an all-gather of equal blocks.</summary>
        public unsafe Request StartAllGather<T>(
            ReadOnlyMemory<T> send, Memory<T> receive,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            Elements.CheckLength(
                nameof(receive), receive.Length, (long)send.Length * WorldSize);
            NativeOperationOptions native = options.ToNative();
            var completion = new Completion(this, send.Pin(), receive.Pin());
            RequestHandle started;
            Status status = NativeMethods.trireme_all_gather_start(
                handle, completion.First, completion.Second, elements.Count(send.Length),
                elements.Type, &native, out started);
            return completion.Begin(status, started);
        }

        /// <summary>Starts an all-gather of unequal blocks.</summary>
        public unsafe Request StartAllGather<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, ReadOnlySpan<int> counts,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            ulong[] numbers = elements.Counts(counts, WorldSize, receive.Length);
            Elements.CheckLength(nameof(send), send.Length, counts[Rank]);
            NativeOperationOptions native = options.ToNative();
            var completion = new Completion(this, send.Pin(), receive.Pin());
            RequestHandle started;
            Status status;
            fixed (ulong* numbersPointer = numbers)
            {
                status = NativeMethods.trireme_all_gather_v_start(
                    handle, completion.First, completion.Second, numbersPointer, elements.Type,
                    &native, out started);
            }

            return completion.Begin(status, started);
        }

        /// <summary>Starts a broadcast.</summary>
        public unsafe Request StartBroadcast<T>(
            Memory<T> data, int root, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            var completion = new Completion(this, data.Pin());
            RequestHandle started;
            Status status = NativeMethods.trireme_broadcast_start(
                handle, completion.First, elements.Count(data.Length), elements.Type, root, &native,
                out started);
            return completion.Begin(status, started);
        }

        /// <summary>Starts a message to one rank.</summary>
        public unsafe Request StartSend<T>(
            ReadOnlyMemory<T> data, int to, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            var completion = new Completion(this, data.Pin());
            RequestHandle started;
            Status status = NativeMethods.trireme_send_start(
                handle, completion.First, elements.Count(data.Length), elements.Type, to, tag,
                &native, out started);
            return completion.Begin(status, started);
        }

        /// <summary>Starts taking a message of one rank.</summary>
        public unsafe Request StartReceive<T>(
            Memory<T> data, int from, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            var completion = new Completion(this, data.Pin());
            RequestHandle started;
            Status status = NativeMethods.trireme_receive_start(
                handle, completion.First, elements.Count(data.Length), elements.Type, from, tag,
                &native, out started);
            return completion.Begin(status, started);
        }

        /// <summary>Starts a barrier.</summary>
        public unsafe Request StartBarrier(OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = options.ToNative();
            var completion = new Completion(this, default(MemoryHandle));
            RequestHandle started;
            Status status = NativeMethods.trireme_barrier_start(handle, &native, out started);
            return completion.Begin(status, started);
        }
    }
}
