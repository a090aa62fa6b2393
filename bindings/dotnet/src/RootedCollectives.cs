using System;

namespace Trireme
{
    // Collectives in which one rank, the root, gives or gets. An argument that the root alone uses
    // may be empty on the others.
    public sealed partial class Communicator
    {
        /// <summary>Reduces over all ranks; the root gets the result in place.</summary>
        public void Reduce<T>(
            Span<T> data, int root, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Reduce((ReadOnlySpan<T>)data, data, root, reduction, options);
        }

        /// <summary>
        /// Reduces over all ranks and gives the root the result; the others' receive memory is not
        /// used.
        /// </summary>
        public unsafe void Reduce<T>(
            ReadOnlySpan<T> send, Span<T> receive, int root, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            CheckOnRoot(root, nameof(receive), receive.Length, send.Length);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            {
                TriremeException.Check(NativeMethods.trireme_reduce(
                    handle, input, output, elements.Count(send.Length), elements.Type, reduction,
                    root, &native));
            }
        }

        /// <summary>Gives the root the equally long blocks of all ranks, in rank order.</summary>
        public unsafe void Gather<T>(
            ReadOnlySpan<T> send, Span<T> receive, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            CheckOnRoot(root, nameof(receive), receive.Length, (long)send.Length * WorldSize);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            {
                TriremeException.Check(NativeMethods.trireme_gather(
                    handle, input, output, elements.Count(send.Length), elements.Type, root,
                    &native));
            }
        }

        /// <summary>
        /// Gives the root the blocks of all ranks, of different lengths, in rank order. The counts
        /// are the same on all ranks.
        /// </summary>
        public unsafe void Gather<T>(
            ReadOnlySpan<T> send, Span<T> receive, ReadOnlySpan<int> counts, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            ulong[] numbers = RootedCounts(
                elements, counts, root, receive.Length, nameof(send), send.Length);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            fixed (ulong* numbersPointer = numbers)
            {
                TriremeException.Check(NativeMethods.trireme_gather_v(
                    handle, input, output, numbersPointer, elements.Type, root, &native));
            }
        }

        /// <summary>Gives rank r block r of the root's equally long blocks.</summary>
        public unsafe void Scatter<T>(
            ReadOnlySpan<T> send, Span<T> receive, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            CheckOnRoot(root, nameof(send), send.Length, (long)receive.Length * WorldSize);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            {
                TriremeException.Check(NativeMethods.trireme_scatter(
                    handle, input, output, elements.Count(receive.Length), elements.Type, root,
                    &native));
            }
        }

        /// <summary>
        /// Gives rank r block r of the root's blocks, of different lengths. The counts are the
        /// same on all ranks.
        /// </summary>
        public unsafe void Scatter<T>(
            ReadOnlySpan<T> send, Span<T> receive, ReadOnlySpan<int> counts, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            ulong[] numbers = RootedCounts(
                elements, counts, root, send.Length, nameof(receive), receive.Length);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            fixed (ulong* numbersPointer = numbers)
            {
                TriremeException.Check(NativeMethods.trireme_scatter_v(
                    handle, input, output, numbersPointer, elements.Type, root, &native));
            }
        }

        /// <summary>Starts a reduction to the root, in place.</summary>
        public Request StartReduce<T>(
            Memory<T> data, int root, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartReduce((ReadOnlyMemory<T>)data, data, root, reduction, options);
        }

        /// <summary>Starts a reduction to the root.</summary>
        public unsafe Request StartReduce<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, int root,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            CheckOnRoot(root, nameof(receive), receive.Length, send.Length);
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<T>(this, send, receive);
            return completion.Begin(
                NativeMethods.trireme_reduce_start(
                    handle, completion.First, completion.Second, elements.Count(send.Length),
                    elements.Type, reduction, root, &native, out RequestHandle started),
                started);
        }

        /// <summary>Starts a gather of equal blocks.</summary>
        public unsafe Request StartGather<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            CheckOnRoot(root, nameof(receive), receive.Length, (long)send.Length * WorldSize);
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<T>(this, send, receive);
            return completion.Begin(
                NativeMethods.trireme_gather_start(
                    handle, completion.First, completion.Second, elements.Count(send.Length),
                    elements.Type, root, &native, out RequestHandle started),
                started);
        }

        /// <summary>Starts a gather of unequal blocks.</summary>
        public unsafe Request StartGather<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, ReadOnlySpan<int> counts, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            ulong[] numbers = RootedCounts(
                elements, counts, root, receive.Length, nameof(send), send.Length);
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<T>(this, send, receive);
            fixed (ulong* numbersPointer = numbers)
            {
                return completion.Begin(
                    NativeMethods.trireme_gather_v_start(
                        handle, completion.First, completion.Second, numbersPointer, elements.Type,
                        root, &native, out RequestHandle started),
                    started);
            }
        }

        /// <summary>Starts a scatter of equal blocks.</summary>
        public unsafe Request StartScatter<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            CheckOnRoot(root, nameof(send), send.Length, (long)receive.Length * WorldSize);
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<T>(this, send, receive);
            return completion.Begin(
                NativeMethods.trireme_scatter_start(
                    handle, completion.First, completion.Second, elements.Count(receive.Length),
                    elements.Type, root, &native, out RequestHandle started),
                started);
        }

        /// <summary>Starts a scatter of unequal blocks.</summary>
        public unsafe Request StartScatter<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, ReadOnlySpan<int> counts, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            ulong[] numbers = RootedCounts(
                elements, counts, root, send.Length, nameof(receive), receive.Length);
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<T>(this, send, receive);
            fixed (ulong* numbersPointer = numbers)
            {
                return completion.Begin(
                    NativeMethods.trireme_scatter_v_start(
                        handle, completion.First, completion.Second, numbersPointer, elements.Type,
                        root, &native, out RequestHandle started),
                    started);
            }
        }

        private void CheckOnRoot(int root, string name, long length, long needed)
        {
            if (Rank == root)
            {
                Elements.CheckLength(name, length, needed);
            }
        }

        /// <summary>The counts, checked against the block and on the root against all.</summary>
        private ulong[] RootedCounts(
            Elements elements, ReadOnlySpan<int> counts, int root, int total, string name,
            int length)
        {
            ulong[] numbers =
                elements.Counts(counts, WorldSize, Rank == root ? total : (int?)null);
            Elements.CheckLength(name, length, counts[Rank]);
            return numbers;
        }
    }
}
