//! The report as text for a terminal of 80 columns.

use std::fmt;

use super::{MetricCurve, RunReport, ShownResponse};
use crate::findings::{Finding, Severity};
use crate::number_format::format_number;
use crate::wrap::wrap;

/// The maximum number of lines that are shown of a prompt, a reference answer, the components or the labels.
const PROMPT_LINES: usize = 6;
/// The maximum number of lines that are shown of a response or of a reward error.
const RESPONSE_LINES: usize = 16;
/// The maximum width of a line of findings or responses, in characters.
const WIDTH: usize = 80;

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.header(f)?;
        self.curves(f)?;
        self.findings(f)?;
        self.responses(f)
    }
}

impl RunReport {
    fn header(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = &self.record;
        let end = record
            .ended
            .as_deref()
            .map_or_else(|| "not over, or killed".to_owned(), |ended| ended.replace('_', " "));
        writeln!(f, "{}: {end}, {} steps", record.folder.display(), record.steps)?;
        for (name, value) in &record.settings {
            writeln!(f, "  {name:<30}{value}")?;
        }
        Ok(())
    }

    fn curves(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.curves.is_empty() {
            return writeln!(f, "\nno metrics yet");
        }
        writeln!(f, "\n{:<30} {:>8} {:>8}  over the steps", "metric", "first", "last")?;
        for MetricCurve { metric, first, last, sparkline, .. } in &self.curves {
            let metric = metric.replace("training/off_policy/", "");
            writeln!(
                f,
                "{metric:<30} {:>8} {:>8}  {sparkline}",
                format_number(*first),
                format_number(*last)
            )?;
        }
        Ok(())
    }

    fn findings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.findings.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nfindings over the last steps")?;
        for Finding { severity, metric, problem, advice, .. } in &self.findings {
            let mark = match severity {
                Severity::Severe => "!!",
                Severity::Warning => "! ",
                Severity::Note => "- ",
            };
            write_wrapped(f, &format!("{mark} "), &format!("{problem} ({metric})"))?;
            if !advice.is_empty() {
                write_wrapped(f, "   ", advice)?;
            }
        }
        Ok(())
    }

    fn responses(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(step) = self.response_step else { return Ok(()) };
        writeln!(f, "\nresponses of step {step}")?;
        self.responses.iter().try_for_each(|response| write_response(f, response))
    }
}

fn write_response(f: &mut fmt::Formatter<'_>, response: &ShownResponse) -> fmt::Result {
    let ShownResponse { pick, prompt_id, sample, tokens, finish_reason, .. } = response;
    let mut head = format!("\n{pick}: prompt {prompt_id}, sample {sample}");
    match response.score {
        Some(score) => head += &format!(", score {score:.3}"),
        None => head += ", not trained on",
    }
    if let Some(advantage) = response.advantage {
        head += &format!(", advantage {advantage:+.3}");
    }
    writeln!(f, "{head}, {tokens} tokens, {finish_reason}")?;
    let parts = [
        ("prompt", response.prompt.as_deref(), PROMPT_LINES),
        ("expected", response.ground_truth.as_deref(), PROMPT_LINES),
        ("response", Some(response.text.as_str()), RESPONSE_LINES),
        ("components", response.components.as_deref(), PROMPT_LINES),
        ("labels", response.labels.as_deref(), PROMPT_LINES),
        ("reward error", response.reward_error.as_deref(), RESPONSE_LINES),
    ];
    for (name, text, lines) in parts {
        if let Some(text) = text {
            block(f, name, text, lines)?;
        }
    }
    Ok(())
}

/// Writes text after a name. If the text has more than `max` lines, writes only its first and its last lines, `max` in total, and the
/// number of lines that are left out.
fn block(f: &mut fmt::Formatter<'_>, name: &str, text: &str, max: usize) -> fmt::Result {
    let lines: Vec<String> = text.lines().flat_map(break_line).collect();
    let indent = |index: usize| if index == 0 { format!("  {name:<12} ") } else { " ".repeat(15) };
    if lines.len() <= max {
        return lines
            .iter()
            .enumerate()
            .try_for_each(|(index, line)| writeln!(f, "{}{line}", indent(index)));
    }
    // The end of a response has its answer, so more of it is shown.
    let (head, tail) = (max / 3, max - max / 3);
    for (index, line) in lines[..head].iter().enumerate() {
        writeln!(f, "{}{line}", indent(index))?;
    }
    writeln!(f, "{}[{} more lines]", indent(head.max(1)), lines.len() - max)?;
    lines[lines.len() - tail..].iter().try_for_each(|line| writeln!(f, "{}{line}", indent(1)))
}

/// Breaks a line into pieces of at most the width of a block.
fn break_line(line: &str) -> Vec<String> {
    let characters: Vec<char> = line.chars().collect();
    if characters.is_empty() {
        return vec![String::new()];
    }
    characters.chunks(WIDTH - 15).map(|piece| piece.iter().collect()).collect()
}

/// Writes words in lines of at most [`WIDTH`] characters. The first line begins with `mark`.
fn write_wrapped(f: &mut fmt::Formatter<'_>, mark: &str, words: &str) -> fmt::Result {
    let mut text = mark.to_owned();
    wrap(&mut text, words, 3, Some(WIDTH));
    f.write_str(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Block<'a>(&'a str, usize);

    impl fmt::Display for Block<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            block(f, "response", self.0, self.1)
        }
    }

    #[test]
    fn long_text_keeps_its_beginning_and_more_of_its_end() {
        let text = (1..=10).map(|line| line.to_string()).collect::<Vec<_>>().join("\n");
        let shown = Block(&text, 6).to_string();
        let words: Vec<_> = shown.split_whitespace().collect();
        assert_eq!(words, ["response", "1", "2", "[4", "more", "lines]", "7", "8", "9", "10"]);
        assert!(Block(&"x".repeat(500), 20).to_string().lines().all(|line| line.len() <= WIDTH));
    }
}
