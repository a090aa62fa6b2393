//! Tensor parallelism: arrays that ranks hold in parts, and the exchanges between such forms.

use std::marker::PhantomData;
use std::ops::Range;
use std::os::raw::c_void;
use std::sync::Arc;
use std::time::Duration;

use trireme_sys as sys;

use crate::collectives::same;
use crate::communicator::Communicator;
use crate::element::Element;
use crate::error::{c_text, check, Result};
use crate::handle::{option_ns, Handle};
use crate::layer_callers::{Product, Products};

/// The provider of the matrix products of layers.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub enum Gemm<'a> {
    /// A BLAS that the library opens at run time.
    Loaded {
        /// A file, or several with commas between them; else the names in docs/tensor.md.
        library: Option<&'a str>,
        /// Threads of each product; 0: one.
        threads: u32,
    },
    /// The library's own loops, with the same bits on all machines.
    Builtin,
}

/// How ranks split extents.
#[derive(Clone, Copy, Debug, Default)]
pub struct TensorOptions<'a> {
    /// Blocks of every extent, the same on all ranks. With G, sums have the same bits for every
    /// number of ranks up to G. With 0 each rank has one block.
    pub blocks: u32,
    /// Longest time of a pass; else the communicator's timeout.
    pub timeout: Option<Duration>,
    /// The provider of the products of layers; without it there are no layers.
    pub gemm: Option<Gemm<'a>>,
    /// Whether activations between layers are split by rows.
    pub sequence: bool,
    /// Whether gathered inputs are kept for backward.
    pub keep_gathered: bool,
    /// Rows that layers multiply at a time, and exchange while they multiply the next ones. 0 leaves
    /// it to the library: see docs/tensor.md.
    pub row_tile: u32,
}

impl TensorOptions<'_> {
    /// The struct, and what it points to, live as long as `use_it` runs.
    pub(crate) fn lend<T>(
        &self,
        products: Option<&Arc<Products>>,
        use_it: impl FnOnce(&sys::trireme_tensor_options) -> Result<T>,
    ) -> Result<T> {
        let mut raw = sys::trireme_tensor_options::init();
        raw.blocks = self.blocks;
        raw.row_tile = self.row_tile;
        raw.timeout_ns = option_ns(self.timeout);
        if self.sequence {
            raw.flags |= sys::TRIREME_TENSOR_FLAG_SEQUENCE as u32;
        }
        if self.keep_gathered {
            raw.flags |= sys::TRIREME_TENSOR_FLAG_KEEP_GATHERED as u32;
        }
        let mut gemm = sys::trireme_gemm_options::init();
        let mut library = None;
        match self.gemm {
            None => {}
            Some(Gemm::Builtin) => gemm.kind = sys::TRIREME_GEMM_KIND_BUILTIN,
            Some(Gemm::Loaded { library: name, threads }) => {
                gemm.kind = sys::TRIREME_GEMM_KIND_LOADED;
                gemm.threads = threads;
                library = name.map(|name| c_text(name, "library")).transpose()?;
            }
        }
        if let Some(name) = &library {
            gemm.library = name.as_ptr();
        }
        if let Some(products) = products {
            products.put(&mut gemm);
        }
        if self.gemm.is_some() || products.is_some() {
            raw.gemm = &gemm;
        }
        use_it(&raw)
    }
}

/// Attention heads of one rank.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads; may be empty.
    pub heads: Range<u64>,
    /// The key/value heads that these use.
    pub kv_heads: Range<u64>,
    /// Whether another rank holds one of these key/value heads, too.
    pub kv_shared: bool,
}

/// How the ranks of a communicator split the layers of a model between them.
///
/// Every extent (rows, columns, heads) is cut into blocks, and each rank holds neighbouring ones.
#[derive(Debug)]
pub struct Tensor {
    pub(crate) handle: Handle<sys::trireme_tensor>,
    rank: i32,
    /// Activations between layers are split by rows.
    pub(crate) sequence: bool,
    /// The library reaches them inside passes of layers only, which hold them, too.
    pub(crate) products: Option<Arc<Products>>,
}

impl Tensor {
    /// Makes a tensor object. Does not wait for the other ranks.
    pub fn new(communicator: &Communicator, options: &TensorOptions<'_>) -> Result<Self> {
        Self::create(communicator, options, None)
    }

    /// Makes a tensor object whose products a closure computes; `options.gemm` must be `None`. An
    /// error or a panic of it fails the pass on all ranks with `Status::Callback`; its own rank gets
    /// the text.
    pub fn with_products(
        communicator: &Communicator,
        options: &TensorOptions<'_>,
        multiply: impl FnMut(&mut Product<'_>) -> std::result::Result<(), String> + Send + 'static,
    ) -> Result<Self> {
        same("providers in options.gemm", options.gemm.iter().count(), "with_products", 0)?;
        Self::create(communicator, options, Some(Products::new(Box::new(multiply))))
    }

    fn create(
        communicator: &Communicator,
        options: &TensorOptions<'_>,
        products: Option<Arc<Products>>,
    ) -> Result<Self> {
        // SAFETY: tensor.h: "Keeps no pointer into `options`, but for user_data", which is NULL or
        // lives as long as the tensor object and its layers.
        let handle = options.lend(products.as_ref(), |raw| {
            Handle::create(|out| {
                check(unsafe { sys::trireme_tensor_create(communicator.handle.get(), raw, out) })
            })
        })?;
        Ok(Tensor { handle, rank: communicator.rank(), sequence: options.sequence, products })
    }

    pub(crate) fn of_handle(
        handle: Handle<sys::trireme_tensor>,
        rank: i32,
        sequence: bool,
        products: Option<Arc<Products>>,
    ) -> Self {
        Tensor { handle, rank, sequence, products }
    }

    pub(crate) fn raw(&self) -> *mut sys::trireme_tensor {
        self.handle.get()
    }

    fn info(&self) -> Result<sys::trireme_tensor_info> {
        let mut info = sys::trireme_tensor_info::init();
        // SAFETY: a live handle and a struct of this size.
        check(unsafe { sys::trireme_tensor_get_info(self.handle.get(), &mut info) })?;
        Ok(info)
    }

    /// Blocks of every extent.
    pub fn blocks(&self) -> Result<u32> {
        Ok(self.info()?.blocks)
    }

    /// The blocks of this rank.
    pub fn own_blocks(&self) -> Result<Range<u32>> {
        let info = self.info()?;
        Ok(info.first_block..info.first_block + info.block_count)
    }

    /// Regions that are not dropped.
    pub fn region_count(&self) -> Result<u32> {
        Ok(self.info()?.region_count)
    }

    /// The elements of an extent that this rank holds.
    pub fn range(&self, extent: u64) -> Result<Range<u64>> {
        self.range_of(extent, self.rank)
    }

    /// The elements of an extent that a rank holds.
    pub fn range_of(&self, extent: u64, rank: i32) -> Result<Range<u64>> {
        let (mut first, mut count) = (0, 0);
        // SAFETY: a live handle and places for two numbers.
        check(unsafe {
            sys::trireme_tensor_range(self.handle.get(), extent, rank, &mut first, &mut count)
        })?;
        Ok(first..first + count)
    }

    /// The elements of an extent that a block holds, of any rank.
    pub fn block(&self, extent: u64, block: u32) -> Result<Range<u64>> {
        let (mut first, mut count) = (0, 0);
        // SAFETY: a live handle and places for two numbers.
        check(unsafe {
            sys::trireme_tensor_block(self.handle.get(), extent, block, &mut first, &mut count)
        })?;
        Ok(first..first + count)
    }

    /// The attention heads of this rank. `kv_heads` divides `heads`.
    pub fn heads(&self, heads: u64, kv_heads: u64) -> Result<Heads> {
        self.heads_of(heads, kv_heads, self.rank)
    }

    /// The attention heads of a rank.
    pub fn heads_of(&self, heads: u64, kv_heads: u64, rank: i32) -> Result<Heads> {
        let mut info = sys::trireme_head_info::init();
        // SAFETY: a live handle and a struct of this size.
        check(unsafe {
            sys::trireme_tensor_heads(self.handle.get(), heads, kv_heads, rank, &mut info)
        })?;
        Ok(Heads {
            heads: info.first_head..info.first_head + info.head_count,
            kv_heads: info.first_kv_head..info.first_kv_head + info.kv_head_count,
            kv_shared: info.kv_shared != 0,
        })
    }

    /// Makes a region for arrays of `T`.
    pub fn region<T: Element>(&self, options: &RegionOptions<'_>) -> Result<Region<T>> {
        let name = c_text(options.name, "name")?;
        let mut raw = sys::trireme_region_options::init();
        raw.name = name.as_ptr();
        raw.kind = options.kind as i32;
        raw.dimension = options.dimension as i32;
        raw.rows = options.rows;
        raw.columns = options.columns;
        raw.dtype = T::DTYPE as i32;
        raw.parts = options.parts;
        raw.row_unit = options.row_unit;
        raw.column_unit = options.column_unit;
        // SAFETY: tensor.h: "Keeps no pointer into `options`".
        let handle = Handle::create(|out| {
            check(unsafe { sys::trireme_region_create(self.handle.get(), &raw, out) })
        })?;
        Ok(Region { handle, elements: PhantomData })
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: destroyed once. Regions live on.
        unsafe { sys::trireme_tensor_destroy(self.handle.get()) }
    }
}

/// How the array of a region changes its form.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// Whole to shared. Forward: nothing moves. Backward: the sum of all ranks.
    Copy = sys::TRIREME_REGION_KIND_COPY,
    /// Partial to whole. Forward: the sum of all ranks. Backward: nothing moves.
    Reduce = sys::TRIREME_REGION_KIND_REDUCE,
    /// Split to whole. Forward: all parts. Backward: this rank's part.
    Gather = sys::TRIREME_REGION_KIND_GATHER,
    /// Split to shared. Forward: all parts. Backward: this rank's part of the sum.
    GatherSum = sys::TRIREME_REGION_KIND_GATHER_SUM,
    /// Whole to split. Forward: this rank's part. Backward: all parts.
    Scatter = sys::TRIREME_REGION_KIND_SCATTER,
    /// Partial to split. Forward: this rank's part of the sum. Backward: all parts.
    ReduceScatter = sys::TRIREME_REGION_KIND_REDUCE_SCATTER,
    /// Split along one dimension to split along the other one, in both directions.
    Exchange = sys::TRIREME_REGION_KIND_EXCHANGE,
}

/// The dimension along which the split form of a region is cut.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegionDimension {
    /// For kinds without a split form.
    #[default]
    None = sys::TRIREME_REGION_DIMENSION_NONE,
    Rows = sys::TRIREME_REGION_DIMENSION_ROWS,
    Columns = sys::TRIREME_REGION_DIMENSION_COLUMNS,
}

/// One region.
#[derive(Clone, Copy, Debug)]
pub struct RegionOptions<'a> {
    /// Not empty, and no other region's.
    pub name: &'a str,
    pub kind: RegionKind,
    /// Of the split form, if the kind has one.
    pub dimension: RegionDimension,
    /// Rows of the whole array.
    pub rows: u64,
    /// Columns of the whole array.
    pub columns: u64,
    /// Summands of a sum of all ranks together; 0: one for each block.
    pub parts: u32,
    /// Rows that stay on one rank together, such as those of an attention head; 0: one.
    pub row_unit: u64,
    /// The same for columns.
    pub column_unit: u64,
}

impl<'a> RegionOptions<'a> {
    pub fn new(name: &'a str, kind: RegionKind, rows: u64, columns: u64) -> Self {
        let dimension = RegionDimension::None;
        RegionOptions {
            name,
            kind,
            dimension,
            rows,
            columns,
            parts: 0,
            row_unit: 0,
            column_unit: 0,
        }
    }

    /// The same with a dimension.
    pub fn along(self, dimension: RegionDimension) -> Self {
        RegionOptions { dimension, ..self }
    }
}

/// Sizes and counts of a region on this rank.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// Forward passes that have succeeded.
    pub forward_passes: u64,
    /// Backward passes that have succeeded.
    pub backward_passes: u64,
    /// Elements of each part of a forward pass, and of the result of a backward pass.
    pub input_count: usize,
    /// Elements of the result of a forward pass, and of each part of a backward pass.
    pub output_count: usize,
    /// Arrays that a forward pass takes.
    pub forward_parts: u32,
    /// Arrays that a backward pass takes.
    pub backward_parts: u32,
    /// Bytes of this rank that peers read in a forward pass.
    pub forward_bytes: u64,
    /// Bytes of this rank that peers read in a backward pass.
    pub backward_bytes: u64,
}

type Call = unsafe extern "C" fn(
    *mut sys::trireme_region,
    *const *const c_void,
    u32,
    *mut c_void,
    *const sys::trireme_pass_options,
) -> sys::trireme_status;

/// One place of a model where an array of `T` changes its form.
#[derive(Debug)]
pub struct Region<T: Element> {
    handle: Handle<sys::trireme_region>,
    elements: PhantomData<fn(T)>,
}

impl<T: Element> Region<T> {
    /// Sizes and counts so far.
    pub fn info(&mut self) -> Result<RegionInfo> {
        let mut raw = sys::trireme_region_info::init();
        // SAFETY: tensor.h: one thread at a time, as the borrow says; a struct of this size.
        check(unsafe { sys::trireme_region_get_info(self.handle.get(), &mut raw) })?;
        Ok(RegionInfo {
            forward_passes: raw.forward_passes,
            backward_passes: raw.backward_passes,
            input_count: raw.input_count as usize,
            output_count: raw.output_count as usize,
            forward_parts: raw.forward_parts,
            backward_parts: raw.backward_parts,
            forward_bytes: raw.forward_bytes,
            backward_bytes: raw.backward_bytes,
        })
    }

    /// Converts an array from the region's first form to its second one. Each summand of this rank
    /// is one of `parts`; without a sum there is one.
    pub fn forward(&mut self, parts: &[&[T]], output: &mut [T]) -> Result<()> {
        self.forward_within(parts, output, None)
    }

    /// The same with a deadline of its own.
    pub fn forward_within(
        &mut self,
        parts: &[&[T]],
        output: &mut [T],
        timeout: Option<Duration>,
    ) -> Result<()> {
        let info = self.info()?;
        let lengths = (info.input_count, info.output_count);
        self.pass(sys::trireme_region_forward, parts, output, lengths, timeout)
    }

    /// Converts a gradient from the region's second form to its first one.
    pub fn backward(&mut self, parts: &[&[T]], output: &mut [T]) -> Result<()> {
        self.backward_within(parts, output, None)
    }

    /// The same with a deadline of its own.
    pub fn backward_within(
        &mut self,
        parts: &[&[T]],
        output: &mut [T],
        timeout: Option<Duration>,
    ) -> Result<()> {
        let info = self.info()?;
        let lengths = (info.output_count, info.input_count);
        self.pass(sys::trireme_region_backward, parts, output, lengths, timeout)
    }

    fn pass(
        &mut self,
        call: Call,
        parts: &[&[T]],
        output: &mut [T],
        lengths: (usize, usize),
        timeout: Option<Duration>,
    ) -> Result<()> {
        for part in parts {
            same("a part", part.len(), "the region", lengths.0)?;
        }
        same("output", output.len(), "the region", lengths.1)?;
        let addresses: Vec<*const c_void> = parts.iter().map(|part| part.as_ptr().cast()).collect();
        let mut raw = sys::trireme_pass_options::init();
        raw.timeout_ns = option_ns(timeout);
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        // SAFETY: tensor.h: "Keeps no pointer"; the slices live, are disjoint from `output` and
        // have the lengths of the region's info. One thread at a time, as the borrow says.
        check(unsafe {
            call(self.handle.get(), addresses.as_ptr(), count, output.as_mut_ptr().cast(), &raw)
        })
    }
}

impl<T: Element> Drop for Region<T> {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { sys::trireme_region_destroy(self.handle.get()) }
    }
}
