//! How the structs of the ABI are declared, each with the layout that the tests compare.

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
