//! Operations in which one rank, the root, gives or gets. An argument that the root alone uses may
//! be empty on the others.

use trireme_sys as sys;

use crate::collectives::same;
use crate::communicator::Communicator;
use crate::element::{Element, Reduction};
use crate::error::{check, Result};
use crate::request::{raw, Request, Storage};

impl Communicator {
    /// Reduces `values` over all ranks; the root gets the result in place, the others keep theirs.
    pub fn reduce<T: Element>(
        &self,
        values: &mut [T],
        root: i32,
        reduction: Reduction,
    ) -> Result<()> {
        let data = values.as_mut_ptr().cast();
        // SAFETY: rooted_collectives.h: "root may pass receive == send, to reduce in place. Other
        // ranks do not use `receive`", "Keeps no pointer".
        check(unsafe {
            sys::trireme_reduce(
                self.handle.get(),
                data,
                data,
                values.len() as u64,
                T::DTYPE as i32,
                reduction.code(),
                root,
                &self.options(reduction.scale()),
            )
        })
    }

    /// Reduces `send` over all ranks into the root's `receive`, which is as long.
    pub fn reduce_into<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        root: i32,
        reduction: Reduction,
    ) -> Result<()> {
        if self.rank() == root {
            same("receive", receive.len(), "send", send.len())?;
        }
        // SAFETY: rooted_collectives.h: "Keeps no pointer"; both slices live, and on the root they
        // are of this length.
        check(unsafe {
            sys::trireme_reduce(
                self.handle.get(),
                send.as_ptr().cast(),
                receive.as_mut_ptr().cast(),
                send.len() as u64,
                T::DTYPE as i32,
                reduction.code(),
                root,
                &self.options(reduction.scale()),
            )
        })
    }

    /// Gives the root the equally long blocks of all ranks, in rank order.
    pub fn gather<T: Element>(&self, send: &[T], receive: &mut [T], root: i32) -> Result<()> {
        self.whole_on(root, "receive", receive.len(), "send", send.len())?;
        // SAFETY: as reduce_into; on the root `receive` has room for a block of each rank.
        check(unsafe {
            sys::trireme_gather(
                self.handle.get(),
                send.as_ptr().cast(),
                receive.as_mut_ptr().cast(),
                send.len() as u64,
                T::DTYPE as i32,
                root,
                &self.options(0.0),
            )
        })
    }

    /// Gives the root the blocks of all ranks, of `counts[r]` elements, in rank order.
    pub fn gather_v<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        counts: &[usize],
        root: i32,
    ) -> Result<()> {
        let counts = self.counts_on(root, counts, "receive", receive.len(), "send", send.len())?;
        // SAFETY: as reduce_into; the lengths are those of `counts`, which is copied.
        check(unsafe {
            sys::trireme_gather_v(
                self.handle.get(),
                send.as_ptr().cast(),
                receive.as_mut_ptr().cast(),
                counts.as_ptr(),
                T::DTYPE as i32,
                root,
                &self.options(0.0),
            )
        })
    }

    /// Gives rank r block r of the root's equally long blocks.
    pub fn scatter<T: Element>(&self, send: &[T], receive: &mut [T], root: i32) -> Result<()> {
        self.whole_on(root, "send", send.len(), "receive", receive.len())?;
        // SAFETY: as reduce_into; on the root `send` holds a block for each rank.
        check(unsafe {
            sys::trireme_scatter(
                self.handle.get(),
                send.as_ptr().cast(),
                receive.as_mut_ptr().cast(),
                receive.len() as u64,
                T::DTYPE as i32,
                root,
                &self.options(0.0),
            )
        })
    }

    /// Gives rank r block r of the root's blocks, of `counts[r]` elements.
    pub fn scatter_v<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        counts: &[usize],
        root: i32,
    ) -> Result<()> {
        let counts = self.counts_on(root, counts, "send", send.len(), "receive", receive.len())?;
        // SAFETY: as reduce_into; the lengths are those of `counts`, which is copied.
        check(unsafe {
            sys::trireme_scatter_v(
                self.handle.get(),
                send.as_ptr().cast(),
                receive.as_mut_ptr().cast(),
                counts.as_ptr(),
                T::DTYPE as i32,
                root,
                &self.options(0.0),
            )
        })
    }

    /// Starts [`reduce`](Self::reduce).
    pub fn reduce_start<M: Storage>(
        &self,
        values: M,
        root: i32,
        reduction: Reduction,
    ) -> Result<Request<M>> {
        self.start(values, |values, out| {
            let (data, count) = raw(values);
            // SAFETY: see start().
            check(unsafe {
                sys::trireme_reduce_start(
                    self.handle.get(),
                    data,
                    data,
                    count,
                    M::Item::DTYPE as i32,
                    reduction.code(),
                    root,
                    &self.options(reduction.scale()),
                    out,
                )
            })
        })
    }

    /// Starts [`gather`](Self::gather); both come back.
    pub fn gather_start<S: Storage, R: Storage<Item = S::Item>>(
        &self,
        send: S,
        receive: R,
        root: i32,
    ) -> Result<Request<(S, R)>> {
        self.start((send, receive), |(send, receive), out| {
            let ((send, block), (receive, whole)) = (raw(send), raw(receive));
            self.whole_on(root, "receive", whole as usize, "send", block as usize)?;
            // SAFETY: see start().
            check(unsafe {
                sys::trireme_gather_start(
                    self.handle.get(),
                    send,
                    receive,
                    block,
                    S::Item::DTYPE as i32,
                    root,
                    &self.options(0.0),
                    out,
                )
            })
        })
    }

    /// Starts [`gather_v`](Self::gather_v); both come back.
    pub fn gather_v_start<S: Storage, R: Storage<Item = S::Item>>(
        &self,
        send: S,
        receive: R,
        counts: &[usize],
        root: i32,
    ) -> Result<Request<(S, R)>> {
        self.start((send, receive), |(send, receive), out| {
            let ((send, block), (receive, whole)) = (raw(send), raw(receive));
            let (whole, block) = (whole as usize, block as usize);
            let counts = self.counts_on(root, counts, "receive", whole, "send", block)?;
            // SAFETY: see start(); the counts are copied.
            check(unsafe {
                sys::trireme_gather_v_start(
                    self.handle.get(),
                    send,
                    receive,
                    counts.as_ptr(),
                    S::Item::DTYPE as i32,
                    root,
                    &self.options(0.0),
                    out,
                )
            })
        })
    }

    /// Starts [`scatter`](Self::scatter); both come back.
    pub fn scatter_start<S: Storage, R: Storage<Item = S::Item>>(
        &self,
        send: S,
        receive: R,
        root: i32,
    ) -> Result<Request<(S, R)>> {
        self.start((send, receive), |(send, receive), out| {
            let ((send, whole), (receive, block)) = (raw(send), raw(receive));
            self.whole_on(root, "send", whole as usize, "receive", block as usize)?;
            // SAFETY: see start().
            check(unsafe {
                sys::trireme_scatter_start(
                    self.handle.get(),
                    send,
                    receive,
                    block,
                    S::Item::DTYPE as i32,
                    root,
                    &self.options(0.0),
                    out,
                )
            })
        })
    }

    /// Starts [`scatter_v`](Self::scatter_v); both come back.
    pub fn scatter_v_start<S: Storage, R: Storage<Item = S::Item>>(
        &self,
        send: S,
        receive: R,
        counts: &[usize],
        root: i32,
    ) -> Result<Request<(S, R)>> {
        self.start((send, receive), |(send, receive), out| {
            let ((send, whole), (receive, block)) = (raw(send), raw(receive));
            let (whole, block) = (whole as usize, block as usize);
            let counts = self.counts_on(root, counts, "send", whole, "receive", block)?;
            // SAFETY: see start(); the counts are copied.
            check(unsafe {
                sys::trireme_scatter_v_start(
                    self.handle.get(),
                    send,
                    receive,
                    counts.as_ptr(),
                    S::Item::DTYPE as i32,
                    root,
                    &self.options(0.0),
                    out,
                )
            })
        })
    }

    /// Compares on the root, the only one that has all blocks.
    fn whole_on(
        &self,
        root: i32,
        whole: &str,
        whole_length: usize,
        block: &str,
        block_length: usize,
    ) -> Result<()> {
        if self.rank() != root {
            return Ok(());
        }
        self.whole(whole, whole_length, block, block_length)
    }

    fn counts_on(
        &self,
        root: i32,
        counts: &[usize],
        whole: &str,
        whole_length: usize,
        block: &str,
        block_length: usize,
    ) -> Result<Vec<u64>> {
        let known = (self.rank() == root).then_some(whole_length);
        let numbers = self.numbers(counts, whole, known)?;
        same(block, block_length, "this rank's count", counts[self.rank() as usize])?;
        Ok(numbers)
    }
}
