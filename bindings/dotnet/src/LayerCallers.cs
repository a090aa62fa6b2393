using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>Computes one matrix product.</summary>
    public delegate void ProductFunction(Product product);

    /// <summary>Computes one direction of an activation: all of Result.</summary>
    public delegate void ActivationFunction(ActivationCall call);

    /// <summary>
    /// One matrix product, for a function of the caller; good during its call. Result = left *
    /// right, or Result + left * right with Add. Matrices are row-major, with a step from row to row
    /// in elements. A transposed one lies in memory as its transpose.
    /// </summary>
    public unsafe ref struct Product
    {
        private readonly NativeProduct* native;

        internal Product(NativeProduct* native)
        {
            this.native = native;
        }

        /// <summary>Type of both factors.</summary>
        public ElementType Type
        {
            get { return (ElementType)native->Dtype; }
        }

        /// <summary>Rows of the left factor and of the result.</summary>
        public int Rows
        {
            get { return checked((int)native->Rows); }
        }

        /// <summary>Columns of the right factor and of the result.</summary>
        public int Columns
        {
            get { return checked((int)native->Columns); }
        }

        /// <summary>Columns of the left factor and rows of the right one.</summary>
        public int Depth
        {
            get { return checked((int)native->Depth); }
        }

        public bool LeftTransposed
        {
            get { return native->LeftTransposed != 0; }
        }

        public bool RightTransposed
        {
            get { return native->RightTransposed != 0; }
        }

        /// <summary>Without it the old result may be NaN.</summary>
        public bool Add
        {
            get { return native->Add != 0; }
        }

        public int LeftStep
        {
            get { return checked((int)native->LeftStep); }
        }

        public int RightStep
        {
            get { return checked((int)native->RightStep); }
        }

        public int ResultStep
        {
            get { return checked((int)native->ResultStep); }
        }

        /// <summary>The left factor; F16 and Bf16 as ushort or Half.</summary>
        public ReadOnlySpan<T> Left<T>() where T : struct
        {
            return LeftTransposed
                ? LayerMemory.Of<T>(native->Left, Length(Depth, LeftStep, Rows), Type)
                : LayerMemory.Of<T>(native->Left, Length(Rows, LeftStep, Depth), Type);
        }

        /// <summary>The right factor.</summary>
        public ReadOnlySpan<T> Right<T>() where T : struct
        {
            return RightTransposed
                ? LayerMemory.Of<T>(native->Right, Length(Columns, RightStep, Depth), Type)
                : LayerMemory.Of<T>(native->Right, Length(Depth, RightStep, Columns), Type);
        }

        /// <summary>The result; F32 for factors of 16 bits.</summary>
        public Span<T> Result<T>() where T : struct
        {
            bool isNarrow = Type == ElementType.F16 || Type == ElementType.Bf16;
            return LayerMemory.Of<T>(
                native->Result, Length(Rows, ResultStep, Columns),
                isNarrow ? ElementType.F32 : Type);
        }

        private static int Length(int rows, int step, int columns)
        {
            return checked(((rows - 1) * step) + columns);
        }
    }

    /// <summary>
    /// One direction of an activation on this rank's columns, for a function of the caller; good
    /// during its call. Rows lie one after the other.
    /// </summary>
    public unsafe ref struct ActivationCall
    {
        private readonly NativeActivationCall* native;

        internal ActivationCall(NativeActivationCall* native)
        {
            this.native = native;
        }

        /// <summary>Type of all arrays.</summary>
        public ElementType Type
        {
            get { return (ElementType)native->Dtype; }
        }

        /// <summary>Rows; may be 0.</summary>
        public int Rows
        {
            get { return checked((int)native->Rows); }
        }

        /// <summary>Hidden units of this rank; may be 0.</summary>
        public int Columns
        {
            get { return checked((int)native->Columns); }
        }

        /// <summary>Columns, or twice as many if gated: all gates, then all values.</summary>
        public int InputColumns
        {
            get { return checked((int)native->InputColumns); }
        }

        /// <summary>Number of the first column among those of all ranks.</summary>
        public long FirstColumn
        {
            get { return (long)native->FirstColumn; }
        }

        /// <summary>Whether Result is the gradient of the input, and not the output.</summary>
        public bool IsBackward
        {
            get { return native->OutputGradient != IntPtr.Zero; }
        }

        /// <summary>Rows * InputColumns elements; F16 and Bf16 as ushort or Half.</summary>
        public ReadOnlySpan<T> Input<T>() where T : struct
        {
            return LayerMemory.Of<T>(native->Input, checked(Rows * InputColumns), Type);
        }

        /// <summary>Backward: Rows * Columns elements. Forward: none.</summary>
        public ReadOnlySpan<T> OutputGradient<T>() where T : struct
        {
            return LayerMemory.Of<T>(native->OutputGradient, checked(Rows * Columns), Type);
        }

        /// <summary>The output, or the gradient of the input.</summary>
        public Span<T> Result<T>() where T : struct
        {
            int columns = IsBackward ? InputColumns : Columns;
            return LayerMemory.Of<T>(native->Result, checked(Rows * columns), Type);
        }
    }

    internal static class LayerMemory
    {
        internal static unsafe Span<T> Of<T>(IntPtr first, int count, ElementType type)
            where T : struct
        {
            if (!Elements.Fits<T>(type))
            {
                throw new ArgumentException(
                    "The elements are " + type + ", not " + typeof(T) + ".");
            }

            return new Span<T>((void*)first, first == IntPtr.Zero ? 0 : count);
        }
    }

    /// <summary>Runs the caller's products. The tensor object and its layers refer to this.</summary>
    internal sealed class ProductRunner : CallbackRunner<ProductRunner>
    {
        // In a field for as long as the process lives: native code calls it in every pass.
        private static readonly NativeMethods.ProductCallback Callback = Run;

        private readonly ProductFunction function;

        internal ProductRunner(ProductFunction function)
        {
            this.function = function;
        }

        internal static IntPtr Address
        {
            get { return Marshal.GetFunctionPointerForDelegate(Callback); }
        }

        private static unsafe int Run(IntPtr product, IntPtr userData)
        {
            ProductRunner runner = null;
            try
            {
                runner = Of(userData);
                runner.function(new Product((NativeProduct*)product));
                return 0;
            }
            catch (Exception exception)
            {
                runner?.Keep(exception);
                return 1;
            }
        }
    }

    /// <summary>Runs the caller's activation of one MLP, which refers to this.</summary>
    internal sealed class ActivationRunner : CallbackRunner<ActivationRunner>
    {
        private static readonly NativeMethods.ActivationCallback ForwardCallback = RunForward;
        private static readonly NativeMethods.ActivationCallback BackwardCallback = RunBackward;

        private readonly ActivationFunction forward;
        private readonly ActivationFunction backward;

        internal ActivationRunner(ActivationFunction forward, ActivationFunction backward)
        {
            this.forward = forward;
            this.backward = backward;
        }

        internal IntPtr Forward
        {
            get
            {
                return forward == null
                    ? IntPtr.Zero
                    : Marshal.GetFunctionPointerForDelegate(ForwardCallback);
            }
        }

        internal IntPtr Backward
        {
            get
            {
                return backward == null
                    ? IntPtr.Zero
                    : Marshal.GetFunctionPointerForDelegate(BackwardCallback);
            }
        }

        /// <summary>
        /// Throws if the pass has failed: what a function of the caller threw in it, if one did.
        /// </summary>
        internal static void Check(
            Status status, ProductRunner products, ActivationRunner activation)
        {
            if (status != Status.Ok)
            {
                TriremeException failure = TriremeException.FromLastError(status);
                products?.TakeThrown()?.Throw();
                activation?.TakeThrown()?.Throw();
                throw failure;
            }

            GC.KeepAlive(products);
            GC.KeepAlive(activation);
        }

        private static int RunForward(IntPtr call, IntPtr userData)
        {
            return Run(call, userData, false);
        }

        private static int RunBackward(IntPtr call, IntPtr userData)
        {
            return Run(call, userData, true);
        }

        private static unsafe int Run(IntPtr call, IntPtr userData, bool isBackward)
        {
            ActivationRunner runner = null;
            try
            {
                runner = Of(userData);
                ActivationFunction function = isBackward ? runner.backward : runner.forward;
                function(new ActivationCall((NativeActivationCall*)call));
                return 0;
            }
            catch (Exception exception)
            {
                runner?.Keep(exception);
                return 1;
            }
        }
    }
}
