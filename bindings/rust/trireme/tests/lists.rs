//! Lists of buffers, batches of calls, and operations into new memory, against plain arithmetic.

mod support;

use support::{fails, ranks, WORLDS};
use trireme::{Batch, Buffer, Reduction, Status};

const LENGTHS: [usize; 5] = [3, 0, 1, 5000, 7];

/// Element `i` of rank `rank`'s buffer that `seed` names.
fn value(rank: i32, seed: usize, i: usize) -> i64 {
    i64::from(rank + 1) * 1000 + ((i + seed) as i64 * 7) % 113
}

fn values(rank: i32, seed: usize, range: std::ops::Range<usize>) -> Vec<i64> {
    range.map(|i| value(rank, seed, i)).collect()
}

/// One vector for each of LENGTHS, `blocks` times as long.
fn list(blocks: usize, element: impl Fn(usize, usize) -> i64) -> Vec<Vec<i64>> {
    LENGTHS.iter().map(|&n| (0..n * blocks).map(|i| element(n, i)).collect()).collect()
}

fn slices(list: &[Vec<i64>]) -> Vec<&[i64]> {
    list.iter().map(Vec::as_slice).collect()
}

fn slices_mut(list: &mut [Vec<i64>]) -> Vec<&mut [i64]> {
    list.iter_mut().map(Vec::as_mut_slice).collect()
}

#[test]
fn an_all_reduce_of_a_list_is_that_of_its_buffers() {
    for world in WORLDS {
        ranks(world, |communicator| {
            let rank = communicator.rank();
            let wanted = list(1, |n, i| (0..world).map(|other| value(other, n, i)).sum());
            let mine = list(1, |n, i| value(rank, n, i));
            let mut data = mine.clone();
            communicator.all_reduce_list(&mut slices_mut(&mut data), Reduction::Sum).unwrap();
            assert_eq!(data, wanted);
            let mut data = list(1, |_, _| -1);
            communicator
                .all_reduce_list_into(&slices(&mine), &mut slices_mut(&mut data), Reduction::Sum)
                .unwrap();
            assert_eq!(data, wanted);
            let request = communicator.all_reduce_list_start(mine, Reduction::Sum).unwrap();
            assert_eq!(request.wait().unwrap(), wanted);
            communicator.all_reduce_list::<f32>(&mut [], Reduction::Average).unwrap();
        });
    }
}

#[test]
fn lists_of_blocks_are_scattered_gathered_and_broadcast() {
    for world in WORLDS {
        ranks(world, |communicator| {
            let (rank, size) = (communicator.rank(), world as usize);
            let send = list(size, |n, i| value(rank, n, i));
            let wanted = list(1, |n, i| {
                (0..world).map(|other| value(other, n, rank as usize * n + i)).sum()
            });
            let mut receive = list(1, |_, _| -1);
            communicator
                .reduce_scatter_list(&slices(&send), &mut slices_mut(&mut receive), Reduction::Sum)
                .unwrap();
            assert_eq!(receive, wanted);
            let request = communicator
                .reduce_scatter_list_start(send, list(1, |_, _| -1), Reduction::Sum)
                .unwrap();
            assert_eq!(request.wait().unwrap().1, wanted);

            let send = list(1, |n, i| value(rank, n, i));
            let wanted = list(size, |n, i| value((i / n) as i32, n, i % n));
            let mut receive = list(size, |_, _| -1);
            communicator.all_gather_list(&slices(&send), &mut slices_mut(&mut receive)).unwrap();
            assert_eq!(receive, wanted);
            let request = communicator.all_gather_list_start(send, list(size, |_, _| -1)).unwrap();
            assert_eq!(request.wait().unwrap().1, wanted);

            for root in 0..world {
                let wanted = list(1, |n, i| value(root, n, i));
                let mut data = list(1, |n, i| value(rank, n, i));
                communicator.broadcast_list(&mut slices_mut(&mut data), root).unwrap();
                assert_eq!(data, wanted);
                let data = list(1, |n, i| value(rank, n, i));
                let request = communicator.broadcast_list_start(data, root).unwrap();
                assert_eq!(request.wait().unwrap(), wanted);
            }
        });
    }
}

#[test]
fn new_memory_holds_what_only_the_sender_knew() {
    for world in WORLDS {
        ranks(world, |communicator| {
            let (rank, size) = (communicator.rank(), world as usize);
            let me = rank as usize;
            for root in 0..world {
                for length in [0, 1, 1001] {
                    let data = values(root, 0, 0..length);
                    let given: &[i64] = if rank == root { &data } else { &[] };
                    let mut found = communicator.broadcast_to_buffer(given, root).unwrap();
                    assert_eq!(&found[..], data);
                    found.fill(7); // it is one's own
                }
                let counts: Vec<usize> = (0..size).map(|r| (3 * r + root as usize) % 5).collect();
                let whole = values(root, 1, 0..counts.iter().sum());
                let first: usize = counts[..me].iter().sum();
                let wanted = &whole[first..first + counts[me]];
                let found: Buffer<i64> = if rank == root {
                    communicator.scatter_to_buffer(&whole, &counts, root).unwrap()
                } else {
                    communicator.scatter_to_buffer(&[], &[], root).unwrap()
                };
                assert_eq!(&found[..], wanted);
            }
            let counts: Vec<usize> = (0..size).map(|other| 3 * other % 4).collect();
            let wanted: Vec<i64> =
                (0..world).flat_map(|other| values(other, 2, 0..counts[other as usize])).collect();
            let (found, lengths) =
                communicator.all_gather_to_buffer(&values(rank, 2, 0..counts[me])).unwrap();
            assert_eq!((&found[..], lengths), (&wanted[..], counts));
        });
    }
}

#[test]
fn sends_and_receives_of_a_group_need_no_order() {
    for world in WORLDS {
        ranks(world, |communicator| {
            let (rank, peers) = (communicator.rank(), 0..world);
            let sent: Vec<i64> = peers.clone().map(|peer| i64::from(10 * rank + peer)).collect();
            let mut received = vec![-1; world as usize];
            let (mut sum, mut all, pair) = ([1, 2], vec![0; 2 * world as usize], [rank, 5]);
            let mut group = Batch::new();
            // Each rank first receives: apart from a group, a deadlock.
            for (peer, place) in received.chunks_mut(1).enumerate() {
                group.receive(communicator, place, peer as i32, 0);
            }
            for (peer, value) in sent.chunks(1).enumerate() {
                group.send(communicator, value, peer as i32, 0);
            }
            group.all_reduce(communicator, &mut sum, Reduction::Sum);
            group.all_gather(communicator, &pair, &mut all);
            assert_eq!(format!("{group:?}"), format!("Batch of {} operations", 2 * world + 2));
            group.run().unwrap();
            assert_eq!(received, peers.map(|p| i64::from(10 * p + rank)).collect::<Vec<_>>());
            assert_eq!(sum, [world, 2 * world]);
            assert_eq!(all, (0..world).flat_map(|p| [p, 5]).collect::<Vec<_>>());
        });
    }
}

#[test]
fn lists_that_do_not_fit_are_refused_before_anything_is_sent() {
    ranks(2, |communicator| {
        let (invalid, me) = (Status::InvalidArgument, communicator.rank());
        let (one, four) = ([1_i64], [1_i64; 4]);
        let (mut a, mut b) = ([7_i64; 1], [7_i64; 2]);
        let sum = Reduction::Sum;
        fails(
            communicator.all_reduce_list_into(&[&one], &mut [&mut a[..], &mut b[..]], sum),
            invalid,
        );
        fails(communicator.all_reduce_list_into(&[&one], &mut [&mut b[..]], sum), invalid);
        fails(communicator.reduce_scatter_list(&[&four], &mut [&mut a[..]], sum), invalid);
        fails(communicator.all_gather_list(&[&one], &mut [&mut a[..]]), invalid);
        fails(communicator.broadcast_list(&mut [&mut a[..]], 2), invalid);
        fails(communicator.reduce_scatter_list_start(vec![vec![1]], vec![vec![1]], sum), invalid);
        fails(communicator.all_gather_list_start(vec![vec![1]], vec![vec![1], vec![2]]), invalid);
        fails(communicator.broadcast_list_start(vec![vec![1]], -1), invalid);
        fails(
            communicator.all_reduce_list_start(vec![vec![1]], Reduction::ScaledSum(0.5)),
            Status::Unsupported,
        );
        fails(communicator.scatter_to_buffer(&four, &[3], me), invalid);
        fails(communicator.scatter_to_buffer(&four, &[3, 2], me), invalid);
        fails(communicator.broadcast_to_buffer(&four, 2), invalid);
        fails(communicator.scatter_to_buffer::<i64>(&[], &[], -1), invalid);
        assert_eq!((a, b), ([7; 1], [7; 2]));
        communicator.barrier().unwrap();
    });
}

#[test]
fn what_is_refused_in_a_group_leaves_the_rest_alone() {
    ranks(3, |communicator| {
        let (mut data, mut other, mut late) = ([1], [5], [9]);
        let mut group = Batch::new();
        group.all_reduce(communicator, &mut data, Reduction::Sum);
        group.broadcast(communicator, &mut other, 99);
        group.all_reduce(communicator, &mut late, Reduction::Sum);
        fails(group.run(), Status::InvalidArgument);
        communicator.barrier().unwrap();
        assert_eq!((data, other, late), ([3], [5], [9]));
        Batch::new().run().unwrap();
    });
}

#[test]
fn ranks_that_disagree_are_all_told() {
    ranks(3, |communicator| {
        let length = 2 + usize::from(communicator.rank() == 1);
        let data = vec![vec![1_i64; 3]; length];
        let request = communicator.all_reduce_list_start(data, Reduction::Sum).unwrap();
        fails(request.wait(), Status::Mismatch);
        fails(communicator.all_gather_to_buffer(&[1.0]), Status::Mismatch);
    });
    ranks(2, |communicator| {
        let mut data = vec![1_i64; 3 + communicator.rank() as usize];
        let mut group = Batch::new();
        group.all_reduce(communicator, &mut data, Reduction::Sum);
        assert_eq!(fails(group.run(), Status::Mismatch).operation(), Some("all_reduce"));
    });
}
