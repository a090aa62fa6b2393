using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Layers that ranks split.</summary>
    internal static class LayersTests
    {
        private const int Rows = 3;
        private const int Inputs = 4;
        private const int Hidden = 6;

        [Test]
        public static void A_pair_of_layers_computes_what_one_process_does()
        {
            float[] x = Whole(Rows * Inputs, 1);
            float[] w1 = Whole(Hidden * Inputs, 2);
            float[] w2 = Whole(Inputs * Hidden, 3);
            float[] bias = Whole(Inputs, 4);
            float[] dy = Whole(Rows * Inputs, 5);
            float[] h = Product(x, Turned(w1, Inputs), Rows, Inputs, Hidden);
            float[] y = Product(h, Turned(w2, Hidden), Rows, Hidden, Inputs);
            float[] dx = Product(
                Product(dy, w2, Rows, Inputs, Hidden), w1, Rows, Hidden, Inputs);
            float[] dw1 = Product(
                Turned(Product(dy, w2, Rows, Inputs, Hidden), Hidden), x, Hidden, Rows, Inputs);
            Ranks.RunAndLeaveTogether(3, communicator =>
            {
                using (Tensor tensor = Tensor.Create(
                    communicator, 4, gemm: GemmKind.Builtin, rowTile: 2))
                using (var one = new ColumnParallelLinear(tensor, "fc1", Inputs, Hidden, Rows))
                using (var two = new RowParallelLinear(
                    tensor, "fc2", Hidden, Inputs, Rows, bias: true))
                {
                    Share own = tensor.Range(Hidden);
                    Check.Equal(own, one.Info.Own, "outputs");
                    Check.Equal(2L, one.Info.TileRows, "rows of a tile");
                    Check.Equal(ParallelMode.Row, two.Mode, "mode");
                    int first = (int)own.First;
                    int count = (int)own.Count;
                    float[] mine1 = w1.Skip(first * Inputs).Take(count * Inputs).ToArray();
                    float[] mine2 = w2.Where((value, i) => i % Hidden >= first
                        && i % Hidden < first + count).ToArray();
                    var hidden = new float[Rows * count];
                    var output = new float[Rows * Inputs];
                    one.Forward(x, mine1, hidden);
                    two.Forward(hidden, mine2, output, bias);
                    Check.Same(y.Select((value, i) => value + bias[i % Inputs]).ToArray(), output,
                        "output");
                    var hiddenGradient = new float[Rows * count];
                    var inputGradient = new float[Rows * Inputs];
                    two.BackwardInput(dy, mine2, hiddenGradient);
                    one.BackwardInput(hiddenGradient, mine1, inputGradient);
                    Check.Same(dx, inputGradient, "input gradient");
                    var weightGradient = new float[count * Inputs];
                    one.BackwardWeight(x, hiddenGradient, weightGradient);
                    one.Forward(x, mine1, hidden);
                    one.BackwardWeight(x, hiddenGradient, weightGradient, add: true);
                    Check.Same(
                        dw1.Skip(first * Inputs).Take(count * Inputs).Select(v => 2 * v).ToArray(),
                        weightGradient, "weight gradient");
                    Check.Equal(2L, one.Info.BackwardWeightPasses, "passes");

                    // Both gradients in one call; the second time those of the weight are added.
                    var both = new float[count * Inputs];
                    var biases = new float[Inputs];
                    var ofTwo = new float[count * Inputs];
                    for (int pass = 0; pass < 2; ++pass)
                    {
                        one.Forward(x, mine1, hidden);
                        two.Forward(hidden, mine2, output, bias);
                        var dh = new float[Rows * count];
                        var found = new float[Rows * Inputs];
                        two.Backward(hidden, dy, mine2, dh, ofTwo, biases, add: pass == 1);
                        one.Backward(x, dh, mine1, found, both, add: pass == 1);
                        Check.Same(hiddenGradient, dh, "hidden gradient of both");
                        Check.Same(dx, found, "input gradient of both");
                    }

                    Check.Same(weightGradient, both, "weight gradient of both");
                    Check.Same(
                        Enumerable.Range(0, Inputs)
                            .Select(j => 2 * dy.Where((value, i) => i % Inputs == j).Sum())
                            .ToArray(),
                        biases, "bias gradient of both");
                    Check.Throws<InvalidStateException>(
                        () => one.Backward(x, hiddenGradient, mine1, new float[Rows * Inputs], both));
                    Check.Throws<System.ArgumentException>(
                        () => one.Backward(x, hiddenGradient, mine1, new float[1], both));
                }
            });
        }

        [Test]
        public static void An_mlp_is_the_same_with_rows_split_and_whole()
        {
            float[] x = Whole(Rows * Inputs, 1);
            float[] dy = Whole(Rows * Inputs, 5);
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                float[] whole = Run(communicator, x, dy, false);
                float[] split = Run(communicator, x, dy, true);
                Check.Equal(true, whole.Any(value => value != 0), "not all zeros");
                Check.Same(whole, split, "gradients of weights");
            });
        }

        [Test]
        public static void Products_of_the_caller_are_those_that_layers_use()
        {
            float[] x = Whole(Rows * Inputs, 1);
            float[] w = Whole(Hidden * Inputs, 2);
            float[] y = Product(x, Turned(w, Inputs), Rows, Inputs, Hidden);
            Ranks.RunAndLeaveTogether(3, communicator =>
            {
                int products = 0;
                ColumnParallelLinear layer;
                Share own;
                using (Tensor tensor = Tensor.Create(
                    communicator, 3, gemm: GemmKind.Caller, product: product =>
                    {
                        ++products;
                        Multiply(product);
                    }))
                {
                    own = tensor.Range(Hidden);
                    layer = new ColumnParallelLinear(tensor, "fc1", Inputs, Hidden, Rows);
                }

                // The function lives as long as the layer.
                GarbageTests.Collect();
                using (layer)
                {
                    int count = (int)own.Count;
                    float[] mine = w.Skip((int)own.First * Inputs).Take(count * Inputs).ToArray();
                    var output = new float[Rows * count];
                    layer.Forward(x, mine, output);
                    Check.Same(
                        y.Where((value, i) => i % Hidden >= own.First
                            && i % Hidden < own.First + count).ToArray(),
                        output, "output");
                    Check.Equal(true, products > 0, "products");
                }
            });
        }

        [Test]
        public static void Activations_of_the_caller_are_those_that_mlps_use()
        {
            Ranks.RunAndLeaveTogether(1, communicator =>
            {
                float[] own;
                float[] library;
                using (Tensor tensor = Tensor.Create(communicator, gemm: GemmKind.Builtin))
                {
                    using (var mlp = new ParallelMLP(
                        tensor, "own", 1, 1, 1, 9, ActivationKind.Caller,
                        forward: call =>
                        {
                            System.Span<float> result = call.Result<float>();
                            for (int i = 0; i < call.Rows; ++i)
                            {
                                float value = call.Input<float>()[i];
                                result[i] = System.Math.Max(value, 0);
                            }
                        },
                        backward: call =>
                        {
                            System.Span<float> result = call.Result<float>();
                            for (int i = 0; i < call.Rows; ++i)
                            {
                                float slope = call.Input<float>()[i] > 0 ? 1 : 0;
                                result[i] = slope * call.OutputGradient<float>()[i];
                            }
                        }))
                    {
                        own = OutputAndGradient(mlp);
                    }

                    using (var mlp = new ParallelMLP(
                        tensor, "library", 1, 1, 1, 9, ActivationKind.Relu))
                    {
                        library = OutputAndGradient(mlp);
                    }

                    using (var mlp = new ParallelMLP(
                        tensor, "gelu", 1, 1, 1, 9, ActivationKind.Gelu))
                    {
                        // 1 * Phi(1)
                        Check.Equal((float)0.84134474606854293, OutputAndGradient(mlp)[5], "GELU of 1");
                    }

                    Check.Throws<InvalidArgumentException>(() => new ParallelMLP(
                        tensor, "none", 1, 1, 1, 9, ActivationKind.Caller, forward: call => { }));
                }

                Check.Same(library, own, "output and gradient");
                Check.Equal(4f, own[8], "the last output");
            });
        }

        [Test]
        public static void An_exception_of_a_function_comes_out_of_the_pass()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                bool fails = communicator.Rank == 1;
                using (Tensor tensor = Tensor.Create(
                    communicator, gemm: GemmKind.Caller, product: product =>
                    {
                        if (fails)
                        {
                            throw new System.TimeZoneNotFoundException("of rank 1");
                        }
                    }))
                using (var layer = new RowParallelLinear(tensor, "row", 2, 2, 1))
                {
                    var two = new float[2];
                    System.Action forward =
                        () => layer.Forward(new float[1], two, new float[2]);
                    if (fails)
                    {
                        Check.Throws<System.TimeZoneNotFoundException>(forward);
                    }
                    else
                    {
                        Check.Throws<CallbackException>(forward);
                    }
                }
            });
        }

        [Test]
        public static void Arrays_and_providers_are_checked()
        {
            Ranks.RunAndLeaveTogether(1, communicator =>
            {
                using (Tensor tensor = Tensor.Create(communicator, gemm: GemmKind.Builtin))
                using (var layer = new ColumnParallelLinear(tensor, "x", 2, 2, 1, bias: true))
                {
                    var two = new float[2];
                    Check.Throws<System.ArgumentException>(
                        () => layer.Forward(two, two, new float[2], two));
                    Check.Throws<System.ArgumentNullException>(
                        () => layer.Forward(two, new float[4], new float[2]));
                    Check.Throws<InvalidStateException>(
                        () => layer.BackwardInput(two, new float[4], new float[2]));
                }

                using (Tensor tensor = Tensor.Create(communicator))
                {
                    Check.Throws<InvalidStateException>(
                        () => new ColumnParallelLinear(tensor, "x", 1, 1, 1));
                }

                Check.Throws<UnsupportedException>(() => Tensor.Create(
                    communicator, gemm: GemmKind.Loaded, library: "libno.so,libneither.so"));
            });
        }

        private static void Multiply(Product p)
        {
            System.ReadOnlySpan<float> left = p.Left<float>();
            System.ReadOnlySpan<float> right = p.Right<float>();
            System.Span<float> result = p.Result<float>();
            for (int i = 0; i < p.Rows; ++i)
            {
                for (int j = 0; j < p.Columns; ++j)
                {
                    float sum = p.Add ? result[(i * p.ResultStep) + j] : 0;
                    for (int k = 0; k < p.Depth; ++k)
                    {
                        sum += left[p.LeftTransposed ? (k * p.LeftStep) + i : (i * p.LeftStep) + k]
                            * right[
                                p.RightTransposed ? (j * p.RightStep) + k : (k * p.RightStep) + j];
                    }

                    result[(i * p.ResultStep) + j] = sum;
                }
            }
        }

        // Of inputs from -4 to 4, with weights of 1.
        private static float[] OutputAndGradient(ParallelMLP mlp)
        {
            var weights = new MLPArrays<float> { Fc1Weight = new[] { 1f }, Fc2Weight = new[] { 1f } };
            float[] inputs = Enumerable.Range(-4, 9).Select(i => (float)i).ToArray();
            float[] ones = Enumerable.Repeat(1f, 9).ToArray();
            var output = new float[9];
            var gradient = new float[9];
            var kept = new byte[mlp.Info.KeptBytes];
            mlp.Forward(inputs, weights, output, kept);
            mlp.BackwardInput(ones, weights, gradient, kept);
            return output.Concat(gradient).ToArray();
        }

        private static float[] Run(
            Communicator communicator, float[] x, float[] dy, bool sequence)
        {
            using (Tensor tensor = Tensor.Create(
                communicator, 4, gemm: GemmKind.Builtin, sequence: sequence,
                keepGathered: sequence, rowTile: sequence ? 1 : 0))
            using (var mlp = new ParallelMLP(
                tensor, "mlp", Inputs, Hidden, Inputs, Rows, ActivationKind.Swiglu, true))
            {
                MLPInfo info = mlp.Info;
                int first = (int)(sequence ? tensor.Range(Rows).First : 0) * Inputs;
                int count = (int)info.InputRows * Inputs;
                float[] source = x.Skip(first).Take(count).ToArray();
                float[] gradient = dy.Skip(first).Take(count).ToArray();
                var weights = Arrays(info, 7);
                var gradients = Arrays(info, 0);
                var kept = new byte[info.KeptBytes];
                mlp.Forward(source, weights, new float[count], kept);
                var inputGradient = new float[count];
                mlp.BackwardInput(gradient, weights, inputGradient, kept);

                // `kept` has both already, where they were gathered and kept.
                float[] read = sequence ? null : source, given = sequence ? null : gradient;
                mlp.BackwardWeight(read, given, gradients, kept);
                Check.Equal(1L, mlp.Info.BackwardInputPasses, "passes for the input");
                Check.Equal(1L, mlp.Info.BackwardWeightPasses, "passes for weights");
                Check.That(mlp.Info.WorkspaceBytes > 0, "workspace");
                Check.Equal(sequence, (mlp.Mode & ParallelMode.Sequence) != 0, "mode");
                Check.Equal(sequence ? 1L : Rows, mlp.Info.TileRows, "rows of a tile");
                var both = Arrays(info, 5);
                var found = new float[count];
                mlp.Forward(source, weights, new float[count], kept);
                mlp.Backward(read, gradient, weights, found, both, kept);
                Check.Same(inputGradient, found, "input gradient of both");
                Check.Same(gradients.Fc1Weight, both.Fc1Weight, "fc1 weight of both");
                Check.Same(gradients.Fc1Bias, both.Fc1Bias, "fc1 bias of both");
                Check.Same(gradients.Fc2Weight, both.Fc2Weight, "fc2 weight of both");
                Check.Same(gradients.Fc2Bias, both.Fc2Bias, "fc2 bias of both");
                return gradients.Fc1Weight.Concat(gradients.Fc1Bias).Concat(gradients.Fc2Weight)
                    .Concat(gradients.Fc2Bias).ToArray();
            }
        }

        private static MLPArrays<float> Arrays(MLPInfo info, int salt)
        {
            return new MLPArrays<float>
            {
                Fc1Weight = Whole((int)info.Fc1Rows * Inputs, salt),
                Fc1Bias = Whole((int)info.Fc1Rows, salt + 1),
                Fc2Weight = Whole(Inputs * (int)info.Own.Count, salt + 2),
                Fc2Bias = Whole(Inputs, salt + 3),
            };
        }

        // Whole numbers, so that sums are exact in any order.
        private static float[] Whole(int count, int salt)
        {
            return Enumerable.Range(0, count).Select(i => (float)((i * 7 + salt * 5) % 9 - 4))
                .ToArray();
        }

        private static float[] Turned(float[] matrix, int columns)
        {
            int rows = matrix.Length / columns;
            return Enumerable.Range(0, matrix.Length)
                .Select(i => matrix[i % rows * columns + i / rows]).ToArray();
        }

        private static float[] Product(float[] left, float[] right, int rows, int depth, int columns)
        {
            return Enumerable.Range(0, rows * columns).Select(i => Enumerable.Range(0, depth)
                .Sum(k => left[i / columns * depth + k] * right[k * columns + i % columns]))
                .ToArray();
        }
    }
}
