//! Ranks arranged in named axes.

use std::ffi::CString;
use std::os::raw::c_char;
use std::time::Duration;

use trireme_sys as sys;

use crate::communicator::{Communicator, Within};
use crate::error::{c_text, check, Result};
use crate::handle::{option_ns, Handle};
use crate::subgroup::{make_child, GroupOptions};

/// How ranks are numbered along the axes. Along the fastest axis lie ranks that follow each other.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MeshOrder {
    /// "tensor" is fastest, then "context", "expert", "shard", "data", "pipeline"; other names are
    /// slower than these.
    #[default]
    ByName = sys::TRIREME_MESH_ORDER_BY_NAME,
    /// The last axis of the list is fastest.
    LastFastest = sys::TRIREME_MESH_ORDER_LAST_FASTEST,
    /// The first axis of the list is fastest.
    FirstFastest = sys::TRIREME_MESH_ORDER_FIRST_FASTEST,
}

/// How to make a mesh.
#[derive(Clone, Debug, Default)]
pub struct MeshOptions {
    /// How ranks are numbered along the axes.
    pub order: MeshOrder,
    /// Longest the creation may wait; else the communicator's timeout.
    pub timeout: Option<Duration>,
}

/// Gives each rank of a communicator one coordinate on each axis, and a communicator along each
/// axis.
#[derive(Debug)]
pub struct Mesh {
    pub(crate) handle: Handle<sys::trireme_mesh>,
    axes: Vec<String>,
    world_size: usize,
}

impl Mesh {
    /// Arranges the ranks of a communicator in axes of these names and sizes; one size may be 0:
    /// what is left. Called by all of its ranks with the same axes.
    pub fn new(
        communicator: &Communicator,
        axes: &[(&str, i32)],
        options: &MeshOptions,
    ) -> Result<Self> {
        let names: Vec<&str> = axes.iter().map(|axis| axis.0).collect();
        let sizes: Vec<i32> = axes.iter().map(|axis| axis.1).collect();
        let texts = Texts::new(&names)?;
        let mut raw = sys::trireme_mesh_options::init();
        raw.axis_count = texts.count();
        raw.order = options.order as i32;
        raw.axis_names = texts.pointers.as_ptr();
        raw.axis_sizes = sizes.as_ptr();
        raw.timeout_ns = option_ns(options.timeout);
        // SAFETY: mesh.h: "Keeps no pointer into `options`"; the arrays have `axis_count` places.
        let handle = Handle::create(|out| {
            check(unsafe { sys::trireme_mesh_create(communicator.handle.get(), &raw, out) })
        })?;
        let axes = names.iter().map(|name| name.to_string()).collect();
        Ok(Mesh { handle, axes, world_size: communicator.world_size() as usize })
    }

    /// Names of the axes, in the order given.
    pub fn axes(&self) -> &[String] {
        &self.axes
    }

    /// Number of ranks along an axis, also if its size was left open.
    pub fn axis_size(&self, axis: &str) -> Result<i32> {
        let axis = c_text(axis, "axis")?;
        let mut size = 0;
        // SAFETY: a live mesh and a place for the number.
        check(unsafe {
            sys::trireme_mesh_get_axis_size(self.handle.get(), axis.as_ptr(), &mut size)
        })?;
        Ok(size)
    }

    /// A rank's place on every axis, in the order of the axes.
    pub fn coordinates(&self, rank: i32) -> Result<Vec<i32>> {
        let mut found = vec![0; self.axes.len()];
        // SAFETY: mesh.h: writes one number for each axis.
        check(unsafe {
            sys::trireme_mesh_get_coordinates(
                self.handle.get(),
                rank,
                found.as_mut_ptr(),
                found.len() as u64,
            )
        })?;
        Ok(found)
    }

    /// The rank at a place: one coordinate for each axis.
    pub fn rank(&self, coordinates: &[i32]) -> Result<i32> {
        let mut rank = 0;
        // SAFETY: mesh.h: reads `count` numbers.
        check(unsafe {
            sys::trireme_mesh_get_rank(
                self.handle.get(),
                coordinates.as_ptr(),
                coordinates.len() as u64,
                &mut rank,
            )
        })?;
        Ok(rank)
    }

    /// The ranks that differ from `rank` at most on these axes, ascending.
    pub fn group(&self, axes: &[&str], rank: i32) -> Result<Vec<i32>> {
        let texts = Texts::new(axes)?;
        let mut ranks = vec![0; self.world_size];
        let mut count = 0;
        // SAFETY: mesh.h: reads `axis_count` names and writes at most `capacity` numbers.
        check(unsafe {
            sys::trireme_mesh_get_group(
                self.handle.get(),
                texts.pointers.as_ptr(),
                texts.count(),
                rank,
                ranks.as_mut_ptr(),
                ranks.len() as u64,
                &mut count,
            )
        })?;
        ranks.truncate(count as usize);
        Ok(ranks)
    }

    /// The communicator along one axis. It ends with the mesh:
    ///
    /// ```compile_fail,E0505
    /// # fn f(mesh: trireme::Mesh) {
    /// let tensor = mesh.communicator("tensor").unwrap();
    /// drop(mesh);
    /// tensor.barrier().unwrap();
    /// # }
    /// ```
    pub fn communicator(&self, axis: &str) -> Result<Within<'_>> {
        let axis = c_text(axis, "axis")?;
        // SAFETY: a live mesh and a place for the handle, which lives as long as the mesh.
        let handle = Handle::create(|out| {
            check(unsafe {
                sys::trireme_mesh_get_axis_communicator(self.handle.get(), axis.as_ptr(), out)
            })
        })?;
        Ok(Within::of(Communicator::of_handle(handle)?))
    }

    /// A new communicator over several axes together. Called by all ranks of the mesh.
    pub fn make_communicator(&self, axes: &[&str], options: &GroupOptions) -> Result<Communicator> {
        let texts = Texts::new(axes)?;
        // SAFETY: mesh.h: reads `axis_count` names and keeps no pointer.
        let made = make_child(options, |raw, out| unsafe {
            sys::trireme_mesh_create_communicator(
                self.handle.get(),
                texts.pointers.as_ptr(),
                texts.count(),
                raw,
                out,
            )
        })?;
        Ok(made.expect("every rank is in a group of each axis"))
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        // SAFETY: destroyed once; views of its communicators borrow from it.
        unsafe { sys::trireme_mesh_destroy(self.handle.get()) }
    }
}

/// C strings and their addresses.
struct Texts {
    _texts: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Texts {
    fn new(texts: &[&str]) -> Result<Self> {
        let texts: Vec<CString> =
            texts.iter().map(|text| c_text(text, "axis")).collect::<Result<_>>()?;
        let pointers = texts.iter().map(|text| text.as_ptr()).collect();
        Ok(Texts { _texts: texts, pointers })
    }

    /// Saturates: the library refuses as many.
    fn count(&self) -> u32 {
        u32::try_from(self.pointers.len()).unwrap_or(u32::MAX)
    }
}
