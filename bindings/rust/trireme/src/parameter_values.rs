//! All parameters of a model by name, each in its own type.

use std::mem::size_of_val;

use crate::element::{Dtype, Real};
use crate::error::{Error, Result};
use crate::model::{Model, Parameter};

/// Where one parameter lies among the bytes of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    name: String,
    dtype: Dtype,
    first: usize,
    elements: usize,
}

impl Place {
    /// The place of a parameter behind those that were added before.
    pub(crate) fn behind(places: &[Place], parameter: &Parameter<'_>) -> Self {
        Self {
            name: parameter.name.to_owned(),
            dtype: parameter.dtype,
            first: places.last().map_or(0, Place::end),
            elements: parameter.shape.iter().product::<u64>() as usize,
        }
    }

    fn end(&self) -> usize {
        self.first + self.elements * self.dtype.size()
    }
}

/// Values of all parameters of a model, by name. Those that are tied to another have none of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterValues {
    places: Vec<Place>,
    bytes: Vec<u8>,
    given: Vec<bool>,
}

impl ParameterValues {
    fn new(places: &[Place], bytes: Vec<u8>, given: bool) -> Self {
        Self { places: places.to_vec(), bytes, given: vec![given; places.len()] }
    }

    /// Names of the parameters, in the order added.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|place| &place.name[..])
    }

    fn find<T: Real>(&self, name: &str) -> Result<usize> {
        let found = self.places.iter().position(|place| place.name == name);
        let number = found.ok_or_else(|| {
            Error::invalid(format!("the model has no parameter {:?} of its own", name))
        })?;
        let dtype = self.places[number].dtype;
        if dtype != T::DTYPE {
            let message = format!("{:?} is {}, and the value {}", name, dtype, T::DTYPE);
            return Err(Error::invalid(message));
        }
        Ok(number)
    }

    /// Keeps the elements of one parameter. `InvalidArgument` if there is none of this name and type,
    /// or it has another number of elements.
    pub fn set<T: Real>(&mut self, name: &str, values: &[T]) -> Result<()> {
        let number = self.find::<T>(name)?;
        let place = &self.places[number];
        if values.len() != place.elements {
            return Err(Error::invalid(format!(
                "{:?} has {} elements, and the value {}",
                name,
                place.elements,
                values.len()
            )));
        }
        // SAFETY: the bytes of a slice of plain numbers.
        let bytes = unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values))
        };
        self.bytes[place.first..place.end()].copy_from_slice(bytes);
        self.given[number] = true;
        Ok(())
    }

    /// The elements of one parameter. `InvalidArgument` if there is none of this name and type.
    pub fn get<T: Real>(&self, name: &str) -> Result<Vec<T>> {
        let place = &self.places[self.find::<T>(name)?];
        let mut values = vec![T::default(); place.elements];
        // SAFETY: as many bytes as both have; each pattern is a number.
        unsafe {
            let bytes = &self.bytes[place.first..place.end()];
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), values.as_mut_ptr().cast(), bytes.len());
        }
        Ok(values)
    }
}

impl Model {
    /// Room for values of all parameters, to be filled by [`ParameterValues::set`].
    pub fn parameter_values(&self) -> ParameterValues {
        let end = self.places.last().map_or(0, Place::end);
        ParameterValues::new(&self.places, vec![0; end], false)
    }

    /// As [`set_parameters`](Self::set_parameters), by name, of a model whose parameters may have
    /// different types. `InvalidArgument` if a parameter has no value; then nothing was sent.
    pub fn broadcast_parameters(
        &mut self,
        values: Option<&ParameterValues>,
        root: i32,
    ) -> Result<()> {
        if let Some(values) = values {
            if values.places != self.places {
                return Err(Error::invalid("the values are of a model with other parameters"));
            }
            if let Some(missing) = values.given.iter().position(|given| !given) {
                let name = &self.places[missing].name;
                return Err(Error::invalid(format!("there is no value for parameter {:?}", name)));
            }
        }
        self.set_parameter_bytes(values.map(|values| &values.bytes[..]), root)
    }

    /// As [`get_parameters`](Self::get_parameters), by name, each parameter in its own type.
    pub fn gather_parameters(&self) -> Result<ParameterValues> {
        Ok(ParameterValues::new(&self.places, self.get_parameter_bytes()?, true))
    }
}
