using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Ranks arranged in named axes.</summary>
    internal static class MeshTests
    {
        [Test]
        public static void Tensor_is_fastest_and_an_open_size_is_inferred()
        {
            Ranks.RunAndLeaveTogether(8, communicator =>
            {
                var axes = new[]
                {
                    new MeshAxis("tensor", 2), new MeshAxis("data", 0), new MeshAxis("pipeline", 2),
                };
                using (Mesh mesh = Mesh.Create(communicator, axes, timeout: Ranks.Patience))
                {
                    Check.Equal(2, mesh.AxisSize("data"), "data");
                    for (int rank = 0; rank < 8; ++rank)
                    {
                        int[] place = mesh.Coordinates(rank);
                        Check.Same(new[] { rank & 1, rank >> 1 & 1, rank >> 2 }, place, "place");
                        Check.Equal(rank, mesh.Rank(place), "rank");
                    }

                    int own = communicator.Rank;
                    for (int axis = 0; axis < 3; ++axis)
                    {
                        int bit = 1 << axis;
                        int[] expected = { own & ~bit, own | bit };
                        Check.Same(expected, mesh.Group(own, mesh.Axes[axis]), "group");
                        Communicator along = mesh.Communicator(mesh.Axes[axis]);
                        CheckMembers(expected, along, own);
                        along.Dispose();
                        CheckMembers(expected, mesh.Communicator(mesh.Axes[axis]), own);
                    }

                    int[] half = Enumerable.Range(own & 4, 4).ToArray();
                    Check.Same(half, mesh.Group(own, "data", "tensor"), "group of two axes");
                    using (Communicator both = mesh.MakeCommunicator(new[] { "data", "tensor" }))
                    {
                        CheckMembers(half, both, own);
                    }
                }
            });
        }

        [Test]
        public static void The_order_can_be_chosen()
        {
            Ranks.RunAndLeaveTogether(6, communicator =>
            {
                var axes = new[] { new MeshAxis("data", 2), new MeshAxis("tensor", 3) };
                using (Mesh first = Mesh.Create(communicator, axes, MeshOrder.FirstFastest))
                using (Mesh last = Mesh.Create(communicator, axes, MeshOrder.LastFastest))
                {
                    Check.Same(new[] { 1, 0 }, first.Coordinates(1), "first fastest");
                    Check.Same(new[] { 0, 1 }, last.Coordinates(1), "last fastest");
                }
            });
        }

        [Test]
        public static void Meshes_that_differ_are_a_mismatch_on_all_ranks()
        {
            Ranks.RunAndLeaveTogether(3, communicator =>
            {
                string name = communicator.Rank == 0 ? "data" : "tensor";
                Check.Throws<MismatchException>(
                    () => Mesh.Create(communicator, new[] { new MeshAxis(name, 3) }));
            });
        }

        [Test]
        public static void Wrong_arguments_are_refused()
        {
            using (Communicator alone = Trireme.Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                Check.Throws<ArgumentNullException>(() => Mesh.Create(null, new MeshAxis[0]));
                Check.Throws<ArgumentNullException>(() => Mesh.Create(alone, null));
                Check.Throws<ArgumentNullException>(() => Mesh.Create(alone, new MeshAxis[1]));
                Check.Throws<InvalidArgumentException>(
                    () => Mesh.Create(alone, new MeshAxis[0]));
                Check.Throws<InvalidArgumentException>(
                    () => Mesh.Create(alone, new[] { new MeshAxis("data", 2) }));
                Check.Throws<InvalidArgumentException>(
                    () => Mesh.Create(alone, new[] { new MeshAxis("data", 1) }, (MeshOrder)3));
                using (Mesh mesh = Mesh.Create(alone, new[] { new MeshAxis("data", 1) }))
                {
                    Check.Throws<InvalidArgumentException>(() => mesh.AxisSize("tensor"));
                    Check.Throws<ArgumentNullException>(() => mesh.AxisSize(null));
                    Check.Throws<InvalidArgumentException>(() => mesh.Coordinates(1));
                    Check.Throws<InvalidArgumentException>(() => mesh.Rank(0, 0));
                    Check.Throws<InvalidArgumentException>(() => mesh.Group(0));
                    Check.Throws<InvalidArgumentException>(() => mesh.Group(0, "data", "data"));
                    Check.Throws<InvalidArgumentException>(() => mesh.Communicator("tensor"));
                    Check.Throws<InvalidArgumentException>(
                        () => mesh.MakeCommunicator(new string[0]));
                    Communicator axis = mesh.Communicator("data");
                    mesh.Dispose();
                    Check.Throws<InvalidHandleException>(() => axis.Barrier());
                    Check.Throws<ObjectDisposedException>(() => mesh.Coordinates(0));
                }
            }
        }

        private static void CheckMembers(int[] expected, Communicator group, int own)
        {
            var seen = new int[group.WorldSize];
            group.AllGather<int>(new[] { own }, seen);
            Check.Same(expected, seen, "ranks that answered");
        }
    }
}
