//! Element types and reductions.

use std::fmt;

use trireme_sys as sys;

use crate::error::{static_text, Error, Result, Status};

/// Type of the elements of a buffer.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    I8 = sys::TRIREME_DTYPE_I8,
    U8 = sys::TRIREME_DTYPE_U8,
    I16 = sys::TRIREME_DTYPE_I16,
    U16 = sys::TRIREME_DTYPE_U16,
    I32 = sys::TRIREME_DTYPE_I32,
    U32 = sys::TRIREME_DTYPE_U32,
    I64 = sys::TRIREME_DTYPE_I64,
    U64 = sys::TRIREME_DTYPE_U64,
    /// IEEE binary16; accumulated in f32.
    F16 = sys::TRIREME_DTYPE_F16,
    /// bfloat16; accumulated in f32.
    Bf16 = sys::TRIREME_DTYPE_BF16,
    F32 = sys::TRIREME_DTYPE_F32,
    F64 = sys::TRIREME_DTYPE_F64,
    /// OCP 8-bit float without infinities; accumulated in f32.
    F8E4m3 = sys::TRIREME_DTYPE_F8E4M3,
    /// OCP 8-bit float with infinities; accumulated in f32.
    F8E5m2 = sys::TRIREME_DTYPE_F8E5M2,
    /// One byte, 0 or 1.
    Bool8 = sys::TRIREME_DTYPE_BOOL,
    /// One byte that is moved and never reduced.
    Byte = sys::TRIREME_DTYPE_BYTES,
}

impl Dtype {
    const ALL: [Dtype; 16] = [
        Dtype::I8,
        Dtype::U8,
        Dtype::I16,
        Dtype::U16,
        Dtype::I32,
        Dtype::U32,
        Dtype::I64,
        Dtype::U64,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F32,
        Dtype::F64,
        Dtype::F8E4m3,
        Dtype::F8E5m2,
        Dtype::Bool8,
        Dtype::Byte,
    ];

    pub(crate) fn from_code(code: sys::trireme_dtype) -> Result<Self> {
        Self::ALL.into_iter().find(|dtype| *dtype as i32 == code).ok_or_else(|| {
            Error::local(Status::Unsupported, format!("dtype {code} is newer than this crate"))
        })
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        // SAFETY: types.h: cannot fail, any value, any thread.
        unsafe { sys::trireme_dtype_bytes(self as i32) as usize }
    }

    /// The name, for example "bf16".
    pub fn name(self) -> &'static str {
        // SAFETY: types.h: a string that lives as long as the library, for any value.
        unsafe { static_text(sys::trireme_dtype_name(self as i32)) }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How contributions of ranks become one value. They are combined in the order of ranks.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduction {
    Sum,
    /// Sum, then division by the world size; integers truncate toward zero.
    Average,
    Product,
    /// A NaN of any rank makes the result NaN.
    Min,
    /// A NaN of any rank makes the result NaN.
    Max,
    /// Bitwise and; integers and bool.
    Band,
    /// Bitwise or; integers and bool.
    Bor,
    /// Bitwise exclusive or; integers and bool.
    Bxor,
    /// Sum, then multiplication by the factor, which all ranks give alike; floating point.
    ScaledSum(f64),
}

impl Reduction {
    pub(crate) fn code(self) -> sys::trireme_reduction {
        match self {
            Reduction::Sum => sys::TRIREME_REDUCTION_SUM,
            Reduction::Average => sys::TRIREME_REDUCTION_AVERAGE,
            Reduction::Product => sys::TRIREME_REDUCTION_PRODUCT,
            Reduction::Min => sys::TRIREME_REDUCTION_MIN,
            Reduction::Max => sys::TRIREME_REDUCTION_MAX,
            Reduction::Band => sys::TRIREME_REDUCTION_BAND,
            Reduction::Bor => sys::TRIREME_REDUCTION_BOR,
            Reduction::Bxor => sys::TRIREME_REDUCTION_BXOR,
            Reduction::ScaledSum(_) => sys::TRIREME_REDUCTION_SCALED_SUM,
        }
    }

    pub(crate) fn scale(self) -> f64 {
        match self {
            Reduction::ScaledSum(scale) => scale,
            _ => 0.0,
        }
    }

    /// The name, for example "average".
    pub fn name(self) -> &'static str {
        // SAFETY: types.h: a string that lives as long as the library, for any value.
        unsafe { static_text(sys::trireme_reduction_name(self.code())) }
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// A type that ranks can exchange: plain numbers, where any bytes are a value. Sealed, because
/// the library writes whatever its peers sent.
pub trait Element:
    sealed::Sealed + Copy + Default + fmt::Debug + PartialEq + Send + Sync + 'static
{
    /// The library's name for it.
    const DTYPE: Dtype;
}

/// A type that parameters of a model can have.
pub trait Real: Element {
    /// The type of their gradients and of their update rule's state: 16 bits are too few for sums.
    type Gradient: Real;
}

macro_rules! elements {
    ($($kind:ty: $dtype:ident,)*) => {$(
        impl sealed::Sealed for $kind {}
        impl Element for $kind {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}

macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident($kind:ty);)*) => {
        $($(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $kind);)*
        elements! { $($name: $name,)* }
    };
}

bits! {
    /// The bits of an IEEE binary16 number.
    F16(u16);
    /// The bits of a bfloat16 number.
    Bf16(u16);
    /// The bits of an OCP 8-bit float without infinities.
    F8E4m3(u8);
    /// The bits of an OCP 8-bit float with infinities.
    F8E5m2(u8);
    /// A truth value, 0 or 1. No `bool`, for which other bytes would be undefined behaviour.
    Bool8(u8);
    /// A byte that is moved and never reduced. A `u8` is a number.
    Byte(u8);
}

elements! {
    i8: I8, u8: U8, i16: I16, u16: U16, i32: I32, u32: U32, i64: I64, u64: U64, f32: F32, f64: F64,
}

impl Real for f32 {
    type Gradient = f32;
}
impl Real for f64 {
    type Gradient = f64;
}
impl Real for F16 {
    type Gradient = f32;
}
impl Real for Bf16 {
    type Gradient = f32;
}
