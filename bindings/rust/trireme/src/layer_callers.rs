//! Closures of the caller in place of the library's functions: products and activations of layers.

use std::fmt;
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trireme_sys as sys;

use crate::element::{Dtype, Element};
use crate::error::{check, panic_text, Result, Status};

type Answer = std::result::Result<(), String>;

/// One matrix product: result = left * right, or result + left * right with `add`.
///
/// Matrices are row-major, with a step from row to row in elements. A transposed one lies in memory
/// as its transpose.
pub struct Product<'a> {
    raw: &'a sys::trireme_product,
}

impl fmt::Debug for Product<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, depth, columns) = (self.rows(), self.depth(), self.columns());
        f.write_fmt(format_args!("Product({rows} x {depth} x {columns})"))
    }
}

impl Product<'_> {
    /// Rows of the left factor and of the result; 1 or more.
    pub fn rows(&self) -> usize {
        self.raw.rows as usize
    }
    /// Columns of the right factor and of the result; 1 or more.
    pub fn columns(&self) -> usize {
        self.raw.columns as usize
    }
    /// Columns of the left factor and rows of the right one; 1 or more.
    pub fn depth(&self) -> usize {
        self.raw.depth as usize
    }
    pub fn left_transposed(&self) -> bool {
        self.raw.left_transposed != 0
    }
    pub fn right_transposed(&self) -> bool {
        self.raw.right_transposed != 0
    }
    pub fn left_step(&self) -> usize {
        self.raw.left_step as usize
    }
    pub fn right_step(&self) -> usize {
        self.raw.right_step as usize
    }
    /// Whether the product is added to the result. Else that begins as zeros.
    pub fn add(&self) -> bool {
        self.raw.add != 0
    }
    /// The left factor; `None` if it has another type.
    pub fn left<T: Element>(&self) -> Option<&[T]> {
        let (rows, columns) = self.lies(self.left_transposed(), self.rows(), self.depth());
        self.factor(self.raw.left, (rows - 1) * self.left_step() + columns)
    }
    /// The right factor; `None` if it has another type.
    pub fn right<T: Element>(&self) -> Option<&[T]> {
        let (rows, columns) = self.lies(self.right_transposed(), self.depth(), self.columns());
        self.factor(self.raw.right, (rows - 1) * self.right_step() + columns)
    }
    /// A row of the result; `None` if it has another type. It is `f32` for factors of 16 bits.
    pub fn result_row<T: Element>(&mut self, row: usize) -> Option<&mut [T]> {
        assert!(row < self.rows(), "row {row} of {}", self.rows());
        let narrow = [Dtype::F16 as i32, Dtype::Bf16 as i32].contains(&self.raw.dtype);
        let wanted = if narrow { Dtype::F32 as i32 } else { self.raw.dtype };
        if T::DTYPE as i32 != wanted {
            return None;
        }
        let first = self.raw.result.cast::<T>();
        // SAFETY: tensor.h: the result has so many rows of this step, and no byte in common with
        // the factors. Products::run() has set what no product is added to.
        Some(unsafe {
            slice::from_raw_parts_mut(
                first.add(row * self.raw.result_step as usize),
                self.columns(),
            )
        })
    }

    fn lies(&self, transposed: bool, rows: usize, columns: usize) -> (usize, usize) {
        if transposed {
            (columns, rows)
        } else {
            (rows, columns)
        }
    }

    fn factor<T: Element>(&self, first: *const c_void, count: usize) -> Option<&[T]> {
        // SAFETY: tensor.h: a matrix of these extents and this step, which lives for the call.
        (T::DTYPE as i32 == self.raw.dtype)
            .then(|| unsafe { slice::from_raw_parts(first.cast::<T>(), count) })
    }

    /// The library does not initialise a result that nothing is added to.
    fn clear(&mut self) {
        let size = match self.raw.dtype {
            wide if wide == Dtype::F64 as i32 => 8,
            _ => 4,
        };
        for row in 0..self.rows() {
            let first = row * self.raw.result_step as usize * size;
            // SAFETY: as in result_row(); zeros are numbers.
            unsafe {
                self.raw.result.cast::<u8>().add(first).write_bytes(0, self.columns() * size);
            }
        }
    }
}

/// One direction of an activation on this rank's columns. Rows lie one after the other.
#[derive(Debug)]
#[non_exhaustive]
pub struct ActivationCall<'a, T: Element> {
    pub rows: usize,
    /// Hidden units of this rank; may be 0.
    pub columns: usize,
    /// `columns`, or twice as many if gated: all gates, then all values.
    pub input_columns: usize,
    /// Number of the first column among those of all ranks.
    pub first_column: u64,
    /// rows * input_columns elements.
    pub input: &'a [T],
    /// Backward: rows * columns elements. Forward: none.
    pub output_gradient: &'a [T],
    /// The output, or the gradient of the input. It begins as zeros.
    pub result: &'a mut [T],
}

/// A closure, and what it said against a call.
struct Said<F: ?Sized> {
    said: Option<String>,
    closure: Box<F>,
}

impl<F: ?Sized> Said<F> {
    fn new(closure: Box<F>) -> Mutex<Self> {
        Mutex::new(Said { said: None, closure })
    }

    fn run(&mut self, call: impl FnOnce(&mut F) -> Answer) -> i32 {
        let closure = &mut *self.closure;
        let text = match catch_unwind(AssertUnwindSafe(|| call(closure))) {
            Ok(Ok(())) => return 0,
            Ok(Err(text)) => text,
            Err(payload) => format!("panicked: {}", panic_text(payload)),
        };
        self.said.get_or_insert(text);
        1
    }
}

fn open<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Multiply = dyn FnMut(&mut Product<'_>) -> Answer + Send;
type Activate<T> = dyn FnMut(&mut ActivationCall<'_, T>) -> Answer + Send;

/// The products of a tensor object, which its layers keep, too.
pub(crate) struct Products(Mutex<Said<Multiply>>);

impl fmt::Debug for Products {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Products")
    }
}

impl Products {
    pub(crate) fn new(closure: Box<Multiply>) -> Arc<Self> {
        Arc::new(Products(Said::new(closure)))
    }

    pub(crate) fn put(self: &Arc<Self>, gemm: &mut sys::trireme_gemm_options) {
        gemm.kind = sys::TRIREME_GEMM_KIND_CALLER;
        gemm.callback = Some(Self::run);
        gemm.user_data = Arc::as_ptr(self) as *mut c_void;
    }

    unsafe extern "C" fn run(product: *const sys::trireme_product, user_data: *mut c_void) -> i32 {
        // SAFETY: whoever calls a layer holds the products; the product lives for the call.
        let (products, raw) = unsafe { (&*user_data.cast::<Products>(), &*product) };
        let mut product = Product { raw };
        if !product.add() {
            product.clear();
        }
        open(&products.0).run(|multiply| multiply(&mut product))
    }
}

/// The activation of an MLP.
pub(crate) struct Activations<T: Element> {
    forward: Mutex<Said<Activate<T>>>,
    backward: Mutex<Said<Activate<T>>>,
}

impl<T: Element> fmt::Debug for Activations<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Activations")
    }
}

impl<T: Element> Activations<T> {
    pub(crate) fn new(forward: Box<Activate<T>>, backward: Box<Activate<T>>) -> Arc<Self> {
        Arc::new(Activations { forward: Said::new(forward), backward: Said::new(backward) })
    }

    pub(crate) fn put(self: &Arc<Self>, options: &mut sys::trireme_mlp_options) {
        options.forward = Some(Self::run_forward);
        options.backward = Some(Self::run_backward);
        options.user_data = Arc::as_ptr(self) as *mut c_void;
    }

    unsafe extern "C" fn run_forward(
        call: *const sys::trireme_activation_call,
        user_data: *mut c_void,
    ) -> i32 {
        // SAFETY: whoever calls the MLP holds its activation; the call lives until this returns.
        unsafe { run_activation(&(*user_data.cast::<Self>()).forward, &*call) }
    }

    unsafe extern "C" fn run_backward(
        call: *const sys::trireme_activation_call,
        user_data: *mut c_void,
    ) -> i32 {
        // SAFETY: as above.
        unsafe { run_activation(&(*user_data.cast::<Self>()).backward, &*call) }
    }
}

/// # Safety
/// `raw` is a call of the library, for elements of `T`.
unsafe fn run_activation<T: Element>(
    said: &Mutex<Said<Activate<T>>>,
    raw: &sys::trireme_activation_call,
) -> i32 {
    let (inputs, outputs) = (raw.rows * raw.input_columns, raw.rows * raw.columns);
    let forward = raw.output_gradient.is_null();
    let list = |first: *const c_void, count: u64| {
        if first.is_null() || count == 0 {
            return &[][..];
        }
        // SAFETY: layers.h: so many elements, which live for the call.
        unsafe { slice::from_raw_parts(first.cast::<T>(), count as usize) }
    };
    let count = if forward { outputs } else { inputs } as usize;
    let result = if count == 0 {
        &mut []
    } else {
        // SAFETY: layers.h: so many elements, with no byte in common with the others. Zeros are
        // elements.
        unsafe {
            raw.result.cast::<T>().write_bytes(0, count);
            slice::from_raw_parts_mut(raw.result.cast::<T>(), count)
        }
    };
    let mut call = ActivationCall {
        rows: raw.rows as usize,
        columns: raw.columns as usize,
        input_columns: raw.input_columns as usize,
        first_column: raw.first_column,
        input: list(raw.input, inputs),
        output_gradient: list(raw.output_gradient, if forward { 0 } else { outputs }),
        result,
    };
    open(said).run(|activate| activate(&mut call))
}

/// The outcome of a pass; what a closure said against it is its reason.
pub(crate) fn check_pass<T: Element>(
    status: sys::trireme_status,
    products: Option<&Arc<Products>>,
    activations: Option<&Arc<Activations<T>>>,
) -> Result<()> {
    check(status).map_err(|error| {
        let said = products
            .and_then(|products| open(&products.0).said.take())
            .or_else(|| activations.and_then(|own| open(&own.forward).said.take()))
            .or_else(|| activations.and_then(|own| open(&own.backward).said.take()));
        match said {
            Some(text) if error.status() == Status::Callback => error.because(&text),
            _ => error,
        }
    })
}
