//! A training goes on in another layout: ranges and counters of one, written to the other.

mod support;

use std::collections::HashMap;

use support::{fails, options, ranks};
use trireme::{
    Communicator, Dtype, Model, Optimizer, OptimizerCounters, OptimizerOptions, Parameter,
    RuleKind, State, Status, Strategy, Units, Unused,
};

const ELEMENTS: usize = 11;
const BEFORE: usize = 3;
const STEPS: usize = 6;

fn gradient(step: usize, i: usize) -> f32 {
    ((3 * i + 5 * step) % 11) as f32 - 4.5
}

/// Of one process, in f64, which knows nothing of the library.
fn plain_adamw() -> Vec<f64> {
    (0..ELEMENTS)
        .map(|i| {
            let (mut p, mut m, mut v, mut t) = ((i % 7) as f64 - 3.0, 0.0, 0.0, 0);
            for step in (0..STEPS).filter(|&step| i < 6 || step != 1) {
                t += 1;
                let rate = if step < 1 { 0.1 } else { 0.05 };
                let g = f64::from(gradient(step, i));
                p -= rate * 0.1 * p;
                m = 0.9 * m + 0.1 * g;
                v = 0.999 * v + 0.001 * g * g;
                let root = (v / (1.0 - 0.999_f64.powi(t))).sqrt() + 1e-8;
                p -= rate / (1.0 - 0.9_f64.powi(t)) * m / root;
            }
            p
        })
        .collect()
}

/// Two parameters; "b" is left out of step 1.
fn build(communicator: &Communicator, strategy: Strategy) -> (Model, Optimizer) {
    let options = options(communicator, strategy)
        .units(Units { minimum_bytes: 1, ..Units::default() })
        .unused(Unused::Skip);
    let mut model = Model::new(communicator, &options).unwrap();
    model.add_parameter(&Parameter::new("a", Dtype::F32, &[3, 2])).unwrap();
    model.add_parameter(&Parameter::new("b", Dtype::F32, &[5])).unwrap();
    model.seal().unwrap();
    let rule = OptimizerOptions::new(RuleKind::AdamW).learning_rate(0.1).weight_decay(0.1);
    let optimizer = Optimizer::new(&mut model, &rule).unwrap();
    (model, optimizer)
}

fn train(model: &mut Model, optimizer: &mut Optimizer, steps: std::ops::Range<usize>) {
    for step in steps {
        let values: Vec<f32> = (0..ELEMENTS).map(|i| gradient(step, i)).collect();
        model.begin_backward().unwrap();
        if step != 1 {
            model.gradient_ready(1, &values[6..]).unwrap();
        } else {
            optimizer.set_learning_rate(0.05).unwrap();
        }
        model.gradient_ready(0, &values[..6]).unwrap();
        model.end_backward().unwrap();
        optimizer.step(model).unwrap();
    }
}

fn vector(state: State) -> usize {
    match state {
        State::Parameter => 0,
        State::Optimizer(vector) => 1 + vector,
        other => panic!("{other:?} of AdamW"),
    }
}

/// Whole vectors, by which they are and element; and what the optimizer counts.
type Saved = (HashMap<(usize, usize), f32>, OptimizerCounters);

fn saved(world: i32, strategy: Strategy) -> Saved {
    let parts = ranks(world, |communicator| {
        let (mut model, mut optimizer) = build(communicator, strategy);
        let start: Vec<f32> = (0..ELEMENTS).map(|i| (i % 7) as f32 - 3.0).collect();
        model.set_parameters(Some(&start), 0).unwrap();
        train(&mut model, &mut optimizer, 0..BEFORE);
        let mut part = HashMap::new();
        for range in optimizer.ranges(&model).unwrap() {
            let first = range.first + 6 * range.parameter;
            for (i, &value) in range.data::<f32>().unwrap().iter().enumerate() {
                part.insert((vector(range.state), first + i), value);
            }
        }
        (part, optimizer.counters().unwrap())
    });
    let counters = parts[0].1.clone();
    assert!(parts.iter().all(|part| part.1 == counters));
    (parts.into_iter().flat_map(|part| part.0).collect(), counters)
}

fn write(model: &mut Model, optimizer: &mut Optimizer, state: &HashMap<(usize, usize), f32>) {
    let parts: Vec<Vec<f32>> = optimizer
        .ranges(model)
        .unwrap()
        .iter()
        .map(|range| {
            let first = range.first + 6 * range.parameter;
            (first..first + range.count).map(|i| state[&(vector(range.state), i)]).collect()
        })
        .collect();
    for (index, part) in parts.iter().enumerate() {
        optimizer.write_range(model, index, part).unwrap();
    }
}

#[test]
fn a_training_goes_on_in_another_layout() {
    let layouts = [
        (4, Strategy::Zero3),
        (2, Strategy::Zero2),
        (3, Strategy::DataParallel),
        (4, Strategy::HybridShard),
        (1, Strategy::Zero1),
    ];
    let expected = plain_adamw();
    for (world, strategy) in layouts {
        let (state, counters) = saved(world, strategy);
        assert_eq!(counters.steps, BEFORE as u64);
        for (world, strategy) in layouts {
            let trained = ranks(world, |communicator| {
                let (mut model, mut optimizer) = build(communicator, strategy);
                write(&mut model, &mut optimizer, &state);
                optimizer.restore(&mut model, &counters).unwrap();
                assert_eq!(optimizer.counters().unwrap(), counters);
                train(&mut model, &mut optimizer, BEFORE..STEPS);
                assert_eq!(
                    optimizer.counters().unwrap().parameter_steps,
                    [STEPS as u64, STEPS as u64 - 1]
                );
                model.get_parameters::<f32>().unwrap()
            });
            for values in trained {
                for (value, right) in values.into_iter().zip(&expected) {
                    assert!((f64::from(value) - right).abs() < 2e-6, "{value} for {right}");
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_restored_is_refused() {
    ranks(2, |communicator| {
        let (mut model, mut optimizer) = build(communicator, Strategy::DataParallel);
        let good = optimizer.counters().unwrap();
        let changes: [(fn(&mut OptimizerCounters), &str); 4] = [
            (|c| c.version = 2, "counters.version is 2"),
            (|c| c.loss_scale = 4.0, "without options.loss_scale"),
            (|c| c.parameter_steps.clear(), "counters.parameter_count is 0"),
            (|c| c.group_rate_factors.push(1.0), "counters.group_count is 1"),
        ];
        for (change, words) in changes {
            let mut counters = good.clone();
            change(&mut counters);
            let error = fails(optimizer.restore(&mut model, &counters), Status::InvalidArgument);
            assert!(error.message().contains(words), "{error}");
        }
        let other = OptimizerCounters { steps: 4 + communicator.rank() as u64, ..good.clone() };
        let error = fails(optimizer.restore(&mut model, &other), Status::Mismatch);
        assert!(error.message().contains("steps is 4 on rank 0 and 5 on rank 1"), "{error}");
        let (mut stranger, _rule) = build(communicator, Strategy::DataParallel);
        fails(optimizer.restore(&mut stranger, &good), Status::InvalidArgument);
        optimizer.restore(&mut model, &good).unwrap();
    });
}
