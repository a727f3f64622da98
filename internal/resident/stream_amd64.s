#include "textflag.h"

// func stream(dst, src *byte, lines int)
//
// Whole lines, so that the processor's write-combining buffers never have to read one. SSE2,
// which every amd64 has, is as fast as AVX here: memory is the limit. Streaming stores are
// ordered with nothing, hence the fence.
TEXT ·stream(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ lines+16(FP), CX
line:
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	DECQ   CX
	JNE    line
	SFENCE
	RET
