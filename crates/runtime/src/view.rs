//! Views: types that borrow a base, dereference to it, and have the methods of one subject.
//!
//! So the methods of a large type are in several types, and all share one state.

/// Declares a view of a type, and the accessor of the base that returns it.
#[macro_export]
macro_rules! view {
    (
        $(#[$doc:meta])*
        $vis:vis struct $view:ident of $base:ident;
        $(#[$accessor_doc:meta])*
        fn $accessor:ident;
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        $vis struct $view<'a>(pub(crate) &'a $base);

        impl std::ops::Deref for $view<'_> {
            type Target = $base;

            fn deref(&self) -> &$base {
                self.0
            }
        }

        impl $base {
            $(#[$accessor_doc])*
            #[must_use]
            $vis fn $accessor(&self) -> $view<'_> {
                $view(self)
            }
        }
    };
}
