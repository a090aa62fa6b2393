//! Layers that ranks split.

mod support;

use support::{fails, ranks};
use trireme::{
    Activation, ActivationCall, Bf16, Gemm, Linear, LinearOptions, Mlp, MlpGradients, MlpOptions,
    MlpWeights, Product, Status, Tensor, TensorOptions,
};

const ROWS: usize = 3;
const INPUT: usize = 4;
const HIDDEN: usize = 6;

/// Whole numbers, so that sums are exact in any order.
fn whole(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + salt * 5) % 9) as f32 - 4.0).collect()
}

fn product(left: &[f32], right: &[f32], rows: usize, depth: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns)
        .map(|i| {
            (0..depth)
                .map(|k| left[i / columns * depth + k] * right[k * columns + i % columns])
                .sum()
        })
        .collect()
}

fn turned(matrix: &[f32], columns: usize) -> Vec<f32> {
    let rows = matrix.len() / columns;
    (0..matrix.len()).map(|i| matrix[i % rows * columns + i / rows]).collect()
}

fn columns_of(matrix: &[f32], columns: usize, own: std::ops::Range<usize>) -> Vec<f32> {
    matrix.chunks(columns).flat_map(|row| row[own.clone()].to_vec()).collect()
}

fn options() -> TensorOptions<'static> {
    TensorOptions { blocks: 4, gemm: Some(Gemm::Builtin), row_tile: 2, ..TensorOptions::default() }
}

#[test]
fn a_pair_of_layers_computes_what_one_process_does() {
    ranks(3, |group| {
        let (x, dy) = (whole(ROWS * INPUT, 1), whole(ROWS * INPUT, 5));
        let (w1, w2, bias) = (whole(HIDDEN * INPUT, 2), whole(INPUT * HIDDEN, 3), whole(INPUT, 4));
        let h = product(&x, &turned(&w1, INPUT), ROWS, INPUT, HIDDEN);
        let mut y = product(&h, &turned(&w2, HIDDEN), ROWS, HIDDEN, INPUT);
        y.iter_mut().enumerate().for_each(|(i, value)| *value += bias[i % INPUT]);
        let dh = product(&dy, &w2, ROWS, INPUT, HIDDEN);
        let tensor = Tensor::new(group, &options()).unwrap();
        let own = tensor.range(HIDDEN as u64).unwrap();
        let own = own.start as usize..own.end as usize;
        let input = INPUT as u64;
        let (hidden, rows) = (HIDDEN as u64, ROWS as u64);
        let one_options = LinearOptions::column("fc1", input, hidden, rows);
        let two_options = LinearOptions::row("fc2", hidden, input, rows).with_bias();
        let mut one = Linear::<f32>::new(&tensor, &one_options).unwrap();
        let mut two = Linear::<f32>::new(&tensor, &two_options).unwrap();
        let mine1 = w1[own.start * INPUT..own.end * INPUT].to_vec();
        let mine2 = columns_of(&w2, HIDDEN, own.clone());
        let mut hidden = vec![0.0; ROWS * own.len()];
        let mut output = vec![0.0; ROWS * INPUT];
        one.forward(&x, &mine1, None, &mut hidden, &mut [], None).unwrap();
        two.forward(&hidden, &mine2, Some(&bias), &mut output, &mut [], None).unwrap();
        assert_eq!(output, y);
        let mut hidden_gradient = vec![0.0; ROWS * own.len()];
        let mut input_gradient = vec![0.0; ROWS * INPUT];
        two.backward_input(&dy, &mine2, &mut hidden_gradient, &mut [], None).unwrap();
        one.backward_input(&hidden_gradient, &mine1, &mut input_gradient, &mut [], None).unwrap();
        assert_eq!(hidden_gradient, columns_of(&dh, HIDDEN, own.clone()));
        assert_eq!(input_gradient, product(&dh, &w1, ROWS, HIDDEN, INPUT));
        let mut gradient = vec![0.0; INPUT * own.len()];
        let mut bias_gradient = vec![0.0; INPUT];
        for add in [false, true] {
            if add {
                two.forward(&hidden, &mine2, Some(&bias), &mut output, &mut [], None).unwrap();
            }
            let biases = Some(&mut bias_gradient[..]);
            two.backward_weight(&hidden, &dy, &[], &mut gradient, biases, add, None).unwrap();
        }
        let dw2 = product(&turned(&dy, INPUT), &h, INPUT, ROWS, HIDDEN);
        let twice: Vec<f32> =
            columns_of(&dw2, HIDDEN, own.clone()).iter().map(|v| 2.0 * v).collect();
        assert_eq!(gradient, twice);
        let sums: Vec<f32> =
            (0..INPUT).map(|j| 2.0 * (0..ROWS).map(|i| dy[i * INPUT + j]).sum::<f32>()).collect();
        assert_eq!(bias_gradient, sums);
        let info = two.info().unwrap();
        assert_eq!((info.forward_passes, info.backward_input_passes), (2, 1));
        assert_eq!(info.backward_weight_passes, 2);
        assert_eq!(two.info().unwrap().forward_passes, 2);
        assert_eq!(two.info().unwrap().tile_rows, 2);

        // Both gradients in one call; the second time those of the weight are added.
        let (mut both, mut biases) = (vec![0.0; gradient.len()], vec![0.0; INPUT]);
        let mut first = vec![0.0; mine1.len()];
        for add in [false, true] {
            let (mut dh, mut dx) = (vec![0.0; ROWS * own.len()], vec![0.0; ROWS * INPUT]);
            one.forward(&x, &mine1, None, &mut hidden, &mut [], None).unwrap();
            two.forward(&hidden, &mine2, Some(&bias), &mut output, &mut [], None).unwrap();
            let db = Some(&mut biases[..]);
            two.backward(&hidden, &dy, &mine2, &mut dh, &mut [], &mut both, db, add, None).unwrap();
            one.backward(&x, &dh, &mine1, &mut dx, &mut [], &mut first, None, add, None).unwrap();
            assert_eq!(dh, hidden_gradient);
            assert_eq!(dx, input_gradient);
        }
        assert_eq!(both, gradient);
        assert_eq!(biases, bias_gradient);
        let dw1 = product(&turned(&dh, HIDDEN), &x, HIDDEN, ROWS, INPUT);
        let dw1: Vec<f32> =
            dw1[own.start * INPUT..own.end * INPUT].iter().map(|v| 2.0 * v).collect();
        assert_eq!(first, dw1);
        let mut dx = vec![0.0; ROWS * INPUT];
        let short = &mut first[1..];
        fails(
            one.backward(&x, &hidden_gradient, &mine1, &mut dx, &mut [], short, None, false, None),
            Status::InvalidArgument,
        );
    });
}

#[test]
fn an_mlp_is_the_same_with_rows_split_and_whole() {
    ranks(2, |group| {
        let run = |sequence: bool| {
            let row_tile = if sequence { 1 } else { 0 };
            let options =
                TensorOptions { sequence, keep_gathered: sequence, row_tile, ..options() };
            let tensor = Tensor::new(group, &options).unwrap();
            let options = MlpOptions {
                name: "mlp",
                activation: Activation::Swiglu,
                input: INPUT as u64,
                hidden: HIDDEN as u64,
                output: INPUT as u64,
                rows: ROWS as u64,
                bias: true,
            };
            let mut mlp = Mlp::<f32>::new(&tensor, &options).unwrap();
            let info = mlp.info().unwrap();
            assert_eq!(info.tile_rows, if sequence { 1 } else { ROWS as u64 });
            let (rows, count) = (info.fc1_rows as usize, info.count as usize);
            let first =
                if sequence { tensor.range(ROWS as u64).unwrap().start as usize } else { 0 };
            let own = first * INPUT..first * INPUT + info.input_count;
            let (x, dy) = (whole(ROWS * INPUT, 1)[own.clone()].to_vec(), whole(ROWS * INPUT, 5));
            let dy = dy[own].to_vec();
            let (w1, b1) = (whole(rows * INPUT, 7), whole(rows, 8));
            let (w2, b2) = (whole(INPUT * count, 9), whole(INPUT, 10));
            let weights = MlpWeights {
                fc1_weight: &w1,
                fc1_bias: Some(&b1),
                fc2_weight: &w2,
                fc2_bias: Some(&b2),
            };
            let mut kept = vec![0; info.kept_bytes];
            let (mut y, mut dx) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            mlp.forward(&x, &weights, &mut y, &mut kept, None).unwrap();
            mlp.backward_input(&dy, &weights, &mut dx, &mut kept, None).unwrap();
            let mut found = [w1.clone(), b1.clone(), w2.clone(), b2.clone()];
            let [d1, e1, d2, e2] = &mut found;
            let gradients = MlpGradients {
                fc1_weight: d1,
                fc1_bias: Some(e1),
                fc2_weight: d2,
                fc2_bias: Some(e2),
            };
            // `kept` has both already, where they were gathered and kept.
            let (read, given) = if sequence { (&[][..], &[][..]) } else { (&x[..], &dy[..]) };
            mlp.backward_weight(read, given, &kept, gradients, false, None).unwrap();
            let info = mlp.info().unwrap();
            assert_eq!((info.backward_input_passes, info.backward_weight_passes), (1, 1));
            assert!(info.workspace_bytes > 0 && info.backward_input_bytes > 0);
            assert_ne!(found[0], w1);
            let mut again = [w1.clone(), b1.clone(), w2.clone(), b2.clone()];
            let [d1, e1, d2, e2] = &mut again;
            let gradients = MlpGradients {
                fc1_weight: d1,
                fc1_bias: Some(e1),
                fc2_weight: d2,
                fc2_bias: Some(e2),
            };
            let mut dx_again = vec![0.0; x.len()];
            mlp.forward(&x, &weights, &mut y, &mut kept, None).unwrap();
            mlp.backward(read, &dy, &weights, &mut dx_again, &mut kept, gradients, false, None)
                .unwrap();
            assert_eq!((&again, &dx_again), (&found, &dx));
            found
        };
        assert_eq!(run(false), run(true));
    });
}

#[test]
fn arrays_and_providers_are_checked() {
    ranks(1, |group| {
        let tensor = Tensor::new(group, &options()).unwrap();
        let layer = LinearOptions::column("x", 2, 2, 1);
        let mut linear = Linear::<f32>::new(&tensor, &layer).unwrap();
        let mut out = [0.0; 2];
        fails(
            linear.forward(&[0.0; 2], &[0.0; 2], None, &mut out, &mut [], None),
            Status::InvalidArgument,
        );
        fails(
            linear.backward_input(&[0.0; 2], &[0.0; 4], &mut out, &mut [], None),
            Status::InvalidState,
        );
        fails(
            Linear::<Bf16>::new(&tensor, &LinearOptions { name: "y", ..layer }),
            Status::InvalidArgument,
        );
        Linear::<Bf16, f32>::new(&tensor, &LinearOptions { name: "z", ..layer }).unwrap();
        let plain = Tensor::new(group, &TensorOptions::default()).unwrap();
        fails(Linear::<f32>::new(&plain, &layer), Status::InvalidState);
        let gemm = Some(Gemm::Loaded { library: Some("libno.so,libneither.so"), threads: 0 });
        fails(
            Tensor::new(group, &TensorOptions { gemm, ..TensorOptions::default() }),
            Status::Unsupported,
        );
    });
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
    assert!(p.left::<f64>().is_none() && p.result_row::<Bf16>(0).is_none());
    Ok(())
}

#[test]
fn products_of_the_caller_are_those_that_layers_use() {
    ranks(3, |group| {
        let (x, w) = (whole(ROWS * INPUT, 1), whole(HIDDEN * INPUT, 2));
        let y = product(&x, &turned(&w, INPUT), ROWS, INPUT, HIDDEN);
        let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let calls = count.clone();
        let options = TensorOptions { blocks: 3, ..TensorOptions::default() };
        let tensor = Tensor::with_products(group, &options, move |p| {
            calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            multiply(p)
        })
        .unwrap();
        let own = tensor.range(HIDDEN as u64).unwrap();
        let own = own.start as usize..own.end as usize;
        let of_layer = LinearOptions::column("fc1", INPUT as u64, HIDDEN as u64, ROWS as u64);
        let mut layer = Linear::<f32>::new(&tensor, &of_layer).unwrap();
        drop(tensor); // the closure lives as long as the layer
        let mine = &w[own.start * INPUT..own.end * INPUT];
        let mut output = vec![f32::NAN; ROWS * own.len()];
        layer.forward(&x, mine, None, &mut output, &mut [], None).unwrap();
        assert_eq!(output, columns_of(&y, HIDDEN, own.clone()));
        assert!(count.load(std::sync::atomic::Ordering::SeqCst) > 0);
        drop(layer);
        assert_eq!(std::sync::Arc::strong_count(&count), 1, "the closure is gone");
        let both = TensorOptions { gemm: Some(Gemm::Builtin), ..options };
        let refused = Tensor::with_products(group, &both, multiply).unwrap_err();
        assert_eq!(refused.status(), Status::InvalidArgument);
    });
}

/// Output and gradient of an MLP with weights of 1.
fn activated(mlp: &mut Mlp<f32>) -> trireme::Result<Vec<f32>> {
    let inputs: Vec<f32> = (-4..5).map(|i| i as f32).collect();
    let (mut output, mut gradient) = (vec![0.0; 9], vec![0.0; 9]);
    let gated = mlp.info()?.fc1_rows as usize;
    let ones = vec![1.0; gated];
    let weights =
        MlpWeights { fc1_weight: &ones, fc1_bias: None, fc2_weight: &[1.0], fc2_bias: None };
    let mut kept = vec![0; mlp.info()?.kept_bytes];
    mlp.forward(&inputs, &weights, &mut output, &mut kept, None)?;
    mlp.backward_input(&[1.0; 9], &weights, &mut gradient, &mut kept, None)?;
    output.append(&mut gradient);
    Ok(output)
}

#[test]
fn activations_of_the_caller_are_those_that_mlps_use() {
    ranks(1, |group| {
        let tensor = Tensor::new(group, &options_of_one()).unwrap();
        let of_mlp = |name, activation| MlpOptions {
            name,
            activation,
            input: 1,
            hidden: 1,
            output: 1,
            rows: 9,
            bias: false,
        };
        let forward = |call: &mut ActivationCall<'_, f32>| {
            for (to, x) in call.result.iter_mut().zip(call.input) {
                *to = x.max(0.0);
            }
            Ok(())
        };
        let backward = |call: &mut ActivationCall<'_, f32>| {
            for (i, x) in call.input.iter().enumerate() {
                call.result[i] = if *x > 0.0 { call.output_gradient[i] } else { 0.0 };
            }
            Ok(())
        };
        let own = of_mlp("own", Activation::Caller);
        let mut own = Mlp::with_activation(&tensor, &own, forward, backward).unwrap();
        let mut library = Mlp::new(&tensor, &of_mlp("library", Activation::Relu)).unwrap();
        assert_eq!(activated(&mut own).unwrap(), activated(&mut library).unwrap());
        let mut gelu = Mlp::new(&tensor, &of_mlp("gelu", Activation::Gelu)).unwrap();
        assert_eq!(activated(&mut gelu).unwrap()[5], 0.841_344_746_068_542_9_f64 as f32);

        // Gate times value, which are equal here.
        let gated = of_mlp("gated", Activation::GatedCaller);
        let mut gated = Mlp::with_activation(
            &tensor,
            &gated,
            |call| {
                assert_eq!((call.columns, call.input_columns), (1, 2));
                for (to, x) in call.result.iter_mut().zip(call.input.chunks(2)) {
                    *to = x[0] * x[1];
                }
                Ok(())
            },
            |_: &mut ActivationCall<'_, f32>| Err("no slope".into()),
        )
        .unwrap();
        let failed = activated(&mut gated).unwrap_err();
        assert_eq!(failed.status(), Status::Callback);
        assert!(failed.to_string().contains("no slope"), "{failed}");
        assert!(Mlp::<f32>::new(&tensor, &of_mlp("none", Activation::Caller)).is_err());
        let silu = of_mlp("silu", Activation::Silu);
        assert!(Mlp::<f32>::with_activation(&tensor, &silu, forward, backward).is_err());
    });
}

fn options_of_one() -> TensorOptions<'static> {
    TensorOptions { gemm: Some(Gemm::Builtin), ..TensorOptions::default() }
}

#[test]
fn a_closure_that_panics_fails_all_ranks() {
    ranks(2, |group| {
        let fails = group.rank() == 1;
        let tensor = Tensor::with_products(group, &TensorOptions::default(), move |p| {
            assert!(!fails, "of rank 1");
            multiply(p)
        })
        .unwrap();
        let row = LinearOptions::row("row", 2, 2, 1);
        let mut layer = Linear::<f32>::new(&tensor, &row).unwrap();
        let (one, mut two) = ([1.0], [0.0; 2]);
        let failed = layer.forward(&one, &[1.0; 2], None, &mut two, &mut [], None).unwrap_err();
        assert_eq!(failed.status(), Status::Callback);
        assert_eq!(failed.to_string().contains("panicked: of rank 1"), fails, "{failed}");
    });
}
