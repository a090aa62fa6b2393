using System;

namespace Trireme
{
    /// <summary>
    /// Seed, draw, and the place of a part in an array of rows and columns. Without any value set
    /// the part is the whole array, as one row.
    /// </summary>
    public struct RandomPart
    {
        /// <summary>Seed of the whole training.</summary>
        public ulong Seed;

        /// <summary>
        /// Another number gives other random numbers: each layer of each step has its own.
        /// </summary>
        public ulong Draw;

        /// <summary>Row of the whole array in which the part begins.</summary>
        public ulong FirstRow;

        /// <summary>Column of the whole array in which the part begins.</summary>
        public ulong FirstColumn;

        /// <summary>Columns of the part; 0 takes all elements for one row.</summary>
        public ulong Columns;

        /// <summary>Columns of the whole array; 0 takes those of the part.</summary>
        public ulong AllColumns;

        internal unsafe NativeRandomOptions Native(ulong count)
        {
            ulong columns = Columns == 0 ? count : Columns;
            if (columns != 0 && count % columns != 0)
            {
                throw new ArgumentException(
                    count + " elements are no whole rows of " + columns + " columns.");
            }

            return new NativeRandomOptions
            {
                StructSize = (uint)sizeof(NativeRandomOptions), Seed = Seed, Draw = Draw,
                FirstRow = FirstRow, Rows = columns == 0 ? 0 : count / columns,
                FirstColumn = FirstColumn, Columns = columns,
                AllColumns = AllColumns == 0 ? columns : AllColumns,
            };
        }
    }

    /// <summary>
    /// Random numbers that depend on seed, draw and an element's place in the whole array alone:
    /// every part of the array has the same numbers, on every rank and in a second computation.
    /// </summary>
    public static class RandomNumbers
    {
        /// <summary>Fills memory with numbers from 0 on and below 1.</summary>
        /// <param name="type">F16 and Bf16 are to be named: C# shows them as 16 bits.</param>
        public static unsafe void Uniform<T>(
            Span<T> data, RandomPart part, ElementType type = ElementType.Automatic)
            where T : struct
        {
            Elements elements = Elements.Of<T>(type);
            NativeRandomOptions options = part.Native(elements.Count(data.Length));
            fixed (byte* output = &Elements.First<T>(data))
            {
                TriremeException.Check(
                    NativeMethods.trireme_random_uniform(ref options, output, elements.Type));
            }
        }

        /// <summary>
        /// Sets elements to 0 with the probability `rate`, rounded down to a multiple of 2^-32, and
        /// multiplies the others by 1 / (1 - that probability). Backward is the same call on the
        /// gradient.
        /// </summary>
        public static unsafe void Dropout<T>(
            Span<T> data, double rate, RandomPart part, ElementType type = ElementType.Automatic)
            where T : struct
        {
            Dropout(data, data, rate, part, type);
        }

        /// <summary>The same from one memory to another, which must not overlap in part.</summary>
        public static unsafe void Dropout<T>(
            ReadOnlySpan<T> source, Span<T> destination, double rate, RandomPart part,
            ElementType type = ElementType.Automatic)
            where T : struct
        {
            Elements elements = Elements.Of<T>(type);
            Elements.CheckLength(nameof(destination), destination.Length, source.Length);
            NativeRandomOptions options = part.Native(elements.Count(source.Length));
            fixed (byte* input = &Elements.First(source))
            fixed (byte* output = &Elements.First<T>(destination))
            {
                TriremeException.Check(NativeMethods.trireme_random_dropout(
                    ref options, rate, input, output, elements.Type));
            }
        }
    }
}
