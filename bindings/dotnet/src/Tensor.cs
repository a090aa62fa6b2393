using System;

namespace Trireme
{
    /// <summary>Elements of an extent, or blocks: as many as Count, from First on.</summary>
    public struct Share : IEquatable<Share>
    {
        public Share(long first, long count)
        {
            First = first;
            Count = count;
        }

        /// <summary>The first one.</summary>
        public long First { get; }

        /// <summary>How many; may be 0.</summary>
        public long Count { get; }

        public bool Equals(Share other)
        {
            return First == other.First && Count == other.Count;
        }

        public override bool Equals(object other)
        {
            return other is Share && Equals((Share)other);
        }

        public override int GetHashCode()
        {
            return First.GetHashCode() ^ Count.GetHashCode() << 1;
        }

        public override string ToString()
        {
            return Count + " from " + First;
        }
    }

    /// <summary>Attention heads of one rank.</summary>
    public struct HeadShares
    {
        internal HeadShares(NativeHeadInfo info)
        {
            Heads = new Share((long)info.FirstHead, (long)info.HeadCount);
            KvHeads = new Share((long)info.FirstKvHead, (long)info.KvHeadCount);
            KvShared = info.KvShared != 0;
        }

        /// <summary>Query heads.</summary>
        public Share Heads { get; }

        /// <summary>The key/value heads that these use.</summary>
        public Share KvHeads { get; }

        /// <summary>Whether another rank holds one of these key/value heads, too.</summary>
        public bool KvShared { get; }
    }

    /// <summary>
    /// How the ranks of a communicator split the layers of a model between them. Every extent
    /// (rows, columns, heads) is cut into blocks, and each rank holds neighbouring ones. Every
    /// method may be called from any thread, also concurrently.
    /// </summary>
    public sealed partial class Tensor : IDisposable
    {
        private readonly TensorHandle handle;
        private readonly int rank;

        internal Tensor(
            TensorHandle handle, int rank, bool sequence, ProductRunner products = null)
        {
            this.handle = handle;
            this.rank = rank;
            Products = products;
            IsSequence = sequence;
        }

        /// <summary>Whether activations between layers are split by rows.</summary>
        public bool IsSequence { get; }

        /// <summary>Null without products of the caller.</summary>
        internal ProductRunner Products { get; }

        internal TensorHandle Handle
        {
            get { return handle; }
        }

        /// <summary>Makes a tensor object. Does not wait for the other ranks.</summary>
        /// <param name="blocks">
        /// Blocks of every extent, the same on all ranks. With G, sums have the same bits for every
        /// number of ranks up to G. With 0 each rank has one block.
        /// </param>
        /// <param name="timeout">Longest time of a pass; zero is the communicator's.</param>
        /// <param name="gemm">The provider of the products of layers; null without layers.</param>
        /// <param name="library">
        /// Of Loaded: the file of the BLAS, or several with commas between them; null takes the
        /// names in docs/tensor.md.
        /// </param>
        /// <param name="gemmThreads">Of Loaded: threads of each product; 0 means one.</param>
        /// <param name="sequence">
        /// Whether activations between layers are split by rows.
        /// </param>
        /// <param name="keepGathered">Whether gathered inputs are kept for backward.</param>
        /// <param name="product">
        /// Of Caller: the product. An exception of it comes out of the pass on its rank, and the
        /// other ranks get a CallbackException.
        /// </param>
        /// <param name="rowTile">
        /// Rows that layers multiply at a time, and exchange while they multiply the next ones.
        /// 0 leaves it to the library: see docs/tensor.md.
        /// </param>
        public static unsafe Tensor Create(
            Communicator communicator, int blocks = 0, TimeSpan timeout = default(TimeSpan),
            GemmKind? gemm = null, string library = null, int gemmThreads = 0,
            bool sequence = false, bool keepGathered = false, ProductFunction product = null,
            int rowTile = 0)
        {
            if (communicator == null)
            {
                throw new ArgumentNullException(nameof(communicator));
            }

            var asked = new ParallelTensorOptions
            {
                Blocks = blocks, Timeout = timeout, Gemm = gemm, GemmThreads = gemmThreads,
                Library = library, Sequence = sequence, KeepGathered = keepGathered,
                Product = product,
                RowTile = rowTile,
            };
            ProductRunner products = asked.Runner();
            using (var text = new Utf8(library ?? "", nameof(library)))
            {
                NativeGemmOptions provider;
                NativeTensorOptions options = Native(asked, text, products, out provider);
                options.Gemm = asked.HasProvider ? (IntPtr)(&provider) : IntPtr.Zero;
                TensorHandle made;
                TriremeException.Check(NativeMethods.trireme_tensor_create(
                    communicator.Handle, ref options, out made));
                return new Tensor(made, communicator.Rank, sequence, products);
            }
        }

        /// <summary>The native options, without the address of the provider.</summary>
        internal static unsafe NativeTensorOptions Native(
            ParallelTensorOptions asked, Utf8 library, ProductRunner products,
            out NativeGemmOptions provider)
        {
            provider = new NativeGemmOptions
            {
                StructSize = (uint)sizeof(NativeGemmOptions),
                Kind = (int)asked.Gemm.GetValueOrDefault(),
                Library = asked.Library == null ? IntPtr.Zero : library.Pointer,
                Threads = Positive(asked.GemmThreads, "gemmThreads"),
                Callback = products == null ? IntPtr.Zero : ProductRunner.Address,
                UserData = products == null ? IntPtr.Zero : products.UserData,
            };
            return new NativeTensorOptions
            {
                StructSize = (uint)sizeof(NativeTensorOptions),
                Blocks = Positive(asked.Blocks, "blocks"),
                RowTile = Positive(asked.RowTile, "rowTile"),
                TimeoutNs = Nanoseconds.From(asked.Timeout, "timeout"),
                Flags = (asked.Sequence ? (uint)NativeMethods.TRIREME_TENSOR_FLAG_SEQUENCE : 0)
                    | (asked.KeepGathered
                        ? (uint)NativeMethods.TRIREME_TENSOR_FLAG_KEEP_GATHERED : 0),
            };
        }

        /// <summary>Blocks of every extent.</summary>
        public int Blocks
        {
            get { return (int)Info().Blocks; }
        }

        /// <summary>The blocks of this rank.</summary>
        public Share OwnBlocks
        {
            get
            {
                NativeTensorInfo info = Info();
                return new Share(info.FirstBlock, info.BlockCount);
            }
        }

        /// <summary>Regions that are not disposed of.</summary>
        public int RegionCount
        {
            get { return (int)Info().RegionCount; }
        }

        /// <summary>The elements of an extent that this rank holds.</summary>
        public Share Range(long extent)
        {
            return Range(extent, rank);
        }

        /// <summary>The elements of an extent that a rank holds.</summary>
        public Share Range(long extent, int ofRank)
        {
            ulong first;
            ulong count;
            TriremeException.Check(NativeMethods.trireme_tensor_range(
                handle, Positive(extent, nameof(extent)), ofRank, out first, out count));
            return new Share((long)first, (long)count);
        }

        /// <summary>The elements of an extent that a block holds, of any rank.</summary>
        public Share Block(long extent, int block)
        {
            ulong first;
            ulong count;
            TriremeException.Check(NativeMethods.trireme_tensor_block(
                handle, Positive(extent, nameof(extent)), Positive(block, nameof(block)),
                out first, out count));
            return new Share((long)first, (long)count);
        }

        /// <summary>The attention heads of this rank.</summary>
        public HeadShares Heads(long heads, long kvHeads)
        {
            return Heads(heads, kvHeads, rank);
        }

        /// <summary>The attention heads of a rank. kvHeads divides heads.</summary>
        public unsafe HeadShares Heads(long heads, long kvHeads, int ofRank)
        {
            var info = new NativeHeadInfo { StructSize = (uint)sizeof(NativeHeadInfo) };
            TriremeException.Check(NativeMethods.trireme_tensor_heads(
                handle, Positive(heads, nameof(heads)), Positive(kvHeads, nameof(kvHeads)), ofRank,
                ref info));
            return new HeadShares(info);
        }

        /// <summary>Makes a region for a whole array of rows times columns.</summary>
        /// <param name="name">Not empty, and no other region's.</param>
        /// <param name="dimension">The dimension of the split form, if the kind has one.</param>
        /// <param name="elementType">The library's type of the elements.</param>
        /// <param name="parts">
        /// Summands of a sum of all ranks together; 0 means one for each block.
        /// </param>
        /// <param name="rowUnit">
        /// Rows that stay on one rank together, such as those of an attention head; 0 means one.
        /// </param>
        /// <param name="columnUnit">The same for columns.</param>
        public unsafe Region Region(
            string name, RegionKind kind, long rows, long columns,
            RegionDimension dimension = RegionDimension.None,
            ElementType elementType = ElementType.F32, int parts = 0,
            long rowUnit = 0, long columnUnit = 0)
        {
            if (name == null)
            {
                throw new ArgumentNullException(nameof(name));
            }

            using (var text = new Utf8(name, nameof(name)))
            {
                var options = new NativeRegionOptions
                {
                    StructSize = (uint)sizeof(NativeRegionOptions),
                    Name = text.Pointer,
                    Kind = (int)kind,
                    Dimension = (int)dimension,
                    Rows = Positive(rows, nameof(rows)),
                    Columns = Positive(columns, nameof(columns)),
                    Dtype = (int)elementType,
                    Parts = Positive(parts, nameof(parts)),
                    RowUnit = Positive(rowUnit, nameof(rowUnit)),
                    ColumnUnit = Positive(columnUnit, nameof(columnUnit)),
                };
                RegionHandle made;
                TriremeException.Check(
                    NativeMethods.trireme_region_create(handle, ref options, out made));
                return new Region(made, elementType);
            }
        }

        /// <summary>Destroys the object. Its regions live on.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        internal unsafe VocabularyHandle CreateVocabulary(
            string name, ElementType elementType, NativeVocabularyOptions options)
        {
            using (var text = new Utf8(name, nameof(name)))
            {
                options.StructSize = (uint)sizeof(NativeVocabularyOptions);
                options.Name = text.Pointer;
                options.Dtype = (int)elementType;
                VocabularyHandle made;
                TriremeException.Check(
                    NativeMethods.trireme_vocabulary_create(handle, ref options, out made));
                return made;
            }
        }

        private static uint Positive(int number, string name)
        {
            return (uint)Positive((long)number, name);
        }

        internal static ulong Positive(long number, string name)
        {
            if (number < 0)
            {
                throw new ArgumentOutOfRangeException(name, number, "A number below zero.");
            }

            return (ulong)number;
        }

        private unsafe NativeTensorInfo Info()
        {
            var info = new NativeTensorInfo { StructSize = (uint)sizeof(NativeTensorInfo) };
            TriremeException.Check(NativeMethods.trireme_tensor_get_info(handle, ref info));
            return info;
        }
    }
}
