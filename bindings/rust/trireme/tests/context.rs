//! Attention over positions of several ranks: bits, closures, refusals.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use support::{fails, ranks};
use trireme::{
    AttentionCall, AttentionGradients, AttentionInputs, AttentionMask, AttentionOptions,
    BackwardPair, Bf16, Communicator, Context, ContextLayout, ContextMethod, ContextOptions,
    ForwardPair, Result, Status,
};

const POSITIONS: usize = 11;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const WIDTH: usize = 3;
const Q_ROW: usize = HEADS * WIDTH;
const KV_ROW: usize = KV_HEADS * WIDTH;

fn options() -> ContextOptions<'static> {
    ContextOptions {
        kv_heads: KV_HEADS as u64,
        causal: true,
        ..ContextOptions::new("layer 3", POSITIONS as u64, 8, HEADS as u64, WIDTH as u64)
    }
}

fn input(salt: usize, position: usize, column: usize) -> f32 {
    ((position * 31 + column * 7 + salt * 17) % 23) as f32 / 8.0 - 11.0 / 8.0
}

/// Arrays of one rank, and its passes.
struct Arrays {
    positions: Vec<u64>,
    inputs: [Vec<f32>; 4],
    results: [Vec<f32>; 4],
    kept: Vec<f32>,
}

impl Arrays {
    fn new(context: &Context<f32>, rank: i32) -> Self {
        let positions = context.positions_of(rank).unwrap();
        let columns = [Q_ROW, KV_ROW, KV_ROW, Q_ROW];
        let inputs = [0, 1, 2, 3].map(|i| {
            let rows = positions.iter();
            rows.flat_map(|p| (0..columns[i]).map(move |c| input(i + 1, *p as usize, c))).collect()
        });
        let info = context.info().unwrap();
        let results =
            [info.q_count, info.q_count, info.kv_count, info.kv_count].map(|n| vec![77.0; n]);
        Arrays { positions, inputs, results, kept: vec![0.0; info.kept_count] }
    }

    fn forward(&mut self, context: &mut Context<f32>, pass: &AttentionOptions<'_>) -> Result<()> {
        let [q, k, v, _] = &self.inputs;
        let inputs = AttentionInputs { q, k, v };
        context.forward(inputs, &mut self.results[0], &mut self.kept, pass)
    }

    fn backward(&mut self, context: &mut Context<f32>, pass: &AttentionOptions<'_>) -> Result<()> {
        let [q, k, v, d_output] = &self.inputs;
        let [output, dq, dk, dv] = &mut self.results;
        let gradients = AttentionGradients { dq, dk, dv };
        let inputs = AttentionInputs { q, k, v };
        context.backward(inputs, output, &self.kept, d_output, gradients, pass)
    }
}

/// Outputs and gradients of all positions.
fn whole(
    world_size: i32,
    starts: &'static [u64],
    make: impl Fn(&Communicator) -> Context<f32> + Send + Sync + 'static,
) -> Vec<Vec<f32>> {
    let found = ranks(world_size, move |group| {
        let mut context = make(group);
        let mut arrays = Arrays::new(&context, group.rank());
        let pass = AttentionOptions { sequence_starts: starts, ..AttentionOptions::default() };
        arrays.forward(&mut context, &pass).unwrap();
        arrays.backward(&mut context, &pass).unwrap();
        let info = context.info().unwrap();
        assert_eq!((info.forward_passes, info.backward_passes), (1, 1));
        assert_eq!(info.held_memory, info.forward_memory.max(info.backward_memory));
        (arrays.positions, arrays.results)
    });
    let columns = [Q_ROW, Q_ROW, KV_ROW, KV_ROW];
    let mut whole = columns.map(|n| vec![0.0; POSITIONS * n]).to_vec();
    for (positions, results) in found {
        for (row, position) in positions.iter().enumerate() {
            for (i, n) in columns.iter().enumerate() {
                let to = *position as usize * n;
                whole[i][to..to + n].copy_from_slice(&results[i][row * n..(row + 1) * n]);
            }
        }
    }
    whole
}

fn plain_output(starts: &[u64]) -> Vec<f32> {
    let sequence = |at: usize| starts.iter().filter(|start| **start <= at as u64).count();
    let mut output = Vec::new();
    for query in 0..POSITIONS {
        for head in 0..HEADS {
            let kv = head / (HEADS / KV_HEADS) * WIDTH;
            let seen = (0..=query).filter(|key| sequence(*key) == sequence(query));
            let weights: Vec<(usize, f64)> = seen
                .map(|key| {
                    let products = (0..WIDTH).map(|d| {
                        f64::from(input(1, query, head * WIDTH + d))
                            * f64::from(input(2, key, kv + d))
                    });
                    (key, (products.sum::<f64>() / (WIDTH as f64).sqrt()).exp())
                })
                .collect();
            let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
            output.extend((0..WIDTH).map(|d| {
                let terms = weights.iter().map(|(key, w)| w * f64::from(input(3, *key, kv + d)));
                (terms.sum::<f64>() / sum) as f32
            }));
        }
    }
    output
}

fn expect_near(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} {wanted:?}");
}

fn score(call: &AttentionCall<'_, f32>, row: usize, head: usize, key: usize) -> f64 {
    let kv = head / (call.heads() / call.kv_heads());
    let q = &call.q()[(row * call.heads() + head) * call.width()..][..call.width()];
    let k = &call.k()[(key * call.kv_heads() + kv) * call.width()..][..call.width()];
    q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * call.scale()
}

fn each_query(call: &AttentionCall<'_, f32>, mut visit: impl FnMut(usize, usize, usize, usize)) {
    for row in 0..call.q_count() {
        for head in 0..call.heads() {
            visit(row, head, row * call.heads() + head, head / (call.heads() / call.kv_heads()));
        }
    }
}

fn keys(call: &AttentionCall<'_, f32>, row: usize) -> std::ops::Range<usize> {
    call.visible_first()[row] as usize..call.visible_end()[row] as usize
}

type Answer = std::result::Result<(), String>;

fn forward_pair(call: &AttentionCall<'_, f32>, pair: ForwardPair<'_>) -> Answer {
    if call.mask() == AttentionMask::Full {
        assert!((0..call.q_count()).all(|row| keys(call, row) == (0..call.kv_count())));
    }
    let width = call.width();
    each_query(call, |row, head, at, kv| {
        let most = keys(call, row).map(|key| score(call, row, head, key)).fold(f64::MIN, f64::max);
        pair.maximum[at] = most as f32;
        for key in keys(call, row) {
            let weight = (score(call, row, head, key) - f64::from(pair.maximum[at])).exp();
            pair.sum[at] += weight as f32;
            for d in 0..width {
                let value = call.v()[(key * call.kv_heads() + kv) * width + d];
                pair.output[at * width + d] += (weight * f64::from(value)) as f32;
            }
        }
    });
    Ok(())
}

fn backward_pair(call: &AttentionCall<'_, f32>, pair: BackwardPair<'_>) -> Answer {
    let width = call.width();
    each_query(call, |row, head, at, kv| {
        for key in keys(call, row) {
            let to = (key * call.kv_heads() + kv) * width;
            let distance = score(call, row, head, key) - f64::from(call.total_maximum()[at]);
            let p = distance.exp() / f64::from(call.total_sum()[at]);
            let gradient = &call.d_output()[at * width..][..width];
            let values = &call.v()[to..][..width];
            let products = gradient.iter().zip(values);
            let dp: f64 = products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let ds = p * (dp - f64::from(call.delta()[at])) * call.scale();
            for (d, slope) in gradient.iter().enumerate() {
                pair.dq[at * width + d] += (ds * f64::from(call.k()[to + d])) as f32;
                pair.dk[to + d] += (ds * f64::from(call.q()[at * width + d])) as f32;
                pair.dv[to + d] += (p * f64::from(*slope)) as f32;
            }
        }
    });
    Ok(())
}

#[test]
fn every_number_of_ranks_gives_the_same_bits() {
    for starts in [&[][..], &[4, 9]] {
        let first = whole(1, starts, |group| Context::new(group, &options()).unwrap());
        expect_near(&first[0], &plain_output(starts));
        for world_size in 2..=4 {
            for layout in [ContextLayout::Contiguous, ContextLayout::Zigzag] {
                for method in [ContextMethod::Gather, ContextMethod::Ring] {
                    let chosen = ContextOptions { layout, method, ..options() };
                    let found = whole(world_size, starts, move |group| {
                        Context::new(group, &chosen).unwrap()
                    });
                    assert_eq!(found, first, "{world_size} {layout:?} {method:?}");
                }
            }
        }
    }
}

#[test]
fn closures_compute_pairs() {
    let near = whole(1, &[], |group| Context::new(group, &options()).unwrap());
    let with_pairs = |method| {
        move |group: &Communicator| {
            let chosen = ContextOptions { method, ..options() };
            Context::with_pairs(group, &chosen, forward_pair, backward_pair).unwrap()
        }
    };
    let first = whole(1, &[], with_pairs(ContextMethod::Gather));
    assert_eq!(whole(3, &[], with_pairs(ContextMethod::Ring)), first);
    for (found, wanted) in first.iter().zip(&near) {
        expect_near(found, wanted);
    }
}

#[test]
fn positions_follow_the_layout() {
    ranks(2, |group| {
        let chosen = ContextOptions { layout: ContextLayout::Zigzag, ..options() };
        let context = Context::<f32>::new(group, &chosen).unwrap();
        assert_eq!(context.positions_of(0).unwrap(), [0, 1, 8, 9, 10]);
        assert_eq!(context.positions_of(1).unwrap(), [2, 3, 4, 5, 6, 7]);
        assert_eq!(context.info().unwrap().rows, [5, 6][group.rank() as usize]);
        assert_eq!(context.info().unwrap().own_chunks, 4);
    });
}

#[test]
fn a_closure_that_fails_or_panics_fails_the_pass_on_all_ranks() {
    for panics in [false, true] {
        ranks(2, move |group| {
            let victim = group.rank() == 1;
            let fails_now = Arc::new(AtomicBool::new(victim));
            let asked = fails_now.clone();
            let forward = move |call: &AttentionCall<'_, f32>, pair: ForwardPair<'_>| {
                if asked.load(Ordering::Relaxed) && (call.q_chunk(), call.kv_chunk()) == (4, 2) {
                    assert!(!panics, "of the test");
                    return Err("of the test".to_owned());
                }
                forward_pair(call, pair)
            };
            let mut context =
                Context::with_pairs(group, &options(), forward, backward_pair).unwrap();
            let mut arrays = Arrays::new(&context, group.rank());
            let pass = AttentionOptions::default();
            let error = fails(arrays.forward(&mut context, &pass), Status::Callback);
            assert!(error.message().contains("rank 1 for chunk pair (4, 2)"), "{error}");
            assert_eq!(error.message().contains("of the test"), victim, "{error}");
            assert_eq!(error.blamed(), [1]);
            assert!(arrays.results[0].iter().all(|number| *number == 77.0));
            fails_now.store(false, Ordering::Relaxed);
            arrays.forward(&mut context, &pass).unwrap();
        });
    }
}

#[test]
fn ranks_that_differ_are_a_mismatch_on_all() {
    ranks(2, |group| {
        let chosen = ContextOptions { causal: group.rank() == 0, ..options() };
        let mut context = Context::new(group, &chosen).unwrap();
        let mut arrays = Arrays::new(&context, group.rank());
        fails(arrays.forward(&mut context, &AttentionOptions::default()), Status::Mismatch);
    });
}

#[test]
fn a_rank_that_does_not_come_is_a_timeout() {
    ranks(2, |group| {
        if group.rank() == 1 {
            return;
        }
        let mut context = Context::new(group, &options()).unwrap();
        let mut arrays = Arrays::new(&context, 0);
        let timeout = Some(Duration::from_millis(50));
        let pass = AttentionOptions { timeout, ..AttentionOptions::default() };
        let error = fails(arrays.forward(&mut context, &pass), Status::Timeout);
        assert_eq!(error.blamed(), [1]);
    });
}

#[test]
fn narrow_numbers_have_types_of_their_own() {
    ranks(1, |group| {
        let chosen = ContextOptions::new("x", 1, 1, 1, 1);
        let mut context = Context::<Bf16>::new(group, &chosen).unwrap();
        let one = [Bf16(0x3f80)];
        let (mut output, mut kept) = ([Bf16(0)], [0.0; 2]);
        let inputs = AttentionInputs { q: &one, k: &one, v: &one };
        context.forward(inputs, &mut output, &mut kept, &AttentionOptions::default()).unwrap();
        assert_eq!((output, kept), (one, [1.0, 1.0]));
    });
}

#[test]
fn wrong_arguments_are_refused() {
    ranks(1, |group| {
        for bad in [
            ContextOptions { name: "", ..options() },
            ContextOptions { name: "a\0b", ..options() },
            ContextOptions { chunks: 1025, ..options() },
            ContextOptions { kv_heads: 3, ..options() },
            ContextOptions { width: 0, ..options() },
            ContextOptions { scale: f64::NAN, ..options() },
        ] {
            fails(Context::<f32>::new(group, &bad), Status::InvalidArgument);
        }
        fails(Context::<f64>::new(group, &options()), Status::Unsupported);
        let mut context = Context::new(group, &options()).unwrap();
        fails(context.positions_of(1), Status::InvalidArgument);
        let mut arrays = Arrays::new(&context, 0);
        let twice = AttentionOptions { sequence_starts: &[3, 3], ..AttentionOptions::default() };
        fails(arrays.forward(&mut context, &twice), Status::InvalidArgument);
        let fine = AttentionOptions::default();
        arrays.results[0].pop();
        fails(arrays.forward(&mut context, &fine), Status::InvalidArgument);
        arrays.results[0].push(0.0);
        arrays.kept.pop();
        fails(arrays.forward(&mut context, &fine), Status::InvalidArgument);
        assert_eq!(context.info().unwrap().forward_passes, 0);
    });
}
