//! Groups made of ranks of a group.

use std::time::Duration;

use trireme_sys as sys;

use crate::communicator::{optional_text, Communicator};
use crate::error::{check, Error, Result};
use crate::handle::{option_ns, Handle};

/// How to make a child.
#[derive(Clone, Debug, Default)]
pub struct GroupOptions {
    /// Name of the child in messages, at most 63 bytes; else the parent's and a number.
    pub name: Option<String>,
    /// Longest the call may wait; else the parent's timeout.
    pub timeout: Option<Duration>,
}

/// Children are ordinary communicators that fail when their parent does, not the other way round.
/// All ranks of the parent call these functions in the same order.
impl Communicator {
    /// Each rank's number in the group that this one descends from.
    pub fn ranks(&self) -> Result<Vec<i32>> {
        let mut ranks = vec![0; self.world_size() as usize];
        // SAFETY: communicator.h: writes one number for each rank, and there is room for as many.
        check(unsafe {
            sys::trireme_communicator_get_original_ranks(
                self.handle.get(),
                ranks.as_mut_ptr(),
                ranks.len() as u64,
            )
        })?;
        Ok(ranks)
    }

    /// Ranks of one color become a new group, in the order of `key` and then of rank. With color
    /// `None` this rank is in no group.
    pub fn split(
        &self,
        color: Option<u32>,
        key: i32,
        options: &GroupOptions,
    ) -> Result<Option<Communicator>> {
        let color = match color.map(i32::try_from) {
            None => -1,
            Some(Ok(color)) => color,
            Some(Err(_)) => return Err(Error::invalid(format!("color {color:?} is too large"))),
        };
        // SAFETY: communicator.h: keeps no pointer.
        let child = make_child(options, |raw, out| unsafe {
            sys::trireme_communicator_split(self.handle.get(), color, key, raw, out)
        })?;
        Ok(self.on_same_device(child))
    }

    /// The ranks of a list, the same on all ranks, become a new group in its order; `None` on ranks
    /// that are not in it.
    pub fn subgroup(&self, ranks: &[i32], options: &GroupOptions) -> Result<Option<Communicator>> {
        // SAFETY: communicator.h: reads `count` numbers and keeps no pointer.
        let child = make_child(options, |raw, out| unsafe {
            sys::trireme_communicator_subgroup(
                self.handle.get(),
                ranks.as_ptr(),
                ranks.len() as u64,
                raw,
                out,
            )
        })?;
        Ok(self.on_same_device(child))
    }

    /// A child works on the device of its parent.
    fn on_same_device(&self, mut child: Option<Communicator>) -> Option<Communicator> {
        if let Some(child) = &mut child {
            child.on_device = self.on_device;
        }
        child
    }

    /// A second group of the same ranks, for another part of the program.
    pub fn duplicate(&self, options: &GroupOptions) -> Result<Communicator> {
        // SAFETY: communicator.h: keeps no pointer.
        let child = make_child(options, |raw, out| unsafe {
            sys::trireme_communicator_duplicate(self.handle.get(), raw, out)
        })?;
        Ok(self.on_same_device(child).expect("every rank is in a duplicate"))
    }

    /// The bitwise and of the flags of all ranks that are there, the same on each of them. Also
    /// works after a failure; goes on without ranks that died, left, or are blamed by it.
    pub fn agree(&self, flags: u64) -> Result<u64> {
        let mut flags = flags;
        // SAFETY: a live communicator and a place for the flags.
        check(unsafe {
            sys::trireme_communicator_agree(
                self.handle.get(),
                &mut flags,
                option_ns(self.call.timeout),
            )
        })?;
        Ok(flags)
    }

    /// A new group of the ranks that are there; also works after a failure. After a `PeerLost` it
    /// may be called again.
    pub fn shrink(&self, options: &GroupOptions) -> Result<Communicator> {
        // SAFETY: communicator.h: keeps no pointer.
        let child = make_child(options, |raw, out| unsafe {
            sys::trireme_communicator_shrink(self.handle.get(), raw, out)
        })?;
        Ok(self.on_same_device(child).expect("who shrinks a group is in what is left of it"))
    }
}

/// The communicator that `make` makes by the options, or none.
pub(crate) fn make_child(
    options: &GroupOptions,
    make: impl FnOnce(
        *const sys::trireme_child_options,
        *mut *mut sys::trireme_communicator,
    ) -> sys::trireme_status,
) -> Result<Option<Communicator>> {
    let name = optional_text(&options.name, "name")?;
    let mut raw = sys::trireme_child_options::init();
    raw.name = name.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    raw.timeout_ns = option_ns(options.timeout);
    let handle = Handle::create_or_none(|out| check(make(&raw, out)))?;
    handle.map(Communicator::of_handle).transpose()
}
