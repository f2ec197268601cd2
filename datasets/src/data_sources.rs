//! The data sources of a dataset, with the first row of each.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::dataset::Dataset;
use crate::error::DatasetError;

/// The first row of a data source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstRow {
    /// The data source.
    pub data_source: String,
    /// The file.
    pub file: PathBuf,
    /// The row of the file, from 0.
    pub row: u64,
}

impl Dataset {
    /// Returns every data source of the rows in use, with the first row of each in file order.
    ///
    /// Reads only that column of Parquet files, and all lines of JSONL files. Lines that are not objects, or whose source is not text, are
    /// ignored here and reported when they are read as prompts.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn data_sources(&self) -> Result<Vec<FirstRow>, DatasetError> {
        let mut seen = SourceIndex::default();
        for (file, ranges) in self.rows_by_file() {
            let default = file.plan().default_data_source.clone();
            let each = |row, source: Option<&str>| {
                seen.see(source.unwrap_or(&default), row, || file.path().to_path_buf());
            };
            match &file.plan().data_source {
                Some(column) => file.read_text(column, ranges, each)?,
                None => ranges.first().map(|range| range.start).into_iter().for_each(|row| {
                    seen.see(&default, row, || file.path().to_path_buf());
                }),
            }
        }
        Ok(seen.first)
    }
}

#[derive(Default)]
struct SourceIndex {
    first: Vec<FirstRow>,
    known: BTreeSet<Arc<str>>,
    /// The source of the previous row, which is usually that of the next.
    last: Option<Arc<str>>,
}

impl SourceIndex {
    fn see(&mut self, source: &str, row: u64, file: impl FnOnce() -> PathBuf) {
        if self.last.as_deref() == Some(source) {
            return;
        }
        let name = self.known.get(source).cloned().unwrap_or_else(|| {
            let data_source = source.to_owned();
            self.first.push(FirstRow { data_source, file: file(), row });
            let name: Arc<str> = source.into();
            self.known.insert(name.clone());
            name
        });
        self.last = Some(name);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Compression, DatasetConfig, PromptColumns, WriteOptions, convert};

    const LINES: &str = r#"
{"info": {"from": "a"}, "prompt": "x", "answer": "1"}
{"info": {"from": "a"}, "prompt": "x", "answer": "1"}
nonsense
{"info": {"from": 7}, "prompt": "x", "answer": "1"}
{"info": "none", "prompt": "x", "answer": "1"}
{"info": {"from": "b"}, "prompt": "x", "answer": "1"}
{"info": {"from": "a"}, "prompt": "x", "answer": "1"}
{"info": {"from": "c\n"}, "prompt": "x", "answer": "1"}
"#;

    fn found(config: DatasetConfig) -> Vec<(String, u64)> {
        let sources = Dataset::open(config).expect("opened").data_sources().expect("read");
        sources.into_iter().map(|first| (first.data_source, first.row)).collect()
    }

    #[test]
    fn each_data_source_is_listed_with_its_first_used_row() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        fs::write(&path, LINES).expect("written");
        let columns =
            PromptColumns { data_source: Some("info.from".to_owned()), ..PromptColumns::default() };
        let config = DatasetConfig { columns, ..DatasetConfig::of([path.display().to_string()]) };
        let expected =
            |sources: [(&str, u64); 4]| sources.map(|(name, row)| (name.to_owned(), row));
        let in_lines = expected([("a", 0), ("unknown", 4), ("b", 5), ("c\n", 7)]);
        assert_eq!(found(config.clone()), in_lines);
        let few = DatasetConfig { max_samples: Some(6), ..config.clone() };
        assert_eq!(found(few), in_lines[..3]);

        let readable: Vec<&str> =
            LINES.lines().filter(|line| line.contains("\"answer\"")).collect();
        let readable =
            readable.join("\n").replace("{\"from\": 7}", "null").replace("\"none\"", "{}");
        fs::write(&path, readable).expect("written");
        let parquet = folder.path().join("rows.parquet");
        let options = WriteOptions { compression: Compression::Zstd, row_group_rows: 2 };
        convert(&config, &parquet, convert::OutputFormat::Verl, options).expect("converted");
        let config = DatasetConfig::of([parquet.display().to_string()]);
        let in_rows = expected([("a", 0), ("unknown", 2), ("b", 4), ("c\n", 6)]);
        assert_eq!(found(config.clone()), in_rows);
        let chosen = DatasetConfig { max_samples: Some(6), shuffle: true, seed: 3, ..config };
        assert!(found(chosen).len() >= 3);
    }
}
