//! Clipping groups of parameters, each by its own norm.

mod support;

use support::{fails, ranks};
use trireme::{
    Communicator, Dtype, Groups, Kind, Model, ModelOptions, Optimizer, OptimizerOptions, Parameter, Status,
    Strategy,
};

fn model(communicator: &Communicator) -> Model {
    let mut model = Model::new(communicator, &ModelOptions::new(Strategy::Zero1)).unwrap();
    model.add_parameter(&Parameter::new("pair", Dtype::F32, &[2])).unwrap();
    for (name, norm_group) in [("free", 1), ("last", 2)] {
        let parameter = Parameter { norm_group, ..Parameter::new(name, Dtype::F32, &[1]) };
        model.add_parameter(&parameter).unwrap();
    }
    model.seal().unwrap();
    model
}

fn rule() -> OptimizerOptions {
    OptimizerOptions { learning_rate: 1.0, ..OptimizerOptions::default() }
}

#[test]
fn each_group_is_clipped_by_its_own_norm() {
    for named in [false, true] {
        ranks(2, |communicator| {
            let mut model = model(communicator);
            let all = named.then_some(communicator); // of one model they change nothing
            let limits = [2.5, 0.0, 3.0];
            let mut optimizer =
                Optimizer::with_norm_groups(&mut model, Kind::Sgd, &rule(), &limits, all).unwrap();
            model.accumulate_flat(&[3.0_f32, 4.0, 2.0, 6.0]).unwrap();
            optimizer.step(&mut model).unwrap();
            let norms: Vec<f64> = (0..3).map(|i| optimizer.group_norm(i).unwrap()).collect();
            assert_eq!(norms, [5.0, 2.0, 6.0]);
            assert_eq!(model.get_parameters::<f32>().unwrap(), [-1.5, -2.0, -2.0, -3.0]);
        });
    }
}

#[test]
fn a_group_that_is_no_number_leaves_the_others() {
    ranks(1, |communicator| {
        let mut model = model(communicator);
        let limits = [2.5, 0.0, 3.0];
        let mut optimizer =
            Optimizer::with_norm_groups(&mut model, Kind::Sgd, &rule(), &limits, None).unwrap();
        model.accumulate_flat(&[3.0_f32, 4.0, 2.0, f32::INFINITY]).unwrap();
        optimizer.step(&mut model).unwrap();
        assert_eq!(optimizer.group_norm(0).unwrap(), 5.0);
        assert!(optimizer.group_norm(2).unwrap().is_nan());
        assert_eq!(model.get_parameters::<f32>().unwrap(), [-1.5, -2.0, -2.0, f32::NEG_INFINITY]);
    });
}

#[test]
fn each_group_has_its_rate_and_weight_decay() {
    ranks(2, |communicator| {
        let mut model = model(communicator);
        let groups = Groups {
            rate_factors: &[1.0, 0.5, 0.0],
            weight_decays: &[0.0, 0.5, 1.0],
            ..Groups::default()
        };
        let mut optimizer =
            Optimizer::with_groups(&mut model, Kind::Sgd, &rule(), &groups, None).unwrap();
        model.set_parameters(Some(&[1.0_f32, 1.0, 2.0, 4.0][..]), 0).unwrap();
        model.accumulate_flat(&[3.0_f32, 4.0, 2.0, 6.0]).unwrap();
        optimizer.step(&mut model).unwrap();
        assert_eq!(model.get_parameters::<f32>().unwrap(), [-2.0, -3.0, 0.5, 4.0]);
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    ranks(1, |communicator| {
        let mut model = model(communicator);
        for limits in [&[1.0, 1.0][..], &[1.0, 1.0, -1.0]] {
            let made = Optimizer::with_norm_groups(&mut model, Kind::Sgd, &rule(), limits, None);
            fails(made, Status::InvalidArgument);
        }
        let limits = [1.0; 3];
        let both = OptimizerOptions { max_norm: 1.0, ..rule() };
        let made = Optimizer::with_norm_groups(&mut model, Kind::Sgd, &both, &limits, None);
        fails(made, Status::Unsupported);
        for factors in [&[1.0, 1.0][..], &[1.0, 1.0, -1.0], &[]] {
            let groups = Groups { max_norms: &limits, rate_factors: factors, ..Groups::default() };
            let made = Optimizer::with_groups(&mut model, Kind::Sgd, &rule(), &groups, None);
            match factors {
                [] => drop(made.unwrap()),
                _ => drop(fails(made, Status::InvalidArgument)),
            }
        }
        let optimizer =
            Optimizer::with_norm_groups(&mut model, Kind::Sgd, &rule(), &limits, None).unwrap();
        fails(optimizer.group_norm(0), Status::InvalidState);
        fails(optimizer.group_norm(3), Status::InvalidArgument);
        drop(optimizer);
        let plain = Optimizer::new(&mut model, Kind::Sgd, &both).unwrap();
        fails(plain.group_norm(0), Status::InvalidState);
    });
}
