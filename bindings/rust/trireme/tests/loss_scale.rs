//! Dynamic loss scale: steps that overflow are skipped by all ranks.

mod support;

use support::{fails, ranks};
use trireme::{
    Communicator, Dtype, Kind, LossScale, Model, ModelOptions, Optimizer, OptimizerOptions,
    Parameter, Status, Strategy,
};

fn model(communicator: &Communicator) -> Model {
    let mut model = Model::new(communicator, &ModelOptions::new(Strategy::Zero2)).unwrap();
    model.add_parameter(&Parameter::new("a", Dtype::F32, &[2])).unwrap();
    model.add_parameter(&Parameter::new("b", Dtype::F32, &[1])).unwrap();
    model.seal().unwrap();
    model
}

fn rule(loss_scale: LossScale) -> OptimizerOptions {
    OptimizerOptions { learning_rate: 1.0, loss_scale, ..OptimizerOptions::default() }
}

#[test]
fn a_step_that_overflows_is_skipped_by_all_ranks() {
    ranks(2, |communicator| {
        let mut model = model(communicator);
        let scale = LossScale { first: 4.0, floor: 2.0, window: 2, ..LossScale::default() };
        let mut optimizer = Optimizer::new(&mut model, Kind::Sgd, &rule(scale)).unwrap();
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
fn what_does_not_fit_is_refused() {
    ranks(1, |communicator| {
        let mut model = model(communicator);
        for scale in [
            LossScale { first: 3.0, ..LossScale::default() },
            LossScale { first: 4.0, growth: 1.5, ..LossScale::default() },
            LossScale { first: 4.0, backoff: 2.0, ..LossScale::default() },
            LossScale { first: 4.0, floor: 8.0, ..LossScale::default() },
            LossScale { window: 4, ..LossScale::default() },
            LossScale { hysteresis: 4, ..LossScale::default() },
        ] {
            let refused = Optimizer::new(&mut model, Kind::Sgd, &rule(scale));
            fails(refused, Status::InvalidArgument);
        }
        let none = LossScale::default();
        let optimizer = Optimizer::new(&mut model, Kind::Sgd, &rule(none)).unwrap();
        assert_eq!(optimizer.loss_scale().unwrap(), 1.0);
        fails(optimizer.loss_scale_info(), Status::InvalidState);
    });
}
