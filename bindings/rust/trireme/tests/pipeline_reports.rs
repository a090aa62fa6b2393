//! Schedules of the caller's: which rules they break, when actions run, which ones decide.

mod support;

use support::fails;
use trireme::{
    BrokenRule, PipelineCheck, PipelineCosts, PipelineFormat, PipelineKind, PipelineLimits,
    PipelineOptions, PipelineRule, PipelineSchedule, StageCosts, Status,
};

fn costs(stages: usize, latency: f64) -> PipelineCosts {
    let one = StageCosts {
        forward: 1.0,
        input: 1.0,
        weight: 1.0,
        kept_bytes: 10,
        held_bytes: 10,
        ..StageCosts::default()
    };
    PipelineCosts { stages: vec![one; stages], latency, ..PipelineCosts::default() }
}

fn make(order: &str, ranks: u32, micro_batches: u32) -> PipelineSchedule {
    let options =
        PipelineOptions { order: order.into(), ranks, micro_batches, ..PipelineOptions::default() };
    PipelineSchedule::new(&options).unwrap()
}

fn broken(check: PipelineCheck) -> BrokenRule {
    match check {
        PipelineCheck::Broken(found) => found,
        other => panic!("it cannot run, but {other:?}"),
    }
}

#[test]
fn kinds_make_actions() {
    use PipelineKind::{B, F};
    let lists = [vec![F.action(0, 0), B.action(0, 0)], vec![F.action(1, 0), B.action(1, 0)]];
    let schedule = PipelineSchedule::from_actions(&lists, 1, &[0, 1]).unwrap();
    assert_eq!(schedule.write(PipelineFormat::Csv, None).unwrap(), "0F0,0B0\n1F0,1B0\n");
    let kinds: Vec<_> = schedule.actions(1).unwrap().iter().map(PipelineKind::of).collect();
    assert_eq!(kinds, [Some(F), Some(B)]);
    let mut unknown = F.action(0, 0);
    unknown.kind = 99;
    assert_eq!(PipelineKind::of(&unknown), None);
    let held = schedule.inspect(None, &PipelineLimits::default()).unwrap();
    assert!(matches!(held, PipelineCheck::Holds(0)));
}

#[test]
fn a_broken_rule_is_told_with_its_place() {
    use PipelineKind::{B, F};
    let lists = [vec![B.action(0, 0), F.action(0, 0)], vec![F.action(1, 0), B.action(1, 0)]];
    let schedule = PipelineSchedule::from_actions(&lists, 1, &[0, 1]).unwrap();
    let any = PipelineLimits::default();
    let found = broken(schedule.inspect(None, &any).unwrap());
    assert_eq!((found.rule, found.rank, found.index), (PipelineRule::Order, 0, 0));
    assert_eq!((PipelineKind::of(&found.action), found.action.stage), (Some(B), 0));
    assert!(found.error.to_string().contains("rank 0, action 0 (0B0): comes before 0F0"));
    let checked = fails(schedule.check(None, &any), Status::InvalidState);
    assert_eq!(checked.message(), found.error.message());
    fails(schedule.times(0, &costs(2, 0.0), 0), Status::InvalidState);
    fails(schedule.critical_path(&costs(2, 0.0), 0), Status::InvalidState);
    fails(schedule.inspect(Some(&costs(3, 0.0)), &any), Status::InvalidArgument);

    let schedule = make("1f1b", 4, 8);
    let mut limits = PipelineLimits { bytes: vec![40, 30, 19, 10], ..any };
    let found = broken(schedule.inspect(Some(&costs(4, 0.0)), &limits).unwrap());
    assert_eq!((found.rule, found.rank), (PipelineRule::Memory, 2));
    limits.bytes[2] = 20;
    let held = schedule.inspect(Some(&costs(4, 0.0)), &limits).unwrap();
    assert!(matches!(held, PipelineCheck::Holds(40)));
}

#[test]
fn times_add_up_to_the_report() {
    // F takes 1 second and B takes 2, on each of 4 ranks for each of 8 micro-batches.
    let schedule = make("1f1b", 4, 8);
    let costs = costs(4, 0.0);
    let report = schedule.simulate(&costs, 0).unwrap();
    assert_eq!((report.work, report.idle), (96.0, 4.0 * 33.0 - 96.0));
    for rank in 0..4 {
        let times = schedule.times(rank, &costs, 0).unwrap();
        let actions = schedule.actions(rank).unwrap();
        assert_eq!(times.len(), actions.len());
        for ((start, end), action) in times.iter().zip(&actions) {
            let seconds = if PipelineKind::of(action) == Some(PipelineKind::F) { 1.0 } else { 2.0 };
            assert_eq!(end - start, seconds);
        }
        let own = report.ranks[rank as usize];
        assert_eq!((times[0].0, times[times.len() - 1].1), (own.first_start, own.last_end));
        assert_eq!((own.first_start, own.work), (f64::from(rank), 24.0));
    }
    fails(schedule.times(4, &costs, 0), Status::InvalidArgument);
    fails(schedule.times(0, &self::costs(3, 0.0), 0), Status::InvalidArgument);
    fails(schedule.critical_path(&self::costs(5, 0.0), 0), Status::InvalidArgument);
}

#[test]
fn the_critical_path_is_as_long_as_the_step() {
    for order in ["gpipe", "1f1b", "zb-h1"] {
        let schedule = make(order, 3, 5);
        let costs = costs(3, 2.0);
        let path = schedule.critical_path(&costs, 0).unwrap();
        let (mut seconds, mut waits, mut before) = (0.0, 0, path[0].rank);
        for step in &path {
            assert_eq!(step.waited == 1, step.rank != before);
            waits += step.waited;
            before = step.rank;
            let action = schedule.actions(step.rank).unwrap()[step.index as usize];
            seconds += if PipelineKind::of(&action) == Some(PipelineKind::B) { 2.0 } else { 1.0 };
        }
        assert!(waits > 0, "a message decides");
        let makespan = schedule.simulate(&costs, 0).unwrap().makespan;
        assert_eq!(seconds + 2.0 * f64::from(waits), makespan, "{order}");
    }
}
