//! Training through PipelineParallelModel against a plain loop.

mod support;

use std::sync::Mutex;

use support::{fails, ranks};
use trireme::{
    Dtype, Layer, LayerCall, LayerCosts, LayerOptions, LayerPhase, ModelOptions, Optimizer,
    OptimizerOptions, ParallelOptions, Parameter, PipelineConfig, PipelineLayer, PipelineOptions,
    PipelineParallelModel, PipelineSchedule, Placement, RuleKind, Status, Strategy, TrainerOptions,
};

const WIDTH: usize = 3;
const COUNT: usize = 4;
const LEAVES: u32 = 4;
const STEPS: usize = 3;
const RATE: f64 = 0.25;
const NAMES: [&str; COUNT] = ["w0", "w1", "w2", "w3"];

/// Names of other libraries, what they are here, and the stages of a rank.
const ORDERS: [(&str, &str, usize); 7] = [
    ("GPipe", "gpipe", 1),
    ("1F1B", "1f1b", 1),
    ("Interleaved1F1B", "interleaved", 2),
    ("LoopedBFS", "looped-bfs", 1),
    ("ZB-H1", "zb-h1", 1),
    ("ZB-H2", "zb-h2", 1),
    ("ZB-V", "zbv", 2),
];

type Answer = Result<(), String>;

fn weights(layer: usize) -> Vec<f64> {
    (0..WIDTH).map(|i| 1.0 + (layer + i) as f64 * 0.25).collect()
}

fn value(leaf: u32, i: usize) -> f64 {
    f64::from(leaf * 3 + i as u32 + 1) * 0.125
}

/// y = w x. The loss is the sum of the last y.
struct Scale(usize);

impl Scale {
    fn is_last(&self) -> bool {
        self.0 + 1 == COUNT
    }

    fn gradients(&self, call: &mut LayerCall<'_, ()>, input: bool, weight: bool) -> Answer {
        let (leaf, scale) = (call.leaf(), call.loss_scale());
        let mut memory = call.memory::<f64>()?;
        for i in 0..WIDTH {
            let slope = if self.is_last() { scale } else { memory.output_gradient[i] };
            if input && self.0 > 0 {
                memory.input_gradient[i] = slope * memory.parameters[0][i];
            }
            if weight {
                let x = if self.0 == 0 { value(leaf, i) } else { memory.input[i] };
                memory.gradients[0][i] = slope * x;
            }
        }
        Ok(())
    }
}

impl Layer<()> for Scale {
    fn forward(&mut self, call: &mut LayerCall<'_, ()>) -> Answer {
        assert_eq!(call.number(), self.0 as u64);
        let leaf = call.leaf();
        let memory = call.memory::<f64>()?;
        let mut sum = 0.0;
        for i in 0..WIDTH {
            let x = if self.0 == 0 { value(leaf, i) } else { memory.input[i] };
            let y = memory.parameters[0][i] * x;
            sum += y;
            if !self.is_last() {
                memory.output[i] = y;
            }
        }
        if self.is_last() {
            call.set_loss(sum)?;
        }
        Ok(())
    }

    fn backward(&mut self, call: &mut LayerCall<'_, ()>) -> Answer {
        let both = call.phase() == LayerPhase::Backward;
        self.gradients(call, true, both)
    }

    fn backward_weight(&mut self, call: &mut LayerCall<'_, ()>) -> Answer {
        self.gradients(call, false, true)
    }
}

fn layers() -> Vec<PipelineLayer<'static, ()>> {
    (0..COUNT)
        .map(|number| PipelineLayer {
            options: LayerOptions {
                name: NAMES[number],
                output_bytes: if number + 1 == COUNT { 0 } else { WIDTH * 8 },
                input_bytes: if number == 0 { 0 } else { WIDTH * 8 },
                split: true,
                ..LayerOptions::default()
            },
            parameters: vec![Parameter::new(NAMES[number], Dtype::F64, &[WIDTH as u64])],
            layer: Box::new(Scale(number)),
        })
        .collect()
}

/// `tied`: the last layer has the weight of the first one.
fn alone(tied: bool) -> (Vec<f64>, Vec<f64>) {
    const LAST: usize = (COUNT - 1) * WIDTH;
    let mut w: Vec<f64> = (0..COUNT).flat_map(weights).collect();
    if tied {
        w.copy_within(..WIDTH, LAST);
    }
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let (mut gradients, mut loss) = (Vec::new(), 0.0);
        for leaf in 0..LEAVES {
            let (mut gradient, mut sum) = (vec![0.0; w.len()], 0.0);
            for i in 0..WIDTH {
                let mut x = vec![value(leaf, i)];
                for layer in 0..COUNT {
                    x.push(w[layer * WIDTH + i] * x[layer]);
                }
                sum += x[COUNT];
                let mut slope = 1.0;
                for layer in (0..COUNT).rev() {
                    gradient[layer * WIDTH + i] = slope * x[layer];
                    slope *= w[layer * WIDTH + i];
                }
                gradient[i] += if tied { gradient[LAST + i] } else { 0.0 };
            }
            loss += sum;
            gradients.push(gradient);
        }
        losses.push(loss / f64::from(LEAVES));
        for (i, w) in w.iter_mut().enumerate() {
            let sum = (gradients[0][i] + gradients[1][i]) + (gradients[2][i] + gradients[3][i]);
            *w -= RATE * (sum / f64::from(LEAVES));
        }
        if tied {
            w.copy_within(..WIDTH, LAST);
        }
    }
    (losses, w)
}

fn model_options() -> ModelOptions<'static> {
    ModelOptions { leaves: LEAVES, ..ModelOptions::new(Strategy::Zero1) }
}

#[test]
fn training_is_that_of_a_plain_loop() {
    let (losses, expected) = alone(false);
    let mut runs = vec![(1, 1, "1f1b", 1), (2, 1, "1f1b", 1), (4, 2, "zb-h1", 1)];
    runs.extend(ORDERS.iter().map(|order| (2, 2, order.0, order.2)));
    for (world_size, along, order, per_rank) in runs {
        let found = Mutex::new(vec![0.0; COUNT * WIDTH]);
        ranks(world_size, |all| {
            let micro_batches = LEAVES * along / world_size as u32;
            let config = PipelineConfig {
                schedule: order,
                ..PipelineConfig::new(along as i32, micro_batches)
            };
            let mut whole =
                PipelineParallelModel::new(all, &config, layers(), &model_options(), None).unwrap();
            let own = whole.own_stages().unwrap();
            let stages = whole.stages();
            assert_eq!(stages.len(), if along == 1 { 1 } else { along as usize * per_rank });
            assert!(stages[0].is_first && stages[stages.len() - 1].is_last);
            assert_eq!(whole.cuts().first(), Some(&0));
            let numbers: Vec<u64> = own.iter().flat_map(|stage| stage.layers.clone()).collect();
            let values: Vec<f64> = numbers.iter().flat_map(|n| weights(*n as usize)).collect();
            whole.model.set_parameters(Some(&values), 0).unwrap();
            let rule = OptimizerOptions::new(RuleKind::Sgd).learning_rate(RATE);
            let mut optimizer = Optimizer::new(&mut whole.model, &rule).unwrap();
            // One that cannot be made leaves the layers.
            let wrong = TrainerOptions { activation_budget_bytes: 1, ..TrainerOptions::default() };
            fails(whole.trainer(&mut optimizer, &wrong), Status::OutOfMemory);
            // Every second job computes forward again.
            let every = TrainerOptions {
                checkpoint_every: u64::from(per_rank > 1 || world_size == 4),
                ..TrainerOptions::default()
            };
            let mut trainer = whole.trainer(&mut optimizer, &every).unwrap();
            let recomputed = trainer.info().unwrap().recomputed;
            assert!(every.checkpoint_every == 1 || recomputed == 0);
            for loss in &losses {
                let metrics = trainer.step(&mut whole.model, &mut optimizer, &()).unwrap();
                assert_eq!(metrics.loss, *loss);
            }
            let own = whole.model.get_parameters::<f64>().unwrap();
            for (place, number) in numbers.iter().enumerate() {
                found.lock().unwrap()[*number as usize * WIDTH..][..WIDTH]
                    .copy_from_slice(&own[place * WIDTH..][..WIDTH]);
            }
            fails(
                whole.trainer(&mut optimizer, &TrainerOptions::default()),
                Status::InvalidArgument,
            );
        });
        assert_eq!(*found.lock().unwrap(), expected, "{order} on {world_size}");
    }
}

#[test]
fn a_name_of_two_layers_is_refused() {
    ranks(2, |all| {
        for along in [1, 2] {
            let config = PipelineConfig::new(along, LEAVES);
            let mut twice = layers();
            twice[COUNT - 1].parameters[0].name = NAMES[0];
            let made = PipelineParallelModel::new(all, &config, twice, &model_options(), None);
            fails(made.map(|_| ()), Status::InvalidArgument);
        }
    });
}

#[test]
fn a_target_comes_before_its_alias() {
    ranks(2, |all| {
        for along in [1, 2] {
            let config = PipelineConfig::new(along, LEAVES);
            let mut early = layers();
            early[0].parameters[0].tied_to = Some(NAMES[COUNT - 1]);
            let made = PipelineParallelModel::new(all, &config, early, &model_options(), None);
            fails(made.map(|_| ()), Status::InvalidArgument);
        }
    });
}

/// Along a V rank 0 has both of its layers.
#[test]
fn a_tied_parameter_may_have_placements() {
    for schedule in ["zbv", "1f1b"] {
        ranks(4, |all| {
            let config = PipelineConfig { schedule, ..PipelineConfig::new(2, LEAVES) };
            let mut layers = layers();
            for number in [0, COUNT - 1] {
                layers[number].parameters[0].placements = &[("tensor", Placement::Whole)];
            }
            layers[COUNT - 1].parameters[0].tied_to = Some(NAMES[0]);
            let axes = ParallelOptions { tensor: 2, ..ParallelOptions::default() };
            let whole =
                PipelineParallelModel::new(all, &config, layers, &model_options(), Some(&axes))
                    .unwrap();
            assert_eq!(whole.model.info().unwrap().parameters, 2);
        });
    }
}

#[test]
fn a_pipeline_has_at_least_one_rank() {
    ranks(1, |all| {
        for along in [0, trireme::REST, i32::MIN] {
            let config = PipelineConfig::new(along, 4);
            let made = PipelineParallelModel::new(all, &config, layers(), &model_options(), None);
            fails(made.map(|_| ()), Status::InvalidArgument);
        }
    });
}

#[test]
fn stages_share_a_parameter() {
    let (losses, expected) = alone(true);
    for (world_size, along) in [(1, 1), (2, 2), (4, 2)] {
        ranks(world_size, |all| {
            let config = PipelineConfig::new(along, LEAVES * along as u32 / world_size as u32);
            let mut layers = layers();
            layers[COUNT - 1].parameters[0].tied_to = Some(NAMES[0]);
            let mut whole =
                PipelineParallelModel::new(all, &config, layers, &model_options(), None).unwrap();
            let own: Vec<usize> = whole
                .own_stages()
                .unwrap()
                .iter()
                .flat_map(|stage| stage.layers.clone())
                .filter(|number| *number as usize + 1 < COUNT || along > 1)
                .map(|number| number as usize % (COUNT - 1))
                .collect();
            let values: Vec<f64> = own.iter().flat_map(|number| weights(*number)).collect();
            whole.model.set_parameters(Some(&values), 0).unwrap();
            let rule = OptimizerOptions::new(RuleKind::Sgd).learning_rate(RATE);
            let mut optimizer = Optimizer::new(&mut whole.model, &rule).unwrap();
            let mut trainer = whole.trainer(&mut optimizer, &TrainerOptions::default()).unwrap();
            for loss in &losses {
                let metrics = trainer.step(&mut whole.model, &mut optimizer, &()).unwrap();
                assert_eq!(metrics.loss, *loss);
            }
            let right: Vec<f64> = own
                .iter()
                .flat_map(|number| expected[number * WIDTH..][..WIDTH].to_vec())
                .collect();
            assert_eq!(whole.model.get_parameters::<f64>().unwrap(), right);
        });
    }
}

#[test]
fn one_rank_checks_the_name_of_the_schedule() {
    ranks(1, |all| {
        for (schedule, stages_per_rank) in [("zb-h9", 0), ("zb-h9", 1), ("", 0), ("1f1b\0", 1)] {
            let config =
                PipelineConfig { schedule, stages_per_rank, ..PipelineConfig::new(1, LEAVES) };
            fails(
                PipelineParallelModel::new(all, &config, layers(), &model_options(), None),
                Status::InvalidArgument,
            );
        }
        let config = PipelineConfig { schedule: "Interleaved1F1B", ..PipelineConfig::new(1, 4) };
        PipelineParallelModel::new(all, &config, layers(), &model_options(), None).unwrap();
    });
}

#[test]
fn micro_batches_of_the_caller_are_kept() {
    ranks(1, |all| {
        for (given, expected) in [(0, 3), (2, 2)] {
            let config = PipelineConfig::new(1, 3);
            let options = ModelOptions::new(Strategy::Zero1);
            let mut whole =
                PipelineParallelModel::new(all, &config, layers(), &options, None).unwrap();
            let rule = OptimizerOptions::new(RuleKind::Sgd);
            let mut optimizer = Optimizer::new(&mut whole.model, &rule).unwrap();
            let options = TrainerOptions { micro_batches: given, ..TrainerOptions::default() };
            let trainer = whole.trainer(&mut optimizer, &options).unwrap();
            assert_eq!(trainer.info().unwrap().micro_batches, expected);
        }
    });
}

#[test]
fn names_of_other_libraries() {
    for (name, own, stages) in ORDERS {
        let schedule = PipelineSchedule::new(&PipelineOptions {
            order: name.to_owned(),
            ranks: 2,
            micro_batches: 4,
            stages_per_rank: stages as u32,
            ..PipelineOptions::default()
        })
        .unwrap();
        assert_eq!(schedule.info().unwrap().order, Some(own));
    }
}

#[test]
fn what_does_not_fit_together() {
    ranks(2, |all| {
        let costs = [LayerCosts::default()];
        for config in [
            PipelineConfig { schedule: "zb-h9", ..PipelineConfig::new(2, LEAVES) },
            PipelineConfig { layer_costs: Some(&costs), ..PipelineConfig::new(2, LEAVES) },
            PipelineConfig {
                schedule: "zbv",
                stages_per_rank: 3,
                ..PipelineConfig::new(2, LEAVES)
            },
        ] {
            fails(
                PipelineParallelModel::new(all, &config, layers(), &model_options(), None),
                Status::InvalidArgument,
            );
        }
    });
}
