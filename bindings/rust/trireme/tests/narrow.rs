//! Parameters of 16 bits: gradients and state are f32.

mod support;

use support::{fails, options, ranks};
use trireme::{
    Bf16, Communicator, Dtype, Gradients, Model, ModelOptions, Optimizer, OptimizerOptions,
    Parameter, RuleKind, State, Status, Strategy, Update, F16,
};

fn sgd(learning_rate: f64) -> OptimizerOptions<'static> {
    OptimizerOptions::new(RuleKind::Sgd).learning_rate(learning_rate)
}

fn model(communicator: &Communicator, strategy: Strategy, dtype: Dtype) -> Model {
    let options = ModelOptions { gradients: Gradients::Sum, ..options(communicator, strategy) };
    let mut model = Model::new(communicator, &options).unwrap();
    model.add_parameter(&Parameter::new("weight", dtype, &[7])).unwrap();
    model.seal().unwrap();
    model
}

/// The upper half of a number that bf16 has exactly.
fn bf16(value: f32) -> Bf16 {
    Bf16((value.to_bits() >> 16) as u16)
}

#[test]
fn gradients_of_either_type_train() {
    for world in [1, 2, 3] {
        for strategy in Strategy::ALL {
            ranks(world, |communicator| {
                let mut model = model(communicator, strategy, Dtype::Bf16);
                model.set_parameters(Some(&[bf16(1.0); 7]), 0).unwrap();
                let mut optimizer = Optimizer::new(&mut model, &sgd(0.25)).unwrap();
                model.accumulate_flat(&[2.0_f32; 7]).unwrap();
                optimizer.step(&mut model).unwrap();
                model.accumulate_flat(&[bf16(1.0); 7]).unwrap();
                optimizer.step(&mut model).unwrap();
                model.begin_backward().unwrap();
                model.gradient_ready(0, &[bf16(-4.0); 7]).unwrap();
                model.end_backward().unwrap();
                optimizer.step(&mut model).unwrap();
                let wanted = bf16(1.0 - 0.25 * (2.0 + 1.0 - 4.0) * world as f32);
                assert_eq!(model.get_parameters::<Bf16>().unwrap(), [wanted; 7]);
                model.gather_unit(0).unwrap();
                assert_eq!(model.parameter::<Bf16>(0).unwrap(), [wanted; 7]);
                fails(model.parameter::<F16>(0), Status::InvalidArgument);
                model.release_unit(0).unwrap();
            });
        }
    }
}

#[test]
fn a_rule_and_the_state_see_f32() {
    ranks(2, |communicator| {
        let mut model = model(communicator, Strategy::Zero2, Dtype::F16);
        let rule = |update: &mut Update<'_>| {
            assert!(update.pieces::<Bf16>().is_err() && update.pieces::<f32>().is_err());
            let pieces = update.pieces::<F16>()?;
            let state = &mut *pieces.states[0];
            for ((value, gradient), sum) in
                pieces.parameters.iter_mut().zip(pieces.gradients).zip(state)
            {
                let gradient: f32 = *gradient;
                *sum += gradient;
                *value = F16(0x3c00);
            }
            Ok(())
        };
        let options = OptimizerOptions::default();
        let mut optimizer = Optimizer::with_rule(&mut model, &options, 1, rule).unwrap();
        model.accumulate_flat(&[1.5_f32; 7]).unwrap();
        optimizer.step(&mut model).unwrap();
        for range in optimizer.ranges(&model).unwrap() {
            if range.state == State::Parameter {
                assert!(range.data::<F16>().unwrap().iter().all(|value| *value == F16(0x3c00)));
                fails(range.data::<f32>(), Status::InvalidArgument);
            } else {
                assert!(range.data::<f32>().unwrap().iter().all(|value| *value == 3.0));
                fails(range.data::<F16>(), Status::InvalidArgument);
            }
        }
    });
}

#[test]
fn other_types_are_refused() {
    ranks(1, |communicator| {
        let mut model = model(communicator, Strategy::Zero3, Dtype::Bf16);
        fails(model.set_parameters(Some(&[1.0_f32; 7]), 0), Status::InvalidArgument);
        fails(model.set_parameters(Some(&[F16(0); 7]), 0), Status::InvalidArgument);
        fails(model.get_parameters::<f32>(), Status::InvalidArgument);
        fails(model.accumulate_flat(&[1.0_f64; 7]), Status::InvalidArgument);
        fails(model.accumulate_flat(&[F16(0); 7]), Status::InvalidArgument);
        let options = options(communicator, Strategy::Zero1);
        let mut other = Model::new(communicator, &options).unwrap();
        let tiny = Parameter::new("tiny", Dtype::F8E4m3, &[1]);
        fails(other.add_parameter(&tiny), Status::Unsupported);
    });
}

#[test]
fn rounding_by_chance_goes_to_a_neighbour() {
    ranks(2, |communicator| {
        let mut model = model(communicator, Strategy::Zero2, Dtype::Bf16);
        model.set_parameters(Some(&[bf16(1.0); 7]), 0).unwrap();
        let rule = sgd(0.25 / 256.0).stochastic_rounding(3); // of two ranks: half the distance
        let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
        model.accumulate_flat(&[1.0_f32; 7]).unwrap();
        optimizer.step(&mut model).unwrap();
        let down = bf16(1.0 - 1.0 / 256.0);
        let values = model.get_parameters::<Bf16>().unwrap();
        assert!(values.iter().all(|value| *value == bf16(1.0) || *value == down));
        assert!(values.contains(&bf16(1.0)) && values.contains(&down));
    });
    ranks(1, |communicator| {
        let mut model = model(communicator, Strategy::Zero2, Dtype::F16);
        let rule = sgd(0.0).stochastic_rounding(0);
        fails(Optimizer::new(&mut model, &rule), Status::Unsupported);
    });
}

#[test]
fn masters_keep_what_rounding_would_lose() {
    ranks(2, |communicator| {
        let mut model = model(communicator, Strategy::Zero2, Dtype::Bf16);
        model.set_parameters(Some(&[bf16(1.0); 7]), 0).unwrap();
        // A sixteenth of the distance between 1 and the number before it.
        let rate = 0.5 / 4096.0;
        for master_weights in [false, true] {
            let rule = sgd(rate).master_weights(master_weights);
            let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
            for _ in 0..16 {
                model.accumulate_flat(&[1.0_f32; 7]).unwrap();
                optimizer.step(&mut model).unwrap();
            }
            let wanted = if master_weights { bf16(1.0 - 1.0 / 256.0) } else { bf16(1.0) };
            assert_eq!(model.get_parameters::<Bf16>().unwrap(), [wanted; 7]);
            let ranges = optimizer.ranges(&model).unwrap();
            let master = ranges.iter().find(|range| range.state == State::Optimizer(0));
            assert_eq!(master.is_some(), master_weights);
            if let Some(master) = master {
                let wanted = 1.0 - 1.0 / 256.0;
                assert!(master.data::<f32>().unwrap().iter().all(|value| *value == wanted));
            }
        }
    });
    ranks(1, |communicator| {
        let mut model = model(communicator, Strategy::Zero2, Dtype::F32);
        let rule = sgd(0.0).master_weights(true);
        fails(Optimizer::new(&mut model, &rule), Status::InvalidArgument);
    });
}
