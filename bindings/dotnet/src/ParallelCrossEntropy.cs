using System;

namespace Trireme
{
    /// <summary>
    /// Cross-entropy of logits whose classes ranks split. Each rank has the columns of
    /// <see cref="VocabularyInfo.Classes"/>. One thread at a time may use it.
    /// </summary>
    public sealed class ParallelCrossEntropy : IDisposable
    {
        private readonly Vocabulary vocabulary;
        private readonly ElementType lossType;

        private ParallelCrossEntropy(Vocabulary vocabulary, ElementType lossType)
        {
            this.vocabulary = vocabulary;
            this.lossType = lossType;
        }

        /// <summary>The classes of this rank, and the planned bytes.</summary>
        public VocabularyInfo Info
        {
            get { return vocabulary.Info; }
        }

        /// <summary>Makes the loss. Does not wait for the other ranks.</summary>
        /// <param name="classes">Classes of all ranks together.</param>
        /// <param name="rows">Most rows of a pass.</param>
        /// <param name="labelSmoothing">
        /// Share of the target that all classes get alike, from 0 to 1.
        /// </param>
        /// <param name="zLoss">Factor of the square of the logarithm of the sum.</param>
        /// <param name="ignoredTarget">Target of rows that count for nothing; null: none.</param>
        public static ParallelCrossEntropy Create(
            Tensor tensor, string name, long classes, long rows,
            ElementType elementType = ElementType.F32, double labelSmoothing = 0,
            double zLoss = 0, long? ignoredTarget = null)
        {
            var options = new NativeVocabularyOptions
            {
                Flags = ignoredTarget.HasValue
                    ? (uint)NativeMethods.TRIREME_VOCABULARY_FLAG_IGNORE
                    : 0,
                Classes = Vocabulary.Positive(classes, nameof(classes)),
                Rows = Vocabulary.Positive(rows, nameof(rows)),
                LabelSmoothing = labelSmoothing,
                ZLoss = zLoss,
                IgnoredTarget = ignoredTarget.GetValueOrDefault(),
            };
            bool wide = elementType == ElementType.F64;
            return new ParallelCrossEntropy(
                new Vocabulary(tensor, name, elementType, options),
                wide ? ElementType.F64 : ElementType.F32);
        }

        /// <summary>
        /// Writes the loss of each row, on every rank, and returns the bytes for Backward. Losses
        /// are doubles if the logits are, else floats.
        /// </summary>
        public unsafe byte[] Forward<TLogit, TLoss>(
            ReadOnlySpan<TLogit> logits, ReadOnlySpan<int> targets, Span<TLoss> losses,
            TimeSpan timeout = default(TimeSpan))
            where TLogit : struct
            where TLoss : struct
        {
            vocabulary.CheckLength<TLogit>(
                nameof(logits), logits.Length, targets.Length * vocabulary.Classes);
            Vocabulary.CheckLength<TLoss>(
                nameof(losses), lossType, losses.Length, targets.Length);
            var kept = new byte[targets.Length * NativeMethods.TRIREME_VOCABULARY_KEPT_BYTES];
            NativePassOptions options = Vocabulary.PassOptions(timeout);
            fixed (byte* numbers = &Elements.First(targets))
            fixed (byte* given = &Elements.First(logits))
            fixed (byte* result = &Elements.First<TLoss>(losses))
            fixed (byte* keeps = kept)
            {
                TriremeException.Check(NativeMethods.trireme_vocabulary_loss(
                    vocabulary.Handle, numbers, ElementType.I32, (ulong)targets.Length, given,
                    result, keeps, ref options));
            }

            return kept;
        }

        /// <summary>
        /// Writes the gradients of this rank's logits. They may be written over the logits.
        /// </summary>
        /// <param name="kept">The result of Forward of these rows.</param>
        /// <param name="lossGradients">
        /// The weight of each row; if empty, 1. For a mean it is 1 / (rows that count).
        /// </param>
        public unsafe void Backward<TLogit, TLoss>(
            ReadOnlySpan<TLogit> logits, ReadOnlySpan<int> targets, byte[] kept,
            ReadOnlySpan<TLoss> lossGradients, Span<TLogit> gradients)
            where TLogit : struct
            where TLoss : struct
        {
            if (kept == null)
            {
                throw new ArgumentNullException(nameof(kept));
            }

            long count = targets.Length * vocabulary.Classes;
            vocabulary.CheckLength<TLogit>(nameof(logits), logits.Length, count);
            vocabulary.CheckLength<TLogit>(nameof(gradients), gradients.Length, count);
            Elements.CheckLength(
                nameof(kept), kept.Length,
                targets.Length * NativeMethods.TRIREME_VOCABULARY_KEPT_BYTES);
            Vocabulary.CheckLength<TLoss>(
                nameof(lossGradients), lossType, lossGradients.Length,
                lossGradients.Length == 0 ? 0 : targets.Length);
            fixed (byte* numbers = &Elements.First(targets))
            fixed (byte* given = &Elements.First(logits))
            fixed (byte* weights = &Elements.First(lossGradients))
            fixed (byte* result = &Elements.First<TLogit>(gradients))
            fixed (byte* keeps = kept)
            {
                TriremeException.Check(NativeMethods.trireme_vocabulary_loss_backward(
                    vocabulary.Handle, numbers, ElementType.I32, (ulong)targets.Length, given,
                    keeps, lossGradients.Length == 0 ? null : weights, result));
            }
        }

        /// <summary>Destroys the object.</summary>
        public void Dispose()
        {
            vocabulary.Dispose();
        }
    }
}
