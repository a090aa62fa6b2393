//! Clipping by the norm of several models that step together.

mod support;

use support::{fails, ranks};
use trireme::{
    Communicator, Dtype, GroupOptions, Model, ModelOptions, Optimizer, OptimizerOptions, Parameter,
    RuleKind, Status, Strategy,
};

fn model(communicator: &Communicator) -> Model {
    let mut model = Model::new(communicator, &ModelOptions::new(Strategy::Zero1)).unwrap();
    model.add_parameter(&Parameter::new("part", Dtype::F32, &[1])).unwrap();
    let common = Parameter { replicas: 2, ..Parameter::new("common", Dtype::F32, &[1]) };
    model.add_parameter(&common).unwrap();
    model.seal().unwrap();
    model
}

#[test]
fn two_models_clip_by_one_norm() {
    ranks(2, |communicator| {
        let rank = communicator.rank();
        let alone =
            communicator.split(Some(rank as u32), 0, &GroupOptions::default()).unwrap().unwrap();
        let mut model = model(&alone);
        let rule = OptimizerOptions::new(RuleKind::Sgd)
            .learning_rate(1.0)
            .max_norm(1.5)
            .norm_ranks(communicator);
        let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
        let part = rank as f32 + 1.0;
        model.accumulate_flat(&[part, 2.0]).unwrap();
        optimizer.step(&mut model).unwrap();
        assert_eq!(optimizer.gradient_norm().unwrap(), 3.0); // 1 + 4 + 4
        assert_eq!(model.get_parameters::<f32>().unwrap(), [part / -2.0, -1.0]);
    });
}

fn one(communicator: &Communicator, max_norm: f64) -> (Model, Optimizer) {
    let mut model = Model::new(communicator, &ModelOptions::new(Strategy::Zero1)).unwrap();
    model.add_parameter(&Parameter::new("w", Dtype::F32, &[1])).unwrap();
    model.seal().unwrap();
    let rule =
        OptimizerOptions::new(RuleKind::Sgd).learning_rate(1.0).max_norm(max_norm).loss_scale(2.0);
    let optimizer = Optimizer::new(&mut model, &rule).unwrap();
    (model, optimizer)
}

#[test]
fn two_optimizers_of_a_rank_step_with_one_norm() {
    ranks(2, |communicator| {
        let (mut common, mut first) = one(communicator, 2.5);
        let (mut experts, mut second) = one(communicator, 2.5);
        for last in [8.0, f32::INFINITY] {
            common.accumulate_flat(&[6.0f32]).unwrap();
            experts.accumulate_flat(&[last]).unwrap();
            let mut both = [(&mut first, &mut common), (&mut second, &mut experts)];
            Optimizer::step_together(&mut both).unwrap();
        }
        for optimizer in [&first, &second] {
            assert_eq!(optimizer.gradient_norm().unwrap(), 5.0); // 9 + 16; then both skip
            assert!(optimizer.loss_scale_info().unwrap().skipped);
        }
        assert_eq!(common.get_parameters::<f32>().unwrap(), [-1.5]);
        assert_eq!(experts.get_parameters::<f32>().unwrap(), [-2.0]);
    });
}

#[test]
fn optimizers_that_do_not_fit_are_refused() {
    ranks(1, |communicator| {
        let (mut model, mut first) = one(communicator, 1.0);
        let (mut another, mut second) = one(communicator, 2.0);
        fails(Optimizer::step_together(&mut []), Status::InvalidArgument);
        let mut crossed = [(&mut first, &mut another), (&mut second, &mut model)];
        fails(Optimizer::step_together(&mut crossed), Status::InvalidArgument);
        let mut limits = [(&mut first, &mut model), (&mut second, &mut another)];
        fails(Optimizer::step_together(&mut limits), Status::InvalidArgument);
    });
}

#[test]
fn a_rule_that_fails_ends_the_step_of_both() {
    ranks(1, |communicator| {
        let (mut model, mut first) = one(communicator, 1.0);
        let mut another = Model::new(communicator, &ModelOptions::new(Strategy::Zero1)).unwrap();
        another.add_parameter(&Parameter::new("w", Dtype::F32, &[1])).unwrap();
        another.seal().unwrap();
        let rule = OptimizerOptions::default().max_norm(1.0).loss_scale(2.0);
        let mut own =
            Optimizer::with_rule(&mut another, &rule, 0, |_| Err("mine".to_string())).unwrap();
        model.accumulate_flat(&[1.0f32]).unwrap();
        another.accumulate_flat(&[1.0f32]).unwrap();
        let mut both = [(&mut first, &mut model), (&mut own, &mut another)];
        let error = Optimizer::step_together(&mut both).unwrap_err();
        assert_eq!(error.status(), Status::Callback);
        assert!(error.to_string().contains("mine"), "{error}");
        fails(first.step(&mut model), Status::Callback);
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    ranks(1, |communicator| {
        let mut model = model(communicator);
        for max_norm in [0.0, 1.0] {
            let rule =
                OptimizerOptions::new(RuleKind::Sgd).max_norm(max_norm).norm_ranks(communicator);
            fails(Optimizer::new(&mut model, &rule), Status::InvalidArgument);
        }
    });
}
