//! Units of measure, which are ignored in comparisons unless both answers have units and have none in common.

use std::collections::BTreeSet;

use super::token::MAX_CHARACTERS;

/// Returns `true` if a lower-case word is a unit, in singular or plural.
pub(super) fn is_unit(word: &str) -> bool {
    let singular = word.strip_suffix('s').unwrap_or(word);
    let stem = word.strip_suffix("es").unwrap_or(word);
    [word, singular, stem].iter().any(|form| WORDS.contains(form))
}

/// Returns `true` if a letter, or an abbreviation whose case matters, may be a unit. The caller checks that it follows a value.
pub(super) fn is_letter_unit(letter: &str) -> bool {
    const LETTERS: [&str; 13] = ["m", "g", "s", "h", "l", "L", "N", "J", "W", "V", "C", "F", "K"];
    const SEVERAL: [&str; 11] =
        ["Pa", "kPa", "MPa", "kW", "MW", "kWh", "kJ", "kN", "mA", "mV", "nm"];
    LETTERS.contains(&letter) || SEVERAL.contains(&letter)
}

/// Returns `true` for a text that consists of units only, such as `kg`, `m/s` and `m \cdot s^{-2}`.
pub(super) fn are_units(text: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_ascii_alphabetic());
    let is_unit = |word: &str| {
        ["", "cdot", "per"].contains(&word)
            || name(word).is_some()
            || is_unit(&word.to_ascii_lowercase())
    };
    text.trim_start().starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/·*^-{} \\".contains(c))
        && words.all(is_unit)
}

/// Returns the units and directions after the first digit of an answer, each by one name: `centimeter` for `5 cm`, `5\text{ centimeters}`
/// and `5 cm^2`. If the answer has a digit, `\$`, `€`, `£`, `¥` and `₹` anywhere in it are units. Units that are often left out or
/// have many forms, such as counted things and degrees of angles, are not included. Returns no units for a text of more than
/// [`MAX_CHARACTERS`] bytes, which is no answer.
pub(super) fn distinct(text: &str) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    let Some(number) = text.find(|c: char| c.is_ascii_digit()) else { return found };
    if text.len() > MAX_CHARACTERS {
        return found;
    }
    let units_at_end = units_at_end(text);
    found.extend(CURRENCIES.iter().filter(|(sign, _)| text.contains(sign)).map(|(_, name)| *name));
    let mut at = number;
    while let Some(begin) = text[at..].find(|c: char| c.is_ascii_alphabetic()) {
        let begin = at + begin;
        let word_end = text[begin..].find(|c: char| !c.is_ascii_alphabetic());
        let end = word_end.map_or(text.len(), |end| begin + end);
        let (before, word) = (&text[..begin], &text[begin..end]);
        // Letters are a unit in a text command, or at the end after a blank. Otherwise they are variables.
        if !before.ends_with('\\') {
            found.extend(scale(before, word));
            if word.len() > 2 || is_in_braces(text, begin, end) || begin >= units_at_end {
                // Elsewhere, `A` may be a choice.
                found.extend(if word == "A" { Some("ampere") } else { name(word) });
            }
        }
        at = end;
    }
    found
}

/// Returns `true` if two sets of units have none in common, and neither is a derived unit, such as newton, that the other may spell out in
/// base units.
pub(super) fn differ(one: &BTreeSet<&str>, other: &BTreeSet<&str>) -> bool {
    const DERIVED: [&str; 13] = [
        "joule",
        "newton",
        "volt",
        "watt",
        "pascal",
        "kilojoule",
        "kilonewton",
        "kilowatt",
        "kilowatthour",
        "kilopascal",
        "megapascal",
        "megawatt",
        "millivolt",
    ];
    let is_spelled_out = |derived: &BTreeSet<&str>, parts: &BTreeSet<&str>| {
        parts.len() > 1 && DERIVED.iter().any(|unit| derived.contains(unit))
    };
    let is_disjoint = !one.is_empty() && !other.is_empty() && one.is_disjoint(other);
    is_disjoint && !is_spelled_out(one, other) && !is_spelled_out(other, one)
}

/// Returns the scale of a temperature: `celsius` for `C` and `fahrenheit` for `F` after a degree sign, also within a text command.
fn scale(before: &str, letter: &str) -> Option<&'static str> {
    let scale = match letter {
        "C" => "celsius",
        "F" => "fahrenheit",
        _ => return None,
    };
    let mut degrees = before;
    while let Some(shorter) = ["{", "}", " ", "\\,", "\\text", "\\mathrm"]
        .iter()
        .find_map(|markup| degrees.strip_suffix(markup))
    {
        degrees = shorter;
    }
    ["°", "\\circ", "\\degree"].iter().any(|sign| degrees.ends_with(sign)).then_some(scale)
}

/// Returns `true` if a word is the only one in braces, or in a text command with nothing but units.
fn is_in_braces(text: &str, begin: usize, end: usize) -> bool {
    const COMMANDS: [&str; 5] = ["\\text", "\\mathrm", "\\textrm", "\\mbox", "\\operatorname"];
    let Some(open) = text[..begin].rfind('{') else { return false };
    let Some(close) = text[end..].find('}').map(|close| end + close) else { return false };
    let inside = &text[open + 1..close];
    let is_text = COMMANDS.iter().any(|command| text[..open].ends_with(command));
    inside.trim() == &text[begin..end] || (is_text && are_units(inside))
}

/// Returns the start of the units at the end of a text, after a blank; the length of the text if there are none.
fn units_at_end(text: &str) -> usize {
    let blanks = text.trim_end().rmatch_indices(' ').map(|(blank, _)| blank);
    blanks.take_while(|blank| are_units(&text[*blank..])).last().unwrap_or(text.len())
}

/// Returns the name of a unit for its abbreviation, or for its singular or plural in any case.
fn name(word: &str) -> Option<&'static str> {
    let abbreviated = ABBREVIATIONS.iter().find(|(short, _)| *short == word);
    let lower = word.to_ascii_lowercase();
    let spelled = || {
        let spelling = lower.replace("metre", "meter").replace("litre", "liter");
        NAMES.iter().find(|name| {
            spelling == **name
                || spelling.strip_suffix('s') == Some(name)
                || spelling.strip_suffix("es") == Some(name)
        })
    };
    abbreviated.map(|(_, name)| *name).or_else(|| match lower.as_str() {
        "feet" => Some("foot"),
        "pence" | "pennies" | "penny" => Some("cent"),
        _ => spelled().copied(),
    })
}

/// Signs of currencies, and their names.
const CURRENCIES: [(&str, &str); 5] =
    [("\\$", "dollar"), ("€", "euro"), ("£", "pound"), ("¥", "yen"), ("₹", "rupee")];

/// Abbreviations of units, and their names. A speed has the name of its distance.
const ABBREVIATIONS: &[(&str, &str)] = &[
    ("mm", "millimeter"),
    ("cm", "centimeter"),
    ("dm", "decimeter"),
    ("m", "meter"),
    ("km", "kilometer"),
    ("in", "inch"),
    ("ft", "foot"),
    ("yd", "yard"),
    ("mi", "mile"),
    ("ml", "milliliter"),
    ("mL", "milliliter"),
    ("L", "liter"),
    ("mg", "milligram"),
    ("g", "gram"),
    ("kg", "kilogram"),
    ("lb", "pound"),
    ("lbs", "pound"),
    ("oz", "ounce"),
    ("s", "second"),
    ("sec", "second"),
    ("min", "minute"),
    ("h", "hour"),
    ("hr", "hour"),
    ("hrs", "hour"),
    ("yr", "year"),
    ("usd", "dollar"),
    ("USD", "dollar"),
    ("mph", "mile"),
    ("kph", "kilometer"),
    ("kmph", "kilometer"),
    ("J", "joule"),
    ("W", "watt"),
    ("V", "volt"),
    ("N", "newton"),
    ("kJ", "kilojoule"),
    ("kW", "kilowatt"),
    ("MW", "megawatt"),
    ("kWh", "kilowatthour"),
    ("kN", "kilonewton"),
    ("mV", "millivolt"),
    ("mA", "milliampere"),
    ("Pa", "pascal"),
    ("kPa", "kilopascal"),
    ("MPa", "megapascal"),
    ("nm", "nanometer"),
];

/// Names of units and directions that answers are told apart by.
const NAMES: &[&str] = &[
    "millimeter",
    "centimeter",
    "decimeter",
    "meter",
    "kilometer",
    "inch",
    "foot",
    "yard",
    "mile",
    "milliliter",
    "liter",
    "gallon",
    "milligram",
    "gram",
    "kilogram",
    "pound",
    "ounce",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "year",
    "dollar",
    "cent",
    "euro",
    "rupee",
    "joule",
    "watt",
    "volt",
    "newton",
    "kilojoule",
    "kilowatt",
    "megawatt",
    "kilowatthour",
    "kilonewton",
    "millivolt",
    "milliampere",
    "ampere",
    "pascal",
    "kilopascal",
    "megapascal",
    "nanometer",
    "celsius",
    "fahrenheit",
    "north",
    "south",
    "east",
    "west",
];

const WORDS: &[&str] = &[
    // length, area, volume
    "mm",
    "cm",
    "dm",
    "km",
    "meter",
    "metre",
    "centimeter",
    "centimetre",
    "kilometer",
    "kilometre",
    "millimeter",
    "inch",
    "inche",
    "foot",
    "feet",
    "ft",
    "yard",
    "yd",
    "mile",
    "mi",
    "acre",
    "hectare",
    "liter",
    "litre",
    "ml",
    "gallon",
    "gal",
    "quart",
    "pint",
    "cup",
    "square",
    "cubic",
    "sq",
    "cu",
    // mass, time, speed
    "kg",
    "gram",
    "kilogram",
    "mg",
    "gm",
    "ton",
    "tonne",
    "pound",
    "lb",
    "ounce",
    "oz",
    "second",
    "sec",
    "minute",
    "min",
    "hour",
    "hr",
    "day",
    "week",
    "month",
    "year",
    "yr",
    "mph",
    "kmph",
    "kph",
    // physics
    "degree",
    "deg",
    "radian",
    "rad",
    "volt",
    "watt",
    "ohm",
    "joule",
    "newton",
    "hz",
    "mol",
    "celsius",
    "fahrenheit",
    // money
    "dollar",
    "cent",
    "rupee",
    "euro",
    "usd",
    "yuan",
    "buck",
    "penny",
    "pence",
    // counted things
    "unit",
    "point",
    "way",
    "people",
    "person",
    "student",
    "child",
    "children",
    "men",
    "women",
    "man",
    "woman",
    "boy",
    "girl",
    "worker",
    "digit",
    "integer",
    "solution",
    "time",
    "apple",
    "coin",
    "ticket",
    "edge",
    "meal",
    "page",
    "book",
    "step",
    "item",
    "piece",
    "mark",
    "soldier",
    "tile",
    "rounds",
    "side",
    // directions
    "east",
    "west",
    "north",
    "south",
];
