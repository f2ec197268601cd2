//! A folder with runs as the program writes them, and a server over them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int32Array, ListArray, RecordBatch,
    RecordBatchOptions, StringArray, UInt32Array, UInt64Array, new_empty_array, new_null_array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use rollpacker::dataflow::schema::{GROUPS, column, list_item};
use rollpacker::operators::report::recorded_fields;
use serde_json::{Value, json};

/// The longest time that a test waits for an answer. It only ends tests that would hang.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A temporary folder.
pub(crate) struct TestWorkspace(tempfile::TempDir);

impl TestWorkspace {
    /// Creates a folder with a run of this many steps.
    pub(crate) fn with_run(name: &str, steps: u64) -> Self {
        let workspace = Self(tempfile::tempdir().expect("a folder"));
        workspace.run(name, steps);
        workspace
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
    }

    pub(crate) fn append(&self, name: &str, text: &str) {
        let file = OpenOptions::new().append(true).open(self.path(name));
        file.expect("open").write_all(text.as_bytes()).expect("written");
    }

    /// Writes the folder of a run that has not ended. The metrics are written last, because a folder with metrics counts as a run.
    pub(crate) fn run(&self, name: &str, steps: u64) {
        let folder = self.path(name);
        fs::create_dir_all(folder.join("rollouts")).expect("made");
        fs::write(folder.join("recipe.toml"), "[schedule]\nname = \"tail_batching\"\n")
            .expect("written");
        (1..=steps).for_each(|step| write_rollouts(&folder, step));
        let lines: String = (1..=steps).map(line).collect();
        fs::write(folder.join("new"), lines).expect("written");
        fs::rename(folder.join("new"), folder.join("metrics.jsonl")).expect("renamed");
    }

    fn command(&self, folder: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollpacker"));
        command.args(["view", folder, "--port", "0"]).current_dir(self.0.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts the server, and waits until it has printed its address.
    pub(crate) fn serve(&self, folder: &str) -> Server {
        let mut process = self.command(folder).spawn().expect("the program starts");
        let mut output = String::new();
        let out = process.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut output).expect("an address");
        let address = output.strip_prefix("http://").and_then(|rest| rest.split_once(' '));
        let (address, _) = address.unwrap_or_else(|| panic!("an address is expected in: {output}"));
        Server { address: address.to_owned(), process }
    }

    /// Returns the error of a folder that the program refuses.
    pub(crate) fn run_refused(&self, folder: &str) -> String {
        let end = self.command(folder).output().expect("the program starts");
        assert_eq!(end.status.code(), Some(2), "{end:?}");
        String::from_utf8_lossy(&end.stderr).into_owned()
    }
}

/// Returns the line of metrics of a step.
pub(crate) fn line(step: u64) -> String {
    let data = json!({
        "critic/score/mean": step as f64 / 10.0,
        "response_length/mean": 2.5,
        "timing_s/rollout": 3.5,
        "timing_s/training_exposed": 1.0,
        "schedule/deferred_prompts": 1.0,
        "schedule/rejected_prompts": 0.0,
        "actor/grad_norm": null,
    });
    format!("{}\n", json!({ "step": step, "round": "short", "data": data }))
}

/// Writes five responses: of prompt 10, which is trained on, two trained and one aborted; of prompt 11, one aborted and one that ended.
/// They start at 0, 0, 0, 1 and 1 s and finish at 1, 2, 3, 4 and 3 s, counted from `100 * step` seconds.
fn write_rollouts(folder: &Path, step: u64) {
    let tokens = [3, 2, 2, 4, 2];
    let second = |seconds: [u64; 5]| -> ArrayRef {
        Arc::new(UInt64Array::from(seconds.map(|at| 1_000_000_000 * (at + 100 * step)).to_vec()))
    };
    let texts = |values: [&str; 5]| -> ArrayRef { Arc::new(StringArray::from(values.to_vec())) };
    let numbers = |values: [u32; 5]| -> ArrayRef { Arc::new(UInt32Array::from(values.to_vec())) };
    let same = |value: u64| -> ArrayRef { Arc::new(UInt64Array::from(vec![value; 5])) };
    let prompts = UInt64Array::from(vec![10, 10, 10, 11, 11]);
    let rows = UInt64Array::from(vec![0, 0, 0, 1, 1]);
    let versions = Arc::new(UInt64Array::from(vec![step - 1; 13]));
    let message = r#"[{"role":"user","content":"<b>1 + 1?</b>"}]"#;
    let columns: BTreeMap<&str, ArrayRef> = BTreeMap::from([
        ("step", same(step)),
        (
            "admitted",
            Arc::new(BooleanArray::from(vec![true, true, false, false, false])) as ArrayRef,
        ),
        (column::PROMPT_ID, Arc::new(prompts)),
        (column::SAMPLE, numbers([0, 1, 2, 0, 1])),
        (column::POLICY_VERSION, same(step - 1)),
        (column::PROMPT_LENGTH, numbers([5; 5])),
        (column::RESPONSE_LENGTH, numbers(tokens)),
        (column::RESUMED_LENGTH, numbers([0; 5])),
        (
            column::RESPONSE_IDS,
            list(tokens, Arc::new(Int32Array::from(vec![7, 8, 9, 7, 8, 7, 8, 7, 8, 9, 9, 7, 8]))),
        ),
        (column::LOGPROBS, list(tokens, Arc::new(Float32Array::from(vec![-0.5; 13])))),
        (column::TOKEN_VERSIONS, list(tokens, versions)),
        (column::FINISH_REASON, texts(["stop", "stop", "abort", "abort", "stop"])),
        (column::RESPONSE_TEXT, texts(["<2", "3", "33", "abcd", "e"])),
        (column::STARTED, second([0, 0, 0, 1, 1])),
        (column::FINISHED, second([1, 2, 3, 4, 3])),
        (column::PREEMPTIONS, numbers([0; 5])),
        (column::INSTANCE, numbers([0, 1, 0, 1, 0])),
        (column::DATA_SOURCE, texts(["sums"; 5])),
        (column::MESSAGES, texts([message; 5])),
        (column::GROUND_TRUTH, texts(["2"; 5])),
        (column::ROW, Arc::new(rows)),
        (column::SCORE, Arc::new(Float64Array::from(vec![Some(1.0), Some(0.0), None, None, None]))),
        (column::LABELS, texts([r#"{"outcome":"right"}"#; 5])),
        (
            column::ADVANTAGES,
            list([3, 2, 0, 0, 0], Arc::new(Float32Array::from(vec![1.0, 1.0, 1.0, -1.0, -1.0]))),
        ),
    ]);
    write(&folder.join(format!("rollouts/step_{step:05}.parquet")), &columns);
}

/// Writes the given columns, and all other columns as nulls.
fn write(path: &Path, columns: &BTreeMap<&str, ArrayRef>) {
    let own = [
        Field::new("step", DataType::UInt64, false),
        Field::new("admitted", DataType::Boolean, false),
    ];
    let texts = [column::MESSAGES, column::GROUND_TRUTH, column::EXTRA_INFO];
    let texts = texts.map(|name| Field::new(name, DataType::Utf8, true));
    let groups = recorded_fields(&GROUPS);
    let groups = groups.iter().map(|field| field.as_ref().clone().with_nullable(true));
    let schema =
        Arc::new(Schema::new(own.into_iter().chain(texts).chain(groups).collect::<Vec<_>>()));
    let column = |field: &Arc<Field>| {
        let given = columns.get(field.name().as_str()).cloned();
        given.unwrap_or_else(|| new_null_array(field.data_type(), 5))
    };
    let arrays = schema.fields().iter().map(column).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(5));
    let rows = RecordBatch::try_new_with_options(schema.clone(), arrays, &options).expect("rows");
    let file = File::create(path).expect("created");
    let mut writer = ArrowWriter::try_new(file, schema, None).expect("a writer");
    writer.write(&rows).expect("written");
    writer.close().expect("written");
}

fn list(lengths: [u32; 5], items: ArrayRef) -> ArrayRef {
    let offsets = OffsetBuffer::from_lengths(lengths.map(|length| length as usize));
    let items = if items.is_empty() { new_empty_array(items.data_type()) } else { items };
    Arc::new(ListArray::new(list_item(items.data_type().clone()), offsets, items, None))
}

/// A running server, which ends with the test.
pub(crate) struct Server {
    address: String,
    process: Child,
}

/// An answer of the server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Server {
    /// Returns the JSON at a path.
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.request("GET", path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        serde_json::from_str(&answer.body).expect("JSON")
    }

    /// Sends a request with a path exactly as given.
    pub(crate) fn request(&self, method: &str, path: &str) -> Answer {
        self.request_as(&self.address, method, path)
    }

    /// Sends a request that names a host.
    pub(crate) fn request_as(&self, host: &str, method: &str, path: &str) -> Answer {
        let mut stream = self.send(host, method, path, "close");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Listens to the events.
    pub(crate) fn events(&self) -> Events {
        Events(BufReader::new(self.send(&self.address, "GET", "/api/events", "keep-alive")))
    }

    fn send(&self, host: &str, method: &str, path: &str, connection: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("connected");
        stream.set_read_timeout(Some(MAX_WAIT)).expect("set");
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: {connection}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A stream of events.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    /// Waits for the next event, and returns its data.
    pub(crate) fn next_data(&mut self) -> Value {
        loop {
            let mut line = String::new();
            let count = self.0.read_line(&mut line).expect("an event in time");
            assert!(count > 0, "the stream ended");
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data.trim_end()).expect("JSON");
            }
        }
    }
}
