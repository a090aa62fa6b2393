using System;
using System.Collections.Generic;
using System.Linq;

namespace Trireme
{
    /// <summary>
    /// How ranks form a pipeline, and how its micro-batches go through it. With Ranks of 1 the model
    /// is one stage without a schedule. Then Order is only checked to be an order, and StagesPerRank,
    /// StageCosts, ActivationLimitBytes and RequireSplit mean nothing.
    /// </summary>
    public sealed class PipelineConfig
    {
        /// <summary>A pipeline of so many ranks. Each reader has so many micro-batches.</summary>
        /// <exception cref="ArgumentOutOfRangeException">ranks is below 1.</exception>
        public PipelineConfig(int ranks, int microBatches)
        {
            // 0 and Rest mean something to ParallelContext, and not here.
            if (ranks < 1)
            {
                throw new ArgumentOutOfRangeException(
                    nameof(ranks), ranks, "A pipeline has 1 or more ranks.");
            }

            Ranks = ranks;
            MicroBatches = microBatches;
        }

        /// <summary>Ranks along the pipeline.</summary>
        public int Ranks { get; }

        /// <summary>Micro-batches of each reader in a step.</summary>
        public int MicroBatches { get; }

        /// <summary>The order of the actions. Best needs StageCosts.</summary>
        public PipelineOrder Order { get; set; } = PipelineOrder.OneForwardOneBackward;

        /// <summary>Stages of each rank. 0: as few as the order takes.</summary>
        public int StagesPerRank { get; set; }

        /// <summary>
        /// They decide which layers a stage has. Bytes of each must be 0. Null: all layers cost the
        /// same.
        /// </summary>
        public LayerCosts[] LayerCosts { get; set; }

        /// <summary>Times and bytes of stages.</summary>
        public PipelineCosts StageCosts { get; set; }

        /// <summary>Bytes of activations of each rank, with StageCosts. 0: any.</summary>
        public ulong ActivationLimitBytes { get; set; }

        /// <summary>An order with W needs layers with Layer.BackwardWeight.</summary>
        public bool RequireSplit { get; set; }

        internal int CountStagesPerRank()
        {
            switch (Order)
            {
                case PipelineOrder.Interleaved:
                case PipelineOrder.ZbV:
                case PipelineOrder.VHalf:
                case PipelineOrder.VMin:
                case PipelineOrder.DualPipeV:
                    return StagesPerRank == 0 ? 2 : StagesPerRank;
                default:
                    return StagesPerRank == 0 ? 1 : StagesPerRank;
            }
        }
    }

    /// <summary>Neighbouring layers that one rank has.</summary>
    public struct PipelineStage
    {
        internal PipelineStage(int number, int rank, Share layers, bool isLast)
        {
            Number = number;
            Rank = rank;
            Layers = layers;
            IsLast = isLast;
        }

        /// <summary>The stage's number among those of all ranks.</summary>
        public int Number { get; }

        /// <summary>The rank along the pipeline that has it.</summary>
        public int Rank { get; }

        /// <summary>Its layers, by their numbers in the whole model.</summary>
        public Share Layers { get; }

        /// <summary>Whether its first layer reads the batch.</summary>
        public bool IsFirst
        {
            get { return Number == 0; }
        }

        /// <summary>Whether its last layer computes the loss.</summary>
        public bool IsLast { get; }
    }

    /// <summary>A layer of a whole model, with its parameters.</summary>
    public sealed class PipelineLayer
    {
        /// <summary>
        /// The model numbers the parameters, in a copy of the layer. FirstParameter and
        /// ParameterCount of the layer count for nothing.
        /// </summary>
        public PipelineLayer(Layer layer, params ParameterOptions[] parameters)
        {
            Layer = layer ?? throw new ArgumentNullException(nameof(layer));
            Parameters = parameters ?? throw new ArgumentNullException(nameof(parameters));
        }

        /// <summary>Its functions and sizes.</summary>
        public Layer Layer { get; }

        /// <summary>In the order of the layer's calls.</summary>
        public IReadOnlyList<ParameterOptions> Parameters { get; }
    }

    /// <summary>
    /// A whole model as a list of layers. Each rank has the layers of its stages, and a Model of
    /// their parameters. A parameter with TiedTo may lie in another stage than its target. A rank
    /// without the target holds a copy by its name, and all copies are trained alike.
    /// </summary>
    public sealed class PipelineParallelModel : IDisposable
    {
        private readonly PipelineConfig config;
        private readonly uint leaves;
        private readonly Layer[] own;

        /// <summary>All ranks call this with the same layers and options.</summary>
        /// <param name="communicator">The ranks.</param>
        /// <param name="config">The pipeline.</param>
        /// <param name="layers">All layers, in the order of forward.</param>
        /// <param name="options">Options of the model of each rank.</param>
        /// <param name="axes">
        /// Sizes of other axes, tensor options and the timeout. The config describes the pipeline,
        /// so every other field must have its default. Null: the ranks that the pipeline leaves
        /// lie along Data.
        /// </param>
        public PipelineParallelModel(
            Communicator communicator, PipelineConfig config, IReadOnlyList<PipelineLayer> layers,
            ModelOptions options, ParallelContextOptions axes = null)
        {
            this.config = config ?? throw new ArgumentNullException(nameof(config));
            if (layers == null)
            {
                throw new ArgumentNullException(nameof(layers));
            }

            if (options == null)
            {
                throw new ArgumentNullException(nameof(options));
            }

            LayerCosts[] costs = config.LayerCosts ??
                layers.Select(layer => new LayerCosts { Seconds = 1 }).ToArray();
            if (costs.Length != layers.Count)
            {
                throw new ArgumentException(
                    "LayerCosts has " + costs.Length + " entries for " + layers.Count + " layers",
                    nameof(config));
            }

            PipelineOrders.Parse(PipelineOrders.Name(config.Order));
            leaves = options.Leaves;
            Parallel = ParallelContext.Create(communicator, Axes(config, axes));
            try
            {
                Cuts = Parallel.Partition(costs).Cuts;
                Stages = FindStages();
                OwnStages = Stages
                    .Where(stage => Parallel.OwnStages().Contains(stage.Number)).ToArray();
                Model = new Model(Parallel, options);
                own = AddLayers(layers);
                Model.Seal();
            }
            catch
            {
                Dispose();
                throw;
            }
        }

        /// <summary>The ranks on all axes.</summary>
        public ParallelContext Parallel { get; }

        /// <summary>The first layer of each stage, and the number of layers.</summary>
        public long[] Cuts { get; }

        /// <summary>The stages of all ranks, in the order of the model.</summary>
        public IReadOnlyList<PipelineStage> Stages { get; }

        /// <summary>The stages of this rank, in the order of the model.</summary>
        public IReadOnlyList<PipelineStage> OwnStages { get; }

        /// <summary>The model of this rank's parameters, which is sealed.</summary>
        public Model Model { get; }

        /// <summary>
        /// A trainer of this rank's layers. All ranks call this. The trainer gets a copy of the
        /// options. In the copy, Pipeline is that of the configuration. Without a pipeline, so are
        /// MicroBatches of 0, unless the model has leaves.
        /// </summary>
        public Trainer Trainer(Optimizer optimizer, TrainerOptions options = null)
        {
            options = options?.Copy() ?? new TrainerOptions();
            if (config.Ranks == 1)
            {
                if (leaves == 0 && options.MicroBatches == 0)
                {
                    options.MicroBatches = checked((uint)config.MicroBatches);
                }

                return new Trainer(optimizer, own, options);
            }

            using (PipelineSchedule schedule = Parallel.Schedule())
            {
                options.Pipeline = new TrainerPipeline(
                    Parallel.Communicator(ParallelAxes.Pipeline), schedule, Cuts)
                {
                    RequireSplit = config.RequireSplit,
                };
                return new Trainer(optimizer, own, options);
            }
        }

        /// <summary>Ends the model and leaves the communicators of the axes.</summary>
        public void Dispose()
        {
            Model?.Dispose();
            Parallel.Dispose();
        }

        private static ParallelContextOptions Axes(
            PipelineConfig config, ParallelContextOptions axes)
        {
            bool staged = config.Ranks > 1;
            axes = axes ?? new ParallelContextOptions { Data = ParallelContextOptions.Rest };
            string unread = FindUnread(axes);
            if (unread != null)
            {
                throw new ArgumentException(
                    unread + " is set, but the config describes the pipeline", nameof(axes));
            }

            return new ParallelContextOptions
            {
                Data = axes.Data, Shard = axes.Shard, Tensor = axes.Tensor,
                Context = axes.Context, Expert = axes.Expert,
                TensorOptions = axes.TensorOptions, Timeout = axes.Timeout,
                Pipeline = config.Ranks,
                MicroBatches = staged ? config.MicroBatches : 0,
                Order = staged ? config.Order : (PipelineOrder?)null,
                StagesPerRank = staged ? config.CountStagesPerRank() : 0,
                Costs = staged ? config.StageCosts : null,
                ActivationLimitBytes = staged ? config.ActivationLimitBytes : 0,
            };
        }

        /// <summary>The first field that is set and that the model does not read.</summary>
        private static string FindUnread(ParallelContextOptions axes)
        {
            return axes.Pipeline != 1 ? nameof(axes.Pipeline)
                : axes.MicroBatches != 0 ? nameof(axes.MicroBatches)
                : axes.StagesPerRank != 0 ? nameof(axes.StagesPerRank)
                : axes.Order != null ? nameof(axes.Order)
                : axes.Placement != null ? nameof(axes.Placement)
                : axes.ScheduleText != null ? nameof(axes.ScheduleText)
                : axes.Costs != null ? nameof(axes.Costs)
                : axes.ActivationLimitBytes != 0 ? nameof(axes.ActivationLimitBytes)
                : null;
        }

        private PipelineStage[] FindStages()
        {
            var found = new PipelineStage[Cuts.Length - 1];
            for (int rank = 0; rank < config.Ranks; ++rank)
            {
                foreach (int stage in Parallel.StagesOf(rank))
                {
                    var layers = new Share(Cuts[stage], Cuts[stage + 1] - Cuts[stage]);
                    found[stage] =
                        new PipelineStage(stage, rank, layers, stage + 1 == found.Length);
                }
            }

            return found;
        }

        private Layer[] AddLayers(IReadOnlyList<PipelineLayer> layers)
        {
            var list = new List<Layer>();
            var tied = new TiedParameters(layers);
            ulong count = 0;
            foreach (PipelineStage stage in OwnStages)
            {
                for (long i = 0; i < stage.Layers.Count; ++i)
                {
                    PipelineLayer layer = layers[checked((int)(stage.Layers.First + i))];

                    // A copy: a model with other cuts may number the same layers in another way.
                    Layer numbered = layer.Layer.Copy();
                    numbered.FirstParameter = count;
                    numbered.ParameterCount = (ulong)layer.Parameters.Count;
                    list.Add(numbered);
                    foreach (ParameterOptions parameter in layer.Parameters)
                    {
                        tied.Add(Model, parameter, config.Ranks > 1);
                        ++count;
                    }
                }
            }

            return list.ToArray();
        }
    }
}
