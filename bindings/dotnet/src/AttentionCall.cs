using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// Computes one chunk pair. A forward call writes Output, Maximum and Sum; a backward call
    /// writes Dq, Dk and Dv.
    /// </summary>
    public delegate void PairFunction(AttentionCall call);

    /// <summary>
    /// One chunk pair, for a function of the caller; good during its call. Rows of queries have
    /// Heads * Width elements, rows of keys and values KvHeads * Width. Spans of the other pass are
    /// empty. The formulas stand at trireme_attention_call of context.h.
    /// </summary>
    public unsafe ref struct AttentionCall
    {
        private readonly NativeAttentionCall* native;

        internal AttentionCall(NativeAttentionCall* native)
        {
            this.native = native;
        }

        /// <summary>Keys that the queries see.</summary>
        public AttentionMask Mask
        {
            get { return (AttentionMask)native->Mask; }
        }

        /// <summary>Type of Q, K, V and DOutput.</summary>
        public ElementType Type
        {
            get { return (ElementType)native->Dtype; }
        }

        /// <summary>Number of the chunk of queries.</summary>
        public int QChunk
        {
            get { return (int)native->QChunk; }
        }

        /// <summary>Number of the chunk of keys and values.</summary>
        public int KvChunk
        {
            get { return (int)native->KvChunk; }
        }

        /// <summary>First position of the queries.</summary>
        public long QFirst
        {
            get { return (long)native->QFirst; }
        }

        /// <summary>Queries; 1 or more.</summary>
        public int QCount
        {
            get { return checked((int)native->QCount); }
        }

        /// <summary>First position of the keys.</summary>
        public long KvFirst
        {
            get { return (long)native->KvFirst; }
        }

        /// <summary>Keys; 1 or more.</summary>
        public int KvCount
        {
            get { return checked((int)native->KvCount); }
        }

        /// <summary>Query heads.</summary>
        public int Heads
        {
            get { return checked((int)native->Heads); }
        }

        /// <summary>Key/value heads.</summary>
        public int KvHeads
        {
            get { return checked((int)native->KvHeads); }
        }

        /// <summary>Elements of a head.</summary>
        public int Width
        {
            get { return checked((int)native->Width); }
        }

        /// <summary>Factor of q k^T.</summary>
        public double Scale
        {
            get { return native->Scale; }
        }

        /// <summary>For each query the number of the first key that it sees.</summary>
        public ReadOnlySpan<ulong> VisibleFirst
        {
            get { return new ReadOnlySpan<ulong>((void*)native->VisibleFirst, QCount); }
        }

        /// <summary>For each query the number behind the last key that it sees.</summary>
        public ReadOnlySpan<ulong> VisibleEnd
        {
            get { return new ReadOnlySpan<ulong>((void*)native->VisibleEnd, QCount); }
        }

        /// <summary>Forward, out: the output before it is divided by the sum.</summary>
        public Span<float> Output
        {
            get { return Numbers(native->Output, QElements); }
        }

        /// <summary>Forward, out: the maximum of the scores, of each query and head.</summary>
        public Span<float> Maximum
        {
            get { return Numbers(native->Maximum, QNumbers); }
        }

        /// <summary>Forward, out: the sum of exponentials, of each query and head.</summary>
        public Span<float> Sum
        {
            get { return Numbers(native->Sum, QNumbers); }
        }

        /// <summary>Backward: the maximum over all keys, of each query and head.</summary>
        public ReadOnlySpan<float> TotalMaximum
        {
            get { return Numbers(native->TotalMaximum, QNumbers); }
        }

        /// <summary>Backward: the sum over all keys, of each query and head.</summary>
        public ReadOnlySpan<float> TotalSum
        {
            get { return Numbers(native->TotalSum, QNumbers); }
        }

        /// <summary>Backward: output times its gradient, of each query and head.</summary>
        public ReadOnlySpan<float> Delta
        {
            get { return Numbers(native->Delta, QNumbers); }
        }

        /// <summary>Backward, out: this pair's summand of the queries' gradient.</summary>
        public Span<float> Dq
        {
            get { return Numbers(native->Dq, QElements); }
        }

        /// <summary>Backward, out: this pair's summand of the keys' gradient.</summary>
        public Span<float> Dk
        {
            get { return Numbers(native->Dk, KvElements); }
        }

        /// <summary>Backward, out: this pair's summand of the values' gradient.</summary>
        public Span<float> Dv
        {
            get { return Numbers(native->Dv, KvElements); }
        }

        private int QNumbers
        {
            get { return checked(QCount * Heads); }
        }

        private int QElements
        {
            get { return checked(QCount * Heads * Width); }
        }

        private int KvElements
        {
            get { return checked(KvCount * KvHeads * Width); }
        }

        /// <summary>The queries; F16 and Bf16 as ushort or Half.</summary>
        public ReadOnlySpan<T> Q<T>() where T : struct
        {
            return Elements<T>(native->Q, QElements);
        }

        /// <summary>The keys.</summary>
        public ReadOnlySpan<T> K<T>() where T : struct
        {
            return Elements<T>(native->K, KvElements);
        }

        /// <summary>The values.</summary>
        public ReadOnlySpan<T> V<T>() where T : struct
        {
            return Elements<T>(native->V, KvElements);
        }

        /// <summary>Backward: the gradient of the attention's output.</summary>
        public ReadOnlySpan<T> DOutput<T>() where T : struct
        {
            return Elements<T>(native->DOutput, QElements);
        }

        private static Span<float> Numbers(IntPtr first, int count)
        {
            return new Span<float>((void*)first, first == IntPtr.Zero ? 0 : count);
        }

        private ReadOnlySpan<T> Elements<T>(IntPtr first, int count) where T : struct
        {
            if (!Trireme.Elements.Fits<T>(Type))
            {
                throw new ArgumentException(
                    "The elements are " + Type + ", not " + typeof(T) + ".");
            }

            return new ReadOnlySpan<T>((void*)first, first == IntPtr.Zero ? 0 : count);
        }
    }

    /// <summary>Runs the caller's functions of one context, which refers to this.</summary>
    internal sealed class PairRunner : CallbackRunner<PairRunner>
    {
        // In fields for as long as the process lives: native code calls them in every pass.
        private static readonly NativeMethods.AttentionCallback ForwardCallback = RunForward;
        private static readonly NativeMethods.AttentionCallback BackwardCallback = RunBackward;

        private readonly PairFunction forward;
        private readonly PairFunction backward;

        internal PairRunner(PairFunction forward, PairFunction backward)
        {
            this.forward = forward;
            this.backward = backward;
        }

        /// <summary>The native callbacks, which name this.</summary>
        internal unsafe IntPtr Put(CallMemory memory)
        {
            return memory.Put(new NativeAttentionCallbacks
            {
                StructSize = (uint)sizeof(NativeAttentionCallbacks),
                Forward = Marshal.GetFunctionPointerForDelegate(
                    ForwardCallback),
                Backward = Marshal.GetFunctionPointerForDelegate(
                    BackwardCallback),
                UserData = UserData,
            });
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
            // Called from native code: no exception may leave.
            try
            {
                PairRunner runner = Of(userData);
                return runner.Run(
                    isBackward ? runner.backward : runner.forward, (NativeAttentionCall*)call);
            }
            catch (Exception)
            {
                return 1;
            }
        }

        private unsafe int Run(PairFunction function, NativeAttentionCall* call)
        {
            try
            {
                function(new AttentionCall(call));
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
