//! Random numbers that an element's place decides.

use trireme_sys as sys;

use crate::element::Real;
use crate::error::{check, Error, Result, Status};

/// Seed, draw, and the place of a part in an array of rows and columns. The default is the whole
/// array, as one row.
///
/// ```
/// use trireme::{random_uniform, RandomPart};
///
/// let default = RandomPart { seed: 1, ..RandomPart::default() };
/// let (mut whole, mut right) = ([0f32; 12], [0f32; 6]);
/// random_uniform(&mut whole, &RandomPart { columns: 6, ..default })?;
/// let part = RandomPart { columns: 3, first_column: 3, all_columns: 6, ..default };
/// random_uniform(&mut right, &part)?;
/// assert_eq!(whole[3..6], right[..3]);
/// assert_eq!(whole[9..], right[3..]);
/// # Ok::<(), trireme::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomPart {
    /// Seed of the whole training.
    pub seed: u64,
    /// Another number gives other random numbers: each layer of each step has its own.
    pub draw: u64,
    /// Row of the whole array in which the part begins.
    pub first_row: u64,
    /// Column of the whole array in which the part begins.
    pub first_column: u64,
    /// Columns of the part; 0 takes all elements for one row.
    pub columns: u64,
    /// Columns of the whole array; 0 takes those of the part.
    pub all_columns: u64,
}

impl RandomPart {
    fn raw(&self, count: usize) -> Result<sys::trireme_random_options> {
        let count = count as u64;
        let columns = if self.columns == 0 { count } else { self.columns };
        let rows = count.checked_div(columns).unwrap_or(0);
        if rows * columns != count {
            let text = format!("{count} elements are no whole rows of {columns} columns");
            return Err(Error::local(Status::InvalidArgument, text));
        }
        let mut raw = sys::trireme_random_options::init();
        raw.seed = self.seed;
        raw.draw = self.draw;
        raw.first_row = self.first_row;
        raw.rows = rows;
        raw.first_column = self.first_column;
        raw.columns = columns;
        raw.all_columns = if self.all_columns == 0 { columns } else { self.all_columns };
        Ok(raw)
    }
}

/// Fills `data` with random numbers from 0 on and below 1. Each depends on seed, draw and the
/// element's place in the whole array alone.
pub fn random_uniform<T: Real>(data: &mut [T], part: &RandomPart) -> Result<()> {
    let raw = part.raw(data.len())?;
    // SAFETY: random.h: any thread; writes rows * columns elements, which `data` has.
    check(unsafe { sys::trireme_random_uniform(&raw, data.as_mut_ptr().cast(), T::DTYPE as i32) })
}

/// Sets elements to 0 with the probability `rate`, rounded down to a multiple of 2^-32, and
/// multiplies the others by `1 / (1 - that probability)`.
/// Backward is the same call on the gradient, so there is no mask to keep.
pub fn random_dropout<T: Real>(data: &mut [T], rate: f64, part: &RandomPart) -> Result<()> {
    let raw = part.raw(data.len())?;
    let memory = data.as_mut_ptr().cast();
    // SAFETY: random.h: any thread; reads and writes rows * columns elements, in place.
    check(unsafe { sys::trireme_random_dropout(&raw, rate, memory, memory, T::DTYPE as i32) })
}

/// [`random_dropout`] of `source` into `destination`.
pub fn random_dropout_into<T: Real>(
    source: &[T],
    destination: &mut [T],
    rate: f64,
    part: &RandomPart,
) -> Result<()> {
    if source.len() != destination.len() {
        let text = format!(
            "destination has {} elements, but source has {}",
            destination.len(),
            source.len()
        );
        return Err(Error::local(Status::InvalidArgument, text));
    }
    let raw = part.raw(source.len())?;
    // SAFETY: random.h: any thread; reads and writes rows * columns elements, which both have.
    check(unsafe {
        sys::trireme_random_dropout(
            &raw,
            rate,
            source.as_ptr().cast(),
            destination.as_mut_ptr().cast(),
            T::DTYPE as i32,
        )
    })
}
