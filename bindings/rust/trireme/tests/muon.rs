//! The rule that makes matrices orthogonal, beside a scalar recursion.

mod support;

use support::{fails, ranks};
use trireme::{
    Communicator, Dtype, Model, ModelOptions, Muon, Optimizer, OptimizerOptions, Parameter,
    ParameterGroup, RateAdjustment, RuleKind, Status, Strategy,
};

fn model(communicator: &Communicator) -> Model {
    let mut model = Model::new(communicator, &ModelOptions::new(Strategy::Zero2)).unwrap();
    model.add_parameter(&Parameter::new("matrix", Dtype::F64, &[2, 1])).unwrap();
    let embedding =
        Parameter { parameter_group: 1, ..Parameter::new("embedding", Dtype::F64, &[1, 2]) };
    model.add_parameter(&embedding).unwrap();
    model.seal().unwrap();
    model
}

#[test]
fn a_matrix_goes_along_its_direction_and_other_groups_as_adamw() {
    for (nesterov, orthogonal_steps, rate_adjustment) in [
        (false, 0, RateAdjustment::Original),
        (true, 3, RateAdjustment::Original),
        (false, 5, RateAdjustment::MatchAdamW),
    ] {
        let rule = Muon { nesterov, orthogonal_steps, rate_adjustment, ..Muon::default() };
        let mut length = 1.0_f64;
        for _ in 0..if orthogonal_steps == 0 { 5 } else { orthogonal_steps } {
            length *= 3.4445 - 4.775 * length.powi(2) + 2.0315 * length.powi(4);
        }
        let adjusted = if rate_adjustment == RateAdjustment::MatchAdamW { 0.2 } else { 1.0 };
        let far = 0.5 * adjusted * 2.0_f64.sqrt() * length;
        ranks(2, |communicator| {
            let mut model = model(communicator);
            let groups = [
                ParameterGroup::default(),
                ParameterGroup {
                    rate_factor: Some(0.5),
                    elementwise: true,
                    ..ParameterGroup::default()
                },
            ];
            let options = OptimizerOptions::new(rule).learning_rate(0.5).groups(&groups);
            let mut optimizer = Optimizer::new(&mut model, &options).unwrap();
            model.accumulate_flat(&[3.0_f64, 4.0, 7.0, -5.0]).unwrap();
            optimizer.step(&mut model).unwrap();
            let values = model.get_parameters::<f64>().unwrap();
            for (have, want) in values.iter().zip([-0.6 * far, -0.8 * far, -0.25, 0.25]) {
                assert!((have - want).abs() < 1e-7, "{have} is not {want}");
            }
        });
    }
}

#[test]
fn bad_options_are_refused() {
    ranks(1, |communicator| {
        let mut model = model(communicator);
        let many = OptimizerOptions::new(Muon { orthogonal_steps: 100, ..Muon::default() });
        let error = fails(Optimizer::new(&mut model, &many), Status::InvalidArgument);
        assert!(error.message().contains("options.rule.orthogonal_steps"), "{error}");
        let sweep = OptimizerOptions::new(RuleKind::Muon).one_sweep(true);
        fails(Optimizer::new(&mut model, &sweep), Status::Unsupported);
        let plain = ParameterGroup::default();
        let elementwise = ParameterGroup { elementwise: true, ..plain };
        for (kind, groups) in [
            (RuleKind::Muon, &[elementwise][..]), // there are two
            (RuleKind::AdamW, &[plain, elementwise]),
        ] {
            let options = OptimizerOptions::new(kind).groups(groups);
            fails(Optimizer::new(&mut model, &options), Status::InvalidArgument);
        }
    });
}
