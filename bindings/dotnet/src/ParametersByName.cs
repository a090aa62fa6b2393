using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// Where each parameter lies among the bytes of all. Those tied to another have no place.
    /// </summary>
    internal sealed class ParametersByName
    {
        private struct Place
        {
            public ElementType Type;
            public long[] Shape;
            public long First;
            public long Bytes;
        }

        private readonly Dictionary<string, Place> places = new Dictionary<string, Place>();

        // In the order added.
        private readonly List<string> names = new List<string>();

        /// <summary>Of all parameters.</summary>
        public long Bytes { get; private set; }

        public void Add(ParameterOptions options)
        {
            if (options.TiedTo != null)
            {
                return;
            }

            long[] shape = options.Shape ?? new long[0];
            long bytes = (long)NativeMethods.trireme_dtype_bytes(options.Type);
            foreach (long extent in shape)
            {
                bytes *= extent;
            }

            places.Add(
                options.Name,
                new Place { Type = options.Type, Shape = shape, First = Bytes, Bytes = bytes });
            names.Add(options.Name);
            Bytes += bytes;
        }

        public unsafe void Write(IReadOnlyDictionary<string, Array> values, byte* to)
        {
            foreach (string name in names)
            {
                Array value;
                if (!values.TryGetValue(name, out value) || value == null)
                {
                    throw new ArgumentException(
                        "There is no value for parameter '" + name + "'.", nameof(values));
                }

                Place place = places[name];
                CheckValue(name, place, value);
                GCHandle pinned = GCHandle.Alloc(value, GCHandleType.Pinned);
                try
                {
                    System.Buffer.MemoryCopy(
                        (void*)pinned.AddrOfPinnedObject(), to + place.First, place.Bytes,
                        place.Bytes);
                }
                finally
                {
                    pinned.Free();
                }
            }

            string unknown = values.Keys.FirstOrDefault(name => !places.ContainsKey(name));
            if (unknown != null)
            {
                throw new ArgumentException(
                    "The model has no parameter '" + unknown + "' of its own.", nameof(values));
            }
        }

        public unsafe Dictionary<string, Array> Read(byte* from)
        {
            var values = new Dictionary<string, Array>();
            foreach (string name in names)
            {
                Place place = places[name];
                long[] shape = place.Shape.Length == 0 ? new long[] { 1 } : place.Shape;
                Array value = Array.CreateInstance(TypeOf(place.Type), shape);
                GCHandle pinned = GCHandle.Alloc(value, GCHandleType.Pinned);
                try
                {
                    System.Buffer.MemoryCopy(
                        from + place.First, (void*)pinned.AddrOfPinnedObject(), place.Bytes,
                        place.Bytes);
                }
                finally
                {
                    pinned.Free();
                }

                values.Add(name, value);
            }

            return values;
        }

        private static void CheckValue(string name, Place place, Array value)
        {
            if (value.GetType().GetElementType() != TypeOf(place.Type))
            {
                throw new ArgumentException(
                    "'" + name + "' is " + place.Type + ", which is " + TypeOf(place.Type) +
                    "[], and the value " + value.GetType() + ".",
                    "values");
            }

            long elements = place.Shape.Aggregate(1L, (product, extent) => product * extent);
            IEnumerable<long> extents = Enumerable.Range(0, value.Rank).Select(i => value.GetLongLength(i));
            bool fits = value.Rank == 1 ? value.LongLength == elements
                                        : extents.SequenceEqual(place.Shape);
            if (!fits)
            {
                throw new ArgumentException(
                    "'" + name + "' is [" + string.Join(", ", place.Shape) +
                    "], and the value [" + string.Join(", ", extents) + "].",
                    "values");
            }
        }

        // F16 and Bf16 as their bits.
        private static Type TypeOf(ElementType type)
        {
            switch (type)
            {
                case ElementType.F32: return typeof(float);
                case ElementType.F64: return typeof(double);
                default: return typeof(ushort);
            }
        }
    }
}
