//! Tests of the outputs of every command: none replaces an input, a link, a pipe or a device.
#![cfg(feature = "torch")]

mod workspace;

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use workspace::{ProcessEnd, RECIPE, Sft, TestWorkspace};

const ROWS: &str =
    "{\"response\": \"1\", \"answer\": \"1\"}\n{\"response\": \"2\", \"answer\": \"1\"}\n";

const JOB: &str = "[sim]\nsteps = 1\nseeds = 1\n[data]\ntrain_batch_size = 16\n";

/// Creates a folder with inputs, hard and symbolic links to them, a link to the file `kept`, a dangling link and a pipe. No command may
/// change any of them.
fn place_with_traps() -> TestWorkspace {
    let workspace = TestWorkspace::new(&format!("{RECIPE}{}", Sft::TINY));
    workspace.write("rows.jsonl", ROWS);
    workspace.write("job.toml", JOB);
    workspace.write("lengths.csv", "tokens\n10\n20\n");
    workspace.write("kept", "kept");
    symlink("kept", workspace.path("link")).expect("linked");
    symlink("absent", workspace.path("dangling")).expect("linked");
    let made = Command::new("mkfifo").arg(workspace.path("pipe")).status().expect("mkfifo runs");
    assert!(made.success());
    for input in ["rows.jsonl", "job.toml", "lengths.csv", "data/train.parquet"] {
        let name = Path::new(input).file_name().expect("a name").to_string_lossy().into_owned();
        fs::hard_link(workspace.path(input), workspace.path(&format!("hard-{name}")))
            .expect("linked");
        symlink(workspace.path(input), workspace.path(&format!("soft-{name}"))).expect("linked");
    }
    workspace
}

fn assert_untouched(workspace: &TestWorkspace, before: &[(&str, Vec<u8>)]) {
    for (name, content) in before {
        assert_eq!(&fs::read(workspace.path(name)).expect("read"), content, "{name}");
    }
    let kind = |name| fs::symlink_metadata(workspace.path(name)).expect("there").file_type();
    assert!(kind("link").is_symlink() && kind("dangling").is_symlink() && kind("pipe").is_fifo());
    assert_eq!(fs::read(workspace.path("kept")).expect("read"), b"kept");
    let null = fs::symlink_metadata("/dev/null").expect("there").file_type();
    assert!(null.is_char_device());
    let left = fs::read_dir(workspace.path("")).expect("a folder").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|name| name.ends_with(".partial")), "{left:?}");
}

#[test]
fn every_command_refuses_its_inputs_and_special_files_as_outputs() {
    let workspace = place_with_traps();
    let inputs = ["rows.jsonl", "job.toml", "lengths.csv", "data/train.parquet", "recipe.toml"];
    let before = inputs.map(|name| (name, fs::read(workspace.path(name)).expect("read")));
    let score = ["score", "--reward", "exact", "--input", "rows.jsonl", "--output"];
    let by_recipe = ["score", "--reward", "recipe.toml", "--input", "rows.jsonl", "--output"];
    let convert = ["data", "convert", "rows.jsonl", "--prompt-key", "response", "--output"];
    let profile = ["profile", "--simulated", "--config", "job.toml", "--output"];
    let engine = ["profile", "--config", "recipe.toml", "--output"];
    let simulate = ["simulate", "--config", "job.toml", "--trace", "lengths.csv", "--output"];
    let report = ["simulate", "--config", "job.toml", "--trace", "lengths.csv", "--report"];
    let own: [(&[&str], &[&str]); 7] = [
        (&score, &["rows.jsonl", "hard-rows.jsonl", "./data/../rows.jsonl"]),
        (&by_recipe, &["recipe.toml", "data/train.parquet", "hard-train.parquet"]),
        (&convert, &["rows.jsonl", "hard-rows.jsonl", "soft-rows.jsonl"]),
        (&profile, &["job.toml", "hard-job.toml"]),
        (&engine, &["recipe.toml", "model/model.safetensors", "data/train.parquet"]),
        (&simulate, &["job.toml", "lengths.csv", "hard-lengths.csv"]),
        (&report, &["job.toml", "lengths.csv", "hard-job.toml"]),
    ];
    for (command, own) in own {
        for output in own {
            let error = workspace.run_refused(&[command, &[output]].concat());
            assert!(error.contains("found the input"), "{command:?} {output}: {error}");
        }
        for output in ["link", "dangling", "pipe", "/dev/null", "soft-rows.jsonl", "data"] {
            let error = workspace.run_refused(&[command, &[output]].concat());
            let is_refused =
                error.contains("expected a regular file") || error.contains("found the input");
            assert!(is_refused, "{command:?} {output}: {error}");
        }
        assert_untouched(&workspace, &before);
    }
}

#[test]
fn a_conversion_into_another_format_than_its_extension_says_is_refused() {
    let workspace = place_with_traps();
    let convert = ["data", "convert", "data/train.parquet"];
    for (format, output, extension) in [
        ("verl", "out.jsonl", ".parquet"),
        ("roll", "out.parquet", ".jsonl"),
        ("messages", "out.parquet", ".jsonl"),
    ] {
        let error =
            workspace.run_refused(&[&convert[..], &["--to", format, "--output", output]].concat());
        assert!(error.contains(&format!("a name that ends with `{extension}`")), "{error}");
        assert!(!workspace.path(output).exists());
    }
    for (option, value) in [("--compression", "zstd"), ("--row-group-rows", "10")] {
        let output = ["--output", "out.jsonl", option, value];
        let error = workspace.run_refused(&[&convert[..], &output].concat());
        let expected =
            format!("`{option}`: expected an output in Parquet with this option, found {value}");
        assert!(error.contains(&expected), "{error}");
        assert!(!workspace.path("out.jsonl").exists());
    }
    let error = workspace.run_refused(
        &[&convert[..], &["--output", "out.parquet", "--row-group-rows", "0"]].concat(),
    );
    assert!(error.contains("--row-group-rows"), "{error}");
}

#[test]
fn a_score_file_appears_when_all_rows_are_scored() {
    let workspace = place_with_traps();
    workspace.write("scores.jsonl", "earlier\n");
    let score = |input: &str| {
        workspace.run(&["score", "--reward", "exact", "--input", input, "--output", "scores.jsonl"])
    };
    workspace.write("damaged.parquet", "PAR1 is not all of it");
    assert_eq!(score("damaged.parquet").code, Some(2));
    assert_eq!(fs::read(workspace.path("scores.jsonl")).expect("read"), b"earlier\n");
    assert_eq!(score("rows.jsonl").code, Some(0));
    let scores = fs::read_to_string(workspace.path("scores.jsonl")).expect("read");
    assert_eq!(scores.lines().count(), 2, "{scores}");
}

#[test]
fn rows_are_not_appended_to_the_file_that_they_are_read_from() {
    let workspace = place_with_traps();
    let rows = fs::File::options().append(true).open(workspace.path("hard-rows.jsonl"));
    let args = ["score", "--reward", "exact", "--input", "rows.jsonl", "--output", "-"];
    let mut command = workspace.command(&args);
    command.stdout(rows.expect("opened"));
    let end = ProcessEnd::of(command.spawn().expect("it starts")).refusal();
    assert!(end.err.contains("standard output") && end.err.contains("rows.jsonl"), "{end:?}");
    assert_eq!(fs::read_to_string(workspace.path("rows.jsonl")).expect("read"), ROWS);
}

#[test]
fn piped_rows_are_all_scored() {
    let workspace = place_with_traps();
    let args = ["score", "--reward", "exact", "--input", "/dev/stdin", "--output", "out.jsonl"];
    let mut command = workspace.command(&args);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut pipe = child.stdin.take().expect("piped");
    std::io::Write::write_all(&mut pipe, ROWS.as_bytes()).expect("written");
    drop(pipe);
    ProcessEnd::of(child).success();
    let scores = fs::read_to_string(workspace.path("out.jsonl")).expect("read");
    assert!(scores.starts_with(r#"{"index":0,"score":1.0"#), "{scores}");
    assert_eq!(scores.lines().count(), 2, "{scores}");
}

#[test]
fn a_pipe_that_would_be_read_twice_is_refused() {
    let workspace = place_with_traps();
    for args in [["data", "validate", "pipe"], ["data", "inspect", "pipe"]] {
        let end = workspace.run(&args).refusal();
        assert!(format!("{}{}", end.out, end.err).contains("can be read only once"), "{end:?}");
    }
    let error =
        workspace.run_refused(&["train", "--config", "recipe.toml", "data.train_files=pipe"]);
    assert!(error.contains("can be read only once"), "{error}");
}

#[test]
fn a_warm_start_refuses_its_data_and_links_before_it_trains() {
    let workspace = place_with_traps();
    let data = fs::read(workspace.path("data/train.parquet")).expect("read");
    fs::create_dir(workspace.path("out")).expect("made");
    fs::hard_link(workspace.path("data/train.parquet"), workspace.path("out/config.json"))
        .expect("linked");
    let sft = ["sft", "--config", "recipe.toml", "--out", "out"];
    let error = workspace.run_refused(&sft);
    assert!(error.contains("config.json") && error.contains("train.parquet"), "{error}");
    fs::remove_file(workspace.path("out/config.json")).expect("removed");
    symlink(workspace.path("kept"), workspace.path("out/model.safetensors")).expect("linked");
    let error = workspace.run_refused(&sft);
    assert!(error.contains("model.safetensors: expected a regular file"), "{error}");
    fs::remove_file(workspace.path("out/model.safetensors")).expect("removed");
    workspace.ok(&sft);
    assert_eq!(fs::read(workspace.path("data/train.parquet")).expect("read"), data);
}

#[test]
fn a_warm_start_on_bad_data_is_bad_input() {
    let workspace = place_with_traps();
    workspace.write("bad.jsonl", "{\"prompt\": \"1+1=\", \"extra_info\": {}}\n");
    for files in ["absent.parquet", "bad.jsonl", "kept", "pipe"] {
        let files = format!("sft.train_files={files}");
        workspace.run_refused(&["sft", "--config", "recipe.toml", &files]);
    }
    let error = workspace.run_refused(&["sft", "--config", "recipe.toml", "sft.alphabet=ab"]);
    assert!(error.contains("row 0") && error.contains("alphabet"), "{error}");
    let error = workspace.run_refused(&["sft", "--config", "recipe.toml", "sft.alphabet=aa"]);
    assert!(error.contains("key `sft.alphabet`"), "{error}");
    let error = workspace.run_refused(&["sft", "--config", "recipe.toml", "sft.train_files="]);
    assert!(error.contains("key `sft.train_files`: no file matches"), "{error}");
    // No user may create a folder there.
    let end = workspace.run(&["sft", "--config", "recipe.toml", "--out", "/proc/model"]).refusal();
    assert!(end.err.contains("cannot create the folder /proc/model"), "{end:?}");
    assert!(!end.out.contains("fine-tuning"), "nothing was trained: {end:?}");
    let error =
        workspace.run_refused(&["sft", "--config", "recipe.toml", "sft.max_position_embeddings=4"]);
    assert!(error.contains("row 0") && error.contains("at most 4 tokens"), "{error}");
}

#[test]
fn a_batch_larger_than_the_data_is_reported() {
    let workspace = place_with_traps();
    let expected = "expected at most the 96 rows of the dataset, found 500";
    let printed =
        workspace.ok(&["sft", "--config", "recipe.toml", "--out", "out", "sft.batch_size=500"]);
    assert!(printed.contains("key `sft.batch_size`") && printed.contains(expected), "{printed}");
    let train = ["train", "--config", "recipe.toml", "--dry-run", "data.train_batch_size=500"];
    let printed = workspace.ok(&train);
    assert!(
        printed.contains("key `data.train_batch_size`") && printed.contains(expected),
        "{printed}"
    );
    assert!(!workspace.ok(&train[..4]).contains("expected at most"));
}

#[test]
fn a_run_refuses_a_folder_that_has_its_inputs() {
    let workspace = place_with_traps();
    workspace.train_ok(&["trainer.total_training_steps=1"]);
    let rollouts = "data.train_files=run/rollouts/step_00001.parquet";
    let before = fs::read(workspace.path("run/rollouts/step_00001.parquet")).expect("read");
    for own in
        [rollouts, "data.train_files=run/metrics.jsonl", "rollout.replay_lengths=run/summary.json"]
    {
        let error = workspace.run_refused(&["train", "--config", "recipe.toml", own]);
        assert!(error.contains("trainer.default_local_dir"), "{error}");
        assert!(
            workspace.path("run/summary.json").exists()
                && workspace.path("run/metrics.jsonl").exists()
        );
    }
    assert_eq!(fs::read(workspace.path("run/rollouts/step_00001.parquet")).expect("read"), before);
    for name in ["metrics.jsonl", "summary.json", "recipe.toml", "model/config.json"] {
        let written = workspace.path("run").join(name);
        fs::rename(&written, workspace.path("aside")).expect("renamed");
        symlink(workspace.path("kept"), &written).expect("linked");
        let error = workspace.run_refused(&["train", "--config", "recipe.toml"]);
        assert!(error.contains(name) && error.contains("a symbolic link"), "{error}");
        fs::rename(workspace.path("aside"), &written).expect("renamed");
    }
    assert_eq!(fs::read(workspace.path("kept")).expect("read"), b"kept");
}

#[test]
fn a_run_with_a_critic_refuses_a_folder_with_links_in_place_of_its_files() {
    let workspace = place_with_traps();
    let head = workspace.path("run/model/critic/value_head.safetensors");
    fs::create_dir_all(workspace.path("run/model/critic")).expect("made");
    symlink(workspace.path("kept"), &head).expect("linked");
    let train = ["train", "--config", "recipe.toml", "--dry-run", "algorithm.adv_estimator=gae"];
    let error = workspace.run_refused(&train);
    assert!(error.contains("key `trainer.default_local_dir`"), "{error}");
    assert!(error.contains("value_head.safetensors: expected a regular file"), "{error}");
    // A run without a critic writes no such file.
    workspace.ok(&train[..4]);
    fs::remove_file(&head).expect("removed");
    workspace.ok(&train);
}

#[test]
fn a_run_without_a_critic_removes_the_critic_of_an_earlier_run() {
    let workspace = place_with_traps();
    let one = "trainer.total_training_steps=1";
    workspace.train_ok(&[one, "algorithm.adv_estimator=gae"]);
    let critic = workspace.path("run/model/critic");
    assert!(critic.join("value_head.safetensors").exists());
    // A file that is not the run's stays.
    workspace.write("run/model/critic/notes", "");
    workspace.train_ok(&[one]);
    let left = fs::read_dir(&critic).expect("a folder").flatten().map(|entry| entry.file_name());
    assert_eq!(Vec::from_iter(left), ["notes"]);

    workspace.train_ok(&[one, "algorithm.adv_estimator=gae"]);
    fs::remove_file(critic.join("notes")).expect("removed");
    workspace.train_ok(&[one]);
    assert!(!critic.exists());
    assert!(workspace.path("run/model/model.safetensors").exists());
}

#[test]
fn a_copy_of_a_run_folder_by_hard_links_is_left_alone() {
    let workspace = place_with_traps();
    let train = ["trainer.total_training_steps=2", "trainer.save_freq=1"];
    workspace.train_ok(&train);
    fs::create_dir(workspace.path("copy")).expect("made");
    let names = ["metrics.jsonl", "summary.json", "recipe.toml"];
    let content =
        |folder: &str| names.map(|name| fs::read(workspace.path(folder).join(name)).expect("read"));
    for name in names {
        let (from, to) = (workspace.path("run").join(name), workspace.path("copy").join(name));
        fs::hard_link(from, to).expect("linked");
    }
    let before = content("copy");
    workspace.train_ok(&["trainer.total_training_steps=3", "trainer.save_freq=1", "--resume", "1"]);
    assert_eq!(content("copy"), before);
    workspace.train_ok(&["trainer.total_training_steps=1", "--overwrite"]);
    assert_eq!(content("copy"), before);
}
