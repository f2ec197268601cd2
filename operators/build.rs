//! Lets the tests and benches find libtorch at run time where a build of the whole workspace links it into them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(folder) = std::env::var("DEP_ROLLPACKER_STAGES_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
    }
}
