//! The answers of calls that fail.

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::fmt;

use trireme_sys as sys;

/// The answer of every call that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// One code for each thing a caller can do about a failure.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// A value breaks a rule; the message names both.
    InvalidArgument,
    /// Stale, foreign, destroyed twice, or used after fork.
    InvalidHandle,
    /// Right call, wrong moment.
    InvalidState,
    /// Known, but not in this build or backend.
    Unsupported,
    /// Host memory has run out.
    OutOfMemory,
    /// The deadline passed; the message names the missing ranks.
    Timeout,
    /// A rank called [`Communicator::abort`](crate::Communicator::abort).
    Aborted,
    /// A rank died or left; the message names it.
    PeerLost,
    /// Ranks disagree about an operation or a model.
    Mismatch,
    /// Data read from a peer or a file is damaged.
    Corrupt,
    /// A peer could not show that it belongs to the job.
    Authentication,
    /// The operating system refused; see [`Error::system_error`].
    System,
    /// A callback of the caller failed.
    Callback,
    /// The request was cancelled before it began.
    Cancelled,
    /// A defect of the library; please report the message.
    Internal,
    /// A device or its driver failed; the message has the driver's code.
    Device,
    /// A status that is newer than this crate.
    Other(i32),
}

const STATUSES: [(Status, sys::trireme_status); 16] = [
    (Status::InvalidArgument, sys::TRIREME_ERROR_INVALID_ARGUMENT),
    (Status::InvalidHandle, sys::TRIREME_ERROR_INVALID_HANDLE),
    (Status::InvalidState, sys::TRIREME_ERROR_INVALID_STATE),
    (Status::Unsupported, sys::TRIREME_ERROR_UNSUPPORTED),
    (Status::OutOfMemory, sys::TRIREME_ERROR_OUT_OF_MEMORY),
    (Status::Timeout, sys::TRIREME_ERROR_TIMEOUT),
    (Status::Aborted, sys::TRIREME_ERROR_ABORTED),
    (Status::PeerLost, sys::TRIREME_ERROR_PEER_LOST),
    (Status::Mismatch, sys::TRIREME_ERROR_MISMATCH),
    (Status::Corrupt, sys::TRIREME_ERROR_CORRUPT),
    (Status::Authentication, sys::TRIREME_ERROR_AUTHENTICATION),
    (Status::System, sys::TRIREME_ERROR_SYSTEM),
    (Status::Callback, sys::TRIREME_ERROR_CALLBACK),
    (Status::Cancelled, sys::TRIREME_ERROR_CANCELLED),
    (Status::Internal, sys::TRIREME_ERROR_INTERNAL),
    (Status::Device, sys::TRIREME_ERROR_DEVICE),
];

impl Status {
    /// The number of this status in `status.h`.
    pub fn code(self) -> i32 {
        match self {
            Status::Other(code) => code,
            known => STATUSES.iter().find(|(status, _)| *status == known).map_or(0, |(_, n)| *n),
        }
    }

    /// The status of a number of `status.h`; `None` for success.
    pub fn from_code(code: i32) -> Option<Self> {
        let known = STATUSES.iter().find(|(_, number)| *number == code).map(|(status, _)| *status);
        (code != sys::TRIREME_OK).then(|| known.unwrap_or(Status::Other(code)))
    }

    /// The name, for example "PEER_LOST".
    pub fn name(self) -> &'static str {
        // SAFETY: status.h: a string that lives as long as the library, for any value.
        unsafe { static_text(sys::trireme_status_name(self.code())) }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A failure: its status, its message, the operation, and the ranks to blame.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Parts>);

#[derive(Clone, PartialEq, Eq)]
struct Parts {
    status: Status,
    message: String,
    operation: String,
    communicator: String,
    sequence: u64,
    blamed: Vec<i32>,
    blamed_count: usize,
    system_error: i32,
    try_again: bool,
}

impl Error {
    /// The status: it says what a caller can do about the failure.
    pub fn status(&self) -> Status {
        self.0.status
    }

    /// One line that names the value and the rule, or the operation and the ranks.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The operation that failed, for example "all_reduce"; `None` if it was none.
    pub fn operation(&self) -> Option<&str> {
        Some(self.0.operation.as_str()).filter(|text| !text.is_empty())
    }

    /// Name of the communicator; `None` if the failure is of none.
    pub fn communicator(&self) -> Option<&str> {
        Some(self.0.communicator.as_str()).filter(|text| !text.is_empty())
    }

    /// Number of the operation in its communicator, from 1; `None` if it was none.
    pub fn sequence(&self) -> Option<u64> {
        Some(self.0.sequence).filter(|&number| number != 0)
    }

    /// The ranks to blame, ascending; the first 16 of [`Error::blamed_count`].
    pub fn blamed(&self) -> &[i32] {
        &self.0.blamed
    }

    /// How many ranks are to blame.
    pub fn blamed_count(&self) -> usize {
        self.0.blamed_count
    }

    /// The error of the operating system; `None` if the system refused nothing.
    pub fn system_error(&self) -> Option<std::io::Error> {
        Some(self.0.system_error).filter(|&n| n != 0).map(std::io::Error::from_raw_os_error)
    }

    /// Another rank was lost in a shrink: all ranks that got this error shrink again.
    pub fn try_again(&self) -> bool {
        self.0.try_again
    }

    /// A refusal of this crate, in the words the library would use.
    pub(crate) fn local(status: Status, message: impl Into<String>) -> Self {
        Error(Box::new(Parts {
            status,
            message: message.into(),
            operation: String::new(),
            communicator: String::new(),
            sequence: 0,
            blamed: Vec::new(),
            blamed_count: 0,
            system_error: 0,
            try_again: false,
        }))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::local(Status::InvalidArgument, message)
    }

    /// Adds what a callback of the caller said.
    pub(crate) fn because(mut self, reason: &str) -> Self {
        self.0.message = format!("{}: {reason}", self.0.message);
        self
    }

    /// The last failure of this thread, which had this status.
    fn last(status: Status) -> Self {
        let mut info = sys::trireme_error_info::init();
        // SAFETY: status.h: fills the struct up to its struct_size and keeps no pointer; the
        // message lives until this thread's next failure, and is copied before.
        let (told, message) = unsafe {
            let told = sys::trireme_last_error_info(&mut info) == sys::TRIREME_OK;
            let message = CStr::from_ptr(sys::trireme_last_error());
            (told, message.to_string_lossy().into_owned())
        };
        if !told {
            return Self::local(status, message);
        }
        let named = (info.blamed_count as usize).min(info.blamed.len());
        Error(Box::new(Parts {
            status,
            message,
            operation: field_text(&info.operation),
            communicator: field_text(&info.communicator),
            sequence: info.sequence,
            blamed: info.blamed[..named].to_vec(),
            blamed_count: info.blamed_count as usize,
            system_error: info.system_error,
            try_again: info.try_again != 0,
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.status, self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("status", &self.0.status)
            .field("message", &self.0.message)
            .field("operation", &self.operation())
            .field("communicator", &self.communicator())
            .field("sequence", &self.sequence())
            .field("blamed", &self.0.blamed)
            .field("system_error", &self.system_error())
            .finish()
    }
}

impl std::error::Error for Error {}

/// Turns a status into a `Result`. Must run on the thread that got the status, before its next
/// call.
pub(crate) fn check(status: sys::trireme_status) -> Result<()> {
    Status::from_code(status).map_or(Ok(()), |status| Err(Error::last(status)))
}

/// A C string of the caller's text.
pub(crate) fn c_text(text: &str, what: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{what} {text:?} contains a NUL")))
}

/// # Safety
/// `text` is NUL-terminated UTF-8 that lives as long as the library.
pub(crate) unsafe fn static_text(text: *const std::os::raw::c_char) -> &'static str {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

/// Text that the library copies out: asked for its length first, then for itself, and again if it
/// has grown in between.
pub(crate) fn copied_text(
    mut copy: impl FnMut(*mut std::os::raw::c_char, u64, *mut u64) -> sys::trireme_status,
) -> Result<String> {
    let mut memory: Vec<u8> = Vec::new();
    loop {
        let mut length = 0;
        check(copy(memory.as_mut_ptr().cast(), memory.len() as u64, &mut length))?;
        if (length as usize) < memory.len() {
            memory.truncate(length as usize);
            return Ok(String::from_utf8_lossy(&memory).into_owned());
        }
        memory.resize(length as usize + 1, 0);
    }
}

/// The text of a panic's payload. Any other payload is leaked: dropping it could panic again.
pub(crate) fn panic_text(payload: Box<dyn std::any::Any + Send>) -> Cow<'static, str> {
    let payload = match payload.downcast::<&'static str>() {
        Ok(text) => return Cow::Borrowed(*text),
        Err(payload) => payload,
    };
    match payload.downcast::<String>() {
        Ok(text) => Cow::Owned(*text),
        Err(payload) => {
            std::mem::forget(payload);
            Cow::Borrowed("a panic without a text")
        }
    }
}

fn field_text(field: &[std::os::raw::c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
