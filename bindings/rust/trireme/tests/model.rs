//! Models and optimizers, against plain arithmetic on whole vectors. The numbers are small
//! multiples of powers of two, so every sum and every update here is exact.

mod support;

use support::{fails, options, ranks};
use trireme::{
    Buckets, Communicator, Dtype, Gradients, Model, ModelOptions, Optimizer, OptimizerOptions,
    Parameter, Reduction, RuleKind, Sgd, Shards, Share, Status, Strategy, Units,
};

const WORLDS: [i32; 5] = [1, 2, 3, 4, 5];

/// Three units of 6 + 2, 5 and 1 elements.
fn describe(communicator: &Communicator, options: &ModelOptions) -> Model {
    let mut model = Model::new(communicator, options).unwrap();
    let first = Some("first");
    let parameters = [
        Parameter { unit: first, ..Parameter::new("first.weight", Dtype::F32, &[3, 2]) },
        Parameter { unit: first, ..Parameter::new("first.bias", Dtype::F32, &[2]) },
        Parameter::new("second", Dtype::F32, &[5]),
        Parameter::new("scale", Dtype::F32, &[]),
    ];
    for (number, parameter) in parameters.iter().enumerate() {
        assert_eq!(model.add_parameter(parameter).unwrap(), number);
    }
    model
}

const ELEMENTS: usize = 14;
/// Where each parameter begins in the flat vectors, and how long it is.
const PARTS: [(usize, usize); 4] = [(0, 6), (6, 2), (8, 5), (13, 1)];
/// The unit of each parameter.
const UNIT: [usize; 4] = [0, 0, 1, 2];

fn sealed(communicator: &Communicator, strategy: Strategy) -> Model {
    sealed_and_shared(communicator, strategy, Share::Auto)
}

fn sealed_and_shared(communicator: &Communicator, strategy: Strategy, share: Share) -> Model {
    let options = options(communicator, strategy);
    let options = options
        .gradients(Gradients::Sum)
        .shards(Shards { share, ..options.shards })
        .buckets(Buckets { bytes: 16, ..Buckets::default() })
        .units(Units { minimum_bytes: 1, ..Units::default() });
    let mut model = describe(communicator, &options);
    model.seal().unwrap();
    model.set_parameters(Some(&initial()), 0).unwrap();
    model
}

fn initial() -> Vec<f32> {
    (0..ELEMENTS).map(|i| i as f32 - 4.0).collect()
}

fn gradient(rank: i32, pass: usize) -> Vec<f32> {
    (0..ELEMENTS).map(|i| ((i + 3 * rank as usize + 5 * pass) % 7) as f32 - 2.0).collect()
}

fn sgd(learning_rate: f64) -> OptimizerOptions<'static> {
    OptimizerOptions::new(RuleKind::Sgd).learning_rate(learning_rate)
}

/// Plain SGD on the sum of all ranks' gradients of these passes.
fn oracle(world: i32, passes: std::ops::Range<usize>) -> Vec<f32> {
    let mut values = initial();
    for pass in passes {
        for rank in 0..world {
            for (value, g) in values.iter_mut().zip(gradient(rank, pass)) {
                *value -= 0.5 * g;
            }
        }
    }
    values
}

fn everywhere(test: impl Fn(&Communicator, Strategy) + Sync) {
    for world in WORLDS {
        for strategy in Strategy::ALL {
            ranks(world, |communicator| test(communicator, strategy));
        }
    }
}

#[test]
fn the_flat_way_trains_as_one_process_would() {
    everywhere(|communicator, strategy| {
        let (rank, world) = (communicator.rank(), communicator.world_size());
        let mut model = sealed(communicator, strategy);
        let mut optimizer = Optimizer::new(&mut model, &sgd(0.5)).unwrap();
        for pass in 0..3 {
            model.accumulate_flat(&gradient(rank, pass)).unwrap();
            optimizer.step(&mut model).unwrap();
        }
        assert_eq!(model.get_parameters::<f32>().unwrap(), oracle(world, 0..3));
        assert_eq!(optimizer.step_count().unwrap(), 3);
    });
}

#[test]
fn the_hooks_way_trains_as_one_process_would() {
    everywhere(|communicator, strategy| {
        let (rank, world) = (communicator.rank(), communicator.world_size());
        let mut model = sealed(communicator, strategy);
        let mut optimizer = Optimizer::new(&mut model, &sgd(0.5)).unwrap();
        for pass in 0..3 {
            let expected = oracle(world, 0..pass);
            let gradient = gradient(rank, pass);
            model.begin_backward().unwrap();
            for number in (0..PARTS.len()).rev() {
                let (first, count) = PARTS[number];
                model.gather_unit(UNIT[number]).unwrap();
                let values: &[f32] = model.parameter(number).unwrap();
                assert_eq!(values, &expected[first..first + count]);
                model.gradient_ready(number, &gradient[first..first + count]).unwrap();
                model.release_unit(UNIT[number]).unwrap();
            }
            model.end_backward().unwrap();
            optimizer.step(&mut model).unwrap();
        }
        let mut values = vec![0.0_f32; ELEMENTS];
        model.get_parameters_into(&mut values).unwrap();
        assert_eq!(values, oracle(world, 0..3));
    });
}

#[test]
fn passes_without_sync_are_added_up() {
    everywhere(|communicator, strategy| {
        let (rank, world) = (communicator.rank(), communicator.world_size());
        let mut model = sealed(communicator, strategy);
        let mut optimizer = Optimizer::new(&mut model, &sgd(0.5)).unwrap();
        model.begin_backward_no_sync().unwrap();
        for (number, &(first, count)) in PARTS.iter().enumerate() {
            let gradient = &gradient(rank, 0)[first..first + count];
            model.gradient_ready(number, gradient).unwrap();
        }
        model.end_backward().unwrap();
        model.accumulate_flat_no_sync(&gradient(rank, 1)).unwrap();
        fails(optimizer.step(&mut model), Status::InvalidState);
        model.accumulate_flat(&gradient(rank, 2)).unwrap();
        optimizer.step(&mut model).unwrap();
        assert_eq!(model.get_parameters::<f32>().unwrap(), oracle(world, 0..3));
    });
}

#[test]
fn gradients_are_written_where_they_are_exchanged() {
    everywhere(|communicator, strategy| {
        let (rank, world) = (communicator.rank(), communicator.world_size());
        let mut model = sealed(communicator, strategy);
        let mut optimizer = Optimizer::new(&mut model, &sgd(0.5)).unwrap();
        fails(model.gradient::<f32>(0).map(drop), Status::InvalidState);
        let always = strategy == Strategy::DataParallel;
        let whole = always || strategy == Strategy::Zero1;
        for pass in 0..2 {
            if pass == 0 {
                model.begin_backward_no_sync().unwrap();
            } else {
                model.begin_backward().unwrap();
            }
            fails(model.gradient::<f32>(PARTS.len()).map(drop), Status::InvalidArgument);
            fails(model.gradient::<f64>(0).map(drop), Status::InvalidArgument);
            for (number, &(first, count)) in PARTS.iter().enumerate() {
                let own = &gradient(rank, pass)[first..first + count];
                let mut view = match model.gradient::<f32>(number).unwrap() {
                    Some(view) => view,
                    None => {
                        assert!(!always);
                        model.gradient_ready(number, own).unwrap();
                        continue;
                    }
                };
                assert!(whole);
                assert_eq!(view.adds(), pass > 0);
                assert_eq!(view.len(), count);
                let adds = view.adds();
                for (to, value) in view.iter_mut().zip(own) {
                    *to = if adds { *to + value } else { *value };
                }
                view.ready().unwrap();
                fails(model.gradient::<f32>(number).map(drop), Status::InvalidState);
            }
            model.end_backward().unwrap();
        }
        optimizer.step(&mut model).unwrap();
        assert_eq!(model.get_parameters::<f32>().unwrap(), oracle(world, 0..2));
    });
}

#[test]
fn discarded_gradients_are_forgotten() {
    everywhere(|communicator, strategy| {
        let (rank, world) = (communicator.rank(), communicator.world_size());
        let mut model = sealed(communicator, strategy);
        let mut optimizer = Optimizer::new(&mut model, &sgd(0.5)).unwrap();
        model.accumulate_flat(&gradient(rank, 4)).unwrap();
        model.discard_gradients().unwrap();
        fails(optimizer.step(&mut model), Status::InvalidState);
        model.accumulate_flat(&gradient(rank, 0)).unwrap();
        optimizer.step(&mut model).unwrap();
        assert_eq!(model.get_parameters::<f32>().unwrap(), oracle(world, 0..1));
    });
}

#[test]
fn leaves_are_dealt_out_and_give_the_same_bits_on_any_number_of_ranks() {
    // Fractions that do not add up exactly: only one order gives these bits.
    let leaf_gradient = |leaf: u32| -> Vec<f32> {
        (0..ELEMENTS).map(|i| 1.0 / (3.0 + i as f32 + 11.0 * leaf as f32)).collect()
    };
    let train = |world: i32, strategy| {
        ranks(world, |communicator| {
            let options = ModelOptions { leaves: 5, ..options(communicator, strategy) };
            let mut model = describe(communicator, &options);
            model.seal().unwrap();
            model.set_parameters(Some(&initial()), 0).unwrap();
            let rule = OptimizerOptions::new(RuleKind::AdamW).learning_rate(0.1).max_norm(0.25);
            let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
            let info = model.info().unwrap();
            assert_eq!(
                (info.leaves, info.micro_batches),
                (5, (5 + world as u32 - 1) / world as u32)
            );
            for _ in 0..3 {
                for micro_batch in 0..info.micro_batches {
                    let leaf = model.leaf(micro_batch).unwrap();
                    let wanted = communicator.rank() as u32 + micro_batch * world as u32;
                    assert_eq!(leaf, Some(wanted).filter(|&leaf| leaf < 5));
                    if let Some(leaf) = leaf {
                        model.accumulate_flat(&leaf_gradient(leaf)).unwrap();
                    }
                }
                optimizer.step(&mut model).unwrap();
            }
            fails(model.leaf(info.micro_batches), Status::InvalidArgument);
            fails(model.begin_backward_no_sync(), Status::Unsupported);
            let bits = |value: f32| value.to_bits();
            let values: Vec<f32> = model.get_parameters().unwrap();
            let norm = optimizer.gradient_norm().unwrap().to_bits();
            (values.into_iter().map(bits).collect::<Vec<_>>(), norm)
        })
    };
    let alone = train(1, Strategy::DataParallel).remove(0);
    for world in WORLDS {
        for strategy in Strategy::ALL {
            assert!(train(world, strategy).iter().all(|bits| *bits == alone), "{world} {strategy}");
        }
    }
}

#[test]
fn a_model_tells_what_it_looks_like_and_what_it_takes() {
    everywhere(|communicator, strategy| {
        let (rank, world) = (communicator.rank(), communicator.world_size());
        let mut model = sealed(communicator, strategy);
        let info = model.info().unwrap();
        assert_eq!((info.strategy, info.rank, info.world_size), (strategy, rank, world));
        assert_eq!((info.parameters, info.units, info.elements), (4, 3, ELEMENTS));
        assert_eq!((info.leaves, info.micro_batches), (0, 0));
        assert!(info.buckets >= 1);
        assert_eq!(info.unit_groups, 3);
        let (size, owner) = (world as usize, rank as usize);
        for (unit, (flat_first, elements)) in [(0, 8), (8, 5), (13, 1)].into_iter().enumerate() {
            let info = model.unit_info(unit).unwrap();
            assert_eq!((info.elements, info.flat_first), (elements, flat_first));
            // "rank r owns n/N of its n elements, the first n%N ranks one more"; of hybrid shards
            // it is part r / S of N/S of part r mod S of S.
            let cut = |(first, count): (usize, usize), parts: usize, part: usize| {
                let before = part * (count / parts) + part.min(count % parts);
                (first + before, count / parts + usize::from(part < count % parts))
            };
            let keep = match strategy {
                Strategy::HybridShard => options(communicator, strategy).shards.ranks as usize,
                _ => size,
            };
            let held = cut((0, elements), keep, owner % keep);
            let owned = cut(held, size / keep, owner / keep);
            assert_eq!(info.shard_count, owned.1);
            assert!(info.shard_first == owned.0 || owned.1 == 0); // nothing begins nowhere
            assert_eq!(info.unit_group, unit);
        }
        fails(model.unit_info(3), Status::InvalidArgument);

        let adam = OptimizerOptions::new(RuleKind::Adam).learning_rate(0.5);
        let optimizer = Optimizer::new(&mut model, &adam).unwrap();
        let memory = model.memory().unwrap();
        assert_eq!(memory.planned_parameters, memory.allocated_parameters);
        assert_eq!(memory.planned_gradients, memory.allocated_gradients);
        assert_eq!(memory.planned_optimizer_state, memory.allocated_optimizer_state);
        assert!(memory.planned_optimizer_state > 0 || strategy != Strategy::DataParallel);
        assert_eq!(optimizer.learning_rate().unwrap(), 0.5);
    });
}

#[test]
fn tied_parameters_share_and_frozen_ones_stay() {
    everywhere(|communicator, strategy| {
        let world = communicator.world_size() as f32;
        let options = ModelOptions { gradients: Gradients::Sum, ..options(communicator, strategy) };
        let mut model = Model::new(communicator, &options).unwrap();
        let shape = &[3];
        let tied = Parameter { tied_to: Some("in"), ..Parameter::new("out", Dtype::F64, shape) };
        let frozen = Parameter { frozen: true, ..Parameter::new("still", Dtype::F64, &[2]) };
        model.add_parameter(&Parameter::new("in", Dtype::F64, shape)).unwrap();
        model.add_parameter(&frozen).unwrap();
        model.add_parameter(&tied).unwrap();
        model.seal().unwrap();
        model.set_parameters(Some(&[8.0_f64, 9.0, 10.0, 5.0, 6.0]), 0).unwrap();
        let mut optimizer = Optimizer::new(&mut model, &sgd(1.0)).unwrap();
        model.begin_backward().unwrap();
        model.gradient_ready(0, &[1.0_f64; 3]).unwrap();
        fails(model.gradient_ready(0, &[1.0_f64; 3]), Status::InvalidState);
        fails(model.gradient_ready(1, &[1.0_f64; 2]), Status::InvalidArgument);
        let missing = fails(model.end_backward(), Status::InvalidState);
        assert!(missing.message().contains("out"), "{missing}");
        model.gradient_ready(2, &[2.0_f64; 3]).unwrap();
        model.end_backward().unwrap();
        optimizer.step(&mut model).unwrap();
        let down = f64::from(3.0 * world);
        let wanted = vec![8.0 - down, 9.0 - down, 10.0 - down, 5.0, 6.0];
        assert_eq!(model.get_parameters::<f64>().unwrap(), wanted);
        model.gather_unit(0).unwrap();
        let (first, alias) =
            (model.parameter::<f64>(0).unwrap(), model.parameter::<f64>(2).unwrap());
        assert_eq!((first, first.as_ptr()), (alias, alias.as_ptr()));
        model.release_unit(0).unwrap();
    });
}

#[test]
fn parameters_without_elements_are_parameters() {
    everywhere(|communicator, strategy| {
        let options = options(communicator, strategy);
        let options = options.shards(Shards { share: Share::Never, ..options.shards });
        let mut model = Model::new(communicator, &options).unwrap();
        model.add_parameter(&Parameter::new("none", Dtype::F32, &[4, 0])).unwrap();
        model.add_parameter(&Parameter::new("one", Dtype::F32, &[1])).unwrap();
        model.seal().unwrap();
        let mut optimizer = Optimizer::new(&mut model, &sgd(1.0)).unwrap();
        model.gather_unit(0).unwrap();
        assert!(model.parameter::<f32>(0).unwrap().is_empty());
        assert!(model.parameter_mut::<f32>(0).unwrap().is_empty());
        model.release_unit(0).unwrap();
        model.begin_backward().unwrap();
        model.gradient_ready::<f32>(0, &[]).unwrap();
        model.gradient_ready(1, &[4.0_f32]).unwrap();
        model.end_backward().unwrap();
        optimizer.step(&mut model).unwrap();
        assert_eq!(model.get_parameters::<f32>().unwrap(), [-4.0]);
    });
}

#[test]
fn the_root_gives_its_values_and_the_others_need_none() {
    everywhere(|communicator, strategy| {
        let root = communicator.world_size() - 1;
        let mut model = sealed(communicator, strategy);
        let values: Vec<f32> = (0..ELEMENTS).map(|i| (i * i) as f32).collect();
        let mine = (communicator.rank() == root).then_some(&values[..]);
        model.set_parameters(mine, root).unwrap();
        assert_eq!(model.get_parameters::<f32>().unwrap(), values);
        fails(model.set_parameters(Some(&values), root + 1), Status::InvalidArgument);
        fails(model.set_parameters(Some(&values[1..]), root), Status::InvalidArgument);
        fails(model.set_parameters(Some(&[0.0_f64; ELEMENTS]), root), Status::InvalidArgument);
        fails(model.get_parameters_into(&mut [0.0_f32; 3]), Status::InvalidArgument);
        fails(model.get_parameters::<f64>(), Status::InvalidArgument);
        communicator.barrier().unwrap();
    });
}

#[test]
fn a_parameter_of_a_sharded_unit_is_there_while_it_is_gathered() {
    ranks(2, |communicator| {
        let mut model = sealed_and_shared(communicator, Strategy::Zero3, Share::Never);
        fails(model.parameter::<f32>(0), Status::InvalidState);
        fails(model.release_unit(0), Status::InvalidState);
        model.gather_unit(0).unwrap();
        model.gather_unit(0).unwrap();
        model.release_unit(0).unwrap();
        assert_eq!(model.parameter::<f32>(1).unwrap(), [2.0, 3.0]);
        model.parameter_mut::<f32>(1).unwrap()[0] = 77.0;
        assert_eq!(model.parameter::<f32>(1).unwrap(), [77.0, 3.0]);
        model.release_unit(0).unwrap();
        fails(model.parameter::<f32>(0), Status::InvalidState);
        fails(model.gather_unit(3), Status::InvalidArgument);
    });
}

#[test]
fn calls_at_the_wrong_moment_are_refused() {
    ranks(2, |communicator| {
        let mut model = describe(communicator, &ModelOptions::new(Strategy::Zero2));
        fails(model.info(), Status::InvalidState);
        fails(model.unit_info(0), Status::InvalidState);
        fails(model.memory(), Status::InvalidState);
        fails(model.get_parameters::<f32>(), Status::InvalidState);
        fails(model.get_parameters_into(&mut [0.0_f32; ELEMENTS]), Status::InvalidState);
        fails(model.set_parameters(Some(&initial()), 0), Status::InvalidState);
        fails(model.parameter::<f32>(0), Status::InvalidState);
        fails(model.gather_unit(0), Status::InvalidState);
        fails(model.begin_backward(), Status::InvalidState);
        fails(model.leaf(0), Status::InvalidState);
        fails(model.discard_gradients(), Status::InvalidState);
        fails(Optimizer::new(&mut model, &sgd(1.0)), Status::InvalidState);

        model.seal().unwrap();
        fails(model.seal(), Status::InvalidState);
        let late = Parameter::new("late", Dtype::F32, &[1]);
        fails(model.add_parameter(&late), Status::InvalidState);
        fails(model.leaf(0), Status::InvalidState);
        fails(model.end_backward(), Status::InvalidState);
        fails(model.gradient_ready(0, &[0.0_f32; 6]), Status::InvalidState);

        let rule = sgd(1.0).max_norm(1e9);
        let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
        fails(Optimizer::new(&mut model, &rule), Status::InvalidState);
        fails(optimizer.step(&mut model), Status::InvalidState);
        fails(optimizer.gradient_norm(), Status::InvalidState);
        model.begin_backward().unwrap();
        fails(model.begin_backward(), Status::InvalidState);
        fails(optimizer.step(&mut model), Status::InvalidState);
        model.discard_gradients().unwrap(); // ends the pass, too
        fails(model.end_backward(), Status::InvalidState);
        communicator.barrier().unwrap();
    });
}

#[test]
fn types_lengths_and_numbers_that_do_not_fit_are_refused() {
    ranks(2, |communicator| {
        let mut model = sealed(communicator, Strategy::Zero1);
        let refused = |result: trireme::Result<()>| fails(result, Status::InvalidArgument);
        let error = refused(model.parameter::<f64>(0).map(drop));
        assert!(error.message().contains("f32") && error.message().contains("f64"), "{error}");
        refused(model.parameter::<f32>(4).map(drop));
        refused(model.accumulate_flat(&[0.0_f32; 3]));
        refused(model.accumulate_flat(&[0.0_f64; ELEMENTS]));
        model.begin_backward().unwrap();
        refused(model.gradient_ready(0, &[0.0_f32; 5]));
        refused(model.gradient_ready(0, &[0.0_f64; 6]));
        refused(model.gradient_ready(9, &[0.0_f32; 6]));
        for (number, &(_, count)) in PARTS.iter().enumerate() {
            model.gradient_ready(number, &vec![3.0_f32; count]).unwrap();
        }
        model.end_backward().unwrap();
        model.discard_gradients().unwrap();

        for bad in
            [Sgd { momentum: 1.5, ..Sgd::default() }, Sgd { nesterov: true, ..Sgd::default() }]
        {
            refused(Optimizer::new(&mut model, &OptimizerOptions::new(bad)).map(drop));
        }
        let mut optimizer = Optimizer::new(&mut model, &sgd(1.0)).unwrap();
        refused(optimizer.set_learning_rate(-1.0));
        refused(optimizer.set_learning_rate(f64::NAN));
        optimizer.set_learning_rate(0.25).unwrap();
        assert_eq!(optimizer.learning_rate().unwrap(), 0.25);

        let mut other = sealed(communicator, Strategy::Zero1);
        refused(optimizer.step(&mut other));
        communicator.barrier().unwrap();
    });
}

#[test]
fn parameters_that_break_a_rule_are_refused() {
    ranks(1, |communicator| {
        let mut model = describe(communicator, &ModelOptions::new(Strategy::Zero3));
        let mut refused =
            |parameter: &Parameter<'_>, status| fails(model.add_parameter(parameter), status);
        let bad = Status::InvalidArgument;
        let good = Parameter::new("good", Dtype::F32, &[5]);
        refused(&Parameter { name: "second", ..good }, bad);
        refused(&Parameter { name: "", ..good }, bad);
        refused(&Parameter { name: "a\0b", ..good }, bad);
        refused(&Parameter { unit: Some("first"), ..good }, bad);
        refused(&Parameter { tied_to: Some("nobody"), ..good }, bad);
        refused(&Parameter { shape: &[u64::MAX, 2], ..good }, bad);
        refused(&Parameter { shape: &[1; 17], ..good }, bad);
        refused(&Parameter { dtype: Dtype::I32, ..good }, Status::Unsupported);
        assert_eq!(model.add_parameter(&good).unwrap(), 4);
        model.seal().unwrap();

        let mut empty = Model::new(communicator, &ModelOptions::new(Strategy::Zero3)).unwrap();
        empty.seal().unwrap(); // without parameters
        let leaves = ModelOptions { leaves: 65_537, ..ModelOptions::new(Strategy::Zero1) };
        fails(Model::new(communicator, &leaves), bad);
    });
}

#[test]
fn a_registration_that_differs_is_named_on_every_rank() {
    ranks(3, |communicator| {
        let options = ModelOptions::new(Strategy::Zero3);
        let mut model = Model::new(communicator, &options).unwrap();
        model.add_parameter(&Parameter::new("same", Dtype::F32, &[4])).unwrap();
        let name = if communicator.rank() == 1 { "weight_b" } else { "weight_a" };
        model.add_parameter(&Parameter::new(name, Dtype::F32, &[4])).unwrap();
        let error = fails(model.seal(), Status::Mismatch);
        assert!(error.message().contains("weight_a"), "{error}");
        assert!(error.message().contains("weight_b"), "{error}");
        // "The communicator lives on".
        let mut one = [1];
        communicator.all_reduce(&mut one, Reduction::Sum).unwrap();
        assert_eq!(one, [3]);
    });
}

#[test]
fn options_of_optimizers_that_differ_are_refused_and_the_model_goes_on() {
    ranks(2, |communicator| {
        let mut model = sealed(communicator, Strategy::Zero2);
        let rate = 0.5 + f64::from(communicator.rank());
        fails(Optimizer::new(&mut model, &sgd(rate)), Status::Mismatch);
        let mut optimizer = Optimizer::new(&mut model, &sgd(0.5)).unwrap();
        model.accumulate_flat(&gradient(communicator.rank(), 0)).unwrap();
        optimizer.step(&mut model).unwrap();
        assert_eq!(model.get_parameters::<f32>().unwrap(), oracle(2, 0..1));
    });
}

#[test]
fn the_norm_is_the_root_of_all_squares() {
    everywhere(|communicator, strategy| {
        let mut model = sealed(communicator, strategy);
        let rule = sgd(0.5).max_norm(100.0);
        let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
        let mut gradients = [0.0_f32; ELEMENTS];
        if communicator.rank() == 0 {
            (gradients[0], gradients[13]) = (3.0, -4.0);
        }
        model.accumulate_flat(&gradients).unwrap();
        optimizer.step(&mut model).unwrap();
        assert_eq!(optimizer.gradient_norm().unwrap(), 5.0);
    });
}

#[test]
fn calls_that_may_change_parameters_want_the_model_alone() {
    // A call that takes `&self` is of another type, and does not compile here.
    type Call = fn(&mut Model) -> trireme::Result<()>;
    let _: [Call; 6] = [
        Model::begin_backward,
        Model::begin_backward_no_sync,
        Model::absent_backward,
        Model::absent_backward_no_sync,
        Model::end_backward,
        Model::discard_gradients,
    ];
    let _: fn(&mut Model, usize, &[f32]) -> trireme::Result<()> = Model::gradient_ready::<f32>;
    type Flat = fn(&mut Model, &[f32]) -> trireme::Result<()>;
    let _: [Flat; 2] = [Model::accumulate_flat::<f32>, Model::accumulate_flat_no_sync::<f32>];
}

#[test]
fn objects_may_be_dropped_in_any_order() {
    for order in 0..6 {
        for strategy in Strategy::ALL {
            let rendezvous = &support::rendezvous();
            std::thread::scope(|scope| {
                for rank in 0..2 {
                    scope.spawn(move || {
                        let communicator = support::join(rendezvous, rank, 2);
                        let mut model = sealed(&communicator, strategy);
                        let mut optimizer =
                            Optimizer::new(&mut model, &OptimizerOptions::new(RuleKind::Adam))
                                .unwrap();
                        model.accumulate_flat(&gradient(rank, 0)).unwrap();
                        optimizer.step(&mut model).unwrap();
                        communicator.barrier().unwrap();
                        let mut all: [Option<Box<dyn std::any::Any>>; 3] = [
                            Some(Box::new(communicator)),
                            Some(Box::new(model)),
                            Some(Box::new(optimizer)),
                        ];
                        let first = order % 3;
                        let second = (first + 1 + order / 3) % 3;
                        all[first] = None;
                        all[second] = None;
                        drop(all);
                    });
                }
            });
        }
    }
}

#[test]
fn a_model_dropped_while_its_gradients_travel_harms_nobody() {
    for strategy in Strategy::ALL {
        ranks(3, |communicator| {
            let mut model = sealed(communicator, strategy);
            model.accumulate_flat(&gradient(communicator.rank(), 0)).unwrap();
            drop(model);
            // The caller's own operations do not wait for a model.
            let mut values = [communicator.rank()];
            communicator.all_reduce(&mut values, Reduction::Sum).unwrap();
            assert_eq!(values, [3]);
        });
    }
}

#[test]
fn training_ends_when_the_group_does() {
    let both = std::sync::Barrier::new(2);
    ranks(2, |communicator| {
        // So that the parameters come from the others.
        let mut model = sealed_and_shared(communicator, Strategy::Zero3, Share::Never);
        let mut optimizer = Optimizer::new(&mut model, &sgd(0.5)).unwrap();
        model.accumulate_flat(&gradient(communicator.rank(), 0)).unwrap();
        optimizer.step(&mut model).unwrap();
        both.wait(); // an abort during the other rank's step would fail that
        communicator.abort("enough").unwrap();
        let error = fails(model.get_parameters::<f32>(), Status::Aborted);
        assert!(error.message().contains("enough"), "{error}");
    });
}

#[test]
fn a_rank_may_leave_as_soon_as_it_has_the_parameters() {
    for strategy in Strategy::ALL {
        for _ in 0..20 {
            let rendezvous = &support::rendezvous();
            std::thread::scope(|scope| {
                for rank in 0..3 {
                    scope.spawn(move || {
                        let communicator = support::join(rendezvous, rank, 3);
                        let mut model = sealed(&communicator, strategy);
                        let mut optimizer = Optimizer::new(&mut model, &sgd(0.5)).unwrap();
                        for unit in [0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0] {
                            model.gather_unit(unit).unwrap();
                            model.release_unit(unit).unwrap();
                        }
                        model.accumulate_flat(&gradient(rank, 0)).unwrap();
                        optimizer.step(&mut model).unwrap();
                        assert_eq!(model.get_parameters::<f32>().unwrap(), oracle(3, 0..1));
                    });
                }
            });
        }
    }
}
