//! Which pieces of a response make up its program.

use std::collections::{BTreeMap, BTreeSet};

use super::super::python::{Binding, Outline};
use super::Wanted;

/// How many pieces are tried for what they need of others, so that a response of very many is read in linear time.
const MOST_TRIED: usize = 8;

/// Where a piece stands, the most trusted last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// In a fence that names another language.
    Foreign,
    /// Outside of fences.
    Prose,
    /// In a fence that names no language.
    Unnamed,
    /// In a fence that names the language.
    Named,
}

/// A piece of a response that may be code.
pub(super) struct Piece<'a> {
    rank: Rank,
    code: &'a str,
    outline: Outline<'a>,
    /// Whether other languages are there, so that what is outside of fences is about them.
    has_foreign: bool,
}

impl<'a> Piece<'a> {
    pub(super) fn new(rank: Rank, code: &'a str, has_foreign: bool) -> Self {
        Self { rank, code, outline: Outline::of(code), has_foreign }
    }

    /// Whether it may be the program though it defines nothing that is wanted.
    fn may_be_all(&self) -> bool {
        match self.rank {
            Rank::Foreign => false,
            Rank::Prose => self.outline.is_code() && !self.has_foreign,
            Rank::Unnamed => self.outline.is_code(),
            Rank::Named => true,
        }
    }
}

/// The program of the pieces; `None` if none of them may be one.
pub(super) fn choose(pieces: &[Piece<'_>], wanted: &Wanted) -> Option<String> {
    let found = match wanted {
        Wanted::Names { names, or_body } => {
            let body =
                || best(pieces, |piece| *or_body && piece.may_be_all() && piece.outline.is_body);
            definer(pieces, names).or_else(body)
        }
        Wanted::Program => program(pieces),
    };
    let chosen = found.or_else(|| best(pieces, |piece| piece.may_be_all()))?;
    if pieces[chosen].outline.is_body {
        // What it lacks is in the prompt; nothing can stand beside it.
        return Some(pieces[chosen].code.to_owned());
    }
    Some(Completion::of(pieces, wanted).complete(chosen))
}

/// The last of the pieces of the highest rank for which `fits` holds.
fn best(pieces: &[Piece<'_>], fits: impl Fn(&Piece<'_>) -> bool) -> Option<usize> {
    let fitting = pieces.iter().enumerate().filter(|(_, piece)| fits(piece));
    fitting.max_by_key(|(_, piece)| piece.rank).map(|(number, _)| number)
}

/// The piece that defines a wanted name: by a function or class, or else by less.
fn definer(pieces: &[Piece<'_>], names: &BTreeSet<String>) -> Option<usize> {
    let by = |binding: Binding| {
        let defines = |piece: &Piece<'_>| {
            names.iter().any(|name| piece.outline.module.get(name.as_str()) == Some(&binding))
        };
        best(pieces, defines)
    };
    let order = [Binding::Definition, Binding::Value, Binding::Stub, Binding::Import];
    order.into_iter().find_map(by)
}

/// The piece that is a program: one that acts, and reads its input, itself or by functions of other pieces, if any does.
fn program(pieces: &[Piece<'_>]) -> Option<usize> {
    let acts = |piece: &Piece<'_>| piece.may_be_all() && piece.outline.acts;
    let reads_by_others = || {
        let completion = Completion::of(pieces, &Wanted::Program);
        let reads = |number: &usize| {
            completion.needed(*number).into_iter().any(|number| pieces[number].outline.reads)
        };
        let mut acting: Vec<_> =
            (0..pieces.len()).filter(|number| acts(&pieces[*number])).collect();
        acting.sort_by_key(|number| (pieces[*number].rank, *number));
        acting.into_iter().rev().take(MOST_TRIED).find(reads)
    };
    best(pieces, |piece| acts(piece) && piece.outline.reads)
        .or_else(reads_by_others)
        .or_else(|| best(pieces, acts))
}

/// What defines the names that pieces use.
struct Completion<'a> {
    pieces: &'a [Piece<'a>],
    /// The pieces that bind a name, in order.
    binders: BTreeMap<&'a str, Vec<usize>>,
    wanted: BTreeSet<&'a str>,
}

impl<'a> Completion<'a> {
    fn of(pieces: &'a [Piece<'a>], wanted: &'a Wanted) -> Self {
        let mut binders: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (number, piece) in
            pieces.iter().enumerate().filter(|(_, piece)| piece.rank > Rank::Foreign)
        {
            for name in piece.outline.module.keys() {
                binders.entry(name).or_default().push(number);
            }
        }
        let wanted = match wanted {
            Wanted::Names { names, .. } => names.iter().map(String::as_str).collect(),
            Wanted::Program => BTreeSet::new(),
        };
        Self { pieces, binders, wanted }
    }

    /// The code of a piece and of those that it needs, in the order of the response.
    fn complete(&self, chosen: usize) -> String {
        let mut code = String::new();
        for number in self.needed(chosen) {
            if !code.is_empty() && !code.ends_with('\n') {
                code.push('\n');
            }
            code.push_str(self.pieces[number].code);
        }
        code
    }

    /// A piece, and those that define what it lacks.
    fn needed(&self, chosen: usize) -> BTreeSet<usize> {
        let mut needed = BTreeSet::new();
        let mut bound: BTreeSet<&str> = BTreeSet::new();
        let mut lacking: Vec<&str> = self.wanted.iter().copied().collect();
        let mut next = Some(chosen);
        while let Some(number) = next.take() {
            let outline = &self.pieces[number].outline;
            if needed.insert(number) {
                bound.extend(outline.module.keys());
                lacking.extend(&outline.free);
            }
            while next.is_none() {
                let Some(name) = lacking.pop() else { break };
                next = (!bound.contains(name)).then(|| self.binder(name, chosen)).flatten();
            }
        }
        needed
    }

    /// The piece that defines a name for another: the nearest before it, or else the first after it that does so by more than a value.
    fn binder(&self, name: &str, user: usize) -> Option<usize> {
        let binders = self.binders.get(name)?;
        let before = binders.iter().rev().find(|number| **number < user);
        let is_strong = |number: &&usize| {
            **number > user && self.pieces[**number].outline.module[name] > Binding::Value
        };
        before.or_else(|| binders.iter().find(is_strong)).copied()
    }
}
