//! Operations that find out how much comes, and give it in a new [`Buffer`].

use trireme_sys as sys;

use crate::buffer::Buffer;
use crate::communicator::Communicator;
use crate::element::Element;
use crate::error::{check, Result};
use crate::handle::Handle;

impl Communicator {
    /// Gives every rank the root's elements in new memory. Only the root knows their number; `data`
    /// of the others is not used.
    pub fn broadcast_to_buffer<T: Element>(&self, data: &[T], root: i32) -> Result<Buffer<T>> {
        // SAFETY: batch.h: "Keeps no pointer"; the slice lives until the call returns.
        let handle = Handle::create(|out| {
            check(unsafe {
                sys::trireme_broadcast_to_buffer(
                    self.handle.get(),
                    data.as_ptr().cast(),
                    data.len() as u64,
                    T::DTYPE as i32,
                    root,
                    &self.options(0.0),
                    out,
                )
            })
        })?;
        Buffer::of_handle(handle)
    }

    /// Gives rank r block r of the root's elements, of `counts[r]` elements, in new memory. Only
    /// the root knows the counts; `send` and `counts` of the others are not used.
    pub fn scatter_to_buffer<T: Element>(
        &self,
        send: &[T],
        counts: &[usize],
        root: i32,
    ) -> Result<Buffer<T>> {
        let counts = if self.rank() == root {
            self.numbers(counts, "send", Some(send.len()))?
        } else {
            Vec::new()
        };
        // SAFETY: as broadcast_to_buffer; on the root there is a count for each rank, and `send`
        // has as many elements as they add up to.
        let handle = Handle::create(|out| {
            check(unsafe {
                sys::trireme_scatter_to_buffer(
                    self.handle.get(),
                    send.as_ptr().cast(),
                    counts.as_ptr(),
                    T::DTYPE as i32,
                    root,
                    &self.options(0.0),
                    out,
                )
            })
        })?;
        Buffer::of_handle(handle)
    }

    /// Gives every rank the blocks of all ranks in new memory, in rank order, and the length of
    /// each. Each rank knows only its own.
    pub fn all_gather_to_buffer<T: Element>(&self, send: &[T]) -> Result<(Buffer<T>, Vec<usize>)> {
        let mut counts = vec![0_u64; self.world_size() as usize];
        // SAFETY: as broadcast_to_buffer; there is a place for the count of each rank.
        let handle = Handle::create(|out| {
            check(unsafe {
                sys::trireme_all_gather_to_buffer(
                    self.handle.get(),
                    send.as_ptr().cast(),
                    send.len() as u64,
                    T::DTYPE as i32,
                    &self.options(0.0),
                    counts.as_mut_ptr(),
                    out,
                )
            })
        })?;
        let counts = counts.into_iter().map(|count| count as usize).collect();
        Ok((Buffer::of_handle(handle)?, counts))
    }
}
