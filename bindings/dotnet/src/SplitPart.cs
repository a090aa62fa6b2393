using System;
using System.Collections.Generic;

namespace Trireme
{
    /// <summary>Indices of a dimension that follow one another.</summary>
    public struct Stretch
    {
        public Stretch(long first, long count)
        {
            First = first;
            Count = count;
        }

        public long First { get; }

        public long Count { get; }
    }

    /// <summary>
    /// The part of a parameter that a rank holds along an axis of a mesh: some indices of one
    /// dimension.
    /// </summary>
    public sealed class SplitPart
    {
        /// <param name="dimension">The dimension that is cut, from 0.</param>
        /// <param name="extent">Its extent in the whole parameter.</param>
        /// <param name="stretches">
        /// The indices that lie here, in their order here. A fused matrix of queries, keys and
        /// values has three.
        /// </param>
        public SplitPart(int dimension, long extent, params Stretch[] stretches)
        {
            Dimension = dimension;
            Extent = extent;
            Stretches = stretches ?? throw new ArgumentNullException(nameof(stretches));
        }

        public int Dimension { get; }

        public long Extent { get; }

        public IReadOnlyList<Stretch> Stretches { get; }

        internal ulong[] Numbers()
        {
            var numbers = new ulong[2 * Stretches.Count];
            for (int i = 0; i < Stretches.Count; ++i)
            {
                numbers[2 * i] = checked((ulong)Stretches[i].First);
                numbers[(2 * i) + 1] = checked((ulong)Stretches[i].Count);
            }

            return numbers;
        }
    }
}
