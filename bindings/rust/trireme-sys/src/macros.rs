//! How the generated modules declare handles, constants and structs, and what tests compare of them.

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        ///
        /// Opaque: the library alone makes it. Its address is a token that no code follows.
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _data: [u8; 0],
            _marker: core::marker::PhantomData<(*mut u8, core::marker::PhantomPinned)>,
        }
    )*};
}

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $kind:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $kind = $value;)*
        /// Every constant of this header by name.
        #[doc(hidden)]
        pub const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $($(#[$field_doc])* pub $field: $kind,)* })*

        /// The layout as lines "struct NAME size N" and "field NAME.FIELD offset O size S", given
        /// to `line` part by part: name, field or "", offset, size.
        #[doc(hidden)]
        pub fn layout(line: &mut dyn FnMut(&str, &str, usize, usize)) {
            $(line(stringify!($name), "", 0, core::mem::size_of::<$name>());
            $({
                let place = core::mem::MaybeUninit::<$name>::uninit();
                // SAFETY: the address of a field within memory of the struct; nothing is read.
                let field = unsafe { core::ptr::addr_of!((*place.as_ptr()).$field) } as usize;
                line(stringify!($name), stringify!($field), field - place.as_ptr() as usize,
                     core::mem::size_of::<$kind>());
            })*)*
        }
    };
}

macro_rules! inits {
    ($($name:ident)*) => {$(
        impl $name {
            /// The value of the header's `_INIT` macro: the size is set, all else is 0.
            pub const fn init() -> Self {
                // SAFETY: numbers, arrays of numbers, pointers and optional functions; all of them
                // may be 0.
                let zeros = [0_u8; core::mem::size_of::<Self>()];
                let mut value: Self = unsafe { core::mem::transmute(zeros) };
                value.struct_size = core::mem::size_of::<Self>() as u32;
                value
            }
        }
    )*};
}

macro_rules! kinds {
    ($($name:ident: $options:ident = $kind:ident;)*) => {$(
        /// The value of the macro of this name: size and kind are set, all else is 0.
        pub const $name: $options = {
            let size = core::mem::size_of::<$options>();
            // SAFETY: as `init` of other structs.
            let mut value: $options =
                unsafe { core::mem::transmute([0_u8; core::mem::size_of::<$options>()]) };
            value.base.struct_size = size as u32;
            value.base.kind = $kind;
            value
        };
    )*};
}
