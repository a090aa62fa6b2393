using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>How elements of a C# type are told to the library.</summary>
    internal struct Elements
    {
        /// <summary>The type that the library is told.</summary>
        public readonly ElementType Type;

        // Library elements in one C# element: its size for Bytes, else 1.
        private readonly ulong factor;

        private Elements(ElementType type, ulong factor)
        {
            Type = type;
            this.factor = factor;
        }

        public static Elements Of<T>(ElementType wanted) where T : struct
        {
            int size = Known<T>.Size;
            if (size == 0)
            {
                throw new NotSupportedException(
                    typeof(T) + " contains references, which no other rank can read.");
            }

            if (wanted == ElementType.Automatic)
            {
                if (Known<T>.Type == ElementType.Automatic)
                {
                    throw new NotSupportedException(
                        typeof(T) + " is no element type; name one, for example Bytes.");
                }

                return new Elements(Known<T>.Type, 1);
            }

            if (wanted == ElementType.Bytes)
            {
                return new Elements(wanted, (ulong)size);
            }

            ulong needed = NativeMethods.trireme_dtype_bytes(wanted);
            if (needed != 0 && needed != (ulong)size)
            {
                throw new ArgumentException(
                    "An element of " + wanted + " has " + needed + " bytes, but " + typeof(T) +
                    " has " + size + ".");
            }

            return new Elements(wanted, 1); // an unknown number is the library's to refuse
        }

        /// <summary>
        /// Whether memory of this type may be looked at as T; F16 and Bf16 as any two bytes.
        /// </summary>
        public static bool Fits<T>(ElementType type) where T : struct
        {
            bool bits = type == ElementType.F16 || type == ElementType.Bf16;
            return bits ? Known<T>.Size == 2 : Known<T>.Type == type;
        }

        /// <summary>Bytes of one element; 0 for a type with references.</summary>
        public static int SizeOf<T>() where T : struct
        {
            return Known<T>.Size;
        }

        public ulong Count(int length)
        {
            return (ulong)length * factor;
        }

        /// <summary>
        /// Counts of blocks, checked against the buffer of all blocks, where this rank has it.
        /// </summary>
        public ulong[] Counts(ReadOnlySpan<int> counts, int worldSize, int? total)
        {
            if (counts.Length != worldSize)
            {
                throw new ArgumentException(
                    counts.Length + " counts for " + worldSize + " ranks.", nameof(counts));
            }

            long sum = 0;
            var result = new ulong[counts.Length];
            for (int i = 0; i < counts.Length; ++i)
            {
                if (counts[i] < 0)
                {
                    throw new ArgumentException(
                        "Count " + i + " is " + counts[i] + ".", nameof(counts));
                }

                sum += counts[i];
                result[i] = (ulong)counts[i] * factor;
            }

            if (total != null && sum != total)
            {
                throw new ArgumentException(
                    "The counts add up to " + sum + ", but the buffer of all blocks has " + total +
                    " elements.",
                    nameof(counts));
            }

            return result;
        }

        public static void CheckLength(string name, long length, long needed)
        {
            if (length != needed)
            {
                throw new ArgumentException(
                    "The buffer has " + length + " elements, but needs " + needed + ".", name);
            }
        }

        /// <summary>The first byte, to be pinned; a null reference for an empty span.</summary>
        public static ref byte First<T>(ReadOnlySpan<T> span) where T : struct
        {
            // Only the first element becomes bytes: a whole span of 2 GiB would overflow.
            return ref MemoryMarshal.GetReference(
                span.IsEmpty ? default(ReadOnlySpan<byte>)
                             : MemoryMarshal.AsBytes(span.Slice(0, 1)));
        }

        private static class Known<T> where T : struct
        {
            public static readonly ElementType Type = Find();

            /// <summary>Bytes of one element in an array; 0 for a type with references.</summary>
            public static readonly int Size = Measure();

            private static ElementType Find()
            {
                switch (System.Type.GetTypeCode(typeof(T).IsEnum ? null : typeof(T)))
                {
                    case TypeCode.SByte: return ElementType.I8;
                    case TypeCode.Byte: return ElementType.U8;
                    case TypeCode.Int16: return ElementType.I16;
                    case TypeCode.UInt16: return ElementType.U16;
                    case TypeCode.Int32: return ElementType.I32;
                    case TypeCode.UInt32: return ElementType.U32;
                    case TypeCode.Int64: return ElementType.I64;
                    case TypeCode.UInt64: return ElementType.U64;
                    case TypeCode.Single: return ElementType.F32;
                    case TypeCode.Double: return ElementType.F64;
                    case TypeCode.Boolean: return ElementType.Bool;
                    default: return ElementType.Automatic;
                }
            }

            private static int Measure()
            {
                try
                {
                    return MemoryMarshal.AsBytes(new Span<T>(new T[1])).Length;
                }
                catch (ArgumentException)
                {
                    return 0;
                }
            }
        }
    }
}
