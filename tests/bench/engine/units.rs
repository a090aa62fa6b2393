//! The cost of the calls of a unit in Rust, in microseconds: `bench_units hooks` as row_hooks() in
//! gather.c, `bench_units trainer` as row_trainer() in trainer.c.

use std::time::Instant;

use trireme::{
    Communicator, Dtype, Layer, LayerCall, LayerOptions, Model, ModelOptions, Optimizer,
    OptimizerOptions, Parameter, RuleKind, Strategy, Trainer, TrainerOptions,
};

const UNITS: usize = 1000;
const PASSES: usize = 50;

fn hooks(model: &mut Model, optimizer: &mut Optimizer) -> trireme::Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        model.begin_backward()?;
        let start = Instant::now();
        for unit in (0..UNITS).rev() {
            model.gather_unit(unit)?;
            model.gradient_ready(unit, &[1.0_f32])?;
            model.release_unit(unit)?;
        }
        best = best.min(start.elapsed().as_secs_f64());
        model.end_backward()?;
        optimizer.step(model)?;
    }
    Ok(best)
}

/// Computes nothing. A trainer refuses gradients that backward has not written.
struct Nothing;

impl Layer<()> for Nothing {
    fn forward(&mut self, _call: &mut LayerCall<'_, ()>) -> Result<(), String> {
        Ok(())
    }

    fn backward(&mut self, call: &mut LayerCall<'_, ()>) -> Result<(), String> {
        call.memory::<f32>()?.gradients[0][0] = 1.0;
        Ok(())
    }
}

fn trainer(model: &mut Model, optimizer: &mut Optimizer) -> trireme::Result<f64> {
    let names: Vec<String> = (0..UNITS).map(|unit| format!("layer{unit}")).collect();
    let layers = names.iter().enumerate().map(|(unit, name)| {
        let parameters = unit..unit + 1;
        let layer = LayerOptions {
            name,
            parameters,
            output_bytes: 64,
            saved_bytes: 64,
            ..LayerOptions::default()
        };
        (layer, Box::new(Nothing) as Box<dyn Layer<()>>)
    });
    let mut trainer = Trainer::new(model, optimizer, &TrainerOptions::default(), layers.collect())?;
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let start = Instant::now();
        trainer.step(model, optimizer, &())?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn main() -> trireme::Result<()> {
    let communicator = Communicator::join("local://units", 0, 1)?;
    let mut model = Model::new(&communicator, &ModelOptions::new(Strategy::Zero3))?;
    for unit in 0..UNITS {
        model.add_parameter(&Parameter::new(&format!("layer{unit}"), Dtype::F32, &[1]))?;
    }
    model.seal()?;
    let mut optimizer = Optimizer::new(&mut model, &OptimizerOptions::new(RuleKind::Sgd))?;
    let of_trainer = std::env::args().nth(1).as_deref() == Some("trainer");
    let best = if of_trainer {
        trainer(&mut model, &mut optimizer)?
    } else {
        hooks(&mut model, &mut optimizer)?
    };
    println!("{:.4}", best * 1e6 / UNITS as f64);
    Ok(())
}
