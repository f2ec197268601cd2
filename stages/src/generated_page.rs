//! The check of a page of documentation that has generated tables between two marks. Tests of other crates include this file.

const MARKS: [&str; 2] = ["<!-- tables: begin -->\n", "<!-- tables: end -->"];

/// Asserts that the page at `path` has these tables, or writes them into it if `UPDATE_EXPECT` is set. `command` is the command that runs
/// the test, for the message of a failure.
pub(crate) fn assert_tables(path: &str, tables: &str, command: &str) {
    let page = std::fs::read_to_string(path).expect("the page is there");
    let [begin, end] = MARKS.map(|mark| page.find(mark).expect("the page has its marks"));
    let (before, after) = (&page[..begin + MARKS[0].len()], &page[end..]);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, format!("{before}{tables}{after}")).expect("written");
        return;
    }
    let is_current = &page[before.len()..end] == tables;
    assert!(is_current, "{path} is out of date: UPDATE_EXPECT=1 {command}");
}
