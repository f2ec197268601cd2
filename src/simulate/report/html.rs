//! HTML of names with their settings, of tables and of legends.

use std::fmt::Write;

use super::super::summary::Summary;
use super::super::table::SummaryTable;
use super::chart::Mark;

/// The name of a configuration with its mark and its settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConfigurationName<'a> {
    index: usize,
    summary: &'a Summary,
}

impl<'a> ConfigurationName<'a> {
    /// Returns the name of configuration `index`.
    pub(super) fn of(index: usize, summary: &'a Summary) -> Self {
        Self { index, summary }
    }

    /// Renders a line that expands to show the settings.
    pub(super) fn html(self) -> String {
        let Self { index, summary } = self;
        let settings = match &summary.settings[..] {
            [] => "as in the job".to_owned(),
            settings => settings.iter().map(|text| escape(text)).collect::<Vec<_>>().join("<br>"),
        };
        format!(
            "<details class=\"name\"><summary>{}<span>{}</span></summary><code>{settings}</code></details>",
            Mark::of(index).svg(),
            escape(&summary.label),
        )
    }
}

/// Renders a table with the name of a configuration at the head of each row.
pub(super) fn table(table: &SummaryTable, summaries: &[Summary]) -> String {
    let head: String =
        table.head.iter().map(|name| format!("<th scope=\"col\">{}</th>", escape(name))).collect();
    let row = |(index, (cells, summary)): (usize, (&Vec<String>, &Summary))| {
        let cells: String =
            cells.iter().skip(1).map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        let name = ConfigurationName::of(index, summary).html();
        format!("<tr><th scope=\"row\">{name}</th>{cells}</tr>\n")
    };
    let rows: String = table.rows.iter().zip(summaries).enumerate().map(row).collect();
    format!(
        "<div class=\"table\" tabindex=\"0\"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
}

/// Renders an entry of a legend: a square of the CSS colour `colour`, and its meaning `name`.
pub(super) fn swatch(colour: &str, name: &str) -> String {
    format!("<span><i class=\"swatch\" style=\"background:{colour}\"></i>{}</span>", escape(name))
}

pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => drop(escaped.write_char(c)),
        }
    }
    escaped
}
