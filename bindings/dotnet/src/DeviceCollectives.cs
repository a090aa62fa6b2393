using System;

namespace Trireme
{
    // Operations of memory of a device, by addresses of other libraries: those of TorchSharp's
    // tensors, ILGPU's NativePtr or ManagedCuda's device pointers. OperationOptions.Stream names
    // the stream whose earlier work the operation follows. Each returns when its result is on the
    // device. The caller keeps the memory alive until then.
    public sealed partial class Communicator
    {
        /// <summary>
        /// Reduces elements on a device over all ranks; in place if both addresses are the same.
        /// </summary>
        public unsafe void AllReduce(
            IntPtr send, IntPtr receive, long count, ElementType type,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = OptionsOnDevice(options);
            TriremeException.Check(NativeMethods.trireme_all_reduce(
                handle, (void*)send, (void*)receive, CountOnDevice(count, nameof(count)), type,
                reduction, &native));
        }

        /// <summary>
        /// Reduces world size blocks on a device, of receiveCount elements each, and gives rank r
        /// block r.
        /// </summary>
        public unsafe void ReduceScatter(
            IntPtr send, IntPtr receive, long receiveCount, ElementType type,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = OptionsOnDevice(options);
            TriremeException.Check(NativeMethods.trireme_reduce_scatter(
                handle, (void*)send, (void*)receive,
                CountOnDevice(receiveCount, nameof(receiveCount)), type, reduction, &native));
        }

        /// <summary>
        /// Gives every rank the blocks of all ranks, of sendCount elements each, in rank order.
        /// </summary>
        public unsafe void AllGather(
            IntPtr send, IntPtr receive, long sendCount, ElementType type,
            OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = OptionsOnDevice(options);
            TriremeException.Check(NativeMethods.trireme_all_gather(
                handle, (void*)send, (void*)receive, CountOnDevice(sendCount, nameof(sendCount)),
                type, &native));
        }

        /// <summary>Gives every rank the root's elements.</summary>
        public unsafe void Broadcast(
            IntPtr data, long count, ElementType type, int root,
            OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = OptionsOnDevice(options);
            TriremeException.Check(NativeMethods.trireme_broadcast(
                handle, (void*)data, CountOnDevice(count, nameof(count)), type, root, &native));
        }

        /// <summary>
        /// Reduces elements on a device over all ranks and gives the root the result. The others'
        /// receive memory is not used.
        /// </summary>
        public unsafe void Reduce(
            IntPtr send, IntPtr receive, long count, ElementType type, int root,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = OptionsOnDevice(options);
            TriremeException.Check(NativeMethods.trireme_reduce(
                handle, (void*)send, (void*)receive, CountOnDevice(count, nameof(count)), type,
                reduction, root, &native));
        }

        /// <summary>
        /// Gives the root the blocks of all ranks, of sendCount elements each, in rank order.
        /// </summary>
        public unsafe void Gather(
            IntPtr send, IntPtr receive, long sendCount, ElementType type, int root,
            OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = OptionsOnDevice(options);
            TriremeException.Check(NativeMethods.trireme_gather(
                handle, (void*)send, (void*)receive, CountOnDevice(sendCount, nameof(sendCount)),
                type, root, &native));
        }

        /// <summary>Gives rank r block r of the root, of receiveCount elements each.</summary>
        public unsafe void Scatter(
            IntPtr send, IntPtr receive, long receiveCount, ElementType type, int root,
            OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = OptionsOnDevice(options);
            TriremeException.Check(NativeMethods.trireme_scatter(
                handle, (void*)send, (void*)receive,
                CountOnDevice(receiveCount, nameof(receiveCount)), type, root, &native));
        }

        /// <summary>Gives rank r block r of every rank, of blockCount elements each.</summary>
        public unsafe void AllToAll(
            IntPtr send, IntPtr receive, long blockCount, ElementType type,
            OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = OptionsOnDevice(options);
            TriremeException.Check(NativeMethods.trireme_all_to_all(
                handle, (void*)send, (void*)receive, CountOnDevice(blockCount, nameof(blockCount)),
                type, &native));
        }

        /// <summary>Sends elements of a device to one rank.</summary>
        public unsafe void Send(
            IntPtr data, long count, ElementType type, int to, ulong tag = 0,
            OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = OptionsOnDevice(options);
            TriremeException.Check(NativeMethods.trireme_send(
                handle, (void*)data, CountOnDevice(count, nameof(count)), type, to, tag, &native));
        }

        /// <summary>
        /// Receives elements from one rank into memory of a device: its earliest message with this
        /// tag, which must have this length.
        /// </summary>
        public unsafe void Receive(
            IntPtr data, long count, ElementType type, int from, ulong tag = 0,
            OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = OptionsOnDevice(options);
            TriremeException.Check(NativeMethods.trireme_receive(
                handle, (void*)data, CountOnDevice(count, nameof(count)), type, from, tag,
                &native));
        }

        internal static ulong CountOnDevice(long count, string name)
        {
            if (count < 0)
            {
                throw new ArgumentOutOfRangeException(name, count, "A count below 0.");
            }

            return (ulong)count;
        }

        private static NativeOperationOptions OptionsOnDevice(OperationOptions options)
        {
            if (options.ElementType != ElementType.Automatic)
            {
                throw new ArgumentException(
                    "ElementType is for arrays; here the argument names the type.",
                    nameof(options));
            }

            return options.ToNative();
        }
    }
}
