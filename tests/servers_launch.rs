//! Servers that a run starts itself (`rollout.serve`): real processes of `rollpacker serve`.
#![cfg(all(target_os = "linux", feature = "servers"))]

mod workspace;

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use rollpacker::dataflow::snapshot::SnapshotStore;
use rollpacker::dataflow::step::Step;
use serde_json::Value;
use workspace::server::Server;
use workspace::{ProcessEnd, RECIPE, TestWorkspace, wait_until};

/// Returns the setting of `count` servers whose command runs `rollpacker serve`. `more` continues the list of its arguments in TOML.
fn serve(count: usize, more: &str) -> String {
    let program = env!("CARGO_BIN_EXE_rollpacker");
    format!(
        "rollout.serve={{ count = {count}, command = [\"{program}\", \"serve\", \"--model\", \"{{model}}\", \"--port\", \"{{port}}\", \
         \"--device\", \"cpu\"{more}] }}"
    )
}

fn train_command(workspace: &TestWorkspace, settings: &[&str]) -> Command {
    workspace.train_command(&[&["schedule.name=sync", "rollout.engine=vllm"], settings].concat())
}

fn started(workspace: &TestWorkspace, settings: &[&str]) -> Child {
    train_command(workspace, settings).spawn().expect("the program starts")
}

fn train(workspace: &TestWorkspace, settings: &[&str]) -> ProcessEnd {
    ProcessEnd::of(started(workspace, settings))
}

/// Returns the ids of the servers of a run.
fn servers(workspace: &TestWorkspace) -> Vec<String> {
    processes(workspace, |line| line.starts_with(env!("CARGO_BIN_EXE_rollpacker")))
}

/// Returns the ids of all processes that a run started for its servers: the servers and their guards.
fn server_processes(workspace: &TestWorkspace) -> Vec<String> {
    processes(workspace, |_| true)
}

/// Returns the ids of the processes whose command lines have the model folder of a workspace and pass `is_meant`.
fn processes(workspace: &TestWorkspace, is_meant: impl Fn(&str) -> bool) -> Vec<String> {
    let model = workspace.path("model").display().to_string();
    let is_one = |process: &Path| {
        // A process that has ended has no command line.
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains(&model) && is_meant(&line)
    };
    let processes = fs::read_dir("/proc").expect("processes").flatten().map(|entry| entry.path());
    let names = processes.filter(|process| is_one(process));
    names.map(|path| path.file_name().expect("an id").to_string_lossy().into_owned()).collect()
}

/// Returns the metrics of the steps that a run has completed.
fn steps(workspace: &TestWorkspace) -> Vec<Value> {
    let text = fs::read_to_string(workspace.path("run/metrics.jsonl")).unwrap_or_default();
    // The last line may be incomplete while the run goes on.
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.map(|line| serde_json::from_str::<Value>(line).expect("JSON")["data"].clone()).collect()
}

/// Waits until `is_done` returns `true`. Fails if the run ends before.
fn wait(run: &mut Child, is_done: impl Fn() -> bool) {
    wait_until("the run got there", || {
        assert_eq!(run.try_wait().expect("a process"), None, "the run ended too early");
        is_done()
    });
}

fn kill(signal: &str, process: &str) {
    let status = Command::new("kill").args([signal, process]).status().expect("kill starts");
    assert!(status.success());
}

/// Checks that at least two steps report a canary, and that the KL divergence of each is small. A delivery that ends late is reported in
/// the next step, so that a step may report none.
fn assert_canary_passed(steps: &[Value]) {
    let figures = steps.iter().filter_map(|metrics| metrics["rollout/canary_kl"].as_f64());
    let figures: Vec<f64> = figures.collect();
    assert!(figures.len() >= 2 && figures.iter().all(|kl| *kl < 0.01), "{figures:?}");
}

#[test]
fn a_run_starts_and_stops_its_servers() {
    let workspace = TestWorkspace::new(RECIPE);
    train(&workspace, &[&serve(2, ""), "trainer.total_training_steps=3"]).success();
    assert_eq!(server_processes(&workspace), Vec::<String>::new());
    let steps = steps(&workspace);
    assert_eq!(steps.len(), 3);
    for metrics in &steps {
        for name in ["rollout/server_restarts", "rollout/servers_lost", "rollout/server_errors"] {
            assert_eq!(metrics[name], 0.0, "{metrics}");
        }
    }
    assert_canary_passed(&steps);
    for log in ["run/servers/0.log", "run/servers/1.log"] {
        let log = fs::read_to_string(workspace.path(log)).expect("a log");
        assert!(log.starts_with("[rollpacker] start 1 on port "), "{log}");
        assert!(log.contains("\"url\":\"http://127.0.0.1:"), "{log}");
    }
}

#[test]
fn a_command_that_ends_at_once_is_refused_with_the_end_of_its_log() {
    let workspace = TestWorkspace::new(RECIPE);
    let command = r#"rollout.serve={ command = ["sh", "-c", "echo port {port} of server {index} with $KEY_OF_HUB; echo no such model >&2; exit 3", "--api-key", "key-in-command"], env = { KEY_OF_HUB = "a", HUB_TOKEN = "key-in-variable" } }"#;
    let end = train(&workspace, &[command]);
    assert_eq!(end.code, Some(1), "{end:?}");
    for part in [
        "cannot start the engine `vllm`",
        "the server 0, `sh -c",
        "--api-key [redacted]",
        "exit status: 3",
        "run/servers/0.log:\n",
        " of server 0 with a\n    no such model",
    ] {
        assert!(end.err.contains(part), "`{part}` is expected in: {}", end.err);
    }
    let recipe = fs::read_to_string(workspace.path("run/recipe.toml")).expect("a recipe");
    for secret in ["key-in-command", "key-in-variable"] {
        assert!(!format!("{end:?} {recipe}").contains(secret), "{end:?} {recipe}");
    }
    let missing = r#"rollout.serve={ command = ["no-such-program", "{port}"] }"#;
    let end = train(&workspace, &[missing, "--overwrite"]);
    assert!(end.err.contains("exit status: 127") && end.err.contains("not found"), "{end:?}");
}

#[test]
fn a_killed_server_is_started_again_and_gets_the_weights() {
    let workspace = TestWorkspace::new(RECIPE);
    let settings = [&serve(1, ""), "trainer.total_training_steps=8"];
    let mut run = started(&workspace, &settings);
    wait(&mut run, || steps(&workspace).len() >= 2);
    let [server] = &servers(&workspace)[..] else { panic!("one server is expected") };
    kill("-KILL", server);
    ProcessEnd::of(run).success();
    let steps = steps(&workspace);
    assert_eq!(steps.len(), 8);
    let sum = |name: &str| steps.iter().filter_map(|metrics| metrics[name].as_f64()).sum::<f64>();
    assert_eq!(sum("rollout/server_restarts"), 1.0);
    assert_canary_passed(&steps);
    let log = fs::read_to_string(workspace.path("run/servers/0.log")).expect("a log");
    assert!(log.contains("[rollpacker] ended with signal: 9 (SIGKILL); start 2 on port "), "{log}");
    assert_eq!(server_processes(&workspace), Vec::<String>::new());
}

#[test]
fn servers_end_with_a_killed_or_signalled_run() {
    let workspace = TestWorkspace::new(RECIPE);
    for (signal, code) in [("-KILL", None), ("-TERM", Some(75))] {
        let settings = [&serve(2, ""), "trainer.total_training_steps=1000", "--overwrite"];
        let mut run = started(&workspace, &settings);
        wait(&mut run, || steps(&workspace).len() == 1);
        assert_eq!(servers(&workspace).len(), 2);
        kill(signal, &run.id().to_string());
        let end = ProcessEnd::of(run);
        assert_eq!(end.code, code, "{end:?}");
        // The guards of the servers of a killed run act on their own.
        wait_until("the servers have ended", || server_processes(&workspace).is_empty());
        fs::remove_dir_all(workspace.path("run")).expect("removed");
    }
}

/// Starts a server outside of the run, and returns it with the setting that names it.
fn own_server(workspace: &TestWorkspace) -> (Server, String) {
    let server = Server::start(workspace, &[]);
    let setting = format!("rollout.servers=[\"{}\"]", server.url());
    (server, setting)
}

#[test]
fn a_run_that_loses_all_servers_saves_its_last_complete_step() {
    let workspace = TestWorkspace::new(RECIPE);
    let (server, url) = own_server(&workspace);
    let settings =
        ["trainer.save_freq=1000", "trainer.total_training_steps=20", "rollout.server_timeout=2"];
    let mut run = started(&workspace, &[&settings[..], &[&url]].concat());
    wait(&mut run, || steps(&workspace).len() >= 3);
    drop(server);
    let end = ProcessEnd::of(run);
    assert_eq!(end.code, Some(75), "{end:?}");
    let done = steps(&workspace);
    let taken = SnapshotStore::steps_in(&workspace.path("run/snapshots")).expect("a folder");
    assert_eq!(taken, [Step(done.len() as u64 - 1)], "the last complete step");
    let (_server, url) = own_server(&workspace);
    train(&workspace, &[&settings[..], &[&url, "--resume"]].concat()).success();
    let all = steps(&workspace);
    assert_eq!(all.len(), 20);
    assert_eq!(all[..done.len()], done, "no step before was computed again");
}

#[test]
fn wrong_tables_are_refused_by_key() {
    let workspace = TestWorkspace::new(RECIPE);
    let vllm = "rollout.engine=vllm";
    let url = "rollout.servers=[\"http://127.0.0.1:9\"]";
    let serve = serve(1, "");
    let cases: [(&[&str], &str); 7] = [
        (&[vllm, &serve, url], "key `rollout.serve`: expected only one of"),
        (&["rollout.engine=torch", &serve], "when `rollout.serve` is set"),
        (&[vllm, "rollout.serve={ command = [] }"], "`command` with a program"),
        (&[vllm, "rollout.serve.command=[\"vllm\"]"], "`command` with an argument with `{port}`"),
        (&[vllm, &serve, "rollout.serve.count=0"], "`count` with a number from 1 to 256"),
        (&[vllm, &serve, "rollout.serve.cuont=2"], "did you mean `rollout.serve.count`?"),
        (&[vllm, &serve, "rollout.serve.env={ \"A=B\" = \"\" }"], "`env` with names of"),
    ];
    for (settings, expected) in cases {
        let end = workspace
            .run(&[&["train", "--config", "recipe.toml", "--dry-run"][..], settings].concat());
        assert_eq!(end.code, Some(2), "{settings:?}: {end:?}");
        assert!(end.err.contains(expected), "{settings:?}: {}", end.err);
    }
    let shown = workspace.ok(&["train", "--config", "recipe.toml", "--dry-run", vllm, &serve]);
    assert!(shown.contains("[rollout.serve]") && shown.contains("{port}"), "{shown}");
    assert!(!workspace.path("run/servers").exists());
}
