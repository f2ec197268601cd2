//! The report of a sweep: a page that needs nothing beside itself.

mod chart;
mod frontier;
mod gantt;
mod lengths;
mod times;

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;

use super::summary::Summary;
use super::sweep::Configured;
use super::table;

/// What a report tells.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// What was simulated.
    pub title: &'a str,
    /// The configurations.
    pub runs: &'a [Configured],
    /// Their summaries, in the same order.
    pub summaries: &'a [Summary],
    /// What is advised, if it was asked for.
    pub advice: Option<&'a str>,
}

impl Report<'_> {
    /// Writes the page.
    ///
    /// # Errors
    /// If a chart cannot be drawn or the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, self.html()?)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The page.
    ///
    /// # Errors
    /// If a chart cannot be drawn.
    pub fn html(&self) -> anyhow::Result<String> {
        let mut page = Page::default();
        page.push(&format!("<h1>{}</h1>", escape(self.title)));
        if let Some(advice) = self.advice {
            for sentence in advice.lines() {
                page.push(&format!("<p>{}</p>", escape(sentence)));
            }
        }
        page.push(&format!("<pre>{}</pre>", escape(&table::render(self.summaries))));
        page.section(
            "What a step's seconds go to",
            "Mean over steps and seeds; training that the rollout hides is not counted.",
            &times::breakdown(self.summaries)?,
        );
        page.section(
            "Step times",
            "First seed. Tail batching packs long responses into few rounds, which stand out.",
            &times::series(self.runs)?,
        );
        page.section(
            "Speed and bias",
            "Steps in the time of one of sync, against the mean trained length over the policy's. Unbiased is 1.",
            &frontier::chart(self.summaries)?,
        );
        page.section(
            "Lengths",
            "Share of responses that are not longer: the policy's (Kaplan-Meier over all launched responses) and those trained on.",
            &lengths::charts(self.runs)?,
        );
        page.section(
            "Who worked when",
            "Instances of the rollout, darker where they run more responses, and the trainer; first seed.",
            &gantt::charts(self.runs)?,
        );
        Ok(page.finish(self.title))
    }
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn push(&mut self, html: &str) {
        self.0.push_str(html);
        self.0.push('\n');
    }

    /// A headline, a line of text, and charts; nothing where there are no charts.
    fn section(&mut self, title: &str, text: &str, charts: &[String]) {
        if charts.is_empty() {
            return;
        }
        self.push(&format!("<section><h2>{}</h2><p>{}</p>", escape(title), escape(text)));
        for svg in charts {
            self.push(&format!("<figure>{svg}</figure>"));
        }
        self.push("</section>");
    }

    fn finish(self, title: &str) -> String {
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{}</title>\n<style>{STYLE}</style>\n\
             </head>\n<body>\n{}</body>\n</html>\n",
            escape(title),
            self.0
        )
    }
}

const STYLE: &str = "body{font:15px/1.5 sans-serif;color:#222;max-width:1100px;margin:2em auto;padding:0 1em}\
h1{font-size:1.5em}h2{font-size:1.15em;margin:2em 0 .2em}p{margin:.3em 0;max-width:50em}\
pre{background:#f6f6f4;padding:1em;overflow-x:auto;font-size:12px;line-height:1.45}\
figure{margin:1em 0}svg{max-width:100%;height:auto}";

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            c => drop(escaped.write_char(c)),
        }
    }
    escaped
}
