//! Ranks as threads of this process.
#![allow(dead_code)] // each test program uses its own part

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use trireme::{Communicator, CommunicatorOptions, Error, ModelOptions, Status, Strategy};

/// Longer than any test runs, also on a busy machine under a sanitizer.
pub const LONG: Duration = Duration::from_secs(120);
pub const WORLDS: [i32; 6] = [1, 2, 3, 4, 5, 8];

/// A rendezvous that no other test of this process uses.
pub fn rendezvous() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("local://rust-test-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn join(rendezvous: &str, rank: i32, world_size: i32) -> Communicator {
    let options = CommunicatorOptions {
        timeout: Some(LONG),
        ..CommunicatorOptions::new(rendezvous, rank, world_size)
    };
    Communicator::new(&options).expect("joining a fresh group")
}

/// Runs `rank` on a thread for each rank. All communicators live until the last one is done, so
/// that none is lost to the others by finishing early.
pub fn ranks<R: Send>(world_size: i32, rank: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    let (rendezvous, rank) = (&rendezvous(), &rank);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..world_size)
            .map(|number| {
                scope.spawn(move || {
                    let communicator = join(rendezvous, number, world_size);
                    let result = rank(&communicator);
                    (communicator, result)
                })
            })
            .collect();
        let done: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.into_iter().map(|rank| rank.expect("a rank panicked").1).collect()
    })
}

/// Default options of a strategy. Hybrid shards are pairs where ranks can be paired, else all.
pub fn options(communicator: &Communicator, strategy: Strategy) -> ModelOptions<'static> {
    let world = communicator.world_size() as u32;
    let shard_ranks = match strategy {
        Strategy::HybridShard if world % 2 == 0 => 2,
        Strategy::HybridShard => world,
        _ => 0,
    };
    ModelOptions::new(strategy).shards(shard_ranks)
}

/// The failure of a call that must fail this way.
pub fn fails<T>(result: trireme::Result<T>, status: Status) -> Error {
    let error = result.err().unwrap_or_else(|| panic!("{status} wanted, but the call went well"));
    assert_eq!(error.status(), status, "{error}");
    assert!(!error.message().is_empty());
    error
}
