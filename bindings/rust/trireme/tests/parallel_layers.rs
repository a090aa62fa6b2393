//! Layers by the names of other libraries: attention trains against differences of a plain loss.

mod support;

use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::Mutex;

use support::{fails, ranks};
use trireme::{
    AttentionCore, AttentionKept, AttentionShape, AttentionWeights, ColumnParallelLinear, Gemm,
    LinearOptions, ParallelAttention, ParallelAttentionOptions, ParallelMode, RowParallelLinear,
    Status, Tensor, TensorOptions,
};

const ROWS: usize = 3;
const WIDTH: usize = 8;
const HEADS: usize = 4;
const HEAD: usize = WIDTH / HEADS;
const STEPS: usize = 3;
const RATE: f64 = 0.5;

fn numbers(count: usize, salt: usize) -> Vec<f64> {
    (0..count).map(|i| (((i * 37 + salt * 11) % 29) as f64 - 14.0) / 32.0).collect()
}

fn first_weights() -> [Vec<f64>; 2] {
    [numbers(3 * WIDTH * WIDTH, 3), numbers(WIDTH * WIDTH, 4)]
}

/// The weights of the positions up to `row`. A row of `qkv` has three parts of `own` numbers.
fn chances(qkv: &[f64], own: usize, head: usize, row: usize) -> Vec<f64> {
    let scores: Vec<f64> = (0..=row)
        .map(|other| {
            let product: f64 = (0..HEAD)
                .map(|i| {
                    let at = head * HEAD + i;
                    qkv[row * 3 * own + at] * qkv[other * 3 * own + own + at]
                })
                .sum();
            (product / (HEAD as f64).sqrt()).exp()
        })
        .collect();
    let sum: f64 = scores.iter().sum();
    scores.iter().map(|score| score / sum).collect()
}

fn mix(qkv: &[f64], own: usize, mixed: &mut [f64]) {
    for row in 0..ROWS {
        for at in 0..own {
            let chances = chances(qkv, own, at / HEAD, row);
            mixed[row * own + at] =
                (0..=row).map(|other| chances[other] * qkv[other * 3 * own + 2 * own + at]).sum();
        }
    }
}

struct Causal;

impl AttentionCore<f64> for Causal {
    fn forward(&mut self, shape: &AttentionShape, qkv: &[f64], mixed: &mut [f64]) {
        assert_eq!((shape.rows, shape.head_width), (ROWS, HEAD));
        mix(qkv, mixed.len() / ROWS, mixed);
    }

    fn backward(&mut self, _: &AttentionShape, qkv: &[f64], dy: &[f64], to: &mut [f64]) {
        let own = dy.len() / ROWS;
        to.fill(0.0);
        for head in 0..own / HEAD {
            for row in 0..ROWS {
                let chances = chances(qkv, own, head, row);
                let places = head * HEAD..(head + 1) * HEAD;
                let slopes: Vec<f64> = (0..=row)
                    .map(|other| {
                        let value = |at: usize| qkv[other * 3 * own + 2 * own + at];
                        places.clone().map(|at| dy[row * own + at] * value(at)).sum()
                    })
                    .collect();
                let mean: f64 = chances.iter().zip(&slopes).map(|(a, b)| a * b).sum();
                for other in 0..=row {
                    let slope = chances[other] * (slopes[other] - mean) / (HEAD as f64).sqrt();
                    for at in places.clone() {
                        to[row * 3 * own + at] += slope * qkv[other * 3 * own + own + at];
                        to[other * 3 * own + own + at] += slope * qkv[row * 3 * own + at];
                        to[other * 3 * own + 2 * own + at] += chances[other] * dy[row * own + at];
                    }
                }
            }
        }
    }
}

fn plain_loss(weights: &[Vec<f64>; 2]) -> f64 {
    let (x, slopes) = (numbers(ROWS * WIDTH, 1), numbers(ROWS * WIDTH, 2));
    let product = |x: &[f64], weight: &[f64], row: usize, j: usize| -> f64 {
        (0..WIDTH).map(|i| x[row * WIDTH + i] * weight[j * WIDTH + i]).sum()
    };
    let mut qkv = Vec::new();
    for row in 0..ROWS {
        qkv.extend((0..3 * WIDTH).map(|j| product(&x, &weights[0], row, j)));
    }
    let mut mixed = vec![0.0; ROWS * WIDTH];
    mix(&qkv, WIDTH, &mut mixed);
    (0..ROWS * WIDTH).map(|i| slopes[i] * product(&mixed, &weights[1], i / WIDTH, i % WIDTH)).sum()
}

fn plain_training() -> (Vec<f64>, [Vec<f64>; 2]) {
    let (mut weights, mut losses) = (first_weights(), Vec::new());
    for _ in 0..STEPS {
        losses.push(plain_loss(&weights));
        let mut next = weights.clone();
        for part in 0..2 {
            for i in 0..weights[part].len() {
                let value = weights[part][i];
                weights[part][i] = value + 1e-5;
                let more = plain_loss(&weights);
                weights[part][i] = value - 1e-5;
                let less = plain_loss(&weights);
                weights[part][i] = value;
                next[part][i] -= RATE * (more - less) / 2e-5;
            }
        }
        weights = next;
    }
    (losses, weights)
}

fn tensor_options() -> TensorOptions<'static> {
    TensorOptions { blocks: 4, gemm: Some(Gemm::Builtin), ..TensorOptions::default() }
}

#[test]
fn training_is_that_of_a_plain_loop() {
    let (losses, expected) = plain_training();
    let mut bits = Vec::new();
    for world_size in [1, 2, 4] {
        let found = Mutex::new(first_weights());
        let seen = ranks(world_size, |group| {
            let tensor = Tensor::new(group, &tensor_options()).unwrap();
            let options = ParallelAttentionOptions {
                name: "attention",
                width: WIDTH as u64,
                heads: HEADS as u64,
                rows: ROWS as u64,
            };
            let mut layer: ParallelAttention<f64, _> =
                ParallelAttention::new(&tensor, &options, Causal).unwrap();
            assert!(layer.mode() == ParallelMode::COLUMN | ParallelMode::ROW);
            let own: Vec<usize> = tensor.range(WIDTH as u64).unwrap().map(|i| i as usize).collect();
            assert_eq!(layer.shape().heads.start as usize * HEAD, own[0]);
            let rows = (0..3).flat_map(|part| own.iter().map(move |i| part * WIDTH + i));
            let places = [
                rows.flat_map(|row| (0..WIDTH).map(move |j| row * WIDTH + j)).collect::<Vec<_>>(),
                (0..WIDTH).flat_map(|j| own.iter().map(move |i| j * WIDTH + i)).collect(),
            ];
            let whole = first_weights();
            let part = |n: usize| places[n].iter().map(|at| whole[n][*at]).collect::<Vec<f64>>();
            let mut mine = [part(0), part(1)];
            let (x, slopes) = (numbers(ROWS * WIDTH, 1), numbers(ROWS * WIDTH, 2));
            let (mut y, mut dx) = (x.clone(), x.clone());
            let mut kept = AttentionKept::default();
            let mut own_losses = Vec::new();
            for _ in 0..STEPS {
                let weights = AttentionWeights { qkv: &mine[0][..], out: &mine[1][..] };
                layer.forward(&x, &weights, &mut y, &mut kept).unwrap();
                own_losses.push(y.iter().zip(&slopes).map(|(a, b)| a * b).sum::<f64>());
                layer.backward_input(&slopes, &weights, &mut dx, &mut kept).unwrap();
                let mut dw = mine.clone();
                let [qkv, out] = &mut dw;
                let mut gradients = AttentionWeights { qkv: &mut qkv[..], out: &mut out[..] };
                layer.backward_weight(&x, &slopes, &mut gradients, &mut kept, false).unwrap();
                for (values, gradients) in mine.iter_mut().zip(&dw) {
                    for (value, gradient) in values.iter_mut().zip(gradients) {
                        *value -= RATE * gradient;
                    }
                }
            }
            let mut found = found.lock().unwrap();
            for n in 0..2 {
                for (place, value) in places[n].iter().zip(&mine[n]) {
                    found[n][*place] = *value;
                }
            }
            (own_losses, dx)
        });
        for one in &seen {
            assert_eq!(*one, seen[0]);
        }
        let found = found.into_inner().unwrap();
        for (one, other) in seen[0].0.iter().zip(&losses) {
            assert!((one - other).abs() < 1e-6);
        }
        for (one, other) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!((one - other).abs() < 1e-6);
        }
        bits.push((seen[0].clone(), found));
        assert!(bits[0] == bits[bits.len() - 1], "other bits on {world_size} ranks");
    }
}

#[test]
fn modes_and_refusals() {
    ranks(1, |group| {
        let options = TensorOptions { sequence: true, ..tensor_options() };
        let tensor = Tensor::new(group, &options).unwrap();
        let column = LinearOptions::column("one", 4, 4, 4);
        let row = LinearOptions::row("two", 4, 4, 4);
        let one: ColumnParallelLinear<f32> = ColumnParallelLinear::new(&tensor, &column).unwrap();
        let mut two: RowParallelLinear<f32> = RowParallelLinear::new(&tensor, &row).unwrap();
        assert!(one.mode() == ParallelMode::COLUMN | ParallelMode::SEQUENCE);
        assert!(two.mode().contains(ParallelMode::ROW));
        assert!(!two.mode().contains(ParallelMode::COLUMN));
        assert_eq!(two.info().unwrap().weight_count, 16);
        fails(ColumnParallelLinear::<f32>::new(&tensor, &row), Status::InvalidArgument);
        fails(RowParallelLinear::<f32>::new(&tensor, &column), Status::InvalidArgument);
        for (heads, width) in [(3, 6), (0, 8), (4, 6)] {
            let options = ParallelAttentionOptions { name: "a", width, heads, rows: 4 };
            let made: trireme::Result<ParallelAttention<f64, _>> =
                ParallelAttention::new(&tensor, &options, Causal);
            fails(made, Status::InvalidArgument);
        }
        let options = ParallelAttentionOptions { name: "a", width: 8, heads: 4, rows: 4 };
        let mut layer: ParallelAttention<f64, _> =
            ParallelAttention::new(&tensor, &options, Causal).unwrap();
        let (weight, mut dx) = (vec![0.0; 24 * 8], vec![0.0; 32]);
        let weights = AttentionWeights { qkv: &weight[..], out: &weight[..64] };
        let mut kept = AttentionKept::default();
        let backward = layer.backward_input(&[0.0; 32], &weights, &mut dx, &mut kept);
        fails(backward, Status::InvalidState);
    });
}

/// Panics when it is told to.
#[derive(Default)]
struct Broken(Rc<Cell<bool>>);

impl AttentionCore<f64> for Broken {
    fn forward(&mut self, shape: &AttentionShape, qkv: &[f64], mixed: &mut [f64]) {
        assert!(!self.0.get(), "a core panics, as it is told");
        Causal.forward(shape, qkv, mixed);
    }

    fn backward(&mut self, shape: &AttentionShape, qkv: &[f64], dy: &[f64], to: &mut [f64]) {
        Causal.backward(shape, qkv, dy, to);
    }
}

type Attention = ParallelAttention<f64, Broken>;

fn attention(tensor: &Tensor, name: &str, told: &Rc<Cell<bool>>) -> Attention {
    let (width, heads, rows) = (WIDTH as u64, HEADS as u64, ROWS as u64);
    let options = ParallelAttentionOptions { name, width, heads, rows };
    ParallelAttention::new(tensor, &options, Broken(told.clone())).unwrap()
}

#[test]
fn passes_come_in_their_order() {
    ranks(1, |group| {
        let tensor = Tensor::new(group, &tensor_options()).unwrap();
        let told = Rc::new(Cell::new(false));
        let mut one = attention(&tensor, "a", &told);
        let mut other = attention(&tensor, "b", &told);
        let (w, x) = (first_weights(), numbers(ROWS * WIDTH, 1));
        let weights = AttentionWeights { qkv: &w[0][..], out: &w[1][..] };
        let mut kept = AttentionKept::default();
        let forward =
            |one: &mut Attention, kept: &mut _| one.forward(&x, &weights, &mut x.clone(), kept);
        let input = |one: &mut Attention, kept: &mut _| {
            one.backward_input(&x, &weights, &mut x.clone(), kept)
        };
        let weight = |one: &mut Attention, kept: &mut _| {
            let [mut qkv, mut out] = w.clone();
            let mut to = AttentionWeights { qkv: &mut qkv[..], out: &mut out[..] };
            one.backward_weight(&x, &x, &mut to, kept, false)
        };
        let no_input = |one: &mut Attention, kept: &mut _| {
            let error = fails(input(one, kept), Status::InvalidState);
            assert_eq!(error.message(), "backward_input: forward of this micro-batch is missing");
        };
        let no_weight = |one: &mut Attention, kept: &mut _| {
            let error = fails(weight(one, kept), Status::InvalidState);
            let missing = "backward_weight: backward_input of this micro-batch is missing";
            assert_eq!(error.message(), missing);
        };
        no_input(&mut one, &mut kept);
        no_weight(&mut one, &mut kept);
        for _ in 0..2 {
            forward(&mut one, &mut kept).unwrap();
            forward(&mut one, &mut kept).unwrap();
            no_input(&mut other, &mut kept);
            no_weight(&mut one, &mut kept);
            input(&mut one, &mut kept).unwrap();
            no_input(&mut one, &mut kept);
            no_weight(&mut other, &mut kept);
            weight(&mut one, &mut kept).unwrap();
            no_input(&mut one, &mut kept);
            no_weight(&mut one, &mut kept);
        }
        forward(&mut one, &mut kept).unwrap();
        told.set(true);
        let pass = AssertUnwindSafe(|| forward(&mut one, &mut kept));
        assert!(catch_unwind(pass).is_err());
        no_input(&mut one, &mut kept);
        no_weight(&mut one, &mut kept);
    });
}

#[test]
fn abort_ends_the_wait_for_a_core_that_panicked() {
    ranks(2, |group| {
        let tensor = Tensor::new(group, &tensor_options()).unwrap();
        let panics = group.rank() == 1;
        let mut layer = attention(&tensor, "a", &Rc::new(Cell::new(panics)));
        let (x, mut y) = (numbers(ROWS * WIDTH, 1), numbers(ROWS * WIDTH, 1));
        let weight = numbers(3 * WIDTH * WIDTH / 2, 3);
        let weights = AttentionWeights { qkv: &weight[..], out: &weight[..WIDTH * WIDTH / 2] };
        let mut kept = AttentionKept::default();
        let pass = AssertUnwindSafe(|| layer.forward(&x, &weights, &mut y, &mut kept));
        match catch_unwind(pass) {
            Ok(answer) => {
                assert!(!panics);
                let error = fails(answer, Status::Aborted);
                assert!(error.message().contains("a core has panicked"), "{error}");
            }
            Err(_) => {
                assert!(panics);
                group.abort("a core has panicked").unwrap();
            }
        }
    });
}
