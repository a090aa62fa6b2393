//! Clipping groups of parameters, each by its own norm.

mod support;

use support::{fails, ranks};
use trireme::{
    Communicator, Dtype, Model, ModelOptions, Optimizer, OptimizerOptions, Parameter,
    ParameterGroup, RuleKind, Status, Strategy,
};

fn model(communicator: &Communicator) -> Model {
    let mut model = Model::new(communicator, &ModelOptions::new(Strategy::Zero1)).unwrap();
    model.add_parameter(&Parameter::new("pair", Dtype::F32, &[2])).unwrap();
    for (name, parameter_group) in [("free", 1), ("last", 2)] {
        let parameter = Parameter { parameter_group, ..Parameter::new(name, Dtype::F32, &[1]) };
        model.add_parameter(&parameter).unwrap();
    }
    model.seal().unwrap();
    model
}

fn rule() -> OptimizerOptions<'static> {
    OptimizerOptions::new(RuleKind::Sgd).learning_rate(1.0)
}

fn limits<const N: usize>(max_norms: [f64; N]) -> [ParameterGroup; N] {
    max_norms.map(|max_norm| ParameterGroup { max_norm, ..ParameterGroup::default() })
}

#[test]
fn each_group_is_clipped_by_its_own_norm() {
    for named in [false, true] {
        ranks(2, |communicator| {
            let mut model = model(communicator);
            let groups = limits([2.5, 0.0, 3.0]);
            let mut options = rule().groups(&groups);
            if named {
                options = options.norm_ranks(communicator); // of one model they change nothing
            }
            let mut optimizer = Optimizer::new(&mut model, &options).unwrap();
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
        let groups = limits([2.5, 0.0, 3.0]);
        let mut optimizer = Optimizer::new(&mut model, &rule().groups(&groups)).unwrap();
        model.accumulate_flat(&[3.0_f32, 4.0, 2.0, f32::INFINITY]).unwrap();
        optimizer.step(&mut model).unwrap();
        assert_eq!(optimizer.group_norm(0).unwrap(), 5.0);
        assert!(optimizer.group_norm(2).unwrap().is_nan());
        assert_eq!(model.get_parameters::<f32>().unwrap(), [-1.5, -2.0, -2.0, f32::NEG_INFINITY]);
    });
}

#[test]
fn each_group_has_its_rate_and_weight_decay_or_those_of_the_options() {
    ranks(2, |communicator| {
        let mut model = model(communicator);
        let own = |rate_factor, weight_decay| ParameterGroup {
            rate_factor: Some(rate_factor),
            weight_decay: Some(weight_decay),
            ..ParameterGroup::default()
        };
        let (plain, half) = (ParameterGroup::default(), own(0.5, 0.5));
        let zero = ParameterGroup { weight_decay: Some(0.0), ..plain };
        for (groups, wanted) in [
            ([own(1.0, 0.0), half, own(0.0, 1.0)], [-2.0, -3.0, 0.5, 4.0]),
            ([zero, half, plain], [-2.0, -3.0, 0.5, -3.0]), // 4 - (6 + 4 / 4)
        ] {
            let options = rule().weight_decay(0.25).groups(&groups);
            let mut optimizer = Optimizer::new(&mut model, &options).unwrap();
            model.set_parameters(Some(&[1.0_f32, 1.0, 2.0, 4.0][..]), 0).unwrap();
            model.accumulate_flat(&[3.0_f32, 4.0, 2.0, 6.0]).unwrap();
            optimizer.step(&mut model).unwrap();
            assert_eq!(model.get_parameters::<f32>().unwrap(), wanted);
        }
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    ranks(1, |communicator| {
        let mut model = model(communicator);
        let plain = ParameterGroup::default();
        let bad_rate = ParameterGroup { rate_factor: Some(-1.0), ..plain };
        let bad_decay = ParameterGroup { weight_decay: Some(f64::NAN), ..plain };
        for (groups, name) in [
            (&limits([1.0, 1.0])[..], "group"),
            (&limits([1.0, 1.0, -1.0]), "options.groups[2].max_norm"),
            (&[plain, bad_rate, plain], "options.groups[1].rate_factor"),
            (&[bad_decay, plain, plain], "options.groups[0].weight_decay"),
        ] {
            let made = Optimizer::new(&mut model, &rule().groups(groups));
            let error = fails(made, Status::InvalidArgument);
            assert!(error.message().contains(name), "{error}");
        }
        let groups = limits([1.0; 3]);
        let both = rule().max_norm(1.0).groups(&groups);
        fails(Optimizer::new(&mut model, &both), Status::Unsupported);
        let optimizer = Optimizer::new(&mut model, &rule().groups(&groups)).unwrap();
        fails(optimizer.group_norm(0), Status::InvalidState);
        fails(optimizer.group_norm(3), Status::InvalidArgument);
        drop(optimizer);
        let error = fails(Optimizer::new(&mut model, &rule()), Status::InvalidArgument);
        assert!(error.message().contains("options.group_count is 0"), "{error}");
        let groups = limits([0.0; 3]);
        let plain = Optimizer::new(&mut model, &rule().max_norm(1.0).groups(&groups)).unwrap();
        fails(plain.group_norm(0), Status::InvalidState);
    });
}
