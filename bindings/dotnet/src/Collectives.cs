using System;

namespace Trireme
{
    // The plain form of every operation: returns when it is done on this rank. The memory is
    // pinned for the call. Lengths are checked here; everything else is the library's to refuse.
    public sealed partial class Communicator
    {
        /// <summary>Reduces over all ranks, in place.</summary>
        public void AllReduce<T>(
            Span<T> data, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            AllReduce((ReadOnlySpan<T>)data, data, reduction, options);
        }

        /// <summary>
        /// Reduces over all ranks and gives every rank the result; in place when both buffers are
        /// the same memory.
        /// </summary>
        public unsafe void AllReduce<T>(
            ReadOnlySpan<T> send, Span<T> receive, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            Elements.CheckLength(nameof(receive), receive.Length, send.Length);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            {
                TriremeException.Check(NativeMethods.trireme_all_reduce(
                    handle, input, output, elements.Count(send.Length), elements.Type, reduction,
                    &native));
            }
        }

        /// <summary>Reduces world size blocks of equal length and gives rank r block r.</summary>
        public unsafe void ReduceScatter<T>(
            ReadOnlySpan<T> send, Span<T> receive, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            Elements.CheckLength(
                nameof(send), send.Length, (long)receive.Length * WorldSize);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            {
                TriremeException.Check(NativeMethods.trireme_reduce_scatter(
                    handle, input, output, elements.Count(receive.Length), elements.Type, reduction,
                    &native));
            }
        }

        /// <summary>
        /// Reduces blocks of different lengths and gives rank r block r. The counts are the same on
        /// all ranks.
        /// </summary>
        public unsafe void ReduceScatter<T>(
            ReadOnlySpan<T> send, Span<T> receive, ReadOnlySpan<int> counts,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            ulong[] numbers = elements.Counts(counts, WorldSize, send.Length);
            Elements.CheckLength(nameof(receive), receive.Length, counts[Rank]);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            fixed (ulong* numbersPointer = numbers)
            {
                TriremeException.Check(NativeMethods.trireme_reduce_scatter_v(
                    handle, input, output, numbersPointer, elements.Type, reduction, &native));
            }
        }

        /// <summary>Gives every rank the equally long blocks of all ranks, in rank order.</summary>
        public unsafe void AllGather<T>(
            ReadOnlySpan<T> send, Span<T> receive,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            Elements.CheckLength(
                nameof(receive), receive.Length, (long)send.Length * WorldSize);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            {
                TriremeException.Check(NativeMethods.trireme_all_gather(
                    handle, input, output, elements.Count(send.Length), elements.Type, &native));
            }
        }

        /// <summary>
        /// Gives every rank the blocks of all ranks, of different lengths, in rank order. The
        /// counts are the same on all ranks.
        /// </summary>
        public unsafe void AllGather<T>(
            ReadOnlySpan<T> send, Span<T> receive, ReadOnlySpan<int> counts,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            ulong[] numbers = elements.Counts(counts, WorldSize, receive.Length);
            Elements.CheckLength(nameof(send), send.Length, counts[Rank]);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            fixed (ulong* numbersPointer = numbers)
            {
                TriremeException.Check(NativeMethods.trireme_all_gather_v(
                    handle, input, output, numbersPointer, elements.Type, &native));
            }
        }

        /// <summary>Gives every rank the root's elements.</summary>
        public unsafe void Broadcast<T>(
            Span<T> data, int root, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* output = &Elements.First<T>(data))
            {
                TriremeException.Check(NativeMethods.trireme_broadcast(
                    handle, output, elements.Count(data.Length), elements.Type, root, &native));
            }
        }

        /// <summary>Gives rank r block r of every rank: a transposition of equal blocks.</summary>
        public unsafe void AllToAll<T>(
            ReadOnlySpan<T> send, Span<T> receive,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            int block = BlockOf(send.Length, receive.Length);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            {
                TriremeException.Check(NativeMethods.trireme_all_to_all(
                    handle, input, output, elements.Count(block), elements.Type, &native));
            }
        }

        /// <summary>
        /// Gives rank r block r of every rank. receiveCounts[r] must be the number of elements that
        /// rank r sends to this rank.
        /// </summary>
        public unsafe void AllToAll<T>(
            ReadOnlySpan<T> send, ReadOnlySpan<int> sendCounts, Span<T> receive,
            ReadOnlySpan<int> receiveCounts, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            ulong[] given = elements.Counts(sendCounts, WorldSize, send.Length);
            ulong[] taken = elements.Counts(receiveCounts, WorldSize, receive.Length);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            fixed (ulong* givenPointer = given)
            fixed (ulong* takenPointer = taken)
            {
                TriremeException.Check(NativeMethods.trireme_all_to_all_v(
                    handle, input, givenPointer, output, takenPointer, elements.Type, &native));
            }
        }

        /// <summary>Sends elements to one rank; done when the memory may be used again.</summary>
        public unsafe void Send<T>(
            ReadOnlySpan<T> data, int to, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(data))
            {
                TriremeException.Check(NativeMethods.trireme_send(
                    handle, input, elements.Count(data.Length), elements.Type, to, tag, &native));
            }
        }

        /// <summary>
        /// Receives elements from one rank: its earliest message with this tag, which must have
        /// this length.
        /// </summary>
        public unsafe void Receive<T>(
            Span<T> data, int from, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* output = &Elements.First<T>(data))
            {
                TriremeException.Check(NativeMethods.trireme_receive(
                    handle, output, elements.Count(data.Length), elements.Type, from, tag,
                    &native));
            }
        }

        /// <summary>Waits until every rank has called it.</summary>
        public unsafe void Barrier(OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = options.ToNative();
            TriremeException.Check(NativeMethods.trireme_barrier(handle, &native));
        }

        /// <summary>Length of each rank's block in buffers of an all-to-all.</summary>
        private int BlockOf(int sendLength, int receiveLength)
        {
            Elements.CheckLength("receive", receiveLength, sendLength);
            int block = sendLength / WorldSize;
            Elements.CheckLength("send", sendLength, (long)block * WorldSize);
            return block;
        }
    }
}
