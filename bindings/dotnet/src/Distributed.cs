using System;
using System.Collections.Generic;

namespace Trireme
{
    /// <summary>
    /// What a training framework's model offers: all parameters as one vector, and the gradient
    /// of a batch as another. <typeparamref name="T"/> is float or double.
    /// </summary>
    public interface IGradientModel<T, TBatch> where T : struct
    {
        /// <summary>Elements of the vectors.</summary>
        int ParameterCount { get; }

        /// <summary>The parameters; may be the model's own array, which is only read.</summary>
        T[] GetParameters();

        /// <summary>Takes new parameters over by copying: the array is used again.</summary>
        void SetParameters(T[] parameters);

        /// <summary>
        /// The gradient at the present parameters; may be the same array in every call.
        /// </summary>
        T[] ComputeGradients(TBatch batch);
    }

    /// <summary>How Distributed.AsDistributed() spreads a model.</summary>
    public sealed class DistributedOptions
    {
        public Strategy Strategy { get; set; } = Strategy.DataParallel;

        /// <summary>
        /// Leaves of the global batch: the result is then the same bits for every number of ranks
        /// and strategy. 0: every rank brings a batch of its own.
        /// </summary>
        public uint Leaves { get; set; }

        public Gradients Gradients { get; set; }

        /// <summary>The update rule; required.</summary>
        public OptimizerOptions Optimizer { get; set; }

        /// <summary>
        /// Parameters and units in the order of the flat vector; null is one parameter. Units
        /// bound what zero2 and zero3 keep in flight.
        /// </summary>
        public IReadOnlyList<ParameterOptions> Parameters { get; set; }

        public ulong BucketBytes { get; set; }

        /// <summary>
        /// HybridShard: so many neighbouring ranks keep one copy of the parameters between them.
        /// </summary>
        public uint ShardRanks { get; set; }

        /// <summary>Longest any call may wait; zero is the communicator's.</summary>
        public TimeSpan Timeout { get; set; }
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
            return new DistributedModel<T, TBatch>(model, communicator, options);
        }
    }

    /// <summary>
    /// A framework's model under distributed training by flat vectors. One call at a time; all
    /// ranks make the same calls.
    /// </summary>
    public sealed class DistributedModel<T, TBatch> : IDisposable where T : struct
    {
        private readonly IGradientModel<T, TBatch> wrapped;
        private readonly Communicator communicator;
        private readonly T[] parameters;

        internal DistributedModel(
            IGradientModel<T, TBatch> wrapped, Communicator communicator,
            DistributedOptions options)
        {
            if (wrapped == null)
            {
                throw new ArgumentNullException(nameof(wrapped));
            }

            if (communicator == null)
            {
                throw new ArgumentNullException(nameof(communicator));
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
            this.communicator = communicator;
            parameters = new T[wrapped.ParameterCount];
            T[] initial = Initial();
            Model = new Model(
                communicator,
                new ModelOptions
                {
                    Strategy = options.Strategy,
                    Leaves = options.Leaves,
                    Gradients = options.Gradients,
                    BucketBytes = options.BucketBytes,
                    ShardRanks = options.ShardRanks,
                    Timeout = options.Timeout,
                });
            try
            {
                Register(options.Parameters);
                Model.Seal();
                if (Model.Info.Elements != (ulong)parameters.Length)
                {
                    throw new ArgumentException(
                        "DistributedOptions.Parameters describes " + Model.Info.Elements +
                        " elements, but the model has " + parameters.Length + ".",
                        nameof(options));
                }

                Optimizer = new Optimizer(Model, options.Optimizer);
                Model.SetParameters<T>(initial);
                Refresh();
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

        public int Rank
        {
            get { return communicator.Rank; }
        }

        public int WorldSize
        {
            get { return communicator.WorldSize; }
        }

        /// <summary>The parameters after the last step, as the wrapped model has them.</summary>
        public ReadOnlySpan<T> Parameters
        {
            get { return parameters; }
        }

        /// <summary>
        /// One step of a reproducible model. The delegate gives the batch of a leaf, and is asked
        /// for this rank's leaves only.
        /// </summary>
        public void Step(Func<int, TBatch> batchOfLeaf)
        {
            if (batchOfLeaf == null)
            {
                throw new ArgumentNullException(nameof(batchOfLeaf));
            }

            uint microBatches = Model.Info.MicroBatches;
            if (microBatches == 0)
            {
                throw new InvalidOperationException(
                    "Step by leaves needs DistributedOptions.Leaves.");
            }

            for (uint i = 0; i < microBatches; ++i)
            {
                uint? leaf = Model.GetLeaf(i);
                if (leaf.HasValue)
                {
                    T[] gradients = Compute(() => batchOfLeaf((int)leaf.Value));
                    Model.AccumulateFlat<T>(gradients);
                }
            }

            Finish();
        }

        /// <summary>
        /// One step of a model without leaves, from this rank's own micro-batches: their gradients
        /// are added, and then combined over the ranks. All ranks pass the same number.
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

            for (int i = 0; i < microBatches.Length; ++i)
            {
                int index = i;
                T[] gradients = Compute(() => microBatches[index]);
                bool last = i + 1 == microBatches.Length;
                Model.AccumulateFlat<T>(
                    gradients, last ? BackwardFlags.None : BackwardFlags.NoSync);
            }

            Finish();
        }

        /// <summary>Gives optimizer and model back; the communicator stays the caller's.</summary>
        public void Dispose()
        {
            Optimizer?.Dispose();
            Model.Dispose();
        }

        private void Register(IReadOnlyList<ParameterOptions> described)
        {
            if (described == null)
            {
                ElementType type = Elements.Of<T>(ElementType.Automatic).Type;
                Model.AddParameter(new ParameterOptions("parameters", type, parameters.Length));
                return;
            }

            foreach (ParameterOptions options in described)
            {
                Model.AddParameter(options);
            }
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

        // Runs the caller's code. The peers are in the middle of a step that this rank cannot
        // finish when it throws, so they are told instead of left to their deadline.
        private T[] Compute(Func<TBatch> batch)
        {
            try
            {
                T[] gradients = wrapped.ComputeGradients(batch());
                if (gradients == null || gradients.Length != parameters.Length)
                {
                    throw new ArgumentException(
                        "ComputeGradients() gave " +
                        (gradients == null ? "null" : gradients.Length + " elements") +
                        ", but ParameterCount is " + parameters.Length + ".");
                }

                return gradients;
            }
            catch (Exception exception)
            {
                string reason = exception.GetType().Name + " in ComputeGradients() of rank " + Rank;
                TellPeers(reason);
                throw;
            }
        }

        private void TellPeers(string reason)
        {
            try
            {
                communicator.Abort(reason);
            }
            catch (ObjectDisposedException)
            {
                // This rank has left, which the peers see as well.
            }
        }

        private void Finish()
        {
            Optimizer.Step();
            Refresh();
        }

        private void Refresh()
        {
            Model.GetParameters<T>(parameters);
            wrapped.SetParameters(parameters);
        }
    }
}
