//! Dynamic loss scale: steps that overflow are skipped by all ranks.

mod support;

use support::{fails, ranks};
use trireme::{
    Communicator, Dtype, LossScale, Model, ModelOptions, Optimizer, OptimizerOptions, Parameter,
    RuleKind, Status, Strategy,
};

fn model(communicator: &Communicator) -> Model {
    let mut model = Model::new(communicator, &ModelOptions::new(Strategy::Zero2)).unwrap();
    model.add_parameter(&Parameter::new("a", Dtype::F32, &[2])).unwrap();
    model.add_parameter(&Parameter::new("b", Dtype::F32, &[1])).unwrap();
    model.seal().unwrap();
    model
}

fn rule() -> OptimizerOptions<'static> {
    OptimizerOptions::new(RuleKind::Sgd).learning_rate(1.0)
}

#[test]
fn a_step_that_overflows_is_skipped_by_all_ranks() {
    ranks(2, |communicator| {
        let mut model = model(communicator);
        let scale = LossScale { minimum_scale: 2.0, growth_interval: 2, ..LossScale::from(4.0) };
        let mut optimizer = Optimizer::new(&mut model, &rule().loss_scale(scale)).unwrap();
        let mut scales = Vec::new();
        for step in 0..5 {
            let scale = optimizer.loss_scale().unwrap() as f32;
            scales.push(scale);
            let bad = (step == 1 || step == 2) && communicator.rank() == 1;
            let last = if bad { f32::INFINITY } else { scale };
            model.accumulate_flat(&[scale, 2.0 * scale, last]).unwrap();
            if step == 2 {
                let error = fails(optimizer.step(&mut model), Status::InvalidState);
                assert!(error.message().contains("parameter 1 (\"b\"), as rank 1 handed it in"));
            } else {
                optimizer.step(&mut model).unwrap();
            }
            let info = optimizer.loss_scale_info().unwrap();
            assert_eq!(info.skipped, step == 1 || step == 2);
            assert_eq!(info.at_floor, step == 2);
            assert_eq!(info.parameter, info.skipped.then_some(1));
            assert_eq!(info.rank, info.skipped.then_some(1));
        }
        assert_eq!(scales, [4.0, 4.0, 2.0, 2.0, 2.0]);
        let info = optimizer.loss_scale_info().unwrap();
        assert_eq!((info.scale, info.skipped_steps), (4.0, 2));
        assert_eq!((info.clean_steps, info.overflows), (0, 0));
        assert_eq!(model.get_parameters::<f32>().unwrap(), [-3.0, -6.0, -3.0]);
    });
}

#[test]
fn every_number_has_its_effect_and_its_default() {
    ranks(1, |communicator| {
        let mut model = model(communicator);
        let plain = LossScale::from(4.0);
        for (scale, wanted) in [
            (LossScale::default(), [65536.0, 65536.0, 32768.0, 16384.0]),
            (plain, [4.0, 4.0, 2.0, 1.0]),
            (LossScale { growth_interval: 1, ..plain }, [4.0, 8.0, 4.0, 2.0]),
            (LossScale { growth_interval: 1, growth_factor: 4.0, ..plain }, [4.0, 16.0, 8.0, 4.0]),
            (
                LossScale { backoff_factor: 0.25, minimum_scale: 0.125, ..plain },
                [4.0, 4.0, 1.0, 0.25],
            ),
            (LossScale { hysteresis: 2, ..plain }, [4.0, 4.0, 4.0, 2.0]),
        ] {
            let mut optimizer = Optimizer::new(&mut model, &rule().loss_scale(scale)).unwrap();
            let mut scales = vec![optimizer.loss_scale().unwrap()];
            for last in [1.0, f32::INFINITY, f32::INFINITY] {
                model.accumulate_flat(&[1.0, 1.0, last]).unwrap();
                optimizer.step(&mut model).unwrap();
                scales.push(optimizer.loss_scale().unwrap());
            }
            assert_eq!(scales, wanted, "{scale:?}");
        }
    });
}

#[test]
fn a_number_is_the_first_scale() {
    let short = rule().loss_scale(8.0);
    let long = rule().loss_scale(LossScale { initial_scale: Some(8.0), ..LossScale::default() });
    assert_eq!(short.loss_scale, long.loss_scale);
    ranks(1, |communicator| {
        let optimizer = Optimizer::new(&mut model(communicator), &short).unwrap();
        assert_eq!(optimizer.loss_scale().unwrap(), 8.0);
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    ranks(1, |communicator| {
        let mut model = model(communicator);
        let plain = LossScale::from(4.0);
        for (scale, name) in [
            (LossScale::from(3.0), "options.loss_scale.initial_scale"),
            (LossScale::from(0.0), "options.loss_scale.initial_scale 0 is out of range"),
            (LossScale::from(-0.0), "options.loss_scale.initial_scale 0 is out of range"),
            (LossScale { growth_factor: 1.5, ..plain }, "options.loss_scale.growth_factor"),
            (LossScale { backoff_factor: 2.0, ..plain }, "options.loss_scale.backoff_factor"),
            (LossScale { minimum_scale: 8.0, ..plain }, "options.loss_scale.minimum_scale"),
        ] {
            let refused = Optimizer::new(&mut model, &rule().loss_scale(scale));
            let error = fails(refused, Status::InvalidArgument);
            assert!(error.message().contains(name), "{error}");
        }
        let optimizer = Optimizer::new(&mut model, &rule()).unwrap();
        assert_eq!(optimizer.loss_scale().unwrap(), 1.0);
        fails(optimizer.loss_scale_info(), Status::InvalidState);
    });
}
