//! Hearing what the library has to say. It never prints.

use std::cell::Cell;
use std::ffi::{c_void, CStr};
use std::os::raw::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};

use trireme_sys as sys;

use crate::error::{check, panic_text, Error, Result, Status};

/// How much a message matters.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Error = sys::TRIREME_LOG_ERROR,
    Warning = sys::TRIREME_LOG_WARNING,
    Info = sys::TRIREME_LOG_INFO,
    Debug = sys::TRIREME_LOG_DEBUG,
}

type Listener = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

/// The listener the library knows. Boxed twice, so that its address stays while it moves.
static CURRENT: Mutex<Option<Box<Listener>>> = Mutex::new(None);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Sets the closure that hears messages up to `level`, for the whole process, in place of the one
/// before. It runs on any thread of the library, several at once. A panic of it ends there; Rust's
/// panic hook has told of it by then.
///
/// `InvalidState` when called by the closure itself.
pub fn set_log(
    level: LogLevel,
    listener: impl Fn(LogLevel, &str) + Send + Sync + 'static,
) -> Result<()> {
    let listener: Box<Listener> = Box::new(Box::new(listener));
    exchange(Some(listener), level as sys::trireme_log_level)
}

/// Silence, which is how the library starts.
pub fn clear_log() -> Result<()> {
    exchange(None, sys::TRIREME_LOG_ERROR)
}

fn exchange(listener: Option<Box<Listener>>, level: sys::trireme_log_level) -> Result<()> {
    // Inside a listener the library does not wait for the others to end, so the one before could
    // not be freed; and another thread may hold the lock below and wait for this very call to end.
    if INSIDE.with(Cell::get) {
        return Err(Error::local(
            Status::InvalidState,
            "set_log: a listener must not change the listener",
        ));
    }
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let callback: sys::trireme_log_callback = match listener {
        Some(_) => Some(hear),
        None => None,
    };
    let user_data =
        listener.as_deref().map_or(std::ptr::null_mut(), |l| l as *const Listener as *mut c_void);
    // SAFETY: log.h: any thread; the listener lives in CURRENT until the next call has returned,
    // which "waits until no thread is inside the callback that was set before".
    check(unsafe { sys::trireme_set_log_callback(callback, level, user_data) })?;
    let before = std::mem::replace(&mut *current, listener);
    drop(current);
    drop(before); // the closure's own drop runs without the lock
    Ok(())
}

unsafe extern "C" fn hear(
    level: sys::trireme_log_level,
    message: *const c_char,
    data: *mut c_void,
) {
    // SAFETY: log.h: one line of text that lives for the call; `data` is a listener in CURRENT.
    let (listener, message) = unsafe { (&*data.cast::<Listener>(), CStr::from_ptr(message)) };
    let level = match level {
        sys::TRIREME_LOG_ERROR => LogLevel::Error,
        sys::TRIREME_LOG_WARNING => LogLevel::Warning,
        sys::TRIREME_LOG_INFO => LogLevel::Info,
        _ => LogLevel::Debug,
    };
    let outer = INSIDE.with(|inside| inside.replace(true));
    let heard = catch_unwind(AssertUnwindSafe(|| listener(level, &message.to_string_lossy())));
    INSIDE.with(|inside| inside.set(outer));
    if let Err(payload) = heard {
        panic_text(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::sync::{Arc, MutexGuard};

    /// The log is one for the process, so tests take turns.
    fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says a line as the library would, from a thread of its own.
    fn say(level: LogLevel, text: &str) {
        let current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        let listener: *const Listener = current.as_deref().expect("a listener is set");
        let (address, line) = (listener as usize, CString::new(text).unwrap());
        drop(current);
        let library = std::thread::spawn(move || {
            let user_data = address as *mut c_void;
            // SAFETY: the listener stays set, for the caller has the turn.
            unsafe { hear(level as i32, line.as_ptr(), user_data) }
        });
        library.join().expect("nothing may unwind into the library");
    }

    #[test]
    fn a_listener_hears_lines_and_is_freed_when_it_is_cleared() {
        let _turn = turn();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let lines = heard.clone();
        set_log(LogLevel::Debug, move |level, text| {
            lines.lock().unwrap().push((level, text.to_owned()));
        })
        .unwrap();
        say(LogLevel::Warning, "rank 1 is slow");
        say(LogLevel::Debug, "é");
        clear_log().unwrap();
        assert_eq!(Arc::strong_count(&heard), 1);
        let wanted =
            [(LogLevel::Warning, "rank 1 is slow".into()), (LogLevel::Debug, "é".to_owned())];
        assert_eq!(*heard.lock().unwrap(), wanted);
    }

    #[test]
    fn a_listener_that_panics_harms_nobody() {
        let _turn = turn();
        set_log(LogLevel::Info, |_, _| panic!("in a log listener")).unwrap();
        say(LogLevel::Error, "one");
        say(LogLevel::Error, "two");
        clear_log().unwrap();
    }

    #[test]
    fn a_listener_must_not_change_the_listener() {
        let _turn = turn();
        let answers = Arc::new(Mutex::new(Vec::new()));
        let told = answers.clone();
        set_log(LogLevel::Error, move |_, _| {
            told.lock().unwrap().push(clear_log().map_err(|error| error.status()));
        })
        .unwrap();
        say(LogLevel::Error, "one");
        say(LogLevel::Error, "two");
        clear_log().unwrap();
        assert_eq!(*answers.lock().unwrap(), [Err(Status::InvalidState); 2]);
    }

    #[test]
    fn replacing_a_listener_frees_the_one_before() {
        let _turn = turn();
        let first = Arc::new(());
        let kept = first.clone();
        set_log(LogLevel::Error, move |_, _| drop(kept.clone())).unwrap();
        assert_eq!(Arc::strong_count(&first), 2);
        set_log(LogLevel::Warning, |_, _| {}).unwrap();
        assert_eq!(Arc::strong_count(&first), 1);
        clear_log().unwrap();
        clear_log().unwrap();
    }
}
