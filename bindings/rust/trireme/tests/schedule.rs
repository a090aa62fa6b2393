//! Learning rates that follow a schedule.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use support::{fails, ranks};
use trireme::{
    schedule_factor, Communicator, ConstantSchedule, CosineSchedule, Dtype, LinearSchedule, Model,
    ModelOptions, OneCycleSchedule, Optimizer, OptimizerOptions, Parameter, ParameterGroup,
    RuleKind, Schedule, Status, Strategy, Update,
};

const GRADIENTS: [f32; 3] = [1.0, 2.0, 4.0];

fn model(communicator: &Communicator) -> Model {
    let mut model = Model::new(communicator, &ModelOptions::new(Strategy::Zero2)).unwrap();
    model.add_parameter(&Parameter::new("pair", Dtype::F32, &[2])).unwrap();
    let last = Parameter { parameter_group: 1, ..Parameter::new("last", Dtype::F32, &[1]) };
    model.add_parameter(&last).unwrap();
    model.seal().unwrap();
    model
}

fn groups() -> [ParameterGroup; 2] {
    let plain = ParameterGroup::default();
    [plain, ParameterGroup { rate_factor: Some(2.0), ..plain }]
}

fn optimizer(model: &mut Model) -> Optimizer {
    let groups = groups();
    let options = OptimizerOptions::new(RuleKind::Sgd).learning_rate(0.5).groups(&groups);
    Optimizer::new(model, &options).unwrap()
}

fn falling(total_steps: u64) -> LinearSchedule {
    LinearSchedule { total_steps, ..LinearSchedule::default() }
}

#[test]
fn factors_are_those_of_the_formulas() {
    let cosine = CosineSchedule {
        total_steps: 10,
        warm_up_steps: 2,
        end_factor: 0.2,
        ..CosineSchedule::default()
    };
    for step in 2..13_u64 {
        let part = ((step - 2) as f64 / 8.0).min(1.0);
        let expected = 0.2 + 0.8 * (1.0 + (std::f64::consts::PI * part).cos()) / 2.0;
        let factor = schedule_factor(cosine, step).unwrap();
        assert!((factor - expected).abs() < 1e-14, "step {step}: {factor}, not {expected}");
    }
    let linear = LinearSchedule { warm_up_steps: 4, from_zero: true, ..falling(8) };
    let cycle = OneCycleSchedule {
        total_steps: 9,
        pct_start: 5.0 / 9.0,
        div_factor: 2.0,
        final_div_factor: 4.0,
        linear_annealing: true,
    };
    let constant =
        ConstantSchedule { warm_up_steps: 4, warm_up_factor: 0.5, ..ConstantSchedule::default() };
    let (linear, cycle): (Schedule, Schedule) = (linear.into(), cycle.into());
    let constant = Schedule::from(constant);
    for (schedule, step, expected) in [
        (linear, 1, 0.25),
        (linear, 6, 0.5),
        (cycle, 0, 0.5),
        (cycle, 4, 1.0),
        (cycle, 99, 0.125),
        (constant, 2, 0.75),
        (constant, 4, 1.0),
    ] {
        assert_eq!(schedule_factor(schedule, step).unwrap(), expected, "{schedule:?} {step}");
    }
}

#[test]
fn options_that_mean_nothing_are_refused() {
    let constant = ConstantSchedule { warm_up_factor: 0.5, ..ConstantSchedule::default() };
    let cosine = CosineSchedule { total_steps: 3, end_factor: 1.5, ..CosineSchedule::default() };
    let cycle = OneCycleSchedule { total_steps: 3, pct_start: 2.0, ..OneCycleSchedule::default() };
    for schedule in [falling(0).into(), constant.into(), cosine.into(), Schedule::from(cycle)] {
        fails(schedule_factor(schedule, 0), Status::InvalidArgument);
    }
}

#[test]
fn training_follows_a_schedule() {
    for own in [false, true] {
        ranks(2, |communicator| {
            let mut model = model(communicator);
            let mut optimizer = optimizer(&mut model);
            if own {
                optimizer.set_own_schedule(|step| Ok(1.0 - step as f64 / 4.0)).unwrap();
            } else {
                optimizer.set_schedule(falling(4)).unwrap();
            }
            for rate in [0.5, 0.375, 0.25] {
                assert_eq!(optimizer.step_rate().unwrap(), rate);
                assert_eq!(optimizer.learning_rate().unwrap(), 0.5);
                model.accumulate_flat(&GRADIENTS).unwrap();
                optimizer.step(&mut model).unwrap();
            }
            optimizer.set_group_rate_factor(1, 0.0).unwrap();
            optimizer.clear_schedule().unwrap();
            assert_eq!(optimizer.step_rate().unwrap(), 0.5);
            model.accumulate_flat(&GRADIENTS).unwrap();
            optimizer.step(&mut model).unwrap();
            assert_eq!(model.get_parameters::<f32>().unwrap(), [-1.625, -3.25, -9.0]);
        });
    }
}

#[test]
fn a_closure_that_fails_may_be_asked_again() {
    ranks(2, |communicator| {
        let mut model = model(communicator);
        let mut optimizer = optimizer(&mut model);
        let broken = Arc::new(AtomicBool::new(communicator.rank() == 0));
        let seen = broken.clone();
        let mut calls = 0;
        let own = move |_| {
            calls += 1;
            if !seen.load(Ordering::Relaxed) {
                return Ok(1.0);
            }
            assert!(calls % 2 == 1, "an even call");
            Err("an odd call".to_owned())
        };
        optimizer.set_own_schedule(own).unwrap();
        model.accumulate_flat(&GRADIENTS).unwrap();
        if broken.load(Ordering::Relaxed) {
            let error = optimizer.step(&mut model).unwrap_err();
            assert_eq!(error.status(), Status::Callback);
            assert!(error.to_string().contains("an odd call"), "{error}");
            let error = optimizer.step_rate().unwrap_err();
            assert!(error.to_string().contains("panicked: an even call"), "{error}");
            broken.store(false, Ordering::Relaxed);
        }
        optimizer.step(&mut model).unwrap();
        assert_eq!(model.get_parameters::<f32>().unwrap(), [-0.5, -1.0, -4.0]);
    });
}

#[test]
fn a_closure_fails_the_call_that_begins_the_pass_and_no_later_one() {
    ranks(2, |communicator| {
        let options = ModelOptions::new(Strategy::Zero2).update_in_backward(true);
        let mut model = Model::new(communicator, &options).unwrap();
        model.add_parameter(&Parameter::new("all", Dtype::F32, &[3])).unwrap();
        model.seal().unwrap();
        let rule = |_: &mut Update<'_>| Err("no update".to_owned());
        let options = OptimizerOptions::default();
        let mut optimizer = Optimizer::with_rule(&mut model, &options, 0, rule).unwrap();
        let mut calls = 0;
        let own = move |_| {
            calls += 1;
            assert!(calls != 2, "the second call");
            if calls == 1 {
                Err("the first call".to_owned())
            } else {
                Ok(1.0)
            }
        };
        optimizer.set_own_schedule(own).unwrap();
        let error = fails(model.begin_backward(), Status::Callback);
        assert!(error.message().ends_with(": the first call"), "{error}");
        let error = fails(model.accumulate_flat(&GRADIENTS), Status::Callback);
        assert!(error.message().ends_with(": panicked: the second call"), "{error}");
        communicator.barrier().unwrap();
        model.accumulate_flat(&GRADIENTS).unwrap();
        let error = fails(optimizer.step(&mut model), Status::Callback);
        assert!(error.message().ends_with(": no update"), "{error}");
    });
}

#[test]
fn ranks_with_other_factors_are_a_mismatch() {
    ranks(2, |communicator| {
        let mut model = model(communicator);
        let mut optimizer = optimizer(&mut model);
        let own = f64::from(communicator.rank() + 1);
        optimizer.set_own_schedule(move |_| Ok(own)).unwrap();
        model.accumulate_flat(&GRADIENTS).unwrap();
        fails(optimizer.step(&mut model), Status::Mismatch);
    });
}

#[test]
fn a_rule_of_ones_own_has_rates_by_group() {
    ranks(2, |communicator| {
        let mut model = model(communicator);
        let groups = groups();
        let options = OptimizerOptions::default().learning_rate(0.5).groups(&groups);
        let rule = |update: &mut Update<'_>| {
            let rate = update.learning_rate() as f32;
            let pieces = update.pieces::<f32>()?;
            for (parameter, gradient) in pieces.parameters.iter_mut().zip(pieces.gradients) {
                *parameter -= rate * gradient;
            }
            Ok(())
        };
        let mut optimizer = Optimizer::with_rule(&mut model, &options, 0, rule).unwrap();
        optimizer.set_schedule(falling(2)).unwrap();
        for _ in 0..2 {
            model.accumulate_flat(&GRADIENTS).unwrap();
            optimizer.step(&mut model).unwrap();
        }
        assert_eq!(model.get_parameters::<f32>().unwrap(), [-0.75, -1.5, -6.0]);
    });
}

#[test]
fn wrong_calls_are_refused() {
    ranks(1, |communicator| {
        let mut model = model(communicator);
        let mut optimizer = optimizer(&mut model);
        for (group, factor) in [(2, 1.0), (0, -1.0), (0, f64::NAN)] {
            fails(optimizer.set_group_rate_factor(group, factor), Status::InvalidArgument);
        }
        optimizer.set_schedule(falling(4)).unwrap();
        fails(optimizer.set_schedule(falling(0)), Status::InvalidArgument);
        model.accumulate_flat(&GRADIENTS).unwrap();
        optimizer.step(&mut model).unwrap();
        assert_eq!(optimizer.step_rate().unwrap(), 0.375);
        let own = |_| Ok(-1.0);
        optimizer.set_own_schedule(own).unwrap();
        fails(optimizer.step_rate(), Status::Callback);
        drop(optimizer);
        let plain = ParameterGroup::default();
        let groups = [plain, ParameterGroup { weight_decay: Some(0.5), ..plain }];
        let options = OptimizerOptions::default().groups(&groups);
        let refused = Optimizer::with_rule(&mut model, &options, 0, |_| Ok(()));
        fails(refused, Status::InvalidArgument);
    });
}
