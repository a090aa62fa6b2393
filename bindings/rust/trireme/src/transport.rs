//! Groups whose bytes the program's own functions carry.

use std::ffi::c_void;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;
use std::time::Duration;

use trireme_sys as sys;

use crate::communicator::{Communicator, CommunicatorOptions, Device};
use crate::error::{panic_text, Result};

/// Carries the frames between the ranks of one "transport://NAME" group, such as the program's
/// network layer; see [`Communicator::over`].
///
/// It delivers every frame whole and once, and frames from one rank to another in the order in
/// which they were sent. One thread of the library calls [`send`](Transport::send) and another one
/// calls [`receive`](Transport::receive); neither may use the group. If one of them answers an
/// error or panics, the group ends with `Status::Callback` on all ranks.
///
/// The library drops the transport when it will not call it again: some seconds after the
/// communicator at most, and never while a method does not return.
pub trait Transport: Send + Sync + 'static {
    /// Longest frame in bytes, at least 1,024; 0 is 65,536.
    fn frame_bytes(&self) -> usize {
        0
    }

    /// Takes a frame for a rank. False if it cannot within `timeout`, also because the peer is not
    /// there yet; the library then offers the frame again.
    fn send(&self, to: i32, frame: &[u8], timeout: Duration) -> io::Result<bool>;

    /// Writes the next frame of any rank to the beginning of `frame`, and answers the rank that
    /// sent it and its length; `None` if none comes within `timeout`.
    fn receive(&self, frame: &mut [u8], timeout: Duration) -> io::Result<Option<(i32, usize)>>;
}

impl Communicator {
    /// Claims this rank's place in a group whose rendezvous is "transport://NAME" and whose
    /// bytes `transport` carries. Does not wait for the peers.
    pub fn over<T: Transport>(options: &CommunicatorOptions, transport: T) -> Result<Self> {
        let frame_bytes = transport.frame_bytes() as u64;
        let kept = Box::into_raw(Box::new(transport));
        let mut raw = sys::trireme_transport::init();
        raw.user_data = kept.cast();
        raw.maximum_frame_bytes = frame_bytes;
        raw.send = Some(send::<T>);
        raw.receive = Some(receive::<T>);
        raw.released = Some(released::<T>);
        match Self::create(options, &raw) {
            Ok(handle) => {
                let mut joined = Self::of_handle(handle)?;
                joined.on_device = options.device != Device::Host;
                Ok(joined)
            }
            Err(refusal) => {
                // SAFETY: transport.h: `released` is called only if the creation answered OK, so
                // the library does not have the box.
                drop(unsafe { Box::from_raw(kept) });
                Err(refusal)
            }
        }
    }
}

/// Runs what must not unwind into the library.
fn guard(call: impl FnOnce() -> io::Result<i32>) -> i32 {
    let failed = sys::TRIREME_ERROR_CALLBACK;
    // An error is dropped inside, too: it may be the program's own.
    let answer = catch_unwind(AssertUnwindSafe(|| call().unwrap_or(failed)));
    answer.unwrap_or_else(|payload| {
        panic_text(payload); // the hook has told of the panic
        failed
    })
}

unsafe extern "C" fn send<T: Transport>(
    user_data: *mut c_void,
    to: i32,
    data: *const c_void,
    bytes: u64,
    timeout_ns: u64,
) -> i32 {
    // SAFETY: transport.h: the box of over(), which lives until `released`; `bytes` bytes at
    // `data`, 1 or more, while the function runs.
    let (transport, frame) = unsafe {
        (&*user_data.cast::<T>(), slice::from_raw_parts(data.cast::<u8>(), bytes as usize))
    };
    guard(|| {
        let taken = transport.send(to, frame, Duration::from_nanos(timeout_ns))?;
        Ok(if taken { sys::TRIREME_OK } else { sys::TRIREME_ERROR_TIMEOUT })
    })
}

unsafe extern "C" fn receive<T: Transport>(
    user_data: *mut c_void,
    out_from: *mut i32,
    data: *mut c_void,
    capacity: u64,
    out_bytes: *mut u64,
    timeout_ns: u64,
) -> i32 {
    // SAFETY: as above; `capacity` bytes at `data` that no other thread uses meanwhile. They are
    // initialised: they hold zeros or an earlier frame.
    let (transport, frame) = unsafe {
        (&*user_data.cast::<T>(), slice::from_raw_parts_mut(data.cast::<u8>(), capacity as usize))
    };
    guard(|| {
        let received = transport.receive(frame, Duration::from_nanos(timeout_ns))?;
        let (from, bytes) = match received {
            Some(received) => received,
            None => return Ok(sys::TRIREME_ERROR_TIMEOUT),
        };
        // SAFETY: valid for the call. Whatever they say: the library looks at both.
        unsafe {
            *out_from = from;
            *out_bytes = bytes as u64;
        }
        Ok(sys::TRIREME_OK)
    })
}

unsafe extern "C" fn released<T: Transport>(user_data: *mut c_void) {
    // SAFETY: transport.h: called once, and no function of the transport runs or will.
    let transport = unsafe { Box::from_raw(user_data.cast::<T>()) };
    guard(|| {
        drop(transport);
        Ok(sys::TRIREME_OK)
    });
}
