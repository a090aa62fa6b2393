//! Features of models: hybrid shards, groups, uneven inputs, unused gradients, hooks. The numbers
//! are small multiples of powers of two, so every sum and every update here is exact.

mod support;

use std::sync::{Arc, Mutex, Weak};

use support::{fails, options, ranks, WORLDS};
use trireme::{
    Bucket, Buckets, Clipping, Communicator, Dtype, Gradients, HookMoment, Model, ModelOptions,
    Optimizer, OptimizerOptions, Parameter, Rule, RuleKind, Shards, Share, Status, Strategy,
    Stream, Units, Unused,
};

const ELEMENTS: usize = 12;
/// Where each parameter begins in the flat vectors, and how long it is. Each is a unit.
const PARTS: [(usize, usize); 4] = [(0, 5), (5, 3), (8, 1), (9, 3)];

fn describe(model: &mut Model) {
    for (number, &(_, count)) in PARTS.iter().enumerate() {
        let name = format!("p{number}");
        model.add_parameter(&Parameter::new(&name, Dtype::F64, &[count as u64])).unwrap();
    }
    model.seal().unwrap();
    model.set_parameters(Some(&initial()), 0).unwrap();
}

fn sealed(communicator: &Communicator, options: &ModelOptions) -> Model {
    let mut model = Model::new(communicator, options).unwrap();
    describe(&mut model);
    model
}

fn initial() -> Vec<f64> {
    (0..ELEMENTS).map(|i| i as f64 - 4.0).collect()
}

fn gradient(rank: i32) -> Vec<f64> {
    (0..ELEMENTS).map(|i| ((i + 3 * rank as usize) % 7) as f64 - 2.0).collect()
}

fn sgd() -> OptimizerOptions<'static> {
    by(RuleKind::Sgd)
}

fn by(rule: impl Into<Rule>) -> OptimizerOptions<'static> {
    OptimizerOptions::new(rule).learning_rate(0.5)
}

fn sum_of(strategy: Strategy) -> ModelOptions<'static> {
    ModelOptions { gradients: Gradients::Sum, ..ModelOptions::new(strategy) }
}

#[test]
fn hybrid_shards_hold_the_parameters_once_a_shard_and_the_state_once() {
    for (world, shard_ranks) in [(4, 2), (4, 4), (4, 1), (8, 2)] {
        let memories = ranks(world, |communicator| {
            let options = ModelOptions::new(Strategy::HybridShard).shards(shard_ranks);
            let mut model = sealed(communicator, &options);
            let _optimizer = Optimizer::new(&mut model, &by(RuleKind::Adam)).unwrap();
            let memory = model.memory().unwrap();
            communicator.barrier().unwrap();
            memory
        });
        let held: u64 = memories.iter().map(|memory| memory.allocated_parameters).sum();
        assert_eq!(held, 8 * ELEMENTS as u64 * (world as u64 / u64::from(shard_ranks)));
        let state: u64 = memories.iter().map(|memory| memory.allocated_optimizer_state).sum();
        assert_eq!(state, 2 * 8 * ELEMENTS as u64);
    }
}

#[test]
fn shard_ranks_0_takes_the_ranks_of_the_host() {
    ranks(3, |communicator| {
        let planned = |shard_ranks| {
            let options = ModelOptions::new(Strategy::HybridShard).shards(shard_ranks);
            sealed(communicator, &options).memory().unwrap().planned_parameters
        };
        assert_eq!(planned(0), planned(3));
    });
}

#[test]
fn shards_that_do_not_fit_are_refused() {
    ranks(3, |communicator| {
        for (strategy, shard_ranks) in [(Strategy::HybridShard, 2), (Strategy::Zero3, 3)] {
            let options = ModelOptions::new(strategy).shards(shard_ranks);
            fails(Model::new(communicator, &options), Status::InvalidArgument);
        }
        communicator.barrier().unwrap();
    });
}

#[test]
fn small_units_are_one_group_and_persistent_ones_need_no_gather() {
    ranks(2, |communicator| {
        let zero3 = ModelOptions::new(Strategy::Zero3);
        assert_eq!(sealed(communicator, &zero3).info().unwrap().unit_groups, 1);
        let apart = zero3.units(Units { minimum_bytes: 1, ..Units::default() });
        let model = sealed(communicator, &apart);
        assert_eq!(model.info().unwrap().unit_groups, 4);
        assert_eq!(model.unit_info(2).unwrap().unit_group, 2);
        let whole = apart.units(Units { persistent_bytes: 25, ..apart.units });
        let mut model = sealed(communicator, &whole);
        assert_eq!(model.parameter::<f64>(1).unwrap(), [1.0, 2.0, 3.0]);
        fails(model.parameter::<f64>(0), Status::InvalidState);
        for unit in 1..4 {
            model.gather_unit(unit).unwrap();
            model.release_unit(unit).unwrap();
        }
        assert_eq!(model.statistics().unwrap().gathers, 0);
        let early = apart.buckets(Buckets { first_bytes: 1, ..Buckets::default() });
        assert_eq!(sealed(communicator, &apart).info().unwrap().buckets, 1);
        assert_eq!(sealed(communicator, &early).info().unwrap().buckets, 2);
        communicator.barrier().unwrap();
    });
}

#[test]
fn statistics_count_what_was_done() {
    ranks(2, |communicator| {
        let options = ModelOptions {
            units: Units { minimum_bytes: 1, ..Units::default() },
            buckets: Buckets { bytes: 1, ..Buckets::default() },
            shards: Shards { share: Share::Never, ..Shards::default() }, // gathers are real
            ..ModelOptions::new(Strategy::Zero3)
        };
        fails(Model::new(communicator, &options).unwrap().statistics(), Status::InvalidState);
        let mut model = sealed(communicator, &options);
        let mut optimizer = Optimizer::new(&mut model, &sgd()).unwrap();
        let mut seen = Vec::new();
        for _ in 0..2 {
            for unit in [0, 1, 2, 3, 3, 2, 1, 0] {
                model.gather_unit(unit).unwrap();
                model.release_unit(unit).unwrap();
            }
            model.accumulate_flat(&gradient(communicator.rank())).unwrap();
            optimizer.step(&mut model).unwrap();
            seen.push(model.statistics().unwrap());
        }
        let buckets = model.info().unwrap().buckets as u64;
        assert_eq!((seen[0].steps, seen[1].steps), (1, 2));
        assert_eq!((seen[0].reductions, seen[1].reductions), (buckets, 2 * buckets));
        assert!(seen[1].prefetched > seen[0].prefetched, "{seen:?}");
        assert!(seen[1].prefetched <= seen[1].gathers && seen[1].peak_unit_groups <= 4, "{seen:?}");
        assert!(!seen[1].exposed.is_zero());
        communicator.barrier().unwrap();
    });
}

#[test]
fn a_model_on_the_host_has_no_stream() {
    ranks(1, |communicator| {
        let model = sealed(communicator, &ModelOptions::new(Strategy::Zero1));
        // SAFETY: it is no stream, and the model does not use it.
        for stream in [Stream::default(), unsafe { Stream::from_raw(8 as *mut _) }] {
            let error = fails(model.set_stream(stream), Status::InvalidState);
            assert!(error.message().contains("works on the host"), "{error}");
        }
    });
}

#[test]
fn the_rank_whose_copy_differs_is_named_on_all() {
    for strategy in [Strategy::DataParallel, Strategy::Zero1, Strategy::Zero2] {
        ranks(3, |communicator| {
            let options = ModelOptions::new(strategy);
            fails(
                Model::new(communicator, &options).unwrap().check_replicas(),
                Status::InvalidState,
            );
            let mut model = sealed(communicator, &options);
            model.check_replicas().unwrap();
            if communicator.rank() == 1 {
                model.parameter_mut::<f64>(3).unwrap()[2] += 0.5;
            }
            let error = fails(model.check_replicas(), Status::Mismatch);
            assert!(error.message().contains("p3"), "{error}");
            assert_eq!(error.blamed(), [1]);
            model.set_parameters(Some(&initial()), 0).unwrap();
            model.check_replicas().unwrap();
            communicator.barrier().unwrap();
        });
    }
}

#[test]
fn a_step_may_compare_copies() {
    ranks(3, |communicator| {
        let mut model = sealed(communicator, &ModelOptions::new(Strategy::DataParallel));
        let rule = sgd().check_every(2);
        let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
        if communicator.rank() == 2 {
            model.parameter_mut::<f64>(0).unwrap()[0] = 77.0;
        }
        model.accumulate_flat(&gradient(0)).unwrap();
        optimizer.step(&mut model).unwrap();
        model.accumulate_flat(&gradient(0)).unwrap();
        let error = fails(optimizer.step(&mut model), Status::Mismatch);
        assert_eq!(error.blamed(), [2], "{error}");
    });
}

#[test]
fn gradients_that_are_not_used_count_as_zero_or_are_skipped_or_fail() {
    for unused in [Unused::Zero, Unused::Skip, Unused::Error] {
        ranks(2, |communicator| {
            let options = ModelOptions { unused, ..sum_of(Strategy::Zero2) };
            let mut model = sealed(communicator, &options);
            let rule = sgd().weight_decay(0.25);
            let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
            let own = gradient(communicator.rank());
            model.begin_backward().unwrap();
            for (number, &(first, count)) in PARTS.iter().enumerate() {
                // No rank has a gradient of number 0, and only rank 1 of number 3.
                if number != 0 && (number != 3 || communicator.rank() == 1) {
                    model.gradient_ready(number, &own[first..first + count]).unwrap();
                }
            }
            if unused == Unused::Error {
                let error = fails(model.end_backward(), Status::InvalidState);
                assert!(error.message().contains("p0") || error.message().contains("p3"));
                communicator.barrier().unwrap();
                return;
            }
            model.end_backward().unwrap();
            optimizer.step(&mut model).unwrap();
            let mut wanted = initial();
            for (i, value) in wanted.iter_mut().enumerate() {
                let used = match i {
                    0..=4 => 0.0,
                    9.. => gradient(1)[i],
                    _ => gradient(0)[i] + gradient(1)[i],
                };
                if i > 4 || unused == Unused::Zero {
                    *value -= 0.5 * (used + 0.25 * *value);
                }
            }
            assert_eq!(model.get_parameters::<f64>().unwrap(), wanted);
        });
    }
}

#[test]
fn ranks_that_run_out_of_data_join() {
    let batches = [3, 1, 2];
    for strategy in Strategy::ALL {
        ranks(3, |communicator| {
            let rank = communicator.rank();
            let options = ModelOptions { uneven: true, ..options(communicator, strategy) };
            let mut model = sealed(communicator, &options);
            let mut optimizer = Optimizer::new(&mut model, &sgd()).unwrap();
            for _ in 0..batches[rank as usize] {
                model.accumulate_flat(&[2.0 * f64::from(rank); ELEMENTS]).unwrap();
                optimizer.step(&mut model).unwrap();
            }
            let followed = optimizer.join(&mut model).unwrap();
            assert_eq!(followed, 3 - batches[rank as usize]);
            assert_eq!(optimizer.step_count().unwrap(), 3);
            // The averages of ranks 0 to 2, of 0 and 2, and of rank 0.
            let wanted: Vec<f64> = initial().iter().map(|v| v - 0.5 * (2.0 + 2.0 + 0.0)).collect();
            assert_eq!(model.get_parameters::<f64>().unwrap(), wanted);
            let mut other = sealed(communicator, &options);
            fails(optimizer.join(&mut other), Status::InvalidArgument);
            communicator.barrier().unwrap();
        });
    }
}

#[test]
fn absent_ranks_do_not_count() {
    ranks(3, |communicator| {
        let options = ModelOptions { uneven: true, ..ModelOptions::new(Strategy::Zero2) };
        let mut model = sealed(communicator, &options);
        let mut optimizer = Optimizer::new(&mut model, &sgd()).unwrap();
        if communicator.rank() == 1 {
            model.absent_backward_no_sync().unwrap();
            model.absent_backward().unwrap();
        } else {
            model.accumulate_flat_no_sync(&[1.0_f64; ELEMENTS]).unwrap();
            model.accumulate_flat(&[f64::from(communicator.rank()); ELEMENTS]).unwrap();
        }
        optimizer.step(&mut model).unwrap();
        assert_eq!(optimizer.join(&mut model).unwrap(), 0);
        let wanted: Vec<f64> = initial().iter().map(|v| v - 0.5 * (1.0 + 3.0) / 2.0).collect();
        assert_eq!(model.get_parameters::<f64>().unwrap(), wanted);
    });
}

#[test]
fn a_model_that_is_not_uneven_knows_neither_absence_nor_joining() {
    ranks(1, |communicator| {
        let mut model = sealed(communicator, &ModelOptions::new(Strategy::Zero1));
        let mut optimizer = Optimizer::new(&mut model, &sgd()).unwrap();
        fails(model.absent_backward(), Status::Unsupported);
        fails(optimizer.join(&mut model), Status::InvalidState);
        let uneven = ModelOptions { uneven: true, ..ModelOptions::new(Strategy::Zero1) };
        let mut model = sealed(communicator, &uneven);
        let mut optimizer = Optimizer::new(&mut model, &sgd()).unwrap();
        model.accumulate_flat(&gradient(0)).unwrap();
        fails(optimizer.join(&mut model), Status::InvalidState); // a step is under way
        fails(model.check_replicas(), Status::InvalidState);
    });
}

#[test]
fn values_are_clipped_on_both_sides() {
    ranks(2, |communicator| {
        let mut model = sealed(communicator, &sum_of(Strategy::Zero3));
        let bad = sgd().clipping(Clipping { max_value: -1.0, ..Clipping::default() });
        fails(Optimizer::new(&mut model, &bad), Status::InvalidArgument);
        let rule = sgd().clipping(Clipping { max_value: 1.5, ..Clipping::default() });
        let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
        let gradients: Vec<f64> = (0..ELEMENTS).map(|i| i as f64 - 6.0).collect();
        model.accumulate_flat(&gradients).unwrap();
        optimizer.step(&mut model).unwrap();
        let wanted = initial().into_iter().zip(gradients);
        let wanted: Vec<f64> = wanted.map(|(v, g)| v - 0.5 * (2.0 * g).clamp(-1.5, 1.5)).collect();
        assert_eq!(model.get_parameters::<f64>().unwrap(), wanted);
    });
}

#[test]
fn one_sweep_has_the_bits_of_separate_passes() {
    ranks(3, |communicator| {
        let mut found = Vec::new();
        for one_sweep in [false, true] {
            let mut model = sealed(communicator, &sum_of(Strategy::Zero1));
            let rule = by(RuleKind::AdamW).one_sweep(one_sweep);
            let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
            for step in 0..3 {
                let rank = communicator.rank() as usize;
                let gradients: Vec<f64> =
                    (0..ELEMENTS).map(|i| (i * 7 + rank * 3 + step) as f64 * 0.3 - 4.0).collect();
                model.accumulate_flat(&gradients).unwrap();
                optimizer.step(&mut model).unwrap();
            }
            found.push(model.get_parameters::<f64>().unwrap());
        }
        assert_eq!(found[0], found[1]);
        let mut other = sealed(communicator, &sum_of(Strategy::Zero2));
        let rule = sgd().one_sweep(true);
        fails(Optimizer::new(&mut other, &rule), Status::Unsupported);
    });
}

/// Twice what comes, and one more after the reduction.
fn twice_and_one(bucket: &mut Bucket<'_>) -> Result<(), String> {
    let moment = bucket.moment();
    for value in bucket.data::<f64>()? {
        *value = if moment == HookMoment::Before { 2.0 * *value } else { *value + 1.0 };
    }
    Ok(())
}

#[test]
fn a_hook_changes_gradients_before_and_after() {
    for world in WORLDS {
        for strategy in Strategy::ALL {
            let seen = Arc::new(Mutex::new(Vec::new()));
            ranks(world, |communicator| {
                let options = ModelOptions {
                    gradients: Gradients::Sum,
                    buckets: Buckets { bytes: 1, ..Buckets::default() },
                    ..options(communicator, strategy)
                };
                let (list, rank) = (seen.clone(), communicator.rank());
                let hook = move |bucket: &mut Bucket<'_>| {
                    assert_eq!(bucket.pass(), 0);
                    let mut position = 0;
                    for part in bucket.parts() {
                        assert!(part.position == position && part.count > 0);
                        position += part.count;
                        let first = PARTS[part.parameter].0 + part.first;
                        let owner = (bucket.moment() == HookMoment::Before).then_some(rank);
                        list.lock()
                            .unwrap()
                            .extend((first..first + part.count).map(|i| (owner, i)));
                    }
                    assert_eq!(bucket.data::<f64>()?.len(), position);
                    twice_and_one(bucket)
                };
                let mut model = Model::with_hook(communicator, &options, hook).unwrap();
                describe(&mut model);
                let mut optimizer = Optimizer::new(&mut model, &sgd()).unwrap();
                model.accumulate_flat(&gradient(rank)).unwrap();
                optimizer.step(&mut model).unwrap();
                let mut wanted = initial();
                for (i, value) in wanted.iter_mut().enumerate() {
                    let sum: f64 = (0..world).map(|rank| gradient(rank)[i]).sum();
                    *value -= 0.5 * (2.0 * sum + 1.0);
                }
                assert_eq!(model.get_parameters::<f64>().unwrap(), wanted);
            });
            let mut seen = std::mem::take(&mut *seen.lock().unwrap());
            seen.sort_unstable();
            let copies = if strategy == Strategy::DataParallel { world as usize } else { 1 };
            let mut every = Vec::new();
            for i in 0..ELEMENTS {
                every.extend((0..copies).map(|_| (None, i)));
                every.extend((0..world).map(|rank| (Some(rank), i)));
            }
            every.sort_unstable();
            assert_eq!(seen, every, "{world} {strategy}");
        }
    }
}

#[test]
fn a_hook_that_fails_or_panics_fails_the_step_on_all_ranks() {
    for moment in [HookMoment::Before, HookMoment::After] {
        for strategy in Strategy::ALL {
            for panics in [false, true] {
                ranks(2, |communicator| {
                    let rank = communicator.rank();
                    let hook = move |bucket: &mut Bucket<'_>| {
                        if rank == 0 || bucket.moment() != moment {
                            return Ok(());
                        }
                        assert!(!panics, "the hook lost its way");
                        Err("not a number".to_owned())
                    };
                    let options = options(communicator, strategy);
                    let mut model = Model::with_hook(communicator, &options, hook).unwrap();
                    describe(&mut model);
                    let mut optimizer = Optimizer::new(&mut model, &sgd()).unwrap();
                    model.accumulate_flat(&gradient(rank)).unwrap();
                    let error = fails(optimizer.step(&mut model), Status::Callback);
                    assert!(error.message().contains("rank 1"), "{error}");
                    let text =
                        if panics { "panicked: the hook lost its way" } else { "not a number" };
                    assert_eq!(error.message().ends_with(text), rank == 1, "{error}");
                });
            }
        }
    }
}

#[test]
fn what_a_hook_said_goes_with_the_gradients() {
    ranks(1, |communicator| {
        let mut calls = 0;
        let hook = move |_: &mut Bucket<'_>| {
            calls += 1;
            if calls == 1 {
                Err("at first".to_owned())
            } else {
                Ok(())
            }
        };
        let mut model = Model::with_hook(communicator, &sum_of(Strategy::Zero2), hook).unwrap();
        describe(&mut model);
        let mut optimizer = Optimizer::new(&mut model, &sgd()).unwrap();
        model.accumulate_flat(&gradient(0)).unwrap();
        model.discard_gradients().unwrap();
        model.accumulate_flat(&gradient(0)).unwrap();
        optimizer.step(&mut model).unwrap();
        let wanted = initial().into_iter().zip(gradient(0)).map(|(v, g)| v - 0.5 * g);
        assert_eq!(model.get_parameters::<f64>().unwrap(), wanted.collect::<Vec<_>>());
    });
}

#[test]
fn a_hook_that_takes_gradients_for_another_type_is_told_so() {
    ranks(1, |communicator| {
        let hook = |bucket: &mut Bucket<'_>| bucket.data::<f32>().map(drop);
        let options = ModelOptions::new(Strategy::Zero1);
        let mut model = Model::with_hook(communicator, &options, hook).unwrap();
        describe(&mut model);
        let mut optimizer = Optimizer::new(&mut model, &sgd()).unwrap();
        model.accumulate_flat(&gradient(0)).unwrap();
        let error = fails(optimizer.step(&mut model), Status::Callback);
        assert!(error.message().ends_with("bucket 0 is not f32"), "{error}");
    });
}

#[test]
fn a_call_of_the_model_inside_its_hook_is_refused() {
    ranks(1, |communicator| {
        let own: Arc<Mutex<Weak<Optimizer>>> = Arc::default();
        let inside = own.clone();
        let hook = move |_: &mut Bucket<'_>| {
            let optimizer = inside.lock().unwrap().upgrade().expect("the optimizer");
            fails(optimizer.learning_rate(), Status::InvalidState);
            Err("refused".to_owned())
        };
        let options = ModelOptions::new(Strategy::Zero1);
        let mut model = Model::with_hook(communicator, &options, hook).unwrap();
        describe(&mut model);
        let optimizer = Arc::new(Optimizer::new(&mut model, &sgd()).unwrap());
        *own.lock().unwrap() = Arc::downgrade(&optimizer);
        model.accumulate_flat(&gradient(0)).unwrap();
        optimizer.learning_rate().unwrap(); // outside it again
        let mut optimizer = Arc::try_unwrap(optimizer).ok().unwrap();
        let error = fails(optimizer.step(&mut model), Status::Callback);
        assert!(error.message().ends_with(": refused"), "{error}");
    });
}

#[test]
fn a_hook_is_freed_with_model_and_optimizer_and_when_none_is_made() {
    ranks(1, |communicator| {
        let token = Arc::new(());
        let keep = || {
            let kept = token.clone();
            move |bucket: &mut Bucket<'_>| {
                let _kept = &kept;
                twice_and_one(bucket)
            }
        };
        let bad = ModelOptions { leaves: 70_000, ..ModelOptions::new(Strategy::Zero1) };
        fails(Model::with_hook(communicator, &bad, keep()), Status::InvalidArgument);
        assert_eq!(Arc::strong_count(&token), 1);
        let options = ModelOptions::new(Strategy::Zero1);
        let mut model = Model::with_hook(communicator, &options, keep()).unwrap();
        describe(&mut model);
        let optimizer = Optimizer::new(&mut model, &sgd()).unwrap();
        drop(model);
        assert_eq!(Arc::strong_count(&token), 2);
        drop(optimizer);
        assert_eq!(Arc::strong_count(&token), 1);
    });
}
