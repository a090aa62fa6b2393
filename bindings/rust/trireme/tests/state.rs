//! One copy of the parameters for ranks that share memory, and the state of training.

mod support;

use support::{fails, options, ranks};
use trireme::{
    Adafactor, Communicator, Dtype, Model, ModelOptions, Optimizer, OptimizerOptions, Parameter,
    RuleKind, Shards, Share, State, Status, Strategy, Units,
};

const WORLDS: [i32; 3] = [1, 2, 3];
const ELEMENTS: usize = 15;
const SAVED_AT: usize = 2;
const STEPS: usize = 4;
/// Name, shape and first element of each parameter; the second is frozen.
const PARAMETERS: [(&str, &[u64], usize); 4] =
    [("a", &[3, 2], 0), ("still", &[3], 6), ("b", &[5], 9), ("scalar", &[], 14)];

fn sealed(communicator: &Communicator, options: &ModelOptions) -> trireme::Result<Model> {
    let options = options.units(Units { minimum_bytes: 1, ..Units::default() });
    let mut model = Model::new(communicator, &options)?;
    for (number, (name, shape, _)) in PARAMETERS.into_iter().enumerate() {
        let frozen = number == 1;
        model.add_parameter(&Parameter { frozen, ..Parameter::new(name, Dtype::F32, shape) })?;
    }
    model.seal()?;
    Ok(model)
}

fn made(communicator: &Communicator, strategy: Strategy, share: Share) -> Model {
    let options = options(communicator, strategy);
    let options = options.shards(Shards { share, ..options.shards });
    sealed(communicator, &options).unwrap()
}

fn adamw(model: &mut Model) -> Optimizer {
    let options =
        OptimizerOptions::new(RuleKind::AdamW).learning_rate(0.1).weight_decay(0.1).max_norm(3.0);
    Optimizer::new(model, &options).unwrap()
}

fn initial() -> Vec<f32> {
    (0..ELEMENTS).map(|i| i as f32 - 4.0).collect()
}

fn train(
    communicator: &Communicator,
    model: &mut Model,
    optimizer: &mut Optimizer,
    steps: std::ops::Range<usize>,
) {
    for step in steps {
        let shift = 3 * communicator.rank() as usize + 5 * step;
        let gradient: Vec<f32> = (0..ELEMENTS).map(|i| ((i + shift) % 7) as f32 + 0.3).collect();
        model.begin_backward().unwrap();
        for number in [3, 2, 0] {
            let (_, shape, first) = PARAMETERS[number];
            let count = shape.iter().product::<u64>() as usize;
            model.gradient_ready(number, &gradient[first..first + count]).unwrap();
        }
        model.end_backward().unwrap();
        optimizer.step(model).unwrap();
    }
}

/// The part that each rank saved after `at` steps, and the parameters after all steps.
fn saved(world: i32, strategy: Strategy, at: usize) -> Vec<(Vec<u8>, Vec<f32>)> {
    ranks(world, |communicator| {
        let mut model = made(communicator, strategy, Share::Auto);
        model.set_parameters(Some(&initial()), 0).unwrap();
        let mut optimizer = adamw(&mut model);
        train(communicator, &mut model, &mut optimizer, 0..at);
        let state = optimizer.save(&model).unwrap();
        train(communicator, &mut model, &mut optimizer, at..STEPS);
        (state, model.get_parameters().unwrap())
    })
}

fn sharded(strategy: Strategy) -> bool {
    matches!(strategy, Strategy::Zero3 | Strategy::HybridShard)
}

#[test]
fn ranks_share_one_copy_and_train_the_same() {
    ranks(2, |communicator| {
        for strategy in Strategy::ALL {
            let mut values = Vec::new();
            for share in [Share::Auto, Share::Always, Share::Never] {
                if strategy == Strategy::DataParallel && share == Share::Always {
                    continue;
                }
                let shares = share == Share::Always || (share == Share::Auto && sharded(strategy));
                let mut model = made(communicator, strategy, share);
                let bytes = if shares { 4 * ELEMENTS as u64 } else { 0 };
                assert_eq!(model.info().unwrap().shared_bytes, bytes, "{strategy} {share:?}");
                model.set_parameters(Some(&initial()), 0).unwrap();
                let mut optimizer = adamw(&mut model);
                train(communicator, &mut model, &mut optimizer, 0..2);
                let before = model.statistics().unwrap().gathers;
                model.gather_unit(0).unwrap();
                let seen = model.parameter::<f32>(0).unwrap().to_vec();
                let written = model.parameter_mut::<f32>(0).map(drop);
                if shares {
                    let error = fails(written, Status::InvalidState);
                    assert!(error.message().contains("shared"), "{error}");
                } else {
                    written.unwrap();
                }
                model.release_unit(0).unwrap();
                let gathered = model.statistics().unwrap().gathers > before;
                assert_eq!(gathered, sharded(strategy) && !shares, "{strategy} {share:?}");
                let all: Vec<f32> = model.get_parameters().unwrap();
                assert_eq!(seen, all[..6]);
                values.push(all);
            }
            assert!(values.iter().all(|other| *other == values[0]), "{strategy}");
        }
    });
}

#[test]
fn what_cannot_be_shared_is_refused() {
    ranks(2, |communicator| {
        let sharing = |share| Shards { share, ..Shards::default() };
        let options = ModelOptions::new(Strategy::DataParallel).shards(sharing(Share::Always));
        let error = fails(Model::new(communicator, &options), Status::InvalidArgument);
        assert!(error.message().contains("zero1 trains the same"), "{error}");
        let share = if communicator.rank() == 0 { Share::Always } else { Share::Never };
        let options = ModelOptions::new(Strategy::Zero1).shards(sharing(share));
        let error = fails(sealed(communicator, &options), Status::Mismatch);
        assert!(error.message().contains("options.shards.share"), "{error}");
        communicator.barrier().unwrap(); // the group lives on
    });
}

#[test]
fn a_matrix_of_adafactor_has_rows_and_columns() {
    ranks(1, |communicator| {
        let mut model = Model::new(communicator, &options(communicator, Strategy::Zero1)).unwrap();
        model.add_parameter(&Parameter::new("matrix", Dtype::F32, &[2, 3])).unwrap();
        model.seal().unwrap();
        let rule = Adafactor {
            beta2_decay: -1.0,
            max_update_rms: 0.5,
            min_parameter_rms: 2.0,
            ..Adafactor::default()
        };
        let options = OptimizerOptions::new(rule).learning_rate(0.5);
        let mut optimizer = Optimizer::new(&mut model, &options).unwrap();
        model.accumulate_flat(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        optimizer.step(&mut model).unwrap();
        let values: Vec<f32> = model.get_parameters().unwrap();
        let squares: f32 = values.iter().map(|value| value * value).sum();
        assert!(((squares / 6.0).sqrt() - 0.5 * 2.0 * 0.5).abs() < 1e-6);
        model.accumulate_flat(&[0.0_f32; 6]).unwrap();
        optimizer.step(&mut model).unwrap(); // the means of squares halve
        let mut seen = 0;
        for range in optimizer.ranges(&model).unwrap() {
            let means: &[f32] = match range.state {
                State::Rows => &[14.0 / 3.0, 77.0 / 3.0],
                State::Columns => &[17.0 / 2.0, 29.0 / 2.0, 45.0 / 2.0],
                _ => continue,
            };
            assert_eq!(range.shape, [means.len() as u64]);
            for (have, mean) in range.data::<f32>().unwrap().iter().zip(means) {
                assert!((have - mean / 2.0).abs() < 1e-5);
            }
            seen += range.count;
        }
        assert_eq!(seen, 5);
    });
}

#[test]
fn ranges_hold_every_element_once() {
    for world in WORLDS {
        for strategy in Strategy::ALL {
            // Of p, m and v: how often each element was in a range.
            let counted = ranks(world, |communicator| {
                let mut seen = [[0; ELEMENTS]; 3];
                let mut model = made(communicator, strategy, Share::Auto);
                model.set_parameters(Some(&initial()), 0).unwrap();
                let mut optimizer = adamw(&mut model);
                train(communicator, &mut model, &mut optimizer, 0..1);
                let values: Vec<f32> = model.get_parameters().unwrap();
                for range in optimizer.ranges(&model).unwrap() {
                    let (name, shape, first) = PARAMETERS[range.parameter];
                    assert_eq!((range.name, range.shape), (name, shape));
                    let data: &[f32] = range.data().unwrap();
                    assert_eq!(data.len(), range.count);
                    fails(range.data::<f64>(), Status::InvalidArgument);
                    let begin = first + range.first;
                    let kind = match range.state {
                        State::Parameter => {
                            assert_eq!(data, &values[begin..begin + range.count]);
                            0
                        }
                        State::Optimizer(vector) => {
                            assert!(data.iter().all(|&value| value > 0.0)); // as the gradients
                            1 + vector
                        }
                        other => panic!("{other:?}"),
                    };
                    for count in &mut seen[kind][begin..begin + range.count] {
                        *count += 1;
                    }
                }
                seen
            });
            for kind in 0..3 {
                for element in 0..ELEMENTS {
                    let sum: i32 = counted.iter().map(|seen| seen[kind][element]).sum();
                    let frozen = (6..9).contains(&element);
                    assert_eq!(sum, i32::from(kind == 0 || !frozen), "{world} {strategy}");
                }
            }
        }
    }
}

#[test]
fn a_range_says_where_its_elements_lie() {
    ranks(1, |communicator| {
        let mut model = made(communicator, Strategy::Zero1, Share::Never);
        let optimizer = adamw(&mut model);
        let first = optimizer.ranges(&model).unwrap()[0];
        // SAFETY: six f32 that no other code reads now.
        unsafe { first.as_mut_ptr().cast::<f32>().write(5.0) };
        assert_eq!(model.get_parameters::<f32>().unwrap()[0], 5.0);
    });
}

#[test]
fn a_training_that_is_resumed_has_the_same_bits() {
    for world in WORLDS {
        for strategy in Strategy::ALL {
            let saved = &saved(world, strategy, SAVED_AT);
            ranks(world, |communicator| {
                let (state, values) = &saved[communicator.rank() as usize];
                let mut model = made(communicator, strategy, Share::Auto);
                let mut optimizer = adamw(&mut model);
                optimizer.set_learning_rate(7.0).unwrap();
                optimizer.load(&mut model, state).unwrap();
                assert_eq!(optimizer.step_count().unwrap(), SAVED_AT as u64);
                assert_eq!(optimizer.learning_rate().unwrap(), 0.1);
                assert_eq!(optimizer.save(&model).unwrap(), *state);
                train(communicator, &mut model, &mut optimizer, SAVED_AT..STEPS);
                assert_eq!(model.get_parameters::<f32>().unwrap(), *values, "{world} {strategy}");
            });
        }
    }
}

#[test]
fn damaged_state_is_refused_by_all_and_changes_nothing() {
    for strategy in Strategy::ALL {
        let saved = &saved(2, strategy, SAVED_AT);
        ranks(2, |communicator| {
            let wrong_here = communicator.rank() == 1;
            let state = &saved[communicator.rank() as usize].0;
            let mut model = made(communicator, strategy, Share::Auto);
            model.set_parameters(Some(&initial()), 0).unwrap();
            let mut optimizer = adamw(&mut model);
            let length = saved[1].0.len();
            for position in [0, length / 2, length - 1] {
                let mut copy = state.clone();
                if wrong_here {
                    copy[position] ^= 1;
                }
                fails(optimizer.load(&mut model, &copy), Status::Corrupt);
            }
            let cut = &state[..state.len() - usize::from(wrong_here)];
            fails(optimizer.load(&mut model, cut), Status::Corrupt);
            let empty = if wrong_here { &[][..] } else { state };
            fails(optimizer.load(&mut model, empty), Status::Corrupt);
            assert_eq!(optimizer.step_count().unwrap(), 0);
            assert_eq!(model.get_parameters::<f32>().unwrap(), initial());
            optimizer.load(&mut model, state).unwrap();
            assert_eq!(optimizer.step_count().unwrap(), SAVED_AT as u64);
        });
    }
}

#[test]
fn the_state_of_another_training_is_refused() {
    let saved = &saved(2, Strategy::Zero3, SAVED_AT);
    let cases = [
        (3, Strategy::Zero3, RuleKind::AdamW, 0, "world size"),
        (2, Strategy::Zero2, RuleKind::AdamW, 0, "strategy"),
        (2, Strategy::Zero3, RuleKind::Sgd, 0, "other"),
        (2, Strategy::Zero3, RuleKind::AdamW, 1, "of rank"),
    ];
    for (world, strategy, kind, shift, words) in cases {
        ranks(world, |communicator| {
            let state = &saved[(communicator.rank() as usize + shift) % 2].0;
            let mut model = made(communicator, strategy, Share::Auto);
            let mut optimizer = Optimizer::new(&mut model, &OptimizerOptions::new(kind)).unwrap();
            let error = fails(optimizer.load(&mut model, state), Status::InvalidArgument);
            assert!(error.message().contains(words), "{error}");
            assert_eq!(optimizer.step_count().unwrap(), 0);
        });
    }
}

#[test]
fn parts_of_different_steps_are_a_mismatch() {
    let early = &saved(2, Strategy::Zero3, SAVED_AT);
    let late = &saved(2, Strategy::Zero3, SAVED_AT + 1);
    ranks(2, |communicator| {
        let rank = communicator.rank() as usize;
        let mut model = made(communicator, Strategy::Zero3, Share::Auto);
        let mut optimizer = adamw(&mut model);
        let part = &[early, late][rank][rank].0;
        let error = fails(optimizer.load(&mut model, part), Status::Mismatch);
        assert!(error.message().contains("number of steps is 2 on rank 0"), "{error}");
        optimizer.load(&mut model, &early[rank].0).unwrap();
    });
}

#[test]
fn wrong_moments_and_other_models_are_refused() {
    ranks(1, |communicator| {
        let mut model = made(communicator, Strategy::Zero1, Share::Auto);
        let mut optimizer = adamw(&mut model);
        let state = optimizer.save(&model).unwrap();
        model.begin_backward().unwrap();
        fails(optimizer.save(&model), Status::InvalidState);
        fails(optimizer.load(&mut model, &state), Status::InvalidState);
        model.discard_gradients().unwrap();
        optimizer.load(&mut model, &state).unwrap();

        let mut other = made(communicator, Strategy::Zero1, Share::Auto);
        fails(optimizer.ranges(&other), Status::InvalidArgument);
        fails(optimizer.save(&other), Status::InvalidArgument);
        fails(optimizer.load(&mut other, &state), Status::InvalidArgument);
    });
}
