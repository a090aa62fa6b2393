namespace Trireme
{
    /// <summary>The provider of products that a tensor object uses.</summary>
    public sealed class GemmInfo
    {
        internal unsafe GemmInfo(NativeGemmInfo* info)
        {
            Kind = (GemmKind)info->Kind;
            Threads = (int)info->Threads;
            IsRepeatable = info->Repeatable != 0;
            Library = Utf8.Read(info->Library, 128);
            Version = Utf8.Read(info->Version, 128);
            Difference = Utf8.Read(info->Difference, 128);
        }

        /// <summary>The kind of provider.</summary>
        public GemmKind Kind { get; }

        /// <summary>Threads of each product; 0 if not known.</summary>
        public int Threads { get; }

        /// <summary>
        /// Whether equal products of a Loaded provider gave equal bits when it was tried. Others
        /// are not tried.
        /// </summary>
        public bool IsRepeatable { get; }

        /// <summary>The name under which the BLAS was opened; empty if there is none.</summary>
        public string Library { get; }

        /// <summary>Its version as it tells it; empty if it does not.</summary>
        public string Version { get; }

        /// <summary>The products that gave other bits; empty if repeatable.</summary>
        public string Difference { get; }
    }

    /// <content>The provider of the products of layers.</content>
    public sealed partial class Tensor
    {
        /// <summary>The provider of the products of layers; null without one.</summary>
        public unsafe GemmInfo Gemm
        {
            get
            {
                var info = new NativeGemmInfo { StructSize = (uint)sizeof(NativeGemmInfo) };
                TriremeException.Check(
                    NativeMethods.trireme_tensor_get_gemm_info(handle, ref info));
                return info.Kind == 0 ? null : new GemmInfo(&info);
            }
        }
    }
}
