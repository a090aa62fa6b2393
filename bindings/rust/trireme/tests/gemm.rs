//! The provider of products: what a tensor object tells, and closures for layers on axes.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use support::{fails, ranks};
use trireme::{
    Gemm, GemmKind, Linear, LinearOptions, Parallel, ParallelOptions, Product, Status, Tensor,
    TensorOptions, REST,
};

const ROWS: usize = 2;
const INPUT: usize = 3;
const OUTPUT: usize = 4;

/// Whole numbers, so that sums are exact in any order.
fn whole(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + salt * 5) % 9) as f32 - 4.0).collect()
}

/// In f32, from left to right.
fn multiply(p: &mut Product<'_>) -> Result<(), String> {
    for i in 0..p.rows() {
        for j in 0..p.columns() {
            let sum: f32 = (0..p.depth())
                .map(|k| {
                    let (left, right) = (p.left::<f32>().unwrap(), p.right::<f32>().unwrap());
                    let at = if p.left_transposed() { (k, i) } else { (i, k) };
                    let to = if p.right_transposed() { (j, k) } else { (k, j) };
                    left[at.0 * p.left_step() + at.1] * right[to.0 * p.right_step() + to.1]
                })
                .sum();
            p.result_row::<f32>(i).unwrap()[j] += sum;
        }
    }
    Ok(())
}

fn on_axes() -> ParallelOptions<'static> {
    ParallelOptions { tensor: REST, timeout: Some(support::LONG), ..ParallelOptions::default() }
}

#[test]
fn a_tensor_object_tells_its_provider() {
    ranks(1, |group| {
        let options = TensorOptions { gemm: Some(Gemm::Builtin), ..TensorOptions::default() };
        let info = Tensor::new(group, &options).unwrap().gemm().unwrap().unwrap();
        assert_eq!((info.kind, info.repeatable), (GemmKind::Builtin, true));
        assert_eq!(info.library + &info.difference, "");
        let plain = TensorOptions::default();
        assert_eq!(Tensor::new(group, &plain).unwrap().gemm().unwrap(), None);
        let own = Tensor::with_products(group, &plain, multiply).unwrap();
        assert_eq!(own.gemm().unwrap().unwrap().kind, GemmKind::Caller);
    });
}

#[test]
fn layers_on_axes_use_the_closure() {
    ranks(2, |group| {
        let (x, w) = (whole(ROWS * INPUT, 1), whole(OUTPUT * INPUT, 2));
        let count = Arc::new(AtomicUsize::new(0));
        let calls = count.clone();
        let parallel = Parallel::with_products(group, &on_axes(), move |p| {
            calls.fetch_add(1, Ordering::SeqCst);
            multiply(p)
        })
        .unwrap();
        let tensor = parallel.tensor().unwrap();
        assert_eq!(tensor.gemm().unwrap().unwrap().kind, GemmKind::Caller);
        let own = tensor.range(OUTPUT as u64).unwrap();
        let own = own.start as usize..own.end as usize;
        let of_layer = LinearOptions::column("fc", INPUT as u64, OUTPUT as u64, ROWS as u64);
        let mut layer = Linear::<f32>::new(&tensor, &of_layer).unwrap();
        drop(tensor); // the closure lives as long as the object and the layer
        let mine = &w[own.start * INPUT..own.end * INPUT];
        let mut output = vec![f32::NAN; ROWS * own.len()];
        layer.forward(&x, mine, None, &mut output, &mut [], None).unwrap();
        let expected: Vec<f32> = (0..ROWS)
            .flat_map(|i| own.clone().map(move |j| (i, j)))
            .map(|(i, j)| (0..INPUT).map(|k| x[i * INPUT + k] * w[j * INPUT + k]).sum())
            .collect();
        assert_eq!(output, expected);
        assert!(count.load(Ordering::SeqCst) > 0);
        assert_eq!(layer.info().unwrap().forward_passes, 1);
        drop(layer);
        assert_eq!(Arc::strong_count(&count), 2, "the object has the closure");
        drop(parallel);
        assert_eq!(Arc::strong_count(&count), 1, "the closure is gone");
    });
}

#[test]
fn a_panic_on_axes_fails_all_ranks() {
    ranks(2, |group| {
        let bad = group.rank() == 1;
        let parallel = Parallel::with_products(group, &on_axes(), move |p| {
            assert!(!bad, "of rank 1");
            multiply(p)
        })
        .unwrap();
        let row = LinearOptions::row("row", 2, 2, 1);
        let mut layer = Linear::<f32>::new(&parallel.tensor().unwrap(), &row).unwrap();
        let mut two = [0.0; 2];
        let failed = layer.forward(&[1.0], &[1.0; 2], None, &mut two, &mut [], None);
        let failed = fails(failed, Status::Callback);
        assert_eq!(failed.to_string().contains("panicked: of rank 1"), bad, "{failed}");
    });
}

#[test]
fn a_closure_comes_without_another_provider() {
    ranks(1, |group| {
        let gemm = Some(Gemm::Builtin);
        let options = ParallelOptions {
            tensor_options: Some(TensorOptions { gemm, ..TensorOptions::default() }),
            ..on_axes()
        };
        fails(Parallel::with_products(group, &options, multiply), Status::InvalidArgument);
    });
}
