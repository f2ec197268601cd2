//! Units of measure, which are ignored in comparisons unless both answers have units and have none in common.

use std::collections::BTreeSet;

/// Returns `true` if a lower-case word is a unit, in singular or plural.
pub(super) fn is_unit(word: &str) -> bool {
    let singular = word.strip_suffix('s').unwrap_or(word);
    let stem = word.strip_suffix("es").unwrap_or(word);
    [word, singular, stem].iter().any(|form| WORDS.contains(form))
}

/// Returns `true` if a letter may be a unit. The caller checks that it follows a value.
pub(super) fn is_letter_unit(letter: &str) -> bool {
    ["m", "g", "s", "h", "l", "L", "N", "J", "W", "V", "C", "F", "K"].contains(&letter)
}

/// Returns the units and directions after the first digit of an answer, each by one name: `centimeter` for `5 cm`, `5\text{ centimeters}`
/// and `5 cm^2`. If the answer has a digit, `\$` anywhere in it is the unit `dollar`. Units that are often left out or have many forms,
/// such as counted things and degrees, are not included.
pub(super) fn distinct(text: &str) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    let Some(number) = text.find(|c: char| c.is_ascii_digit()) else { return found };
    let after_number = &text[number..];
    if text.contains("\\$") {
        found.insert("dollar");
    }
    let mut rest = after_number;
    while let Some(begin) = rest.find(|c: char| c.is_ascii_alphabetic()) {
        let before = &rest[..begin];
        let word_end = rest[begin..].find(|c: char| !c.is_ascii_alphabetic());
        let end = word_end.map_or(rest.len(), |end| begin + end);
        let word = &rest[begin..end];
        let after = &rest[end..];
        // A letter is a unit in a text command, or at the end after a blank. Otherwise it is a variable.
        let in_text =
            rest[..begin].trim_end().ends_with('{') && after.trim_start().starts_with('}');
        let at_end = before.ends_with(' ') && after.trim().is_empty();
        let is_command = before.ends_with('\\');
        if !is_command && (word.len() > 2 || in_text || at_end) {
            found.extend(name(word));
        }
        rest = after;
    }
    found
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

/// Abbreviations of units, and their names.
const ABBREVIATIONS: &[(&str, &str)] = &[
    ("mm", "millimeter"),
    ("cm", "centimeter"),
    ("dm", "decimeter"),
    ("m", "meter"),
    ("km", "kilometer"),
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
    ("J", "joule"),
    ("W", "watt"),
    ("V", "volt"),
    ("N", "newton"),
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
    "joule",
    "watt",
    "volt",
    "newton",
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
