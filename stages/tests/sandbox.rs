//! The sandbox against hostile code.
use futures::executor::block_on;
use rollpacker_stages::sandbox::{Check, Job, Outcome, Sandbox, SandboxConfig};

fn job(solution: &str) -> Job {
    Job {
        solution: solution.into(),
        language: "python".into(),
        check: Check::Runs,
        seconds: vec![2.0],
    }
}

#[test]
fn first() {
    eprintln!("{}", Sandbox::probe(&SandboxConfig::default()));
    let sandbox = Sandbox::start(SandboxConfig { slots: 1, ..Default::default() }).unwrap();
    for code in [
        "x=1",
        "1/0",
        "while True: pass",
        "x = bytearray(10**10)",
        "import os; os.unshare if 0 else __import__('ctypes').CDLL(None).unshare(0)",
        "import os;os.system('ls')",
        "open('/etc/shadow')",
        "open('/tmp/x','w').write('x')",
        "import os; assert os.listdir('/tmp')==[]; assert os.listdir('/proc')==[], os.listdir('/proc')",
        "import os; os.remove(os.__file__)",
        "import socket; socket.socket()",
    ] {
        let v = block_on(sandbox.run(&job(code)));
        eprintln!("{code:?} {v:?}");
    }
    let t = std::time::Instant::now();
    for _ in 0..100 {
        assert_eq!(block_on(sandbox.run(&job("x=1"))).unwrap().outcome(), Outcome::Passed);
    }
    eprintln!("{:?}", t.elapsed() / 100);
}
