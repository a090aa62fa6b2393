using System;

namespace Trireme
{
    // Operations that find out how much comes, and give it in a new array.
    public sealed partial class Communicator
    {
        /// <summary>
        /// Gives every rank the root's elements in a new array; only the root knows their number.
        /// The others' data is not used and may be null.
        /// </summary>
        public T[] BroadcastToArray<T>(
            T[] data, int root, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            return BroadcastToArray<T>(OnRoot(data, root, nameof(data)), root, options);
        }

        /// <summary>
        /// Gives every rank the root's elements in a new array; only the root knows how many.
        /// </summary>
        public unsafe T[] BroadcastToArray<T>(
            ReadOnlySpan<T> data, int root, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(data))
            {
                IntPtr found = IntPtr.Zero;
                bool isRoot = Rank == root;
                TriremeException.Check(NativeMethods.trireme_broadcast_to_buffer(
                    handle, input, isRoot ? elements.Count(data.Length) : 0, elements.Type, root,
                    &native, isRoot ? null : &found));
                return isRoot ? data.ToArray() : TakeArray<T>(new BufferHandle(found));
            }
        }

        /// <summary>
        /// Gives rank r block r of the root's elements, in a new array; only the root knows their
        /// number. Blocks differ by at most one element, the longer ones first. The others' data is
        /// not used and may be null.
        /// </summary>
        public T[] ScatterToArray<T>(
            T[] data, int root, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            return ScatterToArray<T>(
                OnRoot(data, root, nameof(data)), default(ReadOnlySpan<int>), root, options);
        }

        /// <summary>
        /// Gives rank r block r of the root's elements, in a new array; only the root knows the
        /// counts. On other ranks both arrays are not used and may be null.
        /// </summary>
        public T[] ScatterToArray<T>(
            T[] data, int[] counts, int root, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            return ScatterToArray<T>(
                OnRoot(data, root, nameof(data)), OnRoot(counts, root, nameof(counts)), root,
                options);
        }

        /// <summary>
        /// Gives rank r block r of the root's elements, in a new array; only the root knows the
        /// counts. Without counts blocks differ by at most one element, the longer ones first.
        /// </summary>
        public unsafe T[] ScatterToArray<T>(
            ReadOnlySpan<T> data, ReadOnlySpan<int> counts, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            ulong[] numbers = null;
            if (Rank == root)
            {
                numbers = elements.Counts(
                    counts.IsEmpty ? EvenCounts(data.Length) : counts, WorldSize, data.Length);
            }

            NativeOperationOptions native = options.ToNative();
            BufferHandle found;
            fixed (byte* input = &Elements.First(data))
            fixed (ulong* numbersPointer = numbers)
            {
                TriremeException.Check(NativeMethods.trireme_scatter_to_buffer(
                    handle, input, numbersPointer, elements.Type, root, &native, out found));
            }

            return TakeArray<T>(found);
        }

        /// <summary>
        /// Gives every rank the blocks of all ranks in a new array, whatever their lengths, in rank
        /// order.
        /// </summary>
        public T[] AllGatherToArray<T>(
            T[] data, OperationOptions options = default(OperationOptions)) where T : struct
        {
            return AllGatherToArray<T>(
                Given(data, nameof(data)).AsSpan(), out int[] counts, options);
        }

        /// <summary>
        /// Gives every rank the blocks of all ranks in a new array, and tells how long each is.
        /// </summary>
        public T[] AllGatherToArray<T>(
            T[] data, out int[] counts, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            return AllGatherToArray<T>(Given(data, nameof(data)).AsSpan(), out counts, options);
        }

        /// <summary>
        /// Gives every rank the blocks of all ranks in a new array, and tells how long each is.
        /// </summary>
        public unsafe T[] AllGatherToArray<T>(
            ReadOnlySpan<T> data, out int[] counts,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            var numbers = new ulong[WorldSize];
            BufferHandle found;
            fixed (byte* input = &Elements.First(data))
            fixed (ulong* numbersPointer = numbers)
            {
                TriremeException.Check(NativeMethods.trireme_all_gather_to_buffer(
                    handle, input, elements.Count(data.Length), elements.Type, &native,
                    numbersPointer, out found));
            }

            T[] all = TakeArray<T>(found);
            counts = Array.ConvertAll(numbers, number => (int)(number / elements.Count(1)));
            return all;
        }

        /// <summary>Copies a new buffer into an array and gives the buffer back.</summary>
        private static unsafe T[] TakeArray<T>(BufferHandle buffer) where T : struct
        {
            using (buffer)
            {
                ulong bytes;
                TriremeException.Check(NativeMethods.trireme_buffer_get_bytes(buffer, out bytes));
                ulong size = Elements.Of<T>(ElementType.Bytes).Count(1);
                if (bytes % size != 0 || bytes / size > int.MaxValue)
                {
                    throw new InvalidOperationException(
                        bytes + " bytes have come, which make no array of " + typeof(T) + ".");
                }

                var array = new T[bytes / size];
                if (array.Length > 0)
                {
                    IntPtr data;
                    TriremeException.Check(NativeMethods.trireme_buffer_get_data(buffer, out data));
                    new Span<T>((void*)data, array.Length).CopyTo(array);
                }

                return array;
            }
        }

        private ReadOnlySpan<T> OnRoot<T>(T[] array, int root, string name)
        {
            return Rank == root ? Given(array, name) : null;
        }

        private int[] EvenCounts(int length)
        {
            var counts = new int[WorldSize];
            for (int rank = 0; rank < counts.Length; ++rank)
            {
                counts[rank] = length / WorldSize + (rank < length % WorldSize ? 1 : 0);
            }

            return counts;
        }
    }
}
