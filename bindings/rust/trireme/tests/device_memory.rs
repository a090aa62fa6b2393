//! Operations of memory of a device, over a driver of the tests. Its memory of a device ends a
//! program that reads it. A process has one driver, so each test starts itself once more.

use std::env;
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use trireme::{
    memory_info, Buffer, Communicator, CommunicatorOptions, Device, DeviceBuffer, GroupOptions,
    MemoryKind, Model, ModelOptions, Reduction, Status, Strategy, Stream,
};

fn fake(name: &str) -> PathBuf {
    let folder = env::var("TRIREME_LIB_DIR").expect("TRIREME_LIB_DIR is the library's folder");
    let path = PathBuf::from(folder).join("tests").join(name);
    assert!(path.is_file(), "{} is not built", path.display());
    path
}

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// A function of the fake driver as a function of type `F`.
unsafe fn function<F: Copy>(name: &str) -> F {
    let path = CString::new(fake("fake_cuda.so").to_str().unwrap()).unwrap();
    let name = CString::new(name).unwrap();
    assert_eq!(std::mem::size_of::<F>(), std::mem::size_of::<*mut c_void>());
    let found = dlsym(dlopen(path.as_ptr(), 2), name.as_ptr());
    assert!(!found.is_null());
    std::mem::transmute_copy(&found)
}

/// A caller's own work on a device.
#[derive(Clone, Copy)]
struct User {
    device: c_int,
    stream: *mut c_void,
}

impl User {
    fn new(device: c_int) -> Self {
        type Make = unsafe extern "C" fn(c_int) -> *mut c_void;
        let stream = unsafe { function::<Make>("fake_user_stream")(device) };
        User { device, stream }
    }

    fn stream(self) -> Stream {
        // SAFETY: the fake's streams live as long as the process.
        unsafe { Stream::from_raw(self.stream) }
    }

    fn put(self, to: *mut f32, values: &[f32]) {
        type Write = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void, *const c_void, usize);
        unsafe {
            let bytes = std::mem::size_of_val(values);
            let write = function::<Write>("fake_queue_write");
            write(self.device, self.stream, to.cast(), values.as_ptr().cast(), bytes);
        }
    }

    fn get(self, from: *const f32, count: usize) -> Vec<f32> {
        type Read = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void, *const c_void, usize);
        type Wait = unsafe extern "C" fn(c_int, *mut c_void);
        let mut values = vec![0.0f32; count];
        unsafe {
            let to = values.as_mut_ptr().cast();
            let read = function::<Read>("fake_queue_read");
            read(self.device, self.stream, to, from.cast(), 4 * count);
            function::<Wait>("fake_synchronize")(self.device, self.stream);
        }
        values
    }

    fn hold(self, on: bool) {
        type Hold = unsafe extern "C" fn(*mut c_void, c_int);
        unsafe { function::<Hold>("fake_hold")(self.stream, c_int::from(on)) }
    }
}

fn finish() {
    type Finish = unsafe extern "C" fn() -> *const c_char;
    let text = unsafe { CStr::from_ptr(function::<Finish>("fake_finish")()) };
    assert_eq!(text.to_str().unwrap(), "");
}

fn retained(device: c_int) -> c_int {
    type Count = unsafe extern "C" fn(c_int) -> c_int;
    unsafe { function::<Count>("fake_retained_count")(device) }
}

/// Runs the body in a process of the test `name` with the fake driver.
fn over_the_fake(name: &str, scripts: &[&str], body: fn()) {
    if env::var_os("TRIREME_TEST_TELL").is_some() {
        return body();
    }
    for script in scripts {
        let done = Command::new(env::current_exe().unwrap())
            .args(["--exact", "--nocapture", name])
            .env("TRIREME_TEST_TELL", "1")
            .env("TRIREME_CUDA_DRIVER", fake("fake_cuda.so"))
            .env("TRIREME_CUDA_PLUGIN", fake("fake_plugin.so"))
            .env("TRIREME_NCCL_LIBRARY", "/nowhere/libnccl.so.2")
            .env("FAKE_CUDA", script)
            .output()
            .unwrap();
        assert!(done.status.success(), "{script}: {done:?}");
    }
}

fn join(rendezvous: &str, rank: i32, world: i32) -> Communicator {
    let mut options = CommunicatorOptions::new(rendezvous, rank, world);
    options.device = Device::Cuda(rank % 2);
    options.timeout = Some(Duration::from_secs(120));
    Communicator::new(&options).unwrap()
}

fn every_operation(rank: i32, world: i32) {
    let communicator = join(&format!("local://devices-{world}"), rank, world);
    let user = User::new(rank % 2);
    let here = communicator.on_device(user.stream());
    let (me, n) = (rank as f32, world as f32);
    let total = n * (n - 1.0) / 2.0;
    let all = 3 * world as usize;
    let buffers: Vec<_> =
        (0..4).map(|_| DeviceBuffer::<f32>::new(&communicator, all).unwrap()).collect();
    let at: Vec<*mut f32> = buffers.iter().map(DeviceBuffer::as_mut_ptr).collect();
    let (send, receive, wide, wide_out) = (at[0], at[1], at[2], at[3]);
    assert_eq!(user.get(send, all), vec![0.0; all]);
    // SAFETY: each address has `all` elements; the counts stay below, and nothing else works there.
    unsafe {
        user.put(send, &[me, 1.0, 2.0 * me]);
        here.all_reduce(send, receive, 3, Reduction::Sum).unwrap();
        assert_eq!(user.get(receive, 3), [total, n, 2.0 * total]);
        here.all_reduce(send, send, 3, Reduction::Max).unwrap();
        assert_eq!(user.get(send, 3), [n - 1.0, 1.0, 2.0 * n - 2.0]);
        let numbers: Vec<f32> = (0..all).map(|i| 100.0 * me + i as f32).collect();
        user.put(wide, &numbers);
        here.reduce_scatter(wide, receive, 3, Reduction::Sum).unwrap();
        let block: Vec<f32> = (0..3).map(|i| 100.0 * total + n * (3.0 * me + i as f32)).collect();
        assert_eq!(user.get(receive, 3), block);
        user.put(send, &[me, 5.0, 6.0]);
        here.all_gather(send, wide, 3).unwrap();
        let rows = |last: [f32; 2]| -> Vec<f32> {
            (0..world).flat_map(|r| [r as f32, last[0], last[1]]).collect()
        };
        assert_eq!(user.get(wide, all), rows([5.0, 6.0]));
        user.put(send, &[me, me, 7.0]);
        here.broadcast(send, 3, world - 1).unwrap();
        assert_eq!(user.get(send, 3), [n - 1.0, n - 1.0, 7.0]);
        user.put(send, &[me, 1.0, 2.0]);
        let null = std::ptr::null_mut();
        here.reduce(send, if rank == 0 { receive } else { null }, 3, Reduction::Sum, 0).unwrap();
        if rank == 0 {
            assert_eq!(user.get(receive, 3), [total, n, 2.0 * n]);
        }
        let root = 1 % world;
        here.gather(send, if rank == root { wide } else { null }, 3, root).unwrap();
        if rank == root {
            assert_eq!(user.get(wide, all), rows([1.0, 2.0]));
        }
        let numbers: Vec<f32> = (0..all).map(|i| i as f32).collect();
        user.put(wide, &numbers);
        here.scatter(if rank == 0 { wide } else { null }, receive, 3, 0).unwrap();
        let block = [3.0 * me, 3.0 * me + 1.0, 3.0 * me + 2.0];
        assert_eq!(user.get(receive, 3), block);
        here.all_to_all(wide, wide_out, 3).unwrap();
        assert_eq!(user.get(wide_out, all), block.repeat(world as usize));
        if rank % 2 == 0 && rank + 1 < world {
            here.send(wide, 3, rank + 1, 9).unwrap();
        }
        if rank % 2 == 1 {
            here.receive(receive, 3, rank - 1, 9).unwrap();
            assert_eq!(user.get(receive, 3), [0.0, 1.0, 2.0]);
        }
    }
    communicator.barrier().unwrap();
    drop(communicator);
    assert_eq!(memory_info(send.cast()).unwrap().kind, MemoryKind::Device);
    drop(buffers);
    assert_eq!(memory_info(send.cast()).unwrap().kind, MemoryKind::Host, "it has gone back");
}

#[test]
fn operations_of_memory_of_a_device() {
    let scripts = ["mode=eager", "mode=lazy", "mode=seeded:5"];
    over_the_fake("operations_of_memory_of_a_device", &scripts, || {
        for world in 1..=3 {
            thread::scope(|scope| {
                for rank in 0..world {
                    scope.spawn(move || every_operation(rank, world));
                }
            });
        }
        finish();
        assert_eq!((retained(0), retained(1)), (0, 0));
    });
}

#[test]
fn the_stream_is_honoured_and_an_operation_keeps_its_buffer() {
    let name = "the_stream_is_honoured_and_an_operation_keeps_its_buffer";
    over_the_fake(name, &["mode=lazy"], || {
        let communicator = join("local://streams", 0, 1);
        let user = User::new(0);
        let result = DeviceBuffer::<f32>::new(&communicator, 2).unwrap();
        let buffer = DeviceBuffer::<f32>::new(&communicator, 2).unwrap();
        let address = buffer.as_mut_ptr();
        assert_eq!((buffer.len(), buffer.size_in_bytes(), buffer.is_empty()), (2, 8, false));
        // The write is late, and the buffer is dropped before it.
        user.hold(true);
        user.put(address, &[3.0, 4.0]);
        let (at, stream) = (address as usize, user.stream as usize);
        let waker = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(buffer);
            let kind = memory_info(at as *const c_void).unwrap().kind;
            User { device: 0, stream: stream as *mut c_void }.hold(false);
            kind
        });
        // SAFETY: two elements each; the library keeps the buffer until the call is over.
        unsafe {
            let here = communicator.on_device(user.stream());
            here.all_reduce(address, result.as_mut_ptr(), 2, Reduction::Sum).unwrap();
        }
        assert_eq!(waker.join().unwrap(), MemoryKind::Device);
        assert_eq!(user.get(result.as_mut_ptr(), 2), [3.0, 4.0]);
        assert_eq!(memory_info(address.cast()).unwrap().kind, MemoryKind::Host);
        let empty = DeviceBuffer::<f32>::new(&communicator, 0).unwrap();
        assert!(empty.is_empty() && empty.as_mut_ptr().is_null());
        finish();
    });
}

#[test]
fn other_memory_is_refused_and_the_group_goes_on() {
    over_the_fake("other_memory_is_refused_and_the_group_goes_on", &["mode=lazy"], || {
        let communicator = join("local://refusals", 0, 1);
        let user = User::new(0);
        let mut pinned = Buffer::<f32>::pinned(&communicator, 4).unwrap();
        assert_eq!(pinned[..], [0.0; 4]);
        let buffer = DeviceBuffer::<f32>::new(&communicator, 4).unwrap();
        let here = communicator.on_device(user.stream());
        let mut own = [1.0f32; 4];
        // SAFETY: what is refused is not touched; all have four elements.
        unsafe {
            let refused = here.all_reduce(own.as_ptr(), buffer.as_mut_ptr(), 4, Reduction::Sum);
            let error = refused.unwrap_err();
            assert_eq!(error.status(), Status::InvalidArgument);
            assert!(error.to_string().contains("memory of the host"), "{error}");
            type Foreign = unsafe extern "C" fn(c_int) -> *mut c_void;
            let foreign = Stream::from_raw(function::<Foreign>("fake_foreign_stream")(0));
            let at = buffer.as_mut_ptr();
            let refused = communicator.on_device(foreign).all_reduce(at, at, 4, Reduction::Sum);
            assert!(refused.unwrap_err().to_string().contains("primary context"));
            pinned.copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
            here.all_reduce(pinned.as_ptr(), at, 4, Reduction::Sum).unwrap();
            assert_eq!(user.get(at, 4), [1.0, 2.0, 3.0, 4.0]);
            here.all_reduce(at, pinned.as_mut_ptr(), 4, Reduction::Sum).unwrap();
            // The default stream.
            communicator.on_device(Stream::default()).broadcast(at, 4, 0).unwrap();
        }
        let child = communicator.duplicate(&GroupOptions::default()).unwrap();
        for ranks in [&communicator, &child, &communicator.within(Duration::from_secs(9))] {
            let refused = Model::new(ranks, &ModelOptions::new(Strategy::Zero1)).unwrap_err();
            assert_eq!(refused.status(), Status::Unsupported);
        }
        // Memory of the host is none of a communicator of a device, and the reverse.
        let error = communicator.all_reduce(&mut own, Reduction::Sum).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
        let error = Buffer::<f32>::new(&communicator, 4).unwrap_err();
        assert!(error.to_string().contains("kind is HOST"), "{error}");
        let host = Communicator::join("local://alone", 0, 1).unwrap();
        let error = DeviceBuffer::<f32>::new(&host, 4).unwrap_err();
        assert!(error.to_string().contains("kind is DEVICE"), "{error}");
        assert!(Buffer::<f32>::pinned(&host, 4).is_err());
        assert!(DeviceBuffer::<f32>::new(&communicator, usize::MAX).is_err());
        finish();
    });
}
