using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// The layers of a model that is flat vectors to its owner: one for each unit, so that a trainer
    /// gathers, and reduces, one unit after the other.
    /// </summary>
    internal static class FlatLayers
    {
        /// <summary>
        /// One call of a layer: `pieces` are its parameters in the flat vector, `last` says that it is
        /// the last layer.
        /// </summary>
        internal delegate void Work(LayerCall call, IReadOnlyList<Piece> pieces, bool last);

        internal static List<Layer> Make(
            IReadOnlyList<ParameterOptions> described, Work forward, Work backward)
        {
            // Also a model without parameters has a layer: the trainer asks for one.
            var pieces = new List<List<Piece>>();
            int first = 0;
            string unit = null;
            foreach (ParameterOptions options in described)
            {
                bool alias = options.TiedTo != null;
                if (pieces.Count == 0 || (!alias && (options.Unit ?? options.Name) != unit))
                {
                    unit = options.Unit ?? options.Name;
                    pieces.Add(new List<Piece>());
                }

                int count = alias ? 0 : CountOf(options);
                pieces[pieces.Count - 1].Add(new Piece(alias, first, count));
                first += count;
            }

            var layers = new List<Layer>();
            ulong parameter = 0;
            for (int i = 0; i < Math.Max(1, pieces.Count); ++i)
            {
                List<Piece> mine = i < pieces.Count ? pieces[i] : new List<Piece>();
                bool last = i + 1 >= pieces.Count;
                layers.Add(new Layer(
                    last ? "ComputeGradients()" : "unit " + i,
                    call => forward(call, mine, last), call => backward(call, mine, last))
                {
                    FirstParameter = parameter,
                    ParameterCount = (ulong)mine.Count,
                    OutputBytes = last ? 0ul : 1, // only the last may have none
                });
                parameter += (ulong)mine.Count;
            }

            return layers;
        }

        /// <summary>from * by, into `to`.</summary>
        internal static void Scale<T>(ReadOnlySpan<T> from, double by, Span<T> to) where T : struct
        {
            if (by == 1)
            {
                from.CopyTo(to);
            }
            else if (typeof(T) == typeof(float))
            {
                ReadOnlySpan<float> values = MemoryMarshal.Cast<T, float>(from);
                Span<float> scaled = MemoryMarshal.Cast<T, float>(to);
                for (int i = 0; i < values.Length; ++i)
                {
                    scaled[i] = (float)(values[i] * by);
                }
            }
            else
            {
                ReadOnlySpan<double> values = MemoryMarshal.Cast<T, double>(from);
                Span<double> scaled = MemoryMarshal.Cast<T, double>(to);
                for (int i = 0; i < values.Length; ++i)
                {
                    scaled[i] = values[i] * by;
                }
            }
        }

        private static int CountOf(ParameterOptions options)
        {
            long count = 1;
            foreach (long extent in options.Shape ?? new long[0])
            {
                count = checked(count * extent);
            }

            return checked((int)count);
        }

        /// <summary>Where a parameter lies in the flat vector; an alias has no place of its own.</summary>
        internal struct Piece
        {
            internal Piece(bool alias, int first, int count)
            {
                Alias = alias;
                First = first;
                Count = count;
            }

            internal bool Alias { get; }

            internal int First { get; }

            internal int Count { get; }
        }
    }
}
