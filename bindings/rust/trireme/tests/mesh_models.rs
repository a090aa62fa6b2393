//! Models on meshes: the axes tell how a model lies.

mod support;

use support::{fails, ranks};
use trireme::{
    Communicator, Dtype, Mesh, MeshOptions, Model, ModelOptions, Optimizer, OptimizerOptions,
    Parameter, Placement, Result, RuleKind, Status, Strategy,
};

fn common(name: &str) -> Parameter<'_> {
    let placements = &[("tensor", Placement::Whole)];
    Parameter { placements, ..Parameter::new(name, Dtype::F32, &[1]) }
}

#[test]
fn a_mesh_trains_as_one_process() {
    ranks(4, |communicator| {
        let axes = [("data", 2), ("tensor", 2)];
        let mesh = Mesh::new(communicator, &axes, &MeshOptions::default()).unwrap();
        let at = mesh.coordinates(communicator.rank()).unwrap();
        let hook_ran = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let ran = hook_ran.clone();
        let options = ModelOptions::new(Strategy::Zero1);
        let mut model = Model::on_mesh_with_hook(&mesh, &options, move |_| {
            ran.store(true, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
        model.add_parameter(&Parameter::new("part", Dtype::F32, &[1])).unwrap();
        model.add_parameter(&common("common")).unwrap();
        model.seal().unwrap();
        let rule = OptimizerOptions::new(RuleKind::Sgd).learning_rate(1.0).max_norm(1.5);
        let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
        // Averages over "data" are 1 and 2 of "part", and 2 of "common".
        let part = 1.0 + at[1] as f32 + if at[0] == 0 { -0.5 } else { 0.5 };
        model.accumulate_flat(&[part, if at[0] == 0 { 1.0 } else { 3.0 }]).unwrap();
        optimizer.step(&mut model).unwrap();
        assert_eq!(optimizer.gradient_norm().unwrap(), 3.0); // 1 + 4 + 4
        let expected = [(at[1] as f32 + 1.0) / -2.0, -1.0];
        assert_eq!(model.get_parameters::<f32>().unwrap(), expected);
        assert!(hook_ran.load(std::sync::atomic::Ordering::Relaxed));
    });
}

#[test]
fn summands_are_added_up_along_an_axis() {
    ranks(4, |communicator| {
        let axes = [("data", 2), ("tensor", 2)];
        let mesh = Mesh::new(communicator, &axes, &MeshOptions::default()).unwrap();
        let mut model = Model::on_mesh(&mesh, &ModelOptions::new(Strategy::Zero2)).unwrap();
        let placements = &[("tensor", Placement::Shared)];
        let norm = Parameter { placements, ..Parameter::new("norm", Dtype::F32, &[2]) };
        model.add_parameter(&norm).unwrap();
        model.seal().unwrap();
        let rule = OptimizerOptions::new(RuleKind::Sgd).learning_rate(1.0);
        let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
        let rank = communicator.rank() as f32;
        model.accumulate_flat(&[rank + 1.0, rank * 10.0]).unwrap();
        optimizer.step(&mut model).unwrap();
        assert_eq!(model.get_parameters::<f32>().unwrap(), [-5.0, -30.0]); // halves of 10 and 60
    });
}

#[test]
fn parts_make_the_whole() {
    let seal = |communicator: &Communicator, parts: [&[(u64, u64)]; 2]| -> Result<()> {
        let axes = [("data", 1), ("tensor", 2)];
        let mesh = Mesh::new(communicator, &axes, &MeshOptions::default())?;
        let mut model = Model::on_mesh(&mesh, &ModelOptions::new(Strategy::Zero2))?;
        let stretches = parts[mesh.coordinates(communicator.rank())?[1] as usize];
        let placements = &[("tensor", Placement::Split { dimension: 1, extent: 12, stretches })];
        let qkv = Parameter { placements, ..Parameter::new("qkv", Dtype::F32, &[4, 6]) };
        model.add_parameter(&qkv)?;
        model.seal()?;
        // The parts are one matrix, and each rank keeps its own.
        let rule = OptimizerOptions::new(RuleKind::Muon).learning_rate(1.0);
        let mut optimizer = Optimizer::new(&mut model, &rule)?;
        let on_diagonal = |i: usize| i / 6 == i % 6;
        let gradient: Vec<f32> = (0..24).map(|i| f32::from(u8::from(on_diagonal(i)))).collect();
        model.accumulate_flat(&gradient)?;
        optimizer.step(&mut model)?;
        for (i, value) in model.get_parameters::<f32>()?.into_iter().enumerate() {
            assert_eq!(value < -0.1, on_diagonal(i));
        }
        Ok(())
    };
    ranks(2, |communicator| {
        let thirds: [&[(u64, u64)]; 2] = [&[(0, 2), (4, 2), (8, 2)], &[(2, 2), (6, 2), (10, 2)]];
        seal(communicator, thirds).unwrap();
        fails(seal(communicator, [&[(0, 6)], &[(5, 6)]]), Status::InvalidArgument);
        fails(seal(communicator, [&[(0, 5)], &[(0, 5)]]), Status::InvalidArgument);
    });
}

#[test]
fn what_contradicts_the_axes_is_refused() {
    ranks(1, |communicator| {
        let axes = [("data", 1), ("tensor", 1)];
        let mesh = Mesh::new(communicator, &axes, &MeshOptions::default()).unwrap();
        let hybrid = ModelOptions::new(Strategy::HybridShard);
        fails(Model::on_mesh(&mesh, &hybrid), Status::InvalidArgument);
        let options = ModelOptions::new(Strategy::Zero1);
        let mut model = Model::on_mesh(&mesh, &options).unwrap();
        model.add_parameter(&common("x")).unwrap();
        for axis in ["data", "tensors", "a\0b"] {
            let placements = &[(axis, Placement::Whole)];
            let wrong = Parameter { placements, ..Parameter::new("y", Dtype::F32, &[1]) };
            fails(model.add_parameter(&wrong), Status::InvalidArgument);
        }
        model.seal().unwrap();
        let rule = OptimizerOptions::new(RuleKind::Sgd).max_norm(1.0).norm_ranks(communicator);
        fails(Optimizer::new(&mut model, &rule), Status::InvalidArgument);
        let mut plain = Model::new(communicator, &options).unwrap();
        fails(plain.add_parameter(&common("x")), Status::InvalidArgument);
    });
}
