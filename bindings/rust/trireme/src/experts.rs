//! Mixture of experts: rows go to the ranks that hold their experts, and come back.

use std::marker::PhantomData;
use std::ops::Range;
use std::time::Duration;

use trireme_sys as sys;

use crate::collectives::same;
use crate::communicator::Communicator;
use crate::element::Element;
use crate::error::{c_text, check, Error, Result};
use crate::handle::{option_ns, Handle};

/// Meaning of the numbers that a router gives.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertScores {
    /// Their soft-max over all experts gives the probabilities.
    #[default]
    Logits = sys::TRIREME_EXPERTS_SCORES_LOGITS,
    /// Probabilities, or other numbers that are 0 or more.
    Probabilities = sys::TRIREME_EXPERTS_SCORES_PROBABILITIES,
}

/// Rows that are dropped where more choose an expert than it takes.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertDrop {
    /// No row is dropped.
    #[default]
    None = sys::TRIREME_EXPERTS_DROP_NONE,
    /// The last rows of the leaf.
    Last = sys::TRIREME_EXPERTS_DROP_LAST,
    /// Those with the lowest weights.
    LowestWeight = sys::TRIREME_EXPERTS_DROP_LOWEST_WEIGHT,
}

/// A layer of experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsOptions<'a> {
    /// Name for messages, which ranks compare.
    pub name: &'a str,
    /// Experts of all ranks together.
    pub experts: u32,
    /// Experts that a row chooses.
    pub top_k: u32,
    /// Elements of a row.
    pub width: u64,
    /// Most rows of this rank in a pass.
    pub rows: u64,
    pub scores: ExpertScores,
    /// The weights of a row are divided by their sum.
    pub normalize: bool,
    /// Most rows of a leaf that an expert takes; 0: all.
    pub capacity: u64,
    /// Rows that are dropped; needed with a capacity.
    pub drop: ExpertDrop,
    /// Leaves of a pass over all ranks; 0: one for each rank. Bits depend on this number, and not
    /// on the number of ranks.
    pub leaves: u32,
    /// Longest time of a pass; else the communicator's timeout.
    pub timeout: Option<Duration>,
}

impl<'a> ExpertsOptions<'a> {
    pub fn new(name: &'a str, experts: u32, top_k: u32, width: u64, rows: u64) -> Self {
        ExpertsOptions {
            name,
            experts,
            top_k,
            width,
            rows,
            scores: ExpertScores::default(),
            normalize: false,
            capacity: 0,
            drop: ExpertDrop::default(),
            leaves: 0,
            timeout: None,
        }
    }

    fn raw<T: Element>(&self) -> sys::trireme_experts_options {
        let mut raw = sys::trireme_experts_options::init();
        raw.flags = if self.normalize { sys::TRIREME_EXPERTS_FLAG_NORMALIZE as u32 } else { 0 };
        raw.experts = self.experts;
        raw.top_k = self.top_k;
        raw.width = self.width;
        raw.rows = self.rows;
        raw.dtype = T::DTYPE as i32;
        raw.scores = self.scores as i32;
        raw.capacity = self.capacity;
        raw.drop = self.drop as i32;
        raw.leaves = self.leaves;
        raw.timeout_ns = option_ns(self.timeout);
        raw
    }
}

/// Sizes and counts of a layer of experts on this rank.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertsInfo {
    /// The experts of this rank; may be empty.
    pub own_experts: Range<u32>,
    /// The leaves of this rank's rows.
    pub own_leaves: Range<u32>,
    /// Leaves of all ranks.
    pub leaves: u32,
    /// Most rows that a dispatch pass brings to this rank.
    pub most_received: u64,
    /// Most slots of this rank's rows that are routed in a pass.
    pub most_sent: u64,
    /// Bytes that a routing keeps.
    pub kept_bytes: u64,
    /// Memory of the layer's tables.
    pub table_bytes: u64,
    /// Bytes of memory that the passes which move rows need here.
    pub pass_memory: u64,
    /// Bytes of it that the layer holds: none before the first such pass.
    pub held_memory: u64,
    /// Bytes of this rank that peers read in a route pass.
    pub route_bytes: u64,
    /// Route passes that have succeeded.
    pub routes: u64,
    /// Dispatch passes that have succeeded.
    pub dispatches: u64,
    /// Combine passes that have succeeded.
    pub combines: u64,
    /// Backward combine passes that have succeeded.
    pub combines_backward: u64,
    /// Backward dispatch passes that have succeeded.
    pub dispatches_backward: u64,
}

/// Rows of this rank in a route pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteInputs<'a> {
    /// A row of scores for each of them.
    pub scores: &'a [f32],
    /// A byte for each row; one that is not 0 marks a padding row. Empty: no row is padding.
    pub padding: &'a [u8],
    /// Rows of each of this rank's leaves. Empty, if it has one leaf.
    pub leaf_rows: &'a [u64],
}

/// The decisions of one route pass, which the other passes of its rows need.
#[derive(Clone, Debug)]
pub struct Routing {
    kept: Vec<u8>,
    segments: Vec<u64>,
    own_experts: Range<u32>,
    leaves: u32,
    rows: usize,
    chosen: Vec<i32>,
    weights: Vec<f32>,
    expert_rows: Vec<u64>,
    expert_dropped: Vec<u64>,
    mean_probabilities: Vec<f64>,
    info: sys::trireme_experts_route_info,
}

impl Routing {
    /// Rows of this rank.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows of experts. -1 for a slot that is not routed.
    pub fn chosen(&self) -> &[i32] {
        &self.chosen
    }

    /// Rows of weights; 0 in padding rows.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// For each expert the rows of all ranks that chose it, dropped ones among them.
    pub fn expert_rows(&self) -> &[u64] {
        &self.expert_rows
    }

    /// For each expert the rows of all ranks that it dropped.
    pub fn expert_dropped(&self) -> &[u64] {
        &self.expert_dropped
    }

    /// For each expert the mean of its probabilities over all rows that are no padding.
    pub fn mean_probabilities(&self) -> &[f64] {
        &self.mean_probabilities
    }

    /// Rows that a dispatch pass brings to this rank.
    pub fn received_rows(&self) -> usize {
        self.info.received_rows as usize
    }

    /// Slots of this rank that are routed.
    pub fn sent_rows(&self) -> usize {
        self.info.sent_rows as usize
    }

    /// Rows of all ranks that are no padding.
    pub fn real_rows(&self) -> u64 {
        self.info.real_rows
    }

    /// Bytes of this rank that peers read in a dispatch or a backward combine pass.
    pub fn dispatch_bytes(&self) -> u64 {
        self.info.dispatch_bytes
    }

    /// Bytes of this rank that peers read in a combine or a backward dispatch pass.
    pub fn combine_bytes(&self) -> u64 {
        self.info.combine_bytes
    }

    /// The received rows of an expert of this rank that come from a leaf; none of another expert or
    /// leaf.
    pub fn segment(&self, expert: u32, leaf: u32) -> Option<Range<usize>> {
        if !self.own_experts.contains(&expert) || leaf >= self.leaves {
            return None;
        }
        let at = (expert - self.own_experts.start) as usize * self.leaves as usize + leaf as usize;
        Some(self.segments[at] as usize..self.segments[at + 1] as usize)
    }
}

/// A layer of experts that lie on the ranks of a communicator, with rows of `T`: `f32`, `f64`,
/// `F16` or `Bf16`.
///
/// A step calls [`route`](Self::route), [`dispatch`](Self::dispatch) and
/// [`combine`](Self::combine). Then it calls [`combine_backward`](Self::combine_backward),
/// [`dispatch_backward`](Self::dispatch_backward) and [`route_backward`](Self::route_backward). The
/// caller computes the router's scores and the experts in between. All passes but the last are
/// collective.
#[derive(Debug)]
pub struct Experts<T: Element> {
    handle: Handle<sys::trireme_experts>,
    experts: usize,
    top_k: usize,
    width: usize,
    kept_bytes: usize,
    timeout: Option<Duration>,
    elements: PhantomData<fn(T)>,
}

impl<T: Element> Experts<T> {
    /// Makes a layer. Does not wait for the other ranks.
    pub fn new(communicator: &Communicator, options: &ExpertsOptions<'_>) -> Result<Self> {
        let name = c_text(options.name, "name")?;
        let mut raw = options.raw::<T>();
        raw.name = name.as_ptr();
        // SAFETY: experts.h: "Keeps no pointer into `options`".
        let handle = Handle::create(|out| {
            check(unsafe { sys::trireme_experts_create(communicator.handle.get(), &raw, out) })
        })?;
        let mut made = Experts {
            handle,
            experts: options.experts as usize,
            top_k: options.top_k as usize,
            width: options.width as usize,
            kept_bytes: 0,
            timeout: None,
            elements: PhantomData,
        };
        made.kept_bytes = made.info()?.kept_bytes as usize;
        Ok(made)
    }

    /// Sizes and counts so far.
    pub fn info(&self) -> Result<ExpertsInfo> {
        let mut raw = sys::trireme_experts_info::init();
        // SAFETY: a live handle and a struct of this size.
        check(unsafe { sys::trireme_experts_get_info(self.handle.get(), &mut raw) })?;
        Ok(ExpertsInfo {
            own_experts: raw.first_expert..raw.first_expert + raw.expert_count,
            own_leaves: raw.first_leaf..raw.first_leaf + raw.leaf_count,
            leaves: raw.leaves,
            most_received: raw.most_received,
            most_sent: raw.most_sent,
            kept_bytes: raw.kept_bytes,
            table_bytes: raw.table_bytes,
            pass_memory: raw.pass_memory,
            held_memory: raw.held_memory,
            route_bytes: raw.route_bytes,
            routes: raw.routes,
            dispatches: raw.dispatches,
            combines: raw.combines,
            combines_backward: raw.combines_backward,
            dispatches_backward: raw.dispatches_backward,
        })
    }

    /// The longest time of each pass from now on; else that of the options.
    pub fn set_pass_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Chooses the experts of this rank's rows.
    pub fn route(&mut self, inputs: &RouteInputs<'_>) -> Result<Routing> {
        let info = self.info()?;
        let rows = inputs.scores.len() / self.experts;
        same("scores", inputs.scores.len(), "rows of all experts", rows * self.experts)?;
        if !inputs.padding.is_empty() {
            same("padding", inputs.padding.len(), "the rows", rows)?;
        }
        let leaves = (info.own_leaves.end - info.own_leaves.start) as usize;
        if !inputs.leaf_rows.is_empty() {
            same("leaf_rows", inputs.leaf_rows.len(), "this rank's leaves", leaves)?;
        }
        let own = (info.own_experts.end - info.own_experts.start) as usize;
        let mut routing = Routing {
            kept: vec![0; self.kept_bytes],
            segments: vec![0; own * info.leaves as usize + 1],
            own_experts: info.own_experts,
            leaves: info.leaves,
            rows,
            chosen: vec![0; rows * self.top_k],
            weights: vec![0.0; rows * self.top_k],
            expert_rows: vec![0; self.experts],
            expert_dropped: vec![0; self.experts],
            mean_probabilities: vec![0.0; self.experts],
            info: sys::trireme_experts_route_info::init(),
        };
        let mut raw = sys::trireme_experts_route_arrays::init();
        raw.rows = rows as u64;
        raw.scores = inputs.scores.as_ptr();
        if !inputs.padding.is_empty() {
            raw.padding = inputs.padding.as_ptr();
        }
        if !inputs.leaf_rows.is_empty() {
            raw.leaf_rows = inputs.leaf_rows.as_ptr();
        }
        raw.kept = routing.kept.as_mut_ptr().cast();
        raw.segments = routing.segments.as_mut_ptr();
        raw.chosen = routing.chosen.as_mut_ptr();
        raw.weights = routing.weights.as_mut_ptr();
        raw.expert_rows = routing.expert_rows.as_mut_ptr();
        raw.expert_dropped = routing.expert_dropped.as_mut_ptr();
        raw.mean_probabilities = routing.mean_probabilities.as_mut_ptr();
        // SAFETY: experts.h: "no pointer is kept behind a pass"; slices of the checked lengths.
        // One thread at a time, as the borrow says.
        check(unsafe {
            sys::trireme_experts_route(
                self.handle.get(),
                &raw,
                &mut routing.info,
                &self.pass_options(),
            )
        })?;
        Ok(routing)
    }

    /// Brings routed rows to their experts: by expert, by leaf, in the order of rows.
    pub fn dispatch(&mut self, routing: &Routing, rows: &[T], received: &mut [T]) -> Result<()> {
        self.check_routing(routing)?;
        self.check_rows("rows", rows.len(), routing.rows)?;
        self.check_rows("received", received.len(), routing.received_rows())?;
        // SAFETY: as in route().
        check(unsafe {
            sys::trireme_experts_dispatch(
                self.handle.get(),
                routing.kept.as_ptr().cast(),
                rows.as_ptr().cast(),
                received.as_mut_ptr().cast(),
                &self.pass_options(),
            )
        })
    }

    /// Brings results back, and adds those of each row, each times its weight. `returned` gets the
    /// results of [`Routing::sent_rows`] slots, which a backward pass needs.
    pub fn combine(
        &mut self,
        routing: &Routing,
        results: &[T],
        returned: Option<&mut [T]>,
        output: &mut [T],
    ) -> Result<()> {
        self.check_routing(routing)?;
        self.check_rows("results", results.len(), routing.received_rows())?;
        self.check_rows("output", output.len(), routing.rows)?;
        let back = match returned {
            Some(returned) => {
                self.check_rows("returned", returned.len(), routing.sent_rows())?;
                returned.as_mut_ptr()
            }
            None => std::ptr::null_mut(),
        };
        // SAFETY: as in route().
        check(unsafe {
            sys::trireme_experts_combine(
                self.handle.get(),
                routing.kept.as_ptr().cast(),
                results.as_ptr().cast(),
                back.cast(),
                output.as_mut_ptr().cast(),
                &self.pass_options(),
            )
        })
    }

    /// Brings gradients of results to their experts, and writes those of weights.
    pub fn combine_backward(
        &mut self,
        routing: &Routing,
        d_output: &[T],
        returned: &[T],
        d_results: &mut [T],
        d_weights: &mut [f32],
    ) -> Result<()> {
        self.check_routing(routing)?;
        self.check_rows("d_output", d_output.len(), routing.rows)?;
        self.check_rows("returned", returned.len(), routing.sent_rows())?;
        self.check_rows("d_results", d_results.len(), routing.received_rows())?;
        same("d_weights", d_weights.len(), "the slots", routing.weights.len())?;
        // SAFETY: as in route().
        check(unsafe {
            sys::trireme_experts_combine_backward(
                self.handle.get(),
                routing.kept.as_ptr().cast(),
                d_output.as_ptr().cast(),
                returned.as_ptr().cast(),
                d_results.as_mut_ptr().cast(),
                d_weights.as_mut_ptr(),
                &self.pass_options(),
            )
        })
    }

    /// Brings gradients of received rows back, and adds those of each row.
    pub fn dispatch_backward(
        &mut self,
        routing: &Routing,
        d_received: &[T],
        d_rows: &mut [T],
    ) -> Result<()> {
        self.check_routing(routing)?;
        self.check_rows("d_received", d_received.len(), routing.received_rows())?;
        self.check_rows("d_rows", d_rows.len(), routing.rows)?;
        // SAFETY: as in route().
        check(unsafe {
            sys::trireme_experts_dispatch_backward(
                self.handle.get(),
                routing.kept.as_ptr().cast(),
                d_received.as_ptr().cast(),
                d_rows.as_mut_ptr().cast(),
                &self.pass_options(),
            )
        })
    }

    /// Writes the gradients of this rank's scores. `d_mean_probabilities` has a number for each
    /// expert, the same on all ranks; empty, if there is none.
    pub fn route_backward(
        &mut self,
        routing: &Routing,
        scores: &[f32],
        d_weights: &[f32],
        d_mean_probabilities: &[f64],
        d_scores: &mut [f32],
    ) -> Result<()> {
        self.check_routing(routing)?;
        let count = routing.rows * self.experts;
        same("scores", scores.len(), "the rows", count)?;
        same("d_weights", d_weights.len(), "the slots", routing.weights.len())?;
        same("d_scores", d_scores.len(), "the rows", count)?;
        let means = if d_mean_probabilities.is_empty() {
            std::ptr::null()
        } else {
            same("d_mean_probabilities", d_mean_probabilities.len(), "experts", self.experts)?;
            d_mean_probabilities.as_ptr()
        };
        // SAFETY: as in route().
        check(unsafe {
            sys::trireme_experts_route_backward(
                self.handle.get(),
                routing.kept.as_ptr().cast(),
                scores.as_ptr(),
                d_weights.as_ptr(),
                means,
                d_scores.as_mut_ptr(),
            )
        })
    }

    fn pass_options(&self) -> sys::trireme_pass_options {
        let mut raw = sys::trireme_pass_options::init();
        raw.timeout_ns = option_ns(self.timeout);
        raw
    }

    // The library reads as many bytes of a routing as one of its own has.
    fn check_routing(&self, routing: &Routing) -> Result<()> {
        if routing.kept.len() == self.kept_bytes {
            return Ok(());
        }
        Err(Error::invalid("the routing is that of another layer".to_string()))
    }

    fn check_rows(&self, what: &str, length: usize, rows: usize) -> Result<()> {
        same(what, length, "the rows", rows * self.width)
    }
}

impl<T: Element> Drop for Experts<T> {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { sys::trireme_experts_destroy(self.handle.get()) }
    }
}
