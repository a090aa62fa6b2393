//! The blocking operations, against plain arithmetic.

mod support;

use std::time::Duration;

use support::{fails, join, ranks, rendezvous, LONG, WORLDS};
use trireme::{
    Bf16, Bool8, Buffer, Byte, Communicator, Element, F8E4m3, F8E5m2, Reduction, Status, F16,
};

const LENGTHS: [usize; 6] = [0, 1, 2, 7, 64, 1003];

/// Element `i` of rank `rank`: small, so that all sums below are exact in every type tested.
fn value(rank: i32, i: usize) -> i64 {
    (i as i64 * 7 + i64::from(rank) * 3) % 5
}

fn sum(world: i32, i: usize) -> i64 {
    (0..world).map(|rank| value(rank, i)).sum()
}

fn check_sums<T: Element>(convert: impl Fn(i64) -> T + Sync + Copy) {
    for world in WORLDS {
        ranks(world, |communicator| {
            for length in LENGTHS {
                let mine: Vec<T> =
                    (0..length).map(|i| convert(value(communicator.rank(), i))).collect();
                let wanted: Vec<T> = (0..length).map(|i| convert(sum(world, i))).collect();
                let mut values = mine.clone();
                communicator.all_reduce(&mut values, Reduction::Sum).unwrap();
                assert_eq!(values, wanted);
                values.fill(T::default());
                communicator.all_reduce_into(&mine, &mut values, Reduction::Sum).unwrap();
                assert_eq!(values, wanted);
            }
        });
    }
}

#[test]
fn sums_of_every_number_type_are_the_same_on_all_ranks() {
    check_sums(|x| x as i8);
    check_sums(|x| x as u8);
    check_sums(|x| x as i16);
    check_sums(|x| x as u16);
    check_sums(|x| x as i32);
    check_sums(|x| x as u32);
    check_sums(|x| x);
    check_sums(|x| x as u64);
    check_sums(|x| x as f32);
    check_sums(|x| x as f64);
}

#[test]
fn small_floats_travel_as_their_bits() {
    ranks(2, |communicator| {
        let one_plus_one = |result: trireme::Result<()>| result.unwrap();
        let mut half = [F16(0x3c00); 5];
        one_plus_one(communicator.all_reduce(&mut half, Reduction::Sum));
        assert_eq!(half, [F16(0x4000); 5]);
        let mut brain = [Bf16(0x3f80); 5];
        one_plus_one(communicator.all_reduce(&mut brain, Reduction::Sum));
        assert_eq!(brain, [Bf16(0x4000); 5]);
        let mut e4m3 = [F8E4m3(0x38); 5];
        one_plus_one(communicator.all_reduce(&mut e4m3, Reduction::Sum));
        assert_eq!(e4m3, [F8E4m3(0x40); 5]);
        let mut e5m2 = [F8E5m2(0x3c); 5];
        one_plus_one(communicator.all_reduce(&mut e5m2, Reduction::Sum));
        assert_eq!(e5m2, [F8E5m2(0x40); 5]);
    });
}

#[test]
fn every_reduction_does_what_it_says() {
    ranks(3, |communicator| {
        let rank = communicator.rank();
        let reduce = |value: i32, reduction| {
            let mut values = [value];
            communicator.all_reduce(&mut values, reduction).unwrap();
            values[0]
        };
        assert_eq!(reduce(rank + 2, Reduction::Product), 24);
        assert_eq!(reduce(rank - 1, Reduction::Min), -1);
        assert_eq!(reduce(rank - 1, Reduction::Max), 1);
        assert_eq!(reduce(-rank, Reduction::Average), -1);
        assert_eq!(reduce(6 | rank, Reduction::Band), 6);
        assert_eq!(reduce(1 << rank, Reduction::Bor), 7);
        assert_eq!(reduce(5 + rank, Reduction::Bxor), 5 ^ 6 ^ 7);
        let mut scaled = [f64::from(rank) + 1.0];
        communicator.all_reduce(&mut scaled, Reduction::ScaledSum(0.25)).unwrap();
        assert_eq!(scaled, [1.5]);
        let mut truth = [Bool8(1), Bool8(u8::from(rank == 1)), Bool8(0)];
        communicator.all_reduce(&mut truth, Reduction::Max).unwrap();
        assert_eq!(truth, [Bool8(1), Bool8(1), Bool8(0)]);
    });
}

#[test]
fn blocks_are_scattered_and_gathered_in_rank_order() {
    for world in WORLDS {
        ranks(world, |communicator| {
            let rank = communicator.rank();
            for length in LENGTHS {
                let all = length * world as usize;
                let send: Vec<i64> = (0..all).map(|i| value(rank, i)).collect();
                let mut block = vec![-1; length];
                communicator.reduce_scatter(&send, &mut block, Reduction::Sum).unwrap();
                let first = length * rank as usize;
                let wanted: Vec<i64> = (first..first + length).map(|i| sum(world, i)).collect();
                assert_eq!(block, wanted);

                let mut whole = vec![-1; all];
                communicator.all_gather(&block, &mut whole).unwrap();
                assert_eq!(whole, (0..all).map(|i| sum(world, i)).collect::<Vec<_>>());
            }
        });
    }
}

#[test]
fn blocks_may_differ_in_length_and_be_empty() {
    for world in WORLDS {
        ranks(world, |communicator| {
            let rank = communicator.rank() as usize;
            let counts: Vec<usize> = (0..world as usize).map(|r| (r * 5 + 3) % 7 % 4).collect();
            let (first, all): (usize, usize) = (counts[..rank].iter().sum(), counts.iter().sum());
            let send: Vec<i64> = (0..all).map(|i| value(rank as i32, i)).collect();
            let mut block = vec![-1; counts[rank]];
            communicator.reduce_scatter_v(&send, &mut block, &counts, Reduction::Sum).unwrap();
            let wanted: Vec<i64> = (first..first + counts[rank]).map(|i| sum(world, i)).collect();
            assert_eq!(block, wanted);
            let mut whole = vec![-1; all];
            communicator.all_gather_v(&block, &mut whole, &counts).unwrap();
            assert_eq!(whole, (0..all).map(|i| sum(world, i)).collect::<Vec<_>>());
        });
    }
}

#[test]
fn every_root_broadcasts_bytes_as_they_are() {
    for world in WORLDS {
        ranks(world, |communicator| {
            for root in 0..world {
                let mut data = [Byte(communicator.rank() as u8 + 100); 9];
                communicator.broadcast(&mut data, root).unwrap();
                assert_eq!(data, [Byte(root as u8 + 100); 9]);
            }
            communicator.barrier().unwrap();
        });
    }
}

#[test]
fn messages_arrive_by_tag_and_in_order() {
    ranks(2, |communicator| {
        let peer = 1 - communicator.rank();
        if communicator.rank() == 0 {
            for i in 0..10_u32 {
                communicator.send(&[i, i * i], peer, u64::MAX).unwrap();
            }
            communicator.send::<u8>(&[], peer, 0).unwrap();
        } else {
            for i in 0..10_u32 {
                let mut data = [0; 2];
                communicator.receive(&mut data, peer, u64::MAX).unwrap();
                assert_eq!(data, [i, i * i]);
            }
            communicator.receive::<u8>(&mut [], peer, 0).unwrap();
        }
    });
}

#[test]
fn buffers_work_wherever_slices_do() {
    ranks(3, |communicator| {
        let mut buffer: Buffer<f32> = Buffer::new(communicator, 100).unwrap();
        buffer.fill(communicator.rank() as f32);
        communicator.all_reduce(&mut buffer[10..20], Reduction::Sum).unwrap();
        assert_eq!(buffer[9], communicator.rank() as f32);
        assert_eq!(&buffer[10..20], [3.0; 10]);
        let mut all = vec![0.0; 300];
        communicator.all_gather(&buffer, &mut all).unwrap();
        assert_eq!((all[0], all[100], all[200], all[110]), (0.0, 1.0, 2.0, 3.0));
    });
}

#[test]
fn one_communicator_serves_many_threads() {
    ranks(2, |communicator| {
        std::thread::scope(|scope| {
            for tag in 0..4_u64 {
                scope.spawn(move || {
                    let peer = 1 - communicator.rank();
                    let request = communicator.send_start(vec![tag; 50], peer, tag).unwrap();
                    let mut data = [0; 50];
                    communicator.receive(&mut data, peer, tag).unwrap();
                    assert_eq!(data, [tag; 50]);
                    request.wait().unwrap();
                });
            }
        });
    });
}

#[test]
fn lengths_that_do_not_fit_are_refused_before_the_library_believes_them() {
    ranks(2, |communicator| {
        let mut receive = [0_u8; 4];
        let refused = |result: trireme::Result<()>| fails(result, Status::InvalidArgument);
        refused(communicator.all_reduce_into(&[0; 3], &mut receive, Reduction::Sum));
        refused(communicator.reduce_scatter(&[0; 7], &mut receive, Reduction::Sum));
        refused(communicator.all_gather(&[0; 3], &mut receive));
        refused(communicator.all_gather_v(&[0; 2], &mut receive, &[2, 2, 2]));
        refused(communicator.all_gather_v(&[0; 2], &mut receive, &[2, 1]));
        refused(communicator.all_gather_v(&[0; 3], &mut receive, &[2, 2]));
        refused(communicator.all_gather_v(&[0; 2], &mut receive, &[2, usize::MAX]));
        refused(communicator.reduce_scatter_v(&[0; 3], &mut receive, &[2, 2], Reduction::Sum));
        refused(communicator.broadcast(&mut receive, 2));
        refused(communicator.send(&receive, -1, 0));
        refused(communicator.all_gather_start(vec![0_u8; 3], vec![0; 4]).map(drop));
        refused(
            communicator.reduce_scatter_start(vec![0_u8; 3], vec![0; 4], Reduction::Sum).map(drop),
        );
        // "After an argument error the communicator goes on as if the call had not been made."
        communicator.barrier().unwrap();
    });
}

#[test]
fn what_has_no_meaning_is_unsupported() {
    ranks(2, |communicator| {
        fails(communicator.all_reduce(&mut [Byte(1)], Reduction::Sum), Status::Unsupported);
        fails(communicator.all_reduce(&mut [1.0_f32], Reduction::Bxor), Status::Unsupported);
        fails(communicator.all_reduce(&mut [Bool8(1)], Reduction::Sum), Status::Unsupported);
        communicator.barrier().unwrap();
    });
}

/// The same failure on every rank, with its operation and number.
fn mismatch(operation: &str, call: impl Fn(&Communicator) -> trireme::Result<()> + Sync) {
    ranks(3, |communicator| {
        communicator.barrier().unwrap();
        let error = fails(call(communicator), Status::Mismatch);
        assert_eq!(error.sequence(), Some(2), "{error:?}");
        if !operation.is_empty() {
            assert_eq!(error.operation(), Some(operation), "{error:?}");
        }
        // The first failure stays.
        fails(communicator.barrier(), Status::Mismatch);
        assert!(communicator.statistics().unwrap().failures >= 1);
    });
}

#[test]
fn ranks_that_disagree_are_told_so_on_every_rank() {
    mismatch("all_reduce", |communicator| {
        let length = if communicator.rank() == 1 { 4 } else { 5 };
        communicator.all_reduce(&mut vec![0_i32; length], Reduction::Sum)
    });
    mismatch("all_reduce", |communicator| match communicator.rank() {
        2 => communicator.all_reduce(&mut [0_u32; 4], Reduction::Sum),
        _ => communicator.all_reduce(&mut [0_i32; 4], Reduction::Sum),
    });
    mismatch("all_reduce", |communicator| {
        let reductions = [Reduction::Sum, Reduction::Max, Reduction::Sum];
        communicator.all_reduce(&mut [0_i32; 4], reductions[communicator.rank() as usize])
    });
    mismatch("broadcast", |communicator| {
        communicator.broadcast(&mut [0_i32; 4], i32::from(communicator.rank() == 0))
    });
    mismatch("", |communicator| match communicator.rank() {
        0 => communicator.barrier(),
        _ => communicator.broadcast(&mut [0_i32; 4], 0),
    });
}

#[test]
fn a_deadline_names_the_rank_that_is_missing() {
    let others = std::sync::Barrier::new(3);
    ranks(3, |communicator| {
        communicator.wait_ready(LONG).unwrap();
        if communicator.rank() == 1 {
            others.wait(); // calls nothing until the others have given up
            return;
        }
        let error =
            fails(communicator.within(Duration::from_millis(300)).barrier(), Status::Timeout);
        others.wait();
        assert!(error.blamed().contains(&1), "{error:?}");
        assert_eq!((error.operation(), error.sequence()), (Some("barrier"), Some(1)));
        assert!(error.communicator().unwrap().contains("rust-test"), "{error:?}");
    });
}

#[test]
fn abort_ends_what_waits_on_all_ranks_with_its_reason() {
    ranks(3, |communicator| {
        if communicator.rank() == 2 {
            communicator.wait_ready(LONG).unwrap();
            communicator.abort("the data ran out\0").unwrap();
        }
        let error = fails(communicator.barrier(), Status::Aborted);
        assert!(error.message().contains("the data ran out"), "{error}");
        communicator.abort("again").unwrap();
        fails(communicator.all_reduce(&mut [1], Reduction::Sum), Status::Aborted);
    });
}

#[test]
fn a_rank_that_left_is_named() {
    let rendezvous = &rendezvous();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let leaver = join(rendezvous, 1, 2);
            leaver.wait_ready(LONG).unwrap();
        });
        let communicator = join(rendezvous, 0, 2);
        let error = fails(communicator.barrier(), Status::PeerLost);
        assert_eq!(error.blamed(), [1], "{error:?}");
    });
}
