//! Whole training steps over layers of the caller.

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use support::{fails, ranks};
use trireme::{
    Communicator, Dtype, Kind, Layer, LayerCall, LayerOptions, LayerPhase, Model, ModelOptions,
    Optimizer, OptimizerOptions, Parameter, ScheduleKind, ScheduleOptions, Status, Strategy,
    Trainer, TrainerOptions,
};

const INPUTS: usize = 3;
const HIDDEN: usize = 4;
const STEPS: usize = 5;
const RATE: f64 = 0.25;
const BIAS: usize = HIDDEN * INPUTS;
const SECOND: usize = BIAS + HIDDEN;
const SECOND_BIAS: usize = SECOND + HIDDEN;

type Answer = Result<(), String>;

/// Samples by their number; what fails in which phase of the first layer.
#[derive(Default)]
struct Samples {
    fails: Option<(LayerPhase, &'static str)>,
}

impl Samples {
    fn x(&self, number: u32) -> [f64; INPUTS] {
        std::array::from_fn(|i| f64::from(number * 3 + i as u32).sin())
    }

    fn target(&self, number: u32) -> f64 {
        f64::from(number).cos() * 0.5
    }
}

#[derive(Default)]
struct Hidden {
    recomputed: Arc<AtomicUsize>,
}

fn trouble(call: &LayerCall<'_, Samples>) -> Answer {
    match call.batch().fails {
        Some((phase, text)) if phase == call.phase() => {
            assert!(text != "panic", "no such sample");
            Err(text.to_owned())
        }
        _ => Ok(()),
    }
}

impl Layer<Samples> for Hidden {
    fn forward(&mut self, call: &mut LayerCall<'_, Samples>) -> Answer {
        trouble(call)?;
        if call.phase() == LayerPhase::Recompute {
            self.recomputed.fetch_add(1, Ordering::Relaxed);
        }
        let x = call.batch().x(call.leaf());
        let memory = call.memory::<f64>()?;
        let (w, b) = (memory.parameters[0], memory.parameters[1]);
        for i in 0..HIDDEN {
            let sum: f64 = (0..INPUTS).map(|j| w[i * INPUTS + j] * x[j]).sum();
            memory.output[i] = (sum + b[i]).tanh();
        }
        Ok(())
    }

    fn backward(&mut self, call: &mut LayerCall<'_, Samples>) -> Answer {
        trouble(call)?;
        let x = call.batch().x(call.leaf());
        let mut memory = call.memory::<f64>()?;
        for i in 0..HIDDEN {
            let h = memory.output[i];
            let before = memory.output_gradient[i] * (1.0 - h * h);
            memory.gradients[1][i] = before;
            for j in 0..INPUTS {
                memory.gradients[0][i * INPUTS + j] = before * x[j];
            }
        }
        Ok(())
    }
}

struct Last;

impl Layer<Samples> for Last {
    fn forward(&mut self, call: &mut LayerCall<'_, Samples>) -> Answer {
        let target = call.batch().target(call.leaf());
        let memory = call.memory::<f64>()?;
        let (w, b) = (memory.parameters[0], memory.parameters[1]);
        let sum: f64 = (0..HIDDEN).map(|i| w[i] * memory.input[i]).sum();
        let delta = sum + b[0] - target;
        memory.saved[0] = delta;
        if call.phase() != LayerPhase::Recompute {
            call.set_loss(delta * delta / 2.0)?;
        }
        Ok(())
    }

    fn backward(&mut self, call: &mut LayerCall<'_, Samples>) -> Answer {
        let scale = call.loss_scale();
        let mut memory = call.memory::<f64>()?;
        let delta = memory.saved[0] * scale;
        memory.gradients[1][0] = delta;
        for i in 0..HIDDEN {
            memory.gradients[0][i] = delta * memory.input[i];
            memory.input_gradient[i] = delta * memory.parameters[0][i];
        }
        Ok(())
    }
}

fn first_weights() -> Vec<f64> {
    (0..=SECOND_BIAS).map(|i| (i as f64 * 1.7).sin()).collect()
}

/// Losses and parameters by plain loops over the whole batch.
fn alone(leaves: u32, steps: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut p, mut losses, data) = (first_weights(), Vec::new(), Samples::default());
    for _ in 0..steps {
        let (mut gradient, mut loss) = (vec![0.0; p.len()], 0.0);
        for leaf in 0..leaves {
            let x = data.x(leaf);
            let h: [f64; HIDDEN] = std::array::from_fn(|i| {
                ((0..INPUTS).map(|j| p[i * INPUTS + j] * x[j]).sum::<f64>() + p[BIAS + i]).tanh()
            });
            let sum: f64 = (0..HIDDEN).map(|i| p[SECOND + i] * h[i]).sum();
            let delta = sum + p[SECOND_BIAS] - data.target(leaf);
            loss += delta * delta / 2.0;
            gradient[SECOND_BIAS] += delta;
            for i in 0..HIDDEN {
                gradient[SECOND + i] += delta * h[i];
                let before = delta * p[SECOND + i] * (1.0 - h[i] * h[i]);
                gradient[BIAS + i] += before;
                for j in 0..INPUTS {
                    gradient[i * INPUTS + j] += before * x[j];
                }
            }
        }
        losses.push(loss / f64::from(leaves));
        for (value, g) in p.iter_mut().zip(gradient) {
            *value -= RATE * g / f64::from(leaves);
        }
    }
    (losses, p)
}

fn near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (one, other) in found.iter().zip(expected) {
        assert!((one - other).abs() < 1e-12, "{found:?} is not {expected:?}");
    }
}

fn model(communicator: &Communicator, strategy: Strategy, leaves: u32) -> (Model, Optimizer) {
    let options = ModelOptions { leaves, ..ModelOptions::new(strategy) };
    let mut model = Model::new(communicator, &options).unwrap();
    for (name, shape) in
        [("w1", &[HIDDEN, INPUTS][..]), ("b1", &[HIDDEN]), ("w2", &[HIDDEN]), ("b2", &[1])]
    {
        let shape: Vec<u64> = shape.iter().map(|extent| *extent as u64).collect();
        model.add_parameter(&Parameter::new(name, Dtype::F64, &shape)).unwrap();
    }
    model.seal().unwrap();
    model.set_parameters(Some(&first_weights()[..]), 0).unwrap();
    let rule = OptimizerOptions { learning_rate: RATE, ..OptimizerOptions::default() };
    let optimizer = Optimizer::new(&mut model, Kind::Sgd, &rule).unwrap();
    (model, optimizer)
}

fn layers(hidden: Hidden) -> Vec<(LayerOptions<'static>, Box<dyn Layer<Samples>>)> {
    let first = LayerOptions {
        name: "hidden",
        parameters: 0..2,
        output_bytes: HIDDEN * 8,
        ..LayerOptions::default()
    };
    let last =
        LayerOptions { name: "last", parameters: 2..4, saved_bytes: 8, ..LayerOptions::default() };
    vec![(first, Box::new(hidden)), (last, Box::new(Last))]
}

#[test]
fn training_is_that_of_plain_loops() {
    let (losses, expected) = alone(4, STEPS);
    for world_size in 1..=3 {
        for strategy in [Strategy::DataParallel, Strategy::Zero1, Strategy::Zero3] {
            ranks(world_size, |communicator| {
                let (mut model, mut optimizer) = model(communicator, strategy, 4);
                let options = TrainerOptions::default();
                let mut trainer =
                    Trainer::new(&mut model, &mut optimizer, &options, layers(Hidden::default()))
                        .unwrap();
                let data = Samples::default();
                near(&[trainer.evaluate(&mut model, &mut optimizer, &data).unwrap()], &losses[..1]);
                for (step, loss) in losses.iter().enumerate() {
                    let metrics = trainer.step(&mut model, &mut optimizer, &data).unwrap();
                    near(&[metrics.loss], &[*loss]);
                    assert_eq!((metrics.step, metrics.micro_batches), (step as u64 + 1, 4));
                    assert_eq!((metrics.learning_rate, metrics.gradient_norm), (RATE, -1.0));
                    assert!(!metrics.stop && !metrics.skipped);
                }
                near(&model.get_parameters::<f64>().unwrap(), &expected);
            });
        }
    }
}

#[test]
fn checkpoints_give_the_same_bits() {
    ranks(2, |communicator| {
        let train = |checkpoint_every| {
            let (mut model, mut optimizer) = model(communicator, Strategy::Zero3, 4);
            let options = TrainerOptions { checkpoint_every, ..TrainerOptions::default() };
            let hidden = Hidden::default();
            let recomputed = hidden.recomputed.clone();
            let mut trainer =
                Trainer::new(&mut model, &mut optimizer, &options, layers(hidden)).unwrap();
            for _ in 0..STEPS {
                trainer.step(&mut model, &mut optimizer, &Samples::default()).unwrap();
            }
            let info = trainer.info().unwrap();
            assert_eq!((info.layers, info.recomputed > 0), (2, checkpoint_every > 0));
            assert_eq!(recomputed.load(Ordering::Relaxed) > 0, checkpoint_every > 0);
            model.get_parameters::<f64>().unwrap()
        };
        assert_eq!(train(0), train(1));
    });
}

#[test]
fn a_layer_that_fails_fails_on_all_ranks_and_training_goes_on() {
    let (losses, expected) = alone(4, 1);
    for phase in [LayerPhase::Forward, LayerPhase::Backward] {
        for text in ["no such sample", "panic"] {
            ranks(2, |communicator| {
                let (mut model, mut optimizer) = model(communicator, Strategy::Zero3, 4);
                let options = TrainerOptions::default();
                let mut trainer =
                    Trainer::new(&mut model, &mut optimizer, &options, layers(Hidden::default()))
                        .unwrap();
                let mine = communicator.rank() == 1;
                for _ in 0..2 {
                    let broken = Samples { fails: mine.then_some((phase, text)) };
                    let error = trainer.step(&mut model, &mut optimizer, &broken).unwrap_err();
                    assert_eq!(error.status(), Status::Callback);
                    let message = error.to_string();
                    assert!(message.contains("hidden") && message.contains("rank 1"), "{message}");
                    assert_eq!(message.contains("no such sample"), mine, "{message}");
                    assert_eq!(message.contains("panicked"), mine && text == "panic", "{message}");
                }
                let whole = Samples::default();
                let metrics = trainer.step(&mut model, &mut optimizer, &whole).unwrap();
                near(&[metrics.loss], &losses);
                near(&model.get_parameters::<f64>().unwrap(), &expected);
            });
        }
    }
}

#[test]
fn all_ranks_stop_after_the_same_step() {
    let asked = AtomicBool::new(false);
    ranks(2, |communicator| {
        let (mut model, mut optimizer) = model(communicator, Strategy::Zero1, 2);
        optimizer
            .set_schedule(
                ScheduleKind::Linear,
                &ScheduleOptions { total_steps: 8, ..ScheduleOptions::default() },
            )
            .unwrap();
        let options = TrainerOptions::default();
        let mut trainer =
            Trainer::new(&mut model, &mut optimizer, &options, layers(Hidden::default())).unwrap();
        let data = Samples::default();
        for step in 0..2 {
            let metrics = trainer.step(&mut model, &mut optimizer, &data).unwrap();
            assert!(!metrics.stop);
            assert_eq!(metrics.learning_rate, RATE * (1.0 - f64::from(step) / 8.0));
        }
        let stopper = trainer.stopper();
        if communicator.rank() == 1 {
            std::thread::scope(|scope| {
                scope.spawn(|| stopper.request_stop().unwrap());
            });
            asked.store(true, Ordering::Relaxed);
        }
        assert!(trainer.step(&mut model, &mut optimizer, &data).unwrap().stop);
        drop(trainer);
        fails(stopper.request_stop(), Status::InvalidHandle);
    });
    assert!(asked.load(Ordering::Relaxed));
}

#[test]
fn wrong_calls_are_refused() {
    struct Wrong;
    impl Layer<Samples> for Wrong {
        fn forward(&mut self, call: &mut LayerCall<'_, Samples>) -> Answer {
            assert!(call.memory::<f32>().is_err());
            assert!(call.no_gradient(0).is_err());
            assert!(call.set_loss(1.0).is_err());
            Ok(())
        }
        fn backward(&mut self, call: &mut LayerCall<'_, Samples>) -> Answer {
            assert!(call.no_gradient(2).is_err());
            call.no_gradient(0)
        }
    }
    ranks(1, |communicator| {
        let (mut one, mut optimizer) = model(communicator, Strategy::Zero3, 2);
        let options = TrainerOptions::default();
        let make = |model: &mut Model, optimizer: &mut Optimizer, layers| {
            Trainer::<Samples>::new(model, optimizer, &options, layers)
        };
        fails(make(&mut one, &mut optimizer, Vec::new()), Status::InvalidArgument);
        let mut some = layers(Hidden::default());
        some.remove(0);
        fails(make(&mut one, &mut optimizer, some), Status::InvalidArgument);
        let mut wrong = layers(Hidden::default());
        wrong[0].1 = Box::new(Wrong);
        let mut trainer = make(&mut one, &mut optimizer, wrong).unwrap();
        let error =
            fails(trainer.step(&mut one, &mut optimizer, &Samples::default()), Status::Callback);
        assert!(error.message().contains("left out a gradient"), "{error}");
        let (mut other, mut its) = model(communicator, Strategy::Zero3, 2);
        let step = trainer.step(&mut other, &mut its, &Samples::default());
        fails(step, Status::InvalidArgument);
        fails(make(&mut other, &mut optimizer, Vec::new()), Status::InvalidArgument);
    });
}
