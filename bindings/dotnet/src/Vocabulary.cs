using System;

namespace Trireme
{
    /// <summary>Sizes of a vocabulary on this rank.</summary>
    public struct VocabularyInfo
    {
        internal VocabularyInfo(NativeVocabularyInfo info)
        {
            Classes = new Share((long)info.FirstClass, (long)info.ClassCount);
            KeptBytes = (long)info.KeptBytes;
            MemoryBytes = (long)info.MemoryBytes;
            ScratchBytes = (long)info.ScratchBytes;
            EmbedBytes = (long)info.EmbedBytes;
            LossBytes = (long)info.LossBytes;
        }

        /// <summary>The classes of this rank; may be none.</summary>
        public Share Classes { get; }

        /// <summary>Bytes that a loss pass of the most rows keeps for its backward pass.</summary>
        public long KeptBytes { get; }

        /// <summary>Memory of the object.</summary>
        public long MemoryBytes { get; }

        /// <summary>
        /// Memory that an embed pass takes at most, shared with other passes.
        /// </summary>
        public long ScratchBytes { get; }

        /// <summary>Bytes of this rank that peers read in an embed pass, at most.</summary>
        public long EmbedBytes { get; }

        /// <summary>
        /// Bytes of this rank that peers read in a loss pass of the most rows.
        /// </summary>
        public long LossBytes { get; }
    }

    /// <summary>
    /// The handle of a vocabulary that ranks split, and the checks of its arrays.
    /// </summary>
    internal sealed class Vocabulary : IDisposable
    {
        private readonly ElementType elementType;

        internal Vocabulary(
            Tensor tensor, string name, ElementType elementType,
            NativeVocabularyOptions options)
        {
            if (tensor == null)
            {
                throw new ArgumentNullException(nameof(tensor));
            }

            if (name == null)
            {
                throw new ArgumentNullException(nameof(name));
            }

            this.elementType = elementType;
            Width = (long)options.Width;
            Handle = tensor.CreateVocabulary(name, elementType, options);
            Classes = Info.Classes.Count;
        }

        internal VocabularyHandle Handle { get; }

        internal long Width { get; }

        internal long Classes { get; }

        internal unsafe VocabularyInfo Info
        {
            get
            {
                var info = new NativeVocabularyInfo
                {
                    StructSize = (uint)sizeof(NativeVocabularyInfo),
                };
                TriremeException.Check(
                    NativeMethods.trireme_vocabulary_get_info(Handle, ref info));
                return new VocabularyInfo(info);
            }
        }

        public void Dispose()
        {
            Handle.Dispose();
        }

        internal static ulong Positive(long number, string name)
        {
            if (number < 0)
            {
                throw new ArgumentOutOfRangeException(name, number, "A number below zero.");
            }

            return (ulong)number;
        }

        internal static unsafe NativePassOptions PassOptions(TimeSpan timeout)
        {
            return new NativePassOptions
            {
                StructSize = (uint)sizeof(NativePassOptions),
                TimeoutNs = Nanoseconds.From(timeout, nameof(timeout)),
            };
        }

        /// <summary>Checks elements of the vocabulary's type.</summary>
        internal void CheckLength<T>(string name, int length, long needed) where T : struct
        {
            CheckLength<T>(name, elementType, length, needed);
        }

        internal static void CheckLength<T>(
            string name, ElementType type, int length, long needed) where T : struct
        {
            Elements.CheckLength(name, (long)Elements.Of<T>(type).Count(length), needed);
        }
    }
}
