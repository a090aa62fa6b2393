using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>The functions of trainers.</summary>
    internal static partial class NativeMethods
    {
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        internal delegate int LayerCallback(IntPtr call, IntPtr userData);

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        internal delegate int TrainerCallback(IntPtr metrics, IntPtr userData);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_trainer_create(
            OptimizerHandle optimizer, NativeLayer* layers, ulong layerCount,
            ref NativeTrainerOptions options, out TrainerHandle outTrainer);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern void trireme_trainer_destroy(IntPtr trainer);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_trainer_step(
            IntPtr trainer, IntPtr batch, ref NativeTrainerMetrics outMetrics);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_trainer_evaluate(
            IntPtr trainer, IntPtr batch, out double outLoss);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_trainer_request_stop(TrainerHandle trainer);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_trainer_get_info(
            TrainerHandle trainer, ref NativeTrainerInfo outInfo);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_trainer_get_offload_info(
            TrainerHandle trainer, ref NativeOffloadInfo outInfo);
    }
}
