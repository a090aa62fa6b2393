using System;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using System.Threading;

namespace Trireme.Tests
{
    /// <summary>
    /// Operations of memory of a device, over a driver of the tests. Its memory of a device ends a
    /// program that reads it. A process has one driver, so each case is a process of its own.
    /// </summary>
    internal static class DeviceMemoryTests
    {
        private static string Fake(string name)
        {
            string folder = Path.GetDirectoryName(
                Environment.GetEnvironmentVariable("TRIREME_LIBRARY"));
            string path = Path.Combine(folder, "tests", name);
            if (!File.Exists(path))
            {
                throw new SkipException("no " + path);
            }

            return path;
        }

        private static void Passes(string what, string script)
        {
            string output = Child.Run(
                what, "TRIREME_CUDA_DRIVER", Fake("fake_cuda.so"), "TRIREME_CUDA_PLUGIN",
                Fake("fake_plugin.so"), "TRIREME_NCCL_LIBRARY", "/nowhere/libnccl.so.2",
                "FAKE_CUDA", script).Replace("\r", string.Empty);
            Check.Equal("whole\n", output, script);
        }

        [Test]
        public static void Operations_of_memory_of_a_device()
        {
            foreach (string script in new[] { "mode=eager", "mode=lazy", "mode=seeded:6" })
            {
                Passes("device-operations", script);
            }
        }

        [Test]
        public static void The_stream_is_honoured_and_an_operation_keeps_its_buffer()
        {
            Passes("device-stream", "mode=lazy");
        }

        [Test]
        public static void Other_memory_is_refused_and_the_group_goes_on()
        {
            Passes("device-refusals", "mode=lazy");
        }

        [Test]
        public static void A_model_on_a_device_has_the_bits_of_the_host()
        {
            Passes("device-models", "mode=lazy");
            Passes("device-models", "mode=seeded:9");
        }

        [Test]
        public static void A_model_on_a_device_follows_the_stream_that_it_was_told()
        {
            Passes("device-model-stream", "mode=lazy");
        }

        [Test]
        public static void A_model_on_a_device_refuses_other_memory()
        {
            Passes("device-model-refusals", "mode=lazy");
        }

        // ---- in the process of a case ----

        [DllImport("libdl.so.2")]
        private static extern IntPtr dlopen(string path, int flags);

        [DllImport("libdl.so.2")]
        private static extern IntPtr dlsym(IntPtr library, string name);

        private delegate IntPtr Makes(int device);

        private delegate int Counts(int device);

        private delegate void Copies(
            int device, IntPtr stream, IntPtr to, IntPtr from, UIntPtr bytes);

        private delegate void Waits(int device, IntPtr stream);

        private delegate void Holds(IntPtr stream, int on);

        private delegate IntPtr Finishes();

        private static T Function<T>(string name) where T : class
        {
            IntPtr function = dlsym(dlopen(Fake("fake_cuda.so"), 2), name);
            Check.That(function != IntPtr.Zero, name);
            return Marshal.GetDelegateForFunctionPointer<T>(function);
        }

        private static unsafe void Put(
            int device, IntPtr stream, IntPtr to, params float[] values)
        {
            fixed (float* from = values)
            {
                Function<Copies>("fake_queue_write")(
                    device, stream, to, (IntPtr)from, (UIntPtr)(4 * values.Length));
            }
        }

        private static unsafe float[] Get(int device, IntPtr stream, IntPtr from, int count)
        {
            var values = new float[count];
            fixed (float* to = values)
            {
                Function<Copies>("fake_queue_read")(
                    device, stream, (IntPtr)to, from, (UIntPtr)(4 * count));
                Function<Waits>("fake_synchronize")(device, stream);
            }

            return values;
        }

        private static void Finish()
        {
            Check.Equal(
                string.Empty, Marshal.PtrToStringAnsi(Function<Finishes>("fake_finish")()));
        }

        public static void Answer(string what)
        {
            if (what == "device-operations")
            {
                for (int n = 1; n <= 3; ++n)
                {
                    int world = n;
                    Ranks.OnThreads(world, rank => EveryOperation(rank, world));
                }

                Check.Equal(0, Function<Counts>("fake_retained_count")(0));
                Check.Equal(0, Function<Counts>("fake_retained_count")(1));
            }
            else if (what == "device-stream")
            {
                LateStream();
            }
            else if (what == "device-models")
            {
                DeviceModelTests.HostAndDeviceAgree();
                Check.Equal(0, Function<Counts>("fake_retained_count")(0));
                Check.Equal(0, Function<Counts>("fake_retained_count")(1));
            }
            else if (what == "device-model-stream")
            {
                FollowedStream();
            }
            else if (what == "device-model-refusals")
            {
                DeviceModelTests.Refusals();
            }
            else
            {
                Refusals();
            }

            Finish();
            Console.WriteLine("whole");
        }

        private static Communicator Join(string name, int rank, int world)
        {
            return Communicator.Create(
                rank, world, "local://" + name, Ranks.Patience, device: rank % 2);
        }

        private static void EveryOperation(int me, int n)
        {
            const ElementType F32 = ElementType.F32;
            int device = me % 2;
            int all = 3 * n;
            float total = n * (n - 1) / 2;
            IntPtr stream = Function<Makes>("fake_user_stream")(device);
            var options = new OperationOptions { Stream = stream };
            Communicator group = Join("devices-" + n, me, n);
            var buffers = new DeviceBuffer[4];
            for (int i = 0; i < 4; ++i)
            {
                buffers[i] = new DeviceBuffer(group, 4 * all);
            }

            IntPtr send = buffers[0].Address, receive = buffers[1].Address;
            IntPtr wide = buffers[2].Address, wideOut = buffers[3].Address;
            Check.Same(new float[all], Get(device, stream, send, all), "zeros");
            Put(device, stream, send, me, 1, 2 * me);
            group.AllReduce(send, receive, 3, F32, Reduction.Sum, options);
            Check.Same(new[] { total, n, 2 * total }, Get(device, stream, receive, 3), "sum");
            group.AllReduce(send, send, 3, F32, Reduction.Max, options);
            Check.Same(
                new float[] { n - 1, 1, (2 * n) - 2 }, Get(device, stream, send, 3), "max");
            Put(device, stream, wide, Enumerable.Range(0, all).Select(i => (100f * me) + i)
                .ToArray());
            group.ReduceScatter(wide, receive, 3, F32, Reduction.Sum, options);
            Check.Same(
                Enumerable.Range(3 * me, 3).Select(i => (100 * total) + (n * i)).ToArray(),
                Get(device, stream, receive, 3), "reduce-scatter");
            Put(device, stream, send, me, 5, 6);
            group.AllGather(send, wide, 3, F32, options);
            Check.Same(Rows(n, 5, 6), Get(device, stream, wide, all), "all-gather");
            Put(device, stream, send, me, me, 7);
            group.Broadcast(send, 3, F32, n - 1, options);
            Check.Same(
                new float[] { n - 1, n - 1, 7 }, Get(device, stream, send, 3), "broadcast");
            Put(device, stream, send, me, 1, 2);
            group.Reduce(
                send, me == 0 ? receive : IntPtr.Zero, 3, F32, 0, Reduction.Sum, options);
            if (me == 0)
            {
                Check.Same(new[] { total, n, 2 * n }, Get(device, stream, receive, 3), "reduce");
            }

            int root = 1 % n;
            group.Gather(send, me == root ? wide : IntPtr.Zero, 3, F32, root, options);
            if (me == root)
            {
                Check.Same(Rows(n, 1, 2), Get(device, stream, wide, all), "gather");
            }

            Put(device, stream, wide, Enumerable.Range(0, all).Select(i => (float)i).ToArray());
            group.Scatter(me == 0 ? wide : IntPtr.Zero, receive, 3, F32, 0, options);
            float[] block = { 3 * me, (3 * me) + 1, (3 * me) + 2 };
            Check.Same(block, Get(device, stream, receive, 3), "scatter");
            group.AllToAll(wide, wideOut, 3, F32, options);
            Check.Same(
                Enumerable.Range(0, all).Select(i => block[i % 3]).ToArray(),
                Get(device, stream, wideOut, all), "all-to-all");
            if (me % 2 == 0 && me + 1 < n)
            {
                group.Send(wide, 3, F32, me + 1, 9, options);
            }
            else if (me % 2 == 1)
            {
                group.Receive(receive, 3, F32, me - 1, 9, options);
                Check.Same(
                    new float[] { 0, 1, 2 }, Get(device, stream, receive, 3), "message");
            }

            group.Barrier();
            group.Dispose();
            Check.Equal(MemoryKind.Device, Devices.MemoryOf(send).Kind);
            foreach (DeviceBuffer buffer in buffers)
            {
                buffer.Dispose();
            }

            Check.Equal(MemoryKind.Host, Devices.MemoryOf(send).Kind, "it has gone back");
            Check.Throws<ObjectDisposedException>(() => buffers[0].Address.ToString());
        }

        private static float[] Rows(int ranks, float second, float third)
        {
            return Enumerable.Range(0, ranks).SelectMany(r => new[] { r, second, third })
                .ToArray();
        }

        // The caller's write is late, and the buffer is disposed of before it.
        private static void LateStream()
        {
            IntPtr stream = Function<Makes>("fake_user_stream")(0);
            using (Communicator group = Join("stream", 0, 1))
            using (var result = new DeviceBuffer(group, 8))
            {
                var buffer = new DeviceBuffer(group, 8);
                IntPtr address = buffer.Address;
                var hold = Function<Holds>("fake_hold");
                hold(stream, 1);
                Put(0, stream, address, 3, 4);
                MemoryKind kind = MemoryKind.Default;
                var other = new Thread(() =>
                {
                    Thread.Sleep(50);
                    buffer.Dispose();
                    kind = Devices.MemoryOf(address).Kind;
                    hold(stream, 0);
                });
                other.Start();
                group.AllReduce(
                    address, result.Address, 2, ElementType.F32, Reduction.Sum,
                    new OperationOptions { Stream = stream });
                other.Join();
                Check.Equal(MemoryKind.Device, kind, "while the operation runs");
                Check.Equal(MemoryKind.Host, Devices.MemoryOf(address).Kind, "after it");
                Check.Same(new float[] { 3, 4 }, Get(0, stream, result.Address, 2), "result");
            }
        }

        // Each write is late, and only the stream that was named knows of it.
        private static void FollowedStream()
        {
            const ElementType F32 = ElementType.F32;
            IntPtr own = Function<Makes>("fake_user_stream")(0);
            using (Communicator group = Join("told", 0, 1))
            using (var buffer = new DeviceBuffer(group, 16))
            using (var model = new Model(group, new ModelOptions { Strategy = Strategy.Zero1 }))
            {
                model.AddParameter(new ParameterOptions("w", F32, 4));
                model.Seal();
                IntPtr at = buffer.Address;
                foreach (IntPtr stream in new[] { own, IntPtr.Zero, own })
                {
                    float[] wanted = { 1, 2, 3, stream == own ? 4 : 5 };
                    model.SetStream(stream);
                    Put(0, stream, at, wanted);
                    model.SetParameters(at, 4, F32);
                    Put(0, stream, at, new float[4]);
                    model.GetParameters(at, 4, F32);
                    Check.Same(wanted, Get(0, stream, at, 4), "values");
                }

                IntPtr foreign = Function<Makes>("fake_foreign_stream")(0);
                Check.Contains("primary context", Check.Throws<InvalidArgumentException>(
                    () => model.SetStream(foreign)).Message);
            }
        }

        private static void Refusals()
        {
            const ElementType F32 = ElementType.F32;
            IntPtr stream = Function<Makes>("fake_user_stream")(0);
            IntPtr foreign = Function<Makes>("fake_foreign_stream")(0);
            using (Communicator group = Join("refusals", 0, 1))
            using (Communicator host = Communicator.Create(0, 1, "local://alone"))
            using (Buffer<float> pinned = Buffer<float>.Pinned(group, 4))
            using (var buffer = new DeviceBuffer(group, 16))
            using (var empty = new DeviceBuffer(group, 0))
            {
                IntPtr at = buffer.Address;
                Check.Equal(IntPtr.Zero, empty.Address);
                Check.Equal(16L, buffer.Bytes);
                Check.Contains("memory of the host", Check.Throws<InvalidArgumentException>(
                    () => group.AllReduce<float>(new float[4])).Message);
                Check.Contains("primary context", Check.Throws<InvalidArgumentException>(
                    () => group.AllReduce(
                        at, at, 4, F32, Reduction.Sum,
                        new OperationOptions { Stream = foreign })).Message);
                Check.Contains("options.stream", Check.Throws<InvalidArgumentException>(
                    () => host.AllReduce<float>(
                        new float[4], Reduction.Sum,
                        new OperationOptions { Stream = stream })).Message);
                Check.Contains("CUDA device 0", Check.Throws<InvalidArgumentException>(
                    () => host.AllReduce(at, at, 4, F32)).Message);
                Check.Throws<ArgumentOutOfRangeException>(
                    () => group.AllReduce(at, at, -1, F32));
                Check.Throws<ArgumentException>(
                    () => group.Broadcast(
                        at, 4, F32, 0, new OperationOptions { ElementType = F32 }));
                Check.Throws<InvalidArgumentException>(
                    () => group.Broadcast(at, 4, ElementType.Automatic, 0));
                Check.Contains("kind is HOST", Check.Throws<InvalidArgumentException>(
                    () => new Buffer<float>(group, 4)).Message);
                Check.Contains("kind is PINNED", Check.Throws<InvalidArgumentException>(
                    () => Buffer<float>.Pinned(host, 4)).Message);
                Check.Contains("kind is DEVICE", Check.Throws<InvalidArgumentException>(
                    () => new DeviceBuffer(host, 4)).Message);
                Check.Throws<ArgumentOutOfRangeException>(() => new DeviceBuffer(group, -1));
                Check.Throws<ArgumentNullException>(() => new DeviceBuffer(null, 1));
                Check.Contains("index is 7", Check.Throws<InvalidArgumentException>(
                    () => Communicator.Create(0, 1, "local://x", device: 7)).Message);

                // The group goes on. Pinned memory is an operand, too.
                var options = new OperationOptions { Stream = stream };
                new float[] { 1, 2, 3, 4 }.CopyTo(pinned.Span);
                group.AllReduce(pinned.Address, at, 4, F32, Reduction.Sum, options);
                Check.Same(new float[] { 1, 2, 3, 4 }, Get(0, stream, at, 4), "from pinned");
                Put(0, stream, at, 5, 6, 7, 8);
                group.AllReduce(at, pinned.Address, 4, F32, Reduction.Sum, options);
                Check.Same(new float[] { 5, 6, 7, 8 }, pinned.Span.ToArray(), "to pinned");
            }
        }
    }
}
