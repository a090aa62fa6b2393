using System;

namespace Trireme
{
    /// <summary>
    /// An embedding whose rows ranks split by classes. Each rank holds the weight of
    /// <see cref="VocabularyInfo.Classes"/>. One thread at a time may use it.
    /// </summary>
    public sealed class VocabularyParallelEmbedding : IDisposable
    {
        private readonly Vocabulary vocabulary;

        private VocabularyParallelEmbedding(Vocabulary vocabulary)
        {
            this.vocabulary = vocabulary;
        }

        /// <summary>The classes of this rank, and the planned bytes.</summary>
        public VocabularyInfo Info
        {
            get { return vocabulary.Info; }
        }

        /// <summary>Makes an embedding. Does not wait for the other ranks.</summary>
        /// <param name="classes">Classes of all ranks together.</param>
        /// <param name="width">Elements of a row.</param>
        /// <param name="rows">Most rows of a pass.</param>
        public static VocabularyParallelEmbedding Create(
            Tensor tensor, string name, long classes, long width, long rows,
            ElementType elementType = ElementType.F32)
        {
            return new VocabularyParallelEmbedding(new Vocabulary(
                tensor, name, elementType,
                new NativeVocabularyOptions
                {
                    Classes = Vocabulary.Positive(classes, nameof(classes)),
                    Width = Vocabulary.Positive(width, nameof(width)),
                    Rows = Vocabulary.Positive(rows, nameof(rows)),
                }));
        }

        /// <summary>Writes the rows of all tokens, on every rank.</summary>
        /// <param name="weight">The rows of this rank's classes.</param>
        public unsafe void Forward<T>(
            ReadOnlySpan<int> tokens, ReadOnlySpan<T> weight, Span<T> output,
            TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            vocabulary.CheckLength<T>(
                nameof(weight), weight.Length, vocabulary.Classes * vocabulary.Width);
            vocabulary.CheckLength<T>(
                nameof(output), output.Length, tokens.Length * vocabulary.Width);
            NativePassOptions options = Vocabulary.PassOptions(timeout);
            fixed (byte* numbers = &Elements.First(tokens))
            fixed (byte* given = &Elements.First(weight))
            fixed (byte* result = &Elements.First<T>(output))
            {
                TriremeException.Check(NativeMethods.trireme_vocabulary_embed(
                    vocabulary.Handle, numbers, ElementType.I32, (ulong)tokens.Length, given,
                    result, ref options));
            }
        }

        /// <summary>Adds the gradients of rows to that of this rank's weight.</summary>
        public unsafe void Backward<T>(
            ReadOnlySpan<int> tokens, ReadOnlySpan<T> gradients, Span<T> weightGradient)
            where T : struct
        {
            vocabulary.CheckLength<T>(
                nameof(gradients), gradients.Length, tokens.Length * vocabulary.Width);
            vocabulary.CheckLength<T>(
                nameof(weightGradient), weightGradient.Length,
                vocabulary.Classes * vocabulary.Width);
            fixed (byte* numbers = &Elements.First(tokens))
            fixed (byte* given = &Elements.First(gradients))
            fixed (byte* result = &Elements.First<T>(weightGradient))
            {
                TriremeException.Check(NativeMethods.trireme_vocabulary_embed_backward(
                    vocabulary.Handle, numbers, ElementType.I32, (ulong)tokens.Length, given,
                    result));
            }
        }

        /// <summary>Destroys the object.</summary>
        public void Dispose()
        {
            vocabulary.Dispose();
        }
    }
}
