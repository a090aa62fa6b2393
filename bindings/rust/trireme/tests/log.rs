//! The log is one for the process, so these tests share one program and take turns.

mod support;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use support::{fails, ranks};
use trireme::{clear_log, set_log, LogLevel, Status};

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the library say something: ranks that abort.
fn make_noise() {
    ranks(2, |communicator| {
        communicator.abort("noise").unwrap();
        fails(communicator.barrier(), Status::Aborted);
    });
}

#[test]
fn a_listener_hears_lines_until_it_is_cleared() {
    let _turn = turn();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = heard.clone();
    set_log(LogLevel::Debug, move |level, text| {
        listener.lock().unwrap().push((level, text.to_owned()));
    })
    .unwrap();
    make_noise();
    clear_log().unwrap();
    assert_eq!(Arc::strong_count(&heard), 1, "the listener is freed");
    let lines = heard.lock().unwrap().clone();
    assert!(!lines.is_empty());
    assert!(lines.iter().all(|(_, text)| !text.is_empty() && !text.contains('\n')), "{lines:?}");
    make_noise();
    assert_eq!(heard.lock().unwrap().len(), lines.len());
}

#[test]
fn a_listener_that_panics_harms_nobody() {
    let _turn = turn();
    let heard = Arc::new(Mutex::new(0));
    let count = heard.clone();
    set_log(LogLevel::Debug, move |_, _| {
        *count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        panic!("in a log listener");
    })
    .unwrap();
    make_noise();
    clear_log().unwrap();
    assert!(*heard.lock().unwrap_or_else(PoisonError::into_inner) > 0);
}

#[test]
fn a_listener_must_not_change_the_listener() {
    let _turn = turn();
    let answers = Arc::new(Mutex::new(Vec::new()));
    let listener = answers.clone();
    set_log(LogLevel::Debug, move |_, _| {
        let answer = clear_log().map_err(|error| error.status());
        listener.lock().unwrap().push(answer);
    })
    .unwrap();
    make_noise();
    clear_log().unwrap();
    let answers = answers.lock().unwrap();
    assert!(!answers.is_empty());
    assert!(answers.iter().all(|answer| *answer == Err(Status::InvalidState)));
}

#[test]
fn replacing_a_listener_frees_the_one_before() {
    let _turn = turn();
    let first = Arc::new(());
    let kept = first.clone();
    set_log(LogLevel::Error, move |_, _| drop(kept.clone())).unwrap();
    assert_eq!(Arc::strong_count(&first), 2);
    set_log(LogLevel::Warning, |_, _| {}).unwrap();
    assert_eq!(Arc::strong_count(&first), 1);
    clear_log().unwrap();
    clear_log().unwrap();
}
