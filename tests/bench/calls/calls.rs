//! The cost of a call in Rust; see calls.c.

use std::time::Instant;

use trireme::{Communicator, Reduction};

const BATCH: u32 = 200;
const BATCHES: u32 = 2000;

fn main() -> trireme::Result<()> {
    let communicator = Communicator::join("local://calls", 0, 1)?;
    let (mut value, mut best) = ([1.0_f64], f64::INFINITY);
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..BATCH {
            communicator.all_reduce(&mut value, Reduction::Sum)?;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH));
    }
    println!("{best:.1}");
    Ok(())
}
