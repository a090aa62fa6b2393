//! Groups whose bytes a type of the program carries, well or badly.

mod support;

use std::io;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use support::{fails, LONG, WORLDS};
use trireme::{Communicator, CommunicatorOptions, Reduction, Status, Transport};

const SHORT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    SendFails,
    SendPanics,
    ReceiveFails,
    ReceivePanics,
    Longer,
    Shorter,
    MoreThanFits,
    Stranger,
    SendHangs,
    ReceiveHangs,
}

impl Fault {
    fn is_of_sending(self) -> bool {
        matches!(self, Fault::SendFails | Fault::SendPanics | Fault::SendHangs)
    }
}

/// The state that all ends of one net share.
#[derive(Default)]
struct Net {
    over: Mutex<bool>,
    changed: Condvar,
    dropped: AtomicU32,
}

impl Net {
    /// Blocks as a transport must not, until the test is over.
    fn hang(&self) {
        let mut over = self.over.lock().unwrap();
        while !*over {
            over = self.changed.wait(over).unwrap();
        }
    }

    /// Lets go of what hangs; then the library drops every transport.
    fn end(&self, ends: u32) {
        *self.over.lock().unwrap() = true;
        self.changed.notify_all();
        let since = std::time::Instant::now();
        while self.dropped.load(Ordering::SeqCst) < ends {
            assert!(since.elapsed() < LONG, "a transport was not dropped");
            thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(self.dropped.load(Ordering::SeqCst), ends);
    }
}

type Frame = (i32, Vec<u8>);

/// One rank's end.
struct End {
    net: Arc<Net>,
    rank: i32,
    inboxes: Vec<SyncSender<Frame>>,
    inbox: Mutex<Receiver<Frame>>,
    fault: Fault,
    left: AtomicI64, // frames until the fault
}

impl End {
    fn is_due(&self) -> bool {
        self.left.fetch_sub(1, Ordering::SeqCst) == 0
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.net.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

impl Transport for End {
    fn frame_bytes(&self) -> usize {
        4096
    }

    fn send(&self, to: i32, frame: &[u8], timeout: Duration) -> io::Result<bool> {
        if self.fault.is_of_sending() && self.is_due() {
            match self.fault {
                Fault::SendFails => return Err(io::ErrorKind::BrokenPipe.into()),
                Fault::SendPanics => panic!("no more frames"),
                _ => self.net.hang(),
            }
        }
        match self.inboxes[to as usize].try_send((self.rank, frame.to_vec())) {
            Ok(()) => Ok(true),
            Err(TrySendError::Full(_)) => {
                thread::sleep(timeout);
                Ok(false)
            }
            Err(TrySendError::Disconnected(_)) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn receive(&self, frame: &mut [u8], timeout: Duration) -> io::Result<Option<(i32, usize)>> {
        let (mut from, bytes) = match self.inbox.lock().unwrap().recv_timeout(timeout) {
            Ok(next) => next,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        frame[..bytes.len()].copy_from_slice(&bytes);
        let mut length = bytes.len();
        if self.fault != Fault::None && !self.fault.is_of_sending() && self.is_due() {
            match self.fault {
                Fault::ReceiveFails => return Err(io::ErrorKind::BrokenPipe.into()),
                Fault::ReceivePanics => panic!("no more frames"),
                Fault::Longer => length += 1,
                Fault::Shorter => length -= 1,
                Fault::MoreThanFits => length = frame.len() + 1,
                Fault::Stranger => from = self.inboxes.len() as i32,
                _ => self.net.hang(),
            }
        }
        Ok(Some((from, length)))
    }
}

/// Runs `body` on a thread for each rank of a group whose last rank has the fault, at its frame of
/// that number. Ranks leave together, so that no rank sees a peer leave.
fn over<R: Send>(
    world: i32,
    (fault, frame): (Fault, i64),
    timeout: Duration,
    body: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("transport://rust-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let net = Arc::new(Net::default());
    let (inboxes, receivers): (Vec<_>, Vec<_>) = (0..world).map(|_| sync_channel(64)).unzip();
    let (through, body, name) = (Barrier::new(world as usize), &body, &name);
    let results = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (rank, inbox) in (0..world).zip(receivers) {
            let last = rank == world - 1;
            let end = End {
                net: net.clone(),
                rank,
                inboxes: inboxes.clone(),
                inbox: Mutex::new(inbox),
                fault: if last { fault } else { Fault::None },
                left: AtomicI64::new(frame),
            };
            let through = &through;
            threads.push(scope.spawn(move || {
                let options = CommunicatorOptions {
                    timeout: Some(timeout),
                    ..CommunicatorOptions::new(name.clone(), rank, world)
                };
                let communicator = Communicator::over(&options, end).expect("a good transport");
                let result =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&communicator)));
                if result.is_err() {
                    communicator.abort("a test failed").unwrap(); // no peer waits for this one
                }
                through.wait();
                result
            }));
        }
        let done: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.into_iter().map(|rank| rank.unwrap().expect("a rank panicked")).collect()
    });
    net.end(world as u32);
    results
}

fn value(rank: i32, i: usize) -> i64 {
    i64::from(rank + 1) * 1000 + (i % 97) as i64
}

fn values(rank: i32, from: usize, length: usize) -> Vec<i64> {
    (from..from + length).map(|i| value(rank, i)).collect()
}

fn sums(world: i32, from: usize, length: usize) -> Vec<i64> {
    (from..from + length).map(|i| (0..world).map(|rank| value(rank, i)).sum()).collect()
}

fn joined(world: i32, part: impl Fn(i32) -> Vec<i64>) -> Vec<i64> {
    (0..world).flat_map(part).collect()
}

fn all_of(group: &Communicator, length: usize) -> trireme::Result<()> {
    let (me, world) = (group.rank(), group.world_size());
    let (n, r) = (world as usize, me as usize);
    let root = (length % n) as i32;
    let counts: Vec<usize> = (0..n).map(|rank| (length + rank) % 5).collect();
    let before: usize = counts[..r].iter().sum();
    let total: usize = counts.iter().sum();

    let mut data = values(me, 0, length);
    group.all_reduce(&mut data, Reduction::Sum)?;
    assert_eq!(data, sums(world, 0, length), "all_reduce");
    assert_eq!(group.statistics()?.sent_messages > 0, world > 1);
    let mut data = vec![0; length];
    group.reduce_scatter(&values(me, 0, length * n), &mut data, Reduction::Sum)?;
    assert_eq!(data, sums(world, r * length, length), "reduce_scatter");
    let mut data = vec![0; counts[r]];
    group.reduce_scatter_v(&values(me, 0, total), &mut data, &counts, Reduction::Sum)?;
    assert_eq!(data, sums(world, before, counts[r]), "reduce_scatter_v");
    let mut data = vec![0; length * n];
    group.all_gather(&values(me, 0, length), &mut data)?;
    assert_eq!(data, joined(world, |rank| values(rank, 0, length)), "all_gather");
    let mut data = vec![0; total];
    group.all_gather_v(&values(me, 0, counts[r]), &mut data, &counts)?;
    assert_eq!(data, joined(world, |rank| values(rank, 0, counts[rank as usize])), "all_gather_v");
    let mut data = values(me, 0, length);
    group.broadcast(&mut data, root)?;
    assert_eq!(data, values(root, 0, length), "broadcast");
    let mut data = values(me, 0, length);
    group.reduce(&mut data, root, Reduction::Sum)?;
    let kept = values(me, 0, length);
    assert_eq!(data, if me == root { sums(world, 0, length) } else { kept }, "reduce");

    let at_root = |length: usize| if me == root { length } else { 0 };
    let mut data = vec![0; at_root(length * n)];
    group.gather(&values(me, 0, length), &mut data, root)?;
    if me == root {
        assert_eq!(data, joined(world, |rank| values(rank, 0, length)), "gather");
    }
    let mut data = vec![0; at_root(total)];
    group.gather_v(&values(me, 0, counts[r]), &mut data, &counts, root)?;
    if me == root {
        assert_eq!(data, joined(world, |rank| values(rank, 0, counts[rank as usize])), "gather_v");
    }
    let mut data = vec![0; length];
    group.scatter(&values(root, 0, at_root(length * n)), &mut data, root)?;
    assert_eq!(data, values(root, r * length, length), "scatter");
    let mut data = vec![0; counts[r]];
    group.scatter_v(&values(root, 0, at_root(total)), &mut data, &counts, root)?;
    assert_eq!(data, values(root, before, counts[r]), "scatter_v");
    let mut data = vec![0; length * n];
    group.all_to_all(&values(me, 0, length * n), &mut data)?;
    assert_eq!(data, joined(world, |rank| values(rank, r * length, length)), "all_to_all");
    let mut data = vec![0; counts[r] * n];
    group.all_to_all_v(&values(me, 0, total), &counts, &mut data, &vec![counts[r]; n])?;
    assert_eq!(data, joined(world, |rank| values(rank, before, counts[r])), "all_to_all_v");

    let (mut first, mut second) = (values(me, 0, length), values(me, 0, 3));
    group.all_reduce_list(&mut [&mut first[..], &mut [], &mut second[..]], Reduction::Sum)?;
    assert_eq!(first, sums(world, 0, length), "all_reduce_list");
    assert_eq!(second, sums(world, 0, 3), "all_reduce_list");
    let got = group.broadcast_to_buffer(&values(me, 0, length), root)?;
    assert_eq!(&got[..], values(root, 0, length), "broadcast_to_buffer");
    let started = group.all_reduce_start(values(me, 0, length), Reduction::Sum)?;
    assert_eq!(started.wait()?, sums(world, 0, length), "started");
    group.barrier()
}

/// Every result before the failure is right.
fn sum_until_failure(group: &Communicator) -> trireme::Result<()> {
    for round in 0..10_000 {
        let mut data: Vec<i32> = (round..round + 3000).collect();
        group.all_reduce(&mut data, Reduction::Max)?;
        assert!(data.iter().copied().eq(round..round + 3000), "round {round}");
    }
    Ok(())
}

#[test]
fn every_collective_goes_over_it() {
    for world in WORLDS {
        over(world, (Fault::None, 0), LONG, |group| {
            assert_eq!(group.backend().unwrap(), "frames (transport)");
            for length in [0, 1, 7, 3001] {
                all_of(group, length).unwrap();
            }
        });
    }
}

#[test]
fn one_that_fails_or_panics_ends_the_group_on_all_ranks() {
    use Fault::*;
    for fault in [SendFails, SendPanics, ReceiveFails, ReceivePanics] {
        for frame in [0, 1, 5, 30] {
            for result in over(3, (fault, frame), LONG, sum_until_failure) {
                fails(result, Status::Callback);
            }
        }
    }
}

#[test]
fn one_that_lies_is_found_out_on_all_ranks() {
    use Fault::*;
    for fault in [Longer, Shorter, MoreThanFits, Stranger] {
        for frame in [0, 1, 20] {
            for result in over(3, (fault, frame), LONG, sum_until_failure) {
                fails(result, Status::Corrupt);
            }
        }
    }
}

#[test]
fn one_that_never_returns_costs_a_deadline() {
    for fault in [Fault::SendHangs, Fault::ReceiveHangs] {
        for frame in [0, 11] {
            for result in over(3, (fault, frame), SHORT, sum_until_failure) {
                let status = result.expect_err("nobody sends").status();
                assert!(matches!(status, Status::Timeout | Status::PeerLost), "{status}");
            }
        }
    }
}

/// Carries nothing, and panics when it is dropped.
struct Useless {
    frame_bytes: usize,
    dropped: Arc<AtomicU32>,
    panics: bool,
}

impl Transport for Useless {
    fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    fn send(&self, _: i32, _: &[u8], _: Duration) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn receive(&self, _: &mut [u8], _: Duration) -> io::Result<Option<(i32, usize)>> {
        Ok(None)
    }
}

impl Drop for Useless {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "in the drop of a transport");
    }
}

#[test]
fn what_does_not_go_with_a_transport_is_refused_and_dropped() {
    let dropped = Arc::new(AtomicU32::new(0));
    let refused = |rendezvous: &str, frame_bytes, backend: Option<&str>, status| {
        let before = dropped.load(Ordering::SeqCst);
        let transport = Useless { frame_bytes, dropped: dropped.clone(), panics: false };
        let options = CommunicatorOptions {
            backend: backend.map(str::to_owned),
            ..CommunicatorOptions::new(rendezvous, 0, 1)
        };
        fails(Communicator::over(&options, transport), status);
        assert_eq!(dropped.load(Ordering::SeqCst), before + 1);
    };
    refused("local://x", 0, None, Status::InvalidArgument);
    refused("transport://", 0, None, Status::InvalidArgument);
    refused("transport://x", 1023, None, Status::InvalidArgument);
    refused("transport://\0", 0, None, Status::InvalidArgument);
    refused("transport://x", 0, Some("local"), Status::Unsupported);
    fails(Communicator::join("transport://x", 0, 1), Status::InvalidArgument);
}

#[test]
fn it_is_dropped_once_and_may_panic_there() {
    let dropped = Arc::new(AtomicU32::new(0));
    let transport = Useless { frame_bytes: 1024, dropped: dropped.clone(), panics: true };
    let options = CommunicatorOptions::new("transport://alone", 0, 1);
    let alone = Communicator::over(&options, transport).unwrap();
    alone.barrier().unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    drop(alone);
    let since = std::time::Instant::now();
    while dropped.load(Ordering::SeqCst) == 0 {
        assert!(since.elapsed() < LONG, "not dropped");
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}
