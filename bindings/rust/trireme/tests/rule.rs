//! The caller's own update rule.

mod support;

use std::sync::{Arc, Mutex, Weak};

use support::{fails, options, ranks};
use trireme::{
    Buckets, Communicator, Dtype, Gradients, Model, ModelOptions, Optimizer, OptimizerOptions,
    Parameter, Reduction, Status, Strategy, Units, Update, MAX_STATES,
};

fn model(communicator: &Communicator, strategy: Strategy) -> Model {
    let options = ModelOptions { gradients: Gradients::Sum, ..options(communicator, strategy) };
    let mut model = Model::new(communicator, &options).unwrap();
    let unit = Some("unit");
    let weight = Parameter { unit, ..Parameter::new("weight", Dtype::F64, &[7]) };
    let still = Parameter { unit, frozen: true, ..Parameter::new("still", Dtype::F64, &[3]) };
    let bias = Parameter { unit, ..Parameter::new("bias", Dtype::F64, &[2]) };
    for parameter in [weight, still, bias] {
        model.add_parameter(&parameter).unwrap();
    }
    model.seal().unwrap();
    model.set_parameters(Some(&[1.0_f64; 12]), 0).unwrap();
    model
}

fn rate(learning_rate: f64) -> OptimizerOptions<'static> {
    OptimizerOptions::default().learning_rate(learning_rate)
}

/// Adds up all gradients so far in its state and goes down by the rate times that.
fn momentum(update: &mut Update<'_>) -> Result<(), String> {
    let rate = update.learning_rate();
    let pieces = update.pieces::<f64>()?;
    let state = pieces.states[0].iter_mut();
    for ((value, gradient), sum) in pieces.parameters.iter_mut().zip(pieces.gradients).zip(state) {
        *sum += gradient;
        *value -= rate * *sum;
    }
    Ok(())
}

#[test]
fn a_rule_of_ones_own_trains_as_one_process_would() {
    for world in [1, 2, 3, 5] {
        for strategy in Strategy::ALL {
            ranks(world, |communicator| {
                let mut model = model(communicator, strategy);
                let mut optimizer =
                    Optimizer::with_rule(&mut model, &rate(0.25), 1, momentum).unwrap();
                for _ in 0..3 {
                    model.accumulate_flat(&[2.0_f64; 12]).unwrap();
                    optimizer.step(&mut model).unwrap();
                }
                let moved = 1.0 - 0.25 * 2.0 * f64::from(world) * (1.0 + 2.0 + 3.0);
                let mut wanted = [moved; 12];
                wanted[7..10].fill(1.0);
                assert_eq!(model.get_parameters::<f64>().unwrap(), wanted);
            });
        }
    }
}

#[test]
fn pieces_cover_each_trainable_element_once() {
    for world in [1, 2, 3, 5] {
        ranks(world, |communicator| {
            let mut model = model(communicator, Strategy::Zero2);
            let seen = Arc::new(Mutex::new(Vec::new()));
            let list = seen.clone();
            let rule = move |update: &mut Update<'_>| {
                let (parameter, first) = (update.parameter(), update.first());
                assert_eq!((update.step(), update.learning_rate()), (1, 0.5));
                let pieces = update.pieces::<f64>()?;
                let count = pieces.parameters.len();
                assert!(count > 0 && pieces.gradients.len() == count);
                assert!(pieces.states[..2].iter().all(|state| **state == vec![0.0; count]));
                assert!(pieces.states[2..].iter().all(|state| state.is_empty()));
                list.lock().unwrap().extend((first..first + count).map(|i| (parameter, i)));
                Ok(())
            };
            let mut optimizer = Optimizer::with_rule(&mut model, &rate(0.5), 2, rule).unwrap();
            model.accumulate_flat(&[1.0_f64; 12]).unwrap();
            optimizer.step(&mut model).unwrap();

            let mut hits = [0_i32; 14];
            for &(parameter, i) in seen.lock().unwrap().iter() {
                hits[parameter * 5 + i] += 1; // weight from 0, bias from 10; 7 to 9 stay free
            }
            communicator.all_reduce(&mut hits, Reduction::Sum).unwrap();
            let mut wanted = [0; 14];
            wanted[..7].fill(1);
            wanted[10..12].fill(1);
            assert_eq!(hits, wanted);
        });
    }
}

#[test]
fn a_call_of_the_optimizer_inside_its_rule_is_refused() {
    ranks(1, |communicator| {
        let own: Arc<Mutex<Weak<Optimizer>>> = Arc::default();
        let inside = own.clone();
        let rule = move |_: &mut Update<'_>| {
            let optimizer = inside.lock().unwrap().upgrade().expect("the optimizer");
            fails(optimizer.learning_rate(), Status::InvalidState);
            Err("refused".to_owned())
        };
        let options = ModelOptions::new(Strategy::Zero2)
            .update_in_backward(true)
            .units(Units { minimum_bytes: 1, ..Units::default() })
            .buckets(Buckets { bytes: 1, ..Buckets::default() });
        let mut model = Model::new(communicator, &options).unwrap();
        for name in ["a", "b", "c", "d"] {
            model.add_parameter(&Parameter::new(name, Dtype::F64, &[1])).unwrap();
        }
        model.seal().unwrap();
        let optimizer = Optimizer::with_rule(&mut model, &rate(0.5), 0, rule).unwrap();
        let optimizer = Arc::new(optimizer);
        *own.lock().unwrap() = Arc::downgrade(&optimizer);
        // Its reason is that of the first call that fails for it.
        let step = model.accumulate_flat(&[1.0_f64; 4]);
        optimizer.learning_rate().unwrap(); // outside it again
        let mut optimizer = Arc::try_unwrap(optimizer).ok().unwrap();
        let error = fails(step.and_then(|()| optimizer.step(&mut model)), Status::Callback);
        assert!(error.message().ends_with(": refused"), "{error}");
    });
}

#[test]
fn a_panic_in_a_rule_fails_the_step_on_all_ranks_with_its_text() {
    for strategy in Strategy::ALL {
        ranks(2, |communicator| {
            let mut model = model(communicator, strategy);
            let rank = communicator.rank();
            let rule = move |update: &mut Update<'_>| {
                assert!(rank != 1, "rule of rank {rank} lost its way");
                momentum(update)
            };
            let mut optimizer = Optimizer::with_rule(&mut model, &rate(0.5), 1, rule).unwrap();
            model.accumulate_flat(&[1.0_f64; 12]).unwrap();
            let error = fails(optimizer.step(&mut model), Status::Callback);
            if rank == 1 {
                let text = "panicked: rule of rank 1 lost its way";
                assert!(error.message().ends_with(text), "{error}");
            }
        });
    }
}

#[test]
fn a_rule_may_answer_why_it_fails() {
    ranks(2, |communicator| {
        let mut model = model(communicator, Strategy::Zero3);
        let rank = communicator.rank();
        let rule = move |update: &mut Update<'_>| match rank {
            0 => Err("loss is not a number".to_owned()),
            _ => momentum(update),
        };
        let mut optimizer = Optimizer::with_rule(&mut model, &rate(0.5), 1, rule).unwrap();
        model.accumulate_flat(&[1.0_f64; 12]).unwrap();
        let error = fails(optimizer.step(&mut model), Status::Callback);
        assert_eq!(error.message().ends_with("loss is not a number"), rank == 0, "{error}");
    });
}

#[test]
fn a_rule_that_takes_parameters_for_another_type_is_told_so() {
    ranks(1, |communicator| {
        let mut model = model(communicator, Strategy::Zero1);
        let rule = |update: &mut Update<'_>| update.pieces::<f32>().map(drop);
        let mut optimizer = Optimizer::with_rule(&mut model, &rate(0.5), 0, rule).unwrap();
        model.accumulate_flat(&[1.0_f64; 12]).unwrap();
        let error = fails(optimizer.step(&mut model), Status::Callback);
        assert!(error.message().ends_with("parameter 0 is not f32"), "{error}");
    });
}

#[test]
fn a_rule_is_freed_with_its_optimizer_and_when_none_is_made() {
    ranks(1, |communicator| {
        let mut model = model(communicator, Strategy::DataParallel);
        let token = Arc::new(());
        let keep = |token: &Arc<()>| {
            let kept = token.clone();
            move |update: &mut Update<'_>| {
                let _kept = &kept;
                momentum(update)
            }
        };
        let too_many = MAX_STATES as u32 + 1;
        let refused = Optimizer::with_rule(&mut model, &rate(0.5), too_many, keep(&token));
        fails(refused, Status::InvalidArgument);
        assert_eq!(Arc::strong_count(&token), 1);
        let optimizer = Optimizer::with_rule(&mut model, &rate(0.5), 1, keep(&token)).unwrap();
        assert_eq!(Arc::strong_count(&token), 2);
        drop(model);
        assert_eq!(Arc::strong_count(&token), 2);
        drop(optimizer);
        assert_eq!(Arc::strong_count(&token), 1);
    });
}

#[test]
fn an_optimizer_may_be_replaced_and_stepped_on_another_thread() {
    ranks(2, |communicator| {
        let mut model = model(communicator, Strategy::Zero2);
        drop(Optimizer::with_rule(&mut model, &rate(0.5), 1, momentum).unwrap());
        let mut optimizer = Optimizer::with_rule(&mut model, &rate(0.5), 1, momentum).unwrap();
        model.accumulate_flat(&[1.0_f64; 12]).unwrap();
        let mut model = std::thread::spawn(move || {
            optimizer.step(&mut model).unwrap();
            model
        })
        .join()
        .unwrap();
        assert_eq!(model.get_parameters::<f64>().unwrap()[0], 0.0);
        assert!(model.parameter_mut::<f64>(0).is_ok());
    });
}
