//! Tensor objects and regions: shares, passes of every kind, refusals.

mod support;

use std::ops::Range;
use std::time::Duration;

use support::{fails, ranks};
use trireme::{
    Bf16, Bool8, RegionDimension, RegionKind, RegionOptions, Status, Tensor, TensorOptions,
};

const ROWS: u64 = 5;
const COLUMNS: u64 = 7;

const KINDS: [RegionKind; 7] = [
    RegionKind::Copy,
    RegionKind::Reduce,
    RegionKind::Gather,
    RegionKind::GatherSum,
    RegionKind::Scatter,
    RegionKind::ReduceScatter,
    RegionKind::Exchange,
];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Form {
    Whole,
    Summands,
    Rows,
    Columns,
}

fn forms(kind: RegionKind, dimension: RegionDimension) -> [Form; 2] {
    let (part, other) = match dimension {
        RegionDimension::Columns => (Form::Columns, Form::Rows),
        _ => (Form::Rows, Form::Columns),
    };
    match kind {
        RegionKind::Copy => [Form::Whole, Form::Summands],
        RegionKind::Reduce => [Form::Summands, Form::Whole],
        RegionKind::Gather => [part, Form::Whole],
        RegionKind::GatherSum => [part, Form::Summands],
        RegionKind::Scatter => [Form::Whole, part],
        RegionKind::ReduceScatter => [Form::Summands, part],
        _ => [part, other],
    }
}

/// Whole numbers, so that sums are exact in any order.
fn whole(salt: u64) -> Vec<f32> {
    (0..ROWS * COLUMNS).map(|i| ((i * 31 + salt * 17) % 23) as f32 - 11.0).collect()
}

fn part(tensor: &Tensor, whole: &[f32], form: Form) -> Vec<f32> {
    let rows: Range<u64> = if form == Form::Rows { tensor.range(ROWS).unwrap() } else { 0..ROWS };
    let columns: Range<u64> =
        if form == Form::Columns { tensor.range(COLUMNS).unwrap() } else { 0..COLUMNS };
    let mut found = Vec::new();
    for row in rows {
        found.extend(columns.clone().map(|column| whole[(row * COLUMNS + column) as usize]));
    }
    found
}

fn options(blocks: u32) -> TensorOptions<'static> {
    TensorOptions { blocks, ..TensorOptions::default() }
}

#[test]
fn ranks_share_an_extent() {
    ranks(3, |group| {
        let tensor = Tensor::new(group, &options(8)).unwrap();
        let own = group.rank() as usize;
        assert_eq!(tensor.blocks().unwrap(), 8);
        assert_eq!(tensor.own_blocks().unwrap(), [0..2, 2..5, 5..8][own]);
        assert_eq!(tensor.range(10).unwrap(), [0..2, 2..6, 6..10][own]);
        assert_eq!(tensor.range_of(10, 2).unwrap(), 6..10);
        assert_eq!(tensor.block(5, 3).unwrap(), 1..2);
        let heads = tensor.heads_of(12, 3, 1).unwrap();
        assert_eq!((heads.heads, heads.kv_heads, heads.kv_shared), (3..7, 0..2, true));
        assert!(!tensor.heads(16, 16).unwrap().kv_shared);
    });
}

#[test]
fn columns_go_with_their_heads() {
    ranks(3, |group| {
        let tensor = Tensor::new(group, &options(8)).unwrap();
        let heads = tensor.heads(12, 3).unwrap().heads;
        let q = RegionOptions::new("q", RegionKind::Scatter, 2, 48).along(RegionDimension::Columns);
        let mut region = tensor.region(&RegionOptions { column_unit: 4, ..q }).unwrap();
        let values: Vec<f32> = (0..96).map(|i| i as f32).collect();
        let own = 4 * heads.start as usize..4 * heads.end as usize;
        let mut output = vec![0.0; 2 * own.len()];
        region.forward(&[&values], &mut output).unwrap();
        assert_eq!(output[..own.len()], values[own.clone()]);
        assert_eq!(output[own.len()..], values[48..][own]);
        let rows = RegionOptions::new("r", RegionKind::Gather, 24, 1).along(RegionDimension::Rows);
        let mut region = tensor.region::<f32>(&RegionOptions { row_unit: 2, ..rows }).unwrap();
        assert_eq!(region.info().unwrap().input_count, [6, 8, 10][group.rank() as usize]);
    });
}

#[test]
fn every_kind_converts_arrays_and_gradients() {
    for world_size in 1..=3 {
        ranks(world_size, |group| {
            for blocks in [0, 8] {
                let tensor = Tensor::new(group, &options(blocks)).unwrap();
                for kind in KINDS {
                    let splits = !matches!(kind, RegionKind::Copy | RegionKind::Reduce);
                    let dimensions = if splits {
                        vec![RegionDimension::Rows, RegionDimension::Columns]
                    } else {
                        vec![RegionDimension::None]
                    };
                    for dimension in dimensions {
                        check(&tensor, kind, dimension);
                    }
                }
            }
        });
    }
}

fn check(tensor: &Tensor, kind: RegionKind, dimension: RegionDimension) {
    let options = RegionOptions::new("r", kind, ROWS, COLUMNS).along(dimension);
    let mut region = tensor.region::<f32>(&options).unwrap();
    let forms = forms(kind, dimension);
    for pass in 0..2 {
        let (from, to) = (forms[pass], forms[1 - pass]);
        let mut value = whole(pass as u64);
        let parts: Vec<Vec<f32>> = if from == Form::Summands {
            value.fill(0.0);
            for block in 0..tensor.blocks().unwrap() {
                let summand = whole(100 + u64::from(block));
                value.iter_mut().zip(summand).for_each(|(sum, number)| *sum += number);
            }
            tensor.own_blocks().unwrap().map(|block| whole(100 + u64::from(block))).collect()
        } else {
            vec![part(tensor, &value, from)]
        };
        let parts: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
        let wanted = part(tensor, &value, to);
        let mut output = vec![99.0; wanted.len()];
        if pass == 0 {
            region.forward(&parts, &mut output).unwrap();
        } else {
            region.backward(&parts, &mut output).unwrap();
        }
        assert_eq!(output, wanted, "{kind:?} {dimension:?} {pass}");
    }
    let info = region.info().unwrap();
    assert_eq!((info.forward_passes, info.backward_passes), (1, 1));
}

#[test]
fn ranks_that_differ_are_a_mismatch_on_all() {
    ranks(2, |group| {
        let name = ["even", "odd"][group.rank() as usize];
        let tensor = Tensor::new(group, &options(0)).unwrap();
        let mut region =
            tensor.region(&RegionOptions::new(name, RegionKind::Reduce, 1, 2)).unwrap();
        let error = fails(region.forward(&[&[1.0f32, 2.0]], &mut [0.0; 2]), Status::Mismatch);
        assert!(error.message().contains("forward \"even\""), "{error}");
    });
}

#[test]
fn narrow_numbers_are_summed_in_f32() {
    let sums = ranks(2, |group| {
        let tensor = Tensor::new(group, &options(0)).unwrap();
        let mut region =
            tensor.region(&RegionOptions::new("half", RegionKind::Reduce, 1, 1)).unwrap();
        let mut output = [Bf16(0)];
        region.forward(&[&[Bf16(0x3f80)]], &mut output).unwrap(); // 1
        output
    });
    assert_eq!(sums, [[Bf16(0x4000)]; 2]);
}

#[test]
fn a_rank_that_does_not_come_is_a_timeout() {
    ranks(2, |group| {
        if group.rank() == 1 {
            return;
        }
        let tensor = Tensor::new(group, &options(0)).unwrap();
        let mut region =
            tensor.region(&RegionOptions::new("late", RegionKind::Reduce, 1, 1)).unwrap();
        let short = Some(Duration::from_millis(50));
        let error = fails(region.forward_within(&[&[1.0f32]], &mut [0.0], short), Status::Timeout);
        assert_eq!(error.blamed(), [1]);
    });
}

#[test]
fn wrong_arguments_are_refused() {
    ranks(1, |group| {
        fails(Tensor::new(group, &options(65537)), Status::InvalidArgument);
        let tensor = Tensor::new(group, &options(2)).unwrap();
        fails(tensor.range_of(4, 1), Status::InvalidArgument);
        fails(tensor.block(4, 2), Status::InvalidArgument);
        fails(tensor.heads(4, 3), Status::InvalidArgument);
        let good = RegionOptions::new("x", RegionKind::Reduce, 1, 2);
        for bad in [
            RegionOptions { name: "", ..good },
            RegionOptions { name: "a\0b", ..good },
            RegionOptions { parts: 65537, ..good },
            RegionOptions { rows: 1 << 60, ..good },
            good.along(RegionDimension::Rows),
            RegionOptions { kind: RegionKind::Gather, ..good },
            RegionOptions { name: "a\nb", ..good },
            RegionOptions { column_unit: 2, ..good },
            RegionOptions { kind: RegionKind::Gather, row_unit: 2, ..good }
                .along(RegionDimension::Rows),
        ] {
            fails(tensor.region::<f32>(&bad), Status::InvalidArgument);
        }
        fails(tensor.region::<Bool8>(&good), Status::Unsupported);
        let mut region = tensor.region::<f32>(&good).unwrap();
        fails(tensor.region::<f32>(&good), Status::InvalidArgument);
        assert_eq!(tensor.region_count().unwrap(), 1);
        let part: &[f32] = &[1.0, 2.0];
        let mut output = [7.0; 2];
        fails(region.forward(&[part], &mut output), Status::InvalidArgument);
        fails(region.forward(&[], &mut output), Status::InvalidArgument);
        fails(region.forward(&[part, &[1.0]], &mut output), Status::InvalidArgument);
        fails(region.forward(&[part, part], &mut output[..1]), Status::InvalidArgument);
        fails(region.backward(&[part], &mut output), Status::InvalidState);
        assert_eq!(output, [7.0; 2]);
        drop(tensor);
        region.forward(&[part, part], &mut output).unwrap();
        assert_eq!(output, [2.0, 4.0]);
    });
}
