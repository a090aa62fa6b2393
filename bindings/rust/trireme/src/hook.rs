//! A caller's own work on each bucket of gradients.

use std::ffi::c_void;
use std::sync::Arc;

use trireme_sys as sys;

use crate::calls::{Calls, Fails};
use crate::element::Real;

/// When a bucket hook is called.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookMoment {
    /// This rank's contribution is complete and no peer sees it yet.
    Before,
    /// The part of the reduced gradients that this rank updates, before it is clipped.
    After,
    /// A moment that is newer than this crate.
    Other(i32),
}

impl HookMoment {
    fn of(code: i32) -> Self {
        match code {
            sys::TRIREME_HOOK_BEFORE => HookMoment::Before,
            sys::TRIREME_HOOK_AFTER => HookMoment::After,
            other => HookMoment::Other(other),
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
    pub fn moment(&self) -> HookMoment {
        HookMoment::of(self.0.moment)
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
        let raw = self.0;
        (0..raw.part_count as usize).map(move |index| {
            // SAFETY: model_options.h: `part_count` stretches, `part_bytes` apart, good for the
            // call. A later library has larger ones.
            let part = unsafe {
                let bytes = raw.parts.cast::<u8>().add(index * raw.part_bytes as usize);
                &*bytes.cast::<sys::trireme_bucket_part>()
            };
            BucketPart {
                parameter: part.parameter as usize,
                first: part.first as usize,
                count: part.count as usize,
                position: part.position as usize,
            }
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
        assert_eq!(HookMoment::of(sys::TRIREME_HOOK_AFTER), HookMoment::After);
        assert_eq!(HookMoment::of(99), HookMoment::Other(99));
    }

    #[test]
    fn parts_of_a_later_library_are_larger() {
        let words: [u64; 10] = [7, 2, 3, 0, 99, 8, 4, 5, 3, 99];
        // SAFETY: numbers and pointers, which may be 0.
        let mut raw: sys::trireme_bucket = unsafe { std::mem::zeroed() };
        raw.parts = words.as_ptr().cast();
        raw.part_count = 2;
        raw.part_bytes = 40;
        let parts = Bucket(&raw).parts();
        assert_eq!(parts.len(), 2);
        let wanted = [(7, 2, 3, 0), (8, 4, 5, 3)].map(|(parameter, first, count, position)| {
            BucketPart { parameter, first, count, position }
        });
        assert_eq!(parts.collect::<Vec<_>>(), wanted);
    }
}
