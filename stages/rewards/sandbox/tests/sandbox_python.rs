//! Runs the Python tests of the sandbox's Python side.

use std::path::Path;
use std::process::Command;

#[test]
fn the_checker_passes_its_python_tests() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sandbox_python");
    let output = Command::new("python3").args(["-B", "-m", "unittest"]).current_dir(tests).output();
    let output = output.expect("there is a python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
