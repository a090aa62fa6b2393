//! The job's store, over TCP and in a file.

mod support;

use std::sync::Once;
use std::time::Duration;

use support::LONG;
use trireme::{Status, Store};

fn give_token() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::env::set_var("TRIREME_TOKEN", "a token of the tests of the store"));
}

/// Two ends of a store over TCP, and of one in a file.
fn both(test: impl Fn(&Store, &Store)) {
    give_token();
    let path = std::env::temp_dir().join(format!("trireme-rust-{}", std::process::id()));
    let file = format!("file://{}", path.display());
    for served in [true, false] {
        let one = if served {
            Store::serve("tcp://127.0.0.1:0", Some(LONG)).unwrap()
        } else {
            Store::connect(&file, Some(LONG)).unwrap()
        };
        let two = Store::connect(&one.address().unwrap(), Some(LONG)).unwrap();
        test(&one, &two);
    }
    std::fs::remove_file(path).unwrap();
}

// One test, as a file of this process' number is shared.
#[test]
fn operations_and_failures() {
    both(|one, two| {
        assert_eq!(two.get("k").unwrap(), None);
        let large = vec![7u8; 100_000];
        for value in [&b""[..], b"a\0b", &large] {
            one.set("k", value).unwrap();
            assert_eq!(two.get("k").unwrap().unwrap(), value);
        }
        let sums = [one.add("n", 1), two.add("n", -5), one.add("n", 0)].map(Result::unwrap);
        assert_eq!(sums, [1, -4, -4]);
        assert!(one.compare_exchange("c", None, b"1").unwrap());
        assert!(!two.compare_exchange("c", None, b"2").unwrap());
        assert!(!two.compare_exchange("c", Some(b""), b"2").unwrap());
        assert!(two.compare_exchange("c", Some(b"1"), b"2").unwrap());
        assert_eq!(one.get("c").unwrap().unwrap(), b"2");
        assert!(one.delete("c").unwrap());
        assert!(!two.delete("c").unwrap());
        two.wait(&["k", "n"], Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| two.wait(&["late"], LONG).unwrap());
            one.set("late", b"").unwrap();
        });

        let error = two.add("k", 1).unwrap_err();
        assert_eq!(error.status(), Status::InvalidState);
        assert!(error.to_string().contains("\"k\" is no number"), "{error}");
        let error = two.wait(&["k", "never"], Duration::ZERO).unwrap_err();
        assert_eq!(error.status(), Status::Timeout);
        assert!(error.to_string().contains("\"never\" is not there"), "{error}");
        for refused in [
            one.set("", b""),
            one.set(&"k".repeat(1025), b""),
            one.set("k", &vec![0; (1 << 20) + 1]),
            one.set("a\0b", b""),
            one.wait(&[""], Duration::ZERO),
        ] {
            assert_eq!(refused.unwrap_err().status(), Status::InvalidArgument);
        }
        assert_eq!(two.get("k").unwrap().unwrap(), large);
    });
}

#[test]
fn a_store_that_is_gone_is_an_error() {
    give_token();
    let store = Store::serve("tcp://127.0.0.1:0", Some(LONG)).unwrap();
    let address = store.address().unwrap();
    let other = Store::connect(&address, Some(LONG)).unwrap();
    drop(store);
    assert_eq!(other.add("n", 1).unwrap_err().status(), Status::PeerLost);
    let late = Store::connect(&address, Some(Duration::from_millis(50)));
    assert_eq!(late.unwrap_err().status(), Status::Timeout);
    for url in ["", "http://a:1", "file://relative"] {
        assert_eq!(Store::connect(url, None).unwrap_err().status(), Status::InvalidArgument);
    }
}
