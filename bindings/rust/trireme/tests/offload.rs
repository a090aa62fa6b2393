//! Optimizer state in a file trains to the same bits, and can be read and written.

mod support;

use std::path::{Path, PathBuf};
use std::{env, fs, process};

use support::{fails, ranks};
use trireme::{
    Communicator, Dtype, Model, ModelOptions, Offload, Optimizer, OptimizerOptions, Parameter,
    RuleKind, Shards, Share, State, Status, Strategy, Units,
};

const ELEMENTS: usize = 5000;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("trireme-{name}-{}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).unwrap(); // and nothing in it
    }
}

fn model(communicator: &Communicator) -> Model {
    let mut model = Model::new(communicator, &ModelOptions::new(Strategy::Zero1)).unwrap();
    model.add_parameter(&Parameter::new("a", Dtype::F32, &[ELEMENTS as u64])).unwrap();
    model.seal().unwrap();
    let start: Vec<f32> = (0..ELEMENTS).map(|i| (i % 7) as f32 - 3.0).collect();
    model.set_parameters(Some(&start), 0).unwrap();
    model
}

fn train(communicator: &Communicator, model: &mut Model, optimizer: &mut Optimizer) {
    for step in 0..3 {
        let shift = step + communicator.rank() as usize;
        let gradient: Vec<f32> =
            (0..ELEMENTS).map(|i| ((3 * i + shift) % 11) as f32 - 4.5).collect();
        model.accumulate_flat(&gradient).unwrap();
        optimizer.step(model).unwrap();
    }
}

fn in_file(path: &Path) -> Offload<'_> {
    Offload { buffer_bytes: 32768, ..Offload::new(path) }
}

#[test]
fn the_bits_are_the_same_and_ranges_are_copied() {
    let folder = Folder::new("offload");
    let path = folder.0.clone();
    ranks(2, move |communicator| {
        let options = OptimizerOptions::new(RuleKind::Adam);
        let mut plain = model(communicator);
        let mut plain_rule = Optimizer::new(&mut plain, &options).unwrap();
        train(communicator, &mut plain, &mut plain_rule);
        let mut model = model(communicator);
        let mut rule = Optimizer::new(&mut model, &options.offload(in_file(&path))).unwrap();
        train(communicator, &mut model, &mut rule);
        assert_eq!(plain_rule.save(&plain).unwrap(), rule.save(&model).unwrap());
        let info = rule.offload_info().unwrap();
        assert_eq!(Path::new(&info.path), path);
        assert_eq!(
            (info.direct(), info.io_uring()),
            (info.why_not_direct.is_empty(), info.why_not_io_uring.is_empty())
        );
        assert_eq!((info.resident_bytes, info.failed_writes, info.failed_errno), (0, 0, 0));
        assert_eq!(info.written_bytes, 3 * info.file_bytes);

        let kinds: Vec<_> =
            rule.ranges(&model).unwrap().iter().map(|range| (range.state, range.count)).collect();
        for (index, (state, count)) in kinds.into_iter().enumerate() {
            let mut values = vec![0f32; count];
            rule.read_range(&model, index, &mut values).unwrap();
            let found = rule.ranges(&model).unwrap()[index];
            if state == State::Parameter {
                assert_eq!(found.data::<f32>().unwrap(), values);
                continue;
            }
            fails(found.data::<f32>(), Status::InvalidArgument);
            assert!(found.as_mut_ptr().is_null());
            values.iter_mut().for_each(|value| *value = *value * 2.0 + 1.0);
            rule.write_range(&mut model, index, &values).unwrap();
            let mut again = vec![0f32; count];
            rule.read_range(&model, index, &mut again).unwrap();
            assert_eq!(values, again);
            fails(rule.read_range(&model, index, &mut again[1..]), Status::InvalidArgument);
            fails(rule.write_range(&mut model, index, &[1f64]), Status::InvalidArgument);
        }
    });
}

#[test]
fn parameters_in_a_file_have_the_same_bits() {
    let folder = Folder::new("parameters");
    let path = folder.0.clone();
    ranks(2, move |communicator| {
        let mut saved = Vec::new();
        for in_the_file in [false, true] {
            let options = ModelOptions {
                shards: Shards { share: Share::Never, ..Shards::default() },
                offload: in_the_file.then(|| Offload { ratio: 0.5, ..in_file(&path) }),
                units: Units { minimum_bytes: 1, ..Units::default() },
                ..ModelOptions::new(Strategy::Zero3)
            };
            let mut model = Model::new(communicator, &options).unwrap();
            for name in ["a", "b"] {
                let shape = [ELEMENTS as u64];
                model.add_parameter(&Parameter::new(name, Dtype::F32, &shape)).unwrap();
            }
            model.seal().unwrap();
            let start: Vec<f32> = (0..2 * ELEMENTS).map(|i| (i % 7) as f32 - 3.0).collect();
            model.set_parameters(Some(&start), 0).unwrap();
            let mut rule =
                Optimizer::new(&mut model, &OptimizerOptions::new(RuleKind::Adam)).unwrap();
            model.accumulate_flat(&start).unwrap();
            rule.step(&mut model).unwrap();
            saved.push(rule.save(&model).unwrap());
            let range = rule.ranges(&model).unwrap()[0];
            assert_eq!(range.state, State::Parameter);
            assert_eq!(range.data::<f32>().is_err(), in_the_file);
            let mut values = vec![0f32; range.count];
            rule.read_range(&model, 0, &mut values).unwrap();
            rule.write_range(&mut model, 0, &values).unwrap();
            assert_eq!(rule.save(&model).unwrap(), saved[0]);
            if !in_the_file {
                fails(model.offload_info(), Status::InvalidState);
                continue;
            }
            let info = model.offload_info().unwrap();
            assert_eq!(Path::new(&info.path), path);
            assert!(info.file_bytes > 0 && info.resident_bytes > 0 && info.written_bytes > 0);
            assert_eq!(model.memory().unwrap().allocated_parameters, info.resident_bytes);
        }
        assert_eq!(saved[0], saved[1]);
        for (strategy, offload, status) in [
            (Strategy::Zero1, in_file(&path), Status::Unsupported),
            (Strategy::Zero3, in_file(Path::new("a\0b")), Status::InvalidArgument),
            (
                Strategy::Zero3,
                Offload { buffer_bytes: 100, ..in_file(&path) },
                Status::InvalidArgument,
            ),
        ] {
            fails(Model::new(communicator, &ModelOptions::new(strategy).offload(offload)), status);
        }
    });
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = Folder::new("refused");
    let path = folder.0.clone();
    ranks(1, move |communicator| {
        let options = OptimizerOptions::new(RuleKind::Adam);
        let mut model = model(communicator);
        for (offload, status) in [
            (Offload { ratio: 1.5, ..in_file(&path) }, Status::InvalidArgument),
            (Offload { buffer_bytes: 100, ..in_file(&path) }, Status::InvalidArgument),
            (in_file(Path::new("a\0b")), Status::InvalidArgument),
            (in_file(Path::new("/nowhere/at/all")), Status::System),
        ] {
            fails(Optimizer::new(&mut model, &options.offload(offload)), status);
        }
        let stateless = OptimizerOptions::new(RuleKind::Sgd).offload(in_file(&path));
        fails(Optimizer::new(&mut model, &stateless), Status::InvalidArgument);
        let plain = Optimizer::new(&mut model, &options).unwrap();
        fails(plain.offload_info(), Status::InvalidState);
    });
}
