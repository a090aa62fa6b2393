//! Finds libtrireme: in TRIREME_LIB_DIR, else where pkg-config says, else on the linker's own path.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=TRIREME_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    if let Some(folder) = library_folder() {
        println!("cargo:rustc-link-search=native={}", folder.display());
        // The trireme crate reads this as DEP_TRIREME_LIB_DIR.
        println!("cargo:lib_dir={}", folder.display());
        println!("cargo:rustc-link-arg-tests=-Wl,-rpath,{}", folder.display());
        link_for_doc_tests(&folder);
    } else {
        println!(
            "cargo:warning=libtrireme.so was not found: TRIREME_LIB_DIR is not set, and pkg-config \
             knows no trireme. If linking fails, set TRIREME_LIB_DIR to the folder of libtrireme.so, \
             or PKG_CONFIG_PATH to that of trireme.pc."
        );
    }
    println!("cargo:rustc-link-lib=dylib=trireme");
}

fn library_folder() -> Option<PathBuf> {
    if let Some(folder) = env::var_os("TRIREME_LIB_DIR").filter(|text| !text.is_empty()) {
        let folder = PathBuf::from(folder);
        let library = folder.join("libtrireme.so");
        assert!(
            library.exists(),
            "there is no {}: set TRIREME_LIB_DIR to the folder that holds libtrireme.so",
            library.display()
        );
        return Some(folder.canonicalize().expect("TRIREME_LIB_DIR is a folder"));
    }
    let answer = Command::new("pkg-config").args(["--variable=libdir", "trireme"]).output().ok()?;
    let folder = String::from_utf8(answer.stdout).ok()?;
    let folder = Path::new(folder.trim());
    (answer.status.success() && folder.join("libtrireme.so").exists()).then(|| folder.into())
}

/// Doc tests take no link arguments, so no rpath; but cargo puts search folders below its target
/// folder into the loader's path of whatever it runs.
fn link_for_doc_tests(folder: &Path) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let link = out.join("libtrireme.so.1");
    let _ = fs::remove_file(&link);
    #[cfg(unix)]
    if std::os::unix::fs::symlink(folder.join("libtrireme.so.1"), &link).is_ok() {
        println!("cargo:rustc-link-search=native={}", out.display());
    }
}
