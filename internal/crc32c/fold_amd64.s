#include "textflag.h"

// In messages of more than LONG bytes, what lies AHEAD is fetched into the cache: for shorter
// ones the processor's own prefetcher does better (ADR 152).
#define LONG  8192
#define AHEAD 2048

// Where foldKeys has what a polynomial without an instruction of its own is reduced by.
#define BY64 144
#define MU   152
#define POLY 160

// BARRETT makes AX the remainder of the 64 bits in AX times x^32, which is the register of
// a CRC: quotient by the reciprocal, and what that times the polynomial leaves.
#define BARRETT(A, B) \
	MOVQ AX, A; \
	MOVQ MU(DX), B; \
	PCLMULQDQ $0x00, B, A; \
	MOVQ A, BX; \
	ADDQ BX, BX; \
	XORQ AX, BX; \
	SHRQ $32, BX; \
	MOVQ BX, A; \
	MOVQ POLY(DX), B; \
	PCLMULQDQ $0x00, B, A; \
	MOVQ A, AX; \
	SHRQ $31, AX

// FETCH128 and FETCH256 fetch a block that lies ahead.
#define FETCH128 \
	PREFETCHT0 (AHEAD)(SI); \
	PREFETCHT0 (AHEAD+64)(SI)

#define FETCH256 \
	FETCH128; \
	PREFETCHT0 (AHEAD+128)(SI); \
	PREFETCHT0 (AHEAD+192)(SI)

// FOLD takes all blocks; each ends with the flags of what is left in CX.
#define FOLD(BLOCK, FETCH) \
	CMPQ CX, $LONG; \
	JLT block; \
far: \
	FETCH; \
	BLOCK; \
	CMPQ CX, $AHEAD; \
	JGT far; \
block: \
	BLOCK; \
	JNZ block

// CRC16 makes R8 the CRC32C of the 16 bytes in X, by the processor's instruction.
#define CRC16(X) \
	MOVQ X, AX; \
	PEXTRQ $1, X, BX; \
	XORL R8, R8; \
	CRC32Q AX, R8; \
	CRC32Q BX, R8

// REDUCE makes AX the CRC of the 16 bytes in X: 128 bits to 96, to 64, to 32.
#define REDUCE(X, A, B) \
	MOVQ BY64(DX), B; \
	MOVOU X, A; \
	PCLMULQDQ $0x00, B, A; \
	PSRLO $8, X; \
	PSLLO $8, X; \
	PSLLO $4, A; \
	PXOR A, X; \
	MOVOU X, A; \
	PCLMULQDQ $0x00, B, A; \
	PSLLO $4, A; \
	PXOR A, X; \
	PEXTRQ $1, X, AX; \
	BARRETT(A, B)

// BLOCK512 takes one block: each line, moved 2048 bits on, meets the one there.
#define BLOCK512 \
	VPCLMULQDQ $0x00, Z16, Z0, Z4; \
	VPCLMULQDQ $0x11, Z16, Z0, Z0; \
	VPCLMULQDQ $0x00, Z16, Z1, Z5; \
	VPCLMULQDQ $0x11, Z16, Z1, Z1; \
	VPCLMULQDQ $0x00, Z16, Z2, Z6; \
	VPCLMULQDQ $0x11, Z16, Z2, Z2; \
	VPCLMULQDQ $0x00, Z16, Z3, Z7; \
	VPCLMULQDQ $0x11, Z16, Z3, Z3; \
	VPTERNLOGQ $0x96, (SI), Z4, Z0; \
	VPTERNLOGQ $0x96, 64(SI), Z5, Z1; \
	VPTERNLOGQ $0x96, 128(SI), Z6, Z2; \
	VPTERNLOGQ $0x96, 192(SI), Z7, Z3; \
	ADDQ $256, SI; \
	SUBQ $256, CX

// ONTO512 moves a line on by the keys in Z16, to the one in TO.
#define ONTO512(Z, TO) \
	VPCLMULQDQ $0x00, Z16, Z, Z4; \
	VPCLMULQDQ $0x11, Z16, Z, Z; \
	VPTERNLOGQ $0x96, Z4, Z, TO

// func fold512(reg uint32, p []byte, k *foldKeys) uint32
TEXT ·fold512(SB), NOSPLIT, $0-44
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

	FOLD(BLOCK512, FETCH256)

	// Four lines to one.
	VBROADCASTI32X4 32(DX), Z16
	ONTO512(Z0, Z1)
	ONTO512(Z1, Z2)
	ONTO512(Z2, Z3)

	// Four lanes to one: the keys of the last lane are 0, it is added as it is.
	VMOVDQU64     80(DX), Z16
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
	VZEROUPPER
	CMPQ MU(DX), $0
	JNE  multiply
	CRC16(X4)
	MOVL R8, ret+40(FP)
	RET

multiply:
	REDUCE(X4, X5, X6)
	MOVL AX, ret+40(FP)
	RET

// MOVE256 moves four lines on by the keys in Y15: the half of each in its place, the other in Y8 to Y11.
#define MOVE256(A, B, C, D) \
	VPCLMULQDQ $0x00, Y15, A, Y8; \
	VPCLMULQDQ $0x11, Y15, A, A; \
	VPCLMULQDQ $0x00, Y15, B, Y9; \
	VPCLMULQDQ $0x11, Y15, B, B; \
	VPCLMULQDQ $0x00, Y15, C, Y10; \
	VPCLMULQDQ $0x11, Y15, C, C; \
	VPCLMULQDQ $0x00, Y15, D, Y11; \
	VPCLMULQDQ $0x11, Y15, D, D

// MEET256 adds up the halves.
#define MEET256(A, B, C, D) \
	VPXOR Y8, A, A; \
	VPXOR Y9, B, B; \
	VPXOR Y10, C, C; \
	VPXOR Y11, D, D

// FOUR256 moves four lines on by the keys in Y15, to those that lie AT bytes and more from here.
#define FOUR256(A, B, C, D, AT) \
	MOVE256(A, B, C, D); \
	VPXOR (AT)(SI), Y8, Y8; \
	VPXOR (AT+32)(SI), Y9, Y9; \
	VPXOR (AT+64)(SI), Y10, Y10; \
	VPXOR (AT+96)(SI), Y11, Y11; \
	MEET256(A, B, C, D)

// PASS256 copies two lines that lie AT bytes and more from here, and adds them to two halves.
#define PASS256(AT, X, Y) \
	VMOVDQU (AT)(SI), Y12; \
	VMOVDQU (AT+32)(SI), Y13; \
	VMOVDQU Y12, (AT)(DI); \
	VMOVDQU Y13, (AT+32)(DI); \
	VPXOR Y12, X, X; \
	VPXOR Y13, Y, Y

// COPY256 is FOUR256 that copies the lines.
#define COPY256(A, B, C, D, AT) \
	MOVE256(A, B, C, D); \
	PASS256(AT, Y8, Y9); \
	PASS256(AT+64, Y10, Y11); \
	MEET256(A, B, C, D)

// BEGIN256 takes the first 256 bytes.
#define BEGIN256 \
	VMOVDQU (SI), Y0; \
	VMOVDQU 32(SI), Y1; \
	VMOVDQU 64(SI), Y2; \
	VMOVDQU 96(SI), Y3; \
	VMOVDQU 128(SI), Y4; \
	VMOVDQU 160(SI), Y5; \
	VMOVDQU 192(SI), Y6; \
	VMOVDQU 224(SI), Y7; \
	ADDQ $256, SI; \
	SUBQ $256, CX

// LINES256 makes X4 of eight lines: to four, to two, to one; its two lanes to one. What is
// left is worth as much as the message.
#define LINES256 \
	VBROADCASTI128 16(DX), Y15; \
	ONTO256(Y0, Y4, Y8); \
	ONTO256(Y1, Y5, Y9); \
	ONTO256(Y2, Y6, Y10); \
	ONTO256(Y3, Y7, Y11); \
	VBROADCASTI128 32(DX), Y15; \
	ONTO256(Y4, Y6, Y8); \
	ONTO256(Y5, Y7, Y9); \
	VBROADCASTI128 48(DX), Y15; \
	ONTO256(Y6, Y7, Y8); \
	VMOVDQU 64(DX), X15; \
	VEXTRACTI128 $1, Y7, X4; \
	VPCLMULQDQ $0x00, X15, X7, X8; \
	VPCLMULQDQ $0x11, X15, X7, X7; \
	VPXOR X8, X4, X4; \
	VPXOR X7, X4, X4; \
	VZEROUPPER

// ONTO256 moves a line on by the keys in Y15, to the one in TO. A is scratch.
#define ONTO256(Y, TO, A) \
	VPCLMULQDQ $0x00, Y15, Y, A; \
	VPCLMULQDQ $0x11, Y15, Y, Y; \
	VPXOR A, TO, TO; \
	VPXOR Y, TO, TO

// BLOCK256 takes one block: each line, moved 2048 bits on, meets the one there.
#define BLOCK256 \
	FOUR256(Y0, Y1, Y2, Y3, 0); \
	FOUR256(Y4, Y5, Y6, Y7, 128); \
	ADDQ $256, SI; \
	SUBQ $256, CX

// BLOCKCOPY256 is BLOCK256 that copies the block.
#define BLOCKCOPY256 \
	COPY256(Y0, Y1, Y2, Y3, 0); \
	COPY256(Y4, Y5, Y6, Y7, 128); \
	ADDQ $256, DI; \
	ADDQ $256, SI; \
	SUBQ $256, CX

// func fold256(reg uint32, p []byte, k *foldKeys) uint32
TEXT ·fold256(SB), NOSPLIT, $0-44
	MOVL reg+0(FP), AX
	MOVQ p_base+8(FP), SI
	MOVQ p_len+16(FP), CX
	MOVQ k+32(FP), DX

	// The first 256 bytes, the register added to the front.
	BEGIN256
	VMOVD AX, X8
	VPXOR Y8, Y0, Y0

	VBROADCASTI128 (DX), Y15

	FOLD(BLOCK256, FETCH256)

	LINES256
	CMPQ MU(DX), $0
	JNE  multiply
	CRC16(X4)
	MOVL R8, ret+40(FP)
	RET

multiply:
	REDUCE(X4, X5, X6)
	MOVL AX, ret+40(FP)
	RET

// THREE sums up the eight bytes AT from here in each of three lanes.
#define THREE(AT) \
	CRC32Q (AT)(R9), R10; \
	CRC32Q (AT)(R9)(R13*1), R11; \
	CRC32Q (AT)(R9)(R13*2), R12

// THREES are four of them.
#define THREES(AT) \
	THREE(AT); \
	THREE(AT+8); \
	THREE(AT+16); \
	THREE(AT+24)

// LANE moves the register in R8 on by a lane, by the key in X5, to where that lane's, in R, is added.
#define LANE(R) \
	MOVQ R8, X6; \
	PCLMULQDQ $0x00, X5, X6; \
	MOVQ X6, AX; \
	XORL R8, R8; \
	CRC32Q AX, R8; \
	XORQ R, R8

// func join256(reg uint32, p *byte, lane int, by uint64, k *foldKeys) uint32
TEXT ·join256(SB), NOSPLIT, $0-44
	MOVL reg+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ lane+16(FP), R13
	MOVQ k+32(FP), DX
	MOVQ R13, CX
	SHLQ $2, CX
	LEAQ (SI)(CX*1), R9
	XORL R10, R10
	XORL R11, R11
	XORL R12, R12

	BEGIN256
	VMOVD AX, X8
	VPXOR Y8, Y0, Y0
	THREES(0)
	THREES(32)
	ADDQ  $64, R9

	VBROADCASTI128 (DX), Y15

both:
	FOUR256(Y0, Y1, Y2, Y3, 0)
	THREES(0)
	FOUR256(Y4, Y5, Y6, Y7, 128)
	THREES(32)
	ADDQ $64, R9
	ADDQ $256, SI
	SUBQ $256, CX
	JNZ  both

	LINES256
	CRC16(X4)
	MOVQ by+24(FP), X5
	LANE(R10)
	LANE(R11)
	LANE(R12)
	MOVL R8, ret+40(FP)
	RET

// func foldCopy256(reg uint32, dst *byte, p []byte, k *foldKeys) uint32
TEXT ·foldCopy256(SB), NOSPLIT, $0-52
	MOVL reg+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ p_base+16(FP), SI
	MOVQ p_len+24(FP), CX
	MOVQ k+40(FP), DX

	// The first 256 bytes, the register added to the front.
	BEGIN256
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	VMOVDQU Y2, 64(DI)
	VMOVDQU Y3, 96(DI)
	VMOVDQU Y4, 128(DI)
	VMOVDQU Y5, 160(DI)
	VMOVDQU Y6, 192(DI)
	VMOVDQU Y7, 224(DI)
	ADDQ    $256, DI
	VMOVD   AX, X8
	VPXOR   Y8, Y0, Y0

	VBROADCASTI128 (DX), Y15

	FOLD(BLOCKCOPY256, FETCH256)

	LINES256
	REDUCE(X4, X5, X6)
	MOVL AX, ret+48(FP)
	RET

// NEXT128 moves a piece of 16 bytes on by the keys in X15, to the one that lies AT bytes from
// here. A and B are scratch.
#define NEXT128(X, AT, A, B) \
	MOVOU X, A; \
	MOVOU AT(SI), B; \
	PCLMULQDQ $0x00, X15, A; \
	PCLMULQDQ $0x11, X15, X; \
	PXOR B, A; \
	PXOR A, X

// ONTO128 moves a piece on by the keys in X15, to the one in TO. A is scratch.
#define ONTO128(X, TO, A) \
	MOVOU X, A; \
	PCLMULQDQ $0x00, X15, A; \
	PCLMULQDQ $0x11, X15, X; \
	PXOR A, TO; \
	PXOR X, TO

// BLOCK128 takes one block: each piece of 16 bytes, moved 1024 bits on, meets the one there.
#define BLOCK128 \
	NEXT128(X0, 0, X8, X9); \
	NEXT128(X1, 16, X10, X11); \
	NEXT128(X2, 32, X12, X13); \
	NEXT128(X3, 48, X8, X9); \
	NEXT128(X4, 64, X10, X11); \
	NEXT128(X5, 80, X12, X13); \
	NEXT128(X6, 96, X8, X9); \
	NEXT128(X7, 112, X10, X11); \
	ADDQ $128, SI; \
	SUBQ $128, CX

// func fold128(reg uint32, p []byte, k *foldKeys) uint32
TEXT ·fold128(SB), NOSPLIT, $0-44
	MOVL reg+0(FP), AX
	MOVQ p_base+8(FP), SI
	MOVQ p_len+16(FP), CX
	MOVQ k+32(FP), DX

	// The first 128 bytes, the register added to the front.
	MOVQ  AX, X8
	MOVOU (SI), X0
	MOVOU 16(SI), X1
	MOVOU 32(SI), X2
	MOVOU 48(SI), X3
	MOVOU 64(SI), X4
	MOVOU 80(SI), X5
	MOVOU 96(SI), X6
	MOVOU 112(SI), X7
	PXOR  X8, X0
	ADDQ  $128, SI
	SUBQ  $128, CX

	MOVOU 16(DX), X15

	FOLD(BLOCK128, FETCH128)

	// Eight pieces to four, to two, to one.
	MOVOU 32(DX), X15
	ONTO128(X0, X4, X8)
	ONTO128(X1, X5, X9)
	ONTO128(X2, X6, X10)
	ONTO128(X3, X7, X11)
	MOVOU 48(DX), X15
	ONTO128(X4, X6, X8)
	ONTO128(X5, X7, X9)
	MOVOU 64(DX), X15
	ONTO128(X6, X7, X8)

	// What is left is worth as much as the message: the CRC of these 16 bytes.
	CMPQ MU(DX), $0
	JNE  multiply
	CRC16(X7)
	MOVL R8, ret+40(FP)
	RET

multiply:
	REDUCE(X7, X8, X9)
	MOVL AX, ret+40(FP)
	RET

// SUMS adds up the eight bytes AT from here in each of three lanes of 64 bytes.
#define SUMS(AT) \
	CRC32Q (AT)(SI), R10; \
	CRC32Q (AT+64)(SI), R11; \
	CRC32Q (AT+128)(SI), R12

// BESIDE is NEXT128 in a fourth lane, AT bytes from its beginning, beside as much of the three.
#define BESIDE(X, AT, A, B) \
	NEXT128(X, (AT+192), A, B); \
	SUMS(AT); \
	SUMS(AT+8)

// MOVED makes R8, the register of all lanes of three that came before, that of R10, R11 and R12, too:
// each is moved on to the end of the last one, by a multiplication, and the sum reduced.
#define MOVED \
	MOVQ R8, X8; \
	PCLMULQDQ $0x00, X14, X8; \
	MOVQ R10, X9; \
	PCLMULQDQ $0x10, X14, X9; \
	MOVQ R11, X10; \
	MOVQ 16(DI), X11; \
	PCLMULQDQ $0x00, X11, X10; \
	PXOR X9, X8; \
	PXOR X10, X8; \
	MOVQ X8, AX; \
	XORL R8, R8; \
	CRC32Q AX, R8; \
	XORL R12, R8

// BLOCKBESIDE takes one block of 256 bytes. The sums of the one before are put together meanwhile.
#define BLOCKBESIDE \
	MOVED; \
	XORL R10, R10; \
	XORL R11, R11; \
	XORL R12, R12; \
	BESIDE(X0, 0, X4, X5); \
	BESIDE(X1, 16, X6, X7); \
	BESIDE(X2, 32, X12, X13); \
	BESIDE(X3, 48, X4, X5); \
	ADDQ $256, SI; \
	SUBQ $256, CX

// FETCHFAR fetches the block that lies R13 bytes ahead.
#define FETCHFAR \
	PREFETCHT0 (SI)(R13*1); \
	PREFETCHT0 64(SI)(R13*1); \
	PREFETCHT0 128(SI)(R13*1); \
	PREFETCHT0 192(SI)(R13*1)

// func beside128(reg uint32, p []byte, m *moves, k *foldKeys) uint32
TEXT ·beside128(SB), NOSPLIT, $0-52
	MOVL reg+0(FP), R10
	MOVQ p_base+8(FP), SI
	MOVQ p_len+16(FP), CX
	MOVQ m+32(FP), DI
	MOVQ k+40(FP), DX
	XORL R8, R8
	XORL R11, R11
	XORL R12, R12

	// How far ahead: a little more in long messages.
	MOVQ    $512, R13
	MOVQ    $768, AX
	CMPQ    CX, $LONG
	CMOVQGE AX, R13

	CMPQ CX, R13
	JLE  first
	FETCHFAR

first:
	MOVOU 192(SI), X0
	MOVOU 208(SI), X1
	MOVOU 224(SI), X2
	MOVOU 240(SI), X3
	SUMS(0)
	SUMS(8)
	SUMS(16)
	SUMS(24)
	SUMS(32)
	SUMS(40)
	SUMS(48)
	SUMS(56)
	ADDQ  $256, SI
	SUBQ  $256, CX

	MOVOU (DX), X15
	MOVOU (DI), X14

	CMPQ CX, R13
	JLE  near

far:
	FETCHFAR
	BLOCKBESIDE
	CMPQ CX, R13
	JGT  far

near:
	BLOCKBESIDE
	JNZ near

	// The three lanes' register moves on to the end of the fourth.
	MOVED
	MOVQ      R8, X9
	MOVQ      16(DI), X8
	PCLMULQDQ $0x00, X8, X9
	MOVQ      X9, R10
	XORL      R9, R9
	CRC32Q    R10, R9

	// Four pieces to two, to one, which is worth as much as the fourth lane.
	MOVOU 48(DX), X15
	ONTO128(X0, X2, X8)
	ONTO128(X1, X3, X8)
	MOVOU 64(DX), X15
	ONTO128(X2, X3, X8)
	CRC16(X3)
	XORL R9, R8
	MOVL R8, ret+48(FP)
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

// func stepBy(reg uint32, p []byte, k *foldKeys) uint32
TEXT ·stepBy(SB), NOSPLIT, $0-44
	MOVL reg+0(FP), AX
	MOVQ p_base+8(FP), SI
	MOVQ p_len+16(FP), CX
	MOVQ k+32(FP), DX
	SUBQ $16, CX
	JLT  eight

	MOVQ  AX, X1
	MOVOU (SI), X0
	PXOR  X1, X0
	MOVOU 64(DX), X3
	ADDQ  $16, SI
	SUBQ  $16, CX
	JLT   reduce

sixteen:
	MOVOU     X0, X1
	MOVOU     (SI), X2
	PCLMULQDQ $0x00, X3, X1
	PCLMULQDQ $0x11, X3, X0
	PXOR      X1, X2
	PXOR      X2, X0
	ADDQ      $16, SI
	SUBQ      $16, CX
	JGE       sixteen

reduce:
	REDUCE(X0, X1, X2)

eight:
	// CX is what is left, less 16: its low bits say which pieces.
	TESTQ $8, CX
	JZ    four
	XORQ  (SI), AX
	BARRETT(X1, X2)
	ADDQ  $8, SI

four:
	TESTQ $4, CX
	JZ    done
	XORL  (SI), AX
	SHLQ  $32, AX
	BARRETT(X1, X2)

done:
	MOVL AX, ret+40(FP)
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
