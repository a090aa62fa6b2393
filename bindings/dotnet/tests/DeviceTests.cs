using System;
using System.IO;

namespace Trireme.Tests
{
    /// <summary>Devices of a process, over a driver that does as it is told.</summary>
    internal static class DeviceTests
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

        private static string Run(string driver, string script)
        {
            return Child.Run(
                "devices", "TRIREME_CUDA_DRIVER", driver, "TRIREME_NCCL_LIBRARY",
                Fake("fake_nccl.so"), "TRIREME_CUDA_PLUGIN", null, "FAKE_CUDA", script);
        }

        private static string Attempt(Func<string> call)
        {
            try
            {
                return call();
            }
            catch (TriremeException exception)
            {
                return exception.GetType().Name + " " + exception.Status + " " + exception.Message;
            }
        }

        /// <summary>Prints all answers, in a process of its own.</summary>
        public static unsafe void Tell()
        {
            Console.WriteLine("host " + Devices.Count(DeviceKind.Host));
            Console.WriteLine("count " + Attempt(() => Devices.Count().ToString()));
            for (int i = 0; i < 3; ++i)
            {
                int index = i;
                Console.WriteLine("device " + Attempt(() =>
                {
                    DeviceInfo info = Devices.Describe(index);
                    return string.Join("|", info.Name, info.Capability, info.Multiprocessors,
                        info.MemoryBytes, info.DriverVersion, info.Uuid, info.BusId);
                }));
            }

            Console.WriteLine("memory " + Attempt(() =>
            {
                ulong total;
                ulong free = Devices.FreeMemory(1, out total);
                return free + " of " + total;
            }));
            int word = 0;
            MemoryInfo own = Devices.MemoryOf((IntPtr)(&word));
            Console.WriteLine("own " + own.Kind + " " + own.Device + " " + own.Bytes);
            Console.WriteLine("null " + Attempt(() => Devices.MemoryOf(IntPtr.Zero).ToString()));
            Console.Write(Devices.Report);
        }

        private static void Has(string output, string line)
        {
            Check.That(output.Contains(line), "\"" + line + "\" in:\n" + output);
        }

        [Test]
        public static void Devices_are_described()
        {
            string output = Run(Fake("fake_cuda.so"), string.Empty);
            Has(output, "host 1\ncount 2\n");
            Has(output, "device Fake GPU 0|9.0|100|8589934592|13.0|" +
                "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff|0000:10:00.0\n");
            Has(output, "device Fake GPU 1|9.1|101|17179869184|13.0|" +
                "00010203-0405-0607-0809-0a0b0c0d0e0f|0000:11:00.0\n");
            Has(output, "device InvalidArgumentException InvalidArgument " +
                "trireme_device_get_info: index is 2, but this process sees 2 CUDA devices");
            Has(output, "memory " + ((16UL << 30) - (2UL << 20)) + " of " + (16UL << 30) + "\n");
            Has(output, "own Host -1 0\n");
            Has(output, "null InvalidArgumentException");
            Has(output, "devices: 2\ndevice 0: Fake GPU 0,");
            Has(output, "NCCL: " + Fake("fake_nccl.so") + ", which the process has not loaded\n");
        }

        [Test]
        public static void A_missing_driver_is_told_with_what_was_tried()
        {
            Fake("fake_cuda.so");
            string output = Run("/nowhere/libcuda.so.1", string.Empty);
            Has(output, "count UnsupportedException Unsupported trireme_device_count: " +
                "no CUDA driver: tried /nowhere/libcuda.so.1: ");
            Has(output, "own Host -1 0\n");
            Has(output, "driver: no CUDA driver: tried /nowhere/libcuda.so.1: ");
        }

        [Test]
        public static void A_driver_that_fails_is_a_failure_of_the_device()
        {
            string output = Run(Fake("fake_cuda.so"), "fail=cuDeviceGetName:719");
            Has(output, "count 2\ndevice DeviceException Device trireme_device_get_info: " +
                "cuDeviceGetName answers CUDA_ERROR_LAUNCH_FAILED (719)");
        }
    }
}
