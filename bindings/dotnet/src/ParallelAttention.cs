using System;

namespace Trireme
{
    /// <summary>
    /// Attention of this rank's heads over all rows, between the two layers of a ParallelAttention.
    /// A row of qkv has the queries of all own heads, then their keys, then their values. A row of
    /// mixed has one output for each query.
    /// </summary>
    /// <typeparam name="T">Type of the elements.</typeparam>
    public interface IAttentionCore<T> where T : struct
    {
        /// <summary>Writes mixed.</summary>
        void Forward(AttentionShape shape, T[] qkv, T[] mixed);

        /// <summary>Writes the gradient of qkv.</summary>
        void Backward(AttentionShape shape, T[] qkv, T[] mixedGradient, T[] qkvGradient);
    }

    /// <summary>Sizes of the arrays of a core.</summary>
    public struct AttentionShape
    {
        internal AttentionShape(int rows, Share heads, int headWidth)
        {
            Rows = rows;
            Heads = heads;
            HeadWidth = headWidth;
        }

        /// <summary>Rows of the whole input.</summary>
        public int Rows { get; }

        /// <summary>Own heads, by their numbers in the whole layer.</summary>
        public Share Heads { get; }

        /// <summary>Elements of a query, of a key and of a value.</summary>
        public int HeadWidth { get; }
    }

    /// <summary>Memory of a ParallelAttention from forward to backward.</summary>
    /// <typeparam name="T">Type of the elements.</typeparam>
    public sealed class AttentionKept<T> where T : struct
    {
        internal AttentionKept(int mixed, long ofQkv, long ofOut)
        {
            Qkv = new T[checked(3 * mixed)];
            Mixed = new T[mixed];
            MixedGradient = new T[mixed];
            QkvGradient = new T[checked(3 * mixed)];
            OfQkv = ofQkv == 0 ? null : new byte[ofQkv];
            OfOut = ofOut == 0 ? null : new byte[ofOut];
        }

        internal T[] Qkv { get; }

        internal T[] Mixed { get; }

        internal T[] MixedGradient { get; }

        internal T[] QkvGradient { get; }

        internal byte[] OfQkv { get; }

        internal byte[] OfOut { get; }

        /// <summary>The layer of the last pass that went well; null if one failed.</summary>
        internal object Layer { get; set; }

        internal AttentionPass Pass { get; set; }
    }

    /// <summary>The passes of a micro-batch, in their order.</summary>
    internal enum AttentionPass
    {
        Forward,
        BackwardInput,
        BackwardWeight,
    }

    /// <summary>
    /// Queries, keys and values in one column-parallel layer, a core, and a row-parallel layer. Each
    /// rank has whole heads: the tensor object's blocks divide them.
    /// </summary>
    /// <remarks>
    /// Each micro-batch has its own AttentionKept, or uses it after another one is done. Its passes
    /// are Forward, BackwardInput and BackwardWeight, each once. A pass without the one before it
    /// throws an InvalidOperationException. After a pass that failed, Forward comes first again.
    /// Forward may come at any time, as for evaluation.
    ///
    /// The two layers exchange data between ranks, and a core runs between them. If a core throws,
    /// that pass ends on its rank alone. The other ranks then wait in the exchange after the core,
    /// up to the timeout of the tensor object. Catch the exception and call
    /// Communicator.Abort(), which ends the wait on all ranks with an AbortedException.
    /// </remarks>
    /// <typeparam name="T">Type of the elements.</typeparam>
    public sealed class ParallelAttention<T> : IDisposable where T : struct
    {
        private readonly IAttentionCore<T> core;
        private readonly ColumnParallelLinear qkv;
        private readonly RowParallelLinear output;

        /// <param name="tensor">Says how ranks split the heads.</param>
        /// <param name="name">The layers are called name.qkv and name.out.</param>
        /// <param name="width">Columns of the input and of the output.</param>
        /// <param name="heads">Heads of all ranks. They divide the width.</param>
        /// <param name="rows">Rows of the whole input in each call.</param>
        /// <param name="core">The caller's attention.</param>
        /// <param name="bias">Whether both layers have a bias.</param>
        /// <param name="elementType">The type that T stands for. Automatic: that of T.</param>
        public ParallelAttention(
            Tensor tensor, string name, int width, int heads, int rows, IAttentionCore<T> core,
            bool bias = false, ElementType elementType = ElementType.Automatic)
        {
            if (tensor == null)
            {
                throw new ArgumentNullException(nameof(tensor));
            }

            if (name == null)
            {
                throw new ArgumentNullException(nameof(name));
            }

            this.core = core ?? throw new ArgumentNullException(nameof(core));
            if (heads < 1 || heads % tensor.Blocks != 0 || width % heads != 0)
            {
                throw new ArgumentException(
                    heads + " heads: " + tensor.Blocks + " blocks of the tensor object do not " +
                    "divide them, or they do not divide the width " + width, nameof(heads));
            }

            elementType = Elements.Of<T>(elementType).Type;
            Shape = new AttentionShape(
                rows, tensor.Heads(heads, heads).Heads, width / heads);
            qkv = new ColumnParallelLinear(
                tensor, name + ".qkv", width, 3L * width, rows, bias, false, 3, elementType);
            try
            {
                output = new RowParallelLinear(
                    tensor, name + ".out", width, width, rows, bias, true, elementType);
            }
            catch
            {
                qkv.Dispose();
                throw;
            }
        }

        /// <summary>How ranks split the layer.</summary>
        public ParallelMode Mode
        {
            get { return qkv.Mode | output.Mode; }
        }

        /// <summary>Rows, own heads and their width.</summary>
        public AttentionShape Shape { get; }

        /// <summary>Memory from forward to backward, for one input at a time.</summary>
        public AttentionKept<T> Keep()
        {
            long mixed = Shape.Rows * Shape.Heads.Count * Shape.HeadWidth;
            return new AttentionKept<T>(
                checked((int)mixed), qkv.Info.KeptBytes, output.Info.KeptBytes);
        }

        /// <summary>Computes the output.</summary>
        public void Forward(
            T[] input, T[] qkvWeight, T[] outWeight, T[] result, AttentionKept<T> kept,
            T[] qkvBias = null, T[] outBias = null)
        {
            Begin(kept, AttentionPass.Forward);
            qkv.Forward(input, qkvWeight, kept.Qkv, qkvBias, kept.OfQkv);
            core.Forward(Shape, kept.Qkv, kept.Mixed);
            output.Forward(kept.Mixed, outWeight, result, outBias, kept.OfOut);
            End(kept, AttentionPass.Forward);
        }

        /// <summary>Computes the gradient of the input. After Forward.</summary>
        public void BackwardInput(
            T[] outputGradient, T[] qkvWeight, T[] outWeight, T[] inputGradient,
            AttentionKept<T> kept)
        {
            Begin(kept, AttentionPass.BackwardInput);
            output.BackwardInput(outputGradient, outWeight, kept.MixedGradient, kept.OfOut);
            core.Backward(Shape, kept.Qkv, kept.MixedGradient, kept.QkvGradient);
            qkv.BackwardInput(kept.QkvGradient, qkvWeight, inputGradient, kept.OfQkv);
            End(kept, AttentionPass.BackwardInput);
        }

        /// <summary>
        /// Computes the gradients of the weights and biases, or adds them. After BackwardInput.
        /// </summary>
        public void BackwardWeight<TGradient>(
            T[] input, T[] outputGradient, TGradient[] qkvGradient, TGradient[] outGradient,
            AttentionKept<T> kept, TGradient[] qkvBiasGradient = null,
            TGradient[] outBiasGradient = null, bool add = false) where TGradient : struct
        {
            Begin(kept, AttentionPass.BackwardWeight);
            output.BackwardWeight(
                kept.Mixed, outputGradient, outGradient, outBiasGradient, kept.OfOut, add);
            qkv.BackwardWeight(
                input, kept.QkvGradient, qkvGradient, qkvBiasGradient, kept.OfQkv, add);
            End(kept, AttentionPass.BackwardWeight);
        }

        /// <summary>Destroys both layers; their names are free again.</summary>
        public void Dispose()
        {
            qkv.Dispose();
            output.Dispose();
        }

        private void Begin(AttentionKept<T> kept, AttentionPass pass)
        {
            if (kept == null)
            {
                throw new ArgumentNullException(nameof(kept));
            }

            if (pass != AttentionPass.Forward && (kept.Layer != this || kept.Pass != pass - 1))
            {
                throw new InvalidOperationException(
                    pass + ": " + (pass - 1) + " of this micro-batch is missing");
            }

            kept.Layer = null;
        }

        private void End(AttentionKept<T> kept, AttentionPass pass)
        {
            kept.Layer = this;
            kept.Pass = pass;
        }
    }
}
