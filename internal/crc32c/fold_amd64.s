#include "textflag.h"

// func fold(reg uint32, p []byte, k *foldKeys) uint32
TEXT ·fold(SB), NOSPLIT, $0-44
	MOVL reg+0(FP), AX
	MOVQ p_base+8(FP), SI
	MOVQ p_len+16(FP), CX
	MOVQ k+32(FP), DX

	// The first 256 bytes, the register added to the front.
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVD     AX, X4
	VPXORQ    Z4, Z0, Z0
	ADDQ      $256, SI
	SUBQ      $256, CX

	VBROADCASTI32X4 (DX), Z16

block:
	// Each line, moved 2048 bits on, meets the one there.
	VPCLMULQDQ $0x00, Z16, Z0, Z4
	VPCLMULQDQ $0x11, Z16, Z0, Z0
	VPCLMULQDQ $0x00, Z16, Z1, Z5
	VPCLMULQDQ $0x11, Z16, Z1, Z1
	VPCLMULQDQ $0x00, Z16, Z2, Z6
	VPCLMULQDQ $0x11, Z16, Z2, Z2
	VPCLMULQDQ $0x00, Z16, Z3, Z7
	VPCLMULQDQ $0x11, Z16, Z3, Z3
	VPTERNLOGQ $0x96, (SI), Z4, Z0
	VPTERNLOGQ $0x96, 64(SI), Z5, Z1
	VPTERNLOGQ $0x96, 128(SI), Z6, Z2
	VPTERNLOGQ $0x96, 192(SI), Z7, Z3
	ADDQ       $256, SI
	SUBQ       $256, CX
	JNZ        block

	// Four lines to one.
	VBROADCASTI32X4 16(DX), Z16
	VPCLMULQDQ      $0x00, Z16, Z0, Z4
	VPCLMULQDQ      $0x11, Z16, Z0, Z0
	VPTERNLOGQ      $0x96, Z4, Z0, Z1
	VPCLMULQDQ      $0x00, Z16, Z1, Z4
	VPCLMULQDQ      $0x11, Z16, Z1, Z1
	VPTERNLOGQ      $0x96, Z4, Z1, Z2
	VPCLMULQDQ      $0x00, Z16, Z2, Z4
	VPCLMULQDQ      $0x11, Z16, Z2, Z2
	VPTERNLOGQ      $0x96, Z4, Z2, Z3

	// Four lanes to one: the keys of the last lane are 0, it is added as it is.
	VMOVDQU64     32(DX), Z16
	VPCLMULQDQ    $0x00, Z16, Z3, Z4
	VPCLMULQDQ    $0x11, Z16, Z3, Z5
	VPXORQ        Z5, Z4, Z4
	VEXTRACTI64X4 $1, Z4, Y5
	VPXORQ        Z5, Z4, Z4
	VEXTRACTI32X4 $1, Y4, X5
	VEXTRACTI32X4 $3, Z3, X6
	VPXORQ        X5, X4, X4
	VPXORQ        X6, X4, X4

	// What is left is worth as much as the message: the CRC of these 16 bytes.
	VMOVQ   X4, AX
	VPEXTRQ $1, X4, BX
	XORL    R8, R8
	CRC32Q  AX, R8
	CRC32Q  BX, R8
	VZEROUPPER
	MOVL    R8, ret+40(FP)
	RET

// func step(reg uint32, p []byte) uint32
TEXT ·step(SB), NOSPLIT, $0-36
	MOVL reg+0(FP), AX
	MOVQ p_base+8(FP), SI
	MOVQ p_len+16(FP), CX
	SUBQ $8, CX
	JLT  rest

eight:
	CRC32Q (SI), AX
	ADDQ   $8, SI
	SUBQ   $8, CX
	JGE    eight

rest:
	// CX is what is left, less 8: its low bits say which pieces.
	TESTQ  $4, CX
	JZ     two
	CRC32L (SI), AX
	ADDQ   $4, SI

two:
	TESTQ  $2, CX
	JZ     one
	CRC32W (SI), AX
	ADDQ   $2, SI

one:
	TESTQ  $1, CX
	JZ     done
	CRC32B (SI), AX

done:
	MOVL AX, ret+32(FP)
	RET

// func cpuid(leaf, sub uint32) (a, b, c, d uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-24
	MOVL leaf+0(FP), AX
	MOVL sub+4(FP), CX
	CPUID
	MOVL AX, a+8(FP)
	MOVL BX, b+12(FP)
	MOVL CX, c+16(FP)
	MOVL DX, d+20(FP)
	RET

// func xgetbv() uint32
TEXT ·xgetbv(SB), NOSPLIT, $0-4
	XORL CX, CX
	XGETBV
	MOVL AX, ret+0(FP)
	RET
