//! Several buffers as one operation: as one call for each, but small ones travel together. All
//! ranks name lists of the same lengths.

use std::ffi::c_void;
use std::ptr;

use trireme_sys as sys;

use crate::communicator::Communicator;
use crate::element::{Element, Reduction};
use crate::error::{check, Error, Result};
use crate::request::{raw, Request, Storage};

/// Addresses and elements of the entries, as the library wants them.
struct List {
    addresses: Vec<*mut c_void>,
    counts: Vec<u64>,
}

impl List {
    fn read<T: Element>(slices: &[&[T]]) -> Self {
        Self::of(slices.iter().map(|slice| (slice.as_ptr() as *mut c_void, slice.len() as u64)))
    }

    fn write<T: Element>(slices: &mut [&mut [T]]) -> Self {
        Self::of(slices.iter_mut().map(|slice| (slice.as_mut_ptr().cast(), slice.len() as u64)))
    }

    fn own<M: Storage>(storages: &mut [M]) -> Self {
        Self::of(storages.iter_mut().map(raw))
    }

    fn of(entries: impl Iterator<Item = (*mut c_void, u64)>) -> Self {
        let (addresses, counts) = entries.unzip();
        Self { addresses, counts }
    }

    fn reads(&self) -> *const *const c_void {
        self.addresses.as_ptr().cast()
    }

    fn writes(&self) -> *const *mut c_void {
        self.addresses.as_ptr()
    }

    fn length(&self) -> u64 {
        self.counts.len() as u64
    }
}

/// The library believes the lengths it is told, so they are compared here: each of `whole` has
/// `blocks` times the elements of its entry in `block`.
fn fit(whole: (&str, &List), block: (&str, &List), blocks: u64) -> Result<()> {
    let (whole, block) = ((whole.0, &whole.1.counts), (block.0, &block.1.counts));
    if whole.1.len() != block.1.len() {
        let lengths = (whole.1.len(), block.1.len());
        return Err(Error::invalid(format!(
            "{} has {} entries, {} {}",
            whole.0, lengths.0, block.0, lengths.1
        )));
    }
    for (i, (&all, &one)) in whole.1.iter().zip(block.1).enumerate() {
        if one.checked_mul(blocks) != Some(all) {
            return Err(Error::invalid(format!(
                "{}[{i}] has {all} elements, not {blocks} x {}[{i}]'s {one}",
                whole.0, block.0
            )));
        }
    }
    Ok(())
}

impl Communicator {
    /// Reduces every slice over all ranks, in place.
    pub fn all_reduce_list<T: Element>(
        &self,
        values: &mut [&mut [T]],
        reduction: Reduction,
    ) -> Result<()> {
        let list = List::write(values);
        self.run_all_reduce_list::<T>(&list, &list, reduction, ptr::null_mut())
    }

    /// Reduces every slice of `sends` over all ranks into its place in `receives`.
    pub fn all_reduce_list_into<T: Element>(
        &self,
        sends: &[&[T]],
        receives: &mut [&mut [T]],
        reduction: Reduction,
    ) -> Result<()> {
        let (sends, receives) = (List::read(sends), List::write(receives));
        self.run_all_reduce_list::<T>(&sends, &receives, reduction, ptr::null_mut())
    }

    /// Reduces world size blocks of every slice and gives rank r block r of each.
    pub fn reduce_scatter_list<T: Element>(
        &self,
        sends: &[&[T]],
        receives: &mut [&mut [T]],
        reduction: Reduction,
    ) -> Result<()> {
        let (sends, receives) = (List::read(sends), List::write(receives));
        self.run_reduce_scatter_list::<T>(&sends, &receives, reduction, ptr::null_mut())
    }

    /// Gives every rank the blocks of all ranks for every slice, in rank order.
    pub fn all_gather_list<T: Element>(
        &self,
        sends: &[&[T]],
        receives: &mut [&mut [T]],
    ) -> Result<()> {
        let (sends, receives) = (List::read(sends), List::write(receives));
        self.run_all_gather_list::<T>(&sends, &receives, ptr::null_mut())
    }

    /// Gives every rank the root's elements of every slice.
    pub fn broadcast_list<T: Element>(&self, data: &mut [&mut [T]], root: i32) -> Result<()> {
        self.run_broadcast_list::<T>(&List::write(data), root, ptr::null_mut())
    }

    /// Starts [`all_reduce_list`](Self::all_reduce_list).
    pub fn all_reduce_list_start<M: Storage>(
        &self,
        values: Vec<M>,
        reduction: Reduction,
    ) -> Result<Request<Vec<M>>> {
        self.start(values, |values, out| {
            let list = List::own(values);
            self.run_all_reduce_list::<M::Item>(&list, &list, reduction, out)
        })
    }

    /// Starts [`reduce_scatter_list`](Self::reduce_scatter_list); both come back.
    pub fn reduce_scatter_list_start<S: Storage, R: Storage<Item = S::Item>>(
        &self,
        sends: Vec<S>,
        receives: Vec<R>,
        reduction: Reduction,
    ) -> Result<Request<(Vec<S>, Vec<R>)>> {
        self.start((sends, receives), |(sends, receives), out| {
            let (sends, receives) = (List::own(sends), List::own(receives));
            self.run_reduce_scatter_list::<S::Item>(&sends, &receives, reduction, out)
        })
    }

    /// Starts [`all_gather_list`](Self::all_gather_list); both come back.
    pub fn all_gather_list_start<S: Storage, R: Storage<Item = S::Item>>(
        &self,
        sends: Vec<S>,
        receives: Vec<R>,
    ) -> Result<Request<(Vec<S>, Vec<R>)>> {
        self.start((sends, receives), |(sends, receives), out| {
            let (sends, receives) = (List::own(sends), List::own(receives));
            self.run_all_gather_list::<S::Item>(&sends, &receives, out)
        })
    }

    /// Starts [`broadcast_list`](Self::broadcast_list).
    pub fn broadcast_list_start<M: Storage>(
        &self,
        data: Vec<M>,
        root: i32,
    ) -> Result<Request<Vec<M>>> {
        self.start(data, |data, out| {
            self.run_broadcast_list::<M::Item>(&List::own(data), root, out)
        })
    }

    // Each runs the blocking form, or the started one if there is a place for a request. Callers
    // hold the memory until the operation is done: borrowed for the call, or owned by start().

    fn run_all_reduce_list<T: Element>(
        &self,
        sends: &List,
        receives: &List,
        reduction: Reduction,
        out: *mut *mut sys::trireme_request,
    ) -> Result<()> {
        fit(("sends", sends), ("receives", receives), 1)?;
        let (handle, dtype, code) = (self.handle.get(), T::DTYPE as i32, reduction.code());
        let (reads, writes, options) =
            (sends.reads(), receives.writes(), self.options(reduction.scale()));
        let (counts, length) = (sends.counts.as_ptr(), sends.length());
        // SAFETY: batch.h: "The lists are copied at the call"; entries have these lengths.
        check(unsafe {
            if out.is_null() {
                sys::trireme_all_reduce_list(
                    handle, reads, writes, counts, length, dtype, code, &options,
                )
            } else {
                sys::trireme_all_reduce_list_start(
                    handle, reads, writes, counts, length, dtype, code, &options, out,
                )
            }
        })
    }

    fn run_reduce_scatter_list<T: Element>(
        &self,
        sends: &List,
        receives: &List,
        reduction: Reduction,
        out: *mut *mut sys::trireme_request,
    ) -> Result<()> {
        fit(("sends", sends), ("receives", receives), self.world_size() as u64)?;
        let (handle, dtype, code) = (self.handle.get(), T::DTYPE as i32, reduction.code());
        let (reads, writes, options) =
            (sends.reads(), receives.writes(), self.options(reduction.scale()));
        let (counts, length) = (receives.counts.as_ptr(), receives.length());
        // SAFETY: as run_all_reduce_list.
        check(unsafe {
            if out.is_null() {
                sys::trireme_reduce_scatter_list(
                    handle, reads, writes, counts, length, dtype, code, &options,
                )
            } else {
                sys::trireme_reduce_scatter_list_start(
                    handle, reads, writes, counts, length, dtype, code, &options, out,
                )
            }
        })
    }

    fn run_all_gather_list<T: Element>(
        &self,
        sends: &List,
        receives: &List,
        out: *mut *mut sys::trireme_request,
    ) -> Result<()> {
        fit(("receives", receives), ("sends", sends), self.world_size() as u64)?;
        let (handle, dtype, options) = (self.handle.get(), T::DTYPE as i32, self.options(0.0));
        let (reads, writes) = (sends.reads(), receives.writes());
        let (counts, length) = (sends.counts.as_ptr(), sends.length());
        // SAFETY: as run_all_reduce_list.
        check(unsafe {
            if out.is_null() {
                sys::trireme_all_gather_list(handle, reads, writes, counts, length, dtype, &options)
            } else {
                sys::trireme_all_gather_list_start(
                    handle, reads, writes, counts, length, dtype, &options, out,
                )
            }
        })
    }

    fn run_broadcast_list<T: Element>(
        &self,
        data: &List,
        root: i32,
        out: *mut *mut sys::trireme_request,
    ) -> Result<()> {
        let (handle, dtype, options) = (self.handle.get(), T::DTYPE as i32, self.options(0.0));
        let (writes, counts, length) = (data.writes(), data.counts.as_ptr(), data.length());
        // SAFETY: as run_all_reduce_list.
        check(unsafe {
            if out.is_null() {
                sys::trireme_broadcast_list(handle, writes, counts, length, dtype, root, &options)
            } else {
                sys::trireme_broadcast_list_start(
                    handle, writes, counts, length, dtype, root, &options, out,
                )
            }
        })
    }
}
