using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>The functions of models and their optimizers.</summary>
    internal static partial class NativeMethods
    {
        // model_shard.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern IntPtr trireme_strategy_name(Strategy strategy);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_strategy_parse(
            IntPtr text, out Strategy outStrategy);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_create(
            CommunicatorHandle communicator, ref NativeModelOptions options,
            out ModelHandle outModel);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern void trireme_model_destroy(IntPtr model);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_model_add_parameter(
            ModelHandle model, ref NativeParameterOptions options, ulong* outParameter);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_seal(ModelHandle model);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_get_info(
            ModelHandle model, ref NativeModelInfo outInfo);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_get_unit_info(
            ModelHandle model, ulong unit, ref NativeUnitInfo outInfo);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_get_memory(
            ModelHandle model, ref NativeModelMemory outMemory);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_get_offload_info(
            ModelHandle model, ref NativeOffloadInfo outInfo);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_get_statistics(
            ModelHandle model, ref NativeModelStatistics outStatistics);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_check_replicas(ModelHandle model);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_model_set_parameters(
            ModelHandle model, void* values, ulong count, ElementType dtype, int root);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_model_get_parameters(
            ModelHandle model, void* values, ulong count, ElementType dtype);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_gather_unit(
            ModelHandle model, ulong unit);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_release_unit(
            ModelHandle model, ulong unit);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_parameter_data(
            ModelHandle model, ulong parameter, out IntPtr outData, out ulong outCount);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_leaf(
            ModelHandle model, uint microBatch, out uint outLeaf);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_begin_backward(
            ModelHandle model, uint flags);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_gradient_data(
            ModelHandle model, ulong parameter, out IntPtr outData, out ulong outCount,
            out ElementType outDtype, out int outAdds);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_model_gradient_ready(
            IntPtr model, ulong parameter, void* gradient, ulong count, ElementType dtype);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_end_backward(IntPtr model);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_model_accumulate_flat(
            IntPtr model, void* gradients, ulong count, ElementType dtype, uint flags);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_model_discard_gradients(IntPtr model);

        // schedule.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_schedule_value(
            ref NativeScheduleOptions options, ulong step, out double outFactor);

        // optimizer_shard.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern IntPtr trireme_optimizer_kind_name(OptimizerKind kind);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_create(
            ModelHandle model, ref NativeOptimizerOptions options,
            out OptimizerHandle outOptimizer);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern void trireme_optimizer_destroy(IntPtr optimizer);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_step(IntPtr optimizer);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_join(
            IntPtr optimizer, out ulong outSteps);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_set_learning_rate(
            OptimizerHandle optimizer, double learningRate);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_set_group_rate_factor(
            OptimizerHandle optimizer, ulong group, double factor);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_optimizer_set_schedule(
            OptimizerHandle optimizer, NativeScheduleOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_step_rate(
            IntPtr optimizer, out double outRate);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_learning_rate(
            OptimizerHandle optimizer, out double outLearningRate);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_step_count(
            OptimizerHandle optimizer, out ulong outSteps);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_gradient_norm(
            OptimizerHandle optimizer, out double outNorm);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_group_norm(
            OptimizerHandle optimizer, ulong group, out double outNorm);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_loss_scale(
            OptimizerHandle optimizer, out double outScale);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_get_loss_scale_info(
            OptimizerHandle optimizer, ref NativeLossScaleInfo outInfo);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_get_counters(
            OptimizerHandle optimizer, ref NativeOptimizerCounters counters);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_restore(
            OptimizerHandle optimizer, ref NativeOptimizerCounters counters);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_range_count(
            OptimizerHandle optimizer, out ulong outCount);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_get_range(
            OptimizerHandle optimizer, ulong index, ref NativeStateRange outRange);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_optimizer_read_range(
            OptimizerHandle optimizer, ulong index, void* data, ulong bytes);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_optimizer_write_range(
            OptimizerHandle optimizer, ulong index, void* data, ulong bytes);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_get_offload_info(
            OptimizerHandle optimizer, ref NativeOffloadInfo outInfo);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_optimizer_saved_bytes(
            OptimizerHandle optimizer, out ulong outBytes);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_optimizer_save(
            OptimizerHandle optimizer, void* state, ulong capacity, ulong* outBytes);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_optimizer_load(
            OptimizerHandle optimizer, void* state, ulong bytes);
    }
}
