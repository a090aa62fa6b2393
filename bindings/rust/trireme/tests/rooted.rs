//! Reduce, gather, scatter and all-to-all, against plain arithmetic, and urgent operations.

mod support;

use std::sync::mpsc;
use std::sync::Mutex;

use support::{fails, ranks, LONG, WORLDS};
use trireme::{Communicator, OperationOptions, Priority, Reduction, Status};

const LENGTHS: [usize; 5] = [0, 1, 3, 64, 1003];

/// Element `i` of rank `rank`.
fn value(rank: i32, i: usize) -> i64 {
    i64::from(rank + 1) * 1000 + (i as i64 * 7) % 113
}

fn values(rank: i32, range: std::ops::Range<usize>) -> Vec<i64> {
    range.map(|i| value(rank, i)).collect()
}

fn counts(world: i32) -> Vec<usize> {
    (0..world as usize).map(|rank| (rank * 3 + 1) % 5).collect()
}

/// Every root of every world.
fn roots(body: impl Fn(&Communicator, i32) + Sync) {
    for world in WORLDS {
        ranks(world, |communicator| (0..world).for_each(|root| body(communicator, root)));
    }
}

#[test]
fn the_root_gets_the_sum_and_the_others_keep_what_they_have() {
    roots(|communicator, root| {
        let (rank, world) = (communicator.rank(), communicator.world_size());
        for length in LENGTHS {
            let mine = values(rank, 0..length);
            let sum: Vec<i64> =
                (0..length).map(|i| (0..world).map(|other| value(other, i)).sum()).collect();
            let wanted = if rank == root { &sum } else { &mine };
            let mut data = mine.clone();
            communicator.reduce(&mut data, root, Reduction::Sum).unwrap();
            assert_eq!(&data, wanted);
            let started = communicator.reduce_start(mine.clone(), root, Reduction::Sum).unwrap();
            assert_eq!(&started.wait().unwrap(), wanted);
            let mut receive = if rank == root { vec![-1; length] } else { Vec::new() };
            communicator.reduce_into(&mine, &mut receive, root, Reduction::Sum).unwrap();
            assert_eq!(receive, if rank == root { sum } else { Vec::new() });
        }
        let mut scaled = [f64::from(rank)];
        communicator.reduce(&mut scaled, root, Reduction::ScaledSum(0.5)).unwrap();
        if rank == root {
            assert_eq!(scaled, [f64::from(world * (world - 1) / 2) * 0.5]);
        }
    });
}

#[test]
fn blocks_are_gathered_at_the_root_and_scattered_from_it() {
    roots(|communicator, root| {
        let (rank, world) = (communicator.rank(), communicator.world_size());
        let at_root = |all: Vec<i64>| if rank == root { all } else { Vec::new() };
        for length in LENGTHS {
            let mine = values(rank, 0..length);
            let all: Vec<i64> = (0..world).flat_map(|other| values(other, 0..length)).collect();
            let room = at_root(vec![-1; all.len()]);
            let mut receive = room.clone();
            communicator.gather(&mine, &mut receive, root).unwrap();
            assert_eq!(receive, at_root(all.clone()));
            let (_, receive) = communicator.gather_start(mine, room, root).unwrap().wait().unwrap();
            assert_eq!(receive, at_root(all));

            let whole = at_root(values(root, 0..length * world as usize));
            let first = length * rank as usize;
            let mut block = vec![-1; length];
            communicator.scatter(&whole, &mut block, root).unwrap();
            assert_eq!(block, values(root, first..first + length));
            block.fill(-1);
            let (_, block) =
                communicator.scatter_start(whole, block, root).unwrap().wait().unwrap();
            assert_eq!(block, values(root, first..first + length));
        }
    });
}

#[test]
fn gathered_and_scattered_blocks_may_differ_in_length_and_be_empty() {
    roots(|communicator, root| {
        let (rank, world) = (communicator.rank(), communicator.world_size());
        let at_root = |all: Vec<i64>| if rank == root { all } else { Vec::new() };
        let counts = counts(world);
        let (length, total) = (counts[rank as usize], counts.iter().sum::<usize>());
        let mine = values(rank, 0..length);
        let all: Vec<i64> =
            (0..world).flat_map(|other| values(other, 0..counts[other as usize])).collect();
        let room = at_root(vec![-1; total]);
        let mut receive = room.clone();
        communicator.gather_v(&mine, &mut receive, &counts, root).unwrap();
        assert_eq!(receive, at_root(all.clone()));
        let request = communicator.gather_v_start(mine, room, &counts, root).unwrap();
        assert_eq!(request.wait().unwrap().1, at_root(all));

        let whole = at_root(values(root, 0..total));
        let first: usize = counts[..rank as usize].iter().sum();
        let mut block = vec![-1; length];
        communicator.scatter_v(&whole, &mut block, &counts, root).unwrap();
        assert_eq!(block, values(root, first..first + length));
        block.fill(-1);
        let request = communicator.scatter_v_start(whole, block, &counts, root).unwrap();
        assert_eq!(request.wait().unwrap().1, values(root, first..first + length));
    });
}

#[test]
fn all_to_all_transposes_blocks() {
    for world in WORLDS {
        ranks(world, |communicator| {
            let (rank, size) = (communicator.rank(), world as usize);
            for length in LENGTHS {
                let first = length * rank as usize;
                let wanted: Vec<i64> =
                    (0..world).flat_map(|from| values(from, first..first + length)).collect();
                let send = values(rank, 0..length * size);
                let mut receive = vec![-1; length * size];
                communicator.all_to_all(&send, &mut receive).unwrap();
                assert_eq!(receive, wanted);
                receive.fill(-1);
                let request = communicator.all_to_all_start(send, receive).unwrap();
                assert_eq!(request.wait().unwrap().1, wanted);
            }

            let count = |from: i32, to: i32| (from + 2 * to) as usize % 4;
            let given: Vec<usize> = (0..world).map(|to| count(rank, to)).collect();
            let taken: Vec<usize> = (0..world).map(|from| count(from, rank)).collect();
            let wanted: Vec<i64> = (0..world)
                .flat_map(|from| {
                    let first: usize = (0..rank).map(|to| count(from, to)).sum();
                    values(from, first..first + count(from, rank))
                })
                .collect();
            let send = values(rank, 0..given.iter().sum());
            let mut receive = vec![-1; wanted.len()];
            communicator.all_to_all_v(&send, &given, &mut receive, &taken).unwrap();
            assert_eq!(receive, wanted);
            receive.fill(-1);
            let request = communicator.all_to_all_v_start(send, &given, receive, &taken).unwrap();
            assert_eq!(request.wait().unwrap().1, wanted);
        });
    }
}

#[test]
fn urgent_operations_overtake_a_normal_one_that_waits() {
    let urgent = OperationOptions { priority: Priority::High, ..Default::default() };
    let (sender, receiver) = mpsc::channel();
    let (sender, receiver) = (Mutex::new(sender), Mutex::new(receiver));
    ranks(2, |communicator| {
        let mut data = [10];
        let waits = (communicator.rank() == 0)
            .then(|| communicator.all_reduce_start(vec![1], Reduction::Sum).unwrap());
        communicator.with(urgent).all_reduce(&mut data, Reduction::Sum).unwrap();
        assert_eq!(data, [20]);
        if let Some(request) = waits {
            assert!(!request.test().unwrap());
            sender.lock().unwrap().send(()).unwrap();
            assert_eq!(request.wait().unwrap(), [2]);
        } else {
            receiver.lock().unwrap().recv_timeout(LONG).unwrap();
            let mut normal = [1];
            communicator.all_reduce(&mut normal, Reduction::Sum).unwrap();
            assert_eq!(normal, [2]);
        }
    });
}

#[test]
fn lengths_that_do_not_fit_are_refused_before_anything_is_sent() {
    ranks(2, |communicator| {
        let (me, other) = (communicator.rank(), 1 - communicator.rank());
        let invalid = Status::InvalidArgument;
        let (two, three, four) = ([1; 2], [1; 3], [1; 4]);
        let mut room = [7; 4];
        fails(communicator.reduce_into(&two, &mut room[..3], me, Reduction::Sum), invalid);
        fails(communicator.gather(&two, &mut room[..3], me), invalid);
        fails(communicator.gather(&two, &mut [], me), invalid);
        fails(communicator.gather_v(&two, &mut room, &[2], other), invalid);
        fails(communicator.gather_v(&two, &mut room, &[2, 3], me), invalid);
        fails(communicator.gather_v(&two, &mut room, &[3, 3], other), invalid);
        fails(communicator.gather_v(&two, &mut room, &[usize::MAX, 3], other), invalid);
        fails(communicator.scatter(&three, &mut room[..2], me), invalid);
        fails(communicator.scatter_v(&four, &mut room[..2], &[4, 4], other), invalid);
        fails(communicator.all_to_all(&three, &mut room[..3]), invalid);
        fails(communicator.all_to_all(&four, &mut room[..2]), invalid);
        fails(communicator.all_to_all_v(&three, &[1, 1], &mut room[..2], &[1, 1]), invalid);
        fails(communicator.gather_start(vec![1], vec![1], me), invalid);
        fails(communicator.gather_v_start(vec![1], vec![1], &[2, 2], other), invalid);
        fails(communicator.scatter_start(vec![1], vec![1], me), invalid);
        fails(communicator.scatter_v_start(vec![1], vec![1], &[1], other), invalid);
        fails(communicator.all_to_all_start(vec![1], vec![1]), invalid);
        fails(communicator.all_to_all_v_start(vec![1], &[1, 0], vec![1], &[1]), invalid);
        assert_eq!(room, [7; 4]);
        communicator.barrier().unwrap();
    });
}

#[test]
fn a_root_that_does_not_exist_is_refused_and_the_group_goes_on() {
    ranks(2, |communicator| {
        for root in [-1, 2] {
            let invalid = Status::InvalidArgument;
            fails(communicator.reduce(&mut [1], root, Reduction::Sum), invalid);
            fails(communicator.gather(&[1], &mut [], root), invalid);
            fails(communicator.scatter(&[], &mut [1], root), invalid);
            fails(communicator.reduce_start(vec![1], root, Reduction::Sum), invalid);
            fails(communicator.gather_start(vec![1], vec![], root), invalid);
        }
        communicator.barrier().unwrap();
    });
}

#[test]
fn ranks_that_disagree_about_root_or_counts_are_all_told() {
    ranks(3, |communicator| {
        let root = i32::from(communicator.rank() == 2);
        let error = fails(communicator.reduce(&mut [1], root, Reduction::Sum), Status::Mismatch);
        assert_eq!(error.operation(), Some("reduce"));
        fails(communicator.barrier(), Status::Mismatch);
    });
    ranks(2, |communicator| {
        // Each gives the other one element; rank 1 expects two.
        let expected = 1 + communicator.rank() as usize;
        let result = communicator.all_to_all_v(
            &[1, 1],
            &[1, 1],
            &mut vec![0; 2 * expected],
            &[expected, expected],
        );
        fails(result, Status::Mismatch);
    });
}
