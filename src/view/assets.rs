//! The files of the page, which are part of the program.

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// The page, its style, and its modules: path, content type and text. uPlot 1.6.32 is under the MIT licence, which is next to it.
const FILES: [(&str, &str, &str); 15] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/style.css", CSS, include_str!("page/style.css")),
    ("/vendor/uPlot.min.css", CSS, include_str!("page/vendor/uPlot.min.css")),
    ("/vendor/uPlot.iife.min.js", SCRIPT, include_str!("page/vendor/uPlot.iife.min.js")),
    ("/app.js", SCRIPT, include_str!("page/app.js")),
    ("/charts.js", SCRIPT, include_str!("page/charts.js")),
    ("/curves.js", SCRIPT, include_str!("page/curves.js")),
    ("/dom.js", SCRIPT, include_str!("page/dom.js")),
    ("/gantt.js", SCRIPT, include_str!("page/gantt.js")),
    ("/group.js", SCRIPT, include_str!("page/group.js")),
    ("/lengths.js", SCRIPT, include_str!("page/lengths.js")),
    ("/prompts.js", SCRIPT, include_str!("page/prompts.js")),
    ("/round.js", SCRIPT, include_str!("page/round.js")),
    ("/runs.js", SCRIPT, include_str!("page/runs.js")),
    ("/tokens.js", SCRIPT, include_str!("page/tokens.js")),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Adds the files of the page to a router.
pub(super) fn with_files<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    FILES.into_iter().fold(router, |router, (path, kind, text)| {
        router.route(path, get(move || async move { file(kind, text) }))
    })
}

fn file(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_import_existing_files() {
        for (path, kind, text) in FILES.into_iter().filter(|(path, ..)| !path.contains("vendor")) {
            let named =
                text.lines().filter_map(|line| line.split_once("from \"./")?.1.split_once('"'));
            for (name, _) in named {
                assert!(
                    FILES.iter().any(|(other, ..)| other.strip_prefix('/') == Some(name)),
                    "{path}: {name}"
                );
            }
            assert!(
                kind != SCRIPT || !text.contains("innerHTML"),
                "{path}: text of a model must not become HTML"
            );
            assert!(
                !text.contains("http://") && !text.contains("https://"),
                "{path} must not use the network"
            );
        }
    }
}
