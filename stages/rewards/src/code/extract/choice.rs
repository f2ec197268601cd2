//! Selection of the pieces of a response that make up its program.

use std::collections::{BTreeMap, BTreeSet};

use super::super::python::{Binding, Outline};
use super::Wanted;

/// The number of pieces whose dependencies are followed when looking for a program that reads its input. The bound keeps extraction linear
/// in the number of pieces.
const MAX_TRIED: usize = 8;

/// The rank of a piece by its surroundings in the response: from the least to the most likely to be the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// A piece in a fence that names a language that is not configured.
    Foreign,
    /// A piece outside of fences.
    Prose,
    /// A piece in a fence that names no language.
    Unnamed,
    /// A piece in a fence that names a configured language.
    Named,
}

/// A piece of a response that may be code.
pub(super) struct Piece<'a> {
    rank: Rank,
    code: &'a str,
    outline: Outline<'a>,
    /// `true` if the response has fences in languages that are not configured. Text outside of fences is then probably not Python.
    has_foreign: bool,
}

impl<'a> Piece<'a> {
    pub(super) fn new(rank: Rank, code: &'a str, has_foreign: bool) -> Self {
        Self { rank, code, outline: Outline::of(code), has_foreign }
    }

    /// Returns `true` if the piece may be the program even though it defines none of the wanted names.
    fn may_be_all(&self) -> bool {
        match self.rank {
            Rank::Foreign => false,
            Rank::Prose => self.outline.is_code() && !self.has_foreign,
            Rank::Unnamed => self.outline.is_code(),
            Rank::Named => true,
        }
    }
}

/// Returns the program that the pieces make up, or `None` if none of them may be a program.
///
/// The main piece is chosen first. For tests that use names, it is the best piece that defines one of them. If there is none and the prompt
/// has the beginning of the function, it is the best piece that is the body of a function. For a program to run, it is the best piece that
/// reads its input and does more than define names. Otherwise, the main piece is the best one that may be a program at all. The best piece
/// is the last one of the highest rank, since a correction follows its draft. For definitions, the kind counts before the rank: a function
/// or class, then a value, a stub, an import.
///
/// The pieces that define the names that the main piece uses, and the other wanted names, are then added. Nothing is added to the body of a
/// function.
pub(super) fn choose(pieces: &[Piece<'_>], wanted: &Wanted) -> Option<String> {
    let found = match wanted {
        Wanted::Names { names, or_body } => {
            let body = || {
                last_of_highest_rank(pieces, |piece| {
                    *or_body && piece.may_be_all() && piece.outline.is_body
                })
            };
            best_definition(pieces, names).or_else(body)
        }
        Wanted::Program => program(pieces),
    };
    let chosen = found.or_else(|| last_of_highest_rank(pieces, |piece| piece.may_be_all()))?;
    if pieces[chosen].outline.is_body {
        // The prompt contains the rest of the function; other pieces cannot be placed next to a body.
        return Some(pieces[chosen].code.to_owned());
    }
    Some(Completion::of(pieces, wanted).complete(chosen))
}

/// Returns the index of the last piece with the highest rank among those for which `fits` returns `true`.
fn last_of_highest_rank(pieces: &[Piece<'_>], fits: impl Fn(&Piece<'_>) -> bool) -> Option<usize> {
    let fitting = pieces.iter().enumerate().filter(|(_, piece)| fits(piece));
    fitting.max_by_key(|(_, piece)| piece.rank).map(|(number, _)| number)
}

/// Returns the index of the best piece that defines a wanted name, or `None` if no piece does. A function or class is preferred to a value,
/// a value to a stub, and a stub to an import.
fn best_definition(pieces: &[Piece<'_>], names: &BTreeSet<String>) -> Option<usize> {
    let by = |binding: Binding| {
        let defines = |piece: &Piece<'_>| {
            names.iter().any(|name| piece.outline.module.get(name.as_str()) == Some(&binding))
        };
        last_of_highest_rank(pieces, defines)
    };
    let order = [Binding::Definition, Binding::Value, Binding::Stub, Binding::Import];
    order.into_iter().find_map(by)
}

/// Returns the index of the piece that is a program; `None` if no piece acts, that is, does more than define names. A piece that acts and
/// reads its input is preferred; then one that acts and uses functions of other pieces that read the input; then any that acts.
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
        acting.into_iter().rev().take(MAX_TRIED).find(reads)
    };
    last_of_highest_rank(pieces, |piece| acts(piece) && piece.outline.reads)
        .or_else(reads_by_others)
        .or_else(|| last_of_highest_rank(pieces, acts))
}

/// Resolves the names that pieces use to the pieces that define them.
struct Completion<'a> {
    pieces: &'a [Piece<'a>],
    /// The pieces that bind each name, in the order of the response, without those of [`Rank::Foreign`].
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

    /// Returns the code of a piece and of those that it needs, in the order of the response.
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

    /// Returns the indices of the piece `chosen` and of the pieces that define the names which it uses or which the tests require,
    /// transitively.
    ///
    /// This is a depth-first search over unresolved names. Each name is resolved as seen from `chosen`. `bound` has the names that the
    /// pieces found so far define. They are not looked up, so that each name is resolved by one piece.
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
                next = (!bound.contains(name)).then(|| self.defining_piece(name, chosen)).flatten();
            }
        }
        needed
    }

    /// Returns the index of the piece that defines a name for the piece `user`. This is the nearest piece before it that binds the name, or
    /// else the first piece after it that imports the name or defines it as a function or class.
    fn defining_piece(&self, name: &str, user: usize) -> Option<usize> {
        let binders = self.binders.get(name)?;
        let before = binders.iter().rev().find(|number| **number < user);
        let is_strong = |number: &&usize| {
            **number > user && self.pieces[**number].outline.module[name] > Binding::Value
        };
        before.or_else(|| binders.iter().find(is_strong)).copied()
    }
}
