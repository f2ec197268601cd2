//! The template of `rollpacker new`: a crate with a reward, a schedule, a recipe and tests.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// The manifest of the crate, with [placeholders](Source::fill).
const MANIFEST: &str = include_str!("template/Cargo.toml.txt");

/// The files of the crate, with [placeholders](Source::fill).
const FILES: [(&str, &str); 9] = [
    ("Cargo.toml", MANIFEST),
    ("README.md", include_str!("template/README.md.txt")),
    ("recipe.toml", include_str!("template/recipe.toml.txt")),
    ("build.rs", include_str!("template/build.rs.txt")),
    (".gitignore", include_str!("template/gitignore.txt")),
    (".cargo/config.toml", include_str!("template/config.toml.txt")),
    ("src/main.rs", include_str!("template/main.rs.txt")),
    ("src/reward.rs", include_str!("template/reward.rs.txt")),
    ("src/schedule.rs", include_str!("template/schedule.rs.txt")),
];

/// The program that installs libtorch. A crate that depends on a checkout uses the libtorch of the checkout.
const INSTALLER: (&str, &str) = (".cargo/libtorch.py", include_str!("../../.cargo/libtorch.py"));

/// Names that the new crate cannot have, besides its dependencies: the keywords of Rust, and the crates that every crate can name.
#[rustfmt::skip]
const TAKEN: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn", "else", "enum", "extern",
    "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv",
    "pub", "ref", "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield", "Self",
    "alloc", "core", "proc_macro", "std", "test",
];

/// The source of rollpacker, on which the new crate depends.
enum Source {
    /// The folder of a checkout.
    Checkout(PathBuf),
    /// The URL of a git repository.
    Git(String),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NewCrateError {
    #[error(
        "name `{0}`: expected letters, digits, `-` and `_`, with a letter first, as in the name of a crate"
    )]
    Name(String),
    #[error(
        "name `{0}`: expected a name that is no keyword of Rust and no crate of the standard library or of the new crate's dependencies"
    )]
    Taken(String),
    /// The path of the new folder exists already.
    #[error("{}: expected a folder that does not exist; choose another name or remove it", .0.display())]
    Exists(PathBuf),
    /// The source of rollpacker is neither a checkout nor a URL.
    #[error(
        "--rollpacker `{0}`: expected the folder of a checkout of rollpacker, or the URL of its git repository"
    )]
    Source(String),
    /// A file, or the folder for it, cannot be written.
    #[error("cannot write {}: {error}", .path.display())]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
}

/// Creates a crate in the folder `parent/name` and returns the folder. The crate depends on `rollpacker`: the folder of a checkout, or the
/// URL of a git repository.
///
/// # Errors
/// If the name is not a valid name of a crate or is taken, the folder exists, `rollpacker` is neither a checkout nor a URL, or a file
/// cannot be written. In the last case, the folder and the files that were already written remain.
pub(crate) fn create(
    parent: &Path,
    name: &str,
    rollpacker: &str,
) -> Result<PathBuf, NewCrateError> {
    let mut letters = name.chars();
    let is_name = letters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && letters.all(|one| one.is_ascii_alphanumeric() || one == '-' || one == '_');
    if !is_name {
        return Err(NewCrateError::Name(name.to_owned()));
    }
    let source = Source::of(rollpacker)?;
    if is_taken(name, &source.fill(MANIFEST)) {
        return Err(NewCrateError::Taken(name.to_owned()));
    }
    let folder = parent.join(name);
    if folder.symlink_metadata().is_ok() {
        return Err(NewCrateError::Exists(folder));
    }
    for (file, text) in FILES {
        write(&folder.join(file), &source.fill(text).replace("{name}", name))?;
    }
    if let Source::Git(_) = source {
        write(&folder.join(INSTALLER.0), INSTALLER.1)?;
    }
    Ok(folder)
}

/// Returns `true` if a crate with this `manifest` cannot have this name: it is taken, or is the name of a dependency.
fn is_taken(name: &str, manifest: &str) -> bool {
    let manifest: Table = manifest.parse().expect("invariant: the template is valid TOML");
    let sections = ["dependencies", "dev-dependencies"].map(|section| manifest.get(section));
    let dependencies = sections.into_iter().flatten().filter_map(Value::as_table);
    let name = name.replace('-', "_");
    TAKEN.contains(&name.as_str())
        || dependencies.flat_map(Table::keys).any(|key| key.replace('-', "_") == name)
}

impl Source {
    fn of(rollpacker: &str) -> Result<Self, NewCrateError> {
        if rollpacker.contains("://") || rollpacker.starts_with("git@") {
            return Ok(Self::Git(rollpacker.to_owned()));
        }
        let is_rollpacker = |folder: &PathBuf| {
            fs::read_to_string(folder.join("Cargo.toml"))
                .is_ok_and(|text| text.contains("name = \"rollpacker\""))
        };
        let folder = fs::canonicalize(rollpacker).ok().filter(is_rollpacker);
        folder.map(Self::Checkout).ok_or_else(|| NewCrateError::Source(rollpacker.to_owned()))
    }

    /// Replaces the placeholders that depend on the source: `{dependency}`, `{libtorch}` and `{install}`.
    fn fill(&self, text: &str) -> String {
        let (dependency, libtorch, install) = match self {
            Self::Checkout(folder) => (
                format!("{{ path = {} }}", toml_text(folder.display())),
                format!("{{ value = {} }}", toml_text(folder.join(".libtorch").display())),
                format!("make -C {} libtorch", folder.display()),
            ),
            Self::Git(url) => (
                format!("{{ git = {} }}", toml_text(url)),
                "{ value = \".libtorch\", relative = true }".to_owned(),
                format!("python3 {}", INSTALLER.0),
            ),
        };
        text.replace("{dependency}", &dependency)
            .replace("{libtorch}", &libtorch)
            .replace("{install}", &install)
    }
}

fn toml_text(text: impl Display) -> String {
    Value::String(text.to_string()).to_string()
}

fn write(path: &Path, text: &str) -> Result<(), NewCrateError> {
    let failed = |error| NewCrateError::Write { path: path.to_owned(), error };
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    fs::write(path, text).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = env!("CARGO_MANIFEST_DIR");

    #[test]
    fn no_placeholder_is_left() {
        let directory = tempfile::tempdir().expect("a folder");
        let folder = create(directory.path(), "my-crate", HERE).expect("it is created");
        for (file, _) in FILES {
            let text = fs::read_to_string(folder.join(file)).expect("written");
            for placeholder in ["{name}", "{dependency}", "{libtorch}", "{install}"] {
                assert!(!text.contains(placeholder), "{placeholder} in {file}");
            }
        }
        let manifest: Table =
            fs::read_to_string(folder.join("Cargo.toml")).expect("written").parse().expect("TOML");
        assert_eq!(manifest["package"]["name"].as_str(), Some("my-crate"));
        let path = manifest["dependencies"]["rollpacker"]["path"].as_str();
        assert_eq!(path.map(Path::new), fs::canonicalize(HERE).ok().as_deref());
    }

    #[test]
    fn a_url_is_a_git_dependency() {
        let directory = tempfile::tempdir().expect("a folder");
        let folder =
            create(directory.path(), "a", "https://example.com/x.git").expect("it is created");
        let text = fs::read_to_string(folder.join("Cargo.toml")).expect("written");
        assert!(text.contains("rollpacker = { git = \"https://example.com/x.git\" }"), "{text}");
        let config = fs::read_to_string(folder.join(".cargo/config.toml")).expect("written");
        assert!(config.contains("relative = true") && folder.join(INSTALLER.0).exists());
    }

    #[test]
    fn the_names_of_dependencies_are_taken() {
        let manifest = "[dependencies]\nmy-own = \"1\"\n[dev-dependencies]\nother = \"1\"";
        for name in ["my-own", "my_own", "other", "fn"] {
            assert!(is_taken(name, manifest), "{name}");
        }
        assert!(!is_taken("my", manifest));
    }

    #[test]
    fn wrong_names_sources_and_existing_folders_are_refused() {
        let directory = tempfile::tempdir().expect("a folder");
        let refused =
            |name, source| create(directory.path(), name, source).unwrap_err().to_string();
        for name in ["", "1a", "../a", "a b", "ä"] {
            assert!(refused(name, HERE).contains("as in the name of a crate"), "{name}");
        }
        for name in ["fn", "std", "test", "proc-macro", "rollpacker", "serde", "tokio"] {
            assert!(refused(name, HERE).contains("no keyword of Rust"), "{name}");
        }
        assert!(refused("a", "/nowhere").contains("--rollpacker `/nowhere`"));
        assert!(!directory.path().join("a").exists(), "nothing is left behind");
        fs::create_dir(directory.path().join("b")).expect("made");
        assert!(refused("b", HERE).contains("does not exist"));
    }
}
