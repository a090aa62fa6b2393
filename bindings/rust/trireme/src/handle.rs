//! The value every object of this crate holds, and times as the library counts them.

use std::ptr::NonNull;
use std::time::Duration;

use crate::error::Result;

/// A handle of the library, owned by the object that destroys it.
#[derive(Debug)]
pub(crate) struct Handle<T>(NonNull<T>);

// SAFETY: types.h: "The library looks the number up and never follows it". Each type that holds a
// handle decides which of its calls may run on several threads.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// The handle that `create` writes; it writes none when it fails.
    pub(crate) fn create(create: impl FnOnce(*mut *mut T) -> Result<()>) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        create(&mut handle)?;
        Ok(Handle(NonNull::new(handle).expect("the library answered OK without a handle")))
    }

    /// The same where NULL is an answer, too.
    pub(crate) fn create_or_none(
        create: impl FnOnce(*mut *mut T) -> Result<()>,
    ) -> Result<Option<Self>> {
        let mut handle = std::ptr::null_mut();
        create(&mut handle)?;
        Ok(NonNull::new(handle).map(Handle))
    }

    pub(crate) fn get(&self) -> *mut T {
        self.0.as_ptr()
    }
}

// By hand: a derive would want T to be Clone.
impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

/// Nanoseconds of a wait; 0 asks without waiting.
pub(crate) fn wait_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds of an option; 0 means the default.
pub(crate) fn option_ns(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| wait_ns(time).max(1))
}
