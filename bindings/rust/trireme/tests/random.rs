//! Random numbers that an element's place decides.

mod support;

use support::fails;
use trireme::{random_dropout, random_dropout_into, random_uniform, Bf16, RandomPart, Status, F16};

// Of the published vectors of Philox 4x32-10: the words of counter 0 with key 0.
const WORDS: [u32; 4] = [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8];

fn part() -> RandomPart {
    RandomPart::default()
}

#[test]
fn values_are_the_published_ones() {
    let (mut values, mut wide) = ([0f32; 4], [0f64; 4]);
    let (mut half, mut brain) = ([F16(1); 4], [Bf16(1); 4]);
    random_uniform(&mut values, &part()).unwrap();
    random_uniform(&mut wide, &part()).unwrap();
    random_uniform(&mut half, &part()).unwrap();
    random_uniform(&mut brain, &part()).unwrap();
    for (i, word) in WORDS.into_iter().enumerate() {
        assert_eq!(values[i], (word >> 8) as f32 / 16777216.0);
        assert_eq!((wide[i] * 4294967296.0) as u32, word);
        let cut = (word >> 24) as f32 / 256.0;
        assert_eq!(u32::from(brain[i].0) << 16, cut.to_bits());
        assert!(half[i].0 > 0 && half[i].0 < 0x3c00);
    }
}

#[test]
fn parts_are_parts_of_the_whole() {
    let same = RandomPart { seed: 1 << 63, draw: 9, ..part() };
    let mut whole = [0f32; 5 * 13];
    random_uniform(&mut whole, &RandomPart { columns: 13, ..same }).unwrap();
    for world in [1, 2, 3, 4, 5, 8] {
        for rank in 0..world {
            let first = rank * 13 / world;
            let count = (rank + 1) * 13 / world - first;
            let mut own = vec![0f32; 3 * count];
            let place = RandomPart {
                first_row: 2,
                first_column: first as u64,
                columns: count as u64,
                all_columns: 13,
                ..same
            };
            random_uniform(&mut own, &place).unwrap();
            for (i, row) in own.chunks(count).enumerate() {
                assert_eq!(row, &whole[(2 + i) * 13 + first..][..count]);
            }
        }
    }
}

#[test]
fn dropout_keeps_the_same_elements_of_all_arrays() {
    let mut forward = [3f32; 1000];
    let (gradient, mut result) = ([1f64; 1000], [9f64; 1000]);
    let place = RandomPart { seed: 5, draw: 6, ..part() };
    random_dropout(&mut forward, 0.25, &place).unwrap();
    random_dropout_into(&gradient, &mut result, 0.25, &place).unwrap();
    let dropped = forward.iter().filter(|value| **value == 0.0).count();
    assert!(dropped > 150 && dropped < 350, "{dropped} of 1000 dropped");
    for (one, other) in forward.into_iter().zip(result) {
        assert!(one == 0.0 && other == 0.0 || one == 4.0 && other == 1.0 / 0.75);
    }
    let mut halves = [3f32; 1000];
    for (rank, half) in halves.chunks_mut(500).enumerate() {
        let own = RandomPart { first_column: 500 * rank as u64, all_columns: 1000, ..place };
        random_dropout(half, 0.25, &own).unwrap();
    }
    assert_eq!(halves, forward);
}

#[test]
fn bad_input_is_refused() {
    let mut values = [7f32; 6];
    let bad = [
        RandomPart { columns: 4, ..part() },
        RandomPart { first_column: 1, ..part() },
        RandomPart { all_columns: 5, ..part() },
        RandomPart { columns: 1, first_row: u64::MAX - 2, ..part() },
    ];
    for place in bad {
        fails(random_uniform(&mut values, &place), Status::InvalidArgument);
        fails(random_dropout(&mut values, 0.5, &place), Status::InvalidArgument);
    }
    for rate in [1.0, 2.0, -0.5, f64::NAN, f64::INFINITY] {
        let error = fails(random_dropout(&mut values, rate, &part()), Status::InvalidArgument);
        assert!(error.to_string().contains("rate is"), "{error}");
    }
    let short = random_dropout_into(&[1f32; 5], &mut values, 0.5, &part());
    fails(short, Status::InvalidArgument);
    assert_eq!(values, [7.0; 6]);
    random_uniform::<f32>(&mut [], &part()).unwrap();
}
