using System;
using System.Collections.Generic;

namespace Trireme
{
    /// <summary>
    /// A model of a training framework: all parameters as one vector, and the gradient of a batch
    /// as another. <typeparamref name="T"/> is float or double.
    /// </summary>
    public interface IGradientModel<T, TBatch> where T : struct
    {
        /// <summary>Elements of the vectors.</summary>
        int ParameterCount { get; }

        /// <summary>The parameters; may be the model's own array, which is only read.</summary>
        T[] GetParameters();

        /// <summary>
        /// Copies the new parameters, because the array is used again. Called before the first
        /// gradient of a step, and after each call that changes the parameters on all ranks.
        /// </summary>
        void SetParameters(T[] parameters);

        /// <summary>
        /// The gradient of the mean loss of a batch at the present parameters, without a loss scale:
        /// the step multiplies these numbers by it. It may be the same array in every call.
        /// </summary>
        T[] ComputeGradients(TBatch batch);
    }

    /// <summary>
    /// How Distributed.AsDistributed() spreads a model: data parallel, unless Strategy says more. All
    /// options of a model are those of the <see cref="ModelOptions"/>.
    /// </summary>
    public sealed class DistributedOptions : ModelOptions
    {
        public DistributedOptions()
        {
            Strategy = Strategy.DataParallel;
        }

        /// <summary>The update rule and its options; required.</summary>
        public OptimizerOptions Optimizer { get; set; }

        /// <summary>
        /// Parameters and units in the order of the flat vector; null is one parameter. Units
        /// bound what Zero2 and Zero3 keep in flight.
        /// </summary>
        public IReadOnlyList<ParameterOptions> Parameters { get; set; }
    }

    public static class Distributed
    {
        /// <summary>
        /// Trains a model on all ranks of a communicator. Collective; afterwards every rank's
        /// model has the parameters that rank 0's had.
        /// </summary>
        public static DistributedModel<T, TBatch> AsDistributed<T, TBatch>(
            this IGradientModel<T, TBatch> model, Communicator communicator,
            DistributedOptions options) where T : struct
        {
            if (communicator == null)
            {
                throw new ArgumentNullException(nameof(communicator));
            }

            return new DistributedModel<T, TBatch>(
                model, () => new Model(communicator, options), communicator.Rank,
                communicator.WorldSize, options);
        }

        /// <summary>
        /// Trains a model on all axes of a parallel object. Ranks along Data, Shard, Context and
        /// Expert have copies or shards of one model, and along Tensor and Pipeline models of their
        /// own. Collective; afterwards all ranks of one model have the parameters that its first
        /// rank had. Training ends when the object is disposed of.
        /// </summary>
        public static DistributedModel<T, TBatch> AsDistributed<T, TBatch>(
            this IGradientModel<T, TBatch> model, ParallelContext parallel,
            DistributedOptions options) where T : struct
        {
            if (parallel == null)
            {
                throw new ArgumentNullException(nameof(parallel));
            }

            return new DistributedModel<T, TBatch>(
                model, () => new Model(parallel, options), parallel.Rank, parallel.WorldSize,
                options);
        }
    }

    /// <summary>
    /// A framework's model under distributed training by flat vectors. One call at a time; all
    /// ranks make the same calls. The parameters are those of <see cref="Model"/>: each step hands
    /// them to the wrapped model before its first gradient. Values that were set there alone are
    /// lost.
    /// </summary>
    public sealed class DistributedModel<T, TBatch> : IDisposable where T : struct
    {
        private readonly IGradientModel<T, TBatch> wrapped;
        private readonly T[] parameters;
        private readonly List<Layer> layers;
        private Trainer trainer;
        private int trainerMicroBatches;
        private Func<uint, uint, TBatch> batchOf; // by micro-batch and leaf, of the step under way
        private T[] gradients; // of the micro-batch under way

        internal DistributedModel(
            IGradientModel<T, TBatch> wrapped, Func<Model> make, int rank, int worldSize,
            DistributedOptions options)
        {
            if (wrapped == null)
            {
                throw new ArgumentNullException(nameof(wrapped));
            }

            if (options == null || options.Optimizer == null)
            {
                throw new ArgumentNullException(
                    nameof(options), "DistributedOptions.Optimizer is required.");
            }

            if (typeof(T) != typeof(float) && typeof(T) != typeof(double))
            {
                throw new NotSupportedException(
                    "Parameters are float or double, not " + typeof(T) + ".");
            }

            this.wrapped = wrapped;
            Rank = rank;
            WorldSize = worldSize;
            parameters = new T[wrapped.ParameterCount];
            T[] initial = Initial();
            Model = make();
            try
            {
                IReadOnlyList<ParameterOptions> described = options.Parameters ?? Whole();
                foreach (ParameterOptions parameter in described)
                {
                    Model.AddParameter(parameter);
                }

                Model.Seal();
                if (Model.Info.Elements != (ulong)parameters.Length)
                {
                    throw new ArgumentException(
                        "DistributedOptions.Parameters describes " + Model.Info.Elements +
                        " elements, but the model has " + parameters.Length + ".",
                        nameof(options));
                }

                layers = FlatLayers.Make(described, Read, Write);
                Optimizer = new Optimizer(Model, options.Optimizer);
                Model.SetParameters<T>(initial);
                Refresh();
                Model.Changed = Refresh;
            }
            catch (Exception)
            {
                Dispose();
                throw;
            }
        }

        /// <summary>The native model, for its memory report, say.</summary>
        public Model Model { get; }

        public Optimizer Optimizer { get; }

        public int Rank { get; }

        public int WorldSize { get; }

        /// <summary>The parameters as the wrapped model has them.</summary>
        public ReadOnlySpan<T> Parameters
        {
            get { return parameters; }
        }

        /// <summary>
        /// One step of a reproducible model. The delegate gives the batch of a leaf; the step asks
        /// it for this rank's leaves only. If the caller's code throws, this call throws the same
        /// exception, and the other ranks get a CallbackException. Nothing has changed then, and
        /// the next step may come.
        /// </summary>
        public void Step(Func<int, TBatch> batchOfLeaf)
        {
            if (batchOfLeaf == null)
            {
                throw new ArgumentNullException(nameof(batchOfLeaf));
            }

            if (Model.Info.Leaves == 0)
            {
                throw new InvalidOperationException(
                    "Step by leaves needs DistributedOptions.Leaves.");
            }

            Run(0, (microBatch, leaf) => batchOfLeaf((int)leaf));
        }

        /// <summary>
        /// One step of a model without leaves, from this rank's own micro-batches. All ranks pass the
        /// same number. Gradients.Average is the mean over all micro-batches of all ranks, Gradients.Sum
        /// their sum. Throws as the other Step().
        /// </summary>
        public void Step(params TBatch[] microBatches)
        {
            if (microBatches == null || microBatches.Length == 0)
            {
                throw new ArgumentException("A step needs a batch.", nameof(microBatches));
            }

            if (Model.Info.Leaves != 0)
            {
                throw new InvalidOperationException(
                    "This model was made with leaves; pass the batch of each leaf.");
            }

            Run(microBatches.Length, (microBatch, leaf) => microBatches[microBatch]);
        }

        /// <summary>
        /// Hands the parameters to the wrapped model. Collective. Steps, Load(), Restore() and
        /// SetParameters() do so themselves. Optimizer.WriteRange() and spans into the library's
        /// memory, which are one rank's own matter, show in the wrapped model after this or with the
        /// next step. Ranks of a host may share parameters: a Communicator.Barrier() comes between
        /// such writes and this.
        /// </summary>
        public void Refresh()
        {
            Model.GetParameters<T>(parameters);
            wrapped.SetParameters(parameters);
        }

        /// <summary>Gives optimizer and model back; the communicator stays the caller's.</summary>
        public void Dispose()
        {
            trainer?.Dispose();
            Optimizer?.Dispose();
            Model.Dispose();
        }

        private ParameterOptions[] Whole()
        {
            ElementType type = Elements.Of<T>(ElementType.Automatic).Type;
            return new[] { new ParameterOptions("parameters", type, parameters.Length) };
        }

        private T[] Initial()
        {
            T[] values = wrapped.GetParameters();
            if (values == null || values.Length != parameters.Length)
            {
                throw new ArgumentException(
                    "GetParameters() gave " + (values == null ? "null" : values.Length.ToString()) +
                    ", but ParameterCount is " + parameters.Length + ".");
            }

            return values;
        }

        // A trainer has one number of micro-batches, and is made again for another.
        private void Run(int microBatches, Func<uint, uint, TBatch> batch)
        {
            if (trainer == null || trainerMicroBatches != microBatches)
            {
                var options = new TrainerOptions
                {
                    MicroBatches = (uint)microBatches,
                    ZeroGradients = true, // all gradients are written below: no gap to look for
                };
                var made = new Trainer(Optimizer, layers, options);
                trainer?.Dispose();
                trainer = made;
                trainerMicroBatches = microBatches;
            }

            Func<uint, uint, TBatch> outer = batchOf;
            batchOf = batch;
            try
            {
                trainer.Step(); // ends in Refresh(), by Model.Changed
            }
            finally
            {
                batchOf = outer;
            }
        }

        // Forward of a layer. The parameters may have changed in any way since the last step, so
        // the wrapped model gets them again before it computes a gradient.
        private void Read(LayerCall call, IReadOnlyList<FlatLayers.Piece> pieces, bool last)
        {
            if (call.MicroBatch == 0)
            {
                for (int i = 0; i < pieces.Count; ++i)
                {
                    if (!pieces[i].Alias)
                    {
                        call.Parameter<T>(i).CopyTo(
                            new Span<T>(parameters, pieces[i].First, pieces[i].Count));
                    }
                }

                if (last)
                {
                    wrapped.SetParameters(parameters);
                }
            }

            call.Output<byte>().Clear();
            if (last)
            {
                call.Loss = 0; // the wrapped model does not tell it
            }
        }

        // Backward of a layer; that of the last one comes first.
        private void Write(LayerCall call, IReadOnlyList<FlatLayers.Piece> pieces, bool last)
        {
            if (last)
            {
                gradients = null;
                T[] computed = wrapped.ComputeGradients(
                    batchOf(call.MicroBatch, call.Leaf));
                if (computed == null || computed.Length != parameters.Length)
                {
                    throw new ArgumentException(
                        "ComputeGradients() gave " +
                        (computed == null ? "null" : computed.Length + " elements") +
                        ", but ParameterCount is " + parameters.Length + ".");
                }

                gradients = computed;
            }

            for (int i = 0; i < pieces.Count; ++i)
            {
                Span<T> to = call.Gradient<T>(i);
                if (to.IsEmpty)
                {
                    continue;
                }

                if (pieces[i].Alias)
                {
                    to.Clear(); // the vector has the sum for all names
                    continue;
                }

                var from = new ReadOnlySpan<T>(gradients, pieces[i].First, pieces[i].Count);
                FlatLayers.Scale(from, call.LossScale, to);
            }

            call.InputGradient<byte>().Clear();
        }
    }
}
