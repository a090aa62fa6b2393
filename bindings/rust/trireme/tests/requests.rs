//! Started operations: memory that is owned, followed, given back, dropped and leaked.

mod support;

use std::fs::File;
use std::io::Read;
use std::sync::mpsc;
use std::sync::Barrier;
use std::time::Duration;

use support::{fails, join, ranks, rendezvous, LONG, WORLDS};
use trireme::{wait_any, Buffer, Reduction, Status};

#[test]
fn every_started_operation_gives_its_memory_back() {
    for world in WORLDS {
        ranks(world, |communicator| {
            let (rank, size) = (communicator.rank(), world as usize);
            let total: i32 = (0..world).sum();
            let counts: Vec<usize> = (0..size).map(|r| r % 3).collect();
            let (mine, all) = (counts[rank as usize], counts.iter().sum());

            let reduce = communicator.all_reduce_start(vec![rank; 7], Reduction::Sum).unwrap();
            let scatter = communicator
                .reduce_scatter_start(vec![rank; 2 * size], vec![-1; 2], Reduction::Sum)
                .unwrap();
            let scatter_v = communicator
                .reduce_scatter_v_start(vec![rank; all], vec![-1; mine], &counts, Reduction::Max)
                .unwrap();
            let gather = communicator.all_gather_start(vec![rank], vec![-1; size]).unwrap();
            let gather_v =
                communicator.all_gather_v_start(vec![rank; mine], vec![-1; all], &counts).unwrap();
            let broadcast = communicator.broadcast_start(vec![rank; 3], world - 1).unwrap();
            let barrier = communicator.barrier_start().unwrap();

            assert_eq!(reduce.wait().unwrap(), vec![total; 7]);
            let (send, receive) = scatter.wait().unwrap();
            assert_eq!((send, receive), (vec![rank; 2 * size], vec![total; 2]));
            assert_eq!(scatter_v.wait().unwrap().1, vec![world - 1; mine]);
            assert_eq!(gather.wait().unwrap().1, (0..world).collect::<Vec<_>>());
            let blocks: Vec<i32> = (0..world).flat_map(|r| vec![r; counts[r as usize]]).collect();
            assert_eq!(gather_v.wait().unwrap().1, blocks);
            assert_eq!(broadcast.wait().unwrap(), vec![world - 1; 3]);
            barrier.wait().unwrap();
        });
    }
}

#[test]
fn buffers_may_be_started_with_and_come_back() {
    ranks(2, |communicator| {
        let mut buffer: Buffer<f64> = Buffer::new(communicator, 33).unwrap();
        buffer.fill(1.5);
        let request = communicator.all_reduce_start(buffer, Reduction::Sum).unwrap();
        let buffer = request.wait().unwrap();
        assert_eq!(&buffer[..], [3.0; 33]);
    });
}

#[test]
fn a_message_to_oneself_works_when_started() {
    let communicator = join(&rendezvous(), 0, 1);
    let send = communicator.send_start(vec![1_u8, 2, 3], 0, 9).unwrap();
    let receive = communicator.receive_start(vec![0_u8; 3], 0, 9).unwrap();
    assert_eq!(receive.wait().unwrap(), [1, 2, 3]);
    assert_eq!(send.wait().unwrap(), [1, 2, 3]);
}

#[test]
fn a_wait_that_ends_early_leaves_the_operation_running() {
    let seen = Barrier::new(2);
    ranks(2, |communicator| {
        if communicator.rank() == 1 {
            seen.wait();
            return communicator.barrier().unwrap();
        }
        let request = communicator.barrier_start().unwrap();
        assert!(!request.test().unwrap());
        assert!(!request.wait_for(Duration::ZERO).unwrap());
        assert!(!request.wait_for(Duration::from_millis(20)).unwrap());
        fails(wait_any(&[&request], Duration::ZERO), Status::Timeout);
        seen.wait();
        assert!(request.wait_for(LONG).unwrap());
        assert!(request.test().unwrap());
        request.wait().unwrap();
    });
}

#[test]
fn a_request_whose_own_time_ran_out_says_so() {
    let seen = Barrier::new(2);
    ranks(2, |communicator| {
        communicator.wait_ready(LONG).unwrap();
        if communicator.rank() == 1 {
            seen.wait();
            return;
        }
        let short = communicator.within(Duration::from_millis(50));
        let request = short.all_reduce_start(vec![1.0_f32], Reduction::Sum).unwrap();
        let error = fails(request.wait_for(LONG), Status::Timeout);
        assert_eq!(error.blamed(), [1], "{error:?}");
        fails(request.test(), Status::Timeout);
        fails(request.wait(), Status::Timeout);
        seen.wait();
    });
}

#[test]
fn the_first_of_several_that_is_done_is_told() {
    ranks(2, |communicator| {
        if communicator.rank() == 1 {
            communicator.send(&[2_u16], 0, 2).unwrap();
            communicator.barrier().unwrap();
            return communicator.send(&[1.0_f32], 0, 1).unwrap();
        }
        let first = communicator.receive_start(vec![0.0_f32], 1, 1).unwrap();
        let second = communicator.receive_start(vec![0_u16], 1, 2).unwrap();
        assert_eq!(wait_any(&[&first, &second], LONG).unwrap(), 1);
        communicator.barrier().unwrap();
        assert_eq!((first.wait().unwrap(), second.wait().unwrap()), (vec![1.0], vec![2]));
        fails(wait_any(&[], Duration::ZERO), Status::InvalidArgument);
    });
}

#[test]
fn a_message_nobody_sends_is_withdrawn_without_harm() {
    ranks(2, |communicator| {
        if communicator.rank() == 0 {
            let request = communicator.receive_start(vec![0_u8; 4], 1, 5).unwrap();
            request.cancel().unwrap();
            fails(request.cancel(), Status::InvalidState);
            fails(request.test(), Status::Cancelled);
            fails(request.wait(), Status::Cancelled);
        }
        communicator.barrier().unwrap();
        let done = communicator.barrier_start().unwrap();
        assert!(done.wait_for(LONG).unwrap());
        fails(done.cancel(), Status::InvalidState);
    });
}

#[test]
fn the_descriptor_becomes_readable() {
    ranks(2, |communicator| {
        let request = communicator.barrier_start().unwrap();
        let mut file = File::from(request.fd().unwrap().try_clone_to_owned().unwrap());
        assert!(request.wait_for(LONG).unwrap());
        let mut count = [0; 8];
        file.read_exact(&mut count).unwrap();
        assert_ne!(u64::from_ne_bytes(count), 0);
    });
}

#[test]
fn a_callback_hears_the_outcome_once() {
    ranks(2, |communicator| {
        let (tell, hear) = mpsc::channel();
        let request = communicator.all_reduce_start(vec![1_i64; 3], Reduction::Sum).unwrap();
        let again = tell.clone();
        request.on_complete(move |outcome| tell.send(outcome).unwrap()).unwrap();
        let second = request.on_complete(move |outcome| again.send(outcome).unwrap());
        fails(second, Status::InvalidState);
        hear.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(request.wait().unwrap(), [2; 3]);
        assert!(hear.recv().is_err(), "called twice");
    });
}

#[test]
fn a_callback_hears_a_failure_with_its_message() {
    ranks(2, |communicator| {
        let length = 3 + communicator.rank() as usize;
        let request = communicator.all_reduce_start(vec![0_i32; length], Reduction::Sum).unwrap();
        let (tell, hear) = mpsc::channel();
        request.on_complete(move |outcome| tell.send(outcome).unwrap()).unwrap();
        let error = fails(hear.recv_timeout(LONG).unwrap(), Status::Mismatch);
        assert_eq!(error.operation(), Some("all_reduce"), "{error:?}");
        fails(request.wait(), Status::Mismatch);
    });
}

#[test]
fn a_callback_of_a_finished_request_is_called_at_once() {
    let communicator = join(&rendezvous(), 0, 1);
    let request = communicator.barrier_start().unwrap();
    assert!(request.wait_for(LONG).unwrap());
    let (tell, hear) = mpsc::channel();
    request.on_complete(move |_| tell.send(std::thread::current().id()).unwrap()).unwrap();
    assert_eq!(hear.try_recv().unwrap(), std::thread::current().id());
}

#[test]
fn a_panic_in_a_callback_ends_there() {
    struct PanicsWhenDropped;
    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    ranks(2, |communicator| {
        let request = communicator.barrier_start().unwrap();
        request.on_complete(|_| panic!("in a completion callback")).unwrap();
        request.wait().unwrap();
        let request = communicator.barrier_start().unwrap();
        request.on_complete(|_| std::panic::panic_any(PanicsWhenDropped)).unwrap();
        request.wait().unwrap();
        communicator.barrier().unwrap();
    });
}

#[test]
fn a_callback_may_start_the_next_operation() {
    ranks(2, |communicator| {
        let (tell, hear) = mpsc::channel();
        std::thread::scope(|scope| {
            // 'static, as callbacks must be: the next operation is started by whoever hears.
            let request = communicator.barrier_start().unwrap();
            request.on_complete(move |outcome| tell.send(outcome).unwrap()).unwrap();
            scope.spawn(move || {
                hear.recv_timeout(LONG).unwrap().unwrap();
                let next = communicator.all_reduce_start(vec![1_u8; 2], Reduction::Sum).unwrap();
                assert_eq!(next.wait().unwrap(), [2, 2]);
            });
        });
    });
}

#[test]
fn a_dropped_request_runs_to_its_end_on_its_own_memory() {
    let dropped = Barrier::new(2);
    ranks(2, |communicator| {
        if communicator.rank() == 0 {
            let request = communicator.all_reduce_start(vec![5_u32; 100_000], Reduction::Sum);
            drop(request.unwrap());
            let heard =
                communicator.all_reduce_start(vec![7_u32; 100_000], Reduction::Sum).unwrap();
            let (tell, hear) = mpsc::channel();
            heard.on_complete(move |outcome| tell.send(outcome).unwrap()).unwrap();
            drop(heard);
            std::mem::forget(communicator.all_reduce_start(vec![9_u32; 10], Reduction::Sum));
            dropped.wait();
            hear.recv_timeout(LONG).unwrap().unwrap();
        } else {
            dropped.wait(); // nothing can be done before the requests are gone
            for (mine, length, wanted) in [(1_u32, 100_000, 6), (1, 100_000, 8), (1, 10, 10)] {
                let mut values = vec![mine; length];
                communicator.all_reduce(&mut values, Reduction::Sum).unwrap();
                assert_eq!(values, vec![wanted; length]);
            }
        }
        communicator.barrier().unwrap();
    });
}

#[test]
fn memory_of_a_dropped_request_is_freed_once_it_is_done() {
    // A callback owns what it captured exactly as long as the operation's memory is kept.
    struct Tell(mpsc::Sender<()>);
    impl Drop for Tell {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let dropped = Barrier::new(2);
    ranks(2, |communicator| {
        let (tell, hear) = mpsc::channel();
        let tell = Tell(tell);
        let request = communicator.barrier_start().unwrap();
        request.on_complete(move |_| drop(tell)).unwrap();
        if communicator.rank() == 0 {
            drop(request);
        }
        dropped.wait();
        hear.recv_timeout(LONG).unwrap();
    });
}

#[test]
fn a_request_ends_when_its_communicator_is_dropped() {
    let rendezvous = &rendezvous();
    let _peer = join(rendezvous, 1, 2);
    let communicator = join(rendezvous, 0, 2);
    communicator.wait_ready(LONG).unwrap();
    let request = communicator.all_reduce_start(vec![1_i8; 64], Reduction::Sum).unwrap();
    let unheard = communicator.barrier_start().unwrap();
    drop(communicator);
    assert!(request.wait().is_err());
    drop(unheard);
}

#[test]
fn what_cannot_be_started_makes_no_request() {
    ranks(2, |communicator| {
        let refused = |status, result: trireme::Result<()>| fails(result, status);
        let bad = Status::InvalidArgument;
        refused(bad, communicator.broadcast_start(vec![0_u8], 7).map(drop));
        refused(bad, communicator.send_start(vec![0_u8], -1, 0).map(drop));
        refused(bad, communicator.receive_start(vec![0_u8], 2, 0).map(drop));
        let counts = [1, 1, 1];
        refused(bad, communicator.all_gather_v_start(vec![0], vec![0; 2], &counts).map(drop));
        let xor = communicator.all_reduce_start(vec![0.0_f64], Reduction::Bxor);
        refused(Status::Unsupported, xor.map(drop));
        communicator.barrier().unwrap();
    });
}
