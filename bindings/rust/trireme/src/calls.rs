//! The calls of a model, its optimizer and its trainer, and the closures that they call.

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use trireme_sys as sys;

use crate::error::{check, panic_text, Error, Result, Status};

/// The one call at a time of a model, and what closures of the caller said against it.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// model.h: "one call at a time per model", its optimizer and its trainer included. This is
    /// also what makes all of them Sync.
    one: Mutex<()>,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    /// Of the call that runs: its own schedule.
    schedule: Option<String>,
    /// Of the step: the first of its hook, rule and layers. The call that runs them may answer OK,
    /// and a later one of the step fails.
    step: Option<String>,
}

/// The call or the step that a closure's failure makes fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fails {
    /// The call that it runs in.
    Call,
    /// The step that it is part of.
    Step,
}

thread_local! {
    /// The model whose closure runs on this thread.
    static RUNNING: Cell<*const Calls> = const { Cell::new(ptr::null()) };
}

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Calls {
    /// Refuses a call inside a closure of the model, where it would wait for itself.
    pub(crate) fn refuse_inside(&self) -> Result<()> {
        if RUNNING.with(|running| ptr::eq(running.get(), self)) {
            let text =
                "a bucket hook, schedule, rule or layer must not call the library on its own model";
            return Err(Error::local(Status::InvalidState, text));
        }
        Ok(())
    }

    /// For calls that neither fail nor call a closure.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        open(&self.one)
    }

    /// Makes a call; what a closure of the caller said against it is its reason.
    pub(crate) fn run(&self, call: impl FnOnce() -> sys::trireme_status) -> Result<()> {
        self.refuse_inside()?;
        let _one_call = self.lock();
        self.explain(check(call()))
    }

    /// The same of several models, in any order. No two of them are one.
    pub(crate) fn run_all(
        all: &[&Calls],
        call: impl FnOnce() -> sys::trireme_status,
    ) -> Result<()> {
        for each in all {
            each.refuse_inside()?;
        }
        // All threads lock in the order of addresses, or two of them could wait for each other.
        let mut ordered = all.to_vec();
        ordered.sort_by_key(|each| *each as *const Calls);
        let _one_call_each: Vec<_> = ordered.iter().map(|each| each.lock()).collect();
        all.iter().fold(check(call()), |outcome, each| each.explain(outcome))
    }

    /// Adds what a closure of the caller said in the call.
    fn explain(&self, outcome: Result<()>) -> Result<()> {
        let mut said = open(&self.said);
        let schedule = said.schedule.take();
        outcome.map_err(|error| {
            if error.status() != Status::Callback {
                return error;
            }
            match schedule.or_else(|| said.step.take()) {
                Some(text) => error.because(&text),
                None => error,
            }
        })
    }

    /// The step has ended, and what was said against it is of no more use.
    pub(crate) fn end_step(&self) {
        open(&self.said).step = None;
    }

    /// Runs a closure of the caller inside [`run`](Self::run). `None`: it answered a text or
    /// panicked.
    pub(crate) fn ask<T>(
        &self,
        fails: Fails,
        closure: impl FnOnce() -> std::result::Result<T, String>,
    ) -> Option<T> {
        // Another model's closure may be what calls this model.
        let outer = RUNNING.with(|running| running.replace(self));
        let answer = catch_unwind(AssertUnwindSafe(closure));
        RUNNING.with(|running| running.set(outer));
        let text = match answer {
            Ok(Ok(value)) => return Some(value),
            Ok(Err(text)) => text,
            Err(payload) => format!("panicked: {}", panic_text(payload)),
        };
        let mut said = open(&self.said);
        match fails {
            Fails::Call => said.schedule = Some(text),
            Fails::Step => drop(said.step.get_or_insert(text)),
        }
        None
    }
}

/// A closure of the caller with what its calls need, in memory that the library points to.
pub(crate) struct Lent<T>(NonNull<T>);

// SAFETY: it owns a T.
unsafe impl<T: Send> Send for Lent<T> {}
// SAFETY: what it points to is reached inside Calls::run() of one model only.
unsafe impl<T: Send> Sync for Lent<T> {}

impl<T> Lent<T> {
    pub(crate) fn new(value: T) -> Self {
        // SAFETY: Box::into_raw gives no null.
        Lent(unsafe { NonNull::new_unchecked(Box::into_raw(Box::new(value))) })
    }

    pub(crate) fn user_data(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    /// The value again. The library points to it no more.
    pub(crate) fn take_back(self) -> T {
        let lent = ManuallyDrop::new(self);
        // SAFETY: made by Box::into_raw, and dropped by no one else.
        *unsafe { Box::from_raw(lent.0.as_ptr()) }
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw; who drops it has told the library before.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T> fmt::Debug for Lent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lent")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{mpsc, Arc};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn who_waits_for_the_first_model_holds_no_later_one() {
        let calls = Arc::new([Calls::default(), Calls::default()]); // by address
        let first = calls[0].lock();
        let (done, end) = mpsc::channel();
        for order in [[0, 1], [1, 0]] {
            let (calls, done) = (calls.clone(), done.clone());
            thread::spawn(move || {
                let both = order.map(|i| &calls[i]);
                Calls::run_all(&both, || sys::TRIREME_OK).unwrap();
                done.send(()).unwrap();
            });
        }
        // A thread that held the second model while it waits for the first could wait for ever.
        for _ in 0..100 {
            thread::sleep(Duration::from_millis(1));
            assert!(calls[1].one.try_lock().is_ok(), "a thread locks in its caller's order");
        }
        drop(first);
        for _ in 0..2 {
            end.recv_timeout(Duration::from_secs(120)).expect("the threads wait for each other");
        }
    }
}
