//! Schedules of pipelines, and layers cut to stages.

use trireme::{
    partition, LayerCosts, PartitionOptions, PipelineAction, PipelineCosts, PipelineFormat,
    PipelineLimits, PipelineOptions, PipelinePlacement, PipelineSchedule, StageCosts, Status,
};

fn costs(stages: usize) -> PipelineCosts {
    let one = StageCosts {
        forward: 1.0,
        input: 1.0,
        weight: 1.0,
        kept_bytes: 10,
        held_bytes: 10,
        ..StageCosts::default()
    };
    PipelineCosts { stages: vec![one; stages], ..PipelineCosts::default() }
}

fn options(order: &str, ranks: u32, micro_batches: u32) -> PipelineOptions {
    PipelineOptions { order: order.into(), ranks, micro_batches, ..PipelineOptions::default() }
}

#[test]
fn lists_and_reports() {
    let schedule = PipelineSchedule::new(&options("1F1B", 4, 8)).unwrap();
    let report = schedule.simulate(&costs(4), 0).unwrap();
    assert_eq!((report.makespan, report.span, report.lower_bound), (33.0, 33.0, 27.0));
    let peaks: Vec<u64> = report.ranks.iter().map(|rank| rank.peak_bytes).collect();
    assert_eq!(peaks, [40, 30, 20, 10]);
    let mut limits = PipelineLimits { buffers: 0, bytes: peaks };
    schedule.check(Some(&costs(4)), &limits).unwrap();
    limits.bytes[2] -= 1;
    let error = schedule.check(Some(&costs(4)), &limits).unwrap_err();
    assert_eq!(error.status(), Status::InvalidState);
    assert!(error.to_string().contains("rank 2"), "{error}");
    let info = schedule.info().unwrap();
    assert_eq!((info.ranks, info.action_count, info.order), (4, 64, Some("1f1b")));
    assert_eq!(schedule.placement().unwrap(), [0, 1, 2, 3]);
}

#[test]
fn texts_read_back() {
    let text = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
    let schedule = PipelineSchedule::parse(text).unwrap();
    assert_eq!(schedule.write(PipelineFormat::Csv, None).unwrap(), text);
    let own = schedule.write(PipelineFormat::Text, None).unwrap();
    let again = PipelineSchedule::parse(&own).unwrap();
    assert_eq!(again.write(PipelineFormat::Csv, None).unwrap(), text);
    assert_eq!(again.info().unwrap().order, None);
    for form in [PipelineFormat::Drawing, PipelineFormat::Svg, PipelineFormat::Trace] {
        assert!(schedule.write(form, Some(&costs(2))).unwrap().contains("1B1"));
    }
    assert_eq!(PipelineSchedule::parse("0F").unwrap_err().status(), Status::InvalidArgument);
}

#[test]
fn own_lists() {
    let action = |kind, stage| PipelineAction { kind, stage, micro_batch: 0, pair: 0 };
    let (one, two) = (vec![action(1, 0), action(4, 0)], vec![action(1, 1), action(4, 1)]);
    let schedule = PipelineSchedule::from_actions(&[one.clone(), two.clone()], 1, &[0, 1]).unwrap();
    schedule.check(None, &PipelineLimits::default()).unwrap();
    let found = schedule.actions(1).unwrap();
    assert_eq!((found.len(), found[1].kind, found[1].stage), (2, 4, 1));
    assert!(schedule.actions(2).is_err());
    let broken = PipelineSchedule::from_actions(&[vec![one[1], one[0]], two], 1, &[0, 1]).unwrap();
    let error = broken.check(None, &PipelineLimits::default()).unwrap_err();
    assert!(error.to_string().contains("rank 0, action 0 (0B0): comes before 0F0"), "{error}");
}

#[test]
fn best_keeps_what_it_is_given() {
    let limits = PipelineLimits { buffers: 0, bytes: vec![60; 4] };
    let best = PipelineSchedule::new(&PipelineOptions {
        stages_per_rank: 2,
        costs: Some(costs(8)),
        limits: Some(limits.clone()),
        ..options("best", 4, 8)
    })
    .unwrap();
    let info = best.info().unwrap();
    assert!(info.bound <= info.value && info.value <= 53.0);
    best.check(Some(&costs(8)), &limits).unwrap();
    let placed = PipelineSchedule::new(&PipelineOptions {
        placement: Some(PipelinePlacement::List(vec![0, 1, 1, 0, 1])),
        costs: Some(costs(5)),
        messages: true,
        span: true,
        ..options("best", 2, 4)
    })
    .unwrap();
    assert_eq!(placed.placement().unwrap(), [0, 1, 1, 0, 1]);
    assert!(placed.info().unwrap().has_messages);
    for bad in [options("best", 2, 2), options("fastest", 2, 2), options("zbv", 2, 2)] {
        let error = PipelineSchedule::new(&bad).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
    }
}

#[test]
fn layers_are_cut() {
    let layers: Vec<LayerCosts> = [1.0, 1.0, 1.0, 3.0, 2.0]
        .into_iter()
        .map(|seconds| LayerCosts { seconds, bytes: 4, kept_bytes: 0 })
        .collect();
    let mut options = PartitionOptions { ranks: 2, ..PartitionOptions::default() };
    assert_eq!(partition(&layers, &options).unwrap(), (vec![0, 3, 5], 5.0));
    options.limits = vec![7, 7];
    assert!(partition(&layers, &options).is_err());
    options.limits = vec![7];
    assert!(partition(&layers, &options).is_err());
    options.limits.clear();
    options.stages_per_rank = 2;
    options.placement = Some(PipelinePlacement::V);
    assert_eq!(partition(&layers, &options).unwrap().1, 4.0);
}
