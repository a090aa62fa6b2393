using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>How ranks split a layer.</summary>
    [Flags]
    public enum ParallelMode
    {
        /// <summary>Outputs are split.</summary>
        Column = 1,

        /// <summary>Inputs are split.</summary>
        Row = 2,

        /// <summary>Activations between layers are split by rows, too.</summary>
        Sequence = 4,
    }

    /// <summary>Sizes and counts of a linear layer on this rank.</summary>
    public struct LinearInfo
    {
        internal LinearInfo(NativeLinearInfo info)
        {
            GradientType = (ElementType)info.GradientDtype;
            Own = new Share((long)info.First, (long)info.Count);
            WeightRows = (long)info.WeightRows;
            WeightColumns = (long)info.WeightColumns;
            BiasCount = (long)info.BiasCount;
            InputRows = (long)info.InputRows;
            InputColumns = (long)info.InputColumns;
            OutputRows = (long)info.OutputRows;
            OutputColumns = (long)info.OutputColumns;
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

        /// <summary>Type of the gradients of weight and bias.</summary>
        public ElementType GradientType { get; }

        /// <summary>Own outputs (column) or inputs (row) of each stretch.</summary>
        public Share Own { get; }

        /// <summary>Rows of the own weight.</summary>
        public long WeightRows { get; }

        /// <summary>Columns of the own weight.</summary>
        public long WeightColumns { get; }

        /// <summary>Elements of the own bias; 0 without a bias.</summary>
        public long BiasCount { get; }

        /// <summary>Rows of the own input.</summary>
        public long InputRows { get; }

        /// <summary>Columns of the own input.</summary>
        public long InputColumns { get; }

        /// <summary>Rows of the own output.</summary>
        public long OutputRows { get; }

        /// <summary>Columns of the own output.</summary>
        public long OutputColumns { get; }

        /// <summary>Bytes of kept, from forward to backward.</summary>
        public long KeptBytes { get; }

        /// <summary>Of the memory that layers of a tensor object share.</summary>
        public long WorkspaceBytes { get; }

        /// <summary>Rows that are multiplied and exchanged at a time.</summary>
        public long TileRows { get; }

        /// <summary>Bytes of this rank that peers read in a forward pass.</summary>
        public long ForwardBytes { get; }

        /// <summary>The same for the gradient of the input.</summary>
        public long BackwardInputBytes { get; }

        /// <summary>The same for the gradient of the weight.</summary>
        public long BackwardWeightBytes { get; }

        /// <summary>Forward passes that have succeeded.</summary>
        public long ForwardPasses { get; }

        /// <summary>Passes for the gradient of the input that have succeeded.</summary>
        public long BackwardInputPasses { get; }

        /// <summary>Passes for the gradient of the weight that have succeeded.</summary>
        public long BackwardWeightPasses { get; }
    }

    /// <summary>Arrays that stay where they are during one call.</summary>
    internal sealed class PinnedArrays : IDisposable
    {
        private readonly List<GCHandle> pins = new List<GCHandle>();

        /// <summary>The address of an array of that many elements; of none if it has 0.</summary>
        internal IntPtr Add<T>(string name, T[] array, ElementType type, long length)
            where T : struct
        {
            if (array == null)
            {
                if (length == 0)
                {
                    return IntPtr.Zero;
                }

                throw new ArgumentNullException(name);
            }

            Elements elements = Elements.Of<T>(type);
            Elements.CheckLength(name, (long)elements.Count(array.Length), length);
            return Pin(array);
        }

        /// <summary>
        /// The same, or zero without an array: the library refuses that if it reads it.
        /// </summary>
        internal IntPtr AddIfGiven<T>(string name, T[] array, ElementType type, long length)
            where T : struct
        {
            return array == null ? IntPtr.Zero : Add(name, array, type, length);
        }

        /// <summary>The address of that many bytes or more.</summary>
        internal IntPtr AddKept(byte[] kept, long bytes)
        {
            if (bytes == 0)
            {
                return IntPtr.Zero;
            }

            if (kept == null)
            {
                throw new ArgumentNullException(nameof(kept));
            }

            if (kept.Length < bytes)
            {
                throw new ArgumentException(
                    "It has " + kept.Length + " bytes, but the layer wants " + bytes + ".",
                    nameof(kept));
            }

            return Pin(kept);
        }

        public void Dispose()
        {
            foreach (GCHandle pin in pins)
            {
                pin.Free();
            }
        }

        private IntPtr Pin(object array)
        {
            GCHandle pin = GCHandle.Alloc(array, GCHandleType.Pinned);
            pins.Add(pin);
            return pin.AddrOfPinnedObject();
        }
    }

    /// <summary>
    /// A linear layer whose weight is split between ranks. One thread at a time may call the layers
    /// of a tensor object.
    /// </summary>
    public abstract class ParallelLinear : IDisposable
    {
        private readonly LinearHandle handle;
        private readonly ElementType elementType;
        private readonly ProductRunner products;

        internal unsafe ParallelLinear(
            Tensor tensor, string name, ParallelMode mode, NativeLinearOptions options)
        {
            if (tensor == null)
            {
                throw new ArgumentNullException(nameof(tensor));
            }

            if (name == null)
            {
                throw new ArgumentNullException(nameof(name));
            }

            using (var text = new Utf8(name, nameof(name)))
            {
                options.StructSize = (uint)sizeof(NativeLinearOptions);
                options.Name = text.Pointer;
                TriremeException.Check(NativeMethods.trireme_linear_create(
                    tensor.Handle, ref options, out handle));
            }

            products = tensor.Products;
            elementType = (ElementType)options.Dtype;
            Mode = tensor.IsSequence ? mode | ParallelMode.Sequence : mode;
        }

        /// <summary>How ranks split the layer.</summary>
        public ParallelMode Mode { get; }

        /// <summary>Sizes and counts so far.</summary>
        public unsafe LinearInfo Info
        {
            get
            {
                var info = new NativeLinearInfo { StructSize = (uint)sizeof(NativeLinearInfo) };
                TriremeException.Check(NativeMethods.trireme_linear_get_info(handle, ref info));
                return new LinearInfo(info);
            }
        }

        /// <summary>Computes output = input * transpose(weight) + bias.</summary>
        /// <param name="kept">Info.KeptBytes bytes, for a column layer that keeps its input.</param>
        public unsafe void Forward<T>(
            T[] input, T[] weight, T[] output, T[] bias = null, byte[] kept = null,
            TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            LinearInfo info = Info;
            bool keeps = (Mode & ParallelMode.Column) != 0;
            using (var arrays = new PinnedArrays())
            using (var held = new HeldHandle(handle))
            {
                var options = PassOptions(timeout, false);
                Status status = NativeMethods.trireme_linear_forward(
                    held.Address, (void*)arrays.Add(nameof(input), input, elementType, Inputs(info)),
                    (void*)arrays.Add(nameof(weight), weight, elementType, Weights(info)),
                    (void*)arrays.Add(nameof(bias), bias, elementType, info.BiasCount),
                    (void*)arrays.Add(nameof(output), output, elementType, Outputs(info)),
                    (void*)arrays.AddKept(kept, keeps ? info.KeptBytes : 0), ref options);
                ActivationRunner.Check(status, products, null);
            }
        }

        /// <summary>Computes the gradient of the input.</summary>
        /// <param name="kept">Info.KeptBytes bytes, for a row layer with Sequence.</param>
        public unsafe void BackwardInput<T>(
            T[] outputGradient, T[] weight, T[] inputGradient, byte[] kept = null,
            TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            LinearInfo info = Info;
            bool keeps = (Mode & ParallelMode.Row) != 0;
            using (var arrays = new PinnedArrays())
            using (var held = new HeldHandle(handle))
            {
                var options = PassOptions(timeout, false);
                Status status = NativeMethods.trireme_linear_backward_input(
                    held.Address,
                    (void*)arrays.Add(
                        nameof(outputGradient), outputGradient, elementType, Outputs(info)),
                    (void*)arrays.Add(nameof(weight), weight, elementType, Weights(info)),
                    (void*)arrays.Add(
                        nameof(inputGradient), inputGradient, elementType, Inputs(info)),
                    (void*)arrays.AddKept(kept, keeps ? info.KeptBytes : 0), ref options);
                ActivationRunner.Check(status, products, null);
            }
        }

        /// <summary>Computes the gradients of weight and bias.</summary>
        /// <param name="input">Null if kept holds it, of a column layer with keepGathered.</param>
        /// <param name="outputGradient">Null if kept holds it, of a row layer with sequence.</param>
        /// <param name="add">Whether they are added to what is there.</param>
        public unsafe void BackwardWeight<T, TGradient>(
            T[] input, T[] outputGradient, TGradient[] weightGradient,
            TGradient[] biasGradient = null, byte[] kept = null, bool add = false,
            TimeSpan timeout = default(TimeSpan)) where T : struct where TGradient : struct
        {
            LinearInfo info = Info;
            using (var arrays = new PinnedArrays())
            using (var held = new HeldHandle(handle))
            {
                var options = PassOptions(timeout, add);
                Status status = NativeMethods.trireme_linear_backward_weight(
                    held.Address,
                    (void*)arrays.AddIfGiven(nameof(input), input, elementType, Inputs(info)),
                    (void*)arrays.AddIfGiven(
                        nameof(outputGradient), outputGradient, elementType, Outputs(info)),
                    (void*)arrays.AddKept(kept, info.KeptBytes),
                    (void*)arrays.Add(
                        nameof(weightGradient), weightGradient, info.GradientType, Weights(info)),
                    (void*)arrays.Add(
                        nameof(biasGradient), biasGradient, info.GradientType, info.BiasCount),
                    ref options);
                ActivationRunner.Check(status, products, null);
            }
        }

        /// <summary>
        /// Computes what BackwardInput and then BackwardWeight compute. Between ranks that a
        /// transport joins, the exchange of the input's gradient goes on while the gradient of the
        /// weight is made.
        /// </summary>
        /// <param name="input">Null if kept holds it, of a column layer with keepGathered.</param>
        /// <param name="add">Whether gradients of weight and bias are added to what is there.</param>
        public unsafe void Backward<T, TGradient>(
            T[] input, T[] outputGradient, T[] weight, T[] inputGradient,
            TGradient[] weightGradient, TGradient[] biasGradient = null, byte[] kept = null,
            bool add = false, TimeSpan timeout = default(TimeSpan))
            where T : struct where TGradient : struct
        {
            LinearInfo info = Info;
            using (var arrays = new PinnedArrays())
            using (var held = new HeldHandle(handle))
            {
                var options = PassOptions(timeout, add);
                Status status = NativeMethods.trireme_linear_backward(
                    held.Address,
                    (void*)arrays.AddIfGiven(nameof(input), input, elementType, Inputs(info)),
                    (void*)arrays.Add(
                        nameof(outputGradient), outputGradient, elementType, Outputs(info)),
                    (void*)arrays.Add(nameof(weight), weight, elementType, Weights(info)),
                    (void*)arrays.Add(
                        nameof(inputGradient), inputGradient, elementType, Inputs(info)),
                    (void*)arrays.AddKept(kept, info.KeptBytes),
                    (void*)arrays.Add(
                        nameof(weightGradient), weightGradient, info.GradientType, Weights(info)),
                    (void*)arrays.Add(
                        nameof(biasGradient), biasGradient, info.GradientType, info.BiasCount),
                    ref options);
                ActivationRunner.Check(status, products, null);
            }
        }

        /// <summary>Destroys the layer; its name is free again.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        internal static unsafe NativePassOptions PassOptions(TimeSpan timeout, bool add)
        {
            return new NativePassOptions
            {
                StructSize = (uint)sizeof(NativePassOptions),
                Flags = add ? (uint)NativeMethods.TRIREME_PASS_FLAG_ADD : 0,
                TimeoutNs = Nanoseconds.From(timeout, nameof(timeout)),
            };
        }

        private static long Inputs(LinearInfo info)
        {
            return info.InputRows * info.InputColumns;
        }

        private static long Outputs(LinearInfo info)
        {
            return info.OutputRows * info.OutputColumns;
        }

        private static long Weights(LinearInfo info)
        {
            return info.WeightRows * info.WeightColumns;
        }
    }

    /// <summary>A linear layer whose outputs are split between the ranks.</summary>
    public sealed class ColumnParallelLinear : ParallelLinear
    {
        /// <param name="rows">Rows of the whole input in each call.</param>
        /// <param name="gatheredOutput">Whether every rank gets the outputs of all ranks.</param>
        /// <param name="stretches">
        /// Equal parts of the outputs that are split one by one, such as 3 for queries, keys and
        /// values; 0 means 1.
        /// </param>
        public ColumnParallelLinear(
            Tensor tensor, string name, long input, long output, long rows, bool bias = false,
            bool gatheredOutput = false, int stretches = 0,
            ElementType elementType = ElementType.F32)
            : base(
                tensor, name, ParallelMode.Column,
                new NativeLinearOptions
                {
                    Kind = NativeMethods.TRIREME_LINEAR_KIND_COLUMN,
                    Flags = (bias ? (uint)NativeMethods.TRIREME_LINEAR_FLAG_BIAS : 0)
                        | (gatheredOutput
                            ? (uint)NativeMethods.TRIREME_LINEAR_FLAG_GATHERED_OUTPUT : 0),
                    Input = Tensor.Positive(input, nameof(input)),
                    Output = Tensor.Positive(output, nameof(output)),
                    Rows = Tensor.Positive(rows, nameof(rows)),
                    Stretches = (uint)Tensor.Positive(stretches, nameof(stretches)),
                    Dtype = (int)elementType,
                })
        {
        }
    }

    /// <summary>
    /// A linear layer whose inputs are split between the ranks. The bias is whole, and added once
    /// to the sum.
    /// </summary>
    public sealed class RowParallelLinear : ParallelLinear
    {
        /// <param name="rows">Rows of the whole input in each call.</param>
        /// <param name="inputSplit">Whether each rank hands in its columns of the input.</param>
        public RowParallelLinear(
            Tensor tensor, string name, long input, long output, long rows, bool bias = false,
            bool inputSplit = true, ElementType elementType = ElementType.F32)
            : base(
                tensor, name, ParallelMode.Row,
                new NativeLinearOptions
                {
                    Kind = NativeMethods.TRIREME_LINEAR_KIND_ROW,
                    Flags = (bias ? (uint)NativeMethods.TRIREME_LINEAR_FLAG_BIAS : 0)
                        | (inputSplit ? (uint)NativeMethods.TRIREME_LINEAR_FLAG_INPUT_SPLIT : 0),
                    Input = Tensor.Positive(input, nameof(input)),
                    Output = Tensor.Positive(output, nameof(output)),
                    Rows = Tensor.Positive(rows, nameof(rows)),
                    Dtype = (int)elementType,
                })
        {
        }
    }
}
