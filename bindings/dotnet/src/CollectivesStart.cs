using System;

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
            var completion = Completion.Of<T>(this, send, receive);
            return completion.Begin(
                NativeMethods.trireme_all_reduce_start(
                    handle, completion.First, completion.Second, elements.Count(send.Length),
                    elements.Type, reduction, &native, out RequestHandle started),
                started);
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
            var completion = Completion.Of<T>(this, send, receive);
            return completion.Begin(
                NativeMethods.trireme_reduce_scatter_start(
                    handle, completion.First, completion.Second, elements.Count(receive.Length),
                    elements.Type, reduction, &native, out RequestHandle started),
                started);
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
            var completion = Completion.Of<T>(this, send, receive);
            fixed (ulong* numbersPointer = numbers)
            {
                return completion.Begin(
                    NativeMethods.trireme_reduce_scatter_v_start(
                        handle, completion.First, completion.Second, numbersPointer, elements.Type,
                        reduction, &native, out RequestHandle started),
                    started);
            }
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
            var completion = Completion.Of<T>(this, send, receive);
            return completion.Begin(
                NativeMethods.trireme_all_gather_start(
                    handle, completion.First, completion.Second, elements.Count(send.Length),
                    elements.Type, &native, out RequestHandle started),
                started);
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
            var completion = Completion.Of<T>(this, send, receive);
            fixed (ulong* numbersPointer = numbers)
            {
                return completion.Begin(
                    NativeMethods.trireme_all_gather_v_start(
                        handle, completion.First, completion.Second, numbersPointer, elements.Type,
                        &native, out RequestHandle started),
                    started);
            }
        }

        /// <summary>Starts a broadcast.</summary>
        public unsafe Request StartBroadcast<T>(
            Memory<T> data, int root, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<T>(this, data);
            return completion.Begin(
                NativeMethods.trireme_broadcast_start(
                    handle, completion.First, elements.Count(data.Length), elements.Type, root,
                    &native, out RequestHandle started),
                started);
        }

        /// <summary>Starts an all-to-all of equal blocks.</summary>
        public unsafe Request StartAllToAll<T>(
            ReadOnlyMemory<T> send, Memory<T> receive,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            int block = BlockOf(send.Length, receive.Length);
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<T>(this, send, receive);
            return completion.Begin(
                NativeMethods.trireme_all_to_all_start(
                    handle, completion.First, completion.Second, elements.Count(block),
                    elements.Type, &native, out RequestHandle started),
                started);
        }

        /// <summary>Starts an all-to-all of unequal blocks.</summary>
        public unsafe Request StartAllToAll<T>(
            ReadOnlyMemory<T> send, ReadOnlySpan<int> sendCounts, Memory<T> receive,
            ReadOnlySpan<int> receiveCounts, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            ulong[] given = elements.Counts(sendCounts, WorldSize, send.Length);
            ulong[] taken = elements.Counts(receiveCounts, WorldSize, receive.Length);
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<T>(this, send, receive);
            fixed (ulong* givenPointer = given)
            fixed (ulong* takenPointer = taken)
            {
                return completion.Begin(
                    NativeMethods.trireme_all_to_all_v_start(
                        handle, completion.First, givenPointer, completion.Second, takenPointer,
                        elements.Type, &native, out RequestHandle started),
                    started);
            }
        }

        /// <summary>Starts a message to one rank.</summary>
        public unsafe Request StartSend<T>(
            ReadOnlyMemory<T> data, int to, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<T>(this, data);
            return completion.Begin(
                NativeMethods.trireme_send_start(
                    handle, completion.First, elements.Count(data.Length), elements.Type, to, tag,
                    &native, out RequestHandle started),
                started);
        }

        /// <summary>Starts taking a message of one rank.</summary>
        public unsafe Request StartReceive<T>(
            Memory<T> data, int from, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<T>(this, data);
            return completion.Begin(
                NativeMethods.trireme_receive_start(
                    handle, completion.First, elements.Count(data.Length), elements.Type, from, tag,
                    &native, out RequestHandle started),
                started);
        }

        /// <summary>Starts a barrier.</summary>
        public unsafe Request StartBarrier(OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<byte>(this, default(ReadOnlyMemory<byte>));
            return completion.Begin(
                NativeMethods.trireme_barrier_start(handle, &native, out RequestHandle started),
                started);
        }
    }
}
