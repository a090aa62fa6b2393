//! Places where tests can make a rank die, sleep or fail.

use trireme_sys as sys;

use crate::error::{c_text, check, static_text, Result};

/// The names of all failpoints, for example "all_reduce.after_publish".
pub fn names() -> Vec<&'static str> {
    // SAFETY: failpoint.h: cannot fail, any thread; a string that lives as long as the library for
    // each index below the count.
    unsafe {
        (0..sys::trireme_failpoint_count())
            .map(|index| static_text(sys::trireme_failpoint_name(index)))
            .collect()
    }
}

/// Sets what failpoints of this process do, in place of everything set before:
/// `NAME=ACTION[@HIT]`, several with ";" between them; see `failpoint.h`. "" clears all.
pub fn set(text: &str) -> Result<()> {
    let text = c_text(text, "failpoints")?;
    // SAFETY: failpoint.h: any thread, keeps no pointer.
    check(unsafe { sys::trireme_failpoint_set(text.as_ptr()) })
}

/// How often a failpoint was visited since it was set.
pub fn hits(name: &str) -> Result<u64> {
    let name = c_text(name, "failpoint")?;
    let mut hits = 0;
    // SAFETY: failpoint.h: any thread, keeps no pointer.
    check(unsafe { sys::trireme_failpoint_get_hits(name.as_ptr(), &mut hits) })?;
    Ok(hits)
}
