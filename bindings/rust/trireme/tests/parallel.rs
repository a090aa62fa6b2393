//! Parallel objects: places, groups, schedules, cuts, rows, and models on all axes.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use support::{fails, ranks};
use trireme::{
    Axes, Bucket, Communicator, Contents, Dtype, Gemm, Gradients, GroupOptions, HookMoment,
    LayerCosts, Model, ModelOptions, Optimizer, OptimizerOptions, Parallel, ParallelOptions,
    Parameter, PipelineCosts, PipelineFormat, PipelinePlacement, RuleKind, StageCosts, Status,
    Strategy, TensorOptions, REST,
};

fn members(group: &Communicator) -> Vec<i32> {
    let numbers = group.ranks().unwrap();
    let mut seen = vec![0; numbers.len()];
    group.all_gather(&[numbers[group.rank() as usize]], &mut seen).unwrap();
    seen
}

#[test]
fn every_rank_has_its_place() {
    ranks(8, |group| {
        let options = ParallelOptions {
            data: REST,
            tensor: 2,
            pipeline: 2,
            micro_batches: 4,
            timeout: Some(support::LONG),
            ..ParallelOptions::default()
        };
        let parallel = Parallel::new(group, &options).unwrap();
        let own = group.rank();
        let info = parallel.info().unwrap();
        assert_eq!((info.world_size, info.rank, info.readers), (8, own, 2));
        assert_eq!(info.sizes, [2, 1, 2, 2, 1, 1]);
        assert_eq!((info.reader, info.micro_batches), (own >> 1 & 1, 4));
        for rank in 0..8 {
            let place = parallel.coordinates(rank).unwrap();
            assert_eq!(place, [rank >> 1 & 1, 0, rank & 1, rank >> 2, 0, 0]);
            assert_eq!(parallel.rank(place).unwrap(), rank);
        }
        let along = |axes| members(&parallel.communicator(axes).unwrap());
        assert_eq!(along(Axes::TENSOR), [own & !1, own | 1]);
        assert_eq!(along(Axes::DATA), [own & !2, own | 2]);
        assert_eq!(along(Axes::GRADIENTS), [own & !2, own | 2]);
        assert_eq!(along(Axes::CONTEXT), [own]);
        assert_eq!(along(Axes::ALL), (0..8).collect::<Vec<_>>());
        fails(parallel.communicator(Axes::DATA | Axes::TENSOR), Status::InvalidArgument);
        let both = parallel
            .make_communicator(Axes::DATA | Axes::TENSOR, &GroupOptions::default())
            .unwrap();
        drop(parallel);
        assert_eq!(members(&both), (own & 4..(own & 4) + 4).collect::<Vec<_>>());
    });
}

#[test]
fn schedules_and_stages() {
    ranks(4, |group| {
        let options = ParallelOptions {
            pipeline: 4,
            micro_batches: 8,
            stages_per_rank: 2,
            order: Some("zbv"),
            ..ParallelOptions::default()
        };
        let parallel = Parallel::new(group, &options).unwrap();
        let info = parallel.info().unwrap();
        let own = group.rank() as u32;
        assert_eq!((info.makespan, info.span, info.kept_micro_batches), (25.5, 24.0, 8));
        assert_eq!((info.order, info.stages, info.own_stages), (Some("zbv"), 8, 2));
        assert_eq!((info.has_first_stage, info.has_last_stage), (own == 0, own == 0));
        assert_eq!(parallel.own_stages().unwrap(), [own, 7 - own]);
        assert_eq!(parallel.stages(1).unwrap(), [1, 6]);
        assert_eq!(parallel.stage_rank(6).unwrap(), 1);
        let schedule = parallel.schedule().unwrap();
        drop(parallel);
        let text = schedule.write(PipelineFormat::Text, None).unwrap();
        let options = ParallelOptions {
            pipeline: REST,
            schedule_text: Some(&text),
            ..ParallelOptions::default()
        };
        let again = Parallel::new(group, &options).unwrap().info().unwrap();
        assert_eq!((again.makespan, again.order, again.micro_batches), (25.5, None, 8));
    });
}

#[test]
fn the_best_schedule_is_within_the_limit() {
    ranks(3, |group| {
        let stage = |s| StageCosts {
            forward: 1.0 + f64::from(s) / 4.0,
            input: 1.0,
            weight: 1.0,
            kept_bytes: 10,
            held_bytes: 10,
            ..StageCosts::default()
        };
        let costs = PipelineCosts { stages: (0..3).map(stage).collect(), ..Default::default() };
        let mut options = ParallelOptions {
            pipeline: 3,
            micro_batches: 6,
            order: Some("best"),
            activation_limit_bytes: 30,
            ..ParallelOptions::default()
        };
        fails(Parallel::new(group, &options), Status::InvalidArgument);
        options.costs = Some(costs);
        let best = Parallel::new(group, &options).unwrap().info().unwrap();
        options.order = Some("1f1b");
        let named = Parallel::new(group, &options).unwrap().info().unwrap();
        assert!(best.makespan < named.makespan && best.kept_micro_batches <= 3);
    });
}

#[test]
fn cuts_and_rows() {
    ranks(4, |group| {
        let options = ParallelOptions {
            pipeline: 2,
            data: 2,
            micro_batches: 3,
            ..ParallelOptions::default()
        };
        let parallel = Parallel::new(group, &options).unwrap();
        // Each rank along "pipeline" has measured two layers.
        let stage = parallel.own_stages().unwrap()[0] as usize;
        let layers: Vec<_> = [5.0, 1.0, 2.0, 2.0]
            .iter()
            .enumerate()
            .map(|(i, &seconds)| LayerCosts {
                seconds: if i / 2 == stage { seconds } else { 0.0 },
                ..LayerCosts::default()
            })
            .collect();
        assert_eq!(parallel.partition(&layers).unwrap(), (vec![0, 1, 4], 5.0));
        let reader = parallel.info().unwrap().reader as u64;
        for k in 0..3 {
            let part = 2 * u64::from(k) + reader;
            assert_eq!(parallel.rows(13, k).unwrap(), part * 13 / 6..(part + 1) * 13 / 6);
        }
    });
}

#[test]
fn the_tensor_object_has_the_options() {
    ranks(2, |group| {
        let options = ParallelOptions {
            tensor: 2,
            tensor_options: Some(TensorOptions {
                blocks: 6,
                gemm: Some(Gemm::Builtin),
                sequence: true,
                ..TensorOptions::default()
            }),
            ..ParallelOptions::default()
        };
        let parallel = Parallel::new(group, &options).unwrap();
        assert!(parallel.info().unwrap().has_tensor);
        assert_eq!(parallel.tensor().unwrap().blocks().unwrap(), 6);
    });
}

fn train(parallel: &Parallel, contents: Contents, own: i32) -> f32 {
    let mut options = ModelOptions::new(Strategy::Zero1);
    if contents == Contents::Experts {
        options.gradients = Gradients::Sum;
    }
    let mut model = Model::on_axes(parallel, contents, &options).unwrap();
    model.add_parameter(&Parameter::new("w", Dtype::F32, &[1])).unwrap();
    model.seal().unwrap();
    let rule = OptimizerOptions::new(RuleKind::Sgd).learning_rate(1.0);
    let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
    model.accumulate_flat(&[4.0 * (own + 1) as f32]).unwrap();
    optimizer.step(&mut model).unwrap();
    model.get_parameters::<f32>().unwrap()[0]
}

#[test]
fn models_lie_on_the_axes() {
    ranks(4, |group| {
        let options = ParallelOptions { data: 2, expert: 2, ..ParallelOptions::default() };
        let parallel = Parallel::new(group, &options).unwrap();
        let own = group.rank();
        let info = parallel.info().unwrap();
        assert_eq!((info.gradient_ranks, info.expert_gradient_ranks), (4, 2));
        fails(
            Model::on_axes(&parallel, Contents::Experts, &ModelOptions::new(Strategy::Zero1)),
            Status::InvalidArgument,
        );
        assert_eq!(train(&parallel, Contents::Common, own), -10.0);
        let other = own % 2;
        assert_eq!(train(&parallel, Contents::Experts, own), -4.0 * (2 * other + 4) as f32);
    });
}

#[test]
fn a_hook_sees_the_gradients_of_a_model_on_axes() {
    ranks(2, |group| {
        let options = ParallelOptions { data: 2, ..ParallelOptions::default() };
        let parallel = Parallel::new(group, &options).unwrap();
        let fails_here = Arc::new(AtomicBool::new(false));
        let (told, rank) = (fails_here.clone(), group.rank());
        let hook = move |bucket: &mut Bucket<'_>| {
            if told.load(Ordering::SeqCst) {
                return Err("told to fail".to_owned());
            }
            if bucket.moment() == HookMoment::Before {
                bucket.data::<f32>()?.iter_mut().for_each(|value| *value *= 3.0);
            }
            Ok(())
        };
        let options = ModelOptions::new(Strategy::DataParallel);
        let mut model =
            Model::on_axes_with_hook(&parallel, Contents::Common, &options, hook).unwrap();
        model.add_parameter(&Parameter::new("w", Dtype::F32, &[1])).unwrap();
        model.seal().unwrap();
        let rule = OptimizerOptions::new(RuleKind::Sgd).learning_rate(1.0);
        let mut optimizer = Optimizer::new(&mut model, &rule).unwrap();
        model.accumulate_flat(&[2.0 * (rank + 1) as f32]).unwrap();
        optimizer.step(&mut model).unwrap();
        // The mean of 3 * 2 and 3 * 4.
        assert_eq!(model.get_parameters::<f32>().unwrap(), [-9.0]);
        fails_here.store(rank == 1, Ordering::SeqCst);
        model.accumulate_flat(&[1.0_f32]).unwrap();
        let error = fails(optimizer.step(&mut model), Status::Callback);
        assert_eq!(error.message().ends_with("told to fail"), rank == 1, "{error}");
    });
}

#[test]
fn options_that_differ_are_a_mismatch_on_all_ranks() {
    ranks(3, |group| {
        let mut options = ParallelOptions::default();
        if group.rank() == 0 {
            options.data = 3;
        } else {
            options.context = 3;
        }
        fails(Parallel::new(group, &options), Status::Mismatch);
    });
}

#[test]
fn wrong_arguments_are_refused() {
    ranks(1, |group| {
        for options in [
            ParallelOptions { data: 2, ..ParallelOptions::default() },
            ParallelOptions { data: -2, ..ParallelOptions::default() },
            ParallelOptions { data: REST, expert: REST, ..ParallelOptions::default() },
            ParallelOptions { order: Some("gpipe"), ..ParallelOptions::default() },
            ParallelOptions { order: Some("no such order"), ..ParallelOptions::default() },
            ParallelOptions { schedule_text: Some("0F0"), ..ParallelOptions::default() },
            ParallelOptions {
                placement: Some(PipelinePlacement::List(vec![0])),
                ..ParallelOptions::default()
            },
        ] {
            fails(Parallel::new(group, &options), Status::InvalidArgument);
        }
        let parallel = Parallel::new(group, &ParallelOptions::default()).unwrap();
        fails(parallel.coordinates(1), Status::InvalidArgument);
        fails(parallel.rank([1, 0, 0, 0, 0, 0]), Status::InvalidArgument);
        fails(parallel.stages(1), Status::InvalidArgument);
        fails(parallel.stage_rank(1), Status::InvalidArgument);
        fails(parallel.rows(4, 1), Status::InvalidArgument);
        fails(parallel.partition(&[]), Status::InvalidArgument);
        fails(parallel.tensor(), Status::InvalidState);
        fails(parallel.schedule(), Status::InvalidState);
    });
}
