using System;

namespace Trireme
{
    /// <summary>The activation between the two layers of a <see cref="ParallelMLP"/>.</summary>
    public enum ActivationKind
    {
        /// <summary>Functions of the caller.</summary>
        Caller = NativeMethods.TRIREME_ACTIVATION_KIND_CALLER,

        /// <summary>max(x, 0).</summary>
        Relu = NativeMethods.TRIREME_ACTIVATION_KIND_RELU,

        /// <summary>x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).</summary>
        GeluTanh = NativeMethods.TRIREME_ACTIVATION_KIND_GELU_TANH,

        /// <summary>x / (1 + exp(-x)).</summary>
        Silu = NativeMethods.TRIREME_ACTIVATION_KIND_SILU,

        /// <summary>silu(gate) * value.</summary>
        Swiglu = NativeMethods.TRIREME_ACTIVATION_KIND_SWIGLU,

        /// <summary>x/2 (1 + erf(x / sqrt(2))).</summary>
        Gelu = NativeMethods.TRIREME_ACTIVATION_KIND_GELU,
    }

    /// <summary>Weights of a <see cref="ParallelMLP"/> on this rank, or their gradients.</summary>
    public sealed class MLPArrays<T> where T : struct
    {
        /// <summary>Rows of this rank's hidden units: with Swiglu all gates, then all values.</summary>
        public T[] Fc1Weight { get; set; }

        /// <summary>null without a bias.</summary>
        public T[] Fc1Bias { get; set; }

        /// <summary>Columns of this rank's hidden units.</summary>
        public T[] Fc2Weight { get; set; }

        /// <summary>The whole bias; null without one.</summary>
        public T[] Fc2Bias { get; set; }
    }

    /// <summary>Sizes and counts of an MLP on this rank.</summary>
    public struct MLPInfo
    {
        internal MLPInfo(NativeMlpInfo info)
        {
            GradientType = (ElementType)info.GradientDtype;
            Own = new Share((long)info.First, (long)info.Count);
            Fc1Rows = (long)info.Fc1Rows;
            InputRows = (long)info.InputRows;
            OutputRows = (long)info.OutputRows;
            KeptBytes = (long)info.KeptBytes;
            WorkspaceBytes = (long)info.WorkspaceBytes;
            TileRows = (long)info.TileRows;
            ForwardBytes = (long)info.ForwardBytes;
            BackwardInputBytes = (long)info.BackwardInputBytes;
            BackwardWeightBytes = (long)info.BackwardWeightBytes;
            ForwardPasses = (long)info.ForwardPasses;
            BackwardInputPasses = (long)info.BackwardInputPasses;
            BackwardWeightPasses = (long)info.BackwardWeightPasses;
        }

        /// <summary>Type of the gradients of weights and biases.</summary>
        public ElementType GradientType { get; }

        /// <summary>Own hidden units.</summary>
        public Share Own { get; }

        /// <summary>Rows of the own first weight.</summary>
        public long Fc1Rows { get; }

        /// <summary>Rows of the own input.</summary>
        public long InputRows { get; }

        /// <summary>Rows of the own output.</summary>
        public long OutputRows { get; }

        /// <summary>Bytes of kept, from forward to backward.</summary>
        public long KeptBytes { get; }

        /// <summary>Memory that layers of the tensor object share, as far as this needs it.</summary>
        public long WorkspaceBytes { get; }

        /// <summary>Rows that are multiplied and exchanged at a time.</summary>
        public long TileRows { get; }

        /// <summary>Bytes of this rank that peers read in a forward pass.</summary>
        public long ForwardBytes { get; }

        /// <summary>The same for the gradient of the input.</summary>
        public long BackwardInputBytes { get; }

        /// <summary>The same for the gradients of weights.</summary>
        public long BackwardWeightBytes { get; }

        /// <summary>Forward passes that have succeeded.</summary>
        public long ForwardPasses { get; }

        /// <summary>Passes of BackwardInput that have succeeded.</summary>
        public long BackwardInputPasses { get; }

        /// <summary>Passes of BackwardWeight that have succeeded.</summary>
        public long BackwardWeightPasses { get; }
    }

    /// <summary>
    /// A column-parallel layer, an activation and a row-parallel layer. One thread at a time may
    /// call the layers of a tensor object.
    /// </summary>
    public sealed class ParallelMLP : IDisposable
    {
        private readonly MlpHandle handle;
        private readonly ElementType elementType;
        private readonly long input;
        private readonly long output;
        private readonly bool bias;
        private readonly ProductRunner products;
        private readonly ActivationRunner activation;

        /// <param name="hidden">Hidden units of all ranks.</param>
        /// <param name="rows">Rows of the whole input in each call.</param>
        /// <param name="forward">
        /// Of Caller: the activation. An exception of it, or of backward, comes out of the pass on
        /// its rank, and the other ranks get a CallbackException.
        /// </param>
        /// <param name="backward">Of Caller: the gradient of the activation's input.</param>
        /// <param name="gated">Of Caller: whether each output has two inputs.</param>
        public unsafe ParallelMLP(
            Tensor tensor, string name, long input, long hidden, long output, long rows,
            ActivationKind activation = ActivationKind.GeluTanh, bool bias = false,
            ElementType elementType = ElementType.F32, ActivationFunction forward = null,
            ActivationFunction backward = null, bool gated = false)
        {
            if (tensor == null)
            {
                throw new ArgumentNullException(nameof(tensor));
            }

            if (name == null)
            {
                throw new ArgumentNullException(nameof(name));
            }

            ActivationRunner runner = forward == null && backward == null
                ? null
                : new ActivationRunner(forward, backward);
            using (var text = new Utf8(name, nameof(name)))
            {
                var options = new NativeMlpOptions
                {
                    StructSize = (uint)sizeof(NativeMlpOptions),
                    Flags = (bias ? (uint)NativeMethods.TRIREME_MLP_FLAG_BIAS : 0)
                        | (gated ? (uint)NativeMethods.TRIREME_MLP_FLAG_GATED : 0),
                    Name = text.Pointer,
                    Dtype = (int)elementType,
                    Activation = (int)activation,
                    Input = Tensor.Positive(input, nameof(input)),
                    Hidden = Tensor.Positive(hidden, nameof(hidden)),
                    Output = Tensor.Positive(output, nameof(output)),
                    Rows = Tensor.Positive(rows, nameof(rows)),
                    Forward = runner == null ? IntPtr.Zero : runner.Forward,
                    Backward = runner == null ? IntPtr.Zero : runner.Backward,
                    UserData = runner == null ? IntPtr.Zero : runner.UserData,
                };
                TriremeException.Check(
                    NativeMethods.trireme_mlp_create(tensor.Handle, ref options, out handle));
            }

            products = tensor.Products;
            this.activation = runner;
            this.elementType = elementType;
            this.input = input;
            this.output = output;
            this.bias = bias;
            Mode = ParallelMode.Column | ParallelMode.Row;
            Mode |= tensor.IsSequence ? ParallelMode.Sequence : 0;
        }

        /// <summary>How ranks split the layer.</summary>
        public ParallelMode Mode { get; }

        /// <summary>Sizes and counts so far.</summary>
        public unsafe MLPInfo Info
        {
            get
            {
                var info = new NativeMlpInfo { StructSize = (uint)sizeof(NativeMlpInfo) };
                TriremeException.Check(NativeMethods.trireme_mlp_get_info(handle, ref info));
                return new MLPInfo(info);
            }
        }

        /// <summary>Computes the output.</summary>
        /// <param name="kept">Info.KeptBytes bytes, for the backward passes.</param>
        public unsafe void Forward<T>(
            T[] source, MLPArrays<T> weights, T[] result, byte[] kept,
            TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            MLPInfo info = Info;
            using (var arrays = new PinnedArrays())
            using (var held = new HeldHandle(handle))
            {
                var options = ParallelLinear.PassOptions(timeout, false);
                NativeMlpWeights read = Weights(arrays, weights, info);
                Status status = NativeMethods.trireme_mlp_forward(
                    held.Address,
                    (void*)arrays.Add(nameof(source), source, elementType, info.InputRows * input),
                    ref read,
                    (void*)arrays.Add(
                        nameof(result), result, elementType, info.OutputRows * output),
                    (void*)arrays.AddKept(kept, info.KeptBytes), ref options);
                ActivationRunner.Check(status, products, activation);
            }
        }

        /// <summary>Computes the gradient of the input.</summary>
        public unsafe void BackwardInput<T>(
            T[] outputGradient, MLPArrays<T> weights, T[] inputGradient, byte[] kept,
            TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            MLPInfo info = Info;
            using (var arrays = new PinnedArrays())
            using (var held = new HeldHandle(handle))
            {
                var options = ParallelLinear.PassOptions(timeout, false);
                NativeMlpWeights read = Weights(arrays, weights, info);
                Status status = NativeMethods.trireme_mlp_backward_input(
                    held.Address,
                    (void*)arrays.Add(
                        nameof(outputGradient), outputGradient, elementType,
                        info.OutputRows * output),
                    ref read,
                    (void*)arrays.Add(
                        nameof(inputGradient), inputGradient, elementType, info.InputRows * input),
                    (void*)arrays.AddKept(kept, info.KeptBytes), ref options);
                ActivationRunner.Check(status, products, activation);
            }
        }

        /// <summary>Computes the gradients of weights and biases.</summary>
        /// <param name="source">Null if kept holds it, with keepGathered.</param>
        /// <param name="outputGradient">Null if kept holds it, with sequence.</param>
        /// <param name="add">Whether they are added to what is there.</param>
        public unsafe void BackwardWeight<T, TGradient>(
            T[] source, T[] outputGradient, MLPArrays<TGradient> gradients, byte[] kept,
            bool add = false, TimeSpan timeout = default(TimeSpan))
            where T : struct where TGradient : struct
        {
            MLPInfo info = Info;
            using (var arrays = new PinnedArrays())
            using (var held = new HeldHandle(handle))
            {
                var options = ParallelLinear.PassOptions(timeout, add);
                NativeMlpGradients written = Gradients(arrays, gradients, info);
                Status status = NativeMethods.trireme_mlp_backward_weight(
                    held.Address,
                    (void*)arrays.AddIfGiven(
                        nameof(source), source, elementType, info.InputRows * input),
                    (void*)arrays.AddIfGiven(
                        nameof(outputGradient), outputGradient, elementType,
                        info.OutputRows * output),
                    (void*)arrays.AddKept(kept, info.KeptBytes), ref written, ref options);
                ActivationRunner.Check(status, products, activation);
            }
        }

        /// <summary>
        /// Computes what BackwardInput and then BackwardWeight compute. Between ranks that a
        /// transport joins, the exchange of the input's gradient goes on while the gradients of the
        /// weights are made.
        /// </summary>
        /// <param name="source">Null if kept holds it, with keepGathered.</param>
        /// <param name="add">Whether gradients of weights are added to what is there.</param>
        public unsafe void Backward<T, TGradient>(
            T[] source, T[] outputGradient, MLPArrays<T> weights, T[] inputGradient,
            MLPArrays<TGradient> gradients, byte[] kept, bool add = false,
            TimeSpan timeout = default(TimeSpan)) where T : struct where TGradient : struct
        {
            MLPInfo info = Info;
            using (var arrays = new PinnedArrays())
            using (var held = new HeldHandle(handle))
            {
                var options = ParallelLinear.PassOptions(timeout, add);
                NativeMlpWeights read = Weights(arrays, weights, info);
                NativeMlpGradients written = Gradients(arrays, gradients, info);
                Status status = NativeMethods.trireme_mlp_backward(
                    held.Address,
                    (void*)arrays.AddIfGiven(
                        nameof(source), source, elementType, info.InputRows * input),
                    (void*)arrays.Add(
                        nameof(outputGradient), outputGradient, elementType,
                        info.OutputRows * output),
                    ref read,
                    (void*)arrays.Add(
                        nameof(inputGradient), inputGradient, elementType, info.InputRows * input),
                    (void*)arrays.AddKept(kept, info.KeptBytes), ref written, ref options);
                ActivationRunner.Check(status, products, activation);
            }
        }

        /// <summary>Destroys the layer; its name is free again.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        private unsafe NativeMlpGradients Gradients<T>(
            PinnedArrays arrays, MLPArrays<T> gradients, MLPInfo info) where T : struct
        {
            IntPtr[] places = Places(arrays, gradients, info.GradientType, info);
            return new NativeMlpGradients
            {
                StructSize = (uint)sizeof(NativeMlpGradients),
                Fc1Weight = places[0],
                Fc1Bias = places[1],
                Fc2Weight = places[2],
                Fc2Bias = places[3],
            };
        }

        private unsafe NativeMlpWeights Weights<T>(
            PinnedArrays arrays, MLPArrays<T> weights, MLPInfo info) where T : struct
        {
            IntPtr[] places = Places(arrays, weights, elementType, info);
            return new NativeMlpWeights
            {
                StructSize = (uint)sizeof(NativeMlpWeights),
                Fc1Weight = places[0],
                Fc1Bias = places[1],
                Fc2Weight = places[2],
                Fc2Bias = places[3],
            };
        }

        private IntPtr[] Places<T>(
            PinnedArrays arrays, MLPArrays<T> of, ElementType type, MLPInfo info) where T : struct
        {
            if (of == null)
            {
                throw new ArgumentNullException("weights");
            }

            return new[]
            {
                arrays.Add("Fc1Weight", of.Fc1Weight, type, info.Fc1Rows * input),
                arrays.Add("Fc1Bias", of.Fc1Bias, type, bias ? info.Fc1Rows : 0),
                arrays.Add("Fc2Weight", of.Fc2Weight, type, output * info.Own.Count),
                arrays.Add("Fc2Bias", of.Fc2Bias, type, bias ? output : 0),
            };
        }
    }
}
