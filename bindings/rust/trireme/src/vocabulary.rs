//! A vocabulary that tensor-parallel ranks split: embedding, and cross-entropy of logits.

use std::marker::PhantomData;
use std::ops::Range;
use std::os::raw::c_void;
use std::time::Duration;

use trireme_sys as sys;

use crate::collectives::same;
use crate::element::{Dtype, Element};
use crate::error::{c_text, check, Error, Result, Status};
use crate::handle::{option_ns, Handle};
use crate::tensor::Tensor;

/// One vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct VocabularyOptions<'a> {
    /// Name for messages, which ranks compare.
    pub name: &'a str,
    /// Classes of all ranks together.
    pub classes: u64,
    /// Elements of an embedding; may be 0 if only losses are made.
    pub width: u64,
    /// Most rows of a pass.
    pub rows: u64,
    /// Share of the target that all classes get alike, from 0 to 1.
    pub label_smoothing: f64,
    /// Factor of the square of the logarithm of the sum.
    pub z_loss: f64,
    /// Target of rows that count for nothing.
    pub ignored_target: Option<i64>,
}

impl<'a> VocabularyOptions<'a> {
    pub fn new(name: &'a str, classes: u64, width: u64, rows: u64) -> Self {
        VocabularyOptions {
            name,
            classes,
            width,
            rows,
            label_smoothing: 0.0,
            z_loss: 0.0,
            ignored_target: None,
        }
    }
}

/// Sizes of a vocabulary on this rank.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VocabularyInfo {
    /// The classes of this rank; may be empty.
    pub classes: Range<u64>,
    /// Bytes that a loss pass of the most rows keeps for its backward pass.
    pub kept_bytes: u64,
    /// Memory of the object.
    pub memory_bytes: u64,
    /// Memory that an embed pass takes at most, shared with other passes.
    pub scratch_bytes: u64,
    /// Bytes of this rank that peers read in an embed pass, at most.
    pub embed_bytes: u64,
    /// Bytes of this rank that peers read in a loss pass of the most rows.
    pub loss_bytes: u64,
}

/// The numbers that a loss pass keeps of its rows for its backward pass.
#[derive(Clone, Debug)]
pub struct KeptLosses(Vec<[f64; 2]>);

/// An embedding and a cross-entropy whose classes ranks split, with elements of `T`: `f32`, `f64`,
/// `F16` or `Bf16`.
#[derive(Debug)]
pub struct Vocabulary<T: Element> {
    handle: Handle<sys::trireme_vocabulary>,
    classes: usize,
    width: usize,
    elements: PhantomData<fn(T)>,
}

impl<T: Element> Vocabulary<T> {
    /// Makes a vocabulary. Does not wait for the other ranks.
    pub fn new(tensor: &Tensor, options: &VocabularyOptions<'_>) -> Result<Self> {
        let name = c_text(options.name, "name")?;
        let mut raw = sys::trireme_vocabulary_options::init();
        raw.name = name.as_ptr();
        raw.classes = options.classes;
        raw.width = options.width;
        raw.rows = options.rows;
        raw.dtype = T::DTYPE as i32;
        raw.label_smoothing = options.label_smoothing;
        raw.z_loss = options.z_loss;
        if let Some(target) = options.ignored_target {
            raw.flags = sys::TRIREME_VOCABULARY_FLAG_IGNORE as u32;
            raw.ignored_target = target;
        }
        // SAFETY: vocabulary.h: "Keeps no pointer into `options`".
        let handle = Handle::create(|out| {
            check(unsafe { sys::trireme_vocabulary_create(tensor.handle.get(), &raw, out) })
        })?;
        let mut made =
            Vocabulary { handle, classes: 0, width: options.width as usize, elements: PhantomData };
        let classes = made.info()?.classes;
        made.classes = (classes.end - classes.start) as usize;
        Ok(made)
    }

    /// The classes of this rank, and the planned bytes.
    pub fn info(&self) -> Result<VocabularyInfo> {
        let mut raw = sys::trireme_vocabulary_info::init();
        // SAFETY: a live handle and a struct of this size.
        check(unsafe { sys::trireme_vocabulary_get_info(self.handle.get(), &mut raw) })?;
        Ok(VocabularyInfo {
            classes: raw.first_class..raw.first_class + raw.class_count,
            kept_bytes: raw.kept_bytes,
            memory_bytes: raw.memory_bytes,
            scratch_bytes: raw.scratch_bytes,
            embed_bytes: raw.embed_bytes,
            loss_bytes: raw.loss_bytes,
        })
    }

    /// Writes the embeddings of all tokens, on every rank. `weight` has the rows of this rank.
    pub fn embed(&mut self, tokens: &[i32], weight: &[T], output: &mut [T]) -> Result<()> {
        self.embed_within(tokens, weight, output, None)
    }

    /// The same with a deadline of its own.
    pub fn embed_within(
        &mut self,
        tokens: &[i32],
        weight: &[T],
        output: &mut [T],
        timeout: Option<Duration>,
    ) -> Result<()> {
        same("weight", weight.len(), "the classes of this rank", self.classes * self.width)?;
        same("output", output.len(), "the rows", tokens.len() * self.width)?;
        let mut raw = sys::trireme_pass_options::init();
        raw.timeout_ns = option_ns(timeout);
        // SAFETY: vocabulary.h: "Keeps no pointer"; slices of the checked lengths that do not
        // overlap. One thread at a time, as the borrow says.
        check(unsafe {
            sys::trireme_vocabulary_embed(
                self.handle.get(),
                tokens.as_ptr().cast(),
                Dtype::I32 as i32,
                tokens.len() as u64,
                weight.as_ptr().cast(),
                output.as_mut_ptr().cast(),
                &raw,
            )
        })
    }

    /// Adds the gradients of embeddings to the gradient of this rank's weight.
    pub fn embed_backward(
        &mut self,
        tokens: &[i32],
        gradients: &[T],
        weight_gradient: &mut [T],
    ) -> Result<()> {
        let own = self.classes * self.width;
        same("gradients", gradients.len(), "the rows", tokens.len() * self.width)?;
        same("weight_gradient", weight_gradient.len(), "the classes of this rank", own)?;
        // SAFETY: as in embed_within().
        check(unsafe {
            sys::trireme_vocabulary_embed_backward(
                self.handle.get(),
                tokens.as_ptr().cast(),
                Dtype::I32 as i32,
                tokens.len() as u64,
                gradients.as_ptr().cast(),
                weight_gradient.as_mut_ptr().cast(),
            )
        })
    }

    /// Writes the loss of each row, on every rank. Losses are of `f64` if the logits are, else of
    /// `f32`. Returns what [`loss_backward`](Self::loss_backward) needs of these rows.
    pub fn loss<L: Element>(
        &mut self,
        logits: &[T],
        targets: &[i32],
        losses: &mut [L],
    ) -> Result<KeptLosses> {
        self.loss_within(logits, targets, losses, None)
    }

    /// The same with a deadline of its own.
    pub fn loss_within<L: Element>(
        &mut self,
        logits: &[T],
        targets: &[i32],
        losses: &mut [L],
        timeout: Option<Duration>,
    ) -> Result<KeptLosses> {
        check_loss_type::<T, L>()?;
        same("logits", logits.len(), "the rows", targets.len() * self.classes)?;
        same("losses", losses.len(), "the rows", targets.len())?;
        let mut kept = KeptLosses(vec![[0.0; 2]; targets.len()]);
        let mut raw = sys::trireme_pass_options::init();
        raw.timeout_ns = option_ns(timeout);
        // SAFETY: as in embed_within(); `kept` has TRIREME_VOCABULARY_KEPT_BYTES for each row.
        check(unsafe {
            sys::trireme_vocabulary_loss(
                self.handle.get(),
                targets.as_ptr().cast(),
                Dtype::I32 as i32,
                targets.len() as u64,
                logits.as_ptr().cast(),
                losses.as_mut_ptr().cast(),
                kept.0.as_mut_ptr().cast(),
                &raw,
            )
        })?;
        Ok(kept)
    }

    /// Writes the gradients of this rank's logits over the logits. `loss_gradients` has the weight
    /// of each row, or is empty, which means 1; for a mean it is 1 / (rows that count).
    pub fn loss_backward<L: Element>(
        &mut self,
        logits: &mut [T],
        targets: &[i32],
        kept: &KeptLosses,
        loss_gradients: &[L],
    ) -> Result<()> {
        check_loss_type::<T, L>()?;
        same("logits", logits.len(), "the rows", targets.len() * self.classes)?;
        same("kept", kept.0.len(), "the rows", targets.len())?;
        let weights: *const c_void = if loss_gradients.is_empty() {
            std::ptr::null()
        } else {
            same("loss_gradients", loss_gradients.len(), "the rows", targets.len())?;
            loss_gradients.as_ptr().cast()
        };
        let place = logits.as_mut_ptr();
        // SAFETY: as in embed_within(); the result may be the logits.
        check(unsafe {
            sys::trireme_vocabulary_loss_backward(
                self.handle.get(),
                targets.as_ptr().cast(),
                Dtype::I32 as i32,
                targets.len() as u64,
                place as *const _,
                kept.0.as_ptr().cast(),
                weights,
                place.cast(),
            )
        })
    }
}

fn check_loss_type<T: Element, L: Element>() -> Result<()> {
    let wanted = if T::DTYPE == Dtype::F64 { Dtype::F64 } else { Dtype::F32 };
    if L::DTYPE == wanted {
        return Ok(());
    }
    let text = format!("losses of {} logits are {wanted}, not {}", T::DTYPE, L::DTYPE);
    Err(Error::local(Status::InvalidArgument, text))
}

impl<T: Element> Drop for Vocabulary<T> {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { sys::trireme_vocabulary_destroy(self.handle.get()) }
    }
}
