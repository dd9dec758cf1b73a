// x86-64, System V ABI. The frame that a suspended context leaves on its stack,
// from the stack pointer upwards (context.cc builds the same for a new one):
//
//   0  MXCSR (4 bytes), x87 control word (2 bytes), 2 unused
//   8  r15    16  r14    24  r13    32  r12    40  rbx    48  rbp
//   56 return address
#if defined(__x86_64__)

    .text
    .globl  flare_switch_context
    .type   flare_switch_context, @function
    .p2align 4
flare_switch_context:
    .cfi_startproc
    pushq   %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbp, 0
    pushq   %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbx, 0
    pushq   %r12
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r12, 0
    pushq   %r13
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r13, 0
    pushq   %r14
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r14, 0
    pushq   %r15
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r15, 0
    subq    $8, %rsp
    .cfi_adjust_cfa_offset 8
    stmxcsr (%rsp)
    fnstcw  4(%rsp)
    movl    (%rsp), %eax            // This side's control words ...
    movzwl  4(%rsp), %ecx

    movq    %rsp, (%rdi)
    movq    %rsi, %rsp

    // ... are reloaded only where the other side's differ: storing them is
    // cheap, loading is not. MXCSR's low six bits are flags, not modes.
    xorl    (%rsp), %eax
    testl   $0xffc0, %eax
    jne     2f
1:  cmpw    %cx, 4(%rsp)
    jne     3f
4:  addq    $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq    %r15
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r15
    popq    %r14
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r14
    popq    %r13
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r13
    popq    %r12
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r12
    popq    %rbx
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbx
    popq    %rbp
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbp
    movq    %rdx, %rax              // The value handed over.
    // In place of `ret`, which the processor predicts by its stack of calls,
    // which is another fiber's, and would always be wrong.
    popq    %rcx
    .cfi_adjust_cfa_offset -8
    .cfi_register %rip, %rcx
    jmp     *%rcx
    .cfi_restore %rip
    .cfi_adjust_cfa_offset 64
    .cfi_offset %rip, -8
    .cfi_rel_offset %rbp, 48
    .cfi_rel_offset %rbx, 40
    .cfi_rel_offset %r12, 32
    .cfi_rel_offset %r13, 24
    .cfi_rel_offset %r14, 16
    .cfi_rel_offset %r15, 8
2:  ldmxcsr (%rsp)
    jmp     1b
3:  fldcw   4(%rsp)
    jmp     4b
    .cfi_endproc
    .size   flare_switch_context, . - flare_switch_context

// First activation: r12 holds the function, r13 its argument. Marks the end of
// the call chain for unwinders.
    .globl  flare_context_entry
    .type   flare_context_entry, @function
    .p2align 4
flare_context_entry:
    .cfi_startproc
    .cfi_undefined %rip
    xorl    %ebp, %ebp
    movq    %r13, %rdi
    movq    %rax, %rsi
    callq   *%r12
    ud2
    .cfi_endproc
    .size   flare_context_entry, . - flare_context_entry

#endif

    .section .note.GNU-stack, "", %progbits
