//! Units of measure that answers bear and that change nothing about them.

/// Whether a lower-case word is a unit, singular or plural.
pub(super) fn is_unit(word: &str) -> bool {
    let singular = word.strip_suffix('s').unwrap_or(word);
    let stem = word.strip_suffix("es").unwrap_or(word);
    [word, singular, stem].iter().any(|form| WORDS.contains(form))
}

/// Whether a letter is a unit where it follows a number and a blank.
pub(super) fn is_letter_unit(letter: &str) -> bool {
    ["m", "g", "s", "h", "l", "L", "N", "J", "W", "V", "C", "F", "K"].contains(&letter)
}

const WORDS: &[&str] = &[
    // length, area, volume
    "mm", "cm", "dm", "km", "meter", "metre", "centimeter", "centimetre", "kilometer", "kilometre",
    "millimeter", "inch", "inche", "foot", "feet", "ft", "yard", "yd", "mile", "mi", "acre", "hectare", "liter",
    "litre", "ml", "gallon", "gal", "quart", "pint", "cup", "square", "cubic", "sq", "cu",
    // mass, time, speed
    "kg", "gram", "kilogram", "mg", "gm", "ton", "tonne", "pound", "lb", "ounce", "oz", "second", "sec", "minute",
    "min", "hour", "hr", "day", "week", "month", "year", "yr", "mph", "kmph", "kph",
    // physics
    "degree", "deg", "radian", "rad", "volt", "watt", "ohm", "joule", "newton", "hz", "mol", "celsius", "fahrenheit",
    // money
    "dollar", "cent", "rupee", "euro", "usd", "yuan", "buck", "penny", "pence",
    // what is counted
    "unit", "point", "way", "people", "person", "student", "child", "children", "men", "women", "man", "woman",
    "boy", "girl", "worker", "digit", "integer", "solution", "time", "apple", "coin", "ticket", "edge", "meal",
    "page", "book", "step", "item", "piece", "mark", "soldier", "tile", "rounds", "side",
    // directions
    "east", "west", "north", "south",
];
