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
    memory_info, AdamW, Buffer, Communicator, CommunicatorOptions, Device, DeviceBuffer, Dtype,
    GroupOptions, Layer, LayerCall, LayerOptions, MemoryKind, Model, ModelOptions, Optimizer,
    OptimizerOptions, Parameter, Reduction, Status, Strategy, Stream, Trainer, TrainerOptions,
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

// ---- models ----

const COUNTS: [usize; 3] = [15, 7, 1];
const ALL: usize = 23;

/// One training, on the host or on a device.
struct Training<'a> {
    communicator: &'a Communicator,
    model: Model,
    optimizer: Optimizer,
}

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104729) % 2003) as f32 / 371.0 - 2.7).collect()
}

impl<'a> Training<'a> {
    fn new(communicator: &'a Communicator) -> Self {
        let options = ModelOptions { leaves: 4, ..ModelOptions::new(Strategy::Zero1) };
        let mut model = Model::new(communicator, &options).unwrap();
        for (name, shape) in [("w", &[3u64, 5][..]), ("b", &[7]), ("s", &[])] {
            let parameter = Parameter::new(name, Dtype::F32, shape);
            model.add_parameter(&Parameter { unit: Some("all"), ..parameter }).unwrap();
        }
        model.seal().unwrap();
        let options = OptimizerOptions {
            learning_rate: 0.01,
            weight_decay: 0.01,
            ..OptimizerOptions::new(AdamW::default())
        };
        let optimizer = Optimizer::new(&mut model, &options).unwrap();
        Training { communicator, model, optimizer }
    }

    /// The values in memory of the device.
    fn lent(&self, values: &[f32]) -> DeviceBuffer<f32> {
        let buffer = DeviceBuffer::new(self.communicator, values.len()).unwrap();
        let here = self.communicator.on_device(Stream::default());
        // SAFETY: as many elements on both sides, which nothing else uses.
        unsafe { here.copy_to_device(values, buffer.as_mut_ptr()).unwrap() };
        buffer
    }

    fn set(&mut self, values: &[f32]) {
        if !self.model.is_on_device() {
            return self.model.set_parameters(Some(values), 0).unwrap();
        }
        let lent = self.lent(values);
        // SAFETY: ALL elements of the device.
        unsafe { self.model.on_device().set_parameters(lent.as_mut_ptr(), ALL, 0).unwrap() };
    }

    fn step(&mut self, number: usize, flat: bool) {
        for micro_batch in 0..self.model.info().unwrap().micro_batches {
            let leaf = match self.model.leaf(micro_batch).unwrap() {
                Some(leaf) => leaf as usize,
                None => continue,
            };
            let seed = 100 * number + leaf;
            if flat {
                self.hand_in_all(&numbers(ALL, seed));
                continue;
            }
            self.model.begin_backward().unwrap();
            for (parameter, count) in COUNTS.into_iter().enumerate() {
                self.hand_in(parameter, &numbers(count, seed + parameter));
            }
            self.model.end_backward().unwrap();
        }
        self.optimizer.step(&mut self.model).unwrap();
    }

    fn hand_in(&mut self, parameter: usize, values: &[f32]) {
        if !self.model.is_on_device() {
            return self.model.gradient_ready(parameter, values).unwrap();
        }
        let lent = self.lent(values);
        let mut here = self.model.on_device();
        // SAFETY: as many elements of the device.
        unsafe { here.gradient_ready(parameter, lent.as_mut_ptr(), values.len()).unwrap() };
    }

    fn hand_in_all(&mut self, values: &[f32]) {
        if !self.model.is_on_device() {
            return self.model.accumulate_flat(values).unwrap();
        }
        let lent = self.lent(values);
        let mut here = self.model.on_device();
        // SAFETY: as many elements of the device.
        unsafe { here.accumulate_flat(lent.as_mut_ptr(), values.len()).unwrap() };
    }

    /// All parameters, by each way.
    fn bits(&mut self) -> Vec<u32> {
        let named = self.model.gather_parameters().unwrap();
        let by_name: Vec<f32> =
            ["w", "b", "s"].iter().flat_map(|name| named.get::<f32>(name).unwrap()).collect();
        let mut whole = vec![0.0; ALL];
        if self.model.is_on_device() {
            let lent = self.lent(&whole);
            let mut each = Vec::new();
            let on_device = self.model.on_device();
            let here = self.communicator.on_device(Stream::default());
            // SAFETY: ALL elements; those of each parameter, until the next step.
            unsafe {
                on_device.get_parameters(lent.as_mut_ptr(), ALL).unwrap();
                here.copy_to_host(lent.as_mut_ptr(), &mut whole).unwrap();
                for parameter in 0..3 {
                    let (data, count) = on_device.parameter::<f32>(parameter).unwrap();
                    let mut own = vec![0.0; count];
                    here.copy_to_host(data, &mut own).unwrap();
                    each.extend(own);
                }
            }
            assert_eq!(each, whole);
        } else {
            self.model.get_parameters_into(&mut whole).unwrap();
        }
        assert_eq!(by_name, whole);
        whole.iter().map(|value| value.to_bits()).collect()
    }
}

fn train(rank: i32, world: i32, on_device: bool) -> (Vec<Vec<u32>>, Vec<u8>) {
    let rendezvous = format!("local://models-{world}-{on_device}");
    let mut options = CommunicatorOptions::new(&rendezvous, rank, world);
    options.timeout = Some(Duration::from_secs(120));
    if on_device {
        options.device = Device::Cuda(rank % 2);
    }
    let communicator = Communicator::new(&options).unwrap();
    let mut first = Training::new(&communicator);
    assert_eq!(first.model.is_on_device(), on_device);
    first.set(&numbers(ALL, 5));
    for number in 0..3 {
        first.step(number, number == 1);
    }
    let mut found = vec![first.bits()];
    let saved = first.optimizer.save(&first.model).unwrap();
    first.step(3, false);
    found.push(first.bits());
    let mut again = Training::new(&communicator);
    again.optimizer.load(&mut again.model, &saved).unwrap();
    assert_eq!(again.bits(), found[0]);
    again.step(3, false);
    assert_eq!(again.bits(), found[1]);
    let mut values = again.model.parameter_values();
    for (name, count) in ["w", "b", "s"].into_iter().zip(COUNTS) {
        values.set(name, &numbers(count, 9)).unwrap();
    }
    again.model.broadcast_parameters(Some(&values), 0).unwrap();
    found.push(again.bits());
    communicator.barrier().unwrap();
    (found, saved)
}

#[test]
fn a_model_on_a_device_has_the_bits_of_the_host() {
    let scripts = ["mode=lazy", "mode=seeded:8"];
    over_the_fake("a_model_on_a_device_has_the_bits_of_the_host", &scripts, || {
        let run = |world: i32, on_device: bool| {
            thread::scope(|scope| {
                let ranks: Vec<_> = (0..world)
                    .map(|rank| scope.spawn(move || train(rank, world, on_device)))
                    .collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
            })
        };
        for world in [1, 2] {
            assert_eq!(run(world, true), run(world, false));
        }
        finish();
        assert_eq!((retained(0), retained(1)), (0, 0));
    });
}

struct NoLayer;

impl Layer<()> for NoLayer {
    fn forward(&mut self, _call: &mut LayerCall<'_, ()>) -> Result<(), String> {
        panic!("it ran")
    }

    fn backward(&mut self, _call: &mut LayerCall<'_, ()>) -> Result<(), String> {
        panic!("it ran")
    }
}

#[test]
fn a_model_on_a_device_follows_the_stream_that_it_was_told() {
    let name = "a_model_on_a_device_follows_the_stream_that_it_was_told";
    over_the_fake(name, &["mode=lazy"], || {
        let communicator = join("local://told", 0, 1);
        let mut training = Training::new(&communicator);
        training.set(&[0.0; ALL]);
        let user = User::new(0);
        let values = DeviceBuffer::<f32>::new(&communicator, ALL).unwrap();
        for stream in [user.stream(), Stream::default(), user.stream()] {
            training.model.set_stream(stream).unwrap();
            let told = stream == Stream::default();
            let here = if told { User { stream: std::ptr::null_mut(), ..user } } else { user };
            let wanted = numbers(ALL, usize::from(told));
            // The write is late, and only this stream knows of it.
            here.put(values.as_mut_ptr(), &wanted);
            let (at, mut model) = (values.as_mut_ptr(), training.model.on_device());
            // SAFETY: ALL elements of the device.
            unsafe { model.set_parameters(at, ALL, 0).unwrap() };
            here.put(at, &[0.0; ALL]);
            // SAFETY: the same.
            unsafe { model.get_parameters(at, ALL).unwrap() };
            assert_eq!(here.get(at, ALL), wanted);
        }
        type Foreign = unsafe extern "C" fn(c_int) -> *mut c_void;
        // SAFETY: it is refused.
        let foreign = unsafe { Stream::from_raw(function::<Foreign>("fake_foreign_stream")(0)) };
        let error = training.model.set_stream(foreign).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
        drop(training);
        finish();
    });
}

#[test]
fn a_model_on_a_device_refuses_other_memory() {
    over_the_fake("a_model_on_a_device_refuses_other_memory", &["mode=lazy"], || {
        let communicator = join("local://refusing", 0, 1);
        let child = communicator.duplicate(&GroupOptions::default()).unwrap();
        let mut training = Training::new(&child);
        for error in [
            training.model.parameter::<f32>(0).unwrap_err(),
            training.model.parameter_mut::<f32>(0).unwrap_err(),
        ] {
            assert_eq!(error.status(), Status::InvalidState);
            assert!(error.to_string().contains("on_device()"), "{error}");
        }
        training.model.begin_backward().unwrap();
        assert!(training.model.gradient::<f32>(0).unwrap().is_none());
        let error = training.model.gradient_ready(0, &[1.0f32; 15]).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
        assert!(error.to_string().contains("memory of the host"), "{error}");
        assert!(training.model.on_device().parameter::<f64>(0).is_err());
        for (parameter, count) in COUNTS.into_iter().enumerate() {
            training.hand_in(parameter, &numbers(count, 1));
        }
        training.model.end_backward().unwrap();
        let ranges = training.optimizer.ranges(&training.model).unwrap();
        assert!(ranges[0].data::<f32>().unwrap_err().to_string().contains("on a device"));
        // A copy of no elements, and one that is refused.
        let here = communicator.on_device(Stream::default());
        let mut own = [0.0f32; 4];
        // SAFETY: nothing is touched.
        unsafe {
            here.copy_to_host(std::ptr::null::<f32>(), &mut []).unwrap();
            let error = here.copy_to_host(std::ptr::null(), &mut own).unwrap_err();
            assert_eq!(error.status(), Status::InvalidArgument);
        }
        let layer = LayerOptions { parameters: 0..3, ..LayerOptions::default() };
        let layers: Vec<(_, Box<dyn Layer<()>>)> = vec![(layer, Box::new(NoLayer))];
        let options = TrainerOptions::default();
        let (model, optimizer) = (&mut training.model, &mut training.optimizer);
        let error = Trainer::new(model, optimizer, &options, layers).unwrap_err();
        assert_eq!(error.status(), Status::Unsupported);
        assert!(error.to_string().contains("functions of C alone"), "{error}");
        // Whoever drops the communicator ends the training, and nothing else.
        let model = training.model;
        drop(child);
        assert_eq!(model.gather_parameters().unwrap_err().status(), Status::InvalidHandle);
        drop(model);
        finish();
    });
}
