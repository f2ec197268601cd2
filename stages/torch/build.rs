//! Lets the binaries of this crate find libtorch at run time, and passes the folder on to dependents. Sets the cfg `vectorized` if the
//! crate is compiled with vectorization.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The compiler vectorizes from level 2 on. Below it, the kernels of this crate are slower than libtorch's.
    println!("cargo:rustc-check-cfg=cfg(vectorized)");
    if matches!(std::env::var("OPT_LEVEL").as_deref(), Ok("2" | "3")) {
        println!("cargo:rustc-cfg=vectorized");
    }
    // torch-sys sets this variable to the folder of libtorch, except when it is built with its feature `doc-only` or for Windows.
    if let Ok(folder) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
        println!("cargo:libtorch_lib={folder}");
    }
}
