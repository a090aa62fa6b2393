//! Experts on several ranks: rows, sums and gradients of plain loops, refusals.

mod support;

use std::ops::Range;
use std::time::Duration;

use support::{fails, ranks};
use trireme::{
    Bf16, ExpertDrop, ExpertScores, Experts, ExpertsOptions, RouteInputs, Routing, Status,
};

const ROWS: usize = 13;
const EXPERTS: usize = 5;
const TOP_K: usize = 2;
const WIDTH: usize = 3;
const LEAF_ROWS: [u64; 5] = [3, 0, 5, 1, 4];
const D_MEAN: [f64; EXPERTS] = [0.5, -1.0, 2.0, 0.0, 1.0];

fn layer() -> ExpertsOptions<'static> {
    ExpertsOptions {
        leaves: LEAF_ROWS.len() as u32,
        ..ExpertsOptions::new("moe 3", EXPERTS as u32, TOP_K as u32, WIDTH as u64, ROWS as u64)
    }
}

fn score(row: usize, expert: usize, batch: usize) -> f64 {
    (((row * 31 + expert * 17 + batch * 5) % 23) as f64 - 11.0) / 4.0
}

fn element(row: usize, column: usize) -> f64 {
    (((row * 7 + column * 3) % 11) as f64 - 5.0) / 4.0
}

fn slope(row: usize, column: usize) -> f64 {
    (((row * 5 + column) % 9) as f64 - 4.0) / 8.0
}

fn all(own: &Range<usize>, of: fn(usize, usize) -> f64) -> Vec<f32> {
    own.clone().flat_map(|row| (0..WIDTH).map(move |c| of(row, c) as f32)).collect()
}

/// Expert e of this rank multiplies by e + 1.
fn multiply(experts: &Experts<f32>, routing: &Routing, rows: &[f32]) -> Vec<f32> {
    let mut results = vec![0.0; rows.len()];
    let info = experts.info().unwrap();
    for expert in info.own_experts {
        for leaf in 0..info.leaves {
            let segment = routing.segment(expert, leaf).unwrap();
            for i in segment.start * WIDTH..segment.end * WIDTH {
                results[i] = (expert + 1) as f32 * rows[i];
            }
        }
    }
    results
}

fn near(got: f32, wanted: f64) -> bool {
    (f64::from(got) - wanted).abs() < 1e-5 * (1.0 + wanted.abs())
}

/// The results of one row by plain loops.
fn check_row(row: usize, batch: usize, chosen: &[i32], output: &[f32], d: &[f32], s: &[f32]) {
    let powers: Vec<f64> = (0..EXPERTS).map(|e| score(row, e, batch).exp()).collect();
    let total: f64 = powers.iter().sum();
    let p: Vec<f64> = powers.iter().map(|power| power / total).collect();
    let mut best: Vec<usize> = (0..EXPERTS).collect();
    best.sort_by(|&a, &b| score(row, b, batch).partial_cmp(&score(row, a, batch)).unwrap());
    best.truncate(TOP_K);
    assert!(best.iter().zip(chosen).all(|(&a, &b)| a as i32 == b));
    let factor: f64 = best.iter().map(|&e| p[e] * (e + 1) as f64).sum();
    let product: f64 = (0..WIDTH).map(|c| slope(row, c) * element(row, c)).sum();
    let of_p = |e: usize| {
        let through = if best.contains(&e) { (e + 1) as f64 * product } else { 0.0 };
        D_MEAN[e] / ROWS as f64 + through
    };
    let mean: f64 = (0..EXPERTS).map(|e| p[e] * of_p(e)).sum();
    for c in 0..WIDTH {
        assert!(near(output[c], factor * element(row, c)) && near(d[c], factor * slope(row, c)));
    }
    for e in 0..EXPERTS {
        assert!(near(s[e], p[e] * (of_p(e) - mean)));
    }
}

fn train(
    experts: &mut Experts<f32>,
    routing: &Routing,
    scores: &[f32],
    own: &Range<usize>,
    batch: usize,
) {
    let mut received = vec![0.0; routing.received_rows() * WIDTH];
    experts.dispatch(routing, &all(own, element), &mut received).unwrap();
    let (mut output, mut d_rows) = (vec![0.0; own.len() * WIDTH], vec![0.0; own.len() * WIDTH]);
    let mut returned = vec![0.0; routing.sent_rows() * WIDTH];
    let results = multiply(experts, routing, &received);
    experts.combine(routing, &results, Some(&mut returned), &mut output).unwrap();
    let mut d_results = vec![0.0; received.len()];
    let mut d_weights = vec![0.0; own.len() * TOP_K];
    experts
        .combine_backward(routing, &all(own, slope), &returned, &mut d_results, &mut d_weights)
        .unwrap();
    let d_received = multiply(experts, routing, &d_results);
    experts.dispatch_backward(routing, &d_received, &mut d_rows).unwrap();
    let mut d_scores = vec![0.0; scores.len()];
    experts.route_backward(routing, scores, &d_weights, &D_MEAN, &mut d_scores).unwrap();
    for (i, row) in own.clone().enumerate() {
        let (w, e) = (i * WIDTH..(i + 1) * WIDTH, i * EXPERTS..(i + 1) * EXPERTS);
        let chosen = &routing.chosen()[i * TOP_K..(i + 1) * TOP_K];
        check_row(row, batch, chosen, &output[w.clone()], &d_rows[w], &d_scores[e]);
    }
}

#[test]
fn outputs_and_gradients_are_those_of_plain_loops() {
    for world_size in [1, 2, 3, 5] {
        ranks(world_size, |group| {
            let mut experts = Experts::<f32>::new(group, &layer()).unwrap();
            let leaves = experts.info().unwrap().own_leaves;
            let first: u64 = LEAF_ROWS[..leaves.start as usize].iter().sum();
            let mine = &LEAF_ROWS[leaves.start as usize..leaves.end as usize];
            let own = first as usize..(first + mine.iter().sum::<u64>()) as usize;
            // Two micro-batches are under way.
            let scores: Vec<Vec<f32>> = (0..2)
                .map(|batch| {
                    let row = |r| (0..EXPERTS).map(move |e| score(r, e, batch) as f32);
                    own.clone().flat_map(row).collect()
                })
                .collect();
            let routings: Vec<Routing> = scores
                .iter()
                .map(|scores| RouteInputs { scores, leaf_rows: mine, ..RouteInputs::default() })
                .map(|inputs| experts.route(&inputs).unwrap())
                .collect();
            for batch in [1, 0] {
                train(&mut experts, &routings[batch], &scores[batch], &own, batch);
            }
            let info = experts.info().unwrap();
            assert_eq!((info.routes, info.dispatches_backward), (2, 2));
            assert_eq!(info.held_memory, info.pass_memory);
        });
    }
}

#[test]
fn padding_and_what_is_dropped() {
    for world_size in [1, 2, 3] {
        ranks(world_size, |group| {
            let options = ExpertsOptions {
                scores: ExpertScores::Probabilities,
                normalize: true,
                capacity: 1,
                drop: ExpertDrop::LowestWeight,
                ..ExpertsOptions::new("moe 3", 2, 1, 1, 4)
            };
            let mut experts = Experts::<f64>::new(group, &options).unwrap();
            let inputs = RouteInputs {
                scores: &[1.0, 0.0, 0.5, 0.25, 9.0, 9.0, 0.0, 3.0],
                padding: &[0, 0, 1, 0],
                leaf_rows: &[],
            };
            let routing = experts.route(&inputs).unwrap();
            let ranks = world_size as u64;
            assert_eq!(routing.chosen(), [0, -1, -1, 1]);
            assert_eq!(routing.weights(), [1.0, 1.0, 0.0, 1.0]);
            assert_eq!(routing.expert_rows(), [2 * ranks, ranks]);
            assert_eq!(routing.expert_dropped(), [ranks, 0]);
            assert_eq!((routing.real_rows(), routing.rows()), (3 * ranks, 4));
            assert_eq!(routing.mean_probabilities(), [0.5, 3.25 / 3.0]);
            let mut received = vec![0.0; routing.received_rows()];
            experts.dispatch(&routing, &[7.0, 8.0, 9.0, 10.0], &mut received).unwrap();
            let mut output = [99.0; 4];
            experts.combine(&routing, &received, None, &mut output).unwrap();
            assert_eq!(output, [7.0, 0.0, 0.0, 10.0]);
        });
    }
}

#[test]
fn ranks_that_differ_are_a_mismatch_on_all() {
    ranks(2, |group| {
        let options = ExpertsOptions { leaves: 0, normalize: group.rank() == 0, ..layer() };
        let mut experts = Experts::<f32>::new(group, &options).unwrap();
        let inputs = RouteInputs { scores: &[0.0; EXPERTS], ..RouteInputs::default() };
        let error = experts.route(&inputs).unwrap_err();
        assert_eq!(error.status(), Status::Mismatch);
        assert!(error.to_string().contains("route pass of experts \"moe 3\""), "{error}");
    });
}

#[test]
fn passes_have_the_deadline_that_was_set() {
    ranks(2, |group| {
        if group.rank() == 1 {
            let mut word = [0u64];
            fails(group.receive(&mut word, 0, 7), Status::Timeout);
            return;
        }
        let options = ExpertsOptions { leaves: 0, ..layer() };
        let mut experts = Experts::<f32>::new(group, &options).unwrap();
        experts.set_pass_timeout(Some(Duration::from_millis(50)));
        let error = fails(experts.route(&RouteInputs::default()), Status::Timeout);
        assert!(error.to_string().contains("0.05 s, timeout_ns of the pass's options"), "{error}");
    });
}

#[test]
fn wrong_arguments_are_refused() {
    let invalid = Status::InvalidArgument;
    ranks(1, |group| {
        fails(Experts::<f32>::new(group, &ExpertsOptions { top_k: 6, ..layer() }), invalid);
        fails(Experts::<i32>::new(group, &layer()), Status::Unsupported);
        let options = ExpertsOptions { leaves: 2, ..layer() };
        let mut experts = Experts::<f32>::new(group, &options).unwrap();
        let mut scores = vec![0.0; 2 * EXPERTS];
        scores[1] = 1.0;
        let good = RouteInputs { scores: &scores, padding: &[], leaf_rows: &[1, 1] };
        fails(experts.route(&RouteInputs { scores: &scores[1..], ..good }), invalid);
        fails(experts.route(&RouteInputs { padding: &[0], ..good }), invalid);
        fails(experts.route(&RouteInputs { leaf_rows: &[2], ..good }), invalid);
        fails(experts.route(&RouteInputs { leaf_rows: &[], ..good }), invalid);
        let routing = experts.route(&good).unwrap();
        assert_eq!(routing.segment(0, 1), Some(1..2));
        assert_eq!((routing.segment(EXPERTS as u32, 0), routing.segment(0, 2)), (None, None));
        let (rows, mut received) = ([0.0f32; 2 * WIDTH], [0.0f32; 4 * WIDTH]);
        fails(experts.dispatch(&routing, &rows[1..], &mut received), invalid);
        fails(experts.dispatch(&routing, &rows, &mut received[1..]), invalid);
        let (mut d_results, mut d_weights) = ([0.0; 4 * WIDTH], [0.0; 4]);
        fails(
            experts.combine_backward(&routing, &rows, &received, &mut d_results, &mut d_weights),
            Status::InvalidState,
        );
        let mut d_scores = vec![0.0; scores.len()];
        fails(
            experts.route_backward(&routing, &scores, &d_weights, &D_MEAN[1..], &mut d_scores),
            invalid,
        );
        let another = ExpertsOptions { name: "another", ..options };
        let mut other = Experts::<f32>::new(group, &another).unwrap();
        fails(other.dispatch(&routing, &rows, &mut received), invalid);
        let longer = ExpertsOptions { name: "longer", experts: 1000, ..options };
        let mut other = Experts::<f32>::new(group, &longer).unwrap();
        let error = fails(other.dispatch(&routing, &rows, &mut received), invalid);
        assert!(error.to_string().contains("that of another layer"), "{error}");
        experts.dispatch(&routing, &rows, &mut received).unwrap();

        let narrow = ExpertsOptions::new("narrow", 1, 1, 2, 1);
        let mut narrow = Experts::<Bf16>::new(group, &narrow).unwrap();
        let inputs = RouteInputs { scores: &[0.0], ..RouteInputs::default() };
        let routing = narrow.route(&inputs).unwrap();
        let (given, mut output) = ([Bf16(0x4000), Bf16(0x8000)], [Bf16(0); 2]);
        narrow.combine(&routing, &given, None, &mut output).unwrap();
        assert_eq!(output, given); // once times a number is the number, also -0
    });
}
