//! Where shards lie and when they move: limits of memory, orders, strides, kept units, rows.

mod support;

use support::{fails, options, ranks};
use trireme::{
    Buckets, Communicator, Dtype, Gradients, Model, ModelOptions, Optimizer, OptimizerOptions,
    Parameter, RuleKind, Shards, Share, Status, Strategy, Units,
};

/// A unit each.
const SHAPES: [&[u64]; 3] = [&[7, 5], &[3], &[4, 2]];
const ELEMENTS: usize = 46;

fn described(communicator: &Communicator, options: &ModelOptions) -> Model {
    let mut model = Model::new(communicator, options).unwrap();
    for (number, &shape) in SHAPES.iter().enumerate() {
        model.add_parameter(&Parameter::new(&format!("p{number}"), Dtype::F64, shape)).unwrap();
    }
    model
}

fn sealed(communicator: &Communicator, options: &ModelOptions) -> Model {
    let mut model = described(communicator, options);
    model.seal().unwrap();
    model
}

fn apart(communicator: &Communicator, strategy: Strategy) -> ModelOptions<'static> {
    let options = options(communicator, strategy);
    options
        .units(Units { minimum_bytes: 1, ..Units::default() })
        .buckets(Buckets { bytes: 1, ..Buckets::default() })
        .shards(Shards { share: Share::Never, ..options.shards })
}

fn sgd() -> OptimizerOptions<'static> {
    OptimizerOptions::new(RuleKind::Sgd).learning_rate(0.5)
}

/// One step from 0 with gradients that are multiples of a half: exact in any order.
fn step(communicator: &Communicator, model: &mut Model, forward: bool) -> Vec<f64> {
    let mut optimizer = Optimizer::new(model, &sgd()).unwrap();
    model.begin_backward().unwrap();
    for place in 0..SHAPES.len() {
        let number = if forward { place } else { SHAPES.len() - 1 - place };
        let count = SHAPES[number].iter().product::<u64>() as usize;
        let gradient = vec![f64::from(communicator.rank() + 1) * (number + 1) as f64; count];
        model.gradient_ready(number, &gradient).unwrap();
    }
    model.end_backward().unwrap();
    optimizer.step(model).unwrap();
    model.get_parameters().unwrap()
}

fn expected(world: i32) -> Vec<f64> {
    let mean = f64::from(world * (world + 1) / 2) / f64::from(world);
    let mut values = Vec::new();
    for (number, shape) in SHAPES.iter().enumerate() {
        let count = shape.iter().product::<u64>() as usize;
        values.extend(vec![-0.5 * mean * (number + 1) as f64; count]);
    }
    values
}

#[test]
fn a_memory_limit_is_kept_and_its_text_tells_what_would_fit() {
    for strategy in Strategy::ALL {
        ranks(2, |communicator| {
            let plain = apart(communicator, strategy);
            let limited = |bytes| plain.memory_limit_bytes(bytes);
            let error = fails(described(communicator, &limited(1)).seal(), Status::OutOfMemory);
            assert!(error.message().contains("memory_limit_bytes is 1 bytes"), "{error}");
            let text = error.message().split("rank 0 needs ").nth(1).unwrap();
            let needs: u64 = text.split(' ').next().unwrap().parse().unwrap();
            let mut model = sealed(communicator, &limited(needs));
            let adam = OptimizerOptions::new(RuleKind::Adam);
            let error = fails(Optimizer::new(&mut model, &adam), Status::OutOfMemory);
            assert!(error.message().contains("optimizer state"), "{error}");
            Optimizer::new(&mut model, &sgd()).unwrap();
            let mut less = described(communicator, &limited(needs - 1));
            fails(less.seal(), Status::OutOfMemory);
            let planned = limited(needs).planned_rule(RuleKind::AdamW);
            let error = fails(described(communicator, &planned).seal(), Status::OutOfMemory);
            assert!(error.message().contains(" of adamw; "), "{error}");
            let alone = plain.planned_rule(RuleKind::AdamW);
            let error = fails(Model::new(communicator, &alone), Status::InvalidArgument);
            assert!(error.message().contains("without options.memory_limit_bytes"), "{error}");
            communicator.barrier().unwrap();
        });
    }
}

#[test]
fn buckets_follow_the_gradients_unless_the_order_is_fixed() {
    for strategy in Strategy::ALL {
        for fixed_order in [false, true] {
            ranks(4, |communicator| {
                let plain = apart(communicator, strategy);
                let mut model = sealed(communicator, &plain.fixed_order(fixed_order));
                assert_eq!(step(communicator, &mut model, true), expected(4));
                let statistics = model.statistics().unwrap();
                assert_eq!(statistics.moved_buckets, if fixed_order { 0 } else { 2 });
                step(communicator, &mut model, true);
                let again = model.statistics().unwrap();
                let slots =
                    plain.strategy != Strategy::DataParallel && plain.strategy != Strategy::Zero1;
                assert_eq!(statistics.extra_buckets > 0, slots);
                assert_eq!(again.extra_buckets > statistics.extra_buckets, slots && fixed_order);
                communicator.barrier().unwrap();
            });
        }
    }
}

#[test]
fn the_ranks_of_a_copy_are_a_stride_apart() {
    let held = ranks(4, |communicator| {
        let plain = apart(communicator, Strategy::HybridShard);
        let strides = |stride| plain.shards(Shards { ranks: 2, stride, ..plain.shards });
        let mut model = sealed(communicator, &strides(2));
        assert_eq!(step(communicator, &mut model, false), expected(4));
        let error = fails(Model::new(communicator, &strides(3)), Status::InvalidArgument);
        assert!(error.message().contains("options.shards.stride"), "{error}");
        communicator.barrier().unwrap();
        model.memory().unwrap().planned_parameters
    });
    // 18 of 35, 2 of 3 and 4 of 8 elements on the ranks with the first part.
    assert_eq!(held, [8 * 24, 8 * 24, 8 * 22, 8 * 22]);
}

#[test]
fn kept_units_are_gathered_once_a_step() {
    ranks(3, |communicator| {
        let plain = apart(communicator, Strategy::Zero3);
        let mut model = sealed(communicator, &plain.keep_gathered(true));
        for steps in 1..=2 {
            for unit in [0, 1, 2, 2, 1, 0, 0] {
                model.gather_unit(unit).unwrap();
                model.release_unit(unit).unwrap();
            }
            assert_eq!(model.statistics().unwrap().gathers, 3 * steps);
            model.set_parameters(Some(&[0.0; ELEMENTS]), 0).unwrap();
        }
        let two = ModelOptions::new(Strategy::Zero2).keep_gathered(true);
        fails(Model::new(communicator, &two), Status::InvalidArgument);
        communicator.barrier().unwrap();
    });
}

#[test]
fn buckets_are_updated_in_backward() {
    for strategy in Strategy::ALL {
        ranks(2, |communicator| {
            let plain = apart(communicator, strategy);
            let mut model = sealed(communicator, &plain.update_in_backward(true));
            assert_eq!(step(communicator, &mut model, false), expected(2));
            let memory = model.memory().unwrap();
            assert_eq!(memory.planned_gradients, 0);
            assert_eq!(memory.allocated_working, memory.planned_working);
            fails(model.begin_backward(), Status::InvalidState); // its optimizer is gone
            fails(Optimizer::new(&mut model, &sgd().max_norm(1.0)), Status::Unsupported);
            communicator.barrier().unwrap();
        });
    }
}

#[test]
fn a_shared_parameter_is_not_read_while_another_rank_may_change_it() {
    for strategy in [Strategy::Zero1, Strategy::Zero2, Strategy::Zero3] {
        for (leaves, share) in [(0, Share::Always), (6, Share::Always), (0, Share::Never)] {
            ranks(2, |communicator| {
                let plain = apart(communicator, strategy).leaves(leaves).update_in_backward(true);
                let plain = plain.shards(Shards { share, ..plain.shards });
                let mut model = described(communicator, &plain);
                let alias = Parameter::new("alias", Dtype::F64, SHAPES[2]);
                let alias = Parameter { unit: Some("p2"), tied_to: Some("p2"), ..alias };
                model.add_parameter(&alias).unwrap();
                let frozen = Parameter::new("frozen", Dtype::F64, &[1]);
                model.add_parameter(&Parameter { frozen: true, ..frozen }).unwrap();
                model.seal().unwrap();
                let shared = share == Share::Always;
                assert_eq!(model.info().unwrap().shared_bytes > 0, shared);
                let mut optimizer = Optimizer::new(&mut model, &sgd()).unwrap();
                let reads = |model: &mut Model, parameter: usize, wanted: bool| {
                    let unit = [0, 1, 2, 2, 3][parameter];
                    model.gather_unit(unit).unwrap();
                    let read = model.parameter::<f64>(parameter).map(drop);
                    model.release_unit(unit).unwrap();
                    if wanted {
                        return read.unwrap();
                    }
                    let error = fails(read, Status::InvalidState);
                    assert!(error.message().contains("update_in_backward"), "{error}");
                };
                for _ in 0..2 {
                    for pass in 1..=leaves.max(2) / 2 {
                        let free = !shared || pass < leaves / 2;
                        model.begin_backward().unwrap();
                        reads(&mut model, 0, true);
                        fails(model.gradient_ready(0, &[1.0_f64; 3]), Status::InvalidArgument);
                        reads(&mut model, 0, true);
                        model.gradient_ready(0, &[1.0_f64; 35]).unwrap();
                        reads(&mut model, 0, free);
                        reads(&mut model, 1, true);
                        model.gradient_ready(2, &[1.0_f64; 8]).unwrap();
                        reads(&mut model, 2, true); // until its last name has a gradient
                        model.gradient_ready(3, &[1.0_f64; 8]).unwrap();
                        reads(&mut model, 2, free);
                        reads(&mut model, 3, free);
                        model.gradient_ready(1, &[1.0_f64; 3]).unwrap();
                        model.end_backward().unwrap();
                        reads(&mut model, 1, free);
                        reads(&mut model, 4, true);
                    }
                    optimizer.step(&mut model).unwrap();
                    (0..5).for_each(|parameter| reads(&mut model, parameter, true));
                }
                for pass in 1..=leaves.max(2) / 2 {
                    model.accumulate_flat(&[1.0_f64; ELEMENTS + 1]).unwrap();
                    reads(&mut model, 0, !shared || pass < leaves / 2);
                }
                optimizer.step(&mut model).unwrap();
                reads(&mut model, 0, true);
                communicator.barrier().unwrap();
            });
        }
    }
}

#[test]
fn units_are_gathered_again_by_a_few() {
    ranks(4, |communicator| {
        let plain = apart(communicator, Strategy::Zero3);
        let by = |reshard_ranks| plain.units(Units { reshard_ranks, ..plain.units });
        let mut model = sealed(communicator, &by(2));
        for steps in 1..=2 {
            for unit in [0, 1, 2, 2, 1, 0] {
                model.gather_unit(unit).unwrap();
                model.release_unit(unit).unwrap();
            }
            let statistics = model.statistics().unwrap();
            assert_eq!((statistics.gathers, statistics.reshard_gathers), (6 * steps, 3 * steps));
            model.set_parameters(Some(&[0.0; ELEMENTS]), 0).unwrap();
        }
        let error = fails(Model::new(communicator, &by(3)), Status::InvalidArgument);
        assert!(error.message().contains("options.units.reshard_ranks"), "{error}");
        communicator.barrier().unwrap();
    });
}

#[test]
fn contributions_travel_rounded_and_sums_stay_wide() {
    ranks(2, |communicator| {
        let narrow =
            ModelOptions::new(Strategy::Zero2).gradients(Gradients::Sum).reduce_dtype(Dtype::Bf16);
        let mut model = Model::new(communicator, &narrow).unwrap();
        fails(model.add_parameter(&Parameter::new("wide", Dtype::F64, &[2])), Status::Unsupported);
        model.add_parameter(&Parameter::new("weight", Dtype::F32, &[3])).unwrap();
        model.seal().unwrap();
        let mut optimizer = Optimizer::new(&mut model, &sgd().learning_rate(1.0)).unwrap();
        let small = 1.0_f32 / 512.0;
        let own = if communicator.rank() == 0 { 1.0 + small } else { small };
        model.set_parameters(Some(&[0.0_f32; 3]), 0).unwrap();
        model.accumulate_flat(&[own; 3]).unwrap();
        optimizer.step(&mut model).unwrap();
        let values: Vec<f32> = model.get_parameters().unwrap();
        assert_eq!(values, [-1.0 - small; 3]);
        fails(Model::new(communicator, &narrow.reduce_dtype(Dtype::F32)), Status::InvalidArgument);
        communicator.barrier().unwrap();
    });
}

#[test]
fn shards_begin_and_end_with_rows() {
    let shards = ranks(4, |communicator| {
        let plain = apart(communicator, Strategy::Zero3);
        let mut model = sealed(communicator, &plain.whole_rows(true));
        let unit = model.unit_info(0).unwrap();
        assert_eq!(step(communicator, &mut model, false), expected(4));
        communicator.barrier().unwrap();
        (unit.shard_first, unit.shard_count)
    });
    assert_eq!(shards, [(0, 10), (10, 10), (20, 5), (25, 10)]);
}
