//! Tests and examples find the library where it was linked; a program that uses this crate decides
//! for itself.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(folder) = env::var("DEP_TRIREME_LIB_DIR") {
        println!("cargo:rustc-link-arg-tests=-Wl,-rpath,{folder}");
        println!("cargo:rustc-link-arg-examples=-Wl,-rpath,{folder}");
    }
}
