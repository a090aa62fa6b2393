//! digits: workers train one classifier of handwritten digits, each on its leaves of every batch.
//!
//!   $ cd bindings/rust && cargo build --release --offline --example digits && cd ../..
//!   $ trireme run --nproc-per-node 4 -- bindings/rust/target/release/examples/digits --strategy
//!   zero3 language=rust strategy=zero3 ranks=4 mode=processes accuracy=98.33 seconds=0.412 ...
//!   $ bindings/rust/target/release/examples/digits --threads 4     the same with ranks as threads
//! The trained parameters are the same bits for every strategy and every number of ranks.

use std::error::Error;
use std::process::{Command, ExitCode};
use std::time::Instant;

use trireme::{
    Communicator, CommunicatorOptions, Dtype, Gradients, Model, ModelOptions, Optimizer,
    OptimizerOptions, Parameter, RuleKind, Strategy,
};

const WIDTH: [usize; 4] = [64, 128, 64, 10];
const LAYERS: usize = WIDTH.len() - 1;
const BATCH: usize = 64;
const LEAVES: usize = 8;
const LEAF: usize = BATCH / LEAVES;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Words of the command line, and data. Every rank reads them, and none writes them.
struct Job {
    strategy: Strategy,
    threads: i32,
    passes: usize,
    data: String,
    out: Option<String>,
    images: Vec<Vec<f32>>,
    labels: Vec<usize>,
}

fn read_command_line() -> Outcome<Job> {
    let mut job = Job {
        strategy: Strategy::DataParallel,
        threads: 0,
        passes: 20,
        data: "examples/data/digits.csv.gz".into(),
        out: None,
        images: Vec::new(),
        labels: Vec::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or("every option takes a value")?;
        match option.as_str() {
            "--strategy" => job.strategy = value.parse()?,
            "--threads" => job.threads = value.parse()?,
            "--passes" => job.passes = value.parse()?,
            "--data" => job.data = value,
            "--out" => job.out = Some(value),
            _ => return Err("options: --strategy --threads --passes --data --out".into()),
        }
    }
    if !(0..=64).contains(&job.threads) {
        return Err("--threads takes 1 to 64".into());
    }
    Ok(job)
}

fn read_data(job: &mut Job) -> Outcome<()> {
    let gzip = Command::new("gzip").args(["-dc", &job.data]).output()?;
    if !gzip.status.success() {
        return Err(format!("{} cannot be unpacked", job.data).into());
    }
    for line in String::from_utf8(gzip.stdout)?.lines() {
        let numbers: Vec<u8> = line.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let (label, pixels) = numbers.split_last().ok_or("an empty line in the data")?;
        job.images.push(pixels.iter().map(|&pixel| f32::from(pixel) / 16.0).collect());
        job.labels.push(usize::from(*label));
    }
    if job.images.len() != 1797 || job.images.iter().any(|image| image.len() != WIDTH[0]) {
        return Err("the data is not the digits file".into());
    }
    Ok(())
}

/// splitmix64
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn initial_values(random: &mut Random) -> Vec<f32> {
    let mut values = Vec::new();
    for layer in 0..LAYERS {
        let limit = (6.0 / WIDTH[layer] as f64).sqrt();
        for _ in 0..WIDTH[layer] * WIDTH[layer + 1] {
            let unit = (random.next() >> 40) as f64 / f64::from(1 << 24);
            values.push(((2.0 * unit - 1.0) * limit) as f32);
        }
        values.resize(values.len() + WIDTH[layer + 1], 0.0);
    }
    values
}

/// One layer of one sample: bias + input * weight, then ReLU except for the last.
fn forward(layer: usize, weight: &[f32], bias: &[f32], input: &[f32]) -> Vec<f32> {
    let mut output = bias.to_vec();
    for (&x, row) in input.iter().zip(weight.chunks_exact(bias.len())) {
        for (sum, w) in output.iter_mut().zip(row) {
            *sum += x * w;
        }
    }
    if layer < LAYERS - 1 {
        output.iter_mut().for_each(|z| *z = if *z > 0.0 { *z } else { 0.0 });
    }
    output
}

/// Gradient of the cross-entropy of softmax, as its share of the whole batch.
fn output_delta(scores: &[f32], label: usize) -> Vec<f32> {
    let largest = scores.iter().fold(f64::NEG_INFINITY, |most, &z| most.max(f64::from(z)));
    let powers: Vec<f64> = scores.iter().map(|&z| (f64::from(z) - largest).exp()).collect();
    let sum = powers.iter().fold(0.0, |sum, power| sum + power);
    let target = |class| f64::from(u8::from(class == label));
    let share = |(class, power)| ((power / sum - target(class)) * (1.0 / BATCH as f64)) as f32;
    powers.iter().enumerate().map(share).collect()
}

/// One micro-batch: forward and backward of the leaf's samples, a unit gathered only while it is
/// used. Without samples the rank only takes part in the gathers.
fn train_leaf(model: &mut Model, job: &Job, samples: &[usize]) -> trireme::Result<()> {
    // By layer, then by sample: what goes into each layer, and the scores.
    let images = samples.iter().map(|&sample| job.images[sample].clone()).collect();
    let mut inputs: Vec<Vec<Vec<f32>>> = vec![images];
    for layer in 0..LAYERS {
        model.gather_unit(layer)?;
        let (weight, bias) = (model.parameter(2 * layer)?, model.parameter(2 * layer + 1)?);
        let outputs = inputs[layer].iter().map(|input| forward(layer, weight, bias, input));
        inputs.push(outputs.collect());
        model.release_unit(layer)?;
    }

    let scores = inputs[LAYERS].iter().zip(samples);
    let mut deltas: Vec<Vec<f32>> =
        scores.map(|(scores, &sample)| output_delta(scores, job.labels[sample])).collect();
    if !samples.is_empty() {
        model.begin_backward()?;
    }
    for layer in (0..LAYERS).rev() {
        model.gather_unit(layer)?;
        if !samples.is_empty() {
            let weight: &[f32] = model.parameter(2 * layer)?;
            let columns = WIDTH[layer + 1];
            let mut gradient = vec![0.0; weight.len()];
            let mut bias_gradient = vec![0.0; columns];
            for (input, delta) in inputs[layer].iter().zip(&mut deltas) {
                for (&x, row) in input.iter().zip(gradient.chunks_exact_mut(columns)) {
                    row.iter_mut().zip(&*delta).for_each(|(sum, d)| *sum += x * d);
                }
                bias_gradient.iter_mut().zip(&*delta).for_each(|(sum, d)| *sum += d);
                let below = input.iter().zip(weight.chunks_exact(columns)).map(|(&h, row)| {
                    let sum = delta.iter().zip(row).fold(0.0, |sum, (d, w)| sum + d * w);
                    if h > 0.0 {
                        sum
                    } else {
                        0.0
                    }
                });
                *delta = below.collect();
            }
            model.gradient_ready(2 * layer, &gradient)?;
            model.gradient_ready(2 * layer + 1, &bias_gradient)?;
        }
        model.release_unit(layer)?;
    }
    if samples.is_empty() {
        return Ok(());
    }
    model.end_backward()
}

fn accuracy(job: &Job, parameters: &[f32]) -> f64 {
    let rows: Vec<usize> = (4..job.images.len()).step_by(5).collect();
    let right = rows.iter().filter(|&&row| {
        let (mut values, mut rest) = (job.images[row].clone(), parameters);
        for layer in 0..LAYERS {
            let (weight, after) = rest.split_at(WIDTH[layer] * WIDTH[layer + 1]);
            let (bias, after) = after.split_at(WIDTH[layer + 1]);
            values = forward(layer, weight, bias, &values);
            rest = after;
        }
        let best =
            (1..values.len()).fold(0, |best, c| if values[c] > values[best] { c } else { best });
        best == job.labels[row]
    });
    100.0 * right.count() as f64 / rows.len() as f64
}

fn make_model(communicator: &Communicator, job: &Job) -> trireme::Result<Model> {
    let options = ModelOptions::new(job.strategy).leaves(LEAVES as u32).gradients(Gradients::Sum);
    let mut model = Model::new(communicator, &options)?;
    for (layer, unit) in ["layer1", "layer2", "layer3"].into_iter().enumerate() {
        let shape = [WIDTH[layer] as u64, WIDTH[layer + 1] as u64];
        for (name, shape) in [("weight", &shape[..]), ("bias", &shape[1..])] {
            let name = format!("{unit}.{name}");
            let parameter = Parameter::new(&name, Dtype::F32, shape);
            model.add_parameter(&Parameter { unit: Some(unit), ..parameter })?;
        }
    }
    model.seal().map(|()| model)
}

/// Everything one rank does.
fn train(communicator: &Communicator, mode: &str, job: &Job) -> Outcome<()> {
    let mut random = Random(2026);
    let mut model = make_model(communicator, job)?;
    model.set_parameters(Some(&initial_values(&mut random)), 0)?;
    let options = OptimizerOptions::new(RuleKind::AdamW)
        .learning_rate(0.003)
        .weight_decay(0.01)
        .max_norm(1.0);
    let mut optimizer = Optimizer::new(&mut model, &options)?;

    let info = model.info()?;
    let mut order: Vec<usize> = (0..job.images.len()).filter(|row| row % 5 != 4).collect();
    let start = Instant::now();
    for _ in 0..job.passes {
        for i in (1..order.len()).rev() {
            order.swap(i, (random.next() % (i as u64 + 1)) as usize);
        }
        for batch in order.chunks_exact(BATCH) {
            let leaves: Vec<&[usize]> = batch.chunks_exact(LEAF).collect();
            for micro_batch in 0..info.micro_batches {
                let leaf = model.leaf(micro_batch)?;
                train_leaf(&mut model, job, leaf.map_or(&[], |leaf| leaves[leaf as usize]))?;
            }
            optimizer.step(&mut model)?;
        }
    }
    let seconds = start.elapsed().as_secs_f64();

    let parameters: Vec<f32> = model.get_parameters()?;
    if info.rank == 0 {
        let memory = model.memory()?;
        let bytes = [
            ("parameters", memory.planned_parameters, memory.allocated_parameters),
            ("gradients", memory.planned_gradients, memory.allocated_gradients),
            ("state", memory.planned_optimizer_state, memory.allocated_optimizer_state),
            ("working", memory.planned_working, memory.allocated_working),
        ]
        .map(|(kind, planned, allocated)| format!("{kind}={planned}/{allocated}"));
        print!("language=rust strategy={} ranks={} ", info.strategy, info.world_size);
        let (accuracy, bytes) = (accuracy(job, &parameters), bytes.join(" "));
        println!("mode={mode} accuracy={accuracy:.2} seconds={seconds:.3} {bytes}");
        if let Some(path) = &job.out {
            let bytes: Vec<u8> = parameters.iter().flat_map(|value| value.to_le_bytes()).collect();
            std::fs::write(path, bytes)?;
        }
    }
    Ok(())
}

fn run() -> Outcome<()> {
    let mut job = read_command_line()?;
    read_data(&mut job)?;
    if job.threads == 0 {
        let launched = std::env::var_os("RANK").is_some();
        let (mode, options) = if launched {
            ("processes", CommunicatorOptions::from_environment())
        } else {
            ("alone", CommunicatorOptions::new("local://digits", 0, 1))
        };
        return train(&Communicator::new(&options)?, mode, &job);
    }
    let (job, rendezvous) = (&job, &format!("local://digits-{}", std::process::id()));
    std::thread::scope(|scope| {
        let rank = |rank| {
            let join = move || Communicator::join(rendezvous, rank, job.threads);
            scope.spawn(move || train(&join()?, "threads", job))
        };
        let ranks: Vec<_> = (0..job.threads).map(rank).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("a rank panicked"))
    })
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
