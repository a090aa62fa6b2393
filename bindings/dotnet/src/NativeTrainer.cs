using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeLayerCall
    {
        public uint StructSize;
        public int Phase;
        public ulong Layer;
        public ulong Step;
        public uint MicroBatch;
        public uint Leaf;
        public ulong RandomSeed;
        public IntPtr Input;
        public ulong InputBytes;
        public IntPtr Output;
        public ulong OutputBytes;
        public IntPtr Saved;
        public ulong SavedBytes;
        public IntPtr Parameters;
        public IntPtr ParameterCounts;
        public ulong ParameterCount;
        public IntPtr Gradients;
        public IntPtr OutputGradient;
        public IntPtr InputGradient;
        public IntPtr Loss;
        public double LossScale;
        public IntPtr Batch;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeLayer
    {
        public uint StructSize;
        public uint Flags;
        public IntPtr Name;
        public ulong FirstParameter;
        public ulong ParameterCount;
        public IntPtr Forward;
        public IntPtr Backward;
        public IntPtr UserData;
        public ulong OutputBytes;
        public ulong SavedBytes;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeTrainerMetrics
    {
        public uint StructSize;
        public int Stop;
        public int Skipped;
        public uint Reserved;
        public ulong Step;
        public ulong MicroBatches;
        public ulong SentBytes;
        public double Loss;
        public double GradientNorm;
        public double LearningRate;
        public double LossScale;
        public double Seconds;
        public double ExposedSeconds;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeTrainerOptions
    {
        public const uint ZeroGradients = 1;

        public uint StructSize;
        public uint Flags;
        public uint MicroBatches;
        public uint Reserved;
        public ulong CheckpointEvery;
        public ulong ActivationBudgetBytes;
        public ulong Seed;
        public IntPtr AfterStep;
        public IntPtr UserData;
        public IntPtr OffloadPath;
        public ulong OffloadBufferBytes;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeTrainerInfo
    {
        public uint StructSize;
        public uint MicroBatches;
        public ulong Layers;
        public ulong Stretches;
        public ulong Recomputed;
        public ulong PlannedCheckpointBytes;
        public ulong PlannedStretchBytes;
        public ulong PlannedGradientBytes;
        public ulong PlannedParameterGradientBytes;
        public ulong PlannedExchangeBytes;
        public ulong AllocatedBytes;
        public ulong LargestBytes;
        public ulong LeastBytes;
        public ulong PlannedWindowBytes;
    }
}
