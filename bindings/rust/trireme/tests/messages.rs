//! Messages of any source, tag and length, waiting for several requests, and options of calls.

mod support;

use std::sync::{mpsc, Mutex};
use std::time::Duration;

use support::{fails, join, ranks, rendezvous, LONG, WORLDS};
use trireme::{
    wait_all, Algorithm, Dtype, OperationOptions, Priority, Reduction, Source, Status, Tag,
};

const MOMENT: Duration = Duration::from_millis(20);

#[test]
fn a_receive_tells_what_came() {
    ranks(3, |communicator| {
        let rank = communicator.rank();
        if rank > 0 {
            communicator.send(&vec![rank; rank as usize], 0, 10 * rank as u64).unwrap();
            communicator.send(&[7, rank], 0, 5).unwrap();
            return;
        }
        let mut room = [-1; 4];
        let info = communicator.receive_message(&mut room, 2, 20).unwrap();
        assert_eq!((info.source, info.tag, info.count), (2, 20, 2));
        assert!(info.is(Dtype::I32) && !info.is(Dtype::F32));
        assert_eq!(room, [2, 2, -1, -1]);
        let info = communicator.receive_message(&mut room, 1, Tag::Any).unwrap();
        assert_eq!((info.source, info.tag, info.count), (1, 10, 1));
        let request = communicator.receive_message_start(vec![0; 3], 2, Tag::Any).unwrap();
        assert!(request.wait_for(LONG).unwrap());
        assert_eq!(request.message().unwrap().tag, 5);
        assert_eq!(request.wait().unwrap(), [7, 2, 0]);
        let request = communicator.receive_start(vec![0; 2], Source::Any, 5).unwrap();
        assert!(request.wait_for(LONG).unwrap());
        assert_eq!(request.message().unwrap().source, 1);
        assert_eq!(request.wait().unwrap(), [7, 1]);
    });
}

#[test]
fn a_message_of_unknown_length_comes_in_new_memory() {
    ranks(2, |communicator| {
        for length in [0, 1, 5000] {
            let data: Vec<f64> = (0..length).map(f64::from).collect();
            if communicator.rank() == 0 {
                communicator.send(&data, 1, 3).unwrap();
                communicator.send(&data, 1, 4).unwrap();
            } else {
                let (found, info) = communicator.receive_to_buffer::<f64>(0, 3).unwrap();
                assert_eq!((&found[..], info.count), (&data[..], data.len() as u64));
                let (found, info) =
                    communicator.receive_to_buffer::<f64>(Source::Any, Tag::Any).unwrap();
                assert_eq!((&found[..], info.tag), (&data[..], 4));
            }
        }
    });
}

#[test]
fn a_probe_looks_and_leaves_the_message() {
    ranks(2, |communicator| {
        if communicator.rank() == 1 {
            communicator.barrier().unwrap();
            communicator.send(&[1_i16, 2, 3], 0, 9).unwrap();
            return;
        }
        fails(communicator.within(MOMENT).probe(1, 9), Status::Timeout);
        communicator.barrier().unwrap();
        assert_eq!(communicator.probe(1, 9).unwrap().count, 3);
        let request = communicator.probe_start(Source::Any, Tag::Any).unwrap();
        assert!(request.wait_for(LONG).unwrap());
        assert_eq!(request.message().unwrap().tag, 9);
        let mut data = [0_i16; 3];
        communicator.receive(&mut data, 1, 9).unwrap();
        assert_eq!(data, [1, 2, 3]);
    });
}

#[test]
fn send_receive_goes_round_the_ring() {
    for world in WORLDS {
        ranks(world, |communicator| {
            let rank = communicator.rank();
            let (next, before) = ((rank + 1) % world, (rank + world - 1) % world);
            let mut got = [-1; 2];
            communicator.send_receive((&[rank, 5], next, 1), &mut got, before, 1).unwrap();
            assert_eq!(got, [before, 5]);
            let (sent, one) = ([-rank], &mut got[..1]);
            communicator.send_receive((&sent, next, 2), one, Source::Any, Tag::Any).unwrap();
            assert_eq!(got[0], -before);
        });
    }
}

#[test]
fn a_buffered_send_needs_no_receiver() {
    ranks(2, |communicator| {
        let (rank, peer) = (communicator.rank(), 1 - communicator.rank());
        let mut data = vec![rank; 1000];
        communicator.send_buffered(&data, peer, 0).unwrap(); // both send first
        data[0] = 99; // it was copied
        communicator.send_buffered(&data, rank, 1).unwrap();
        communicator.receive(&mut data, peer, 0).unwrap();
        assert_eq!(data[0], peer);
        communicator.receive(&mut data, rank, 1).unwrap();
        assert_eq!(data[0], 99);
    });
}

#[test]
fn wait_all_waits_for_every_request() {
    let (sender, receiver) = mpsc::channel();
    let (sender, receiver) = (Mutex::new(sender), Mutex::new(receiver));
    ranks(2, |communicator| {
        if communicator.rank() == 1 {
            communicator.send(&[1], 0, 1).unwrap();
            receiver.lock().unwrap().recv_timeout(LONG).unwrap();
            communicator.send(&[2], 0, 2).unwrap();
            return;
        }
        let two = communicator.receive_start(vec![0], 1, 2).unwrap();
        let one = communicator.receive_start(vec![0], 1, 1).unwrap();
        fails(wait_all(&[&two, &one], MOMENT), Status::Timeout);
        sender.lock().unwrap().send(()).unwrap();
        wait_all(&[&two, &one], LONG).unwrap();
        assert_eq!((one.wait().unwrap(), two.wait().unwrap()), (vec![1], vec![2]));
        wait_all(&[], Duration::ZERO).unwrap();
        let late = communicator.within(MOMENT).receive_start(vec![0], 1, 7).unwrap();
        assert_eq!(fails(wait_all(&[&late], LONG), Status::Timeout).operation(), Some("receive"));
        fails(late.message(), Status::InvalidState);
    });
}

#[test]
fn any_algorithm_and_a_reproducible_sum_give_the_sum() {
    for world in WORLDS {
        ranks(world, |communicator| {
            let rank = communicator.rank();
            for algorithm in [
                Algorithm::Automatic,
                Algorithm::Direct,
                Algorithm::Ring,
                Algorithm::HalvingDoubling,
                Algorithm::DoubleTree,
            ] {
                let call = OperationOptions { algorithm, ..Default::default() };
                let mut data: Vec<i32> = (0..101).map(|i| i * (rank + 1)).collect();
                communicator.with(call).all_reduce(&mut data, Reduction::Sum).unwrap();
                assert_eq!(data[100], 100 * world * (world + 1) / 2);
                let call = OperationOptions { reproducible: true, ..call };
                let mut small = [0.1 * f64::from(rank + 1)];
                communicator.with(call).all_reduce(&mut small, Reduction::Sum).unwrap();
                let mut wanted = 0.1 * 1.0;
                (1..world).for_each(|other| wanted += 0.1 * f64::from(other + 1));
                assert_eq!(small, [wanted]);
            }
        });
    }
}

#[test]
fn a_narrow_wire_rounds_what_travels() {
    ranks(2, |communicator| {
        let call = OperationOptions { wire_dtype: Some(Dtype::Bf16), ..Default::default() };
        // 257 needs 9 bits, bfloat16 has 8: it is rounded to even.
        let (mine, mut all) = ([257.0_f32, communicator.rank() as f32], [0.0; 4]);
        communicator.with(call).all_gather(&mine, &mut all).unwrap();
        assert_eq!(all, [256.0, 0.0, 256.0, 1.0]);
    });
}

#[test]
fn what_makes_no_sense_is_refused_and_the_group_lives_on() {
    ranks(2, |communicator| {
        let invalid = Status::InvalidArgument;
        let (mut data, mut narrow) = ([1, 2], [1.0_f32]);
        fails(communicator.receive(&mut data, 2, 0), invalid);
        fails(communicator.receive(&mut data, -1, 0), invalid);
        fails(communicator.receive_message(&mut data, 7, Tag::Any), invalid);
        fails(communicator.receive_to_buffer::<f32>(-2, 0), invalid);
        fails(communicator.probe(2, 0), invalid);
        fails(communicator.probe_start(-1, 0), invalid);
        fails(communicator.receive_message_start(vec![1], 2, 0), invalid);
        fails(communicator.send_buffered(&[1], -1, 0), invalid);
        fails(communicator.send_receive((&[1], -1, 0), &mut data, 0, 0), invalid);
        let urgent = OperationOptions { priority: Priority::High, ..Default::default() };
        fails(communicator.with(urgent).send(&[1], 0, 0), invalid);
        let wire = OperationOptions { wire_dtype: Some(Dtype::F64), ..Default::default() };
        fails(communicator.with(wire).all_reduce(&mut narrow, Reduction::Sum), invalid);
        let wire = OperationOptions { wire_dtype: Some(Dtype::Bf16), ..Default::default() };
        fails(communicator.with(wire).all_reduce(&mut data, Reduction::Sum), invalid);
        let bruck = OperationOptions { algorithm: Algorithm::Bruck, ..Default::default() };
        let refused = communicator.with(bruck).all_reduce(&mut data, Reduction::Sum);
        fails(refused, Status::Unsupported);
        assert_eq!((data, narrow), ([1, 2], [1.0]));
        communicator.barrier().unwrap();
    });
}

#[test]
fn a_message_that_is_too_long_is_a_mismatch_with_both_lengths() {
    ranks(2, |communicator| {
        if communicator.rank() == 0 {
            communicator.send_buffered(&[1_u8; 123], 1, 0).unwrap();
            return;
        }
        let error = fails(communicator.receive_message(&mut [0_u8; 45], 0, 0), Status::Mismatch);
        assert!(error.message().contains("123") && error.message().contains("45"), "{error}");
    });
}

#[test]
fn only_a_receive_that_is_done_has_a_message() {
    let communicator = join(&rendezvous(), 0, 1);
    let barrier = communicator.barrier_start().unwrap();
    assert!(barrier.wait_for(LONG).unwrap());
    fails(barrier.message(), Status::InvalidState);
    let request = communicator.receive_start(vec![0], 0, 0).unwrap();
    fails(request.message(), Status::InvalidState);
    communicator.send(&[5], 0, 0).unwrap();
    assert!(request.wait_for(LONG).unwrap());
    assert_eq!(request.message().unwrap().count, 1);
}
