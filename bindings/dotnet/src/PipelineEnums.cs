namespace Trireme
{
    /// <summary>An order of actions that has a name: docs/pipeline.md compares them.</summary>
    public enum PipelineOrder
    {
        /// <summary>All F, then all B.</summary>
        GPipe = NativeMethods.TRIREME_PIPELINE_ORDER_GPIPE,

        /// <summary>F and B in turn. One stage a rank.</summary>
        OneForwardOneBackward = NativeMethods.TRIREME_PIPELINE_ORDER_1F1B,

        /// <summary>1F1B over groups of micro-batches. Two or more stages a rank.</summary>
        Interleaved = NativeMethods.TRIREME_PIPELINE_ORDER_INTERLEAVED,

        /// <summary>As GPipe, stage by stage.</summary>
        LoopedBfs = NativeMethods.TRIREME_PIPELINE_ORDER_LOOPED_BFS,

        /// <summary>I and W apart, with the memory of 1F1B. One stage a rank.</summary>
        ZbH1 = NativeMethods.TRIREME_PIPELINE_ORDER_ZB_H1,

        /// <summary>I and W apart, with about twice that memory. One stage a rank.</summary>
        ZbH2 = NativeMethods.TRIREME_PIPELINE_ORDER_ZB_H2,

        /// <summary>I and W apart, along a V. Two stages a rank.</summary>
        ZbV = NativeMethods.TRIREME_PIPELINE_ORDER_ZB_V,

        /// <summary>Along a V, with half the memory of ZbV. Two stages a rank.</summary>
        VHalf = NativeMethods.TRIREME_PIPELINE_ORDER_V_HALF,

        /// <summary>Along a V, with a third of the memory of ZbV. Two stages a rank.</summary>
        VMin = NativeMethods.TRIREME_PIPELINE_ORDER_V_MIN,

        /// <summary>Pairs of F and B, along a V. Two stages a rank.</summary>
        DualPipeV = NativeMethods.TRIREME_PIPELINE_ORDER_DUALPIPE_V,

        /// <summary>Along a snake, for any number of stages a rank.</summary>
        Wave = NativeMethods.TRIREME_PIPELINE_ORDER_WAVE,

        /// <summary>The shortest that a search finds for given costs.</summary>
        Best = NativeMethods.TRIREME_PIPELINE_ORDER_BEST,
    }

    /// <summary>A kind of action.</summary>
    public enum PipelineKind
    {
        /// <summary>Forward.</summary>
        F = NativeMethods.TRIREME_PIPELINE_KIND_F,

        /// <summary>Backward for the input.</summary>
        I = NativeMethods.TRIREME_PIPELINE_KIND_I,

        /// <summary>Backward for the weights.</summary>
        W = NativeMethods.TRIREME_PIPELINE_KIND_W,

        /// <summary>I and W in one.</summary>
        B = NativeMethods.TRIREME_PIPELINE_KIND_B,

        /// <summary>Recomputes what F did not keep.</summary>
        R = NativeMethods.TRIREME_PIPELINE_KIND_R,

        /// <summary>Sends the output of F.</summary>
        SendF = NativeMethods.TRIREME_PIPELINE_KIND_SEND_F,

        /// <summary>Receives the input of F.</summary>
        ReceiveF = NativeMethods.TRIREME_PIPELINE_KIND_RECV_F,

        /// <summary>Sends the gradient of the input.</summary>
        SendB = NativeMethods.TRIREME_PIPELINE_KIND_SEND_B,

        /// <summary>Receives the gradient of the output.</summary>
        ReceiveB = NativeMethods.TRIREME_PIPELINE_KIND_RECV_B,

        /// <summary>Gathers the parameters of a stage.</summary>
        Gather = NativeMethods.TRIREME_PIPELINE_KIND_GATHER,

        /// <summary>Frees the gathered parameters of a stage.</summary>
        Release = NativeMethods.TRIREME_PIPELINE_KIND_RELEASE,

        /// <summary>Reduces the gradients of a stage.</summary>
        Reduce = NativeMethods.TRIREME_PIPELINE_KIND_REDUCE,
    }

    /// <summary>Where stages lie.</summary>
    public enum PipelinePlacement
    {
        /// <summary>That of the order; a search tries Loop and Wave.</summary>
        Automatic = 0,

        /// <summary>Stage s lies on rank s mod p.</summary>
        Loop = NativeMethods.TRIREME_PIPELINE_PLACEMENT_LOOP,

        /// <summary>Rank r holds stages r and 2p-1-r.</summary>
        V = NativeMethods.TRIREME_PIPELINE_PLACEMENT_V,

        /// <summary>Stages go to rank p-1, back to rank 0, and so on.</summary>
        Wave = NativeMethods.TRIREME_PIPELINE_PLACEMENT_WAVE,
    }

    /// <summary>The form in which a schedule is written.</summary>
    public enum PipelineFormat
    {
        /// <summary>A line of sizes and placement, then the actions of each rank.</summary>
        Text = NativeMethods.TRIREME_PIPELINE_FORMAT_TEXT,

        /// <summary>The CSV of PyTorch's torch.distributed.pipelining.</summary>
        Csv = NativeMethods.TRIREME_PIPELINE_FORMAT_CSV,

        /// <summary>A drawing along time.</summary>
        Drawing = NativeMethods.TRIREME_PIPELINE_FORMAT_DRAWING,

        /// <summary>The same as SVG.</summary>
        Svg = NativeMethods.TRIREME_PIPELINE_FORMAT_SVG,

        /// <summary>Events of chrome://tracing and Perfetto.</summary>
        Trace = NativeMethods.TRIREME_PIPELINE_FORMAT_TRACE,
    }
}
