using System;
using System.Text;

namespace Trireme
{
    /// <summary>One CUDA device.</summary>
    public sealed class DeviceInfo
    {
        internal unsafe DeviceInfo(ref NativeDeviceInfo info)
        {
            fixed (NativeDeviceInfo* native = &info)
            {
                Name = Utf8.Read(native->Name, 128);
                Uuid = Utf8.Read(native->Uuid, 48);
                BusId = Utf8.Read(native->BusId, 32);
            }

            Capability = new Version(info.CapabilityMajor, info.CapabilityMinor);
            Multiprocessors = (int)info.Multiprocessors;
            MemoryBytes = info.MemoryBytes;
            DriverVersion = new Version(info.DriverVersion / 1000, info.DriverVersion % 1000 / 10);
        }

        /// <summary>The driver's name for it.</summary>
        public string Name { get; }

        /// <summary>Compute capability, for example 9.0.</summary>
        public Version Capability { get; }

        public int Multiprocessors { get; }

        /// <summary>Bytes of its memory, free or not.</summary>
        public ulong MemoryBytes { get; }

        /// <summary>The newest CUDA that the driver runs.</summary>
        public Version DriverVersion { get; }

        /// <summary>Its universal number, without the "GPU-" or "MIG-" of nvidia-smi.</summary>
        public string Uuid { get; }

        /// <summary>Its place in the host, for example "0000:1b:00.0".</summary>
        public string BusId { get; }
    }

    /// <summary>Whose memory an address is.</summary>
    public struct MemoryInfo
    {
        public MemoryKind Kind;

        /// <summary>Number of the CUDA device; -1 for memory of the host alone.</summary>
        public int Device;

        /// <summary>Begin of the allocation; zero for memory of the host alone.</summary>
        public IntPtr First;

        /// <summary>Bytes of the allocation; 0 for memory of the host alone.</summary>
        public ulong Bytes;
    }

    /// <summary>Devices of this process. The first call for CUDA loads the driver.</summary>
    public static class Devices
    {
        /// <summary>
        /// Tells what was found of CUDA and NCCL, a line each, with every file tried.
        /// </summary>
        public static unsafe string Report
        {
            get
            {
                var bytes = new byte[4096];
                while (true)
                {
                    ulong length;
                    fixed (byte* text = bytes)
                    {
                        TriremeException.Check(NativeMethods.trireme_device_report(
                            text, (ulong)bytes.Length, out length));
                    }

                    if (length < (ulong)bytes.Length)
                    {
                        return Encoding.UTF8.GetString(bytes, 0, (int)length);
                    }

                    bytes = new byte[checked((int)length + 4096)];
                }
            }
        }

        /// <summary>
        /// Devices that this process sees. Without a driver it throws
        /// <see cref="UnsupportedException"/>, which tells every file tried.
        /// </summary>
        public static int Count(DeviceKind kind = DeviceKind.Cuda)
        {
            int count;
            TriremeException.Check(NativeMethods.trireme_device_count(kind, out count));
            return count;
        }

        /// <summary>Describes a CUDA device.</summary>
        public static unsafe DeviceInfo Describe(int index)
        {
            var info = new NativeDeviceInfo { StructSize = (uint)sizeof(NativeDeviceInfo) };
            TriremeException.Check(NativeMethods.trireme_device_get_info(index, ref info));
            return new DeviceInfo(ref info);
        }

        /// <summary>Bytes of a CUDA device that are free now.</summary>
        /// <param name="total">All bytes that its driver can give away.</param>
        public static ulong FreeMemory(int index, out ulong total)
        {
            ulong free;
            TriremeException.Check(
                NativeMethods.trireme_device_get_memory(index, out free, out total));
            return free;
        }

        /// <summary>Tells whose memory an address is. It reads nothing there.</summary>
        public static unsafe MemoryInfo MemoryOf(IntPtr address)
        {
            var info = new NativeMemoryInfo { StructSize = (uint)sizeof(NativeMemoryInfo) };
            TriremeException.Check(
                NativeMethods.trireme_memory_get_info((void*)address, ref info));
            return new MemoryInfo
            {
                Kind = (MemoryKind)info.Kind,
                Device = info.Device.Kind == (int)DeviceKind.Cuda ? info.Device.Index : -1,
                First = info.First,
                Bytes = info.Bytes,
            };
        }
    }
}
