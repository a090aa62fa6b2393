using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>One axis of a mesh.</summary>
    public struct MeshAxis
    {
        public MeshAxis(string name, int size)
        {
            Name = name;
            Size = size;
        }

        /// <summary>
        /// Any name; "data", "shard", "tensor", "pipeline", "context", "expert" are known.
        /// </summary>
        public string Name { get; }

        /// <summary>Ranks along the axis; 0 for what is left.</summary>
        public int Size { get; }
    }

    /// <summary>
    /// Ranks arranged in named axes: one coordinate for each rank on each axis, and a communicator
    /// along each axis. Every method may be called from any thread, also concurrently.
    /// </summary>
    public sealed class Mesh : IDisposable
    {
        private readonly MeshHandle handle;
        private readonly string[] names;
        private readonly int worldSize;

        private Mesh(MeshHandle handle, string[] names, int worldSize)
        {
            this.handle = handle;
            this.names = names;
            this.worldSize = worldSize;
        }

        /// <summary>
        /// Arranges the ranks of a communicator. All of its ranks call this with the same axes.
        /// </summary>
        /// <param name="order">
        /// How ranks are numbered. Along the fastest axis they have consecutive numbers.
        /// </param>
        /// <param name="timeout">Longest this call may wait; zero is the communicator's.</param>
        public static unsafe Mesh Create(
            Communicator communicator, IReadOnlyList<MeshAxis> axes,
            MeshOrder order = MeshOrder.ByName, TimeSpan timeout = default(TimeSpan))
        {
            if (communicator == null)
            {
                throw new ArgumentNullException(nameof(communicator));
            }

            if (axes == null)
            {
                throw new ArgumentNullException(nameof(axes));
            }

            string[] names = axes.Select(axis => axis.Name).ToArray();
            int[] sizes = axes.Select(axis => axis.Size).ToArray();
            using (var texts = new Texts(names, nameof(axes)))
            fixed (IntPtr* namesPointer = texts.Pointers)
            fixed (int* sizesPointer = sizes)
            {
                var options = new NativeMeshOptions
                {
                    StructSize = (uint)sizeof(NativeMeshOptions),
                    AxisCount = (uint)names.Length,
                    Order = (int)order,
                    AxisNames = (IntPtr)namesPointer,
                    AxisSizes = (IntPtr)sizesPointer,
                    TimeoutNs = Nanoseconds.From(timeout, nameof(timeout)),
                };
                MeshHandle made;
                TriremeException.Check(NativeMethods.trireme_mesh_create(
                    communicator.Handle, ref options, out made));
                return new Mesh(made, names, communicator.WorldSize);
            }
        }

        internal MeshHandle Handle
        {
            get { return handle; }
        }

        /// <summary>Names of the axes, in the order given.</summary>
        public IReadOnlyList<string> Axes
        {
            get { return names; }
        }

        /// <summary>Number of ranks along an axis, also if its size was left open.</summary>
        public int AxisSize(string axis)
        {
            using (var text = new Utf8(Required(axis), nameof(axis)))
            {
                int size;
                TriremeException.Check(
                    NativeMethods.trireme_mesh_get_axis_size(handle, text.Pointer, out size));
                return size;
            }
        }

        /// <summary>A rank's place on every axis, in the order of <see cref="Axes"/>.</summary>
        public unsafe int[] Coordinates(int rank)
        {
            var coordinates = new int[names.Length];
            fixed (int* places = coordinates)
            {
                TriremeException.Check(NativeMethods.trireme_mesh_get_coordinates(
                    handle, rank, places, (ulong)coordinates.Length));
            }

            return coordinates;
        }

        /// <summary>The rank at a place: one coordinate for each axis.</summary>
        public unsafe int Rank(params int[] coordinates)
        {
            if (coordinates == null)
            {
                throw new ArgumentNullException(nameof(coordinates));
            }

            fixed (int* places = coordinates)
            {
                int rank;
                TriremeException.Check(NativeMethods.trireme_mesh_get_rank(
                    handle, places, (ulong)coordinates.Length, out rank));
                return rank;
            }
        }

        /// <summary>The ranks that differ from a rank at most on these axes, ascending.</summary>
        public unsafe int[] Group(int rank, params string[] axes)
        {
            var ranks = new int[worldSize];
            ulong count;
            using (var texts = new Texts(axes, nameof(axes)))
            fixed (IntPtr* namesPointer = texts.Pointers)
            fixed (int* found = ranks)
            {
                TriremeException.Check(NativeMethods.trireme_mesh_get_group(
                    handle, namesPointer, (uint)texts.Pointers.Length, rank, found,
                    (ulong)ranks.Length, out count));
            }

            return ranks.Take((int)count).ToArray();
        }

        /// <summary>
        /// The communicator along one axis. It belongs to the mesh and ends with it; to dispose of
        /// it changes nothing.
        /// </summary>
        public Communicator Communicator(string axis)
        {
            using (var text = new Utf8(Required(axis), nameof(axis)))
            {
                IntPtr found;
                TriremeException.Check(NativeMethods.trireme_mesh_get_axis_communicator(
                    handle, text.Pointer, out found));
                return Trireme.Communicator.Adopt(new CommunicatorHandle(found, this));
            }
        }

        /// <summary>
        /// A new communicator over several axes together. All ranks of the mesh call this.
        /// </summary>
        public unsafe Communicator MakeCommunicator(
            IReadOnlyList<string> axes, string name = null, TimeSpan timeout = default(TimeSpan))
        {
            if (axes == null)
            {
                throw new ArgumentNullException(nameof(axes));
            }

            using (var texts = new Texts(axes.ToArray(), nameof(axes)))
            {
                IntPtr[] pointers = texts.Pointers;
                return Trireme.Communicator.MakeChild(
                    name, timeout,
                    (ref NativeChildOptions options, out CommunicatorHandle child) =>
                    {
                        fixed (IntPtr* namesPointer = pointers)
                        {
                            return NativeMethods.trireme_mesh_create_communicator(
                                handle, namesPointer, (uint)pointers.Length, ref options,
                                out child);
                        }
                    });
            }
        }

        /// <summary>Leaves the communicators of the axes.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        private static string Required(string axis)
        {
            if (axis == null)
            {
                throw new ArgumentNullException(nameof(axis));
            }

            return axis;
        }
    }
}
