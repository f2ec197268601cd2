//! The declaration of the sections of recipes and simulated jobs.

/// Declares a section: a struct with its documented keys and their defaults. A unit may follow a type, in brackets.
///
/// `=> resumable` after a default declares that a run may be resumed with another value of the key or, for a section, of any key in it.
/// Such a key affects the duration, the location or the reports of a run, but not what the run computes. `(recipe)` before a key restricts
/// its field to the module `crate::recipe`; other code uses the resolved value in `Recipe`.
macro_rules! section {
    (@key resumable $field:ident) => { stringify!($field) };
    ($(#[$meta:meta])* $name:ident {
        $($(#[$($attribute:tt)*])* $(($scope:ident))? $field:ident: $type:ty $([$($unit:tt)+])? = $default:expr $(=> $mark:ident)?,)*
    }) => {
        rollpacker_stages::documented! {
            $(#[$meta])*
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            #[serde(deny_unknown_fields, default)]
            pub struct $name { $($(#[$($attribute)*])* pub $((in crate::$scope))? $field: $type $([$($unit)+])?,)* }
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::recipe::keys::ResumableKeys for $name {
            const RESUMABLE: &'static [&'static str] =
                &[$($($crate::recipe::section::section!(@key $mark $field),)?)*];
        }
    };
}

pub(crate) use section;
