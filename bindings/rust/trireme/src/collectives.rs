//! Operations that return when they are done on this rank.

use trireme_sys as sys;

use crate::communicator::Communicator;
use crate::element::{Element, Reduction};
use crate::error::{check, Error, Result};

impl Communicator {
    /// Reduces `values` over all ranks, in place; every rank gets the result.
    pub fn all_reduce<T: Element>(&self, values: &mut [T], reduction: Reduction) -> Result<()> {
        let data = values.as_mut_ptr().cast();
        // SAFETY: collectives.h: "Works in place when receive == send", "Keeps no pointer"; the
        // slice is ours alone until the call returns, and has `len` elements of this dtype.
        check(unsafe {
            sys::trireme_all_reduce(
                self.handle.get(),
                data,
                data,
                values.len() as u64,
                T::DTYPE as i32,
                reduction.code(),
                &self.options(reduction.scale()),
            )
        })
    }

    /// Reduces `send` over all ranks into `receive`, which is as long.
    pub fn all_reduce_into<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        reduction: Reduction,
    ) -> Result<()> {
        same("receive", receive.len(), "send", send.len())?;
        // SAFETY: collectives.h: "Keeps no pointer"; both slices live, disjoint, of this length.
        check(unsafe {
            sys::trireme_all_reduce(
                self.handle.get(),
                send.as_ptr().cast(),
                receive.as_mut_ptr().cast(),
                send.len() as u64,
                T::DTYPE as i32,
                reduction.code(),
                &self.options(reduction.scale()),
            )
        })
    }

    /// Reduces world size blocks as long as `receive` and gives rank r block r.
    pub fn reduce_scatter<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        reduction: Reduction,
    ) -> Result<()> {
        self.whole("send", send.len(), "receive", receive.len())?;
        // SAFETY: as all_reduce_into; `send` holds a block for each rank.
        check(unsafe {
            sys::trireme_reduce_scatter(
                self.handle.get(),
                send.as_ptr().cast(),
                receive.as_mut_ptr().cast(),
                receive.len() as u64,
                T::DTYPE as i32,
                reduction.code(),
                &self.options(reduction.scale()),
            )
        })
    }

    /// Reduces blocks of different lengths and gives rank r block r, of `counts[r]` elements.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        counts: &[usize],
        reduction: Reduction,
    ) -> Result<()> {
        let counts = self.counts(counts, "send", send.len(), "receive", receive.len())?;
        // SAFETY: as all_reduce_into; the lengths are those of `counts`, which is copied.
        check(unsafe {
            sys::trireme_reduce_scatter_v(
                self.handle.get(),
                send.as_ptr().cast(),
                receive.as_mut_ptr().cast(),
                counts.as_ptr(),
                T::DTYPE as i32,
                reduction.code(),
                &self.options(reduction.scale()),
            )
        })
    }

    /// Gives every rank the blocks of all ranks, in rank order. `receive` is world size times as
    /// long as `send`.
    pub fn all_gather<T: Element>(&self, send: &[T], receive: &mut [T]) -> Result<()> {
        self.whole("receive", receive.len(), "send", send.len())?;
        // SAFETY: as all_reduce_into; `receive` has room for a block of each rank.
        check(unsafe {
            sys::trireme_all_gather(
                self.handle.get(),
                send.as_ptr().cast(),
                receive.as_mut_ptr().cast(),
                send.len() as u64,
                T::DTYPE as i32,
                &self.options(0.0),
            )
        })
    }

    /// Gives every rank the blocks of all ranks, of `counts[r]` elements, in rank order.
    pub fn all_gather_v<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        counts: &[usize],
    ) -> Result<()> {
        let counts = self.counts(counts, "receive", receive.len(), "send", send.len())?;
        // SAFETY: as all_reduce_into; the lengths are those of `counts`, which is copied.
        check(unsafe {
            sys::trireme_all_gather_v(
                self.handle.get(),
                send.as_ptr().cast(),
                receive.as_mut_ptr().cast(),
                counts.as_ptr(),
                T::DTYPE as i32,
                &self.options(0.0),
            )
        })
    }

    /// Gives rank r block r of every rank, a transposition of equal blocks. `receive` is as long as
    /// `send`.
    pub fn all_to_all<T: Element>(&self, send: &[T], receive: &mut [T]) -> Result<()> {
        let block = self.block(send.len(), receive.len())?;
        // SAFETY: as all_reduce_into; both hold a block for each rank.
        check(unsafe {
            sys::trireme_all_to_all(
                self.handle.get(),
                send.as_ptr().cast(),
                receive.as_mut_ptr().cast(),
                block,
                T::DTYPE as i32,
                &self.options(0.0),
            )
        })
    }

    /// Gives rank r block r of every rank. `Mismatch` if this rank expects another number of
    /// elements than a peer sends to it.
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &[T],
        send_counts: &[usize],
        receive: &mut [T],
        receive_counts: &[usize],
    ) -> Result<()> {
        let send_counts = self.numbers(send_counts, "send", Some(send.len()))?;
        let receive_counts = self.numbers(receive_counts, "receive", Some(receive.len()))?;
        // SAFETY: as all_reduce_into; the lengths are those of the counts, which are copied.
        check(unsafe {
            sys::trireme_all_to_all_v(
                self.handle.get(),
                send.as_ptr().cast(),
                send_counts.as_ptr(),
                receive.as_mut_ptr().cast(),
                receive_counts.as_ptr(),
                T::DTYPE as i32,
                &self.options(0.0),
            )
        })
    }

    /// Gives every rank the root's elements.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: i32) -> Result<()> {
        // SAFETY: as all_reduce.
        check(unsafe {
            sys::trireme_broadcast(
                self.handle.get(),
                data.as_mut_ptr().cast(),
                data.len() as u64,
                T::DTYPE as i32,
                root,
                &self.options(0.0),
            )
        })
    }

    /// Waits until every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: a live communicator; the options live for the call.
        check(unsafe { sys::trireme_barrier(self.handle.get(), &self.options(0.0)) })
    }

    /// The library believes the lengths it is told, so they are compared here.
    pub(crate) fn whole(
        &self,
        whole: &str,
        whole_length: usize,
        block: &str,
        block_length: usize,
    ) -> Result<()> {
        let ranks = self.world_size() as usize;
        if block_length.checked_mul(ranks) == Some(whole_length) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{whole} has {whole_length} elements, not {ranks} blocks of {block}'s {block_length}"
        )))
    }

    /// Length of one block of an all-to-all.
    pub(crate) fn block(&self, send_length: usize, receive_length: usize) -> Result<u64> {
        same("receive", receive_length, "send", send_length)?;
        let block = send_length / self.world_size() as usize;
        self.whole("send", send_length, "one block", block)?;
        Ok(block as u64)
    }

    /// The counts as the library wants them, after the same comparison.
    pub(crate) fn counts(
        &self,
        counts: &[usize],
        whole: &str,
        whole_length: usize,
        block: &str,
        block_length: usize,
    ) -> Result<Vec<u64>> {
        let numbers = self.numbers(counts, whole, Some(whole_length))?;
        same(block, block_length, "this rank's count", counts[self.rank() as usize])?;
        Ok(numbers)
    }

    /// The same for counts alone, compared with all blocks where this rank has them.
    pub(crate) fn numbers(
        &self,
        counts: &[usize],
        whole: &str,
        whole_length: Option<usize>,
    ) -> Result<Vec<u64>> {
        same("counts", counts.len(), "the group", self.world_size() as usize)?;
        let sum = counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
        let sum = sum.ok_or_else(|| Error::invalid("the sum of counts overflows"))?;
        if let Some(length) = whole_length {
            same(whole, length, "the sum of counts", sum)?;
        }
        Ok(counts.iter().map(|&count| count as u64).collect())
    }
}

pub(crate) fn same(what: &str, length: usize, other: &str, expected: usize) -> Result<()> {
    if length == expected {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} has {length} elements, {other} {expected}")))
}
