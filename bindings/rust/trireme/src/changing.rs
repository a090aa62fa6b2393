//! Parameters that other ranks may be changing, with update in backward.

use crate::error::{Error, Result, Status};

/// The parameters that this rank must not read before its step ends. A model has such parameters
/// where it updates in backward and its ranks share one copy of them. The owner of a parameter
/// writes it once all ranks have handed in its gradient in their last pass. No call of this rank
/// comes before that.
#[derive(Debug, Default)]
pub(crate) struct Changing {
    /// By number of the parameter.
    names: Vec<Name>,
    /// Passes of this rank in a step. 0: another kind of model, or not sealed.
    passes: u32,
    /// Passes that have begun in this step.
    begun: u32,
}

#[derive(Debug)]
struct Name {
    name: String,
    /// Number of the parameter whose elements it has. A tied parameter has those of another.
    of: usize,
    frozen: bool,
    /// Its gradient of the last pass.
    handed_in: bool,
}

impl Changing {
    pub(crate) fn add(&mut self, name: &str, tied_to: Option<&str>, frozen: bool) {
        let found = tied_to.and_then(|other| self.names.iter().find(|one| one.name == other));
        let of = found.map_or(self.names.len(), |one| one.of);
        self.names.push(Name { name: name.to_owned(), of, frozen, handed_in: false });
    }

    /// The model is sealed, is of that kind, and this rank makes so many passes in a step.
    pub(crate) fn watch(&mut self, passes: u32) {
        self.passes = passes;
    }

    pub(crate) fn begin_pass(&mut self) {
        self.begun += 1;
    }

    /// The gradient of one parameter, or all that are left, may have reached the others.
    pub(crate) fn hand_in(&mut self, parameter: Option<usize>) {
        if self.passes == 0 || self.begun < self.passes {
            return;
        }
        match parameter.map(|number| self.names.get_mut(number)) {
            Some(name) => name.into_iter().for_each(|one| one.handed_in = true),
            None => self.names.iter_mut().for_each(|one| one.handed_in = true),
        }
    }

    pub(crate) fn end_step(&mut self) {
        self.begun = 0;
        self.names.iter_mut().for_each(|one| one.handed_in = false);
    }

    /// Refuses to lend a parameter that another rank may be writing.
    pub(crate) fn refuse(&self, parameter: usize) -> Result<()> {
        let of = match self.names.get(parameter) {
            Some(name) if self.passes > 0 && !name.frozen => name.of,
            _ => return Ok(()),
        };
        if self.names.iter().any(|one| one.of == of && !one.handed_in) {
            return Ok(());
        }
        let text = format!(
            "parameter {parameter} is shared with other ranks, which change it from its gradient \
             on until the step ends (update_in_backward)"
        );
        Err(Error::local(Status::InvalidState, text))
    }
}
