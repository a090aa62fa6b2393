using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// A caller's own work on each bucket of gradients, before and after it is reduced. It must not
    /// use the model. If it throws, the step fails on all ranks, and Optimizer.Step() of its rank
    /// throws the same exception.
    /// </summary>
    public delegate void BucketHook(Bucket bucket);

    /// <summary>A stretch of one parameter inside a bucket.</summary>
    public struct BucketPart
    {
        internal BucketPart(NativeBucketPart native)
        {
            Parameter = native.Parameter;
            First = native.First;
            Count = checked((int)native.Count);
            Position = checked((int)native.Position);
        }

        /// <summary>Number of the parameter.</summary>
        public ulong Parameter { get; }

        /// <summary>
        /// Number of the parameter's element with which the stretch begins, from 0.
        /// </summary>
        public ulong First { get; }

        /// <summary>Elements; 1 or more.</summary>
        public int Count { get; }

        /// <summary>Where it begins in the bucket's data, in elements.</summary>
        public int Position { get; }
    }

    /// <summary>One bucket of gradients, for a hook; good during its call.</summary>
    public unsafe ref struct Bucket
    {
        private readonly NativeBucket* native;

        internal Bucket(NativeBucket* native)
        {
            this.native = native;
        }

        public HookMoment Moment
        {
            get { return (HookMoment)native->Moment; }
        }

        /// <summary>Number of the bucket, from 0 in the first step's order of reduction.</summary>
        public ulong Number
        {
            get { return native->Bucket; }
        }

        /// <summary>Before: which pass of the step, from 0. After: 0.</summary>
        public uint Pass
        {
            get { return native->Pass; }
        }

        /// <summary>Type of the gradients.</summary>
        public ElementType Type
        {
            get { return (ElementType)native->Dtype; }
        }

        /// <summary>Elements of the data; 1 or more.</summary>
        public int Count
        {
            get { return checked((int)native->Count); }
        }

        public int PartCount
        {
            get { return checked((int)native->PartCount); }
        }

        /// <summary>One of PartCount stretches, in the order of the data.</summary>
        public BucketPart Part(int index)
        {
            if (index < 0 || index >= PartCount)
            {
                throw new ArgumentOutOfRangeException(
                    nameof(index), index, "The bucket has " + PartCount + " parts.");
            }

            // A later library has larger parts.
            byte* part = (byte*)native->Parts + ((ulong)index * native->PartBytes);
            return new BucketPart(*(NativeBucketPart*)part);
        }

        /// <summary>The gradients, which may be changed.</summary>
        public Span<T> Data<T>() where T : struct
        {
            if (Elements.Of<T>(ElementType.Automatic).Type != Type)
            {
                throw new ArgumentException(
                    "The elements are " + Type + ", not " + typeof(T) + ".");
            }

            return new Span<T>((void*)native->Data, Count);
        }
    }

    /// <summary>
    /// Runs the hook of one model. The handle of the model refers to it, and the handle of the
    /// optimizer to the model.
    /// </summary>
    internal sealed class HookRunner : CallbackRunner<HookRunner>
    {
        /// <summary>The function that the native side calls.</summary>
        internal static readonly IntPtr Pointer;

        // In a field for as long as the process lives: native code calls it in every step.
        private static readonly NativeMethods.BucketCallback Callback = Run;

        private readonly BucketHook hook;

        static HookRunner()
        {
            Pointer = Marshal.GetFunctionPointerForDelegate(Callback);
        }

        internal HookRunner(BucketHook hook)
        {
            this.hook = hook;
        }

        private static unsafe int Run(IntPtr bucket, IntPtr userData)
        {
            // Called from native code: no exception may leave.
            try
            {
                return Of(userData).Run((NativeBucket*)bucket);
            }
            catch (Exception)
            {
                return 1;
            }
        }

        private unsafe int Run(NativeBucket* bucket)
        {
            try
            {
                hook(new Bucket(bucket));
                return 0;
            }
            catch (Exception exception)
            {
                Keep(exception);
                return 1;
            }
        }
    }
}
