//! The options of one operation.

use std::fmt;
use std::time::Duration;

use trireme_sys as sys;

use crate::communicator::Communicator;
use crate::element::Dtype;
use crate::error::static_text;
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

/// How a collective is made of messages between two ranks.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// The library chooses.
    #[default]
    Automatic = sys::TRIREME_ALGORITHM_AUTOMATIC,
    /// Every pair exchanges once; sums in rank order.
    Direct = sys::TRIREME_ALGORITHM_DIRECT,
    /// Neighbours pass pieces on: least traffic.
    Ring = sys::TRIREME_ALGORITHM_RING,
    /// Partners at distances of powers of two.
    HalvingDoubling = sys::TRIREME_ALGORITHM_HALVING_DOUBLING,
    /// One binomial tree.
    Binomial = sys::TRIREME_ALGORITHM_BINOMIAL,
    /// Two complementary trees.
    DoubleTree = sys::TRIREME_ALGORITHM_DOUBLE_TREE,
    /// Blocks over distances of powers of two.
    Bruck = sys::TRIREME_ALGORITHM_BRUCK,
    /// One partner after the other.
    Pairwise = sys::TRIREME_ALGORITHM_PAIRWISE,
    /// The backend's own. Over `tcp://` also a started call waits until all ranks have joined.
    Native = sys::TRIREME_ALGORITHM_NATIVE,
}

impl Algorithm {
    /// The name, for example "halving_doubling".
    pub fn name(self) -> &'static str {
        // SAFETY: collectives.h: a string that lives as long as the library, for any value.
        unsafe { static_text(sys::trireme_algorithm_name(self as i32)) }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
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
    /// Collectives combine in rank order, so that every backend and algorithm gives the same bits.
    pub reproducible: bool,
    /// All ranks name the same. Not for messages.
    pub algorithm: Algorithm,
    /// `F16`, `Bf16`, `F8E4m3` or `F8E5m2`: what `f32` elements are rounded to while they travel.
    pub wire_dtype: Option<Dtype>,
}

impl Communicator {
    pub(crate) fn options(&self, scale: f64) -> sys::trireme_operation_options {
        let mut options = sys::trireme_operation_options::init();
        options.timeout_ns = option_ns(self.call.timeout);
        options.scale = scale;
        options.priority = self.call.priority as i32;
        options.algorithm = self.call.algorithm as i32;
        options.wire_dtype = self.call.wire_dtype.map_or(0, |dtype| dtype as i32);
        if self.call.reproducible {
            options.flags |= sys::TRIREME_OPERATION_FLAG_REPRODUCIBLE;
        }
        options
    }
}
