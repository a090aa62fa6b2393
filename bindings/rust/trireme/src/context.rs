//! Context parallelism: attention over a sequence whose positions lie on several ranks.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;
use std::time::Duration;

use trireme_sys as sys;

use crate::calls::Lent;
use crate::collectives::same;
use crate::communicator::Communicator;
use crate::element::Element;
use crate::error::{c_text, check, panic_text, Result, Status};
use crate::handle::{option_ns, Handle};

/// How chunks of a sequence lie on ranks. C is the number of ranks.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextLayout {
    /// In one stretch for each rank.
    #[default]
    Contiguous = sys::TRIREME_CONTEXT_LAYOUT_CONTIGUOUS,
    /// In stretches r and 2C-1-r of 2C: ranks have equal work in a causal attention.
    Zigzag = sys::TRIREME_CONTEXT_LAYOUT_ZIGZAG,
}

/// How keys and values come to a rank.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextMethod {
    /// Those of all ranks first.
    #[default]
    Gather = sys::TRIREME_CONTEXT_METHOD_GATHER,
    /// Those of one rank at a time, while pairs are computed.
    Ring = sys::TRIREME_CONTEXT_METHOD_RING,
}

/// Keys of a chunk pair that its queries see.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionMask {
    /// Each query sees all keys.
    Full = sys::TRIREME_ATTENTION_MASK_FULL,
    /// Both chunks are the same one. Query i sees keys 0 to i.
    Diagonal = sys::TRIREME_ATTENTION_MASK_DIAGONAL,
    /// A query sees those from `visible_first` to `visible_end`.
    Ranges = sys::TRIREME_ATTENTION_MASK_RANGES,
}

/// One attention of a model.
#[derive(Clone, Copy, Debug)]
pub struct ContextOptions<'a> {
    /// Name for messages.
    pub name: &'a str,
    /// Positions of the whole sequence.
    pub positions: u64,
    /// Chunks of the sequence: one for each rank at least, two with `Zigzag`, at most 1024. Bits
    /// depend on this number, and not on the number of ranks.
    pub chunks: u32,
    pub layout: ContextLayout,
    pub method: ContextMethod,
    /// Query heads; 1 or more.
    pub heads: u64,
    /// Key/value heads, which divide `heads`; 0: as many.
    pub kv_heads: u64,
    /// Elements of a head; 1 or more.
    pub width: u64,
    /// Factor of q k^T; 0: 1 / sqrt(width).
    pub scale: f64,
    /// No position sees a later one.
    pub causal: bool,
    /// Longest time of a pass with its closures; else the communicator's timeout.
    pub timeout: Option<Duration>,
}

impl<'a> ContextOptions<'a> {
    pub fn new(name: &'a str, positions: u64, chunks: u32, heads: u64, width: u64) -> Self {
        ContextOptions {
            name,
            positions,
            chunks,
            layout: ContextLayout::default(),
            method: ContextMethod::default(),
            heads,
            kv_heads: 0,
            width,
            scale: 0.0,
            causal: false,
            timeout: None,
        }
    }

    fn raw<T: Element>(&self) -> sys::trireme_context_options {
        let mut raw = sys::trireme_context_options::init();
        raw.flags = if self.causal { sys::TRIREME_CONTEXT_FLAG_CAUSAL as u32 } else { 0 };
        raw.positions = self.positions;
        raw.chunks = self.chunks;
        raw.layout = self.layout as i32;
        raw.method = self.method as i32;
        raw.dtype = T::DTYPE as i32;
        raw.heads = self.heads;
        raw.kv_heads = self.kv_heads;
        raw.width = self.width;
        raw.scale = self.scale;
        raw.provider = sys::TRIREME_ATTENTION_PROVIDER_BUILTIN;
        raw.timeout_ns = option_ns(self.timeout);
        raw
    }
}

/// Sizes and counts of a context on this rank.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextInfo {
    /// Chunks that this rank holds; some may be empty.
    pub own_chunks: u32,
    /// Positions of this rank.
    pub rows: u64,
    /// Elements of this rank's queries, and of its outputs.
    pub q_count: usize,
    /// Elements of this rank's keys, and of its values.
    pub kv_count: usize,
    /// Numbers that a forward pass keeps for a backward pass.
    pub kept_count: usize,
    /// Chunk pairs that this rank computes in a pass of one sequence.
    pub pairs: u64,
    /// Forward passes that have succeeded.
    pub forward_passes: u64,
    /// Backward passes that have succeeded.
    pub backward_passes: u64,
    /// Bytes of memory that a forward pass needs here.
    pub forward_memory: u64,
    /// Bytes of memory that a backward pass needs here.
    pub backward_memory: u64,
    /// Bytes that the context holds.
    pub held_memory: u64,
    /// Bytes of this rank that peers read in a forward pass.
    pub forward_bytes: u64,
    /// The same in a backward pass of one sequence.
    pub backward_bytes: u64,
}

/// One chunk pair of arrays of `T`. Rows of queries have `heads() * width()` elements, rows of keys
/// and values `kv_heads() * width()`. The formulas stand at `trireme_attention_call` of context.h.
pub struct AttentionCall<'a, T: Element> {
    raw: &'a sys::trireme_attention_call,
    elements: PhantomData<&'a [T]>,
}

impl<T: Element> fmt::Debug for AttentionCall<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pair = (self.raw.q_chunk, self.raw.kv_chunk);
        f.debug_struct("AttentionCall").field("pair", &pair).finish_non_exhaustive()
    }
}

impl<T: Element> AttentionCall<'_, T> {
    fn list<E>(&self, first: *const E, count: u64) -> &[E] {
        if first.is_null() {
            return &[];
        }
        // SAFETY: context.h: so many elements, which live until the callback returns.
        unsafe { slice::from_raw_parts(first, count as usize) }
    }
    fn q_numbers(&self) -> u64 {
        self.raw.q_count * self.raw.heads
    }
    fn kv_elements(&self) -> u64 {
        self.raw.kv_count * self.raw.kv_heads * self.raw.width
    }

    /// Keys that the queries see.
    pub fn mask(&self) -> AttentionMask {
        match self.raw.mask {
            sys::TRIREME_ATTENTION_MASK_FULL => AttentionMask::Full,
            sys::TRIREME_ATTENTION_MASK_DIAGONAL => AttentionMask::Diagonal,
            _ => AttentionMask::Ranges,
        }
    }
    /// Number of the chunk of queries.
    pub fn q_chunk(&self) -> u32 {
        self.raw.q_chunk
    }
    /// Number of the chunk of keys and values.
    pub fn kv_chunk(&self) -> u32 {
        self.raw.kv_chunk
    }
    /// First position of the queries.
    pub fn q_first(&self) -> u64 {
        self.raw.q_first
    }
    /// Queries; 1 or more.
    pub fn q_count(&self) -> usize {
        self.raw.q_count as usize
    }
    /// First position of the keys.
    pub fn kv_first(&self) -> u64 {
        self.raw.kv_first
    }
    /// Keys; 1 or more.
    pub fn kv_count(&self) -> usize {
        self.raw.kv_count as usize
    }
    /// Query heads.
    pub fn heads(&self) -> usize {
        self.raw.heads as usize
    }
    /// Key/value heads.
    pub fn kv_heads(&self) -> usize {
        self.raw.kv_heads as usize
    }
    /// Elements of a head.
    pub fn width(&self) -> usize {
        self.raw.width as usize
    }
    /// Factor of q k^T.
    pub fn scale(&self) -> f64 {
        self.raw.scale
    }
    /// For each query the number of the first key that it sees.
    pub fn visible_first(&self) -> &[u64] {
        self.list(self.raw.visible_first, self.raw.q_count)
    }
    /// For each query the number behind the last key that it sees.
    pub fn visible_end(&self) -> &[u64] {
        self.list(self.raw.visible_end, self.raw.q_count)
    }
    /// The queries.
    pub fn q(&self) -> &[T] {
        self.list(self.raw.q.cast(), self.q_numbers() * self.raw.width)
    }
    /// The keys.
    pub fn k(&self) -> &[T] {
        self.list(self.raw.k.cast(), self.kv_elements())
    }
    /// The values.
    pub fn v(&self) -> &[T] {
        self.list(self.raw.v.cast(), self.kv_elements())
    }
    /// Backward: the gradient of the attention's output; else empty, as the three below.
    pub fn d_output(&self) -> &[T] {
        self.list(self.raw.d_output.cast(), self.q_numbers() * self.raw.width)
    }
    /// The maximum over all keys, of each query and head.
    pub fn total_maximum(&self) -> &[f32] {
        self.list(self.raw.total_maximum, self.q_numbers())
    }
    /// The sum over all keys, of each query and head.
    pub fn total_sum(&self) -> &[f32] {
        self.list(self.raw.total_sum, self.q_numbers())
    }
    /// Output times its gradient, of each query and head.
    pub fn delta(&self) -> &[f32] {
        self.list(self.raw.delta, self.q_numbers())
    }
}

/// The results of a pair in a forward pass, which the closure writes. They begin as zeros.
#[derive(Debug)]
#[non_exhaustive]
pub struct ForwardPair<'a> {
    /// The output of each query and head, before it is divided by the sum.
    pub output: &'a mut [f32],
    /// The maximum of the scores; minus infinity where a query sees no key.
    pub maximum: &'a mut [f32],
    /// The sum of exponentials.
    pub sum: &'a mut [f32],
}

/// The results of a pair in a backward pass: its summands, which the closure writes. They begin as
/// zeros.
#[derive(Debug)]
#[non_exhaustive]
pub struct BackwardPair<'a> {
    pub dq: &'a mut [f32],
    pub dk: &'a mut [f32],
    pub dv: &'a mut [f32],
}

type Answer = std::result::Result<(), String>;
type Forward<T> = dyn FnMut(&AttentionCall<'_, T>, ForwardPair<'_>) -> Answer + Send;
type Backward<T> = dyn FnMut(&AttentionCall<'_, T>, BackwardPair<'_>) -> Answer + Send;

/// The caller's closures, and what one of them said.
struct Pairs<T: Element> {
    forward: Box<Forward<T>>,
    backward: Box<Backward<T>>,
    said: Option<String>,
}

impl<T: Element> Pairs<T> {
    fn keep(&mut self, answer: std::thread::Result<Answer>) -> i32 {
        let text = match answer {
            Ok(Ok(())) => return 0,
            Ok(Err(text)) => text,
            Err(payload) => format!("panicked: {}", panic_text(payload)),
        };
        self.said.get_or_insert(text);
        1
    }
}

/// Memory that a closure writes. The library does not initialise it.
///
/// # Safety
/// `first` has room for `count` numbers, which nothing else refers to.
unsafe fn written<'a>(first: *mut f32, count: u64) -> &'a mut [f32] {
    // SAFETY: as above; zeros are numbers.
    unsafe {
        first.write_bytes(0, count as usize);
        slice::from_raw_parts_mut(first, count as usize)
    }
}

unsafe extern "C" fn forward<T: Element>(
    call: *const sys::trireme_attention_call,
    user_data: *mut c_void,
) -> i32 {
    // SAFETY: called inside a pass, which has the closures to itself; the call lives for it.
    let (pairs, raw) = unsafe { (&mut *user_data.cast::<Pairs<T>>(), &*call) };
    let call = AttentionCall { raw, elements: PhantomData };
    let numbers = call.q_numbers();
    let closure = &mut pairs.forward;
    let answer = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: context.h: "Out" memory of these sizes.
        let pair = unsafe {
            ForwardPair {
                output: written(raw.output, numbers * raw.width),
                maximum: written(raw.maximum, numbers),
                sum: written(raw.sum, numbers),
            }
        };
        closure(&call, pair)
    }));
    pairs.keep(answer)
}

unsafe extern "C" fn backward<T: Element>(
    call: *const sys::trireme_attention_call,
    user_data: *mut c_void,
) -> i32 {
    // SAFETY: called inside a pass, which has the closures to itself; the call lives for it.
    let (pairs, raw) = unsafe { (&mut *user_data.cast::<Pairs<T>>(), &*call) };
    let call = AttentionCall { raw, elements: PhantomData };
    let (q, kv) = (call.q_numbers() * raw.width, call.kv_elements());
    let closure = &mut pairs.backward;
    let answer = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: context.h: "Out" memory of these sizes.
        let pair = unsafe {
            BackwardPair {
                dq: written(raw.dq, q),
                dk: written(raw.dk, kv),
                dv: written(raw.dv, kv),
            }
        };
        closure(&call, pair)
    }));
    pairs.keep(answer)
}

/// Arrays of one rank in both passes. Their lengths are those of [`ContextInfo`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionInputs<'a, T: Element> {
    pub q: &'a [T],
    pub k: &'a [T],
    pub v: &'a [T],
}

/// The results of a backward pass.
#[derive(Debug)]
pub struct AttentionGradients<'a, T: Element> {
    pub dq: &'a mut [T],
    pub dk: &'a mut [T],
    pub dv: &'a mut [T],
}

/// Options of one pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionOptions<'a> {
    /// Positions at which further sequences begin.
    pub sequence_starts: &'a [u64],
    /// Else the context's.
    pub timeout: Option<Duration>,
}

impl AttentionOptions<'_> {
    fn raw(&self) -> sys::trireme_attention_options {
        let mut raw = sys::trireme_attention_options::init();
        raw.sequence_starts = self.sequence_starts.as_ptr();
        raw.sequence_count = self.sequence_starts.len() as u64;
        raw.timeout_ns = option_ns(self.timeout);
        raw
    }
}

/// One attention of a model, whose positions lie on the ranks of a communicator. `T` is `f32`,
/// `F16` or `Bf16`.
pub struct Context<T: Element> {
    handle: Handle<sys::trireme_context>,
    /// The library reaches them inside passes only, which take `&mut self`.
    pairs: Option<Lent<Pairs<T>>>,
    elements: PhantomData<fn(T)>,
}

impl<T: Element> fmt::Debug for Context<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl<T: Element> Context<T> {
    /// Makes a context whose pairs the library computes, in plain loops. Does not wait for the
    /// other ranks.
    pub fn new(communicator: &Communicator, options: &ContextOptions<'_>) -> Result<Self> {
        Self::create(communicator, options, None)
    }

    /// Makes a context whose pairs two closures compute. An error or a panic of one fails the pass
    /// on all ranks with `Status::Callback`; its own rank gets the text.
    pub fn with_pairs(
        communicator: &Communicator,
        options: &ContextOptions<'_>,
        forward: impl FnMut(&AttentionCall<'_, T>, ForwardPair<'_>) -> Answer + Send + 'static,
        backward: impl FnMut(&AttentionCall<'_, T>, BackwardPair<'_>) -> Answer + Send + 'static,
    ) -> Result<Self> {
        let pairs = Pairs { forward: Box::new(forward), backward: Box::new(backward), said: None };
        Self::create(communicator, options, Some(Lent::new(pairs)))
    }

    fn create(
        communicator: &Communicator,
        options: &ContextOptions<'_>,
        pairs: Option<Lent<Pairs<T>>>,
    ) -> Result<Self> {
        let name = c_text(options.name, "name")?;
        let mut raw = options.raw::<T>();
        raw.name = name.as_ptr();
        let mut callbacks = sys::trireme_attention_callbacks::init();
        if let Some(pairs) = &pairs {
            callbacks.forward = Some(forward::<T>);
            callbacks.backward = Some(backward::<T>);
            callbacks.user_data = pairs.user_data();
            raw.provider = sys::TRIREME_ATTENTION_PROVIDER_CALLER;
            raw.callbacks = &callbacks;
        }
        // SAFETY: context.h: "Keeps no pointer into `options` but the callbacks and user_data",
        // which live as long as the handle.
        let handle = Handle::create(|out| {
            check(unsafe { sys::trireme_context_create(communicator.handle.get(), &raw, out) })
        })?;
        Ok(Context { handle, pairs, elements: PhantomData })
    }

    /// Sizes and counts so far.
    pub fn info(&self) -> Result<ContextInfo> {
        let mut raw = sys::trireme_context_info::init();
        // SAFETY: a live handle and a struct of this size.
        check(unsafe { sys::trireme_context_get_info(self.handle.get(), &mut raw) })?;
        Ok(ContextInfo {
            own_chunks: raw.own_chunks,
            rows: raw.rows,
            q_count: raw.q_count as usize,
            kv_count: raw.kv_count as usize,
            kept_count: raw.kept_count as usize,
            pairs: raw.pairs,
            forward_passes: raw.forward_passes,
            backward_passes: raw.backward_passes,
            forward_memory: raw.forward_memory,
            backward_memory: raw.backward_memory,
            held_memory: raw.held_memory,
            forward_bytes: raw.forward_bytes,
            backward_bytes: raw.backward_bytes,
        })
    }

    /// The positions of a rank, in the order of its rows.
    pub fn positions_of(&self, rank: i32) -> Result<Vec<u64>> {
        let mut count = 0;
        let mut found = Vec::new();
        for _ in 0..2 {
            found.resize(count as usize, 0);
            // SAFETY: a live handle, room for so many numbers, and a place for one.
            check(unsafe {
                sys::trireme_context_positions(
                    self.handle.get(),
                    rank,
                    found.as_mut_ptr(),
                    found.len() as u64,
                    &mut count,
                )
            })?;
        }
        Ok(found)
    }

    /// Computes the attention of this rank's queries over the positions of all ranks. Collective.
    /// Writes `output`, and `kept` for the backward pass.
    pub fn forward(
        &mut self,
        inputs: AttentionInputs<'_, T>,
        output: &mut [T],
        kept: &mut [f32],
        options: &AttentionOptions<'_>,
    ) -> Result<()> {
        let info = self.info()?;
        let mut raw = Self::arrays(&info, inputs)?;
        same("output", output.len(), "the context", info.q_count)?;
        same("kept", kept.len(), "the context", info.kept_count)?;
        raw.output = output.as_mut_ptr().cast();
        raw.kept = kept.as_mut_ptr();
        // SAFETY: the slices live, are disjoint where they are written, and have the lengths of
        // the info. One thread at a time, as the borrow says.
        let code = unsafe {
            sys::trireme_context_attention_forward(self.handle.get(), &raw, &options.raw())
        };
        self.outcome(code)
    }

    /// Computes the gradients of this rank's queries, keys and values. Collective. `output` and
    /// `kept` are those of the forward pass.
    pub fn backward(
        &mut self,
        inputs: AttentionInputs<'_, T>,
        output: &[T],
        kept: &[f32],
        d_output: &[T],
        gradients: AttentionGradients<'_, T>,
        options: &AttentionOptions<'_>,
    ) -> Result<()> {
        let info = self.info()?;
        let mut raw = Self::arrays(&info, inputs)?;
        for (name, found, wanted) in [
            ("output", output.len(), info.q_count),
            ("kept", kept.len(), info.kept_count),
            ("d_output", d_output.len(), info.q_count),
            ("dq", gradients.dq.len(), info.q_count),
            ("dk", gradients.dk.len(), info.kv_count),
            ("dv", gradients.dv.len(), info.kv_count),
        ] {
            same(name, found, "the context", wanted)?;
        }
        raw.output = output.as_ptr() as *mut _;
        raw.kept = kept.as_ptr() as *mut _;
        raw.d_output = d_output.as_ptr().cast();
        raw.dq = gradients.dq.as_mut_ptr().cast();
        raw.dk = gradients.dk.as_mut_ptr().cast();
        raw.dv = gradients.dv.as_mut_ptr().cast();
        // SAFETY: as above; context.h: a backward pass only reads output and kept.
        let code = unsafe {
            sys::trireme_context_attention_backward(self.handle.get(), &raw, &options.raw())
        };
        self.outcome(code)
    }

    fn arrays(
        info: &ContextInfo,
        inputs: AttentionInputs<'_, T>,
    ) -> Result<sys::trireme_attention_arrays> {
        same("q", inputs.q.len(), "the context", info.q_count)?;
        same("k", inputs.k.len(), "the context", info.kv_count)?;
        same("v", inputs.v.len(), "the context", info.kv_count)?;
        let mut raw = sys::trireme_attention_arrays::init();
        raw.q = inputs.q.as_ptr().cast();
        raw.k = inputs.k.as_ptr().cast();
        raw.v = inputs.v.as_ptr().cast();
        Ok(raw)
    }

    /// The text of a closure is the reason of its rank's failure.
    fn outcome(&mut self, code: sys::trireme_status) -> Result<()> {
        let outcome = check(code);
        let said = self.pairs.as_ref().and_then(|pairs| {
            // SAFETY: the closures live as long as this, and no pass runs: it would have the
            // borrow.
            unsafe { (*pairs.user_data().cast::<Pairs<T>>()).said.take() }
        });
        outcome.map_err(|error| match said {
            Some(text) if error.status() == Status::Callback => error.because(&text),
            _ => error,
        })
    }
}

impl<T: Element> Drop for Context<T> {
    fn drop(&mut self) {
        // SAFETY: destroyed once, before the closures.
        unsafe { sys::trireme_context_destroy(self.handle.get()) }
    }
}
