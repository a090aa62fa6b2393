//! Joining a group of ranks, watching it, and leaving it.

use std::ffi::CString;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr;
use std::time::Duration;

use trireme_sys as sys;

use crate::error::{c_text, check, copied_text, Result};
use crate::handle::{option_ns, wait_ns, Handle};
use crate::operation::OperationOptions;

/// Where buffers live.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// Memory the CPU reads.
    #[default]
    Host,
    /// Memory of the CUDA device of this number.
    Cuda(i32),
}

/// How to join. Start from [`CommunicatorOptions::new`] or
/// [`CommunicatorOptions::from_environment`].
#[derive(Clone, Debug, Default)]
pub struct CommunicatorOptions {
    /// "local://NAME" (threads of this process), "host://NAME" (processes of this host),
    /// "tcp://ADDRESS:PORT" (several hosts: docs/several-hosts.md; `TRIREME_TOKEN_FILE` names the
    /// job's secret), "mpi://" (all ranks of mpirun, which knows rank and world size: leave them 0), "env://", or "transport://NAME" for [`Communicator::over`].
    pub rendezvous: String,
    /// 0 to world size - 1; env:// reads it from the environment.
    pub rank: i32,
    /// Number of ranks; env:// reads it from the environment.
    pub world_size: i32,
    /// "local", "frames", "mpi", "gloo" with tcp://, or the one for the rendezvous.
    pub backend: Option<String>,
    /// Name in messages, at most 63 bytes; else the rendezvous.
    pub name: Option<String>,
    /// Longest any blocking call may wait; else 300 s.
    pub timeout: Option<Duration>,
    /// Where buffers live.
    pub device: Device,
    /// The log tells of a wait for a peer that lasts this long, and again whenever the time has
    /// doubled; else 10 s. `Duration::MAX` is never.
    pub stall_warning: Option<Duration>,
}

impl CommunicatorOptions {
    /// This rank of `world_size` ranks that meet at `rendezvous`.
    pub fn new(rendezvous: impl Into<String>, rank: i32, world_size: i32) -> Self {
        Self { rendezvous: rendezvous.into(), rank, world_size, ..Self::default() }
    }

    /// The rank and group that the launcher put into the environment.
    pub fn from_environment() -> Self {
        Self::new("env://", 0, 0)
    }
}

/// Counts of a communicator's work so far.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Collectives and messages that ended, well or not.
    pub operations: u64,
    /// Those that ended in a failure.
    pub failures: u64,
    /// Bytes of this rank that peers were given to read.
    pub sent_bytes: u64,
    /// Bytes of peers that this rank read.
    pub received_bytes: u64,
    /// Messages that this rank sent on connections; 0 in shared memory.
    pub sent_messages: u64,
}

/// A group of ranks that can communicate, as one rank sees it. Leaving is dropping it.
///
/// All ranks call its collectives in the same order. The first failure of an operation makes the
/// communicator fail on every rank; from then on each operation answers that failure at once.
// Send and Sync come from its handle; communicator.h and collectives.h give the right to them:
// "every function here may run on any thread concurrently with other calls on the same
// communicator".
#[derive(Debug)]
pub struct Communicator {
    pub(crate) handle: Handle<sys::trireme_communicator>,
    rank: i32,
    world_size: i32,
    /// Whether its operations take addresses of a device. So do those of its children.
    pub(crate) on_device: bool,
    /// The options of [`Communicator::with`], for every call.
    pub(crate) call: OperationOptions,
}

impl Communicator {
    /// Claims this rank's place in a group. Does not wait for the peers.
    pub fn new(options: &CommunicatorOptions) -> Result<Self> {
        let handle = Self::create(options, ptr::null())?;
        let mut joined = Self::of_handle(handle)?;
        joined.on_device = options.device != Device::Host;
        Ok(joined)
    }

    /// The handle of a new communicator; `transport` may be null and is copied.
    pub(crate) fn create(
        options: &CommunicatorOptions,
        transport: *const sys::trireme_transport,
    ) -> Result<Handle<sys::trireme_communicator>> {
        let rendezvous = c_text(&options.rendezvous, "rendezvous")?;
        let backend = optional_text(&options.backend, "backend")?;
        let name = optional_text(&options.name, "name")?;
        let mut raw = sys::trireme_communicator_options::init();
        raw.rank = options.rank;
        raw.world_size = options.world_size;
        raw.rendezvous = rendezvous.as_ptr();
        raw.backend = backend.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        raw.name = name.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        raw.transport = transport;
        raw.timeout_ns = option_ns(options.timeout);
        raw.stall_warning_ns = option_ns(options.stall_warning);
        raw.device = match options.device {
            Device::Host => sys::trireme_device { kind: sys::TRIREME_DEVICE_HOST, index: 0 },
            Device::Cuda(index) => sys::trireme_device { kind: sys::TRIREME_DEVICE_CUDA, index },
        };
        // SAFETY: communicator.h: "Keeps no pointer into `options`"; all pointers are valid.
        Handle::create(|out| check(unsafe { sys::trireme_communicator_create(&raw, out) }))
    }

    /// The communicator of a handle that the library has just made.
    pub(crate) fn of_handle(handle: Handle<sys::trireme_communicator>) -> Result<Self> {
        let call = OperationOptions::default();
        let mut joined = Self { handle, rank: 0, world_size: 0, on_device: false, call };
        // SAFETY: a live communicator and places for the numbers.
        unsafe {
            check(sys::trireme_communicator_get_rank(handle.get(), &mut joined.rank))?;
            check(sys::trireme_communicator_get_world_size(handle.get(), &mut joined.world_size))?;
        }
        Ok(joined)
    }

    /// Joins `world_size` ranks that meet at `rendezvous`, with the defaults.
    pub fn join(rendezvous: &str, rank: i32, world_size: i32) -> Result<Self> {
        Self::new(&CommunicatorOptions::new(rendezvous, rank, world_size))
    }

    /// This rank's number, 0 to world size - 1.
    pub fn rank(&self) -> i32 {
        self.rank
    }

    /// Number of ranks.
    pub fn world_size(&self) -> i32 {
        self.world_size
    }

    /// The same communicator with another deadline for its operations:
    /// `communicator.within(Duration::from_secs(1)).barrier()?`.
    pub fn within(&self, timeout: Duration) -> Within<'_> {
        self.with(OperationOptions { timeout: Some(timeout), ..self.call })
    }

    /// The same communicator with other options for its operations.
    pub fn with(&self, options: OperationOptions) -> Within<'_> {
        let (handle, rank, world_size) = (self.handle, self.rank, self.world_size);
        let view = Self { handle, rank, world_size, on_device: self.on_device, call: options };
        Within::of(view)
    }

    /// Waits until every rank has joined; `Duration::ZERO` asks without waiting. A `Timeout` names
    /// the ranks that have not joined, and the call may be made again.
    pub fn wait_ready(&self, timeout: Duration) -> Result<()> {
        // SAFETY: a live communicator.
        check(unsafe { sys::trireme_communicator_wait_ready(self.handle.get(), wait_ns(timeout)) })
    }

    /// The backend and the transport that carry the bytes, for example "local (processes)".
    pub fn backend(&self) -> Result<String> {
        // SAFETY: communicator.h: writes at most `capacity` bytes at `text`.
        copied_text(|text, capacity, length| unsafe {
            sys::trireme_communicator_get_backend(self.handle.get(), text, capacity, length)
        })
    }

    /// Makes the group fail on every rank, now; any thread, any time. Operations that run or wait
    /// end with `Aborted`. `reason` is one line for the messages of all ranks, cut after 127 bytes.
    pub fn abort(&self, reason: &str) -> Result<()> {
        let reason = c_text(&reason.replace('\0', " "), "reason")?;
        // SAFETY: a live communicator; the text lives for the call.
        check(unsafe { sys::trireme_communicator_abort(self.handle.get(), reason.as_ptr()) })
    }

    /// Counts of the communicator's work so far.
    pub fn statistics(&self) -> Result<Statistics> {
        let mut raw = sys::trireme_communicator_statistics::init();
        // SAFETY: communicator.h: filled up to its own struct_size.
        check(unsafe { sys::trireme_communicator_get_statistics(self.handle.get(), &mut raw) })?;
        Ok(Statistics {
            operations: raw.operations,
            failures: raw.failures,
            sent_bytes: raw.sent_bytes,
            received_bytes: raw.received_bytes,
            sent_messages: raw.sent_messages,
        })
    }

    /// The last 2,048 operations of this rank, oldest first, one line of JSON each; also while
    /// operations run and after a failure.
    pub fn flight_record(&self) -> Result<String> {
        // SAFETY: communicator.h: writes at most `capacity` bytes at `text`.
        copied_text(|text, capacity, length| unsafe {
            sys::trireme_communicator_get_flight_record(self.handle.get(), text, capacity, length)
        })
    }

    /// The last calls of each rank, as far as this rank can see them: one line of JSON for each
    /// rank. Works while operations run and after a failure.
    pub fn last_calls(&self) -> Result<String> {
        // SAFETY: communicator.h: writes at most `capacity` bytes at `text`.
        copied_text(|text, capacity, length| unsafe {
            sys::trireme_communicator_get_last_calls(self.handle.get(), text, capacity, length)
        })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // SAFETY: destroyed once. Requests, buffers and models made from it keep what they need.
        unsafe { sys::trireme_communicator_destroy(self.handle.get()) }
    }
}

/// A communicator that is borrowed: with other options or from a mesh; see
/// [`Communicator::within`], [`Communicator::with`] and
/// [`Mesh::communicator`](crate::Mesh::communicator).
#[derive(Debug)]
pub struct Within<'a> {
    // Never dropped: the communicator is destroyed by the one it is borrowed from.
    view: ManuallyDrop<Communicator>,
    communicator: PhantomData<&'a Communicator>,
}

impl Within<'_> {
    /// A view whose owner outlives it, as the caller sees to by the lifetime.
    pub(crate) fn of(view: Communicator) -> Self {
        Within { view: ManuallyDrop::new(view), communicator: PhantomData }
    }
}

impl Deref for Within<'_> {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        &self.view
    }
}

pub(crate) fn optional_text(text: &Option<String>, what: &str) -> Result<Option<CString>> {
    text.as_ref().map(|text| c_text(text, what)).transpose()
}
