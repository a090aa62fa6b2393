using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;

namespace Trireme.Tests
{
    /// <summary>
    /// Models on a device, in a process of DeviceMemoryTests. The oracle is the same training on
    /// the host, bit for bit.
    /// </summary>
    internal static class DeviceModelTests
    {
        private const ElementType F32 = ElementType.F32;
        private const int All = 23;
        private static readonly string[] Names = { "w", "b", "s" };
        private static readonly int[] Sizes = { 15, 7, 1 };

        private static float[] Numbers(int count, int seed)
        {
            return Enumerable.Range(0, count)
                .Select(i => ((((long)i * 7919) + ((long)seed * 104729)) % 2003 / 371f) - 2.7f)
                .ToArray();
        }

        // One training, on the host or on a device.
        private sealed class Training
        {
            public Training(Communicator group)
            {
                Group = group;
                Model = new Model(group, new ModelOptions { Strategy = Strategy.Zero1, Leaves = 4 });
                Model.AddParameter(new ParameterOptions("w", F32, 3, 5) { Unit = "all" });
                Model.AddParameter(new ParameterOptions("b", F32, 7) { Unit = "all" });
                Model.AddParameter(new ParameterOptions("s", F32) { Unit = "all" });
                Model.Seal();
                Optimizer = new Optimizer(
                    Model,
                    new OptimizerOptions
                    {
                        Rule = new AdamW(), LearningRate = 0.01, WeightDecay = 0.01,
                    });
            }

            public Communicator Group { get; }

            public Model Model { get; }

            public Optimizer Optimizer { get; }

            public DeviceBuffer Lent(float[] values)
            {
                var buffer = new DeviceBuffer(Group, 4 * values.Length);
                Group.CopyToDevice<float>(values, buffer.Address);
                return buffer;
            }

            public void Set(float[] values)
            {
                if (!Model.OnDevice)
                {
                    Model.SetParameters<float>(values);
                    return;
                }

                using (DeviceBuffer lent = Lent(values))
                {
                    Model.SetParameters(lent.Address, All, F32);
                }
            }

            public void HandIn(ulong parameter, float[] values)
            {
                if (!Model.OnDevice)
                {
                    Model.GradientReady<float>(parameter, values);
                    return;
                }

                using (DeviceBuffer lent = Lent(values))
                {
                    Model.GradientReady(parameter, lent.Address, values.Length, F32);
                }
            }

            public void HandInAll(float[] values)
            {
                if (!Model.OnDevice)
                {
                    Model.AccumulateFlat<float>(values);
                    return;
                }

                using (DeviceBuffer lent = Lent(values))
                {
                    Model.AccumulateFlat(lent.Address, All, F32);
                }
            }

            public void Step(int number, bool flat)
            {
                for (uint i = 0; i < Model.Info.MicroBatches; ++i)
                {
                    uint? leaf = Model.GetLeaf(i);
                    if (leaf == null)
                    {
                        continue;
                    }

                    int seed = (100 * number) + (int)leaf.Value;
                    if (flat)
                    {
                        HandInAll(Numbers(All, seed));
                        continue;
                    }

                    Model.BeginBackward();
                    for (int p = 0; p < Sizes.Length; ++p)
                    {
                        HandIn((ulong)p, Numbers(Sizes[p], seed + p));
                    }

                    Model.EndBackward();
                }

                Optimizer.Step();
            }

            // All parameters, by each way.
            public float[] Whole()
            {
                Dictionary<string, Array> named = Model.GatherParameters();
                float[] byName =
                    Names.SelectMany(name => named[name].Cast<float>()).ToArray();
                var whole = new float[All];
                if (!Model.OnDevice)
                {
                    Model.GetParameters<float>(whole);
                    Check.Same(byName, whole, "by name");
                    return whole;
                }

                using (DeviceBuffer lent = Lent(whole))
                {
                    Model.GetParameters(lent.Address, All, F32);
                    Group.CopyToHost<float>(lent.Address, whole);
                }

                Check.Same(byName, whole, "by name");
                Check.Same(
                    whole, Enumerable.Range(0, Sizes.Length).SelectMany(Each).ToArray(), "each");
                return whole;
            }

            private float[] Each(int parameter)
            {
                long count;
                IntPtr address = Model.GetParameterAddress((ulong)parameter, out count);
                Check.Equal((long)Sizes[parameter], count);
                Check.Equal(MemoryKind.Device, Devices.MemoryOf(address).Kind);
                var values = new float[count];
                Group.CopyToHost<float>(address, values);
                return values;
            }
        }

        private static List<float[]> Train(int rank, int world, bool onDevice)
        {
            int? device = null;
            if (onDevice)
            {
                device = rank % 2;
            }

            using (Communicator group = Communicator.Create(
                rank, world, "local://models-" + world + "-" + onDevice, Ranks.Patience,
                device: device))
            {
                var first = new Training(group);
                Check.Equal(onDevice, first.Model.OnDevice);
                first.Set(Numbers(All, 5));
                for (int number = 0; number < 3; ++number)
                {
                    first.Step(number, number == 1);
                }

                var found = new List<float[]> { first.Whole() };
                byte[] saved = first.Optimizer.Save();
                found.Add(saved.Select(each => (float)each).ToArray());
                first.Step(3, false);
                found.Add(first.Whole());
                var again = new Training(group);
                again.Optimizer.Load(saved);
                Check.Same(found[0], again.Whole(), "loaded");
                again.Step(3, false);
                Check.Same(found[2], again.Whole(), "goes on");
                var values = new Dictionary<string, Array>();
                for (int p = 0; p < Sizes.Length; ++p)
                {
                    values.Add(Names[p], Numbers(Sizes[p], 9));
                }

                again.Model.BroadcastParameters(values);
                found.Add(again.Whole());
                group.Barrier();
                foreach (Training each in new[] { first, again })
                {
                    each.Optimizer.Dispose();
                    each.Model.Dispose();
                }

                return found;
            }
        }

        private static List<float[]>[] OnAll(int world, bool onDevice)
        {
            var found = new List<float[]>[world];
            Ranks.OnThreads(world, rank => found[rank] = Train(rank, world, onDevice));
            return found;
        }

        internal static void HostAndDeviceAgree()
        {
            for (int world = 1; world <= 2; ++world)
            {
                List<float[]>[] host = OnAll(world, false), device = OnAll(world, true);
                for (int rank = 0; rank < world; ++rank)
                {
                    for (int i = 0; i < host[rank].Count; ++i)
                    {
                        Check.Same(host[rank][i], device[rank][i], "result " + i);
                    }
                }
            }
        }

        internal static void Refusals()
        {
            using (Communicator group = Communicator.Create(
                0, 1, "local://refusing", Ranks.Patience, device: 0))
            {
                var training = new Training(group.Duplicate());
                Model model = training.Model;
                Check.Contains("CopyToHost", Check.Throws<InvalidOperationException>(
                    () => model.GetParameterData<float>(0).ToString()).Message);
                model.BeginBackward();
                bool adds;
                Check.That(model.GetGradientData<float>(0, out adds).IsEmpty, "no view");
                Check.Contains("memory of the host", Check.Throws<InvalidArgumentException>(
                    () => model.GradientReady<float>(0, new float[15])).Message);
                using (DeviceBuffer lent = training.Lent(new float[15]))
                {
                    Check.Throws<ArgumentOutOfRangeException>(
                        () => model.GradientReady(0, lent.Address, -1, F32));
                    Check.Throws<InvalidArgumentException>(
                        () => model.GradientReady(0, lent.Address, 15, ElementType.F64));
                }

                for (int p = 0; p < Sizes.Length; ++p)
                {
                    training.HandIn((ulong)p, Numbers(Sizes[p], 1));
                }

                model.EndBackward();
                Check.Contains("on a device", Check.Throws<InvalidOperationException>(
                    () => training.Optimizer.GetRanges()[0].GetData<float>().ToString()).Message);
                var layer = new Layer("all", call => { }, call => { }) { ParameterCount = 3 };
                Check.Contains("functions of C alone", Check.Throws<UnsupportedException>(
                    () => new Trainer(training.Optimizer, new[] { layer })).Message);
                Check.Throws<InvalidArgumentException>(
                    () => group.CopyToHost<float>(IntPtr.Zero, new float[4]));
                group.CopyMemory(IntPtr.Zero, IntPtr.Zero, 0);
                Check.Throws<ArgumentOutOfRangeException>(
                    () => group.CopyMemory(IntPtr.Zero, IntPtr.Zero, -1));
                training.Optimizer.Dispose();
                model.Dispose();
            }
        }
    }
}
