//! The job's small key-value store.

use std::ffi::CString;
use std::ptr;
use std::time::Duration;

use trireme_sys as sys;

use crate::error::{c_text, check, copied_text, Result};
use crate::handle::{option_ns, wait_ns, Handle};

/// Most values fit, so that one call gets them.
const FIRST_ROOM: usize = 4096;

type Open = unsafe extern "C" fn(
    *const std::os::raw::c_char,
    *const sys::trireme_store_options,
    *mut *mut sys::trireme_store,
) -> sys::trireme_status;

/// Keys and values that all processes of a job share. Needs the job's token, by
/// `TRIREME_TOKEN_FILE`, `TRIREME_TOKEN_FD` or `TRIREME_TOKEN`. A call that waits keeps none of
/// another thread waiting.
#[derive(Debug)]
pub struct Store {
    handle: Handle<sys::trireme_store>,
}

impl Store {
    /// Serves a store at `tcp://ADDRESS:PORT`; with port 0 the system chooses one. `timeout` is the
    /// longest that any call may take, by default 300 s.
    pub fn serve(url: &str, timeout: Option<Duration>) -> Result<Self> {
        Store::open(sys::trireme_store_serve, url, timeout)
    }

    /// Connects to `tcp://ADDRESS:PORT`, `file:///PATH` or `env://`, and waits until it is there.
    pub fn connect(url: &str, timeout: Option<Duration>) -> Result<Self> {
        Store::open(sys::trireme_store_connect, url, timeout)
    }

    fn open(open: Open, url: &str, timeout: Option<Duration>) -> Result<Self> {
        let url = c_text(url, "url")?;
        let mut raw = sys::trireme_store_options::init();
        raw.timeout_ns = option_ns(timeout);
        // SAFETY: store.h: "No function here keeps a pointer of the caller".
        let handle = Handle::create(|out| check(unsafe { open(url.as_ptr(), &raw, out) }))?;
        Ok(Store { handle })
    }

    /// The URL by which others connect.
    pub fn address(&self) -> Result<String> {
        // SAFETY: store.h: writes at most `capacity` bytes at `text`.
        copied_text(|text, capacity, length| unsafe {
            sys::trireme_store_get_address(self.handle.get(), text, capacity, length)
        })
    }

    /// Puts a value under a key.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = c_text(key, "key")?;
        // SAFETY: store.h: reads `size` bytes at `value`.
        check(unsafe {
            sys::trireme_store_set(
                self.handle.get(),
                key.as_ptr(),
                value.as_ptr().cast(),
                value.len() as u64,
            )
        })
    }

    /// The value of a key, if it has one. Does not wait for the key.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let key = c_text(key, "key")?;
        let mut value = vec![0; FIRST_ROOM];
        loop {
            let (mut size, mut found) = (0, 0);
            // SAFETY: store.h: writes at most `capacity` bytes at `value`.
            check(unsafe {
                sys::trireme_store_get(
                    self.handle.get(),
                    key.as_ptr(),
                    value.as_mut_ptr().cast(),
                    value.len() as u64,
                    &mut size,
                    &mut found,
                )
            })?;
            if found == 0 {
                return Ok(None);
            }
            let fits = size as usize <= value.len();
            value.resize(size as usize, 0);
            if fits {
                return Ok(Some(value));
            }
        }
    }

    /// Waits until all of these keys have a value.
    pub fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let texts: Vec<CString> =
            keys.iter().map(|key| c_text(key, "key")).collect::<Result<_>>()?;
        let pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
        // SAFETY: store.h: reads `key_count` texts.
        check(unsafe {
            sys::trireme_store_wait(
                self.handle.get(),
                pointers.as_ptr(),
                pointers.len() as u64,
                wait_ns(timeout),
            )
        })
    }

    /// Adds to the number under a key, 0 if there is none, and gives the sum.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let key = c_text(key, "key")?;
        let mut sum = 0;
        // SAFETY: a live store and a place for the number.
        check(unsafe {
            sys::trireme_store_add(self.handle.get(), key.as_ptr(), amount, &mut sum)
        })?;
        Ok(sum)
    }

    /// Puts `value` there if the key has the value `expected`, or no value for `None`; tells
    /// whether it did.
    pub fn compare_exchange(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<bool> {
        let key = c_text(key, "key")?;
        let mut exchanged = 0;
        // SAFETY: store.h: reads as many bytes as the sizes say; a slice is never at NULL.
        check(unsafe {
            sys::trireme_store_compare_exchange(
                self.handle.get(),
                key.as_ptr(),
                expected.map_or(ptr::null(), |bytes| bytes.as_ptr().cast()),
                expected.map_or(0, |bytes| bytes.len() as u64),
                value.as_ptr().cast(),
                value.len() as u64,
                &mut exchanged,
            )
        })?;
        Ok(exchanged != 0)
    }

    /// Takes a key and its value away; tells whether it had one.
    pub fn delete(&self, key: &str) -> Result<bool> {
        let key = c_text(key, "key")?;
        let mut deleted = 0;
        // SAFETY: a live store and a place for the number.
        check(unsafe { sys::trireme_store_delete(self.handle.get(), key.as_ptr(), &mut deleted) })?;
        Ok(deleted != 0)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { sys::trireme_store_destroy(self.handle.get()) }
    }
}
