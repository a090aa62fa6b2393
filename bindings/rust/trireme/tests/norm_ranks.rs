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
