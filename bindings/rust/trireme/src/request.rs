//! Operations that were started, and following them.
//!
//! The library reads and writes an operation's memory until its request is done. A request that
//! only borrowed that memory would be unsound: leaking it would end the borrow and not the
//! operation. So a request owns its memory and gives it back when it is done; a request that is
//! dropped before leaves the memory to the operation, and a leaked one leaks it.

use std::any::Any;
use std::ffi::c_void;
use std::os::unix::io::BorrowedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use trireme_sys as sys;

use crate::buffer::Buffer;
use crate::communicator::Communicator;
use crate::element::{sealed, Element, Reduction};
use crate::error::{check, panic_text, Result, Status};
use crate::handle::{wait_ns, Handle};
use crate::messages::MessageInfo;

/// Memory that a started operation may own: a `Vec` or a [`Buffer`].
///
/// Sealed: the elements must stay at one address while the value moves.
pub trait Storage: sealed::Sealed + Send + 'static {
    /// Type of the elements.
    type Item: Element;
    #[doc(hidden)]
    fn elements(&mut self) -> &mut [Self::Item];
}

impl<T: Element> sealed::Sealed for Vec<T> {}
impl<T: Element> Storage for Vec<T> {
    type Item = T;
    fn elements(&mut self) -> &mut [T] {
        self
    }
}

impl<T: Element> sealed::Sealed for Buffer<T> {}
impl<T: Element> Storage for Buffer<T> {
    type Item = T;
    fn elements(&mut self) -> &mut [T] {
        self
    }
}

/// One started operation, and the memory `M` it works on. It goes on to its end without being
/// waited for, also after its communicator is dropped.
#[derive(Debug)]
pub struct Request<M: Send + 'static> {
    handle: Handle<sys::trireme_request>,
    /// Taken once the operation is done. Shared with the callback, which may outlive the request.
    memory: Arc<Mutex<Option<M>>>,
}

/// The state behind the completion callback's `user_data`.
struct Completion {
    /// Keeps the operation's memory until the operation is done.
    _memory: Arc<dyn Any + Send + Sync>,
    callback: Option<Box<dyn FnOnce(Result<()>) + Send>>,
}

impl<M: Send + 'static> Request<M> {
    /// Whether the operation is done and went well; its failure if it is done and did not.
    pub fn test(&self) -> Result<bool> {
        let mut done = 0;
        // SAFETY: request.h: any thread, also concurrently; a place for the answer.
        check(unsafe { sys::trireme_request_test(self.handle.get(), &mut done) })?;
        Ok(done != 0)
    }

    /// Waits until the operation is done or `timeout` has passed, which leaves it running:
    /// `false`. A failure is the operation's own.
    pub fn wait_for(&self, timeout: Duration) -> Result<bool> {
        // SAFETY: request.h: any thread, also concurrently.
        match check(unsafe { sys::trireme_request_wait(self.handle.get(), wait_ns(timeout)) }) {
            Ok(()) => Ok(true),
            // "trireme_request_test() tells which": still running, or itself out of time.
            Err(error) if error.status() == Status::Timeout => self.test(),
            Err(error) => Err(error),
        }
    }

    /// Waits until the operation is done, which its own deadline bounds, and gives its memory back.
    pub fn wait(self) -> Result<M> {
        // SAFETY: request.h: any thread, also concurrently.
        check(unsafe { sys::trireme_request_wait(self.handle.get(), u64::MAX) })?;
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(memory.expect("only wait takes the memory, and it takes the request"))
    }

    /// The message that a started receive or probe has found; `InvalidState` unless it has
    /// succeeded.
    pub fn message(&self) -> Result<MessageInfo> {
        let mut raw = sys::trireme_message_info::init();
        // SAFETY: request.h: any thread, also concurrently; filled up to its own struct_size.
        check(unsafe { sys::trireme_request_get_message(self.handle.get(), &mut raw) })?;
        Ok(MessageInfo::of(raw))
    }

    /// Takes an operation back that has not begun. A collective withdrawn makes the group fail, a
    /// message that has not been matched does not. `InvalidState` once it has begun or is done.
    pub fn cancel(&self) -> Result<()> {
        // SAFETY: request.h: any thread, also concurrently.
        check(unsafe { sys::trireme_request_cancel(self.handle.get()) })
    }

    /// Asks for one call when the operation is done, on a thread of the library; at once, on this
    /// thread, if it is done already. `InvalidState` if the request has a callback already.
    ///
    /// The callback must not wait for operations of the same communicator. A panic of it ends
    /// there; Rust's panic hook has told of it by then.
    pub fn on_complete(&self, callback: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        self.register(Some(Box::new(callback)))
    }

    /// A descriptor that becomes readable when the operation is done, for event loops.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        let mut fd = -1;
        // SAFETY: request.h: any thread, also concurrently; a place for the number.
        check(unsafe { sys::trireme_request_get_fd(self.handle.get(), &mut fd) })?;
        // SAFETY: request.h: "belongs to the request and is closed with it".
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn register(&self, callback: Option<Box<dyn FnOnce(Result<()>) + Send>>) -> Result<()> {
        let completion = Box::new(Completion { _memory: self.memory.clone(), callback });
        let user_data = Box::into_raw(completion);
        // SAFETY: request.h: "called exactly once, also when the request was destroyed before"; it
        // owns the box from here on.
        let answer = check(unsafe {
            sys::trireme_request_on_complete(self.handle.get(), Some(complete), user_data.cast())
        });
        if answer.is_err() {
            // SAFETY: refused, so that no call will come: the box is ours again.
            drop(unsafe { Box::from_raw(user_data) });
        }
        answer
    }
}

impl<M: Send + 'static> Drop for Request<M> {
    fn drop(&mut self) {
        let taken = self.memory.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        if !taken {
            match self.register(None).map_err(|error| error.status()) {
                // The callback there is holds the memory, or is done with it as the operation is.
                Ok(()) | Err(Status::InvalidState) => {}
                // Nothing tells when the memory is free again, so it never is.
                Err(_) => std::mem::forget(self.memory.clone()),
            }
        }
        // SAFETY: destroyed once. "The operation goes on to its end; its buffers must live as
        // long": the completion holds them.
        unsafe { sys::trireme_request_destroy(self.handle.get()) }
    }
}

unsafe extern "C" fn complete(status: sys::trireme_status, user_data: *mut c_void) {
    let run = || {
        // SAFETY: made by register(), handed over to this one call.
        let completion = unsafe { Box::from_raw(user_data.cast::<Completion>()) };
        // request.h: "trireme_last_error() on this thread tells its message".
        let outcome = check(status);
        if let Some(callback) = completion.callback {
            callback(outcome);
        }
    };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
        panic_text(payload);
    }
}

/// A request whatever its memory, for [`wait_any`].
pub trait Pending: sealed::Sealed {
    #[doc(hidden)]
    fn token(&self) -> *const sys::trireme_request;
}

impl<M: Send + 'static> sealed::Sealed for Request<M> {}
impl<M: Send + 'static> Pending for Request<M> {
    fn token(&self) -> *const sys::trireme_request {
        self.handle.get()
    }
}

/// Waits until one of several operations is done, well or not, and gives the lowest index among
/// those that are. `Timeout` if all still run.
pub fn wait_any(requests: &[&dyn Pending], timeout: Duration) -> Result<usize> {
    let tokens: Vec<_> = requests.iter().map(|request| request.token()).collect();
    let mut index = 0;
    // SAFETY: request.h: any thread; `count` live requests, a place for the index.
    check(unsafe {
        sys::trireme_request_wait_any(
            tokens.as_ptr(),
            tokens.len() as u64,
            wait_ns(timeout),
            &mut index,
        )
    })?;
    Ok(index as usize)
}

/// Waits until all of several operations are done. The error is that of the first one, in this
/// order, that failed, or a `Timeout` that leaves those running that still run.
pub fn wait_all(requests: &[&dyn Pending], timeout: Duration) -> Result<()> {
    let tokens: Vec<_> = requests.iter().map(|request| request.token()).collect();
    // SAFETY: request.h: any thread; `count` live requests.
    check(unsafe {
        sys::trireme_request_wait_all(tokens.as_ptr(), tokens.len() as u64, wait_ns(timeout))
    })
}

/// The `_start` forms. Each takes its memory and gives it back through [`Request::wait`]; when the
/// operation cannot be started, or fails, the memory is freed.
impl Communicator {
    /// Starts [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_start<M: Storage>(
        &self,
        values: M,
        reduction: Reduction,
    ) -> Result<Request<M>> {
        self.start(values, |values, out| {
            let (data, count) = raw(values);
            // SAFETY: see start().
            check(unsafe {
                sys::trireme_all_reduce_start(
                    self.handle.get(),
                    data,
                    data,
                    count,
                    M::Item::DTYPE as i32,
                    reduction.code(),
                    &self.options(reduction.scale()),
                    out,
                )
            })
        })
    }

    /// Starts [`reduce_scatter`](Self::reduce_scatter); both come back.
    pub fn reduce_scatter_start<S: Storage, R: Storage<Item = S::Item>>(
        &self,
        send: S,
        receive: R,
        reduction: Reduction,
    ) -> Result<Request<(S, R)>> {
        self.start((send, receive), |(send, receive), out| {
            let ((send, whole), (receive, block)) = (raw(send), raw(receive));
            self.whole("send", whole as usize, "receive", block as usize)?;
            // SAFETY: see start().
            check(unsafe {
                sys::trireme_reduce_scatter_start(
                    self.handle.get(),
                    send,
                    receive,
                    block,
                    S::Item::DTYPE as i32,
                    reduction.code(),
                    &self.options(reduction.scale()),
                    out,
                )
            })
        })
    }

    /// Starts [`reduce_scatter_v`](Self::reduce_scatter_v); both come back.
    pub fn reduce_scatter_v_start<S: Storage, R: Storage<Item = S::Item>>(
        &self,
        send: S,
        receive: R,
        counts: &[usize],
        reduction: Reduction,
    ) -> Result<Request<(S, R)>> {
        self.start((send, receive), |(send, receive), out| {
            let ((send, whole), (receive, block)) = (raw(send), raw(receive));
            let counts = self.counts(counts, "send", whole as usize, "receive", block as usize)?;
            // SAFETY: see start(); the counts are copied.
            check(unsafe {
                sys::trireme_reduce_scatter_v_start(
                    self.handle.get(),
                    send,
                    receive,
                    counts.as_ptr(),
                    S::Item::DTYPE as i32,
                    reduction.code(),
                    &self.options(reduction.scale()),
                    out,
                )
            })
        })
    }

    /// Starts [`all_gather`](Self::all_gather); both come back.
    pub fn all_gather_start<S: Storage, R: Storage<Item = S::Item>>(
        &self,
        send: S,
        receive: R,
    ) -> Result<Request<(S, R)>> {
        self.start((send, receive), |(send, receive), out| {
            let ((send, block), (receive, whole)) = (raw(send), raw(receive));
            self.whole("receive", whole as usize, "send", block as usize)?;
            // SAFETY: see start().
            check(unsafe {
                sys::trireme_all_gather_start(
                    self.handle.get(),
                    send,
                    receive,
                    block,
                    S::Item::DTYPE as i32,
                    &self.options(0.0),
                    out,
                )
            })
        })
    }

    /// Starts [`all_gather_v`](Self::all_gather_v); both come back.
    pub fn all_gather_v_start<S: Storage, R: Storage<Item = S::Item>>(
        &self,
        send: S,
        receive: R,
        counts: &[usize],
    ) -> Result<Request<(S, R)>> {
        self.start((send, receive), |(send, receive), out| {
            let ((send, block), (receive, whole)) = (raw(send), raw(receive));
            let counts = self.counts(counts, "receive", whole as usize, "send", block as usize)?;
            // SAFETY: see start(); the counts are copied.
            check(unsafe {
                sys::trireme_all_gather_v_start(
                    self.handle.get(),
                    send,
                    receive,
                    counts.as_ptr(),
                    S::Item::DTYPE as i32,
                    &self.options(0.0),
                    out,
                )
            })
        })
    }

    /// Starts [`all_to_all`](Self::all_to_all); both come back.
    pub fn all_to_all_start<S: Storage, R: Storage<Item = S::Item>>(
        &self,
        send: S,
        receive: R,
    ) -> Result<Request<(S, R)>> {
        self.start((send, receive), |(send, receive), out| {
            let ((send, given), (receive, taken)) = (raw(send), raw(receive));
            let block = self.block(given as usize, taken as usize)?;
            // SAFETY: see start().
            check(unsafe {
                sys::trireme_all_to_all_start(
                    self.handle.get(),
                    send,
                    receive,
                    block,
                    S::Item::DTYPE as i32,
                    &self.options(0.0),
                    out,
                )
            })
        })
    }

    /// Starts [`all_to_all_v`](Self::all_to_all_v); both come back.
    pub fn all_to_all_v_start<S: Storage, R: Storage<Item = S::Item>>(
        &self,
        send: S,
        send_counts: &[usize],
        receive: R,
        receive_counts: &[usize],
    ) -> Result<Request<(S, R)>> {
        self.start((send, receive), |(send, receive), out| {
            let ((send, given), (receive, taken)) = (raw(send), raw(receive));
            let send_counts = self.numbers(send_counts, "send", Some(given as usize))?;
            let receive_counts = self.numbers(receive_counts, "receive", Some(taken as usize))?;
            // SAFETY: see start(); the counts are copied.
            check(unsafe {
                sys::trireme_all_to_all_v_start(
                    self.handle.get(),
                    send,
                    send_counts.as_ptr(),
                    receive,
                    receive_counts.as_ptr(),
                    S::Item::DTYPE as i32,
                    &self.options(0.0),
                    out,
                )
            })
        })
    }

    /// Starts [`broadcast`](Self::broadcast).
    pub fn broadcast_start<M: Storage>(&self, data: M, root: i32) -> Result<Request<M>> {
        self.start(data, |data, out| {
            let (data, count) = raw(data);
            // SAFETY: see start().
            check(unsafe {
                sys::trireme_broadcast_start(
                    self.handle.get(),
                    data,
                    count,
                    M::Item::DTYPE as i32,
                    root,
                    &self.options(0.0),
                    out,
                )
            })
        })
    }

    /// Starts [`barrier`](Self::barrier).
    pub fn barrier_start(&self) -> Result<Request<()>> {
        // SAFETY: see start(); there is no memory.
        self.start((), |(), out| {
            check(unsafe { sys::trireme_barrier_start(self.handle.get(), &self.options(0.0), out) })
        })
    }

    /// Runs a `_start` call on memory that the request then owns. request.h: "The library does not
    /// touch the operation's buffers any more once its request is done". Only then, or never, is
    /// the memory seen or freed again. Its elements stay where they are when it moves.
    pub(crate) fn start<M: Send + 'static>(
        &self,
        mut memory: M,
        call: impl FnOnce(&mut M, *mut *mut sys::trireme_request) -> Result<()>,
    ) -> Result<Request<M>> {
        let handle = Handle::create(|out| call(&mut memory, out))?;
        Ok(Request { handle, memory: Arc::new(Mutex::new(Some(memory))) })
    }
}

pub(crate) fn raw<M: Storage>(memory: &mut M) -> (*mut c_void, u64) {
    let elements = memory.elements();
    (elements.as_mut_ptr().cast(), elements.len() as u64)
}
