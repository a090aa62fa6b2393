//! Enums, and structs that the library fills: later releases may add to them.

use std::fs;
use std::path::{Path, PathBuf};

/// Structs of public fields that a caller fills, most of them with `..` and defaults.
const FILLED_BY_CALLERS: [&str; 46] = [
    "AttentionGradients",
    "AttentionInputs",
    "AttentionOptions",
    "AttentionWeights",
    "Buckets",
    "CapabilityQuery",
    "Clipping",
    "CommunicatorOptions",
    "ContextOptions",
    "ExpertsOptions",
    "GroupOptions",
    "LayerCosts",
    "LayerOptions",
    "LinearOptions",
    "LossScale",
    "MeshOptions",
    "MlpGradients",
    "MlpOptions",
    "MlpWeights",
    "ModelOptions",
    "Offload",
    "OperationOptions",
    "OptimizerCounters",
    "OptimizerOptions",
    "ParallelAttentionOptions",
    "ParallelOptions",
    "Parameter",
    "ParameterGroup",
    "PartitionOptions",
    "PipelineConfig",
    "PipelineCosts",
    "PipelineLayer",
    "PipelineLimits",
    "PipelineOptions",
    "RandomPart",
    "RebalanceOptions",
    "RegionOptions",
    "RouteInputs",
    "Shards",
    "StageCosts",
    "StateRange", // no caller can make one: it has private fields
    "TensorOptions",
    "TrainerOptions",
    "TrainerPipeline",
    "Units",
    "VocabularyOptions",
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    folders.iter().flat_map(|folder| sources(folder)).chain(files).collect()
}

/// The name of a public enum or struct with public fields that lacks `#[non_exhaustive]`.
fn closed(item: &str) -> Option<&str> {
    let (head, body) = item.split_once(" {\n")?;
    let (attributes, declared) = head.split_once("\npub ")?;
    let (kind, name) = declared.split_once(' ')?;
    let open = attributes.contains("#[non_exhaustive]");
    let counts = kind == "enum" || kind == "struct" && body.contains("\n    pub ");
    let end = name.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(name.len());
    (counts && !open).then(|| &name[..end])
}

#[test]
fn what_a_later_release_may_add_to_is_not_exhaustive() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let filled = [root.join("rules/mod.rs"), root.join("schedules/mod.rs")];
    let mut found = Vec::new();
    for path in sources(&root) {
        let text = fs::read_to_string(&path).unwrap();
        let items = text.split("\n\n").filter_map(closed);
        // The structs of update rules and schedules are filled by callers.
        found.extend(items.filter(|_| !filled.contains(&path)).map(str::to_owned));
    }
    found.sort();
    assert_eq!(found, FILLED_BY_CALLERS);
}
