//! The report of a sweep: a self-contained HTML page.

mod chart;
mod frontier;
mod gantt;
mod html;
mod lengths;
mod times;

use std::path::Path;

use self::chart::{BLUE, GREY, css};
use self::html::{ConfigurationName, escape};
use super::configuration::ConfigurationRuns;
use super::study::Study;
use super::table;

/// The title and the results that a report shows.
#[derive(Clone, Copy, Debug)]
pub struct HtmlReport<'a> {
    /// The title of the page.
    pub title: &'a str,
    /// The results to report.
    pub study: &'a Study,
}

const STYLE: &str = include_str!("style.css");

impl HtmlReport<'_> {
    /// Writes the page.
    ///
    /// # Errors
    /// If a chart cannot be drawn or the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        Ok(rollpacker_files::write(path, self.html()?.as_bytes())?)
    }

    /// Renders the page.
    ///
    /// # Errors
    /// If a chart cannot be drawn.
    pub fn html(&self) -> anyhow::Result<String> {
        let summaries = &self.study.summaries;
        let mut page = Page::default();
        page.push(&format!("<h1>{}</h1>", escape(self.title)));
        self.head(&mut page);
        page.section("Figures", FIGURES, &self.tables());
        page.section("Seconds of a step by stage", STAGES, &times::breakdown(summaries));
        page.section("Step times", &series_legend(), &self.panels(&times::series)?);
        if let Some(svg) = frontier::chart(summaries)? {
            page.section("Speed and bias", FRONTIER, &self.frontier(&svg));
        }
        page.section("Lengths", &lengths_legend(), &self.panels(&lengths::chart)?);
        page.section("Activity of instances and trainer", &gantt_legend(), &self.gantts()?);
        Ok(page.finish(self.title))
    }

    /// Adds warnings, advice and notes on the traces.
    fn head(&self, page: &mut Page) {
        for warning in self.study.warnings() {
            page.push(&format!("<p class=\"warning\">{}</p>", escape(&warning)));
        }
        for advice in &self.study.advice {
            let lines: String =
                advice.text.lines().map(|line| format!("<p>{}</p>", escape(line))).collect();
            page.push(&format!("<div class=\"advice\">{lines}</div>"));
        }
        for trace in &self.study.traces {
            page.push(&format!("<p>{}</p>", escape(&trace.text())));
        }
    }

    fn tables(&self) -> String {
        let summaries = &self.study.summaries;
        table::all(summaries).iter().map(|table| html::table(table, summaries)).collect()
    }

    /// Renders the charts of the configurations, each under the name of its configuration. Configurations without a chart are left out.
    fn panels(&self, chart: &Chart) -> anyhow::Result<String> {
        let mut panels = String::new();
        for (name, run) in self.named() {
            if let Some(svg) = chart(run, &self.study.runs)? {
                panels.push_str(&figure(name, "", &svg));
            }
        }
        Ok(grid(&panels))
    }

    fn gantts(&self) -> anyhow::Result<String> {
        let mut panels = String::new();
        for (name, run) in self.named() {
            let Some(gantt) = run.outcomes.first().and_then(|first| first.gantt.as_ref()) else {
                continue;
            };
            let legend = gantt::legend(gantt);
            let seconds = table::number(gantt.seconds);
            let step = gantt.step;
            let caption =
                format!("<p class=\"legend\"><span>step {step}, {seconds} s</span>{legend}</p>");
            panels.push_str(&figure(name, &caption, &gantt::chart(gantt)?));
        }
        Ok(grid(&panels))
    }

    fn frontier(&self, svg: &str) -> String {
        let names: String = self.named().map(|(name, _)| name.html()).collect();
        format!(
            "<div class=\"beside\"><figure>{svg}</figure><div class=\"names\">{names}</div></div>"
        )
    }

    fn named(&self) -> impl Iterator<Item = (ConfigurationName<'_>, &ConfigurationRuns)> {
        let summaries = self.study.summaries.iter().enumerate();
        summaries
            .map(|(index, summary)| ConfigurationName::of(index, summary))
            .zip(&self.study.runs)
    }
}

/// A function that returns the SVG chart of a configuration, given all configurations; `None` if there is nothing to draw.
type Chart = dyn Fn(&ConfigurationRuns, &[ConfigurationRuns]) -> anyhow::Result<Option<String>>;

const FIGURES: &str = "Seconds of a step by kind of round, with the share of these rounds; speed-up and bias relative to the <code>sync</code> \
                       of the same job; and the setup of each configuration. Click a name to show its settings. Where a trace leaves the \
                       correlation of lengths within a prompt open, ranges show the figures at both of its ends.";

const STAGES: &str = "Mean over steps and seeds, without training that overlaps with the rollout.";

const FRONTIER: &str = "Speed-up of a step over the job&#8217;s plain <code>sync</code>, against the mean trained length over the \
                        policy&#8217;s: unbiased is 1. Vertical lines are intervals of the speed-up. Where a trace leaves the correlation \
                        of lengths within a prompt open, the hollow mark is its upper end.";

/// Returns the legend of the step times.
fn series_legend() -> String {
    format!(
        "Seconds of each step with the first seed; all charts share one axis. Tail batching collects long responses in few rounds, seen as peaks.\
         </p><p class=\"legend\">{}{}",
        line(&css(BLUE, 1.0), "solid", "the configuration"),
        line(&css(GREY, 1.0), "solid", "its sync"),
    )
}

fn lengths_legend() -> String {
    format!(
        "Cumulative share of responses over tokens (logarithmic), weighted.</p><p class=\"legend\">{}{}",
        line(&css(BLUE, 1.0), "solid", "trained on"),
        line("#000", "dashed", "sampled by the policy (the baseline keeps all responses)"),
    )
}

fn gantt_legend() -> String {
    format!(
        "One step of the first seed, in seconds: instances of the rollout by number, darker where they run more responses, and the trainer. \
         The scale above a chart shows the number. A response that moved is shown on the instance where it ended.</p><p class=\"legend\">{}{}",
        html::swatch(&css(BLUE, 1.0), "an instance generates"),
        gantt::trainer(),
    )
}

/// Renders an entry of a legend: a line with the CSS colour `colour` and the CSS border style `style`, and its meaning `name`.
fn line(colour: &str, style: &str, name: &str) -> String {
    format!(
        "<span><i class=\"line\" style=\"border-top-color:{colour};border-top-style:{style}\"></i>{}</span>",
        escape(name)
    )
}

fn figure(name: ConfigurationName<'_>, caption: &str, svg: &str) -> String {
    format!("<figure><figcaption>{}{caption}</figcaption>{svg}</figure>\n", name.html())
}

fn grid(panels: &str) -> String {
    match panels {
        "" => String::new(),
        panels => format!("<div class=\"panels\">{panels}</div>"),
    }
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn push(&mut self, html: &str) {
        self.0.push_str(html);
        self.0.push('\n');
    }

    /// Adds a section with a title, a paragraph of HTML and content; nothing if the content is empty.
    fn section(&mut self, title: &str, text: &str, content: &str) {
        if !content.is_empty() {
            let title = escape(title);
            self.push(&format!("<section><h2>{title}</h2><p>{text}</p>{content}</section>"));
        }
    }

    fn finish(self, title: &str) -> String {
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n\
             </head>\n<body>\n{}</body>\n</html>\n",
            escape(title),
            self.0
        )
    }
}

#[cfg(test)]
mod tests;
