using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// One object of the native library. The runtime keeps it alive during every call that takes
    /// it and releases it exactly once. It refers to its parent, so that a parent is collected no
    /// earlier than its children; the library itself allows release in any order.
    /// </summary>
    internal abstract class NativeHandle : SafeHandle
    {
        protected NativeHandle() : base(IntPtr.Zero, true)
        {
        }

        public override bool IsInvalid
        {
            get { return handle == IntPtr.Zero; }
        }

        internal object Parent { get; set; }
    }

    /// <summary>
    /// Keeps a handle alive during a native call that calls back. Mono 6.8 can lose a SafeHandle
    /// that is an argument of such a call, if it suspends threads in its hybrid or cooperative way.
    /// When another thread collects garbage during the call, the SafeHandle is moved, and the end
    /// of the call finds it closed. So these calls take an address, and this counts the reference.
    /// </summary>
    internal struct HeldHandle : IDisposable
    {
        private readonly NativeHandle handle;

        internal HeldHandle(NativeHandle handle)
        {
            bool held = false;
            handle.DangerousAddRef(ref held);
            this.handle = handle;
        }

        internal IntPtr Address
        {
            get { return handle.DangerousGetHandle(); }
        }

        public void Dispose()
        {
            handle.DangerousRelease();
        }
    }

    internal sealed class CommunicatorHandle : NativeHandle
    {
        public CommunicatorHandle()
        {
        }

        internal CommunicatorHandle(IntPtr value)
        {
            SetHandle(value);
        }

        /// <summary>One that its parent owns and destroys.</summary>
        internal CommunicatorHandle(IntPtr value, object parent)
        {
            SetHandle(value);
            Parent = parent;
            Borrowed = true;
        }

        private bool Borrowed { get; }

        /// <summary>Unless it has been released before, or is its parent's.</summary>
        internal void LeaveAtExit()
        {
            if (!Borrowed)
            {
                LiveCommunicators.Add(handle);
            }
        }

        protected override bool ReleaseHandle()
        {
            if (!Borrowed)
            {
                LiveCommunicators.Remove(handle);
                NativeMethods.trireme_communicator_destroy(handle);
            }

            return true;
        }
    }

    internal sealed class LinearHandle : NativeHandle
    {
        public LinearHandle()
        {
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_linear_destroy(handle);
            return true;
        }
    }

    internal sealed class MlpHandle : NativeHandle
    {
        public MlpHandle()
        {
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_mlp_destroy(handle);
            return true;
        }
    }

    internal sealed class MeshHandle : NativeHandle
    {
        public MeshHandle()
        {
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_mesh_destroy(handle);
            return true;
        }
    }

    internal sealed class ParallelHandle : NativeHandle
    {
        public ParallelHandle()
        {
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_parallel_destroy(handle);
            return true;
        }
    }

    internal sealed class StoreHandle : NativeHandle
    {
        public StoreHandle()
        {
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_store_destroy(handle);
            return true;
        }
    }

    internal sealed class TensorHandle : NativeHandle
    {
        public TensorHandle()
        {
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_tensor_destroy(handle);
            return true;
        }
    }

    internal sealed class RegionHandle : NativeHandle
    {
        public RegionHandle()
        {
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_region_destroy(handle);
            return true;
        }
    }

    internal sealed class VocabularyHandle : NativeHandle
    {
        public VocabularyHandle()
        {
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_vocabulary_destroy(handle);
            return true;
        }
    }

    internal sealed class ContextHandle : NativeHandle
    {
        public ContextHandle()
        {
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_context_destroy(handle);
            return true;
        }
    }

    internal sealed class ExpertsHandle : NativeHandle
    {
        public ExpertsHandle()
        {
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_experts_destroy(handle);
            return true;
        }
    }

    internal sealed class RequestHandle : NativeHandle
    {
        public RequestHandle()
        {
        }

        internal RequestHandle(IntPtr value)
        {
            SetHandle(value);
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_request_destroy(handle);
            return true;
        }
    }

    internal sealed class BufferHandle : NativeHandle
    {
        public BufferHandle()
        {
        }

        internal BufferHandle(IntPtr value)
        {
            SetHandle(value);
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_buffer_destroy(handle);
            return true;
        }
    }

    internal sealed class ModelHandle : NativeHandle
    {
        public ModelHandle()
        {
        }

        internal ModelHandle(IntPtr value)
        {
            SetHandle(value);
        }

        /// <summary>The model's hook, if it has one; alive in every call that takes this.</summary>
        internal HookRunner Hook { get; set; }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_model_destroy(handle);
            return true;
        }
    }

    internal sealed class OptimizerHandle : NativeHandle
    {
        public OptimizerHandle()
        {
        }

        internal OptimizerHandle(IntPtr value)
        {
            SetHandle(value);
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_optimizer_destroy(handle);
            return true;
        }
    }

    internal sealed class TrainerHandle : NativeHandle
    {
        public TrainerHandle()
        {
        }

        internal TrainerHandle(IntPtr value)
        {
            SetHandle(value);
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_trainer_destroy(handle);
            return true;
        }
    }

    internal sealed class PipelineScheduleHandle : NativeHandle
    {
        public PipelineScheduleHandle()
        {
        }

        internal PipelineScheduleHandle(IntPtr value)
        {
            SetHandle(value);
        }

        protected override bool ReleaseHandle()
        {
            NativeMethods.trireme_pipeline_schedule_destroy(handle);
            return true;
        }
    }
}
