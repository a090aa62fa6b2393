//! The state of training: where it lies on this rank, and saving and loading it.

use std::ffi::{c_void, CStr};
use std::ptr;

use trireme_sys as sys;

use crate::element::Real;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::optimizer::Optimizer;

/// The kinds of state that a range can hold.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The parameter's own values.
    Parameter,
    /// This state vector of the update rule: `optimizer.h` names those of each.
    Optimizer(usize),
    /// Adafactor, of a matrix: a number for each row.
    Rows,
    /// Adafactor, of a matrix: a number for each column.
    Columns,
    /// A kind that is newer than this crate.
    Other(i32),
}

impl State {
    fn of(kind: i32, vector: u32) -> Self {
        match kind {
            sys::TRIREME_STATE_KIND_PARAMETER => State::Parameter,
            sys::TRIREME_STATE_KIND_OPTIMIZER => State::Optimizer(vector as usize),
            sys::TRIREME_STATE_KIND_ROWS => State::Rows,
            sys::TRIREME_STATE_KIND_COLUMNS => State::Columns,
            other => State::Other(other),
        }
    }
}

/// A stretch of the state of training that this rank owns.
#[derive(Clone, Copy, Debug)]
pub struct StateRange<'a> {
    /// The kind of its state.
    pub state: State,
    /// Number of the parameter.
    pub parameter: usize,
    /// Its name.
    pub name: &'a str,
    /// Its whole shape; of rows or columns their number.
    pub shape: &'a [u64],
    /// Index of the range's first element in that shape, in row-major order.
    pub first: usize,
    /// Elements; 1 or more.
    pub count: usize,
    dtype: sys::trireme_dtype,
    data: *mut c_void,
}

// SAFETY: no code writes this memory while the range lives, as it borrows model and optimizer.
unsafe impl Send for StateRange<'_> {}
// SAFETY: as above.
unsafe impl Sync for StateRange<'_> {}

impl<'a> StateRange<'a> {
    /// The elements, in the library's own memory. `InvalidArgument` if they are not of this type, or
    /// lie in a file or on a device: see [`Optimizer::read_range`].
    pub fn data<T: Real>(&self) -> Result<&'a [T]> {
        if self.dtype != T::DTYPE as i32 {
            return Err(Error::invalid(format!("parameter {} is not {}", self.name, T::DTYPE)));
        }
        if self.data.is_null() {
            return Err(Error::invalid(
                "state lies in a file or on a device: read_range() copies it".to_owned(),
            ));
        }
        // SAFETY: optimizer.h: `count` elements, 1 or more, "good until the optimizer is
        // destroyed"; it and the model are borrowed, and what changes them wants `&mut` of both.
        Ok(unsafe { std::slice::from_raw_parts(self.data.cast(), self.count) })
    }

    /// Where the elements lie, for state that another tool has read. While the caller writes them,
    /// no other code of this rank may read them. Where ranks share the parameters, no other rank
    /// may read them either. Null where they lie in a file or on a device.
    pub fn as_mut_ptr(&self) -> *mut c_void {
        self.data
    }
}

impl Optimizer {
    /// Where the state of training lies on this rank: parameters, frozen ones too, and the vectors
    /// of the update rule. Over all ranks the ranges hold every element once, whatever the
    /// strategy.
    pub fn ranges<'a>(&'a self, model: &'a Model) -> Result<Vec<StateRange<'a>>> {
        self.refuse_another(model, "ranges")?;
        let mut count = 0;
        // SAFETY: a live optimizer, one call at a time, a place for the number.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_range_count(optimizer, &mut count)
        })?;
        (0..count).map(|index| self.range(index)).collect()
    }

    fn range(&self, index: u64) -> Result<StateRange<'_>> {
        let mut raw = sys::trireme_state_range::init();
        // SAFETY: optimizer.h: filled up to its own struct_size.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_range(optimizer, index, &mut raw)
        })?;
        let shape = match raw.dimensions {
            0 => &[][..],
            // SAFETY: so many numbers, which live as long as the model, which the optimizer keeps.
            dimensions => unsafe { std::slice::from_raw_parts(raw.shape, dimensions as usize) },
        };
        Ok(StateRange {
            state: State::of(raw.kind, raw.vector),
            parameter: raw.parameter as usize,
            // SAFETY: the text add_parameter() was given, which was UTF-8; lives as the shape.
            name: unsafe { CStr::from_ptr(raw.name) }.to_str().unwrap_or(""),
            shape,
            first: raw.first as usize,
            count: raw.count as usize,
            dtype: raw.dtype,
            data: raw.data,
        })
    }

    /// This rank's part of the training, for [`load`](Self::load). It holds parameters, state of
    /// the update rule, number of steps, learning rate and loss scale, with a description of the
    /// layout and a checksum. Every rank saves its own part, all after the same step. Waits for no
    /// peer.
    ///
    /// `model` is the one this optimizer was made for; it is asked for because its parameters are
    /// read.
    pub fn save(&self, model: &Model) -> Result<Vec<u8>> {
        self.refuse_another(model, "save")?;
        let mut size = 0;
        // SAFETY: a live optimizer, one call at a time, a place for the number.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_saved_bytes(optimizer, &mut size)
        })?;
        let mut state: Vec<u8> = Vec::with_capacity(size as usize);
        // SAFETY: `size` bytes that are ours alone; "keeps no pointer".
        self.call(|optimizer| unsafe {
            let data = state.as_mut_ptr().cast();
            sys::trireme_optimizer_save(optimizer, data, size, ptr::null_mut())
        })?;
        // SAFETY: it has written as many bytes as it said before.
        unsafe { state.set_len(size as usize) };
        Ok(state)
    }

    /// Takes back what [`save`](Self::save) gave on this rank of a training of the same model,
    /// options, strategy, world size and update rule. Nothing changes unless all ranks can load
    /// parts of the same step. Collective.
    pub fn load(&mut self, model: &mut Model, state: &[u8]) -> Result<()> {
        self.refuse_another(model, "load")?;
        let (data, bytes) = (state.as_ptr().cast(), state.len() as u64);
        // SAFETY: optimizer.h: "Keeps no pointer"; no slice of the parameters lives beside
        // `&mut Model`.
        self.call(|optimizer| unsafe { sys::trireme_optimizer_load(optimizer, data, bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_kind_is_no_state_of_the_optimizer() {
        assert_eq!(State::of(sys::TRIREME_STATE_KIND_OPTIMIZER, 1), State::Optimizer(1));
        assert_eq!(State::of(99, 1), State::Other(99));
    }
}
