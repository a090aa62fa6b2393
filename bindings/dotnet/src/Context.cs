using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>One attention of a model.</summary>
    public sealed class ContextOptions
    {
        /// <summary>Name for messages. Required.</summary>
        public string Name { get; set; }

        /// <summary>Positions of the whole sequence.</summary>
        public long Positions { get; set; }

        /// <summary>
        /// Chunks of the sequence: one for each rank at least, two with Zigzag, at most 1024. Bits
        /// depend on this number, and not on the number of ranks. Required.
        /// </summary>
        public int Chunks { get; set; }

        public ContextLayout Layout { get; set; } = ContextLayout.Contiguous;

        public ContextMethod Method { get; set; } = ContextMethod.Gather;

        /// <summary>F32, F16 or Bf16.</summary>
        public ElementType ElementType { get; set; } = ElementType.F32;

        /// <summary>Query heads; 1 or more.</summary>
        public int Heads { get; set; }

        /// <summary>Key/value heads, which divide Heads; 0 means as many.</summary>
        public int KvHeads { get; set; }

        /// <summary>Elements of a head; 1 or more.</summary>
        public int Width { get; set; }

        /// <summary>Factor of q k^T; 0 means 1 / sqrt(Width).</summary>
        public double Scale { get; set; }

        /// <summary>No position sees a later one.</summary>
        public bool Causal { get; set; }

        /// <summary>
        /// Computes a chunk pair of a forward pass. Null with Backward: the library does, in plain
        /// loops.
        /// </summary>
        public PairFunction Forward { get; set; }

        /// <summary>Computes a chunk pair of a backward pass.</summary>
        public PairFunction Backward { get; set; }

        /// <summary>
        /// Longest time of a pass with its functions; zero is the communicator's.
        /// </summary>
        public TimeSpan Timeout { get; set; }

        internal unsafe NativeContextOptions Native(IntPtr name, IntPtr callbacks)
        {
            return new NativeContextOptions
            {
                StructSize = (uint)sizeof(NativeContextOptions),
                Flags = Causal ? (uint)NativeMethods.TRIREME_CONTEXT_FLAG_CAUSAL : 0,
                Name = name,
                Positions = (ulong)Positive(Positions, nameof(Positions)),
                Chunks = (uint)Positive(Chunks, nameof(Chunks)),
                Layout = (int)Layout,
                Method = (int)Method,
                Dtype = (int)ElementType,
                Heads = (ulong)Positive(Heads, nameof(Heads)),
                KvHeads = (ulong)Positive(KvHeads, nameof(KvHeads)),
                Width = (ulong)Positive(Width, nameof(Width)),
                Scale = Scale,
                Provider = callbacks == IntPtr.Zero
                    ? NativeMethods.TRIREME_ATTENTION_PROVIDER_BUILTIN
                    : NativeMethods.TRIREME_ATTENTION_PROVIDER_CALLER,
                Callbacks = callbacks,
                TimeoutNs = Nanoseconds.From(Timeout, nameof(Timeout)),
            };
        }

        private static long Positive(long number, string name)
        {
            if (number < 0)
            {
                throw new ArgumentOutOfRangeException(name, number, "A number below zero.");
            }

            return number;
        }
    }

    /// <summary>Sizes and counts of a context on this rank.</summary>
    public struct ContextInfo
    {
        internal ContextInfo(NativeContextInfo info)
        {
            OwnChunks = (int)info.OwnChunks;
            Rows = (long)info.Rows;
            QCount = (long)info.QCount;
            KvCount = (long)info.KvCount;
            KeptCount = (long)info.KeptCount;
            Pairs = (long)info.Pairs;
            ForwardPasses = (long)info.ForwardPasses;
            BackwardPasses = (long)info.BackwardPasses;
            ForwardMemory = (long)info.ForwardMemory;
            BackwardMemory = (long)info.BackwardMemory;
            HeldMemory = (long)info.HeldMemory;
            ForwardBytes = (long)info.ForwardBytes;
            BackwardBytes = (long)info.BackwardBytes;
        }

        /// <summary>Chunks that this rank holds; some may be empty.</summary>
        public int OwnChunks { get; }

        /// <summary>Positions of this rank.</summary>
        public long Rows { get; }

        /// <summary>Elements of this rank's queries, and of its outputs.</summary>
        public long QCount { get; }

        /// <summary>Elements of this rank's keys, and of its values.</summary>
        public long KvCount { get; }

        /// <summary>Numbers that a forward pass keeps for a backward pass.</summary>
        public long KeptCount { get; }

        /// <summary>Chunk pairs that this rank computes in a pass of one sequence.</summary>
        public long Pairs { get; }

        /// <summary>Forward passes that have succeeded.</summary>
        public long ForwardPasses { get; }

        /// <summary>Backward passes that have succeeded.</summary>
        public long BackwardPasses { get; }

        /// <summary>Bytes of memory that a forward pass needs here.</summary>
        public long ForwardMemory { get; }

        /// <summary>Bytes of memory that a backward pass needs here.</summary>
        public long BackwardMemory { get; }

        /// <summary>Bytes that the context holds.</summary>
        public long HeldMemory { get; }

        /// <summary>Bytes of this rank that peers read in a forward pass.</summary>
        public long ForwardBytes { get; }

        /// <summary>The same in a backward pass of one sequence.</summary>
        public long BackwardBytes { get; }
    }

    /// <summary>
    /// One attention of a model, whose positions lie on the ranks of a communicator. One thread at
    /// a time may make a pass. An exception of a function comes out of the pass on its rank, and
    /// the other ranks get a CallbackException.
    /// </summary>
    public sealed class Context : IDisposable
    {
        private readonly ContextHandle handle;
        private readonly PairRunner runner; // null: the library computes pairs
        private readonly ElementType elementType;

        private Context(ContextHandle handle, PairRunner runner, ElementType elementType)
        {
            this.handle = handle;
            this.runner = runner;
            this.elementType = elementType;
        }

        private delegate Status Call(
            IntPtr context, ref NativeAttentionArrays arrays, ref NativeAttentionOptions options);

        /// <summary>Sizes and counts so far.</summary>
        public unsafe ContextInfo Info
        {
            get
            {
                var info = new NativeContextInfo { StructSize = (uint)sizeof(NativeContextInfo) };
                TriremeException.Check(NativeMethods.trireme_context_get_info(handle, ref info));
                return new ContextInfo(info);
            }
        }

        /// <summary>Makes a context. Does not wait for the other ranks.</summary>
        public static Context Create(Communicator communicator, ContextOptions options)
        {
            if (communicator == null)
            {
                throw new ArgumentNullException(nameof(communicator));
            }

            if (options == null)
            {
                throw new ArgumentNullException(nameof(options));
            }

            if (options.Name == null)
            {
                throw new ArgumentNullException(nameof(options.Name));
            }

            if ((options.Forward == null) != (options.Backward == null))
            {
                throw new ArgumentException(
                    "Forward and Backward go together: give both, or neither.", nameof(options));
            }

            using (var memory = new CallMemory())
            {
                PairRunner runner = options.Forward == null
                    ? null
                    : new PairRunner(options.Forward, options.Backward);
                NativeContextOptions native = options.Native(
                    memory.Put(options.Name, nameof(options.Name)),
                    runner == null ? IntPtr.Zero : runner.Put(memory));
                ContextHandle made;
                TriremeException.Check(NativeMethods.trireme_context_create(
                    communicator.Handle, ref native, out made));
                return new Context(made, runner, options.ElementType);
            }
        }

        /// <summary>The positions of a rank, in the order of its rows.</summary>
        public long[] Positions(int rank)
        {
            ulong count;
            ulong none = 0;
            TriremeException.Check(
                NativeMethods.trireme_context_positions(handle, rank, ref none, 0, out count));
            var found = new ulong[count + 1]; // one at least, to point to
            TriremeException.Check(NativeMethods.trireme_context_positions(
                handle, rank, ref found[0], count, out count));
            return Array.ConvertAll(found.AsSpan(0, (int)count).ToArray(), each => (long)each);
        }

        /// <summary>
        /// Computes the attention of this rank's queries over the positions of all ranks.
        /// Collective. Writes output, and kept for the backward pass.
        /// </summary>
        /// <param name="sequenceStarts">
        /// Positions at which further sequences begin; null for one sequence.
        /// </param>
        public void Forward<T>(
            T[] q, T[] k, T[] v, T[] output, float[] kept, ulong[] sequenceStarts = null,
            TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            using (var pins = new Pins(this))
            {
                var arrays = new NativeAttentionArrays();
                PutInputs(pins, ref arrays, q, k, v, output, kept);
                Pass(
                    NativeMethods.trireme_context_attention_forward, ref arrays, pins,
                    sequenceStarts, timeout);
            }
        }

        /// <summary>
        /// Computes the gradients of this rank's queries, keys and values. Collective.
        /// </summary>
        public void Backward<T>(
            T[] q, T[] k, T[] v, T[] output, float[] kept, T[] dOutput, T[] dq, T[] dk, T[] dv,
            ulong[] sequenceStarts = null, TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            using (var pins = new Pins(this))
            {
                var arrays = new NativeAttentionArrays();
                PutInputs(pins, ref arrays, q, k, v, output, kept);
                arrays.DOutput = pins.Queries(dOutput, nameof(dOutput));
                arrays.Dq = pins.Queries(dq, nameof(dq));
                arrays.Dk = pins.Keys(dk, nameof(dk));
                arrays.Dv = pins.Keys(dv, nameof(dv));
                Pass(
                    NativeMethods.trireme_context_attention_backward, ref arrays, pins,
                    sequenceStarts, timeout);
            }
        }

        /// <summary>Destroys the context.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        private static void PutInputs<T>(
            Pins pins, ref NativeAttentionArrays arrays, T[] q, T[] k, T[] v, T[] output,
            float[] kept) where T : struct
        {
            arrays.Q = pins.Queries(q, nameof(q));
            arrays.K = pins.Keys(k, nameof(k));
            arrays.V = pins.Keys(v, nameof(v));
            arrays.Output = pins.Queries(output, nameof(output));
            arrays.Kept = pins.Kept(kept, nameof(kept));
        }

        private unsafe void Pass(
            Call call, ref NativeAttentionArrays arrays, Pins pins, ulong[] sequenceStarts,
            TimeSpan timeout)
        {
            arrays.StructSize = (uint)sizeof(NativeAttentionArrays);
            var options = new NativeAttentionOptions
            {
                StructSize = (uint)sizeof(NativeAttentionOptions),
                SequenceStarts = sequenceStarts == null ? IntPtr.Zero : pins.Pin(sequenceStarts),
                SequenceCount = sequenceStarts == null ? 0 : (ulong)sequenceStarts.Length,
                TimeoutNs = Nanoseconds.From(timeout, nameof(timeout)),
            };
            Status status;
            using (var held = new HeldHandle(handle))
            {
                status = call(held.Address, ref arrays, ref options);
            }

            if (status != Status.Ok)
            {
                TriremeException failure = TriremeException.FromLastError(status);
                runner?.TakeThrown()?.Throw();
                throw failure;
            }

            GC.KeepAlive(runner);
        }

        /// <summary>Arrays of one pass, which stay where they are until its end.</summary>
        private sealed class Pins : IDisposable
        {
            private readonly GCHandle[] pins = new GCHandle[10];
            private readonly ContextInfo info;
            private readonly ElementType elementType;
            private int count;

            internal Pins(Context context)
            {
                info = context.Info;
                elementType = context.elementType;
            }

            public void Dispose()
            {
                for (int i = 0; i < count; ++i)
                {
                    pins[i].Free();
                }
            }

            internal IntPtr Queries<T>(T[] array, string name) where T : struct
            {
                return Pin(array, name, elementType, info.QCount);
            }

            internal IntPtr Keys<T>(T[] array, string name) where T : struct
            {
                return Pin(array, name, elementType, info.KvCount);
            }

            internal IntPtr Kept(float[] array, string name)
            {
                return Pin(array, name, ElementType.F32, info.KeptCount);
            }

            internal IntPtr Pin<T>(T[] array) where T : struct
            {
                pins[count] = GCHandle.Alloc(array, GCHandleType.Pinned);
                return pins[count++].AddrOfPinnedObject();
            }

            private IntPtr Pin<T>(T[] array, string name, ElementType type, long wanted)
                where T : struct
            {
                if (array == null)
                {
                    throw new ArgumentNullException(name);
                }

                Elements elements = Elements.Of<T>(type);
                Elements.CheckLength(name, (long)elements.Count(array.Length), wanted);
                return Pin(array);
            }
        }
    }
}
