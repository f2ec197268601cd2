//! Sets the run-time search path of libtorch in the binary, the tests and the examples, so that they run without `LD_LIBRARY_PATH`. The
//! first entry is `../lib`, relative to the folder of the binary: the archive of `make dist` has libtorch there.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(folder) = std::env::var("DEP_ROLLPACKER_TORCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib:{folder}");
    }
}
