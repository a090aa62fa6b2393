//! The rule that makes matrices orthogonal, beside a scalar recursion.

mod support;

use support::{fails, ranks};
use trireme::{
    Communicator, Dtype, Groups, Kind, Model, ModelOptions, Optimizer, OptimizerOptions, Parameter,
    RateAdjustment, Status, Strategy, GROUP_ELEMENTWISE,
};

fn model(communicator: &Communicator) -> Model {
    let mut model = Model::new(communicator, &ModelOptions::new(Strategy::Zero2)).unwrap();
    model.add_parameter(&Parameter::new("matrix", Dtype::F64, &[2, 1])).unwrap();
    let embedding =
        Parameter { norm_group: 1, ..Parameter::new("embedding", Dtype::F64, &[1, 2]) };
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
        let rule = OptimizerOptions {
            learning_rate: 0.5,
            nesterov,
            orthogonal_steps,
            rate_adjustment,
            ..OptimizerOptions::default()
        };
        let mut length = 1.0_f64;
        for _ in 0..if orthogonal_steps == 0 { 5 } else { orthogonal_steps } {
            length *= 3.4445 - 4.775 * length.powi(2) + 2.0315 * length.powi(4);
        }
        let adjusted = if rate_adjustment == RateAdjustment::MatchAdamW { 0.2 } else { 1.0 };
        let far = 0.5 * adjusted * 2.0_f64.sqrt() * length;
        ranks(2, |communicator| {
            let mut model = model(communicator);
            let groups = Groups {
                rate_factors: &[1.0, 0.5],
                flags: &[0, GROUP_ELEMENTWISE],
                ..Groups::default()
            };
            let mut optimizer =
                Optimizer::with_groups(&mut model, Kind::Muon, &rule, &groups, None).unwrap();
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
        let many = OptimizerOptions { orthogonal_steps: 100, ..OptimizerOptions::default() };
        fails(Optimizer::new(&mut model, Kind::Muon, &many), Status::InvalidArgument);
        let five = OptimizerOptions { orthogonal_steps: 5, ..OptimizerOptions::default() };
        fails(Optimizer::new(&mut model, Kind::AdamW, &five), Status::InvalidArgument);
        let sweep = OptimizerOptions { one_sweep: true, ..OptimizerOptions::default() };
        fails(Optimizer::new(&mut model, Kind::Muon, &sweep), Status::Unsupported);
        let plain = OptimizerOptions::default();
        for (kind, flags, rate_factors) in [
            (Kind::Muon, &[GROUP_ELEMENTWISE][..], &[][..]),
            (Kind::Muon, &[0, 2], &[]),
            (Kind::Muon, &[0, 0], &[1.0; 3]),
            (Kind::AdamW, &[0, GROUP_ELEMENTWISE], &[]),
        ] {
            let groups = Groups { flags, rate_factors, ..Groups::default() };
            let made = Optimizer::with_groups(&mut model, kind, &plain, &groups, None);
            fails(made, Status::InvalidArgument);
        }
    });
}
