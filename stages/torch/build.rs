//! Lets the binaries of this crate find libtorch at run time, and hands the folder on to dependents.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // torch-sys names the folder it linked against; absent without the feature `torch`.
    if let Ok(folder) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
        println!("cargo:libtorch_lib={folder}");
    }
}
