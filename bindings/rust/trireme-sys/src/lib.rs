//! The C ABI of libtrireme, name for name: constants, structs and functions of `include/trireme/`.
//!
//! The comments are those of the headers, which are the specification, ownership and thread safety
//! included; the `trireme` crate is the safe layer above. The module `abi` is generated from the
//! headers. `tests/` compares it with the library's list of exported symbols and with the layout of
//! the released structs.
#![allow(non_camel_case_types)]

#[macro_use]
mod macros;
mod abi;
pub use abi::*;
