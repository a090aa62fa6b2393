using System;

namespace Trireme
{
    /// <summary>
    /// One call of a layer; good during it. A span without data is empty. Spans have the element
    /// type that the layer asks for; its size must divide their bytes.
    /// </summary>
    public unsafe ref struct LayerCall
    {
        private readonly NativeLayerCall* native;
        private readonly ElementType[] types;
        private readonly ulong first;

        internal LayerCall(
            NativeLayerCall* native, object batch, ElementType[] types, ulong first)
        {
            this.native = native;
            this.types = types;
            this.first = first;
            Batch = batch;
        }

        /// <summary>As handed to Trainer.Step() or Trainer.Evaluate().</summary>
        public object Batch { get; }

        public LayerPhase Phase
        {
            get { return (LayerPhase)native->Phase; }
        }

        /// <summary>Number of the layer in this rank's list, from 0.</summary>
        public ulong Layer
        {
            get { return native->Layer; }
        }

        /// <summary>
        /// Number of the layer in the whole model; with a pipeline, by its cuts.
        /// </summary>
        public ulong Number
        {
            get { return native->Number; }
        }

        /// <summary>Number of the layer's stage in a pipeline, from 0. Else 0.</summary>
        public int Stage
        {
            get { return (int)native->Stage; }
        }

        /// <summary>Optimizer.StepCount before the step.</summary>
        public ulong Step
        {
            get { return native->Step; }
        }

        /// <summary>Number of the micro-batch on this rank, from 0.</summary>
        public uint MicroBatch
        {
            get { return native->MicroBatch; }
        }

        /// <summary>
        /// Number of the micro-batch over all ranks, from 0; in a reproducible model, the leaf.
        /// </summary>
        public uint Leaf
        {
            get { return native->Leaf; }
        }

        /// <summary>
        /// Seed for this layer, micro-batch and step; the same in forward and backward.
        /// </summary>
        public ulong RandomSeed
        {
            get { return native->RandomSeed; }
        }

        /// <summary>
        /// Backward: the last layer multiplies the gradient of its loss by this factor.
        /// </summary>
        public double LossScale
        {
            get { return native->LossScale; }
        }

        /// <summary>Forward of the last layer: the loss of this micro-batch, to be set.</summary>
        public double Loss
        {
            get
            {
                return native->Loss == IntPtr.Zero ? double.NaN : *(double*)native->Loss;
            }

            set
            {
                if (native->Loss == IntPtr.Zero)
                {
                    throw new InvalidOperationException(
                        "Only forward of the last layer has a loss.");
                }

                *(double*)native->Loss = value;
            }
        }

        /// <summary>
        /// Bytes of the input that the layer before has used. Input() and InputGradient() have as
        /// many.
        /// </summary>
        public ulong InputUsed
        {
            get { return native->InputUsed; }
        }

        /// <summary>
        /// Numbers that the layer before has set in OutputShape. Empty for the first layer.
        /// </summary>
        public ReadOnlySpan<ulong> InputShape
        {
            get
            {
                return native->InputShape == IntPtr.Zero
                    ? ReadOnlySpan<ulong>.Empty
                    : new ReadOnlySpan<ulong>(
                        (void*)native->InputShape, NativeMethods.TRIREME_LAYER_DIMENSIONS);
            }
        }

        /// <summary>
        /// Bytes of the output that this micro-batch uses, all of them unless forward sets less. In
        /// backward what forward has set; OutputGradient() has as many.
        /// </summary>
        public ulong OutputUsed
        {
            get
            {
                return *(ulong*)native->OutputUsed;
            }

            set
            {
                RequireForward();
                *(ulong*)native->OutputUsed = value;
            }
        }

        /// <summary>
        /// Eight numbers for the next layer, such as the extents of the output. Forward sets them.
        /// </summary>
        public ReadOnlySpan<ulong> OutputShape
        {
            get
            {
                return new ReadOnlySpan<ulong>(
                    (void*)native->OutputShape, NativeMethods.TRIREME_LAYER_DIMENSIONS);
            }
        }

        /// <summary>Forward: sets OutputShape, whose other numbers become 0.</summary>
        public void SetOutputShape(params ulong[] shape)
        {
            RequireForward();
            if (shape == null)
            {
                throw new ArgumentNullException(nameof(shape));
            }

            const int Most = NativeMethods.TRIREME_LAYER_DIMENSIONS;
            if (shape.Length > Most)
            {
                throw new ArgumentException(
                    "The shape has " + shape.Length + " numbers, above " + Most + ".");
            }

            for (int i = 0; i < Most; ++i)
            {
                ((ulong*)native->OutputShape)[i] = i < shape.Length ? shape[i] : 0;
            }
        }

        public int ParameterCount
        {
            get { return checked((int)native->ParameterCount); }
        }

        /// <summary>
        /// The output of the layer before, as far as it is used. Empty for the first layer, which
        /// reads the batch.
        /// </summary>
        public ReadOnlySpan<T> Input<T>() where T : struct
        {
            return Of<T>(native->Input, native->InputUsed);
        }

        /// <summary>Outputs of earlier layers that the layer reads, by Layer.Reads.</summary>
        public int ReadCount
        {
            get { return checked((int)native->ReadCount); }
        }

        /// <summary>The output of one of Layer.Reads, as far as it is used.</summary>
        public ReadOnlySpan<T> ReadInput<T>(int index) where T : struct
        {
            return Of<T>(
                ((IntPtr*)native->ReadInputs)[CheckedRead(index)], ReadUsed(index));
        }

        /// <summary>The OutputBytes of the layer of ReadInput(). It may use a part.</summary>
        public ulong ReadBytes(int index)
        {
            return ((ulong*)native->ReadBytes)[CheckedRead(index)];
        }

        /// <summary>Numbers that the layer of ReadInput() has set in its OutputShape.</summary>
        public ReadOnlySpan<ulong> ReadShape(int index)
        {
            return new ReadOnlySpan<ulong>(
                (void*)((IntPtr*)native->ReadShapes)[CheckedRead(index)],
                NativeMethods.TRIREME_LAYER_DIMENSIONS);
        }

        /// <summary>
        /// Backward: the gradient of ReadInput(), to be written whole. Empty in other phases.
        /// </summary>
        public Span<T> ReadGradient<T>(int index) where T : struct
        {
            CheckedRead(index);
            return native->ReadGradients == IntPtr.Zero
                ? Span<T>.Empty
                : Of<T>(((IntPtr*)native->ReadGradients)[index], ReadUsed(index));
        }

        /// <summary>Written by forward; in backward what forward wrote.</summary>
        public Span<T> Output<T>() where T : struct
        {
            return Of<T>(native->Output, native->OutputBytes);
        }

        /// <summary>Data that forward leaves for backward.</summary>
        public Span<T> Saved<T>() where T : struct
        {
            return Of<T>(native->Saved, native->SavedBytes);
        }

        /// <summary>
        /// Backward: the gradient of the output, by the next layer. Empty for the last layer.
        /// </summary>
        public ReadOnlySpan<T> OutputGradient<T>() where T : struct
        {
            return Of<T>(native->OutputGradient, OutputUsed);
        }

        /// <summary>
        /// Backward: the gradient of the input, to be written. Empty for the first layer.
        /// </summary>
        public Span<T> InputGradient<T>() where T : struct
        {
            return Of<T>(native->InputGradient, native->InputUsed);
        }

        /// <summary>
        /// One of the layer's parameters, whole; `T` is its type, ushort or Half for 16 bits.
        /// </summary>
        public ReadOnlySpan<T> Parameter<T>(int index) where T : struct
        {
            IntPtr data = ((IntPtr*)native->Parameters)[Checked(index)];
            return new ReadOnlySpan<T>((void*)data, CountOf<T>(index, TypeOf(index)));
        }

        /// <summary>
        /// Backward: the gradient of one of the layer's parameters, to be written whole; `T` is its
        /// type, float for 16 bits. Empty if none is wanted.
        /// </summary>
        public Span<T> Gradient<T>(int index) where T : struct
        {
            IntPtr data = *GradientPlace(index);
            return data == IntPtr.Zero
                ? Span<T>.Empty
                : new Span<T>((void*)data, CountOf<T>(index, GradientTypeOf(index)));
        }

        /// <summary>
        /// Backward: one of the layer's parameters has no gradient; ModelOptions.Unused decides.
        /// </summary>
        public void NoGradient(int index)
        {
            *GradientPlace(index) = IntPtr.Zero;
        }

        private void RequireForward()
        {
            if (Phase == LayerPhase.Backward || Phase == LayerPhase.BackwardInput
                || Phase == LayerPhase.BackwardWeight)
            {
                throw new InvalidOperationException("Only forward says what it uses.");
            }
        }

        private static Span<T> Of<T>(IntPtr data, ulong bytes) where T : struct
        {
            if (data == IntPtr.Zero)
            {
                return Span<T>.Empty;
            }

            ulong size = (ulong)Elements.SizeOf<T>();
            if (size == 0 || bytes % size != 0)
            {
                throw new ArgumentException(
                    bytes + " bytes are no whole number of " + typeof(T) + ".");
            }

            return new Span<T>((void*)data, checked((int)(bytes / size)));
        }

        private ulong ReadUsed(int index)
        {
            return ((ulong*)native->ReadUsed)[index];
        }

        private int CheckedRead(int index)
        {
            if (index < 0 || index >= ReadCount)
            {
                throw new ArgumentOutOfRangeException(
                    nameof(index), index, "The layer reads " + ReadCount + " other layers.");
            }

            return index;
        }

        private int Checked(int index)
        {
            if (index < 0 || index >= ParameterCount)
            {
                throw new ArgumentOutOfRangeException(
                    nameof(index), index, "The layer has " + ParameterCount + " parameters.");
            }

            return index;
        }

        private ElementType TypeOf(int index)
        {
            return types[checked((int)first + index)];
        }

        private ElementType GradientTypeOf(int index)
        {
            ElementType type = TypeOf(index);
            return type == ElementType.F16 || type == ElementType.Bf16 ? ElementType.F32 : type;
        }

        private int CountOf<T>(int index, ElementType type) where T : struct
        {
            if (!Elements.Fits<T>(type))
            {
                throw new ArgumentException(
                    "The elements are " + type + ", not " + typeof(T) + ".");
            }

            return checked((int)((ulong*)native->ParameterCounts)[index]);
        }

        private IntPtr* GradientPlace(int index)
        {
            if (native->Gradients == IntPtr.Zero)
            {
                throw new InvalidOperationException("Only backward has gradients.");
            }

            return (IntPtr*)native->Gradients + Checked(index);
        }
    }
}
