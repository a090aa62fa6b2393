using System;
using System.Collections.Generic;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>Describes one parameter of a model.</summary>
    public sealed class ParameterOptions
    {
        public ParameterOptions(string name, ElementType type, params long[] shape)
        {
            Name = name;
            Type = type;
            Shape = shape;
        }

        /// <summary>Unique in the model.</summary>
        public string Name { get; }

        /// <summary>
        /// F32, F64, F16 or Bf16. Gradients and optimizer state of the 16-bit types are F32.
        /// </summary>
        public ElementType Type { get; }

        /// <summary>Extents; none is a scalar.</summary>
        public long[] Shape { get; }

        /// <summary>Name of the unit; null is a unit of its own.</summary>
        public string Unit { get; set; }

        /// <summary>Name of an earlier parameter that this one is an alias of.</summary>
        public string TiedTo { get; set; }

        public ParameterFlags Flags { get; set; }

        /// <summary>
        /// How many models hold this same parameter, so that OptimizerOptions.NormRanks counts it
        /// once; 0 is 1.
        /// </summary>
        public uint Replicas { get; set; }

        /// <summary>
        /// Number of its group in OptimizerOptions.Groups.
        /// </summary>
        public uint ParameterGroup { get; set; }

        /// <summary>
        /// How the parameter lies on axes of the model's mesh, by the name of the axis. On the
        /// other axes each rank holds a parameter of its own. Null is none.
        /// </summary>
        public IReadOnlyDictionary<string, Placement> Placements { get; set; }

        /// <summary>
        /// The part of the parameter that this rank holds, by the name of an axis along which it
        /// is split. Null is none.
        /// </summary>
        public IReadOnlyDictionary<string, SplitPart> Splits { get; set; }

        internal unsafe NativeParameterPlacement[] NativePlacements(CallMemory memory)
        {
            var list = new List<NativeParameterPlacement>();
            foreach (KeyValuePair<string, SplitPart> each in
                Splits ?? new Dictionary<string, SplitPart>())
            {
                ulong[] stretches = each.Value.Numbers();
                list.Add(new NativeParameterPlacement
                {
                    StructSize = (uint)sizeof(NativeParameterPlacement),
                    Kind = (int)Placement.Split,
                    Axis = memory.Put(each.Key, nameof(Splits)),
                    Dimension = checked((uint)each.Value.Dimension),
                    Extent = checked((ulong)each.Value.Extent),
                    Stretches = stretches.Length > 0 ? memory.Put(stretches) : IntPtr.Zero,
                    StretchCount = (ulong)stretches.Length / 2,
                });
            }

            foreach (KeyValuePair<string, Placement> each in
                Placements ?? new Dictionary<string, Placement>())
            {
                list.Add(new NativeParameterPlacement
                {
                    StructSize = (uint)sizeof(NativeParameterPlacement),
                    Kind = (int)each.Value,
                    Axis = memory.Put(each.Key, nameof(Placements)),
                });
            }

            return list.ToArray();
        }
    }

    /// <summary>
    /// A model whose parameters, gradients and optimizer state are spread over ranks: parameters
    /// are added, <see cref="Seal"/> lays them out, and then it is trained in steps. All ranks
    /// make the same calls in the same order; one call at a time per model.
    /// </summary>
    public sealed partial class Model : IDisposable
    {
        private readonly ModelHandle handle;
        private readonly List<ElementType> types = new List<ElementType>();
        private readonly ParametersByName byName = new ParametersByName();
        private WeakReference<Optimizer> updater;

        /// <summary>
        /// A model that the ranks of a communicator train. On one of a device its memory is that of
        /// the device, which the calls with addresses take.
        /// </summary>
        public Model(Communicator communicator, ModelOptions options)
            : this(communicator, nameof(communicator), options,
                (ref NativeModelOptions native, out ModelHandle made) =>
                    NativeMethods.trireme_model_create(
                        communicator.Handle, ref native, out made))
        {
        }

        /// <summary>
        /// A model on a mesh. Along "data" lie copies of it. The ranks along "shard" keep one copy
        /// between them. Along "tensor" and "pipeline" each rank has a model of its own.
        /// ModelOptions.Shards and OptimizerOptions.NormRanks follow from the axes.
        /// </summary>
        public Model(Mesh mesh, ModelOptions options)
            : this(mesh, nameof(mesh), options,
                (ref NativeModelOptions native, out ModelHandle made) =>
                    NativeMethods.trireme_mesh_create_model(mesh.Handle, ref native, out made))
        {
        }

        /// <summary>
        /// A model on all axes. Contents of Experts says that ranks along Expert hold other
        /// parameters; the gradients of these are sums.
        /// </summary>
        public Model(
            ParallelContext parallel, ModelOptions options,
            ParallelContents contents = ParallelContents.Common)
            : this(parallel, nameof(parallel), options,
                (ref NativeModelOptions native, out ModelHandle made) =>
                    NativeMethods.trireme_parallel_create_model(
                        parallel.Handle, contents, ref native, out made))
        {
        }

        private Model(object ranks, string ranksName, ModelOptions options, Creation create)
        {
            if (ranks == null)
            {
                throw new ArgumentNullException(ranksName);
            }

            if (options == null)
            {
                throw new ArgumentNullException(nameof(options));
            }

            BucketHook asked = options.Buckets?.Hook;
            HookRunner hook = asked == null ? null : new HookRunner(asked);
            using (var memory = new CallMemory())
            {
                NativeModelOptions native = options.Native(memory, hook);
                TriremeException.Check(create(ref native, out handle));
            }

            handle.Parent = ranks;
            handle.Hook = hook;
        }

        private delegate Status Creation(ref NativeModelOptions options, out ModelHandle made);

        /// <summary>The shape of the sealed model.</summary>
        public unsafe ModelInfo Info
        {
            get
            {
                var native = new NativeModelInfo { StructSize = (uint)sizeof(NativeModelInfo) };
                TriremeException.Check(NativeMethods.trireme_model_get_info(handle, ref native));
                return new ModelInfo(native);
            }
        }

        /// <summary>How many bytes this rank holds, by kind, planned and allocated.</summary>
        public unsafe ModelMemory Memory
        {
            get
            {
                var native =
                    new NativeModelMemory { StructSize = (uint)sizeof(NativeModelMemory) };
                TriremeException.Check(
                    NativeMethods.trireme_model_get_memory(handle, ref native));
                return new ModelMemory(native);
            }
        }

        /// <summary>
        /// How the parameters lie, and what the disk has done; needs ModelOptions.Offload.
        /// </summary>
        public unsafe OffloadInfo OffloadInfo
        {
            get
            {
                var native = new NativeOffloadInfo
                {
                    StructSize = (uint)sizeof(NativeOffloadInfo),
                };
                TriremeException.Check(
                    NativeMethods.trireme_model_get_offload_info(handle, ref native));
                var info = new OffloadInfo(native);
                GC.KeepAlive(this);
                return info;
            }
        }

        /// <summary>Counts of the model's calls on this rank since it was sealed.</summary>
        public unsafe ModelStatistics Statistics
        {
            get
            {
                var native =
                    new NativeModelStatistics { StructSize = (uint)sizeof(NativeModelStatistics) };
                TriremeException.Check(
                    NativeMethods.trireme_model_get_statistics(handle, ref native));
                return new ModelStatistics(native);
            }
        }

        /// <summary>
        /// Called after each collective call that has changed the parameters; null: no function is.
        /// </summary>
        internal Action Changed { get; set; }

        internal ModelHandle Handle
        {
            get { return handle; }
        }

        /// <summary>
        /// Its last optimizer, or null. Weak, because it gives its state back when its last holder
        /// lets go. Calls that may run its functions hold it until they return.
        /// </summary>
        internal Optimizer Updater
        {
            get
            {
                Optimizer found = null;
                updater?.TryGetTarget(out found);
                return found;
            }

            set
            {
                updater = new WeakReference<Optimizer>(value);
            }
        }

        /// <summary>By number of the parameter.</summary>
        internal List<ElementType> ParameterTypes
        {
            get { return types; }
        }

        /// <summary>Adds a parameter.</summary>
        /// <returns>Its number, from 0 in the order added.</returns>
        public unsafe ulong AddParameter(ParameterOptions options)
        {
            if (options == null)
            {
                throw new ArgumentNullException(nameof(options));
            }

            var shape = new ulong[options.Shape == null ? 0 : options.Shape.Length];
            for (int i = 0; i < shape.Length; ++i)
            {
                if (options.Shape[i] < 0)
                {
                    throw new ArgumentException(
                        "Extent " + i + " of '" + options.Name + "' is " + options.Shape[i] + ".",
                        nameof(options));
                }

                shape[i] = (ulong)options.Shape[i];
            }

            using (var name = new Utf8(options.Name, nameof(options)))
            using (var unit = new Utf8(options.Unit, nameof(options)))
            using (var tiedTo = new Utf8(options.TiedTo, nameof(options)))
            using (var memory = new CallMemory())
            {
                NativeParameterPlacement[] placements = options.NativePlacements(memory);
                fixed (ulong* extents = shape)
                {
                    var native = new NativeParameterOptions
                    {
                        StructSize = (uint)sizeof(NativeParameterOptions),
                        Flags = (uint)options.Flags,
                        Dtype = (int)options.Type,
                        Dimensions = (uint)shape.Length,
                        Shape = (IntPtr)extents,
                        Name = name.Pointer,
                        Unit = unit.Pointer,
                        TiedTo = tiedTo.Pointer,
                        Replicas = options.Replicas,
                        ParameterGroup = options.ParameterGroup,
                        Placements = memory.Put(placements),
                        PlacementCount = (ulong)placements.Length,
                    };
                    ulong parameter;
                    TriremeException.Check(NativeMethods.trireme_model_add_parameter(
                        handle, ref native, out parameter));
                    types.Add(options.Type);
                    byName.Add(options);
                    return parameter;
                }
            }
        }

        /// <summary>
        /// Ends the description: all ranks must have registered the same. Parameters are 0.
        /// </summary>
        public void Seal()
        {
            TriremeException.Check(NativeMethods.trireme_model_seal(handle));
        }

        /// <summary>The place of a unit on this rank.</summary>
        public unsafe UnitInfo GetUnit(ulong unit)
        {
            var native = new NativeUnitInfo { StructSize = (uint)sizeof(NativeUnitInfo) };
            TriremeException.Check(
                NativeMethods.trireme_model_get_unit_info(handle, unit, ref native));
            return new UnitInfo(native);
        }

        /// <summary>
        /// Gives every rank the root's parameters. Collective; other ranks pass the number of
        /// elements through a buffer of the same length, whose contents do not matter. `type` tells
        /// what the C# type does not: F16 or Bf16 in ushort or Half. Parameters of different types
        /// are given as Bytes: those of all in their order, each in its own type, without gaps.
        /// </summary>
        public unsafe void SetParameters<T>(
            ReadOnlySpan<T> values, int root = 0, ElementType type = ElementType.Automatic)
            where T : struct
        {
            Elements elements = Elements.Of<T>(type);
            fixed (byte* first = &Elements.First(values))
            {
                TriremeException.Check(NativeMethods.trireme_model_broadcast_parameters(
                    handle, first, elements.Count(values.Length), elements.Type, root));
            }

            Changed?.Invoke();
        }

        /// <summary>
        /// Gives every rank all parameters, whole. Collective. `type` as in SetParameters().
        /// </summary>
        public unsafe void GetParameters<T>(
            Span<T> values, ElementType type = ElementType.Automatic) where T : struct
        {
            Elements elements = Elements.Of<T>(type);
            fixed (byte* first = &Elements.First<T>(values))
            {
                TriremeException.Check(NativeMethods.trireme_model_gather_parameters(
                    handle, first, elements.Count(values.Length), elements.Type));
            }
        }

        /// <summary>
        /// Gives every rank the root's parameters by name; null on other ranks. Collective. The
        /// parameters of a model may have different types: F32 comes in float[], F64 in double[],
        /// F16 and Bf16 as their bits in ushort[]. An array has the shape of its parameter, or one
        /// dimension. All parameters must be there, but for those tied to another.
        /// </summary>
        public unsafe void BroadcastParameters(
            IReadOnlyDictionary<string, Array> values, int root = 0)
        {
            IntPtr memory = Marshal.AllocHGlobal(new IntPtr(Math.Max(byName.Bytes, 1)));
            try
            {
                if (values != null)
                {
                    byName.Write(values, (byte*)memory);
                }

                BroadcastBytes(values == null ? null : (void*)memory, root);
            }
            finally
            {
                Marshal.FreeHGlobal(memory);
            }

            Changed?.Invoke();
        }

        /// <summary>
        /// Gives every rank all parameters by name, each in its type, as in BroadcastParameters(),
        /// and shape. A scalar is an array of one element. Collective.
        /// </summary>
        public unsafe Dictionary<string, Array> GatherParameters()
        {
            IntPtr memory = Marshal.AllocHGlobal(new IntPtr(Math.Max(byName.Bytes, 1)));
            try
            {
                GatherBytes((void*)memory);
                return byName.Read((byte*)memory);
            }
            finally
            {
                Marshal.FreeHGlobal(memory);
            }
        }

        /// <summary>
        /// Names the stream behind whose work each later call on a device begins: a cudaStream_t or
        /// CUstream of the device's primary context. Zero is the device's default stream. It must
        /// exist until another one is named, or the model and its optimizer are disposed or
        /// collected. A model on the host has none: InvalidStateException.
        /// </summary>
        public void SetStream(IntPtr stream)
        {
            var named = new NativeStream { Kind = (int)DeviceKind.Cuda, Native = stream };
            TriremeException.Check(NativeMethods.trireme_model_set_stream(handle, ref named));
        }

        /// <summary>
        /// Compares the copies that several ranks hold, bit by bit. A MismatchException on all
        /// ranks names the first parameter that differs, and the ranks; SetParameters() makes the
        /// copies the same again. Collective.
        /// </summary>
        public void CheckReplicas()
        {
            TriremeException.Check(NativeMethods.trireme_model_check_replicas(handle));
        }

        /// <summary>
        /// Makes a unit's parameters whole on this rank. Collective for zero3 and hybrid_shard,
        /// unless the ranks share the parameters.
        /// </summary>
        public void GatherUnit(ulong unit)
        {
            TriremeException.Check(NativeMethods.trireme_model_gather_unit(handle, unit));
        }

        /// <summary>Lets go of a unit's whole parameters.</summary>
        public void ReleaseUnit(ulong unit)
        {
            TriremeException.Check(NativeMethods.trireme_model_release_unit(handle, unit));
        }

        /// <summary>
        /// A parameter's elements inside the library's own memory: good until its unit is released
        /// (zero3) or the model is disposed or collected, so hold the model as long. Not to be
        /// written where ranks share the parameters (ModelInfo.SharedBytes).
        /// </summary>
        /// <exception cref="InvalidOperationException">The model lies on a device.</exception>
        public unsafe Span<T> GetParameterData<T>(ulong parameter) where T : struct
        {
            IntPtr data;
            ulong count;
            if (OnDevice)
            {
                throw new InvalidOperationException(
                    "The host cannot read memory of a device. GetParameterAddress() tells where it " +
                    "is, and Communicator.CopyToHost() copies it.");
            }

            TriremeException.Check(NativeMethods.trireme_model_get_parameter_data(
                handle, parameter, out data, out count));
            if (!Elements.Fits<T>(types[checked((int)parameter)]))
            {
                throw new ArgumentException(
                    "The elements are " + types[(int)parameter] + ", not " + typeof(T) + ".");
            }

            return new Span<T>((void*)data, checked((int)count));
        }

        /// <summary>
        /// Number of the leaf of the global batch that this rank computes as a micro-batch. Null:
        /// it has none there, and makes no backward pass for it.
        /// </summary>
        public uint? GetLeaf(uint microBatch)
        {
            uint leaf;
            TriremeException.Check(NativeMethods.trireme_model_get_leaf(handle, microBatch, out leaf));
            return leaf == NativeMethods.NoLeaf ? (uint?)null : leaf;
        }

        /// <summary>
        /// Begins the backward pass of one micro-batch. With ModelFlags.UpdateInBackward this asks
        /// the schedule. If the caller's own function throws, this throws the same exception, and
        /// the pass has not begun.
        /// </summary>
        public void BeginBackward(BackwardFlags flags = BackwardFlags.None)
        {
            Optimizer asked = Updater;
            using (var held = new HeldHandle(handle))
            {
                CheckAsked(asked, NativeMethods.trireme_model_begin_backward(
                    held.Address, (uint)flags));
            }
        }

        /// <summary>
        /// Where the gradient of one parameter is exchanged: write it there, hand in the same
        /// span, and nothing is copied. Empty if there is no such place; then use memory of your
        /// own. Ask in each backward pass; the place is yours until the gradient is handed in, and
        /// while the model lives.
        /// </summary>
        /// <param name="parameter">Its number.</param>
        /// <param name="adds">Whether to add to what lies there; if not, overwrite it.</param>
        public unsafe Span<T> GetGradientData<T>(ulong parameter, out bool adds) where T : struct
        {
            ElementType wanted = Elements.Of<T>(ElementType.Automatic).Type;
            IntPtr data;
            ulong count;
            ElementType type;
            int addsUp;
            TriremeException.Check(NativeMethods.trireme_model_get_gradient_data(
                handle, parameter, out data, out count, out type, out addsUp));
            if (type != wanted)
            {
                throw new ArgumentException(
                    "The gradient of parameter " + parameter + " is of " + type + ", not " +
                    wanted + ".");
            }

            adds = addsUp != 0;
            return data == IntPtr.Zero
                ? Span<T>.Empty
                : new Span<T>((void*)data, checked((int)count));
        }

        /// <summary>
        /// Hands in the gradient of one parameter, of its type, or F32 where that has 16 bits.
        /// It is copied, unless it is what GetGradientData() gave.
        /// `type` as in SetParameters().
        /// </summary>
        public unsafe void GradientReady<T>(
            ulong parameter,
            ReadOnlySpan<T> gradient,
            ElementType type = ElementType.Automatic) where T : struct
        {
            Elements elements = Elements.Of<T>(type);
            Optimizer called = Updater;
            using (var held = new HeldHandle(handle))
            fixed (byte* first = &Elements.First(gradient))
            {
                TriremeException.Check(NativeMethods.trireme_model_gradient_ready(
                    held.Address, parameter, first, elements.Count(gradient.Length), elements.Type));
            }

            GC.KeepAlive(called);
        }

        /// <summary>Ends the backward pass of one micro-batch.</summary>
        public void EndBackward()
        {
            Optimizer called = Updater;
            using (var held = new HeldHandle(handle))
            {
                TriremeException.Check(NativeMethods.trireme_model_end_backward(held.Address));
            }

            GC.KeepAlive(called);
        }

        /// <summary>
        /// A whole backward pass of an uneven model for which this rank has no data.
        /// </summary>
        public void AbsentBackward(BackwardFlags flags = BackwardFlags.None)
        {
            BeginBackward(flags | BackwardFlags.Absent);
            EndBackward();
        }

        /// <summary>
        /// A whole backward pass in one call: the gradients of all parameters, of types as in
        /// GradientReady(). Throws what a schedule throws, as BeginBackward().
        /// </summary>
        public unsafe void AccumulateFlat<T>(
            ReadOnlySpan<T> gradients,
            BackwardFlags flags = BackwardFlags.None,
            ElementType type = ElementType.Automatic) where T : struct
        {
            Elements elements = Elements.Of<T>(type);
            Optimizer asked = Updater;
            using (var held = new HeldHandle(handle))
            fixed (byte* first = &Elements.First(gradients))
            {
                CheckAsked(asked, NativeMethods.trireme_model_accumulate_flat(
                    held.Address, first, elements.Count(gradients.Length), elements.Type,
                    (uint)flags));
            }
        }

        /// <summary>
        /// Forgets the gradients of this step, and exceptions of the caller's own functions in it.
        /// If the step cannot be discarded, the first of these is the inner exception. Collective.
        /// </summary>
        public void DiscardGradients()
        {
            Optimizer called = Updater;
            using (var held = new HeldHandle(handle))
            {
                Status status = NativeMethods.trireme_model_discard_gradients(held.Address);
                ExceptionDispatchInfo thrown =
                    called == null ? handle.Hook?.TakeThrown() : called.TakeThrown();
                if (status != Status.Ok)
                {
                    TriremeException.ThrowFailure(status, thrown);
                }
            }
        }

        /// <summary>Gives the model back; waits for no peer.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        // Throws for a call that failed, and that may have asked the schedule of the optimizer.
        private static void CheckAsked(Optimizer asked, Status status)
        {
            if (status != Status.Ok)
            {
                TriremeException.ThrowFailure(status, asked?.TakeThrownBySchedule());
            }

            GC.KeepAlive(asked);
        }
    }
}
