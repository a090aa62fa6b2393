//! Every number of every rule, and of what nests in the options: its default, its effect, and what
//! it refuses. Short forms are equal to long ones.

mod support;

use std::path::Path;

use support::{fails, ranks};
use trireme::{
    Adafactor, Adagrad, Adam, AdamW, Clipping, Communicator, Dtype, Lamb, Lars, Lion, LossScale,
    Model, ModelOptions, Muon, Offload, Optimizer, OptimizerOptions, Parameter, RateAdjustment,
    RmsProp, Rule, RuleKind, Sgd, Shards, Share, Status, Strategy, Units,
};

const ELEMENTS: usize = 7;

/// A matrix and a vector.
fn model(communicator: &Communicator) -> Model {
    let mut model = Model::new(communicator, &ModelOptions::new(Strategy::Zero2)).unwrap();
    for (name, shape) in [("matrix", &[2, 2][..]), ("vector", &[3])] {
        model.add_parameter(&Parameter::new(name, Dtype::F64, shape)).unwrap();
    }
    model.seal().unwrap();
    model
}

fn trained(model: &mut Model, options: &OptimizerOptions) -> Vec<f64> {
    let start: Vec<f64> = (0..ELEMENTS).map(|i| i as f64 - 2.5).collect();
    model.set_parameters(Some(&start), 0).unwrap();
    let mut optimizer = Optimizer::new(model, options).unwrap();
    for step in 0..3 {
        // The first one is large, or only gradients in hand would give Lion its signs.
        let scale = if step == 0 { 20.0 } else { 1.0 };
        let gradient: Vec<f64> =
            (0..ELEMENTS).map(|i| scale * (((3 * i + step) % 5) as f64 - 1.5)).collect();
        model.accumulate_flat(&gradient).unwrap();
        optimizer.step(model).unwrap();
    }
    model.get_parameters().unwrap()
}

fn by(rule: impl Into<Rule>) -> Rule {
    rule.into()
}

#[test]
fn the_default_of_a_number_is_what_its_comment_says() {
    let cases = [
        by(Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }),
        by(AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }),
        by(Adagrad { epsilon: 1e-10 }),
        by(RmsProp { alpha: 0.99, epsilon: 1e-8, ..RmsProp::default() }),
        by(Lion { beta1: 0.9, beta2: 0.99 }),
        by(Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, ..Lamb::default() }),
        by(Lars { trust_coefficient: 0.001, ..Lars::default() }),
        by(Adafactor {
            beta2_decay: -0.8,
            epsilon: f64::EPSILON,
            max_update_rms: 1.0,
            min_parameter_rms: 0.001,
        }),
        by(Muon {
            orthogonal_steps: 5,
            rate_adjustment: RateAdjustment::Original,
            momentum: 0.95,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            ..Muon::default()
        }),
    ];
    ranks(1, |communicator| {
        let mut model = model(communicator);
        for rule in cases {
            let short = OptimizerOptions::new(rule.kind());
            let rate = if rule.kind() == RuleKind::Adafactor { 0.01 } else { 0.001 };
            let long = OptimizerOptions::new(rule).learning_rate(rate);
            assert_eq!(trained(&mut model, &short), trained(&mut model, &long), "{rule:?}");
        }
    });
}

#[test]
fn every_number_has_an_effect() {
    let momentum = Sgd { momentum: 0.5, ..Sgd::default() };
    let cases: Vec<(Rule, Rule)> = vec![
        (by(RuleKind::Sgd), by(momentum)),
        (by(momentum), by(Sgd { nesterov: true, ..momentum })),
        (by(RuleKind::Adam), by(Adam { beta1: 0.5, ..Adam::default() })),
        (by(RuleKind::Adam), by(Adam { beta2: 0.5, ..Adam::default() })),
        (by(RuleKind::Adam), by(Adam { epsilon: 0.5, ..Adam::default() })),
        (by(RuleKind::AdamW), by(AdamW { beta1: 0.5, ..AdamW::default() })),
        (by(RuleKind::AdamW), by(AdamW { beta2: 0.5, ..AdamW::default() })),
        (by(RuleKind::AdamW), by(AdamW { epsilon: 0.5, ..AdamW::default() })),
        (by(RuleKind::Adam), by(RuleKind::AdamW)), // by the weight decay
        (by(RuleKind::Adagrad), by(Adagrad { epsilon: 0.5 })),
        (by(RuleKind::RmsProp), by(RmsProp { momentum: 0.5, ..RmsProp::default() })),
        (by(RuleKind::RmsProp), by(RmsProp { alpha: 0.5, ..RmsProp::default() })),
        (by(RuleKind::RmsProp), by(RmsProp { epsilon: 0.5, ..RmsProp::default() })),
        (by(RuleKind::RmsProp), by(RmsProp { centered: true, ..RmsProp::default() })),
        (by(RuleKind::Lion), by(Lion { beta1: 0.1, ..Lion::default() })),
        (by(RuleKind::Lion), by(Lion { beta2: 0.1, ..Lion::default() })),
        (by(RuleKind::Lamb), by(Lamb { beta1: 0.5, ..Lamb::default() })),
        (by(RuleKind::Lamb), by(Lamb { beta2: 0.5, ..Lamb::default() })),
        (by(RuleKind::Lamb), by(Lamb { epsilon: 0.5, ..Lamb::default() })),
        (by(RuleKind::Lamb), by(Lamb { max_trust: 0.5, ..Lamb::default() })),
        (by(RuleKind::Lars), by(Lars { momentum: 0.5, ..Lars::default() })),
        (by(RuleKind::Lars), by(Lars { epsilon: 0.5, ..Lars::default() })),
        (by(RuleKind::Lars), by(Lars { trust_coefficient: 0.5, ..Lars::default() })),
        (by(RuleKind::Lars), by(Lars { max_trust: 1e-4, ..Lars::default() })),
        (by(RuleKind::Adafactor), by(Adafactor { beta2_decay: -0.5, ..Adafactor::default() })),
        (by(RuleKind::Adafactor), by(Adafactor { epsilon: 1e6, ..Adafactor::default() })),
        (by(RuleKind::Adafactor), by(Adafactor { max_update_rms: 0.1, ..Adafactor::default() })),
        (by(RuleKind::Adafactor), by(Adafactor { min_parameter_rms: 9.0, ..Adafactor::default() })),
        (by(RuleKind::Muon), by(Muon { nesterov: true, ..Muon::default() })),
        (by(RuleKind::Muon), by(Muon { orthogonal_steps: 1, ..Muon::default() })),
        (
            by(RuleKind::Muon),
            by(Muon { rate_adjustment: RateAdjustment::MatchAdamW, ..Muon::default() }),
        ),
        (by(RuleKind::Muon), by(Muon { momentum: 0.5, ..Muon::default() })),
        (by(RuleKind::Muon), by(Muon { beta1: 0.5, ..Muon::default() })),
        (by(RuleKind::Muon), by(Muon { beta2: 0.5, ..Muon::default() })),
        (by(RuleKind::Muon), by(Muon { epsilon: 0.5, ..Muon::default() })),
    ];
    ranks(1, |communicator| {
        let mut model = model(communicator);
        for (one, other) in &cases {
            let options = |rule: &Rule| OptimizerOptions::new(*rule).weight_decay(0.5);
            let (one, other) = (options(one), options(other));
            assert_ne!(trained(&mut model, &one), trained(&mut model, &other), "{other:?}");
        }
    });
}

#[test]
fn a_wrong_number_is_named_with_its_place() {
    let cases = [
        (by(Sgd { momentum: 1.0, ..Sgd::default() }), "momentum"),
        (by(Adam { beta1: 1.0, ..Adam::default() }), "beta1"),
        (by(AdamW { beta2: -0.5, ..AdamW::default() }), "beta2"),
        (by(Adagrad { epsilon: -1.0 }), "epsilon"),
        (by(RmsProp { alpha: 1.0, ..RmsProp::default() }), "alpha"),
        (by(RmsProp { momentum: f64::NAN, ..RmsProp::default() }), "momentum"),
        (by(Lion { beta2: 1.5, ..Lion::default() }), "beta2"),
        (by(Lamb { max_trust: -1.0, ..Lamb::default() }), "max_trust"),
        (by(Lars { trust_coefficient: f64::INFINITY, ..Lars::default() }), "trust_coefficient"),
        (by(Adafactor { beta2_decay: 0.5, ..Adafactor::default() }), "beta2_decay"),
        (by(Adafactor { max_update_rms: -1.0, ..Adafactor::default() }), "max_update_rms"),
        (by(Adafactor { min_parameter_rms: -1.0, ..Adafactor::default() }), "min_parameter_rms"),
        (by(Muon { orthogonal_steps: 100, ..Muon::default() }), "orthogonal_steps"),
    ];
    ranks(1, |communicator| {
        let mut model = model(communicator);
        let mut named = |options: &OptimizerOptions, place: &str| {
            let error = fails(Optimizer::new(&mut model, options), Status::InvalidArgument);
            assert!(error.message().contains(place), "{error}");
        };
        for (rule, number) in cases {
            named(&OptimizerOptions::new(rule), &format!("options.rule.{number}"));
        }
        let plain = OptimizerOptions::new(RuleKind::Adam);
        named(&plain.learning_rate(-1.0), "options.learning_rate");
        named(&plain.weight_decay(f64::NAN), "options.weight_decay");
        named(&plain.max_norm(-1.0), "options.clipping.max_norm");
        let values = Clipping { max_value: -1.0, ..Clipping::default() };
        named(&plain.clipping(values), "options.clipping.max_value");
        let half = Offload { ratio: 1.5, ..Offload::new("/tmp") };
        named(&plain.offload(half), "options.offload.ratio");
        named(&plain.offload("a\0b"), "options.offload.path");
        named(&plain.offload(Offload::default()), "options.offload.path");
        named(&OptimizerOptions::default(), "kind"); // no rule at all
    });
}

#[test]
fn a_rule_of_the_caller_has_no_other_beside_it() {
    ranks(1, |communicator| {
        let mut model = model(communicator);
        let both = OptimizerOptions::new(RuleKind::Lion);
        let error =
            fails(Optimizer::with_rule(&mut model, &both, 0, |_| Ok(())), Status::InvalidArgument);
        assert!(error.message().contains("lion") && error.message().contains("user"), "{error}");
    });
}

#[test]
fn short_forms_are_long_ones() {
    for kind in RuleKind::ALL {
        assert_eq!(Rule::from(kind).kind(), kind);
    }
    assert_eq!(Rule::from(RuleKind::Muon), Rule::Muon(Muon::default()));
    let clipping = Clipping { max_norm: 2.0, max_value: 3.0 };
    let values = OptimizerOptions::default().clipping(Clipping { max_norm: 0.0, ..clipping });
    assert_eq!(values.max_norm(2.0).clipping, clipping);
    assert_eq!(
        LossScale::from(4.0),
        LossScale { initial_scale: Some(4.0), ..LossScale::default() }
    );
    let path = Path::new("/tmp");
    assert_eq!(Offload::from("/tmp"), Offload { path: Some(path), ..Offload::default() });
    assert_eq!(Offload::from(path), Offload::new("/tmp"));
    assert_eq!(Shards::from(2), Shards { ranks: 2, ..Shards::default() });
    let model = ModelOptions::new(Strategy::Zero3).offload("/tmp").shards(2);
    assert_eq!((model.offload, model.shards), (Some(Offload::new(path)), Shards::from(2)));
}

#[test]
fn prefetched_units_take_working_memory() {
    ranks(2, |communicator| {
        let working = |prefetch_bytes| {
            let options = ModelOptions::new(Strategy::Zero3)
                .units(Units { minimum_bytes: 1, prefetch_bytes, ..Units::default() })
                .shards(Shards { share: Share::Never, ..Shards::default() });
            let mut model = Model::new(communicator, &options).unwrap();
            for name in ["a", "b", "c", "d"] {
                model.add_parameter(&Parameter::new(name, Dtype::F64, &[1000])).unwrap();
            }
            model.seal().unwrap();
            model.memory().unwrap().planned_working
        };
        assert_eq!(working(0), working(8000));
        assert_eq!(working(24_000), working(8000) + 16_000);
    });
}

#[test]
fn wrong_numbers_of_a_model_are_named_with_their_place() {
    ranks(2, |communicator| {
        let hybrid = ModelOptions::new(Strategy::HybridShard);
        let file = Offload { buffer_bytes: 1, ..Offload::new("/tmp") };
        for (options, place) in [
            (hybrid.shards(3), "options.shards.ranks"),
            (hybrid.shards(Shards { ranks: 2, stride: 2, ..Shards::default() }), "options.shards"),
            (ModelOptions::new(Strategy::Zero1).shards(2), "options.shards.ranks"),
            (
                hybrid.shards(2).units(Units { reshard_ranks: 7, ..Units::default() }),
                "options.units.reshard_ranks",
            ),
            (ModelOptions::new(Strategy::Zero3).offload(file), "options.offload.buffer_bytes"),
        ] {
            let error = fails(Model::new(communicator, &options), Status::InvalidArgument);
            assert!(error.message().contains(place), "{error}");
        }
        communicator.barrier().unwrap();
    });
}
