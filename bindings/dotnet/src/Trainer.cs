using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>Forward or backward of a layer, called for each micro-batch.</summary>
    public delegate void LayerFunction(LayerCall call);

    /// <summary>One layer: two functions, and what they work on.</summary>
    public sealed class Layer
    {
        public Layer(string name, LayerFunction forward, LayerFunction backward)
        {
            Name = name ?? throw new ArgumentNullException(nameof(name));
            Forward = forward ?? throw new ArgumentNullException(nameof(forward));
            Backward = backward ?? throw new ArgumentNullException(nameof(backward));
        }

        public string Name { get; }

        public LayerFunction Forward { get; }

        public LayerFunction Backward { get; }

        /// <summary>Number of its first parameter.</summary>
        public ulong FirstParameter { get; set; }

        /// <summary>Number of its parameters, whose numbers follow each other.</summary>
        public ulong ParameterCount { get; set; }

        /// <summary>Size of its output for one micro-batch.</summary>
        public ulong OutputBytes { get; set; }

        /// <summary>
        /// Bytes that forward leaves for backward beside the output, for one micro-batch.
        /// </summary>
        public ulong SavedBytes { get; set; }

        /// <summary>
        /// Computes the gradients of the parameters, at once or later. Backward then computes the
        /// gradient of the input alone. Null: Backward computes all.
        /// </summary>
        public LayerFunction BackwardWeight { get; set; }

        /// <summary>
        /// Bytes of the input that the layer expects. The trainer refuses a layer before with
        /// another OutputBytes, also across stages. 0: any.
        /// </summary>
        public ulong InputBytes { get; set; }

        /// <summary>
        /// Numbers, in the whole model, of earlier layers whose outputs this one also reads. Null:
        /// none.
        /// </summary>
        public IReadOnlyList<long> Reads { get; set; }

        /// <summary>
        /// Type of the output's elements, in which gradients add up if other layers read it.
        /// </summary>
        public ElementType OutputType { get; set; } = ElementType.F32;

        internal Layer Copy()
        {
            return (Layer)MemberwiseClone();
        }
    }

    /// <summary>How a trainer runs its layers; zero is the default.</summary>
    public sealed class TrainerOptions
    {
        /// <summary>
        /// Micro-batches of each rank in a step; 0 is 1. A reproducible model shares out its leaves
        /// instead.
        /// </summary>
        public uint MicroBatches { get; set; }

        /// <summary>
        /// Keep the output of every so many-th layer and compute the rest again in backward.
        /// </summary>
        public ulong CheckpointEvery { get; set; }

        /// <summary>
        /// Most bytes for activations and gradients of outputs. As few layers as possible are then
        /// computed again.
        /// </summary>
        public ulong ActivationBudgetBytes { get; set; }

        /// <summary>Seed from which the trainer derives each LayerCall.RandomSeed.</summary>
        public ulong Seed { get; set; }

        /// <summary>
        /// Called when a step is done; true asks all ranks to stop. So does an exception, which
        /// Step() throws again.
        /// </summary>
        public Func<TrainerMetrics, bool> AfterStep { get; set; }

        /// <summary>
        /// A file of activations; a directory alone will do. BufferBytes is the most memory for its
        /// window. 0: the part of ActivationBudgetBytes that gradients of outputs leave; without
        /// that option, the bytes of four layers or checkpoints. Ratio is 0. Null: activations stay
        /// in memory.
        /// </summary>
        public Offload Offload { get; set; }

        /// <summary>
        /// Gradients are 0 before backward, which may add to them, and the library does not look
        /// for unwritten ones. Without it, backward writes each gradient whole. If it leaves one
        /// unwritten, or adds to it, the step fails with a CallbackException that names it.
        /// </summary>
        public bool ZeroGradients { get; set; }

        /// <summary>
        /// This rank has the layers of its own stages alone. Null: it has all layers.
        /// </summary>
        public TrainerPipeline Pipeline { get; set; }

        internal TrainerOptions Copy()
        {
            return (TrainerOptions)MemberwiseClone();
        }
    }

    /// <summary>Results of a step.</summary>
    public struct TrainerMetrics
    {
        internal TrainerMetrics(NativeTrainerMetrics native)
        {
            Stop = native.Stop != 0;
            Skipped = native.Skipped != 0;
            Step = native.Step;
            MicroBatches = native.MicroBatches;
            SentBytes = native.SentBytes;
            Loss = native.Loss;
            GradientNorm = native.GradientNorm;
            LearningRate = native.LearningRate;
            LossScale = native.LossScale;
            Seconds = native.Seconds;
            ExposedSeconds = native.ExposedSeconds;
        }

        /// <summary>A rank has asked to stop; the same on all ranks.</summary>
        public bool Stop { get; }

        /// <summary>
        /// With a loss scale: a gradient was inf or NaN, and nothing was updated.
        /// </summary>
        public bool Skipped { get; }

        /// <summary>Optimizer.StepCount after the step.</summary>
        public ulong Step { get; }

        /// <summary>Over all ranks.</summary>
        public ulong MicroBatches { get; }

        public ulong SentBytes { get; }

        /// <summary>Mean over all micro-batches; the same on all ranks.</summary>
        public double Loss { get; }

        /// <summary>As Optimizer.GradientNorm; -1 without Clipping.MaxNorm or if skipped.</summary>
        public double GradientNorm { get; }

        public double LearningRate { get; }

        public double LossScale { get; }

        /// <summary>Seconds that the step took on this rank.</summary>
        public double Seconds { get; }

        /// <summary>Seconds of the step in which the rank waited for communication.</summary>
        public double ExposedSeconds { get; }
    }

    /// <summary>
    /// Layers and memory of a trainer on this rank; trainer.h describes each number.
    /// </summary>
    public struct TrainerInfo
    {
        internal TrainerInfo(NativeTrainerInfo native)
        {
            MicroBatches = native.MicroBatches;
            Layers = native.Layers;
            Stretches = native.Stretches;
            Recomputed = native.Recomputed;
            PlannedCheckpointBytes = native.PlannedCheckpointBytes;
            PlannedStretchBytes = native.PlannedStretchBytes;
            PlannedGradientBytes = native.PlannedGradientBytes;
            PlannedParameterGradientBytes = native.PlannedParameterGradientBytes;
            PlannedExchangeBytes = native.PlannedExchangeBytes;
            AllocatedBytes = native.AllocatedBytes;
            LargestBytes = native.LargestBytes;
            LeastBytes = native.LeastBytes;
            PlannedWindowBytes = native.PlannedWindowBytes;
            Stages = native.Stages;
            SplitLayers = native.SplitLayers;
        }

        public uint MicroBatches { get; }

        public ulong Layers { get; }

        /// <summary>
        /// Stretches into which the layers are cut; 1: the trainer keeps everything.
        /// </summary>
        public ulong Stretches { get; }

        /// <summary>Layers whose forward runs twice in a micro-batch.</summary>
        public ulong Recomputed { get; }

        public ulong PlannedCheckpointBytes { get; }

        public ulong PlannedStretchBytes { get; }

        public ulong PlannedGradientBytes { get; }

        public ulong PlannedParameterGradientBytes { get; }

        public ulong PlannedExchangeBytes { get; }

        public ulong AllocatedBytes { get; }

        public ulong LargestBytes { get; }

        /// <summary>The least ActivationBudgetBytes that works.</summary>
        public ulong LeastBytes { get; }

        /// <summary>With Offload: the window, and items that could not be written.</summary>
        public ulong PlannedWindowBytes { get; }

        /// <summary>With a pipeline: stages of this rank. Else 0.</summary>
        public ulong Stages { get; }

        /// <summary>Layers with Layer.BackwardWeight.</summary>
        public ulong SplitLayers { get; }
    }

    /// <summary>
    /// Whole training steps over layers of the caller, the same for every strategy. If a layer
    /// throws, Step() or Evaluate() of its rank throws the same exception, and the other ranks get
    /// a CallbackException. Nothing has changed then, and the next step may come. An optimizer that
    /// is disposed of goes on in its trainer.
    /// </summary>
    public sealed class Trainer : IDisposable
    {
        // In fields for as long as the process lives: native code calls them in every step.
        private static readonly NativeMethods.LayerCallback LayerCallback = RunLayer;
        private static readonly NativeMethods.TrainerCallback AfterCallback = RunAfter;

        private readonly TrainerHandle handle;
        private readonly TrainerRunner runner;
        private readonly Optimizer optimizer;
        private readonly int allLayers; // of the whole model, if there is a pipeline

        internal static UnsupportedException OfDevice()
        {
            return new UnsupportedException(
                "trainers of models of a device are made by the functions of C alone",
                Failure.None);
        }

        /// <summary>
        /// Collective: all ranks name the same layers and options, but for AfterStep. The trainer
        /// has copies of the layers. A model on a device is refused: UnsupportedException.
        /// </summary>
        public unsafe Trainer(
            Optimizer optimizer, IReadOnlyList<Layer> layers, TrainerOptions options = null)
        {
            this.optimizer = optimizer ?? throw new ArgumentNullException(nameof(optimizer));
            if (layers == null)
            {
                throw new ArgumentNullException(nameof(layers));
            }

            if (optimizer.Model.OnDevice)
            {
                throw OfDevice();
            }

            options = options ?? new TrainerOptions();
            allLayers = options.Pipeline?.Layers ?? 1;
            runner = new TrainerRunner(
                layers.Select(layer => layer?.Copy()).ToArray(), options.AfterStep,
                optimizer.Model.ParameterTypes.ToArray());
            using (var memory = new CallMemory())
            {
                var native = new NativeLayer[Math.Max(1, layers.Count)];
                for (int i = 0; i < layers.Count; ++i)
                {
                    Layer layer = layers[i];
                    if (layer == null)
                    {
                        throw new ArgumentNullException(nameof(layers), "Layer " + i + ".");
                    }

                    native[i] = new NativeLayer
                    {
                        StructSize = (uint)sizeof(NativeLayer),
                        Name = memory.Put(layer.Name, nameof(layers)),
                        FirstParameter = layer.FirstParameter,
                        ParameterCount = layer.ParameterCount,
                        Forward = Marshal.GetFunctionPointerForDelegate(LayerCallback),
                        Backward = Marshal.GetFunctionPointerForDelegate(LayerCallback),
                        UserData = runner.UserData,
                        OutputBytes = layer.OutputBytes,
                        SavedBytes = layer.SavedBytes,
                        BackwardWeight = layer.BackwardWeight == null
                            ? IntPtr.Zero
                            : Marshal.GetFunctionPointerForDelegate(LayerCallback),
                        InputBytes = layer.InputBytes,
                        ReadCount = (ulong)(layer.Reads?.Count ?? 0),
                        OutputDtype = (int)layer.OutputType,
                    };
                    if (layer.Reads != null && layer.Reads.Count > 0)
                    {
                        native[i].Reads = memory.Put(
                            layer.Reads.Select(read => checked((ulong)read)).ToArray());
                    }
                }

                var nativeOptions = new NativeTrainerOptions
                {
                    StructSize = (uint)sizeof(NativeTrainerOptions),
                    Flags = options.ZeroGradients
                        ? (uint)NativeMethods.TRIREME_TRAINER_FLAG_ZERO_GRADIENTS
                        : 0,
                    MicroBatches = options.MicroBatches,
                    CheckpointEvery = options.CheckpointEvery,
                    ActivationBudgetBytes = options.ActivationBudgetBytes,
                    Seed = options.Seed,
                    UserData = runner.UserData,
                };
                if (options.AfterStep != null)
                {
                    nativeOptions.AfterStep =
                        Marshal.GetFunctionPointerForDelegate(AfterCallback);
                }

                if (options.Offload != null)
                {
                    nativeOptions.Offload = memory.Put(options.Offload.Native(memory));
                }

                if (options.Pipeline != null)
                {
                    nativeOptions.Pipeline = memory.Put(options.Pipeline.Native(memory));
                }

                fixed (NativeLayer* first = native)
                {
                    TriremeException.Check(NativeMethods.trireme_trainer_create(
                        optimizer.Handle, first, (ulong)layers.Count, ref nativeOptions,
                        out handle));
                }

                GC.KeepAlive(options.Pipeline);
            }
        }

        /// <summary>Layers and memory of the trainer on this rank.</summary>
        public unsafe TrainerInfo Info
        {
            get
            {
                var info = new NativeTrainerInfo { StructSize = (uint)sizeof(NativeTrainerInfo) };
                TriremeException.Check(NativeMethods.trireme_trainer_get_info(handle, ref info));
                return new TrainerInfo(info);
            }
        }

        /// <summary>
        /// Costs of each layer of the pipeline, by the steps since the last call. Collective.
        /// </summary>
        public unsafe MeasuredCosts[] LayerCosts()
        {
            var native = new NativeMeasuredCosts[Math.Max(1, allLayers)];
            native[0].StructSize = (uint)sizeof(NativeMeasuredCosts);
            ulong count;
            fixed (NativeMeasuredCosts* first = native)
            {
                TriremeException.Check(NativeMethods.trireme_trainer_get_layer_costs(
                    handle, ref *first, (ulong)native.Length, out count));
            }

            return native.Take((int)count).Select(each => new MeasuredCosts(each)).ToArray();
        }

        /// <summary>
        /// How activations lie, and what the disk has done; needs TrainerOptions.Offload.
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
                    NativeMethods.trireme_trainer_get_offload_info(handle, ref native));
                var info = new OffloadInfo(native);
                GC.KeepAlive(this);
                return info;
            }
        }

        /// <summary>
        /// Forward and backward of all micro-batches, and the optimizer's step. Collective. The
        /// layers find `batch` in LayerCall.Batch.
        /// </summary>
        public unsafe TrainerMetrics Step(object batch = null)
        {
            var metrics = new NativeTrainerMetrics
            {
                StructSize = (uint)sizeof(NativeTrainerMetrics),
            };
            object outer = runner.Batch;
            runner.Batch = batch;
            Status status;
            try
            {
                using (var held = new HeldHandle(handle))
                {
                    status = NativeMethods.trireme_trainer_step(
                        held.Address, IntPtr.Zero, ref metrics);
                }
            }
            finally
            {
                runner.Batch = outer;
            }

            if (status == Status.Ok)
            {
                optimizer.Model.Changed?.Invoke();
            }

            Finish(status);
            return new TrainerMetrics(metrics);
        }

        /// <summary>
        /// The mean loss of forward alone, over as many micro-batches as a step has. Collective.
        /// </summary>
        public double Evaluate(object batch = null)
        {
            object outer = runner.Batch;
            runner.Batch = batch;
            Status status;
            double loss;
            try
            {
                using (var held = new HeldHandle(handle))
                {
                    status = NativeMethods.trireme_trainer_evaluate(
                        held.Address, IntPtr.Zero, out loss);
                }
            }
            finally
            {
                runner.Batch = outer;
            }

            Finish(status);
            return loss;
        }

        /// <summary>
        /// Asks all ranks to stop: TrainerMetrics.Stop becomes true on all of them after the same
        /// step. On any thread.
        /// </summary>
        public void RequestStop()
        {
            TriremeException.Check(NativeMethods.trireme_trainer_request_stop(handle));
        }

        /// <summary>Gives the memory back; waits for no peer.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        private void Finish(Status status)
        {
            GC.KeepAlive(this);
            if (status == Status.Ok)
            {
                runner.TakeThrown()?.Throw();
                return;
            }

            // Both are taken whatever the reason is, so that neither comes out of the next step.
            ExceptionDispatchInfo ofLayers = runner.TakeThrown();
            ExceptionDispatchInfo ofOptimizer = optimizer.TakeThrown();
            TriremeException.ThrowFailure(status, ofLayers ?? ofOptimizer);
        }

        private static unsafe int RunLayer(IntPtr call, IntPtr userData)
        {
            // Called from native code: no exception may leave.
            try
            {
                return TrainerRunner.Of(userData).Run((NativeLayerCall*)call);
            }
            catch (Exception)
            {
                return 1;
            }
        }

        private static unsafe int RunAfter(IntPtr metrics, IntPtr userData)
        {
            try
            {
                return TrainerRunner.Of(userData).After((NativeTrainerMetrics*)metrics);
            }
            catch (Exception)
            {
                return 1;
            }
        }
    }

    /// <summary>Runs the layers of one trainer, which refers to it.</summary>
    internal sealed class TrainerRunner : CallbackRunner<TrainerRunner>
    {
        private readonly Layer[] layers;
        private readonly Func<TrainerMetrics, bool> afterStep;
        private readonly ElementType[] types; // by number of the parameter

        internal TrainerRunner(
            Layer[] layers, Func<TrainerMetrics, bool> afterStep, ElementType[] types)
        {
            this.layers = layers;
            this.types = types;
            this.afterStep = afterStep;
        }

        /// <summary>Of the step under way.</summary>
        internal object Batch { get; set; }

        internal unsafe int Run(NativeLayerCall* call)
        {
            try
            {
                if (call->Device.Kind == (int)DeviceKind.Cuda)
                {
                    throw Trainer.OfDevice();
                }

                Layer layer = layers[call->Layer];
                FunctionOf(layer, (LayerPhase)call->Phase)(
                    new LayerCall(call, Batch, types, layer.FirstParameter));
                return 0;
            }
            catch (Exception exception)
            {
                Keep(exception);
                return 1;
            }
        }

        internal unsafe int After(NativeTrainerMetrics* metrics)
        {
            try
            {
                return afterStep(new TrainerMetrics(*metrics)) ? 1 : 0;
            }
            catch (Exception exception)
            {
                Keep(exception);
                return 1;
            }
        }

        private static LayerFunction FunctionOf(Layer layer, LayerPhase phase)
        {
            switch (phase)
            {
                case LayerPhase.Backward:
                case LayerPhase.BackwardInput:
                    return layer.Backward;
                case LayerPhase.BackwardWeight:
                    return layer.BackwardWeight;
                default:
                    return layer.Forward;
            }
        }
    }
}
