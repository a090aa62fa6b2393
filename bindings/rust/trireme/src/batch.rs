//! Operations that are started and waited for together.

use std::fmt;

use trireme_sys as sys;

use crate::communicator::Communicator;
use crate::element::{Element, Reduction};
use crate::error::{check, Result};

/// Operations that begin together in [`run`](Batch::run), which waits for all of them. Sends and
/// receives among them need no order; collectives run in the order they were added. They may be of
/// several communicators.
///
/// ```
/// # use trireme::{Communicator, Batch};
/// # let communicator = Communicator::join("local://doc-batch", 0, 1).unwrap();
/// let mut received = [0; 3];
/// let mut batch = Batch::new();
/// batch.receive(&communicator, &mut received, 0, 0).send(&communicator, &[1, 2, 3], 0, 0);
/// batch.run().unwrap();
/// assert_eq!(received, [1, 2, 3]);
/// ```
// The calls are made between batch_begin and batch_end, with none of the user's code there: a
// blocking call only begins inside a batch, and would leave memory it borrowed to the library.
// So a call here borrows its memory beyond the end of the batch.
#[derive(Default)]
pub struct Batch<'a> {
    calls: Vec<Box<dyn FnOnce() -> Result<()> + 'a>>,
}

impl<'a> Batch<'a> {
    /// A batch without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a [send](Communicator::send).
    pub fn send<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        data: &'a [T],
        to: i32,
        tag: u64,
    ) -> &mut Self {
        self.add(move || communicator.send(data, to, tag))
    }

    /// Adds a [receive](Communicator::receive).
    pub fn receive<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        data: &'a mut [T],
        from: i32,
        tag: u64,
    ) -> &mut Self {
        self.add(move || communicator.receive(data, from, tag))
    }

    /// Adds an [all-reduce](Communicator::all_reduce), in place.
    pub fn all_reduce<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        values: &'a mut [T],
        reduction: Reduction,
    ) -> &mut Self {
        self.add(move || communicator.all_reduce(values, reduction))
    }

    /// Adds a [reduce-scatter](Communicator::reduce_scatter).
    pub fn reduce_scatter<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        send: &'a [T],
        receive: &'a mut [T],
        reduction: Reduction,
    ) -> &mut Self {
        self.add(move || communicator.reduce_scatter(send, receive, reduction))
    }

    /// Adds an [all-gather](Communicator::all_gather).
    pub fn all_gather<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        send: &'a [T],
        receive: &'a mut [T],
    ) -> &mut Self {
        self.add(move || communicator.all_gather(send, receive))
    }

    /// Adds a [broadcast](Communicator::broadcast).
    pub fn broadcast<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        data: &'a mut [T],
        root: i32,
    ) -> &mut Self {
        self.add(move || communicator.broadcast(data, root))
    }

    /// Begins all operations and waits for them. If one is refused, those after it are not begun
    /// and its error is the answer; otherwise the first failure is.
    pub fn run(self) -> Result<()> {
        // SAFETY: batch.h: any thread.
        check(unsafe { sys::trireme_batch_begin() })?;
        // A panic must not leave the batch open: blocking calls would no longer block.
        let open = Open;
        let refused = self.calls.into_iter().try_for_each(|call| call());
        std::mem::forget(open);
        // SAFETY: as above; waits for all that has begun.
        let done = check(unsafe { sys::trireme_batch_end() });
        refused.and(done)
    }

    fn add(&mut self, call: impl FnOnce() -> Result<()> + 'a) -> &mut Self {
        self.calls.push(Box::new(call));
        self
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch of {} operations", self.calls.len())
    }
}

struct Open;

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: batch.h: any thread; waits for all that has begun.
        unsafe { sys::trireme_batch_end() };
    }
}
