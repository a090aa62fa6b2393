//! Vocabularies that ranks split: embeddings, losses and gradients of plain loops, refusals.

mod support;

use std::time::Duration;

use support::{fails, ranks};
use trireme::{Bf16, Status, Tensor, TensorOptions, Vocabulary, VocabularyOptions};

const CLASSES: usize = 11;
const WIDTH: usize = 3;
const TOKENS: [i32; 5] = [0, 10, 4, 4, 7];
const IGNORED: i32 = -1;

fn tensor(group: &trireme::Communicator, blocks: u32) -> Tensor {
    Tensor::new(group, &TensorOptions { blocks, ..TensorOptions::default() }).unwrap()
}

fn logit(row: usize, column: usize) -> f64 {
    (((row * 31 + column * 17) % 23) as f64 - 11.0) / 4.0
}

/// The loss of a row, and its gradients, with smoothing of 1/8 and a z-loss of 1/100.
fn plain_row(row: usize, target: i32) -> (f64, Vec<f64>) {
    if target == IGNORED {
        return (0.0, vec![0.0; CLASSES]);
    }
    let logits: Vec<f64> = (0..CLASSES).map(|column| logit(row, column)).collect();
    let total = logits.iter().map(|value| value.exp()).sum::<f64>().ln();
    let share = 0.125 / CLASSES as f64;
    let loss = total - 0.875 * logits[target as usize] - share * logits.iter().sum::<f64>()
        + 0.01 * total * total;
    let slope = |column: usize| {
        let hit = if column == target as usize { 0.875 } else { 0.0 };
        (1.0 + 0.02 * total) * (logits[column] - total).exp() - share - hit
    };
    (loss, (0..CLASSES).map(slope).collect())
}

#[test]
fn embeddings_are_copied_and_gradients_added() {
    let value = |i: usize| if i % 4 == 0 { -0.0 } else { i as f32 };
    let weight: Vec<f32> = (0..CLASSES * WIDTH).map(value).collect();
    let gradients: Vec<f32> = (0..TOKENS.len() * WIDTH).map(|i| i as f32 / 8.0).collect();
    for world_size in 1..=3 {
        ranks(world_size, |group| {
            let tensor = tensor(group, 8);
            let options = VocabularyOptions::new("tokens", CLASSES as u64, WIDTH as u64, 8);
            let mut vocabulary = Vocabulary::<f32>::new(&tensor, &options).unwrap();
            let info = vocabulary.info().unwrap();
            assert_eq!(info.classes, tensor.range(CLASSES as u64).unwrap());
            let first = info.classes.start as usize;
            let part = &weight[first * WIDTH..info.classes.end as usize * WIDTH];
            let mut output = vec![99.0f32; TOKENS.len() * WIDTH];
            vocabulary.embed(&TOKENS, part, &mut output).unwrap();
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            for (row, &token) in TOKENS.iter().enumerate() {
                let wanted = &weight[token as usize * WIDTH..(token as usize + 1) * WIDTH];
                assert_eq!(bits(&output[row * WIDTH..(row + 1) * WIDTH]), bits(wanted));
            }
            let mut sums = vec![1.0f32; part.len()];
            vocabulary.embed_backward(&TOKENS, &gradients, &mut sums).unwrap();
            for (i, &sum) in sums.iter().enumerate() {
                let of_token = |row: &usize| TOKENS[*row] as usize == first + i / WIDTH;
                let rows = (0..TOKENS.len()).filter(of_token);
                let wanted: f32 = rows.map(|row| gradients[row * WIDTH + i % WIDTH]).sum();
                assert_eq!(sum, 1.0 + wanted);
            }
        });
    }
}

#[test]
fn losses_and_gradients_are_those_of_plain_loops() {
    for world_size in [1, 2, 3, 5] {
        ranks(world_size, |group| {
            let tensor = tensor(group, 8);
            let options = VocabularyOptions {
                label_smoothing: 0.125,
                z_loss: 0.01,
                ignored_target: Some(IGNORED.into()),
                ..VocabularyOptions::new("lm head", CLASSES as u64, 0, 6)
            };
            let mut vocabulary = Vocabulary::<f64>::new(&tensor, &options).unwrap();
            let own = vocabulary.info().unwrap().classes;
            let own = own.start as usize..own.end as usize;
            // Two micro-batches are under way; the second one has an ignored row.
            let second = [3, IGNORED, 8];
            let batches: [(usize, &[i32]); 2] = [(0, &TOKENS), (5, &second)];
            let mut started = Vec::new();
            for (first, targets) in batches {
                let rows = 0..targets.len();
                let mut logits: Vec<f64> =
                    rows.flat_map(|row| own.clone().map(move |c| logit(first + row, c))).collect();
                let mut losses = vec![99.0f64; targets.len()];
                let kept = vocabulary.loss(&logits, targets, &mut losses).unwrap();
                logits.shrink_to_fit();
                started.push((first, targets, logits, losses, kept));
            }
            for (first, targets, mut logits, losses, kept) in started {
                let weights: Vec<f64> = (0..targets.len()).map(|row| 0.5 + row as f64).collect();
                vocabulary.loss_backward(&mut logits, targets, &kept, &weights).unwrap();
                for (row, &target) in targets.iter().enumerate() {
                    let (loss, slopes) = plain_row(first + row, target);
                    assert!((losses[row] - loss).abs() < 1e-12);
                    for (i, column) in own.clone().enumerate() {
                        let got = logits[row * own.len() + i];
                        assert!((got - slopes[column] * weights[row]).abs() < 1e-12);
                    }
                }
            }
        });
    }
}

#[test]
fn ranks_with_other_targets_are_a_mismatch_on_all() {
    ranks(2, |group| {
        let options = VocabularyOptions::new("x", 4, 0, 1);
        let mut vocabulary = Vocabulary::<f32>::new(&tensor(group, 0), &options).unwrap();
        let error = vocabulary.loss(&[0.0; 2], &[group.rank()], &mut [0.0f32]).unwrap_err();
        assert_eq!(error.status(), Status::Mismatch);
        assert!(error.to_string().contains("tokens #"), "{error}");
    });
}

#[test]
fn wrong_arguments_are_refused() {
    ranks(1, |group| {
        let tensor = tensor(group, 0);
        let options = VocabularyOptions::new("x", 4, 2, 2);
        let bad = VocabularyOptions { classes: 0, ..options };
        fails(Vocabulary::<f32>::new(&tensor, &bad), Status::InvalidArgument);
        let bad = VocabularyOptions { z_loss: -1.0, ..options };
        fails(Vocabulary::<f32>::new(&tensor, &bad), Status::InvalidArgument);
        fails(Vocabulary::<i32>::new(&tensor, &options), Status::Unsupported);
        let mut vocabulary = Vocabulary::<f32>::new(&tensor, &options).unwrap();
        let (mut logits, mut losses) = ([0.0f32; 8], [7.0f32; 2]);
        fails(vocabulary.loss(&logits, &[3, 4], &mut losses), Status::InvalidArgument);
        fails(vocabulary.loss(&logits, &[3], &mut losses), Status::InvalidArgument);
        fails(vocabulary.loss(&logits, &[3, 1], &mut [0.0f64; 2]), Status::InvalidArgument);
        fails(vocabulary.loss(&logits[..4], &[3, 1], &mut losses), Status::InvalidArgument);
        fails(vocabulary.embed(&[1], &[0.0; 7], &mut [0.0; 2]), Status::InvalidArgument);
        fails(vocabulary.embed(&[9], &[0.0; 8], &mut [0.0; 2]), Status::InvalidArgument);
        assert_eq!(losses, [7.0; 2]);
        let within = Some(Duration::from_secs(20));
        let kept = vocabulary.loss_within(&logits, &[3, 1], &mut losses, within).unwrap();
        let short = vocabulary.loss(&logits[..4], &[3], &mut losses[..1]).unwrap();
        let wrong = vocabulary.loss_backward::<f32>(&mut logits, &[3, 1], &short, &[]);
        fails(wrong, Status::InvalidArgument);
        vocabulary.loss_backward::<f32>(&mut logits, &[3, 1], &kept, &[]).unwrap();
        assert_eq!(logits, [0.25, 0.25, 0.25, -0.75, 0.25, -0.75, 0.25, 0.25]);
        let mut narrow = Vocabulary::<Bf16>::new(&tensor, &options).unwrap();
        let mut out = [Bf16(0); 2];
        let weight: Vec<Bf16> = (0..8).map(|i| Bf16(0x4000 + i)).collect();
        narrow.embed(&[3], &weight, &mut out).unwrap();
        assert_eq!(out, [Bf16(0x4006), Bf16(0x4007)]);
    });
}
