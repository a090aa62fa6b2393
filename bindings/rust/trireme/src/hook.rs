//! A caller's own work on each bucket of gradients.

use std::ffi::c_void;
use std::sync::Arc;

use trireme_sys as sys;

use crate::calls::{Calls, Fails};
use crate::element::Real;

/// When a bucket hook is called.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// This rank's contribution is complete and no peer sees it yet.
    Before,
    /// The part of the reduced gradients that this rank updates, before it is clipped.
    After,
    /// A moment that is newer than this crate.
    Other(i32),
}

impl Phase {
    fn of(code: i32) -> Self {
        match code {
            sys::TRIREME_HOOK_BEFORE => Phase::Before,
            sys::TRIREME_HOOK_AFTER => Phase::After,
            other => Phase::Other(other),
        }
    }
}

/// A stretch of one parameter inside a bucket.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketPart {
    /// Number of the parameter.
    pub parameter: usize,
    /// Number of the parameter's element with which the stretch begins, from 0.
    pub first: usize,
    /// Elements; 1 or more.
    pub count: usize,
    /// Where it begins in the bucket's data, in elements.
    pub position: usize,
}

/// One bucket of gradients, for a hook.
#[derive(Debug)]
pub struct Bucket<'a>(&'a sys::trireme_bucket);

impl<'a> Bucket<'a> {
    /// Before or after the reduction.
    pub fn phase(&self) -> Phase {
        Phase::of(self.0.phase)
    }

    /// Number of the bucket, from 0 in the first step's order of reduction.
    pub fn number(&self) -> usize {
        self.0.bucket as usize
    }

    /// `Before`: number of the pass in the step, from 0. `After`: 0.
    pub fn pass(&self) -> u32 {
        self.0.pass
    }

    /// Stretches of parameters, in the order of the data.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = BucketPart> + 'a {
        // SAFETY: model.h: `part_count` stretches, good for the call; a bucket has one.
        let raw = unsafe { std::slice::from_raw_parts(self.0.parts, self.0.part_count as usize) };
        raw.iter().map(|part| BucketPart {
            parameter: part.parameter as usize,
            first: part.first as usize,
            count: part.count as usize,
            position: part.position as usize,
        })
    }

    /// The gradients, which may be changed. `Err` with a text for the hook to hand on if the bucket
    /// is not of this type.
    pub fn data<T: Real>(&mut self) -> std::result::Result<&mut [T], String> {
        let raw = self.0;
        if raw.dtype != T::DTYPE as i32 {
            return Err(format!("bucket {} is not {}", raw.bucket, T::DTYPE));
        }
        // SAFETY: model.h: `elements` elements of this dtype, 1 or more, good for the call;
        // `&mut self` gives them out once at a time.
        Ok(unsafe { std::slice::from_raw_parts_mut(raw.data.cast(), raw.count as usize) })
    }
}

type Closure = Box<dyn FnMut(&mut Bucket<'_>) -> std::result::Result<(), String> + Send>;

/// The caller's own hook.
pub(crate) struct Hook {
    closure: Closure,
    /// The model's.
    calls: Arc<Calls>,
}

impl Hook {
    pub(crate) fn new(
        calls: &Arc<Calls>,
        closure: impl FnMut(&mut Bucket<'_>) -> std::result::Result<(), String> + Send + 'static,
    ) -> Self {
        Self { closure: Box::new(closure), calls: calls.clone() }
    }
}

pub(crate) unsafe extern "C" fn call(bucket: *const sys::trireme_bucket, data: *mut c_void) -> i32 {
    // SAFETY: called inside a call of the model or its optimizer, which has both to itself; all of
    // it lives for the call.
    let (hook, bucket) = unsafe { (&mut *data.cast::<Hook>(), &*bucket) };
    let closure = &mut hook.closure;
    i32::from(hook.calls.ask(Fails::Step, || closure(&mut Bucket(bucket))).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_moment_is_neither_before_nor_after() {
        assert_eq!(Phase::of(sys::TRIREME_HOOK_AFTER), Phase::After);
        assert_eq!(Phase::of(99), Phase::Other(99));
    }
}
