//! Closed lists of names: enums for labels of metrics, members of errors and rows of documents.

/// Declares an enum with one name for each variant, `ALL` in the order of declaration, and `as_str`.
#[macro_export]
macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $variant:ident = $label:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$note])* $variant,)+
        }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant,)+];

            /// Returns the name that metrics, errors and documents use.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $label,)+
                }
            }
        }
    };
}
