//! What the hooks of a unit cost in Rust, in microseconds; see row_hooks() in gather.c.

use std::time::Instant;

use trireme::{
    Communicator, Dtype, Kind, Model, ModelOptions, Optimizer, OptimizerOptions, Parameter,
    Strategy,
};

const UNITS: usize = 1000;
const PASSES: usize = 50;

fn main() -> trireme::Result<()> {
    let communicator = Communicator::join("local://hooks", 0, 1)?;
    let mut model = Model::new(&communicator, &ModelOptions::new(Strategy::Zero3))?;
    for unit in 0..UNITS {
        model.add_parameter(&Parameter::new(&format!("layer{unit}"), Dtype::F32, &[1]))?;
    }
    model.seal()?;
    let mut optimizer = Optimizer::new(&mut model, Kind::Sgd, &OptimizerOptions::default())?;
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        model.begin_backward()?;
        let start = Instant::now();
        for unit in (0..UNITS).rev() {
            model.gather_unit(unit)?;
            model.gradient_ready(unit, &[1.0_f32])?;
            model.release_unit(unit)?;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / UNITS as f64);
        model.end_backward()?;
        optimizer.step(&mut model)?;
    }
    println!("{best:.4}");
    Ok(())
}
