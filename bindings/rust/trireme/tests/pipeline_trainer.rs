//! Training with a pipeline, over layers of the caller.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use support::{fails, ranks};
use trireme::{
    Axes, Communicator, Contents, Dtype, GroupOptions, Layer, LayerCall, LayerCosts, LayerOptions,
    LayerPhase, Model, ModelOptions, Offload, Optimizer, OptimizerOptions, Parallel,
    ParallelOptions, Parameter, PipelineFormat, PipelineOptions, PipelineSchedule,
    RebalanceOptions, RuleKind, Status, Strategy, Trainer, TrainerOptions, TrainerPipeline,
    LAYER_DIMENSIONS, REST,
};

const WIDTH: usize = 3;
const LEAVES: u32 = 4;
const STEPS: usize = 3;
const RATE: f64 = 0.25;

type Answer = Result<(), String>;

fn weights() -> Vec<f64> {
    (0..2 * WIDTH).map(|i| 1.0 + i as f64 * 0.25).collect()
}

fn value(leaf: u32, i: usize) -> f64 {
    (leaf * 3 + i as u32) as f64 * 0.125
}

/// y = w x. The batch says in which micro-batch its backward for the weights fails.
struct Scale;

impl Layer<Option<u32>> for Scale {
    fn forward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        let leaf = call.leaf();
        let memory = call.memory::<f64>()?;
        for i in 0..WIDTH {
            memory.output[i] = memory.parameters[0][i] * value(leaf, i);
        }
        Ok(())
    }

    fn backward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        assert_eq!(call.phase(), LayerPhase::BackwardInput);
        let leaf = call.leaf();
        let memory = call.memory::<f64>()?;
        assert!(memory.gradients.is_empty() && memory.input_gradient.is_empty());
        assert_eq!(memory.output[0], memory.parameters[0][0] * value(leaf, 0));
        Ok(())
    }

    fn backward_weight(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        assert_eq!((call.phase(), call.number()), (LayerPhase::BackwardWeight, 0));
        if *call.batch() == Some(call.micro_batch()) {
            return Err("no such sample".to_owned());
        }
        let leaf = call.leaf();
        let mut memory = call.memory::<f64>()?;
        for i in 0..WIDTH {
            memory.gradients[0][i] = memory.output_gradient[i] * value(leaf, i);
        }
        Ok(())
    }
}

/// The loss is the sum of w y.
struct Sum;

impl Layer<Option<u32>> for Sum {
    fn forward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        let memory = call.memory::<f64>()?;
        let mut sum = 0.0;
        for i in 0..WIDTH {
            sum += memory.parameters[0][i] * memory.input[i];
        }
        call.set_loss(sum)
    }

    fn backward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        assert_eq!((call.phase(), call.number()), (LayerPhase::Backward, 1));
        let scale = call.loss_scale();
        let mut memory = call.memory::<f64>()?;
        for i in 0..WIDTH {
            memory.gradients[0][i] = scale * memory.input[i];
            memory.input_gradient[i] = scale * memory.parameters[0][i];
        }
        Ok(())
    }
}

fn alone() -> (Vec<f64>, Vec<f64>) {
    let (mut w, mut losses) = (weights(), Vec::new());
    for _ in 0..STEPS {
        let (mut gradient, mut loss) = (vec![0.0; 2 * WIDTH], 0.0);
        for leaf in 0..LEAVES {
            let mut sum = 0.0;
            for i in 0..WIDTH {
                let y = w[i] * value(leaf, i);
                sum += w[WIDTH + i] * y;
                gradient[WIDTH + i] += y;
                gradient[i] += w[WIDTH + i] * value(leaf, i);
            }
            loss += sum;
        }
        losses.push(loss / f64::from(LEAVES));
        for (w, gradient) in w.iter_mut().zip(&gradient) {
            *w -= RATE * (gradient / f64::from(LEAVES));
        }
    }
    (losses, w)
}

type Described = Vec<(LayerOptions<'static>, Box<dyn Layer<Option<u32>>>)>;

/// Both layers on one rank, or one on each of two.
fn layers(first: usize, count: usize) -> Described {
    let mut all: Described = vec![
        (
            LayerOptions {
                name: "scale",
                parameters: 0..1,
                output_bytes: WIDTH * 8,
                split: true,
                ..LayerOptions::default()
            },
            Box::new(Scale),
        ),
        (
            LayerOptions {
                name: "sum",
                parameters: 1 - first..2 - first,
                input_bytes: WIDTH * 8,
                ..LayerOptions::default()
            },
            Box::new(Sum),
        ),
    ];
    all.drain(first..first + count).collect()
}

/// The rank along the pipeline, and a group of this rank alone.
fn own_group(along: &Communicator) -> (usize, Communicator) {
    let rank = along.rank() as usize;
    (rank, along.split(Some(rank as u32), 0, &GroupOptions::default()).unwrap().unwrap())
}

fn schedule(order: &str, ranks: i32) -> PipelineSchedule {
    PipelineSchedule::new(&PipelineOptions {
        order: order.to_owned(),
        ranks: ranks as u32,
        micro_batches: LEAVES,
        ..PipelineOptions::default()
    })
    .unwrap()
}

fn model(alone: &Communicator, first: usize, count: usize) -> (Model, Optimizer) {
    described(Model::new(alone, &of_leaves()).unwrap(), first, count)
}

fn of_leaves() -> ModelOptions<'static> {
    ModelOptions { leaves: LEAVES, ..ModelOptions::new(Strategy::Zero1) }
}

fn described(mut model: Model, first: usize, count: usize) -> (Model, Optimizer) {
    for i in first..first + count {
        model.add_parameter(&Parameter::new(&format!("w{i}"), Dtype::F64, &[3])).unwrap();
    }
    model.seal().unwrap();
    let own = &weights()[first * WIDTH..(first + count) * WIDTH];
    model.set_parameters(Some(own), 0).unwrap();
    let rule = OptimizerOptions::new(RuleKind::Sgd).learning_rate(RATE);
    let optimizer = Optimizer::new(&mut model, &rule).unwrap();
    (model, optimizer)
}

/// The second of three ranks has no layers.
fn cuts(ranks: i32) -> &'static [u64] {
    match ranks {
        1 => &[0, 2],
        2 => &[0, 1, 2],
        _ => &[0, 1, 1, 2],
    }
}

#[test]
fn training_is_that_of_plain_loops() {
    let (losses, expected) = alone();
    let folder = std::env::temp_dir();
    for (order, in_file) in [("gpipe", false), ("1f1b", false), ("zb-h1", false), ("gpipe", true)] {
        for world_size in 1..=3 {
            let found = Mutex::new(vec![0.0; 2 * WIDTH]);
            ranks(world_size, |along| {
                let (rank, alone) = own_group(along);
                let first = cuts(world_size)[rank] as usize;
                let count = cuts(world_size)[rank + 1] as usize - first;
                let (mut model, mut optimizer) = model(&alone, first, count);
                let mut trainer = {
                    let schedule = schedule(order, world_size);
                    let options = TrainerOptions {
                        pipeline: Some(TrainerPipeline {
                            communicator: along,
                            schedule: &schedule,
                            cuts: cuts(world_size),
                            require_split: false,
                        }),
                        offload: in_file.then(|| Offload::new(&folder)),
                        ..TrainerOptions::default()
                    };
                    Trainer::new(&mut model, &mut optimizer, &options, layers(first, count))
                        .unwrap()
                };
                let info = trainer.info().unwrap();
                if in_file {
                    let file = trainer.offload_info().unwrap();
                    assert_eq!(info.planned_window_bytes, file.buffer_bytes);
                    // The output between the layers, where one rank has both, is a page.
                    assert_eq!(file.block_bytes, if count == 2 { 4096 } else { 0 });
                }
                assert_eq!((info.stages, info.split_layers), (1, u64::from(first == 0)));
                let evaluated = trainer.evaluate(&mut model, &mut optimizer, &None).unwrap();
                assert_eq!(evaluated, losses[0]);
                for loss in &losses {
                    let metrics = trainer.step(&mut model, &mut optimizer, &None).unwrap();
                    assert_eq!(metrics.loss, *loss);
                }
                let own = model.get_parameters::<f64>().unwrap();
                found.lock().unwrap()[first * WIDTH..][..own.len()].copy_from_slice(&own);
            });
            assert_eq!(*found.lock().unwrap(), expected, "{order} on {world_size}");
        }
    }
}

/// y = w x for as many numbers as the leaf says, none in the first one.
struct Varying;

impl Layer<Option<u32>> for Varying {
    fn forward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        let count = call.leaf() as usize;
        assert_eq!((call.input_used(), call.input_shape().len()), (0, 0));
        assert_eq!((call.output_used(), call.output_shape()), (WIDTH * 8, [0; LAYER_DIMENSIONS]));
        let memory = call.memory::<f64>()?;
        for i in 0..count {
            memory.output[i] = memory.parameters[0][i] * value(count as u32, i);
        }
        call.set_output_used(8 * count)?;
        assert!(call.set_output_shape(&[0; LAYER_DIMENSIONS + 1]).is_err());
        call.set_output_shape(&[count as u64, u64::MAX])
    }

    fn backward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        let count = call.leaf() as usize;
        assert_eq!((call.output_used(), call.output_shape()[1]), (8 * count, u64::MAX));
        assert!(call.set_output_used(0).is_err() && call.set_output_shape(&[]).is_err());
        let mut memory = call.memory::<f64>()?;
        assert_eq!(memory.output_gradient.len(), count);
        for i in 0..WIDTH {
            memory.gradients[0][i] =
                if i < count { memory.output_gradient[i] * value(count as u32, i) } else { 0.0 };
        }
        Ok(())
    }
}

/// The loss is the sum of the used numbers.
struct Total;

impl Layer<Option<u32>> for Total {
    fn forward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        let count = call.leaf() as usize;
        assert_eq!((call.input_used(), call.input_shape()[0]), (8 * count, count as u64));
        let sum = call.memory::<f64>()?.input.iter().sum();
        call.set_loss(sum)
    }

    fn backward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        let (count, scale) = (call.leaf() as usize, call.loss_scale());
        let memory = call.memory::<f64>()?;
        assert_eq!((memory.input.len(), memory.input_gradient.len()), (count, count));
        memory.input_gradient.fill(scale);
        Ok(())
    }
}

#[test]
fn sizes_vary_with_each_micro_batch() {
    ranks(2, |along| {
        let (first, alone) = own_group(along);
        let (mut model, mut optimizer) = model(&alone, 0, 1 - first);
        let schedule = schedule("1f1b", 2);
        let options = TrainerOptions {
            pipeline: Some(TrainerPipeline {
                communicator: along,
                schedule: &schedule,
                cuts: cuts(2),
                require_split: false,
            }),
            ..TrainerOptions::default()
        };
        let mut all: Described = vec![
            (
                LayerOptions {
                    name: "varying",
                    parameters: 0..1,
                    output_bytes: WIDTH * 8,
                    ..LayerOptions::default()
                },
                Box::new(Varying),
            ),
            (LayerOptions { name: "total", ..LayerOptions::default() }, Box::new(Total)),
        ];
        let own: Described = all.drain(first..=first).collect();
        let mut trainer = Trainer::new(&mut model, &mut optimizer, &options, own).unwrap();
        let mut w = weights();
        for _ in 0..STEPS {
            let (mut loss, mut gradient) = (0.0, [0.0; WIDTH]);
            for leaf in 0..LEAVES {
                for i in 0..leaf as usize {
                    loss += w[i] * value(leaf, i);
                    gradient[i] += value(leaf, i);
                }
            }
            let metrics = trainer.step(&mut model, &mut optimizer, &None).unwrap();
            assert_eq!(metrics.loss, loss / f64::from(LEAVES));
            for i in 0..WIDTH {
                w[i] -= RATE * (gradient[i] / f64::from(LEAVES));
            }
        }
    });
}

/// The loss is the sum of its input and of twice what it reads. The layer before only hands on.
struct Reader;
struct Hands;

impl Layer<Option<u32>> for Hands {
    fn forward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        let memory = call.memory::<f64>()?;
        assert!(memory.reads.is_empty() && memory.read_gradients.is_empty());
        memory.output.copy_from_slice(memory.input);
        Ok(())
    }

    fn backward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        let memory = call.memory::<f64>()?;
        memory.input_gradient.copy_from_slice(memory.output_gradient);
        Ok(())
    }
}

impl Layer<Option<u32>> for Reader {
    fn forward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        assert_eq!((call.read_shape(0), call.read_shape(1)), (&[0; LAYER_DIMENSIONS][..], &[][..]));
        let bytes = (call.read_bytes(0), call.read_bytes(1));
        let memory = call.memory::<f64>()?;
        assert_eq!((memory.reads.len(), memory.read_gradients.len()), (1, 0));
        assert_eq!(bytes, (8 * memory.reads[0].len(), 0));
        let sum = memory.input.iter().sum::<f64>() + 2.0 * memory.reads[0].iter().sum::<f64>();
        call.set_loss(sum)
    }

    fn backward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        let scale = call.loss_scale();
        let mut memory = call.memory::<f64>()?;
        memory.input_gradient.fill(scale);
        memory.read_gradients[0].fill(2.0 * scale);
        Ok(())
    }
}

#[test]
fn layers_read_outputs_of_earlier_ones() {
    ranks(2, |along| {
        let (first, alone) = own_group(along);
        let (mut model, mut optimizer) = model(&alone, 0, 1 - first);
        let schedule = schedule("1f1b", 2);
        let options = TrainerOptions {
            pipeline: Some(TrainerPipeline {
                communicator: along,
                schedule: &schedule,
                cuts: &[0, 2, 3],
                require_split: false,
            }),
            ..TrainerOptions::default()
        };
        let output_bytes = WIDTH * 8;
        let plain = LayerOptions { output_bytes, ..LayerOptions::default() };
        let mut all: Described = vec![
            (
                LayerOptions {
                    name: "scale",
                    parameters: 0..1,
                    output_dtype: Some(Dtype::F64),
                    split: true,
                    ..plain.clone()
                },
                Box::new(Scale),
            ),
            (LayerOptions { name: "hands", ..plain.clone() }, Box::new(Hands)),
            (
                LayerOptions { name: "reader", reads: &[0], ..LayerOptions::default() },
                Box::new(Reader),
            ),
        ];
        let own: Described = all.drain(2 * first..2 + first).collect();
        let mut trainer = Trainer::new(&mut model, &mut optimizer, &options, own).unwrap();
        let mut w = weights();
        for _ in 0..STEPS {
            let (mut loss, mut gradient) = (0.0, [0.0; WIDTH]);
            for leaf in 0..LEAVES {
                for i in 0..WIDTH {
                    loss += 3.0 * w[i] * value(leaf, i);
                    gradient[i] += 3.0 * value(leaf, i);
                }
            }
            let metrics = trainer.step(&mut model, &mut optimizer, &None).unwrap();
            assert_eq!(metrics.loss, loss / f64::from(LEAVES));
            for i in 0..WIDTH {
                w[i] -= RATE * (gradient[i] / f64::from(LEAVES));
            }
        }
    });
}

/// Counts its second forwards.
struct Counted(Box<dyn Layer<Option<u32>>>, Arc<AtomicU64>);

impl Layer<Option<u32>> for Counted {
    fn forward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        if call.phase() == LayerPhase::Recompute {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        self.0.forward(call)
    }

    fn backward(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        self.0.backward(call)
    }

    fn backward_weight(&mut self, call: &mut LayerCall<'_, Option<u32>>) -> Answer {
        self.0.backward_weight(call)
    }
}

#[test]
fn layers_run_forward_again_by_the_schedule_and_by_options() {
    let (losses, expected) = alone();
    let again = "pipeline ranks=2 stages=2 micro_batches=4 placement=0,1\n\
                 0F0 0F1 0F2 0F3 0R0 0B0 0R1 0B1 0R2 0B2 0B3\n\
                 1F0 1F1 1F2 1F3 1R0 1B0 1B1 1B2 1B3\n";
    for (text, checkpoint_every, activation_budget_bytes, counts) in [
        (again, 0, 0, [3, 1]),
        ("gpipe", 1, 0, [4, 4]),
        ("1f1b", 1, 0, [4, 0]),
        ("gpipe", 0, 1 << 20, [0, 0]),
    ] {
        let found = Mutex::new(vec![0.0; 2 * WIDTH]);
        ranks(2, |along| {
            let (first, alone) = own_group(along);
            let (mut model, mut optimizer) = model(&alone, first, 1);
            let schedule = if text.contains('\n') {
                PipelineSchedule::parse(text).unwrap()
            } else {
                schedule(text, 2)
            };
            let count = Arc::new(AtomicU64::new(0));
            let counted: Described = layers(first, 1)
                .into_iter()
                .map(|(options, layer)| {
                    let counted: Box<dyn Layer<Option<u32>>> =
                        Box::new(Counted(layer, Arc::clone(&count)));
                    (options, counted)
                })
                .collect();
            let options = TrainerOptions {
                pipeline: Some(TrainerPipeline {
                    communicator: along,
                    schedule: &schedule,
                    cuts: &[0, 1, 2],
                    require_split: false,
                }),
                checkpoint_every,
                activation_budget_bytes,
                ..TrainerOptions::default()
            };
            let mut trainer = Trainer::new(&mut model, &mut optimizer, &options, counted).unwrap();
            for loss in &losses {
                let metrics = trainer.step(&mut model, &mut optimizer, &None).unwrap();
                assert_eq!(metrics.loss, *loss);
            }
            assert_eq!(count.load(Ordering::Relaxed), counts[first] * STEPS as u64);
            let own = model.get_parameters::<f64>().unwrap();
            found.lock().unwrap()[first * WIDTH..][..own.len()].copy_from_slice(&own);
        });
        assert_eq!(*found.lock().unwrap(), expected, "{text}");
    }
}

#[test]
fn a_failure_is_known_on_all_ranks_and_the_next_step_comes() {
    let (losses, _) = alone();
    ranks(2, |along| {
        let (first, alone) = own_group(along);
        let (mut model, mut optimizer) = model(&alone, first, 1);
        let schedule = schedule("zb-h1", 2);
        let mut pipeline = TrainerPipeline {
            communicator: along,
            schedule: &schedule,
            cuts: &[0, 1, 2],
            require_split: true,
        };
        let refused = TrainerOptions { pipeline: Some(pipeline), ..TrainerOptions::default() };
        let made = Trainer::new(&mut model, &mut optimizer, &refused, layers(first, 1));
        let words = if first == 1 { "has no backward_weight" } else { "rank 1 answered" };
        assert!(fails(made, Status::InvalidArgument).message().contains(words));
        pipeline.require_split = false;
        let options = TrainerOptions { pipeline: Some(pipeline), ..TrainerOptions::default() };
        let mut trainer =
            Trainer::new(&mut model, &mut optimizer, &options, layers(first, 1)).unwrap();
        let step = trainer.step(&mut model, &mut optimizer, &Some(2));
        let words = if first == 0 { "no such sample" } else { "layer 0 (\"scale\") of stage 0" };
        assert!(fails(step, Status::Callback).message().contains(words));
        let metrics = trainer.step(&mut model, &mut optimizer, &None).unwrap();
        assert_eq!(metrics.loss, losses[0]);
    });
}

fn two_stages(
    along: &Communicator,
    model: &mut Model,
    optimizer: &mut Optimizer,
) -> Trainer<Option<u32>> {
    let schedule = schedule("zb-h1", 2);
    let options = TrainerOptions {
        pipeline: Some(TrainerPipeline {
            communicator: along,
            schedule: &schedule,
            cuts: &[0, 1, 2],
            require_split: false,
        }),
        ..TrainerOptions::default()
    };
    Trainer::new(model, optimizer, &options, layers(along.rank() as usize, 1)).unwrap()
}

#[test]
fn layers_change_their_ranks_and_no_bit_changes() {
    let (losses, expected) = alone();
    let found = Mutex::new(vec![0.0; 2 * WIDTH]);
    ranks(2, |along| {
        let (first, alone) = own_group(along);
        let options = GroupOptions::default();
        // The ranks of the pipeline change places.
        let other = along.split(Some(0), 1 - along.rank(), &options).unwrap().unwrap();
        let second = other.rank() as usize;
        let (mut model, mut optimizer) = model(&alone, first, 1);
        let mut trainer = two_stages(along, &mut model, &mut optimizer);
        fails(trainer.layer_costs(), Status::InvalidState);
        let metrics = trainer.step(&mut model, &mut optimizer, &None).unwrap();
        assert_eq!(metrics.loss, losses[0]);
        let costs = trainer.layer_costs().unwrap();
        let sizes: Vec<_> =
            costs.iter().map(|c| (c.parameter_bytes, c.output_bytes, c.kept_bytes)).collect();
        assert_eq!(sizes, [(24, 24, 24), (24, 0, 0)]);
        assert!(costs.iter().all(|c| c.forward_seconds > 0.0 && c.input_seconds > 0.0));
        assert!(costs[0].weight_seconds > 0.0 && costs[1].weight_seconds == 0.0);
        assert!(costs[0].seconds() > costs[0].weight_seconds);
        drop(trainer);

        let (mut next, mut updated) = self::model(&alone, second, 1);
        next.set_parameters(Some(&[9.0; WIDTH][..]), 0).unwrap();
        let mut moving = RebalanceOptions { cuts: &[0, 1, 2], ..RebalanceOptions::default() };
        let other_cuts = [0, 2 - first as u64, 2];
        moving.cuts = &other_cuts;
        fails(updated.take_over(&mut next, &optimizer, along, &moving), Status::Mismatch);
        fails(updated.take_over(&mut model, &optimizer, along, &moving), Status::InvalidArgument);
        moving.cuts = &[0, 1, 2];
        let report = updated.take_over(&mut next, &optimizer, along, &moving).unwrap();
        assert_eq!((report.sent_bytes, report.received_bytes, report.kept_bytes), (24, 24, 0));
        assert!(report.peak_bytes > report.buffer_bytes && report.buffer_bytes > 0);
        drop((model, optimizer));
        let mut trainer = two_stages(&other, &mut next, &mut updated);
        for loss in &losses[1..] {
            let metrics = trainer.step(&mut next, &mut updated, &None).unwrap();
            assert_eq!(metrics.loss, *loss);
        }
        let own = next.get_parameters::<f64>().unwrap();
        found.lock().unwrap()[second * WIDTH..][..WIDTH].copy_from_slice(&own);
    });
    assert_eq!(*found.lock().unwrap(), expected);
}

/// The actions of an order, given as lists of one's own.
fn own_schedule(micro_batches: u32) -> String {
    let options = PipelineOptions {
        order: "zb-h1".to_owned(),
        ranks: 2,
        micro_batches,
        ..PipelineOptions::default()
    };
    let made = PipelineSchedule::new(&options).unwrap();
    let lists = [made.actions(0).unwrap(), made.actions(1).unwrap()];
    let own = PipelineSchedule::from_actions(&lists, micro_batches, &made.placement().unwrap());
    own.unwrap().write(PipelineFormat::Text, None).unwrap()
}

#[test]
fn own_schedules_train_along_axes_as_plain_loops_do() {
    let (losses, expected) = alone();
    for data in 1..=2 {
        let text = own_schedule(LEAVES / data as u32);
        ranks(2 * data, |group| {
            let options = ParallelOptions {
                pipeline: 2,
                data: REST,
                schedule_text: Some(&text),
                timeout: Some(support::LONG),
                ..ParallelOptions::default()
            };
            let parallel = Parallel::new(group, &options).unwrap();
            let stage = parallel.own_stages().unwrap()[0] as usize;
            let on_axes = Model::on_axes(&parallel, Contents::Common, &of_leaves()).unwrap();
            let (mut model, mut optimizer) = described(on_axes, stage, 1);
            let costs = [LayerCosts { seconds: 1.0, ..LayerCosts::default() }; 2];
            let mut trainer = {
                let schedule = parallel.schedule().unwrap();
                let along = parallel.communicator(Axes::PIPELINE).unwrap();
                let pipeline = TrainerPipeline {
                    communicator: &along,
                    schedule: &schedule,
                    cuts: &parallel.partition(&costs).unwrap().0,
                    require_split: false,
                };
                let options =
                    TrainerOptions { pipeline: Some(pipeline), ..TrainerOptions::default() };
                Trainer::new(&mut model, &mut optimizer, &options, layers(stage, 1)).unwrap()
            };
            let own = &expected[stage * WIDTH..][..WIDTH];
            let mut saved = None;
            for loss in &losses {
                let metrics = trainer.step(&mut model, &mut optimizer, &None).unwrap();
                assert_eq!(metrics.loss, *loss);
                saved = saved.or_else(|| Some(optimizer.save(&model).unwrap()));
            }
            assert_eq!(model.get_parameters::<f64>().unwrap(), own);
            optimizer.load(&mut model, &saved.unwrap()).unwrap();
            for loss in &losses[1..] {
                let metrics = trainer.step(&mut model, &mut optimizer, &None).unwrap();
                assert_eq!(metrics.loss, *loss, "again");
            }
            assert_eq!(model.get_parameters::<f64>().unwrap(), own);
            let failed = trainer.step(&mut model, &mut optimizer, &Some(0));
            fails(failed, Status::Callback);
        });
    }
}
