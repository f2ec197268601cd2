//! The data sources of a dataset, with the first row of each, and its domains.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use crate::dataset::Dataset;
use crate::error::DatasetError;

/// The first row of a data source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstRow {
    /// The name of the data source.
    pub data_source: String,
    /// The file that contains the row.
    pub file: PathBuf,
    /// The row of the file, from 0.
    pub row: u64,
}

impl Dataset {
    /// Checks all rows in use, and returns every data source with its first row in file order.
    ///
    /// # Errors
    ///
    /// If a row cannot be used, or a file cannot be read. The search ends at the first such error.
    pub fn data_sources(&self) -> Result<Vec<FirstRow>, DatasetError> {
        let mut seen = SourceIndex::default();
        for (file, ranges) in self.rows_by_file() {
            for chunk in file.read(ranges, 0)? {
                let chunk = chunk?;
                for index in 0..chunk.len() {
                    chunk.check(index)?;
                    seen.add(chunk.data_source(index), chunk.rows[index], || {
                        file.path().to_path_buf()
                    });
                }
            }
        }
        Ok(seen.first)
    }

    /// Counts the rows in use by domain.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn domains(&self) -> Result<BTreeMap<String, u64>, DatasetError> {
        let mut rows = BTreeMap::new();
        for (file, ranges) in self.rows_by_file() {
            for chunk in file.read(ranges, 0)? {
                let chunk = chunk?;
                for domain in (0..chunk.len()).map(|index| chunk.domain(index)) {
                    match rows.get_mut(domain) {
                        Some(count) => *count += 1,
                        None => {
                            rows.insert(domain.to_owned(), 1);
                        }
                    }
                }
            }
        }
        Ok(rows)
    }
}

#[derive(Default)]
struct SourceIndex {
    first: Vec<FirstRow>,
    known: BTreeSet<Arc<str>>,
    /// The data source of the previous row. The next row usually has the same data source.
    last: Option<Arc<str>>,
}

impl SourceIndex {
    fn add(&mut self, source: &str, row: u64, file: impl FnOnce() -> PathBuf) {
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
{"info": null, "prompt": "x", "answer": "1"}
{"info": {}, "prompt": "x", "answer": "1"}
{"info": {"from": "b"}, "prompt": "x", "answer": "1"}
{"info": {"from": "a"}, "prompt": "x", "answer": "1"}
{"info": {"from": "c\n"}, "prompt": "x", "answer": "1"}
{"info": {"from": 7}, "prompt": "x", "answer": "1"}
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
        let sources = expected([("a", 0), ("unknown", 2), ("b", 4), ("c\n", 6)]);
        let error =
            Dataset::open(config.clone()).expect("opened").data_sources().expect_err("row 7");
        let message = error.to_string();
        assert!(message.contains("row 7: column `info.from`: expected text, found 7"), "{message}");
        let few = DatasetConfig { max_samples: Some(6), ..config.clone() };
        assert_eq!(found(few), sources[..3]);
        let config = DatasetConfig { max_samples: Some(7), ..config };
        assert_eq!(found(config.clone()), sources);

        let parquet = folder.path().join("rows.parquet");
        let options = WriteOptions { compression: Compression::Zstd, row_group_rows: 2 };
        convert(&config, &parquet, convert::OutputFormat::Verl, options).expect("converted");
        let config = DatasetConfig::of([parquet.display().to_string()]);
        assert_eq!(found(config.clone()), sources);
        let domains = Dataset::open(config.clone()).expect("opened").domains().expect("read");
        assert_eq!(
            domains,
            [("a", 3), ("b", 1), ("c\n", 1), ("unknown", 2)]
                .map(|(name, rows)| (name.to_owned(), rows))
                .into()
        );
        let chosen = DatasetConfig { max_samples: Some(6), shuffle: true, seed: 3, ..config };
        assert!(found(chosen).len() >= 3);
    }
}
