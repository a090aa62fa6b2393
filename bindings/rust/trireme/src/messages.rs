//! Messages between two ranks.

use trireme_sys as sys;

use crate::buffer::Buffer;
use crate::communicator::Communicator;
use crate::element::{Dtype, Element};
use crate::error::{check, Result};
use crate::handle::Handle;
use crate::request::{raw, Request, Storage};

/// Whose message a receive takes. A rank's number stands for that rank.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// That of this rank.
    Rank(i32),
    /// The earliest of any rank.
    Any,
}

impl From<i32> for Source {
    fn from(rank: i32) -> Self {
        Source::Rank(rank)
    }
}

impl Source {
    fn code(self) -> i32 {
        match self {
            // The library's number for any source is no rank.
            Source::Rank(rank) if rank < 0 => i32::MIN,
            Source::Rank(rank) => rank,
            Source::Any => sys::TRIREME_ANY_SOURCE,
        }
    }
}

/// The tag of the message that a receive takes. A number stands for that tag.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// The one with this tag.
    Number(u64),
    /// The earliest, whatever its tag.
    Any,
}

impl From<u64> for Tag {
    fn from(number: u64) -> Self {
        Tag::Number(number)
    }
}

/// The message that a receive or a probe has found.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageInfo {
    /// Rank that sent it.
    pub source: i32,
    /// Tag it was sent with.
    pub tag: u64,
    /// Elements.
    pub count: u64,
    /// Number of their type: a [`Dtype`] `as i32`.
    pub dtype: i32,
}

impl MessageInfo {
    pub(crate) fn of(raw: sys::trireme_message_info) -> Self {
        Self { source: raw.source, tag: raw.tag, count: raw.count, dtype: raw.dtype }
    }

    /// Whether its elements are of this type.
    pub fn is(&self, dtype: Dtype) -> bool {
        self.dtype == dtype as i32
    }
}

impl Communicator {
    /// Sends elements to rank `to`; done when the memory may be used again. Messages with one tag
    /// between two ranks arrive in order.
    pub fn send<T: Element>(&self, data: &[T], to: i32, tag: u64) -> Result<()> {
        self.run_send(data, to, tag, 0)
    }

    /// Copies elements, sends them, and does not wait for the receiver; waits only while more than
    /// 64 MiB are on their way. A rank that leaves before they were taken loses them.
    pub fn send_buffered<T: Element>(&self, data: &[T], to: i32, tag: u64) -> Result<()> {
        self.run_send(data, to, tag, sys::TRIREME_OPERATION_FLAG_BUFFERED)
    }

    /// Receives exactly `data.len()` elements from `from`: the earliest message with this tag.
    pub fn receive<T: Element>(
        &self,
        data: &mut [T],
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<()> {
        let (from, tag, options) = self.matching(from, tag);
        // SAFETY: messages.h: "Keeps no pointer"; the slice is ours alone until the call returns.
        check(unsafe {
            sys::trireme_receive(
                self.handle.get(),
                data.as_mut_ptr().cast(),
                data.len() as u64,
                T::DTYPE as i32,
                from,
                tag,
                &options,
            )
        })
    }

    /// Receives at most `data.len()` elements and tells what came. A longer message is a
    /// `Mismatch`.
    pub fn receive_message<T: Element>(
        &self,
        data: &mut [T],
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<MessageInfo> {
        let (from, tag, options) = self.matching(from, tag);
        let mut info = sys::trireme_message_info::init();
        // SAFETY: as receive; `info` is filled up to its own struct_size.
        check(unsafe {
            sys::trireme_receive_message(
                self.handle.get(),
                data.as_mut_ptr().cast(),
                data.len() as u64,
                T::DTYPE as i32,
                from,
                tag,
                &options,
                &mut info,
            )
        })?;
        Ok(MessageInfo::of(info))
    }

    /// Receives a message of any length in new memory, and tells what came.
    pub fn receive_to_buffer<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<(Buffer<T>, MessageInfo)> {
        let (from, tag, options) = self.matching(from, tag);
        let mut info = sys::trireme_message_info::init();
        // SAFETY: messages.h: keeps no pointer; places for what came and for the buffer.
        let handle = Handle::create(|out| {
            check(unsafe {
                sys::trireme_receive_to_buffer(
                    self.handle.get(),
                    T::DTYPE as i32,
                    from,
                    tag,
                    &options,
                    &mut info,
                    out,
                )
            })
        })?;
        Ok((Buffer::of_handle(handle)?, MessageInfo::of(info)))
    }

    /// Waits until a message is there that a receive would take, and leaves it there.
    pub fn probe(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<MessageInfo> {
        let (from, tag, options) = self.matching(from, tag);
        let mut info = sys::trireme_message_info::init();
        // SAFETY: messages.h: keeps no pointer; `info` is filled up to its own struct_size.
        check(unsafe { sys::trireme_probe(self.handle.get(), from, tag, &options, &mut info) })?;
        Ok(MessageInfo::of(info))
    }

    /// Sends `send` to rank `to` and receives `receive` from `from`, both at once: rings of such
    /// calls need no order.
    pub fn send_receive<T: Element>(
        &self,
        send: (&[T], i32, u64),
        receive: &mut [T],
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<()> {
        let (send, to, send_tag) = send;
        let (from, tag, options) = self.matching(from, tag);
        // SAFETY: messages.h: "Keeps no pointer"; both slices live, disjoint, of these lengths.
        check(unsafe {
            sys::trireme_send_receive(
                self.handle.get(),
                send.as_ptr().cast(),
                send.len() as u64,
                to,
                send_tag,
                receive.as_mut_ptr().cast(),
                receive.len() as u64,
                from,
                tag,
                T::DTYPE as i32,
                &options,
            )
        })
    }

    /// Starts [`send`](Self::send).
    pub fn send_start<M: Storage>(&self, data: M, to: i32, tag: u64) -> Result<Request<M>> {
        self.start(data, |data, out| {
            let (data, count) = raw(data);
            // SAFETY: see start().
            check(unsafe {
                sys::trireme_send_start(
                    self.handle.get(),
                    data,
                    count,
                    M::Item::DTYPE as i32,
                    to,
                    tag,
                    &self.options(0.0),
                    out,
                )
            })
        })
    }

    /// Starts [`receive`](Self::receive). [`Request::message`] tells what came.
    pub fn receive_start<M: Storage>(
        &self,
        data: M,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Request<M>> {
        let (from, tag, options) = self.matching(from, tag);
        self.start(data, |data, out| {
            let (data, count) = raw(data);
            let dtype = M::Item::DTYPE as i32;
            // SAFETY: see start().
            check(unsafe {
                sys::trireme_receive_start(
                    self.handle.get(),
                    data,
                    count,
                    dtype,
                    from,
                    tag,
                    &options,
                    out,
                )
            })
        })
    }

    /// Starts [`receive_message`](Self::receive_message). [`Request::message`] tells what came.
    pub fn receive_message_start<M: Storage>(
        &self,
        data: M,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Request<M>> {
        let (from, tag, options) = self.matching(from, tag);
        self.start(data, |data, out| {
            let (data, capacity) = raw(data);
            let dtype = M::Item::DTYPE as i32;
            // SAFETY: see start().
            check(unsafe {
                sys::trireme_receive_message_start(
                    self.handle.get(),
                    data,
                    capacity,
                    dtype,
                    from,
                    tag,
                    &options,
                    out,
                )
            })
        })
    }

    /// Starts [`probe`](Self::probe). [`Request::message`] tells what is there.
    pub fn probe_start(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Request<()>> {
        let (from, tag, options) = self.matching(from, tag);
        // SAFETY: see start(); there is no memory.
        self.start((), |(), out| {
            check(unsafe { sys::trireme_probe_start(self.handle.get(), from, tag, &options, out) })
        })
    }

    fn run_send<T: Element>(&self, data: &[T], to: i32, tag: u64, flags: u32) -> Result<()> {
        let mut options = self.options(0.0);
        options.flags |= flags;
        // SAFETY: messages.h: "Keeps no pointer"; the slice lives until the call returns.
        check(unsafe {
            sys::trireme_send(
                self.handle.get(),
                data.as_ptr().cast(),
                data.len() as u64,
                T::DTYPE as i32,
                to,
                tag,
                &options,
            )
        })
    }

    fn matching(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> (i32, u64, sys::trireme_operation_options) {
        let mut options = self.options(0.0);
        let tag = match tag.into() {
            Tag::Number(number) => number,
            Tag::Any => {
                options.flags |= sys::TRIREME_OPERATION_FLAG_ANY_TAG;
                0
            }
        };
        (from.into().code(), tag, options)
    }
}
