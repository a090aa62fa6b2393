using System;

namespace Trireme.Tests
{
    /// <summary>Random numbers that an element's place decides.</summary>
    internal static class RandomTests
    {
        // Of the published vectors of Philox 4x32-10: the words of counter 0 with key 0.
        private static readonly uint[] Words = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 };

        [Test]
        public static void Values_are_the_published_ones()
        {
            var values = new float[4];
            var wide = new double[4];
            var bits = new ushort[4];
            RandomNumbers.Uniform<float>(values, default(RandomPart));
            RandomNumbers.Uniform<double>(wide, default(RandomPart));
            RandomNumbers.Uniform<ushort>(bits, default(RandomPart), ElementType.F16);
            for (int i = 0; i < 4; ++i)
            {
                Check.Equal((Words[i] >> 8) / 16777216f, values[i]);
                Check.Equal(Words[i], (uint)(wide[i] * 4294967296.0));
                Check.That(bits[i] < 0x3c00 && bits[i] > 0, "f16 in (0, 1)");
            }
        }

        [Test]
        public static void Parts_are_parts_of_the_whole()
        {
            var whole = new float[5 * 13];
            var part = new RandomPart { Seed = 1UL << 63, Draw = 9, Columns = 13 };
            RandomNumbers.Uniform<float>(whole, part);
            foreach (int world in new[] { 1, 2, 3, 4, 5, 8 })
            {
                for (int rank = 0; rank < world; ++rank)
                {
                    int first = rank * 13 / world, count = ((rank + 1) * 13 / world) - first;
                    var own = new float[3 * count];
                    part = new RandomPart
                    {
                        Seed = 1UL << 63, Draw = 9, FirstRow = 2, FirstColumn = (ulong)first,
                        Columns = (ulong)count, AllColumns = 13,
                    };
                    RandomNumbers.Uniform<float>(own, part);
                    for (int i = 0; i < own.Length; ++i)
                    {
                        Check.Equal(whole[((2 + (i / count)) * 13) + first + (i % count)], own[i]);
                    }
                }
            }
        }

        [Test]
        public static void Dropout_keeps_the_same_elements_of_all_arrays()
        {
            var forward = new float[1000];
            var gradient = new double[1000];
            var result = new double[1000];
            for (int i = 0; i < 1000; ++i)
            {
                forward[i] = 3;
                gradient[i] = 1;
            }

            var part = new RandomPart { Seed = 5, Draw = 6 };
            RandomNumbers.Dropout<float>(forward, 0.25, part);
            RandomNumbers.Dropout<double>(gradient, result, 0.25, part);
            int dropped = 0;
            for (int i = 0; i < 1000; ++i)
            {
                dropped += forward[i] == 0 ? 1 : 0;
                Check.That(forward[i] == 0 || forward[i] == 4, "element " + i);
                Check.Equal(forward[i] == 0 ? 0 : 1 / 0.75, result[i]);
                Check.Equal(1.0, gradient[i]);
            }

            Check.That(dropped > 150 && dropped < 350, dropped + " of 1000 dropped");
        }

        [Test]
        public static void Bad_input_is_refused()
        {
            var values = new float[6];
            values[1] = 7;
            Check.Throws<ArgumentException>(
                () => RandomNumbers.Uniform<float>(values, new RandomPart { Columns = 4 }));
            Check.Throws<InvalidArgumentException>(
                () => RandomNumbers.Uniform<float>(values, new RandomPart { FirstColumn = 1 }));
            Check.Throws<InvalidArgumentException>(
                () => RandomNumbers.Uniform<float>(
                    values, new RandomPart { Columns = 1, FirstRow = ulong.MaxValue - 2 }));
            Check.Throws<UnsupportedException>(
                () => RandomNumbers.Uniform<int>(new int[3], default(RandomPart)));
            foreach (double rate in new[] { 1, 2, -0.5, double.NaN, double.PositiveInfinity })
            {
                Check.Throws<InvalidArgumentException>(
                    () => RandomNumbers.Dropout<float>(values, rate, default(RandomPart)));
            }

            Check.Throws<ArgumentException>(
                () => RandomNumbers.Dropout<float>(
                    values, new float[5], 0.5, default(RandomPart)));
            Check.Throws<InvalidArgumentException>(
                () => RandomNumbers.Dropout<float>(
                    values.AsSpan(0, 5), values.AsSpan(1), 0.5, default(RandomPart)));
            Check.Equal(7f, values[1]);
            RandomNumbers.Uniform<float>(new float[0], default(RandomPart));
        }
    }
}
