using System;
using System.Runtime.InteropServices;

// Field for field what the C headers declare, under the same names in Pascal case; the layout
// test compares both with tests/abi/golden-1.0.txt.
namespace Trireme
{
    [StructLayout(LayoutKind.Sequential)]
    internal unsafe struct NativeErrorInfo
    {
        public uint StructSize;
        public int Code;
        public ulong Sequence;
        public uint BlamedCount;
        public int SystemError;
        public fixed int Blamed[NativeMethods.MaxBlamedRanks];
        public fixed byte Operation[32];
        public fixed byte Communicator[64];
        public uint TryAgain;
        public uint Reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeDevice
    {
        public int Kind;
        public int Index;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeStream
    {
        public int Kind;
        public uint Reserved;
        public IntPtr Native;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeCapabilityQuery
    {
        public uint StructSize;
        public int Operation;
        public int Dtype;
        public int Reduction;
        public int Device;
        public uint Reserved;
        public IntPtr Backend;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeTransport
    {
        public uint StructSize;
        public uint Flags;
        public IntPtr UserData;
        public ulong MaximumFrameBytes;
        public IntPtr Send;
        public IntPtr Receive;
        public IntPtr Released;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeCommunicatorOptions
    {
        public uint StructSize;
        public int Rank;
        public int WorldSize;
        public uint Flags;
        public IntPtr Rendezvous;
        public IntPtr Backend;
        public IntPtr Name;
        public ulong TimeoutNs;
        public NativeDevice Device;
        public IntPtr Transport;
        public ulong StallWarningNs;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeGroupOptions
    {
        public uint StructSize;
        public uint Flags;
        public IntPtr Name;
        public ulong TimeoutNs;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeMeshOptions
    {
        public uint StructSize;
        public uint Flags;
        public uint AxisCount;
        public int Order;
        public IntPtr AxisNames;
        public IntPtr AxisSizes;
        public ulong TimeoutNs;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeStoreOptions
    {
        public uint StructSize;
        public uint Flags;
        public ulong TimeoutNs;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeCommunicatorStatistics
    {
        public uint StructSize;
        public uint Reserved;
        public ulong Operations;
        public ulong Failures;
        public ulong BytesSent;
        public ulong BytesReceived;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeOperationOptions
    {
        public uint StructSize;
        public uint Flags;
        public ulong TimeoutNs;
        public double Scale;
        public NativeStream Stream;
        public int Priority;
        public int Algorithm;
        public int WireDtype;
        public uint Reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeMessageInfo
    {
        public uint StructSize;
        public int Source;
        public ulong Tag;
        public ulong Count;
        public int Dtype;
        public uint Reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeModelOptions
    {
        public uint StructSize;
        public int Strategy;
        public int Gradients;
        public uint Leaves;
        public ulong BucketBytes;
        public ulong PrefetchBytes;
        public ulong TimeoutNs;
        public ulong MinimumUnitBytes;
        public ulong PersistentUnitBytes;
        public ulong FirstBucketBytes;
        public uint ShardRanks;
        public int Unused;
        public uint Flags;
        public int ShareParameters;
        public IntPtr BucketHook;
        public IntPtr HookData;
        public ulong MemoryLimitBytes;
        public uint ShardStride;
        public uint ReshardRanks;
        public int ReduceDtype;
        public uint Reserved;
        public IntPtr OffloadPath;
        public double OffloadRatio;
        public ulong OffloadBufferBytes;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeBucketPart
    {
        public ulong Parameter;
        public ulong First;
        public ulong Count;
        public ulong Position;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeBucket
    {
        public uint StructSize;
        public int Phase;
        public ulong Bucket;
        public ulong Elements;
        public IntPtr Data;
        public IntPtr Parts;
        public ulong PartCount;
        public int Dtype;
        public uint Pass;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeParameterOptions
    {
        public uint StructSize;
        public uint Flags;
        public int Dtype;
        public uint Dimensions;
        public IntPtr Shape;
        public IntPtr Name;
        public IntPtr Unit;
        public IntPtr TiedTo;
        public uint Replicas;
        public uint NormGroup;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeModelInfo
    {
        public uint StructSize;
        public int Strategy;
        public int Rank;
        public int WorldSize;
        public uint Leaves;
        public uint MicroBatches;
        public ulong Parameters;
        public ulong Units;
        public ulong Elements;
        public ulong Buckets;
        public ulong Groups;
        public ulong SharedBytes;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeUnitInfo
    {
        public uint StructSize;
        public int Dtype;
        public ulong Elements;
        public ulong ShardFirst;
        public ulong ShardCount;
        public ulong FlatFirst;
        public ulong Group;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeModelMemory
    {
        public uint StructSize;
        public uint Reserved;
        public ulong PlannedParameters;
        public ulong PlannedGradients;
        public ulong PlannedOptimizerState;
        public ulong PlannedWorking;
        public ulong AllocatedParameters;
        public ulong AllocatedGradients;
        public ulong AllocatedOptimizerState;
        public ulong AllocatedWorking;
        public ulong PlannedStepBytes;
        public ulong SentStepBytes;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeModelStatistics
    {
        public uint StructSize;
        public uint Reserved;
        public ulong Steps;
        public ulong Gathers;
        public ulong Prefetched;
        public ulong Reductions;
        public ulong PeakGroups;
        public ulong ExposedNs;
        public ulong ExtraBuckets;
        public ulong MovedBuckets;
        public ulong ReshardGathers;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeUpdate
    {
        public uint StructSize;
        public int Dtype;
        public ulong Parameter;
        public ulong First;
        public ulong Count;
        public ulong Step;
        public double LearningRate;
        public IntPtr Parameters;
        public IntPtr Gradients;

        // C# has no fixed array of pointers; these eight are `states`.
        public IntPtr States;
        public IntPtr States1;
        public IntPtr States2;
        public IntPtr States3;
        public IntPtr States4;
        public IntPtr States5;
        public IntPtr States6;
        public IntPtr States7;
        public int GradientDtype;
        public uint Reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeOptimizerOptions
    {
        public uint StructSize;
        public int Kind;
        public uint Flags;
        public uint StateCount;
        public double LearningRate;
        public double Momentum;
        public double Beta1;
        public double Beta2;
        public double Epsilon;
        public double WeightDecay;
        public double MaxNorm;
        public IntPtr Update;
        public IntPtr UserData;
        public double MaxValue;
        public ulong CheckEvery;
        public IntPtr NormRanks;
        public IntPtr GroupMaxNorms;
        public ulong GroupCount;
        public IntPtr GroupRateFactors;
        public IntPtr GroupWeightDecays;
        public double LossScale;
        public double LossScaleGrowth;
        public double LossScaleBackoff;
        public double LossScaleFloor;
        public ulong LossScaleWindow;
        public ulong LossScaleHysteresis;
        public double TrustCoefficient;
        public double MaxTrust;
        public IntPtr OffloadPath;
        public double OffloadRatio;
        public ulong OffloadBufferBytes;
        public ulong RoundingSeed;
        public double Beta2Decay;
        public double MaxUpdateRms;
        public double MinParameterRms;
        public IntPtr GroupFlags;
        public uint OrthogonalSteps;
        public int RateAdjustment;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeOffloadInfo
    {
        public uint StructSize;
        public int Direct;
        public int Ring;
        public int FailedErrno;
        public IntPtr Path;
        public IntPtr WhyNotDirect;
        public IntPtr WhyNotRing;
        public ulong FileBytes;
        public ulong ResidentBytes;
        public ulong BufferBytes;
        public ulong BlockBytes;
        public ulong ReadBytes;
        public ulong WrittenBytes;
        public double WaitedSeconds;
        public ulong FailedWrites;
        public ulong FailedOffset;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeLossScaleInfo
    {
        public uint StructSize;
        public int Skipped;
        public double Scale;
        public ulong CleanSteps;
        public ulong Overflows;
        public ulong SkippedSteps;
        public ulong Parameter;
        public int Rank;
        public int AtFloor;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal unsafe struct NativeOptimizerCounters
    {
        public uint StructSize;
        public uint Version;
        public ulong Steps;
        public double LearningRate;
        public double LossScale;
        public ulong CleanSteps;
        public ulong Overflows;
        public ulong SkippedSteps;
        public ulong* ParameterSteps;
        public ulong ParameterCount;
        public double* GroupRateFactors;
        public ulong GroupCount;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeScheduleOptions
    {
        public uint StructSize;
        public int Kind;
        public uint Flags;
        public uint Reserved;
        public ulong TotalSteps;
        public ulong WarmUpSteps;
        public double WarmUpFactor;
        public double EndFactor;
        public double PctStart;
        public double DivFactor;
        public double FinalDivFactor;
        public IntPtr Factor;
        public IntPtr UserData;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct NativeStateRange
    {
        public uint StructSize;
        public int Kind;
        public int Dtype;
        public uint Vector;
        public ulong Parameter;
        public IntPtr Name;
        public IntPtr Shape;
        public uint Dimensions;
        public uint Reserved;
        public ulong First;
        public ulong Count;
        public IntPtr Data;
    }
}
