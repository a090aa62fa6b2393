using System;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>The provider of the products of layers, also on axes.</summary>
    internal static class GemmTests
    {
        private const int Rows = 2;
        private const int Inputs = 3;
        private const int Outputs = 4;

        [Test]
        public static void A_tensor_object_tells_its_provider()
        {
            Ranks.RunAndLeaveTogether(1, communicator =>
            {
                Tensor tensor = Tensor.Create(communicator, gemm: GemmKind.Builtin);
                Check.Equal(GemmKind.Builtin, tensor.Gemm.Kind, "kind");
                Check.Equal(true, tensor.Gemm.IsRepeatable, "repeatable");
                Check.Equal("", tensor.Gemm.Library + tensor.Gemm.Difference, "texts");
                tensor.Dispose();
                Check.Throws<ObjectDisposedException>(() => tensor.Gemm.ToString());
                using (Tensor none = Tensor.Create(communicator))
                {
                    Check.That(none.Gemm == null, "no provider");
                }

                using (Tensor own = Tensor.Create(
                    communicator, gemm: GemmKind.Caller, product: product => { }))
                {
                    Check.Equal(GemmKind.Caller, own.Gemm.Kind, "kind");
                }
            });
        }

        [Test]
        public static void Layers_on_axes_use_the_callers_product()
        {
            float[] x = Whole(Rows * Inputs, 1);
            float[] w = Whole(Outputs * Inputs, 2);
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                int products = 0;
                ColumnParallelLinear layer;
                Share own;
                using (ParallelContext context = Arrange(communicator, product =>
                {
                    ++products;
                    Multiply(product);
                }))
                using (Tensor tensor = context.Tensor())
                {
                    Check.Equal(GemmKind.Caller, tensor.Gemm.Kind, "kind");
                    own = tensor.Range(Outputs);
                    layer = new ColumnParallelLinear(tensor, "fc", Inputs, Outputs, Rows);
                    var output = new float[Rows * own.Count];
                    for (int pass = 0; pass < 3; ++pass)
                    {
                        // The function lives as long as the context and the layer.
                        GarbageTests.Collect();
                        layer.Forward(x, Part(w, own), output);
                    }

                    Check.Same(Expected(x, w, own), output, "output");
                    Check.That(products > 0, "products");
                    layer.Dispose();
                }
            });
        }

        [Test]
        public static void An_exception_of_a_product_comes_out_of_the_pass_on_axes()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                bool fails = true;
                using (ParallelContext context = Arrange(communicator, product =>
                {
                    if (fails && communicator.Rank == 1)
                    {
                        throw new TimeZoneNotFoundException("of rank 1");
                    }

                    Multiply(product);
                }))
                using (Tensor tensor = context.Tensor())
                using (var layer = new RowParallelLinear(tensor, "row", 2, 2, 1))
                {
                    Action forward =
                        () => layer.Forward(new float[1], new float[2], new float[2]);
                    if (communicator.Rank == 1)
                    {
                        Check.Throws<TimeZoneNotFoundException>(forward);
                    }
                    else
                    {
                        Check.Throws<CallbackException>(forward);
                    }
                }
            });
        }

        [Test]
        public static void A_caller_without_a_product_is_refused()
        {
            Ranks.RunAndLeaveTogether(1, communicator =>
            {
                Check.Throws<InvalidArgumentException>(() => Arrange(communicator, null));
                foreach (ParallelTensorOptions nobody in new[]
                {
                    new ParallelTensorOptions { Product = product => { } },
                    new ParallelTensorOptions { Library = "libno.so" },
                    new ParallelTensorOptions { GemmThreads = 2 },
                })
                {
                    Check.Throws<InvalidArgumentException>(() => ParallelContext.Create(
                        communicator, new ParallelContextOptions { TensorOptions = nobody }));
                }

                Check.Throws<InvalidArgumentException>(
                    () => Tensor.Create(communicator, product: product => { }));
                Check.Throws<InvalidArgumentException>(
                    () => ParallelContext.Create(communicator, new ParallelContextOptions
                    {
                        TensorOptions = new ParallelTensorOptions
                        {
                            Gemm = GemmKind.Builtin, Product = product => { },
                        },
                    }));
            });
        }

        private static ParallelContext Arrange(
            Communicator communicator, ProductFunction product)
        {
            return ParallelContext.Create(communicator, new ParallelContextOptions
            {
                Tensor = ParallelContextOptions.Rest, Timeout = Ranks.Patience,
                TensorOptions = new ParallelTensorOptions
                {
                    Gemm = GemmKind.Caller, Product = product,
                },
            });
        }

        private static float[] Part(float[] weight, Share own)
        {
            return weight.Skip((int)own.First * Inputs).Take((int)own.Count * Inputs).ToArray();
        }

        // In plain loops, for the own columns of x times the weight turned.
        private static float[] Expected(float[] x, float[] weight, Share own)
        {
            var result = new float[Rows * own.Count];
            for (int i = 0; i < result.Length; ++i)
            {
                int row = i / (int)own.Count;
                int column = (int)own.First + (i % (int)own.Count);
                for (int k = 0; k < Inputs; ++k)
                {
                    result[i] += x[(row * Inputs) + k] * weight[(column * Inputs) + k];
                }
            }

            return result;
        }

        private static void Multiply(Product p)
        {
            ReadOnlySpan<float> left = p.Left<float>();
            ReadOnlySpan<float> right = p.Right<float>();
            Span<float> result = p.Result<float>();
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

        // Whole numbers, so that sums are exact in any order.
        private static float[] Whole(int count, int salt)
        {
            return Enumerable.Range(0, count).Select(i => (float)(((i * 7) + (salt * 5)) % 9 - 4))
                .ToArray();
        }
    }
}
