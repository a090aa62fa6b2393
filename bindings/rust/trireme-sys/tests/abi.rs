//! This crate against the library's own lists: the exported symbols and the released layout.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

fn repository_file(path: &str) -> String {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn names_in<'a>(text: &'a str, before: &str, after: char) -> BTreeSet<&'a str> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix(before))
        .filter_map(|rest| rest.split_once(after).map(|(name, _)| name))
        .filter(|name| name.starts_with("trireme_"))
        .collect()
}

#[test]
fn every_exported_symbol_is_declared_and_no_other() {
    let map = repository_file("src/api/trireme.map");
    let exported = names_in(&map, "", ';');
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/abi");
    let sources: Vec<String> = fs::read_dir(folder)
        .expect("src/abi")
        .map(|entry| fs::read_to_string(entry.expect("a file").path()).expect("a source"))
        .collect();
    let declared: BTreeSet<&str> =
        sources.iter().flat_map(|text| names_in(text, "pub fn ", '(')).collect();
    assert!(exported.len() >= 80, "{exported:?}");
    assert_eq!(exported, declared);
}

#[test]
fn structs_and_constants_are_those_of_the_release() {
    let released = repository_file("tests/abi/golden-1.0.txt");
    // Lines `fixed` and `first` tell sizes that structs keep or had.
    let sizes = |line: &&str| line.starts_with("fixed ") || line.starts_with("first ");
    let lines = released.lines().filter(|line| !sizes(line));
    let released: BTreeSet<String> = lines.map(str::to_owned).collect();
    let mut ours = BTreeSet::new();
    let mut add = |name: &str, field: &str, offset: usize, size: usize| {
        ours.insert(if field.is_empty() {
            format!("struct {name} size {size}")
        } else {
            format!("field {name}.{field} offset {offset} size {size}")
        });
    };
    trireme_sys::layout(&mut add);
    for (name, value) in trireme_sys::CONSTANTS.iter().copied().flatten() {
        ours.insert(format!("constant {name} {value}"));
    }
    assert!(released.len() > 100);
    let missing: Vec<_> = released.difference(&ours).collect();
    let unknown: Vec<_> = ours.difference(&released).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing {missing:?}, unknown {unknown:?}");
}

#[test]
fn init_sets_the_size_and_nothing_else() {
    let options = trireme_sys::trireme_communicator_options::init();
    let size = std::mem::size_of::<trireme_sys::trireme_communicator_options>();
    assert_eq!(options.struct_size as usize, size);
    assert!(options.rendezvous.is_null() && options.rank == 0 && options.timeout_ns == 0);
    assert!(trireme_sys::trireme_bucket_options::init().hook.is_none());
}

#[test]
fn the_options_of_a_rule_begin_with_its_size_and_kind() {
    let rule = trireme_sys::TRIREME_ADAMW_OPTIONS_INIT;
    let size = std::mem::size_of::<trireme_sys::trireme_adam_options>();
    assert_eq!((rule.base.struct_size as usize, rule.base.kind), (size, 3));
    assert_eq!((rule.beta1, rule.beta2, rule.epsilon), (0.0, 0.0, 0.0));
    let user = trireme_sys::TRIREME_USER_RULE_OPTIONS_INIT;
    assert_eq!(user.base.kind, trireme_sys::TRIREME_RULE_USER);
    assert!(user.update.is_none() && user.user_data.is_null() && user.state_count == 0);
}

#[test]
fn the_library_is_the_one_these_declarations_are_of() {
    // SAFETY: version.h: cannot fail, any thread.
    let version = unsafe { trireme_sys::trireme_version() };
    assert_eq!(version / 1_000_000, trireme_sys::TRIREME_VERSION_MAJOR);
    assert!(version >= trireme_sys::TRIREME_VERSION);
}
