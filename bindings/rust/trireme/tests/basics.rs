//! Tests that need no second rank: names, questions, options, the log, failpoints, handles.

mod support;

use std::ptr;
use std::time::Duration;

use support::{fails, join, rendezvous, LONG};
use trireme::{
    capability, failpoint, Algorithm, Buffer, CapabilityQuery, Communicator, CommunicatorOptions,
    Device, Dtype, Model, Operation, Optimizer, Reduction, Request, RuleKind, Status, Strategy,
};
use trireme_sys as sys;

#[test]
fn names_and_sizes_are_those_of_the_library() {
    assert!(trireme::version() >= 1_000_000);
    assert!(trireme::build_info().starts_with("trireme 1."));
    assert_eq!((Dtype::Bf16.name(), Dtype::Bf16.size()), ("bf16", 2));
    assert_eq!((Dtype::F64.to_string().as_str(), Dtype::F64.size()), ("f64", 8));
    assert_eq!(Reduction::ScaledSum(2.0).name(), "scaled_sum");
    assert_eq!(Algorithm::HalvingDoubling.name(), "halving_doubling");
    assert_eq!(Algorithm::default().to_string(), "automatic");
    assert_eq!(Strategy::Zero3.to_string(), "zero3");
    let rules = RuleKind::ALL.map(RuleKind::name).join(" ");
    assert_eq!(rules, "sgd adam adamw adagrad rmsprop lion lamb lars adafactor muon");
    assert_eq!(RuleKind::AdamW.to_string(), "adamw");
    assert_eq!(Status::PeerLost.to_string(), "PEER_LOST");
}

#[test]
fn every_status_keeps_its_number() {
    for code in -15..0 {
        let status = Status::from_code(code).unwrap();
        assert!(!matches!(status, Status::Other(_)), "{code}");
        assert_eq!(status.code(), code);
    }
    assert_eq!(Status::from_code(0), None);
    assert_eq!(Status::from_code(-99), Some(Status::Other(-99)));
    assert_eq!(Status::Other(-99).code(), -99);
}

#[test]
fn strategies_are_found_by_name_and_synonym() {
    for strategy in Strategy::ALL {
        assert_eq!(strategy.name().parse::<Strategy>().unwrap(), strategy);
    }
    assert_eq!("FSDP".parse::<Strategy>().unwrap(), Strategy::Zero3);
    assert_eq!("ddp".parse::<Strategy>().unwrap(), Strategy::DataParallel);
    for (text, strategy) in [
        ("NoShard", Strategy::NoShard),
        ("ShardGradOp", Strategy::ShardGradOp),
        ("FullShard", Strategy::FullShard),
        ("HybridShard", Strategy::HybridShard),
    ] {
        assert_eq!(text.parse::<Strategy>().unwrap(), strategy);
    }
    assert_eq!(
        [Strategy::NoShard, Strategy::ShardGradOp, Strategy::FullShard],
        [Strategy::DataParallel, Strategy::Zero2, Strategy::Zero3]
    );
    fails("zero4".parse::<Strategy>(), Status::InvalidArgument);
    fails("zero\0".parse::<Strategy>(), Status::InvalidArgument);
}

#[test]
fn capabilities_are_told_with_a_reason() {
    capability(&CapabilityQuery::default()).unwrap();
    let mut query = CapabilityQuery {
        operation: Some(Operation::AllReduce),
        dtype: Some(Dtype::F16),
        reduction: Some(Reduction::Average),
        device: Some(Device::Host),
        backend: Some("local".into()),
    };
    capability(&query).unwrap();
    query.dtype = Some(Dtype::Byte);
    fails(capability(&query), Status::Unsupported);
    let cuda = CapabilityQuery { device: Some(Device::Cuda(0)), ..CapabilityQuery::default() };
    assert!(fails(capability(&cuda), Status::Unsupported).message().contains("CUDA"));
    let other = CapabilityQuery { backend: Some("pigeon".into()), ..CapabilityQuery::default() };
    assert!(fails(capability(&other), Status::Unsupported).message().contains("pigeon"));
}

#[test]
fn a_rank_knows_itself_and_its_group() {
    let communicator = join(&rendezvous(), 0, 1);
    assert_eq!((communicator.rank(), communicator.world_size()), (0, 1));
    communicator.wait_ready(Duration::ZERO).unwrap();
    assert!(communicator.backend().unwrap().starts_with("local"));
    communicator.barrier().unwrap();
    let statistics = communicator.statistics().unwrap();
    assert_eq!((statistics.operations, statistics.failures, statistics.sent_messages), (1, 0, 0));
    let record = communicator.flight_record().unwrap();
    assert_eq!(record.lines().count(), 1);
    assert!(record.contains("barrier"), "{record}");
    let calls = communicator.last_calls().unwrap();
    assert_eq!(calls.lines().count(), 1);
    assert!(calls.contains("\"collective\":\"barrier\",\"sequence\":1,"), "{calls}");
}

#[test]
fn a_rank_that_is_late_is_told_to_the_log() {
    let (sender, heard) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    trireme::set_log(trireme::LogLevel::Warning, move |_, line| {
        let _ = sender.lock().unwrap().send(line.to_owned());
    })
    .unwrap();
    let rendezvous = rendezvous();
    let run = |rank| {
        let options = CommunicatorOptions {
            stall_warning: Some(Duration::from_millis(10)),
            name: Some("late in Rust".into()),
            ..CommunicatorOptions::new(rendezvous.clone(), rank, 2)
        };
        Communicator::new(&options).unwrap().barrier().unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(0));
        let wanted = "rank 0 of \"late in Rust\": rank 1 has not joined for ";
        while !heard.recv_timeout(LONG).unwrap().starts_with(wanted) {} // others may be slow, too
        run(1);
    });
    trireme::clear_log().unwrap();
}

#[test]
fn options_that_break_a_rule_are_refused() {
    let refused = |options: &CommunicatorOptions, status| fails(Communicator::new(options), status);
    let good = CommunicatorOptions::new(rendezvous(), 0, 1);
    refused(&CommunicatorOptions::new(rendezvous(), 2, 2), Status::InvalidArgument);
    refused(&CommunicatorOptions::new(rendezvous(), -1, 2), Status::InvalidArgument);
    refused(&CommunicatorOptions::new(rendezvous(), 0, 0), Status::InvalidArgument);
    refused(&CommunicatorOptions::new("pigeon://home", 0, 1), Status::Unsupported);
    let error = refused(&CommunicatorOptions::new("local://a\0b", 0, 1), Status::InvalidArgument);
    assert!(error.message().contains("NUL"));
    let nameless = CommunicatorOptions { name: Some("a\0".into()), ..good.clone() };
    refused(&nameless, Status::InvalidArgument);
    let long = CommunicatorOptions { name: Some("n".repeat(64)), ..good.clone() };
    refused(&long, Status::InvalidArgument);
    let pigeon = CommunicatorOptions { backend: Some("pigeon".into()), ..good.clone() };
    refused(&pigeon, Status::Unsupported);
    refused(&CommunicatorOptions { device: Device::Cuda(0), ..good.clone() }, Status::Unsupported);
    // None of them took the place.
    Communicator::new(&good).unwrap();
}

#[test]
fn a_place_is_taken_once() {
    let rendezvous = rendezvous();
    let _first = join(&rendezvous, 0, 2);
    fails(Communicator::join(&rendezvous, 0, 2), Status::InvalidArgument);
    fails(Communicator::join(&rendezvous, 1, 3), Status::Mismatch);
}

#[test]
fn a_missing_rank_is_named() {
    let communicator = join(&rendezvous(), 0, 3);
    let error = fails(communicator.wait_ready(Duration::ZERO), Status::Timeout);
    assert_eq!(error.blamed(), [1, 2], "{error:?}");
    assert_eq!(error.blamed_count(), 2);
}

#[test]
fn failpoints_are_listed_set_counted_and_cleared() {
    let names = failpoint::names();
    assert!(names.contains(&"buffer.before_allocate"), "{names:?}");
    fails(failpoint::set("no.such=fail"), Status::InvalidArgument);
    fails(failpoint::set("buffer.before_allocate=explode"), Status::InvalidArgument);
    fails(failpoint::set("\0"), Status::InvalidArgument);
    fails(failpoint::hits("no.such"), Status::InvalidArgument);
    // Only this test program sets failpoints, and only this test uses this one.
    failpoint::set("leave.after_mark=off").unwrap();
    drop(join(&rendezvous(), 0, 1));
    assert!(failpoint::hits("leave.after_mark").unwrap() >= 1);
    failpoint::set("").unwrap();
    assert_eq!(failpoint::hits("leave.after_mark").unwrap(), 0);
}

#[test]
fn a_buffer_is_a_slice_of_zeros_that_outlives_its_communicator() {
    let communicator = join(&rendezvous(), 0, 1);
    let mut buffer: Buffer<u16> = Buffer::new(&communicator, 1001).unwrap();
    assert_eq!((buffer.len(), buffer.size_in_bytes().unwrap()), (1001, 2002));
    assert!(buffer.iter().all(|&value| value == 0));
    assert_eq!(buffer.as_ptr() as usize % 4096, 0);
    drop(communicator);
    buffer.fill(7);
    assert_eq!(buffer.iter().map(|&value| u64::from(value)).sum::<u64>(), 7007);
}

#[test]
fn an_empty_buffer_is_an_empty_slice() {
    let communicator = join(&rendezvous(), 0, 1);
    let mut buffer: Buffer<f64> = Buffer::new(&communicator, 0).unwrap();
    assert!(buffer.is_empty() && buffer.size_in_bytes().unwrap() == 0);
    communicator.all_reduce(&mut buffer, Reduction::Sum).unwrap();
    assert_eq!(format!("{buffer:?}"), "[]");
}

#[test]
fn a_buffer_that_cannot_be_is_refused() {
    let communicator = join(&rendezvous(), 0, 1);
    let overflow: trireme::Result<Buffer<u64>> = Buffer::new(&communicator, usize::MAX);
    fails(overflow, Status::InvalidArgument);
    let huge: trireme::Result<Buffer<u8>> = Buffer::new(&communicator, isize::MAX as usize);
    assert!(huge.is_err());
    communicator.barrier().unwrap();
}

#[test]
fn stale_and_foreign_handles_are_errors_and_not_crashes() {
    let communicator = join(&rendezvous(), 0, 1);
    let name = std::ffi::CString::new(rendezvous()).unwrap();
    let mut options = sys::trireme_communicator_options::init();
    options.world_size = 1;
    options.rendezvous = name.as_ptr();
    let mut stale = ptr::null_mut();
    let mut rank = 77;
    // SAFETY: types.h: the library never follows a handle, so any value may be handed in.
    unsafe {
        assert_eq!(sys::trireme_communicator_create(&options, &mut stale), sys::TRIREME_OK);
        sys::trireme_communicator_destroy(stale);
        sys::trireme_communicator_destroy(stale);
        sys::trireme_communicator_destroy(ptr::null_mut());
        for handle in [stale, ptr::null_mut(), 0xdead_beef as *mut _] {
            let status = sys::trireme_communicator_get_rank(handle, &mut rank);
            assert_eq!(status, sys::TRIREME_ERROR_INVALID_HANDLE);
            let status = sys::trireme_barrier(handle, ptr::null());
            assert_eq!(status, sys::TRIREME_ERROR_INVALID_HANDLE);
        }
        // A communicator is no request, buffer, model or optimizer.
        let foreign = stale.cast();
        assert_eq!(sys::trireme_request_wait(foreign, 0), sys::TRIREME_ERROR_INVALID_HANDLE);
        sys::trireme_request_destroy(foreign);
        sys::trireme_buffer_destroy(stale.cast());
        sys::trireme_model_destroy(stale.cast());
        sys::trireme_optimizer_destroy(stale.cast());
    }
    assert_eq!(rank, 77, "written although the call failed");
    communicator.within(LONG).barrier().unwrap();
}

#[test]
fn all_objects_may_move_and_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Communicator>();
    shared::<Buffer<f32>>();
    shared::<Request<Vec<f32>>>();
    shared::<Model>();
    shared::<Optimizer>();
    shared::<trireme::Error>();
}
