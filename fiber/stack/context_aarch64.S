// AArch64, AAPCS64. The frame that a suspended context leaves on its stack,
// from the stack pointer upwards (context.cc builds the same for a new one):
//
//     0 x29 x30    16 x19 x20    32 x21 x22    48 x23 x24    64 x25 x26
//    80 x27 x28    96 d8 d9     112 d10 d11   128 d12 d13   144 d14 d15
//   160 FPCR, 8 unused
//
// FPSR holds flags only, x18 belongs to the platform, and of v8 to v15 the ABI
// preserves the low halves: none of these is kept. Return addresses that
// callers have signed (-mbranch-protection=pac-ret) lie in the callers' own
// frames and are authenticated there, with the stack pointer they were signed
// with. Branch target identification would not work: the `br` below goes to a
// place after a call. This file therefore carries no property note, and a
// linker leaves BTI off for a program that has it in.
#if defined(__aarch64__)

    .text
    .globl  flare_switch_context
    .type   flare_switch_context, %function
    .p2align 4
flare_switch_context:
    .cfi_startproc
    sub     sp, sp, #176
    .cfi_def_cfa_offset 176
    stp     x29, x30, [sp, #0]
    .cfi_offset x29, -176
    .cfi_offset x30, -168
    stp     x19, x20, [sp, #16]
    .cfi_offset x19, -160
    .cfi_offset x20, -152
    stp     x21, x22, [sp, #32]
    .cfi_offset x21, -144
    .cfi_offset x22, -136
    stp     x23, x24, [sp, #48]
    .cfi_offset x23, -128
    .cfi_offset x24, -120
    stp     x25, x26, [sp, #64]
    .cfi_offset x25, -112
    .cfi_offset x26, -104
    stp     x27, x28, [sp, #80]
    .cfi_offset x27, -96
    .cfi_offset x28, -88
    stp     d8, d9, [sp, #96]
    stp     d10, d11, [sp, #112]
    stp     d12, d13, [sp, #128]
    stp     d14, d15, [sp, #144]
    mrs     x9, fpcr
    str     x9, [sp, #160]

    mov     x10, sp
    str     x10, [x0]
    mov     sp, x1

    ldr     x11, [sp, #160]
    cmp     x9, x11
    b.eq    1f
    msr     fpcr, x11
1:  ldp     d14, d15, [sp, #144]
    ldp     d12, d13, [sp, #128]
    ldp     d10, d11, [sp, #112]
    ldp     d8, d9, [sp, #96]
    ldp     x27, x28, [sp, #80]
    ldp     x25, x26, [sp, #64]
    ldp     x23, x24, [sp, #48]
    ldp     x21, x22, [sp, #32]
    ldp     x19, x20, [sp, #16]
    ldp     x29, x30, [sp, #0]
    .cfi_restore x19
    .cfi_restore x20
    .cfi_restore x21
    .cfi_restore x22
    .cfi_restore x23
    .cfi_restore x24
    .cfi_restore x25
    .cfi_restore x26
    .cfi_restore x27
    .cfi_restore x28
    .cfi_restore x29
    .cfi_restore x30
    add     sp, sp, #176
    .cfi_def_cfa_offset 0
    mov     x0, x2                  // The value handed over.
    // In place of `ret`, which the processor predicts by its stack of calls,
    // which is another fiber's, and would always be wrong.
    br      x30
    .cfi_endproc
    .size   flare_switch_context, . - flare_switch_context

// First activation: x19 holds the function, x20 its argument. Marks the end of
// the call chain for unwinders.
    .globl  flare_context_entry
    .type   flare_context_entry, %function
    .p2align 4
flare_context_entry:
    .cfi_startproc
    .cfi_undefined x30
    mov     x29, #0
    mov     x30, #0
    mov     x1, x0
    mov     x0, x20
    blr     x19
    brk     #1
    .cfi_endproc
    .size   flare_context_entry, . - flare_context_entry

#endif

    .section .note.GNU-stack, "", %progbits
