//! Whole training steps over layers of the caller.

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use support::{fails, ranks};
use trireme::{
    Bf16, Buckets, Communicator, Dtype, Layer, LayerCall, LayerOptions, LayerPhase, LinearSchedule,
    Model, ModelOptions, Offload, Optimizer, OptimizerOptions, Parameter, RuleKind, Status,
    Strategy, Trainer, TrainerOptions, Units, Update,
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
    /// Layers that look at this write nothing.
    silent: bool,
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
    let rule = OptimizerOptions::new(RuleKind::Sgd).learning_rate(RATE);
    let optimizer = Optimizer::new(&mut model, &rule).unwrap();
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
fn activations_in_a_file_give_the_same_bits() {
    ranks(2, |communicator| {
        let folder = std::env::temp_dir();
        let train = |path: Option<&std::path::Path>| {
            let (mut model, mut optimizer) = model(communicator, Strategy::Zero3, 4);
            let offload = path.map(Offload::from);
            let options = TrainerOptions { offload, ..TrainerOptions::default() };
            let mut trainer =
                Trainer::new(&mut model, &mut optimizer, &options, layers(Hidden::default()))
                    .unwrap();
            for _ in 0..STEPS {
                trainer.step(&mut model, &mut optimizer, &Samples::default()).unwrap();
            }
            let window = trainer.info().unwrap().planned_window_bytes;
            match trainer.offload_info() {
                Ok(info) => {
                    assert_eq!(Some(info.path.as_ref()), path);
                    assert_eq!((info.buffer_bytes, info.failed_writes), (window, 0));
                    assert!(info.block_bytes > 0);
                }
                Err(error) => {
                    assert_eq!((error.status(), path), (Status::InvalidState, None));
                    assert_eq!(window, 0);
                }
            }
            model.get_parameters::<f64>().unwrap()
        };
        assert_eq!(train(None), train(Some(&folder)));
        let (mut model, mut optimizer) = model(communicator, Strategy::Zero3, 4);
        let whole = Offload::new(&folder);
        for (offload, status) in [
            (Offload { ratio: 0.5, ..whole }, Status::InvalidArgument),
            (Offload::from(""), Status::InvalidArgument),
            (Offload::from("a\0b"), Status::InvalidArgument),
            (Offload { buffer_bytes: 1, ..whole }, Status::OutOfMemory),
        ] {
            let options = TrainerOptions { offload: Some(offload), ..TrainerOptions::default() };
            let made =
                Trainer::new(&mut model, &mut optimizer, &options, layers(Hidden::default()));
            assert_eq!(made.err().map(|error| error.status()), Some(status));
        }
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
                    let fails = mine.then_some((phase, text));
                    let broken = Samples { fails, ..Samples::default() };
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
fn why_a_layer_failed_comes_out_of_evaluate() {
    let (losses, _) = alone(4, 1);
    for text in ["no such sample", "panic"] {
        ranks(2, |communicator| {
            let (mut model, mut optimizer) = model(communicator, Strategy::Zero3, 4);
            let options = TrainerOptions::default();
            let mut trainer =
                Trainer::new(&mut model, &mut optimizer, &options, layers(Hidden::default()))
                    .unwrap();
            let mine = communicator.rank() == 0;
            for _ in 0..2 {
                let fails = mine.then_some((LayerPhase::Evaluate, text));
                let broken = Samples { fails, ..Samples::default() };
                let error = trainer.evaluate(&mut model, &mut optimizer, &broken).unwrap_err();
                assert_eq!(error.status(), Status::Callback);
                let message = error.to_string();
                assert!(message.contains("hidden") && message.contains("rank 0"), "{message}");
                assert_eq!(message.contains("no such sample"), mine, "{message}");
            }
            let whole = Samples::default();
            near(&[trainer.evaluate(&mut model, &mut optimizer, &whole).unwrap()], &losses);
            near(&[trainer.step(&mut model, &mut optimizer, &whole).unwrap().loss], &losses);
        });
    }
}

/// Asks for the memory again when all is written.
struct Again<L>(L);

impl<L: Layer<Samples>> Layer<Samples> for Again<L> {
    fn forward(&mut self, call: &mut LayerCall<'_, Samples>) -> Answer {
        self.0.forward(call)?;
        call.memory::<f64>().map(drop)
    }

    fn backward(&mut self, call: &mut LayerCall<'_, Samples>) -> Answer {
        self.0.backward(call)?;
        call.memory::<f64>().map(drop)
    }
}

#[test]
fn memory_may_be_asked_for_again() {
    let (losses, expected) = alone(4, 2);
    ranks(2, |communicator| {
        let (mut model, mut optimizer) = model(communicator, Strategy::Zero3, 4);
        let mut again = layers(Hidden::default());
        again[0].1 = Box::new(Again(Hidden::default()));
        again[1].1 = Box::new(Again(Last));
        let options = TrainerOptions::default();
        let mut trainer = Trainer::new(&mut model, &mut optimizer, &options, again).unwrap();
        for loss in &losses {
            let metrics = trainer.step(&mut model, &mut optimizer, &Samples::default()).unwrap();
            near(&[metrics.loss], &[*loss]);
        }
        near(&model.get_parameters::<f64>().unwrap(), &expected);
    });
}

/// Does not even ask for the memory that it would write, where the samples say so.
struct Silent<L>(L);

impl<L: Layer<Samples>> Layer<Samples> for Silent<L> {
    fn forward(&mut self, call: &mut LayerCall<'_, Samples>) -> Answer {
        let data = call.batch();
        if !data.silent {
            return self.0.forward(call);
        }
        if call.layer() == 1 {
            let memory = call.memory::<f64>()?;
            assert!(memory.input.len() == HIDDEN && memory.input.iter().all(|value| *value == 0.0));
            call.set_loss(data.target(0))?; // the batch outlives what the call has lent
        }
        Ok(())
    }

    fn backward(&mut self, call: &mut LayerCall<'_, Samples>) -> Answer {
        if !call.batch().silent {
            return self.0.backward(call);
        }
        if call.layer() == 0 {
            let memory = call.memory::<f64>()?;
            assert!(memory.output_gradient.len() == HIDDEN && memory.output.len() == HIDDEN);
            assert!(memory.output_gradient.iter().all(|value| *value == 0.0));
            assert!(memory.output.iter().all(|value| *value == 0.0));
        }
        Ok(())
    }
}

#[test]
fn what_a_layer_does_not_write_is_zero_where_the_options_say_so() {
    let (losses, expected) = alone(4, 2);
    for strategy in [Strategy::DataParallel, Strategy::Zero3] {
        ranks(2, |communicator| {
            let (mut model, mut optimizer) = model(communicator, strategy, 4);
            let mut silent = layers(Hidden::default());
            silent[0].1 = Box::new(Silent(Hidden::default()));
            silent[1].1 = Box::new(Silent(Last));
            let options = TrainerOptions { zero_gradients: true, ..TrainerOptions::default() };
            let mut trainer = Trainer::new(&mut model, &mut optimizer, &options, silent).unwrap();
            let whole = Samples::default();
            let step = trainer.step(&mut model, &mut optimizer, &whole).unwrap();
            near(&[step.loss], &losses[..1]);
            let before = model.get_parameters::<f64>().unwrap();
            let none = Samples { silent: true, ..Samples::default() };
            let step = trainer.step(&mut model, &mut optimizer, &none).unwrap();
            near(&[step.loss], &[whole.target(0)]);
            assert_eq!(model.get_parameters::<f64>().unwrap(), before); // gradients of 0
            let step = trainer.step(&mut model, &mut optimizer, &whole).unwrap();
            near(&[step.loss], &losses[1..]);
            near(&model.get_parameters::<f64>().unwrap(), &expected);
        });
    }
}

/// Of parameters of 16 bits, whose gradients have 32: written for even batches only.
struct Narrow;

impl Layer<u32> for Narrow {
    fn forward(&mut self, call: &mut LayerCall<'_, u32>) -> Answer {
        call.set_loss(1.0)
    }

    fn backward(&mut self, call: &mut LayerCall<'_, u32>) -> Answer {
        if *call.batch() % 2 == 0 {
            let mut memory = call.memory::<Bf16>()?;
            assert_eq!((memory.gradients[0].len(), memory.gradients[1].len()), (7, 0));
            memory.gradients[0].fill(1.0);
        }
        Ok(())
    }
}

#[test]
fn gradients_of_narrow_parameters_that_are_not_written_are_named_or_zero() {
    let bf16 = |value: f32| Bf16((value.to_bits() >> 16) as u16);
    for strategy in [Strategy::DataParallel, Strategy::Zero3] {
        ranks(2, |communicator| {
            let mut model = Model::new(communicator, &ModelOptions::new(strategy)).unwrap();
            model.add_parameter(&Parameter::new("w", Dtype::Bf16, &[7])).unwrap();
            let frozen = Parameter { frozen: true, ..Parameter::new("f", Dtype::Bf16, &[3]) };
            model.add_parameter(&frozen).unwrap();
            model.seal().unwrap();
            model.set_parameters(Some(&[bf16(2.0); 10]), 0).unwrap();
            let rule = OptimizerOptions::new(RuleKind::Sgd).learning_rate(RATE);
            let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
            let layers = || -> Vec<(_, Box<dyn Layer<u32>>)> {
                let place =
                    LayerOptions { name: "all", parameters: 0..2, ..LayerOptions::default() };
                vec![(place, Box::new(Narrow))]
            };
            let mut options = TrainerOptions::default();
            let mut trainer = Trainer::new(&mut model, &mut optimizer, &options, layers()).unwrap();
            let error = trainer.step(&mut model, &mut optimizer, &1).unwrap_err();
            assert_eq!(error.status(), Status::Callback);
            let message = error.to_string();
            let wanted = "layer 0 (\"all\") did not write 1 of its 1 gradient: \"w\"";
            assert!(message.contains(wanted), "{message}");
            drop(trainer);
            options.zero_gradients = true;
            let mut trainer = Trainer::new(&mut model, &mut optimizer, &options, layers()).unwrap();
            for (batch, expected) in [(0, 1.75), (1, 1.75), (2, 1.5), (3, 1.5)] {
                trainer.step(&mut model, &mut optimizer, &batch).unwrap();
                let found = model.get_parameters::<Bf16>().unwrap();
                assert_eq!(found[..7], [bf16(expected); 7]);
                assert_eq!(found[7..], [bf16(2.0); 3]);
            }
        });
    }
}

#[test]
fn all_ranks_stop_after_the_same_step() {
    let asked = AtomicBool::new(false);
    ranks(2, |communicator| {
        let (mut model, mut optimizer) = model(communicator, Strategy::Zero1, 2);
        optimizer
            .set_schedule(LinearSchedule { total_steps: 8, ..LinearSchedule::default() })
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
            call.memory::<f64>()?.gradients[1].fill(1.0);
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
        assert!(error.message().contains("left out 1 of its 2 gradients: \"w1\""), "{error}");
        let (mut other, mut its) = model(communicator, Strategy::Zero3, 2);
        let step = trainer.step(&mut other, &mut its, &Samples::default());
        fails(step, Status::InvalidArgument);
        fails(make(&mut other, &mut optimizer, Vec::new()), Status::InvalidArgument);
    });
}

/// Tells when a closure that owns it is freed.
struct Alive(Arc<AtomicBool>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
fn closures_of_an_optimizer_live_as_long_as_its_trainer() {
    for strategy in Strategy::ALL {
        ranks(1, |communicator| {
            // Two buckets are in flight, so the first ones are updated in backward.
            let options = support::options(communicator, strategy)
                .update_in_backward(true)
                .units(Units { minimum_bytes: 1, ..Units::default() })
                .buckets(Buckets { bytes: 1, ..Buckets::default() });
            let mut model = Model::new(communicator, &options).unwrap();
            for name in ["a", "b", "c", "d"] {
                model.add_parameter(&Parameter::new(name, Dtype::F64, &[1])).unwrap();
            }
            model.seal().unwrap();
            let flags = [(); 2].map(|()| Arc::new(AtomicBool::new(true)));
            let calls = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
            let (alive, updates) = (Alive(flags[0].clone()), calls[0].clone());
            let rule = move |_: &mut Update<'_>| {
                assert!(alive.0.load(Ordering::Relaxed));
                updates.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            let options = OptimizerOptions::default();
            let mut optimizer = Optimizer::with_rule(&mut model, &options, 0, rule).unwrap();
            let (alive, asked) = (Alive(flags[1].clone()), calls[1].clone());
            let schedule = move |_| {
                assert!(alive.0.load(Ordering::Relaxed));
                asked.fetch_add(1, Ordering::Relaxed);
                Ok(1.0)
            };
            optimizer.set_own_schedule(schedule).unwrap();
            let options = TrainerOptions::default();
            let layer = LayerOptions {
                name: "last",
                parameters: 0..4,
                saved_bytes: 8,
                ..LayerOptions::default()
            };
            let layers: Vec<(_, Box<dyn Layer<Samples>>)> = vec![(layer, Box::new(Last))];
            let trainer = Trainer::new(&mut model, &mut optimizer, &options, layers).unwrap();
            drop(optimizer);
            let alive =
                || flags.iter().map(|flag| flag.load(Ordering::Relaxed)).collect::<Vec<_>>();
            assert_eq!(alive(), [true; 2]);
            model.accumulate_flat(&[1.0_f64; 4]).unwrap();
            assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) > 0));
            drop(trainer);
            assert_eq!(alive(), [false; 2]);
            fails(model.accumulate_flat(&[1.0_f64; 4]), Status::InvalidState);
        });
    }
}
