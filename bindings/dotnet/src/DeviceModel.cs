using System;

namespace Trireme
{
    // A model on a communicator of a device: its memory by addresses. The calls follow the work in
    // the stream of SetStream(), else the default one. The memory of an address has as many
    // elements as the call says.
    // The caller keeps it until the call returns. If a call fails with Timeout or Device, the device
    // may still be at work: the caller keeps the memory for ever.
    public sealed partial class Model
    {
        /// <summary>Whether parameters and gradients are memory of a device.</summary>
        public bool OnDevice
        {
            get { return (handle.Parent as Communicator)?.OnDevice == true; }
        }

        /// <summary>
        /// Where the elements of a parameter are on the device: good as GetParameterData() says.
        /// Communicator.CopyToHost() reads them. After SetStream() it must name that stream: a
        /// gathered unit may still be on its way, and is good there alone.
        /// </summary>
        public IntPtr GetParameterAddress(ulong parameter, out long count)
        {
            IntPtr data;
            ulong elements;
            TriremeException.Check(NativeMethods.trireme_model_get_parameter_data(
                handle, parameter, out data, out elements));
            count = checked((long)elements);
            return data;
        }

        /// <summary>Hands in the gradient of one parameter, as its span would be.</summary>
        public unsafe void GradientReady(
            ulong parameter, IntPtr gradient, long count, ElementType type)
        {
            ulong elements = Communicator.CountOnDevice(count, nameof(count));
            Optimizer called = Updater;
            using (var held = new HeldHandle(handle))
            {
                TriremeException.Check(NativeMethods.trireme_model_gradient_ready(
                    held.Address, parameter, (byte*)gradient, elements, type));
            }

            GC.KeepAlive(called);
        }

        /// <summary>A whole backward pass: the gradients of all parameters.</summary>
        public unsafe void AccumulateFlat(
            IntPtr gradients, long count, ElementType type,
            BackwardFlags flags = BackwardFlags.None)
        {
            ulong elements = Communicator.CountOnDevice(count, nameof(count));
            Optimizer asked = Updater;
            using (var held = new HeldHandle(handle))
            {
                CheckAsked(asked, NativeMethods.trireme_model_accumulate_flat(
                    held.Address, (byte*)gradients, elements, type, (uint)flags));
            }
        }

        /// <summary>
        /// Gives every rank the root's parameters; other ranks may pass zero. Collective.
        /// </summary>
        public unsafe void SetParameters(
            IntPtr values, long count, ElementType type, int root = 0)
        {
            TriremeException.Check(NativeMethods.trireme_model_broadcast_parameters(
                handle, (byte*)values, Communicator.CountOnDevice(count, nameof(count)), type,
                root));
            Changed?.Invoke();
        }

        /// <summary>Gives every rank all parameters, whole. Collective.</summary>
        public unsafe void GetParameters(IntPtr values, long count, ElementType type)
        {
            TriremeException.Check(NativeMethods.trireme_model_gather_parameters(
                handle, (byte*)values, Communicator.CountOnDevice(count, nameof(count)), type));
        }

        // The bytes of all parameters, by way of the device's memory if the model lies there.
        private unsafe void BroadcastBytes(void* host, int root)
        {
            long bytes = byName.Bytes;
            if (host == null || !OnDevice)
            {
                TriremeException.Check(NativeMethods.trireme_model_broadcast_parameters(
                    handle, host, (ulong)bytes, ElementType.Bytes, root));
                return;
            }

            var group = (Communicator)handle.Parent;
            using (var buffer = new DeviceBuffer(group, bytes))
            {
                group.CopyMemory(buffer.Address, (IntPtr)host, bytes);
                TriremeException.Check(NativeMethods.trireme_model_broadcast_parameters(
                    handle, (void*)buffer.Address, (ulong)bytes, ElementType.Bytes, root));
            }
        }

        private unsafe void GatherBytes(void* host)
        {
            long bytes = byName.Bytes;
            if (!OnDevice)
            {
                TriremeException.Check(NativeMethods.trireme_model_gather_parameters(
                    handle, host, (ulong)bytes, ElementType.Bytes));
                return;
            }

            var group = (Communicator)handle.Parent;
            using (var buffer = new DeviceBuffer(group, bytes))
            {
                TriremeException.Check(NativeMethods.trireme_model_gather_parameters(
                    handle, (void*)buffer.Address, (ulong)bytes, ElementType.Bytes));
                group.CopyMemory((IntPtr)host, buffer.Address, bytes);
            }
        }
    }
}
