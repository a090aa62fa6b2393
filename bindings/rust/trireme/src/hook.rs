//! A caller's own work on each bucket of gradients.

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::Mutex;

use trireme_sys as sys;

use crate::element::Real;
use crate::error::{panic_text, Error, Result, Status};

/// When a bucket hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// This rank's contribution is complete and no peer sees it yet.
    Before,
    /// The part of the reduced gradients that this rank updates, before it is clipped.
    After,
}

/// A stretch of one parameter inside a bucket.
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
        if self.0.phase == sys::TRIREME_HOOK_BEFORE {
            Phase::Before
        } else {
            Phase::After
        }
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

/// The caller's own hook, in memory that the library points to.
struct State {
    closure: Closure,
    /// Why the hook failed first since the step began.
    failure: Option<String>,
    /// The model's; it is locked whenever the hook runs.
    one_call: NonNull<Mutex<()>>,
}

/// The hook of one model, which the model and its optimizer hold.
pub(crate) struct Hook(NonNull<State>);

// SAFETY: the closure is Send.
unsafe impl Send for Hook {}
// SAFETY: what it points to is reached with the model's one_call locked only.
unsafe impl Sync for Hook {}

thread_local! {
    /// The model whose hook or schedule runs on this thread, by its one_call.
    static RUNNING: Cell<*const Mutex<()>> = const { Cell::new(std::ptr::null()) };
}

/// Refuses a call inside a hook or a schedule of the model of this one_call, where it would wait for
/// itself.
pub(crate) fn refuse_inside(one_call: &Mutex<()>) -> Result<()> {
    if RUNNING.with(|running| std::ptr::eq(running.get(), one_call)) {
        let text =
            "a bucket hook or schedule must not call the library on its own model".to_owned();
        return Err(Error::local(Status::InvalidState, text));
    }
    Ok(())
}

/// Runs a closure of the caller inside a call of the model of this one_call, which is locked.
pub(crate) fn inside<T>(one_call: NonNull<Mutex<()>>, run: impl FnOnce() -> T) -> T {
    // Another model's closure may be what calls this model.
    let outer = RUNNING.with(|running| running.replace(one_call.as_ptr()));
    let answer = run();
    RUNNING.with(|running| running.set(outer));
    answer
}

impl Hook {
    pub(crate) fn new(
        one_call: &Mutex<()>,
        closure: impl FnMut(&mut Bucket<'_>) -> std::result::Result<(), String> + Send + 'static,
    ) -> Self {
        let one_call = NonNull::from(one_call);
        let state = Box::new(State { closure: Box::new(closure), failure: None, one_call });
        // SAFETY: Box::into_raw gives no null.
        Hook(unsafe { NonNull::new_unchecked(Box::into_raw(state)) })
    }

    pub(crate) fn user_data(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    /// Why the hook failed, once.
    ///
    /// # Safety
    /// The model's one_call is locked.
    pub(crate) unsafe fn take_failure(&self) -> Option<String> {
        unsafe { (*self.0.as_ptr()).failure.take() }
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw; model and optimizer, whose calls run it, are gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

pub(crate) unsafe extern "C" fn call(bucket: *const sys::trireme_bucket, data: *mut c_void) -> i32 {
    // SAFETY: called inside a call of the model or its optimizer, which has both to itself; all of
    // it lives for the call.
    let (state, bucket) = unsafe { (&mut *data.cast::<State>(), &*bucket) };
    let closure = &mut state.closure;
    let answer =
        inside(state.one_call, || catch_unwind(AssertUnwindSafe(|| closure(&mut Bucket(bucket)))));
    let text = match answer {
        Ok(Ok(())) => return 0,
        Ok(Err(text)) => text,
        Err(payload) => format!("panicked: {}", panic_text(payload)),
    };
    state.failure.get_or_insert(text);
    1
}
