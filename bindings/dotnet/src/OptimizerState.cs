using System;

namespace Trireme
{
    /// <summary>A stretch of the state of training that this rank owns.</summary>
    public sealed class StateRange
    {
        private readonly OptimizerHandle owner;
        private readonly IntPtr data;

        internal unsafe StateRange(OptimizerHandle owner, NativeStateRange native)
        {
            this.owner = owner;
            data = native.Data;
            Kind = (StateKind)native.Kind;
            Vector = native.Vector;
            Parameter = native.Parameter;
            Name = Utf8.Read(native.Name);
            Type = (ElementType)native.Dtype;
            First = native.First;
            Count = native.Count;
            Shape = new long[native.Dimensions];
            for (int i = 0; i < Shape.Length; ++i)
            {
                Shape[i] = checked((long)((ulong*)native.Shape)[i]);
            }
        }

        public StateKind Kind { get; }

        /// <summary>Number of the state vector; optimizer.h lists those of each rule.</summary>
        public uint Vector { get; }

        /// <summary>Number of the parameter.</summary>
        public ulong Parameter { get; }

        /// <summary>Its name.</summary>
        public string Name { get; }

        /// <summary>Type of its elements.</summary>
        public ElementType Type { get; }

        /// <summary>Its whole shape; of rows or columns their number.</summary>
        public long[] Shape { get; }

        /// <summary>
        /// Index of the range's first element in that shape, in row-major order.
        /// </summary>
        public ulong First { get; }

        /// <summary>Elements; 1 or more.</summary>
        public ulong Count { get; }

        /// <summary>
        /// The elements inside the library's own memory: good until the optimizer is disposed or
        /// collected, so hold this range as long. State in a file or on a device has none:
        /// <see cref="Optimizer.ReadRange{T}"/> copies it.
        /// <para>
        /// The caller may write the elements between steps. A write changes this rank's copy only,
        /// or that of all ranks where they share the parameters. Write before any unit is gathered
        /// since the last step, Load() or Model.SetParameters(): gathered copies may stay.
        /// </para>
        /// </summary>
        public unsafe Span<T> GetData<T>() where T : struct
        {
            if (owner.IsClosed)
            {
                throw new ObjectDisposedException(nameof(Optimizer));
            }

            if (!Elements.Fits<T>(Type))
            {
                throw new ArgumentException(
                    "The elements are " + Type + ", not " + typeof(T) + ".");
            }

            if (data == IntPtr.Zero)
            {
                throw new InvalidOperationException(
                    "The elements lie in a file or on a device; Optimizer.ReadRange() copies them.");
            }

            return new Span<T>((void*)data, checked((int)Count));
        }
    }

    public sealed partial class Optimizer
    {
        /// <summary>
        /// Where the state of training lies on this rank: parameters, frozen ones too, and the
        /// vectors of the update rule. Over all ranks the ranges hold every element once, whatever
        /// the strategy.
        /// </summary>
        public unsafe StateRange[] GetRanges()
        {
            ulong count;
            TriremeException.Check(
                NativeMethods.trireme_optimizer_get_range_count(handle, out count));
            var ranges = new StateRange[count];
            for (ulong i = 0; i < count; ++i)
            {
                var native = new NativeStateRange { StructSize = (uint)sizeof(NativeStateRange) };
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_get_range(handle, i, ref native));
                ranges[i] = new StateRange(handle, native);
            }

            return ranges;
        }

        /// <summary>
        /// This rank's part of the training: parameters, state of the update rule, number of steps,
        /// learning rate and loss scale. A description of the layout and a checksum go with it.
        /// Every rank saves its own part, all after the same step. Waits for no peer.
        /// </summary>
        public unsafe byte[] Save()
        {
            ulong size;
            TriremeException.Check(
                NativeMethods.trireme_optimizer_get_saved_bytes(handle, out size));
            var state = new byte[checked((int)size)];
            fixed (byte* first = state)
            {
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_save(handle, first, size, out size));
            }

            return state;
        }

        /// <summary>
        /// Takes back what <see cref="Save"/> gave on this rank of a training of the same model,
        /// options, strategy, world size and update rule. Nothing changes unless all ranks can
        /// load parts of the same step. Collective.
        /// </summary>
        public unsafe void Load(ReadOnlySpan<byte> state)
        {
            fixed (byte* first = &Elements.First(state))
            {
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_load(handle, first, (ulong)state.Length));
            }

            Model.Changed?.Invoke();
        }
    }
}
