//! Devices of a process, over a driver that does as it is told. A process has one driver, so each
//! test starts itself once more, in a process that prints its answers.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use trireme::{device_count, device_info, device_memory, device_report, memory_info};

fn fake(name: &str) -> PathBuf {
    let folder = env::var("TRIREME_LIB_DIR").expect("TRIREME_LIB_DIR is the library's folder");
    let path = PathBuf::from(folder).join("tests").join(name);
    assert!(path.is_file(), "{} is not built", path.display());
    path
}

/// Whether this process is one that prints, which it then has done.
fn has_told() -> bool {
    let child = env::var_os("TRIREME_TEST_TELL").is_some();
    if child {
        tell();
    }
    child
}

/// The answers of a process of the test `name`.
fn told_by(name: &str, driver: &str, script: &str) -> String {
    let done = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture", name])
        .env("TRIREME_TEST_TELL", "1")
        .env("TRIREME_CUDA_DRIVER", driver)
        .env("TRIREME_NCCL_LIBRARY", fake("fake_nccl.so"))
        .env("FAKE_CUDA", script)
        .env_remove("TRIREME_CUDA_PLUGIN")
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap()
}

fn has(output: &str, line: &str) {
    assert!(output.contains(line), "no {line:?} in:\n{output}");
}

fn tell() {
    println!("count {:?}", device_count());
    for index in 0..3 {
        println!("device {:?}", device_info(index));
    }
    println!("memory {:?}", device_memory(1));
    let word = 0;
    println!("own {:?}", memory_info((&word as *const i32).cast()));
    println!("null {:?}", memory_info(std::ptr::null()));
    print!("{}", device_report().unwrap());
}

#[test]
fn devices_are_described() {
    if has_told() {
        return;
    }
    let name = "devices_are_described";
    let output = told_by(name, fake("fake_cuda.so").to_str().unwrap(), "");
    has(&output, "count Ok(2)\n");
    has(
        &output,
        "DeviceInfo { name: \"Fake GPU 1\", capability: (9, 1), multiprocessors: 101, \
         memory_bytes: 17179869184, driver_version: 13000, \
         uuid: \"00010203-0405-0607-0809-0a0b0c0d0e0f\", bus_id: \"0000:11:00.0\" }",
    );
    has(&output, "index is 2, but this process sees 2 CUDA devices");
    has(&output, &format!("memory Ok(({}, {}))", (16u64 << 30) - (2 << 20), 16u64 << 30));
    has(&output, "own Ok(MemoryInfo { kind: Host, device: Host, first: 0x0, bytes: 0 })");
    has(&output, "address is NULL");
    has(&output, "\ndevices: 2\ndevice 0: Fake GPU 0,");
}

#[test]
fn a_missing_driver_is_told_with_what_was_tried() {
    if has_told() {
        return;
    }
    let name = "a_missing_driver_is_told_with_what_was_tried";
    let output = told_by(name, "/nowhere/libcuda.so.1", "");
    has(&output, "no CUDA driver: tried /nowhere/libcuda.so.1: ");
    has(&output, "own Ok(MemoryInfo { kind: Host,");
    assert!(!output.contains("count Ok"), "{output}");
}

#[test]
fn a_driver_that_fails_is_a_failure_of_the_device() {
    if has_told() {
        return;
    }
    let name = "a_driver_that_fails_is_a_failure_of_the_device";
    let output = told_by(name, fake("fake_cuda.so").to_str().unwrap(), "fail=cuDeviceGetName:719");
    has(&output, "cuDeviceGetName answers CUDA_ERROR_LAUNCH_FAILED (719)");
    has(&output, "count Ok(2)");
}
