//! Responses that are kept for a later round, as rows of a snapshot.

use std::sync::{Arc, LazyLock};

use arrow_array::types::{Float32Type, Int32Type, UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::snapshot::{Part, RestoredSnapshot};
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_stages::rollout::{Completion, FinishReason};

use super::kept_responses::{EndedResponse, KeptById, KeptResponse, partial};
use crate::resume::part::{read_rows, rows};
use crate::resume::{ResumeError, SavedState};
use crate::wire::columns::lists;
use crate::wire::finish_reason::finish_reason;

/// The name of the snapshot part with the kept responses.
pub(super) const PART: &str = "rollout";

/// The column with the step that launched a partial response first or, for a whole response, the step whose round kept it.
const LAUNCHED: &str = "launched_step";

/// The schema of the part, with one row for each kept response.
static KEPT: LazyLock<SchemaRef> = LazyLock::new(|| {
    let list = |name, of| {
        Field::new(name, DataType::List(Arc::new(Field::new_list_field(of, false))), false)
    };
    let plain = |name, of| Field::new(name, of, false);
    Arc::new(Schema::new(vec![
        plain(column::PROMPT_ID, DataType::UInt64),
        plain(column::SAMPLE, DataType::UInt32),
        plain(LAUNCHED, DataType::UInt64),
        plain(column::POLICY_VERSION, DataType::UInt64),
        plain(column::RESPONSE_LENGTH, DataType::UInt32),
        plain(column::RESUMED_LENGTH, DataType::UInt32),
        list(column::RESPONSE_IDS, DataType::Int32),
        list(column::LOGPROBS, DataType::Float32),
        list(column::TOKEN_VERSIONS, DataType::UInt64),
        // `pause` for a partial response, and the reason for the end of a whole response.
        plain(column::FINISH_REASON, DataType::Utf8),
        plain(column::RESPONSE_TEXT, DataType::Utf8),
        plain(column::PREEMPTIONS, DataType::UInt32),
        plain(column::INSTANCE, DataType::UInt32),
    ]))
});

/// The kept responses of a snapshot.
pub(super) struct KeptRows(Batch);

impl SavedState for KeptRows {
    fn read(restored: &RestoredSnapshot) -> Result<Option<Self>, ResumeError> {
        let Some(batch) = read_rows(restored, PART, &KEPT)? else { return Ok(None) };
        let mut reasons = batch.text(column::FINISH_REASON).iter().flatten();
        match reasons.find(|reason| reason.parse::<FinishReason>().is_err()) {
            None => Ok(Some(Self(batch))),
            Some(found) => Err(ResumeError::Layout {
                step: restored.step(),
                part: PART,
                expected: "finish reasons".to_owned(),
                found: format!("`{found}`"),
            }),
        }
    }
}

impl KeptRows {
    /// Returns the kept responses of all workers, by prompt and sample.
    pub(super) fn samples(&self) -> KeptById {
        (0..self.0.num_rows()).map(|row| read(&self.0, row)).collect()
    }
}

struct KeptRow<'a> {
    id: SampleId,
    version: PolicyVersion,
    resumed: u32,
    completion: std::borrow::Cow<'a, Completion>,
}

fn kept_row<'a>(&(prompt, sample): &(PromptId, u32), kept: &'a KeptResponse) -> KeptRow<'a> {
    match kept {
        KeptResponse::Whole(EndedResponse { completion, resumed, version }) => {
            let id = SampleId { step: completion.id.step, prompt, sample };
            let completion = std::borrow::Cow::Borrowed(completion);
            KeptRow { id, version: *version, resumed: *resumed, completion }
        }
        KeptResponse::Partial(partial, version) => {
            let id = SampleId { step: partial.launched, prompt, sample };
            let completion = Completion {
                id,
                response_length: partial.response_length,
                response_ids: partial.response_ids.clone(),
                logprobs: partial.logprobs.clone(),
                token_versions: partial.token_versions.clone(),
                text: String::new(),
                finish_reason: FinishReason::Pause,
                started: Nanos(0),
                finished: Nanos(0),
                preemptions: 0,
                instance: 0,
            };
            let completion = std::borrow::Cow::Owned(completion);
            KeptRow { id, version: *version, resumed: 0, completion }
        }
    }
}

pub(super) fn part(samples: &KeptById) -> Part {
    let entries: Vec<KeptRow<'_>> = samples.iter().map(|(id, kept)| kept_row(id, kept)).collect();
    let wide = |of: fn(&KeptRow<'_>) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(entries.iter().map(of)))
    };
    let narrow = |of: fn(&KeptRow<'_>) -> u32| -> ArrayRef {
        Arc::new(UInt32Array::from_iter_values(entries.iter().map(of)))
    };
    let versions: Vec<Vec<u64>> = entries
        .iter()
        .map(|entry| entry.completion.token_versions.iter().map(|version| version.0).collect())
        .collect();
    let text = |of: fn(&Completion) -> &str| -> ArrayRef {
        let texts = entries.iter().map(|entry| of(&entry.completion));
        Arc::new(StringArray::from_iter_values(texts))
    };
    let columns = vec![
        wide(|entry| entry.id.prompt.0),
        narrow(|entry| entry.id.sample),
        wide(|entry| entry.id.step.0),
        wide(|entry| entry.version.0),
        narrow(|entry| entry.completion.response_length),
        narrow(|entry| entry.resumed),
        lists::<Int32Type>(entries.iter().map(|entry| entry.completion.response_ids.as_slice())),
        lists::<Float32Type>(entries.iter().map(|entry| entry.completion.logprobs.as_slice())),
        lists::<UInt64Type>(versions.iter().map(Vec::as_slice)),
        text(|completion| completion.finish_reason.as_str()),
        text(|completion| &completion.text),
        narrow(|entry| entry.completion.preemptions),
        narrow(|entry| entry.completion.instance),
    ];
    rows(&KEPT, columns)
}

/// Reads the kept response in row `row`. The times of the response are set to 0, because they were read from the clock of another process.
fn read(batch: &Batch, row: usize) -> ((PromptId, u32), KeptResponse) {
    let wide = |name| batch.values::<UInt64Type>(name).value(row);
    let narrow = |name| batch.values::<UInt32Type>(name).value(row);
    let (prompt, sample) = (PromptId(wide(column::PROMPT_ID)), narrow(column::SAMPLE));
    let (step, version) = (Step(wide(LAUNCHED)), PolicyVersion(wide(column::POLICY_VERSION)));
    let finish_reason = finish_reason(batch.text(column::FINISH_REASON).value(row));
    let versions = batch.lists::<UInt64Type>(column::TOKEN_VERSIONS).get(row);
    let completion = Completion {
        id: SampleId { step, prompt, sample },
        response_length: narrow(column::RESPONSE_LENGTH),
        response_ids: batch.lists::<Int32Type>(column::RESPONSE_IDS).get(row).to_vec(),
        logprobs: batch.lists::<Float32Type>(column::LOGPROBS).get(row).to_vec(),
        token_versions: versions.iter().copied().map(PolicyVersion).collect(),
        text: batch.text(column::RESPONSE_TEXT).value(row).to_owned(),
        finish_reason,
        started: Nanos(0),
        finished: Nanos(0),
        preemptions: narrow(column::PREEMPTIONS),
        instance: narrow(column::INSTANCE),
    };
    let kept = if finish_reason.is_whole() {
        KeptResponse::Whole(EndedResponse {
            completion,
            resumed: narrow(column::RESUMED_LENGTH),
            version,
        })
    } else {
        KeptResponse::Partial(partial(&completion, completion.id.step), version)
    };
    ((prompt, sample), kept)
}

#[cfg(test)]
mod tests {
    use rollpacker_dataflow::snapshot::{Identity, SnapshotStore, StoreOptions};

    use super::*;

    #[test]
    fn an_unknown_finish_reason_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = StoreOptions { identity: Identity::default(), keep: 1 };
        let store = SnapshotStore::open(folder.path(), options).expect("opens");
        let wide = || -> ArrayRef { Arc::new(UInt64Array::from(vec![1])) };
        let narrow = || -> ArrayRef { Arc::new(UInt32Array::from(vec![1])) };
        let text = |text| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
        let columns = vec![
            wide(),
            narrow(),
            wide(),
            wide(),
            narrow(),
            narrow(),
            lists::<Int32Type>([&[1][..]].into_iter()),
            lists::<Float32Type>([&[1.0][..]].into_iter()),
            lists::<UInt64Type>([&[1][..]].into_iter()),
            text("bored"),
            text(""),
            narrow(),
            narrow(),
        ];
        let record = store.write(Step(0), PART, 0, rows(&KEPT, columns)).expect("written");
        store.commit(Step(0), record.into_iter().collect(), 1).expect("committed");
        let restored = store.latest().expect("readable").restored.expect("one");
        let error = KeptRows::read(&restored).err().expect("refused").to_string();
        let expected =
            "snapshot after step 1, part `rollout`: expected finish reasons, found `bored`";
        assert_eq!(error, expected);
    }
}
