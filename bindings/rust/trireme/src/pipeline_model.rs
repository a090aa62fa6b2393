//! A whole model as a list of layers. Each rank has the layers of its stages.

use std::fmt;
use std::ops::Range;

use crate::pipeline::own_name;
use crate::{
    Axes, Communicator, Contents, Error, Layer, LayerCosts, LayerOptions, Model, ModelOptions,
    Optimizer, Parallel, ParallelOptions, Parameter, PipelineCosts, Placement, Result, Trainer,
    TrainerOptions, TrainerPipeline, REST,
};

/// How ranks form a pipeline, and how its micro-batches go through it.
///
/// With `ranks` of 1 the model is one stage without a schedule. Then `schedule` is only checked for
/// its name, and `stages_per_rank`, `stage_costs`, `activation_limit_bytes` and `require_split` mean
/// nothing.
#[derive(Clone, Debug)]
pub struct PipelineConfig<'a> {
    /// Ranks along "pipeline".
    pub ranks: i32,
    /// Micro-batches of each reader in a step.
    pub micro_batches: u32,
    /// An order, such as "1f1b", "zb-h1" or "Interleaved1F1B". "best" searches one, and needs
    /// `stage_costs`.
    pub schedule: &'a str,
    /// Stages of each rank; 0: as few as the schedule takes.
    pub stages_per_rank: u32,
    /// They decide which layers a stage has. None: all layers cost the same.
    pub layer_costs: Option<&'a [LayerCosts]>,
    /// Times and bytes of stages.
    pub stage_costs: Option<PipelineCosts>,
    /// Bytes of activations of each rank, with `stage_costs`; 0: any.
    pub activation_limit_bytes: u64,
    /// A schedule with W needs layers that are [`split`](LayerOptions::split).
    pub require_split: bool,
}

impl PipelineConfig<'_> {
    /// The schedule "1f1b", and layers that cost the same.
    pub fn new(ranks: i32, micro_batches: u32) -> Self {
        PipelineConfig {
            ranks,
            micro_batches,
            schedule: "1f1b",
            stages_per_rank: 0,
            layer_costs: None,
            stage_costs: None,
            activation_limit_bytes: 0,
            require_split: false,
        }
    }

    fn count_stages_per_rank(&self, order: &str) -> u32 {
        let paired = ["interleaved", "zbv", "v-half", "v-min", "dualpipe-v"];
        match self.stages_per_rank {
            0 if paired.contains(&order) => 2,
            0 => 1,
            count => count,
        }
    }
}

/// Neighbouring layers that one rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PipelineStage {
    /// Among the stages of all ranks.
    pub number: u32,
    /// Its rank along "pipeline".
    pub rank: i32,
    /// Numbers of its layers in the whole model.
    pub layers: Range<u64>,
    /// Its first layer reads the batch.
    pub is_first: bool,
    /// Its last layer computes the loss.
    pub is_last: bool,
}

/// A layer of a whole model.
pub struct PipelineLayer<'a, B: ?Sized> {
    /// Its name and sizes. The model sets the numbers of its parameters.
    pub options: LayerOptions<'a>,
    /// In the order of the layer's calls.
    pub parameters: Vec<Parameter<'a>>,
    /// Its functions.
    pub layer: Box<dyn Layer<B>>,
}

impl<B: ?Sized> fmt::Debug for PipelineLayer<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineLayer")
            .field("options", &self.options)
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}

/// A whole model as a list of layers. Each rank has the layers of its stages, and a [`Model`] of
/// their parameters.
#[non_exhaustive]
pub struct PipelineParallelModel<'a, B: ?Sized> {
    /// The model of this rank's parameters, which is sealed.
    pub model: Model,
    parallel: Parallel,
    cuts: Vec<u64>,
    stages: Vec<PipelineStage>,
    layers: Vec<(LayerOptions<'a>, Box<dyn Layer<B>>)>,
    staged: bool,
    micro_batches: u32, // of a trainer without a pipeline
    require_split: bool,
}

impl<B: ?Sized> fmt::Debug for PipelineParallelModel<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineParallelModel")
            .field("stages", &self.stages)
            .finish_non_exhaustive()
    }
}

/// Parameters that are tied to others, of all layers.
struct Ties<'a> {
    all: Vec<Parameter<'a>>,
}

impl<'a> Ties<'a> {
    fn new<B: ?Sized>(layers: &[PipelineLayer<'a, B>]) -> Result<Self> {
        let all: Vec<_> = layers.iter().flat_map(|one| one.parameters.iter().copied()).collect();
        for (place, one) in all.iter().enumerate() {
            if all[..place].iter().any(|other| other.name == one.name) {
                return Err(Error::invalid(format!(
                    "parameter {:?} belongs to two layers: give the second one another name, and \
                     tied_to",
                    one.name
                )));
            }
            let target = match one.tied_to {
                Some(target) => target,
                None => continue,
            };
            if !all[..place].iter().any(|other| other.name == target) {
                return Err(Error::invalid(format!(
                    "tied_to {target:?} of parameter {:?} names no earlier parameter, in the order \
                     of layers",
                    one.name
                )));
            }
        }
        Ok(Ties { all })
    }

    /// The target, through other aliases. Targets are earlier ones.
    fn root_of(&self, parameter: &Parameter<'a>) -> Parameter<'a> {
        let mut root = *parameter;
        for one in self.all.iter().rev() {
            if root.tied_to == Some(one.name) {
                root = *one;
            }
        }
        root
    }

    /// Adds the parameter, or its target in its place. The first of them on a rank has the target's
    /// name. `held`: targets that this rank has by now.
    fn add(
        &self,
        parameter: &Parameter<'a>,
        staged: bool,
        held: &mut Vec<&'a str>,
        model: &mut Model,
    ) -> Result<usize> {
        let root = self.root_of(parameter);
        let mut placements = parameter.placements.to_vec();
        if !placements.is_empty() {
            placements.push(("pipeline", Placement::Tied)); // as that of the target
        }
        if held.contains(&root.name) {
            let tied_to = Some(root.name);
            let placements = &placements;
            return model.add_parameter(&Parameter { tied_to, placements, ..*parameter });
        }
        let is_shared =
            |one: &Parameter<'a>| one.tied_to.is_some() && self.root_of(one).name == root.name;
        if !staged || !self.all.iter().any(is_shared) {
            return model.add_parameter(parameter);
        }
        held.push(root.name);
        let mut placements = root.placements.to_vec();
        placements.push(("pipeline", Placement::Tied));
        model.add_parameter(&Parameter { placements: &placements, ..root })
    }
}

impl<'a, B: ?Sized> PipelineParallelModel<'a, B> {
    /// All ranks call this with the same `layers`, which are all layers in the order of forward.
    /// Of `axes` the fields of the pipeline are those of `config`. None: the ranks that the
    /// pipeline leaves lie along "data".
    ///
    /// A parameter with `tied_to` may lie in another stage than its target. A rank without the
    /// target holds a copy by its name, and all copies are trained alike.
    pub fn new(
        communicator: &Communicator,
        config: &PipelineConfig<'_>,
        layers: Vec<PipelineLayer<'a, B>>,
        options: &ModelOptions<'_>,
        axes: Option<&ParallelOptions<'_>>,
    ) -> Result<Self> {
        let equal = vec![LayerCosts { seconds: 1.0, ..LayerCosts::default() }; layers.len()];
        let costs = config.layer_costs.unwrap_or(&equal);
        if costs.len() != layers.len() {
            return Err(Error::invalid(format!(
                "layer_costs has {} entries for {} layers",
                costs.len(),
                layers.len()
            )));
        }
        // 0 and REST mean something to Parallel, and not here.
        if config.ranks < 1 {
            let ranks = config.ranks;
            return Err(Error::invalid(format!("ranks is {ranks}; a pipeline has 1 or more")));
        }
        let order = own_name(config.schedule)?;
        let staged = config.ranks > 1;
        let mut asked =
            axes.cloned().unwrap_or_else(|| ParallelOptions { data: REST, ..Default::default() });
        asked.pipeline = config.ranks;
        asked.micro_batches = if staged { config.micro_batches } else { 0 };
        asked.stages_per_rank = if staged { config.count_stages_per_rank(order) } else { 0 };
        asked.order = staged.then_some(config.schedule);
        asked.placement = None;
        asked.schedule_text = None;
        asked.costs = config.stage_costs.clone().filter(|_| staged);
        asked.activation_limit_bytes = if staged { config.activation_limit_bytes } else { 0 };
        let parallel = Parallel::new(communicator, &asked)?;
        let (cuts, _) = parallel.partition(costs)?;
        let mut stages = Vec::new();
        for rank in 0..config.ranks {
            for number in parallel.stages(rank)? {
                let place = number as usize;
                stages.push(PipelineStage {
                    number,
                    rank,
                    layers: cuts[place]..cuts[place + 1],
                    is_first: place == 0,
                    is_last: place + 2 == cuts.len(),
                });
            }
        }
        stages.sort_by_key(|stage| stage.number);
        let own = parallel.own_stages()?;
        let mut model = Model::on_axes(&parallel, Contents::Common, options)?;
        let ties = Ties::new(&layers)?;
        let mut held = Vec::new();
        let mut list = Vec::new();
        let mut count = 0;
        for (number, layer) in layers.into_iter().enumerate() {
            let number = number as u64;
            let is_own = |stage: &&PipelineStage| {
                own.contains(&stage.number) && stage.layers.contains(&number)
            };
            if !stages.iter().any(|stage| is_own(&stage)) {
                continue;
            }
            for parameter in &layer.parameters {
                ties.add(parameter, staged, &mut held, &mut model)?;
            }
            let end = count + layer.parameters.len();
            list.push((LayerOptions { parameters: count..end, ..layer.options }, layer.layer));
            count = end;
        }
        model.seal()?;
        Ok(PipelineParallelModel {
            model,
            parallel,
            cuts,
            stages,
            layers: list,
            staged,
            micro_batches: if options.leaves > 0 { 0 } else { config.micro_batches },
            require_split: config.require_split,
        })
    }

    /// The ranks on all axes.
    pub fn parallel(&self) -> &Parallel {
        &self.parallel
    }

    /// The first layer of each stage, and the number of layers.
    pub fn cuts(&self) -> &[u64] {
        &self.cuts
    }

    /// The stages of all ranks, in the order of the model.
    pub fn stages(&self) -> &[PipelineStage] {
        &self.stages
    }

    /// The stages of this rank, in the order of the model.
    pub fn own_stages(&self) -> Result<Vec<PipelineStage>> {
        let own = self.parallel.own_stages()?;
        Ok(self.stages.iter().filter(|stage| own.contains(&stage.number)).cloned().collect())
    }

    /// A trainer of this rank's layers, which it takes: a second call is an error. A call that fails
    /// leaves them. Collective. The pipeline of `options` is that of the configuration. Without a
    /// pipeline, so are the micro-batches if `options` has 0 and the model has no leaves.
    pub fn trainer(
        &mut self,
        optimizer: &mut Optimizer,
        options: &TrainerOptions<'_>,
    ) -> Result<Trainer<B>> {
        if self.layers.is_empty() {
            return Err(Error::invalid("a trainer has this model's layers".to_owned()));
        }
        if !self.staged {
            let mut options = *options;
            if options.micro_batches == 0 {
                options.micro_batches = self.micro_batches;
            }
            return Trainer::take_layers(&mut self.model, optimizer, &options, &mut self.layers);
        }
        let schedule = self.parallel.schedule()?;
        let along = self.parallel.communicator(Axes::PIPELINE)?;
        let pipeline = TrainerPipeline {
            communicator: &along,
            schedule: &schedule,
            cuts: &self.cuts,
            require_split: self.require_split,
        };
        let options = TrainerOptions { pipeline: Some(pipeline), ..*options };
        Trainer::take_layers(&mut self.model, optimizer, &options, &mut self.layers)
    }
}
