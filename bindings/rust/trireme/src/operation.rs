//! What can be asked of one operation.

use std::time::Duration;

use trireme_sys as sys;

use crate::communicator::Communicator;
use crate::handle::option_ns;

/// How urgent a collective is.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    #[default]
    Normal = sys::TRIREME_PRIORITY_NORMAL,
    /// Does not wait behind normal ones: it has a queue of its own.
    High = sys::TRIREME_PRIORITY_HIGH,
}

/// Options of operations, for [`Communicator::with`]; the default changes nothing.
///
/// ```
/// # use trireme::{Communicator, OperationOptions, Priority};
/// # let communicator = Communicator::join("local://doc-options", 0, 1).unwrap();
/// let urgent = OperationOptions { priority: Priority::High, ..Default::default() };
/// communicator.with(urgent).barrier().unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationOptions {
    /// Deadline of each call from its start; else the communicator's.
    pub timeout: Option<Duration>,
    /// Collectives run in order among those of one priority; all ranks name the same. Not for
    /// messages.
    pub priority: Priority,
}

impl Communicator {
    pub(crate) fn options(&self, scale: f64) -> sys::trireme_operation_options {
        let mut options = sys::trireme_operation_options::init();
        options.timeout_ns = option_ns(self.call.timeout);
        options.scale = scale;
        options.priority = self.call.priority as i32;
        options
    }
}
