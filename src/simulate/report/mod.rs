//! The report of a sweep: a page that needs nothing beside itself.

mod chart;
mod frontier;
mod gantt;
mod lengths;
mod times;

use std::fmt::Write;
use std::path::Path;

use super::summary::Summary;
use super::sweep::Configured;
use super::table;
use super::trace::Cut;

/// What a report tells.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// What was simulated.
    pub title: &'a str,
    /// The configurations.
    pub runs: &'a [Configured],
    /// Their summaries, in the same order.
    pub summaries: &'a [Summary],
    /// What is left of the traces, if lengths are recorded.
    pub trace: &'a [Cut],
    /// What is advised, if it was asked for.
    pub advice: Option<&'a str>,
}

impl Report<'_> {
    /// Writes the page.
    ///
    /// # Errors
    /// If a chart cannot be drawn or the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        Ok(rollpacker_files::write(path, self.html()?.as_bytes())?)
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
        let tables = format!("{}{}", table::render(self.summaries), table::footer(self.trace));
        page.push(&format!("<pre>{}</pre>", escape(&tables)));
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
            "Share of responses that are not longer: the policy's, as the baseline samples them, and those trained on, weights counted.",
            &lengths::charts(self.runs)?,
        );
        page.section(
            "Who worked when",
            "Instances of the rollout, darker where they run more responses, and the trainer; first seed. A response that was moved is shown where it ended.",
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

#[cfg(test)]
mod tests {
    use super::super::gantt::Gantt;
    use super::super::outcome::Outcome;
    use super::super::summary::tests::run;
    use super::super::sweep::summaries;
    use super::*;

    fn configured(label: &str, seconds: [f64; 2], mean_ratio: f64) -> Configured {
        let mut outcome: Outcome =
            run(&[("short", seconds[0]), ("long", seconds[1])], &[("bias/mean_ratio", mean_ratio)]);
        for tokens in [90, 200, 1000] {
            outcome.launched.observe(tokens, true);
            outcome.trained.insert(tokens, 1.0);
        }
        outcome.gantt = Some(Gantt {
            step: 2,
            seconds: seconds[1],
            running: vec![vec![3.0, 1.0, 0.0], vec![1.0, 0.0, 0.0]],
            training: vec![(seconds[1] / 2.0, seconds[1])],
        });
        Configured {
            label: label.to_owned(),
            settings: Vec::new(),
            seeds: vec![1],
            outcomes: vec![outcome],
            baseline: 0,
            on_policy: true,
        }
    }

    #[test]
    fn the_page_shows_everything_and_needs_nothing_else() {
        let runs = [configured("sync", [200.0, 190.0], 1.0), configured("a<b", [80.0, 210.0], 0.7)];
        let report = Report {
            title: "Job & cluster",
            runs: &runs,
            summaries: &summaries(&runs),
            trace: &[Cut {
                trace: "t.csv (column tokens)".to_owned(),
                responses: 9,
                max_response_length: 1000,
                cut: 2,
            }],
            advice: Some("Choose sync."),
        };
        let page = report.html().expect("drawn");
        for part in [
            "Job &amp; cluster",
            "Choose sync.",
            "t.csv (column tokens): 2 of 9 responses are longer",
            "Seconds of a step by stage",
            "seconds of a step",
            "mean trained length / mean length of the policy",
            "steps in the time of one of sync",
            "tokens of a response (logarithmic)",
            "a&lt;b, step 2: 210 s",
            "instance 1",
            "trainer",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(page.matches("<svg").count(), 6);
        assert!(!page.contains("a<b"));
        let outside = page.replace("http://www.w3.org/2000/svg", "");
        for reference in ["http:", "https:", "<script", "<link", "src=", "url(", "@import"] {
            assert!(!outside.contains(reference), "{reference}");
        }
    }

    #[test]
    fn a_single_run_has_no_frontier() {
        let runs = [configured("sync", [200.0, 190.0], 1.0)];
        let report = Report {
            title: "One",
            runs: &runs,
            summaries: &summaries(&runs),
            trace: &[],
            advice: None,
        };
        assert!(!report.html().expect("drawn").contains("Speed and bias"));
    }
}
