// Package crc32c computes CRC32C, the checksum of iSCSI digests (RFC 7143 §13.1)
// and of MPA FPDUs (RFC 5044 §4.4): the Castagnoli polynomial, sent least
// significant byte first.
//
// It is hash/crc32 with another way through long messages, where the processor
// has it, and a shorter one to the same instructions for headers; see fold_amd64.go
// and ADR 18 and 152. In GB/s, on a Xeon with AVX-512 and AMX (ADR 152):
//
//	                    library  128 bits  256 bits  512 bits  a copy
//	4 KiB, cached            30        32        62       113     150
//	1 MiB, cached            30        33        65       129      41
//	4 KiB, from memory      5.0       8.3       9.6        12      13
//	1 MiB, from memory      6.1        12        13        14      10
//
// [UpdateIEEE] is the same for Ethernet's CRC-32, which is RoCE's ICRC: the folding is
// that of any polynomial, and what is left is reduced by multiplications, as there is no
// instruction for it.
//
// [CopyIEEE] copies on the way: in the loop of 256 bits, which wider processors have too; with less
// it copies first.
//
// On other architectures it is hash/crc32, which has the CRC instructions of arm64.
//
// # The CRC is folded at every width (ADR 152)
//
// Context. Folding (ADR 18) wanted AVX-512, and every other processor had the standard library's three
// interleaved streams, which are slow over memory that is not in the cache: an AMD processor with AVX2
// and VPCLMULQDQ summed cold memory at 7 GB/s where a copy ran three times as fast, and iSER of 1 MiB
// lost 10 to 40 % to the CRC.
//
// Decision. internal/crc32c folds by 512, 256 or 128 bits: the widest that CPUID and XCR0 show
// (VPCLMULQDQ with AVX-512; VPCLMULQDQ with AVX2; PCLMULQDQ with SSE4.2, which every amd64 server
// since 2010 has). The loops are the same at each width, but for 128 bits of CRC32C (below): blocks of
// 256 bytes (128 with PCLMULQDQ), one stream from front to back, the same computed keys. In messages of 8 KiB and more, what lies 2 KiB
// ahead is fetched into the cache, as long as it belongs to the message. The width is a variable that
// Update switches on; a function value would make every header on a caller's stack escape to the heap.
//
// golang.org/x/sys/cpu reports VPCLMULQDQ for AVX-512 only, so the bits are read here, and
// GODEBUG=cpu.avx512f=off, cpu.avx2=off, cpu.vpclmulqdq=off, cpu.pclmulqdq=off, cpu.sse42=off and
// cpu.all=off, which Go's own libraries heed, are read as well. TestWidths and FuzzUpdate choose the
// width by a variable and run each that the processor has against hash/crc32; TestForced starts itself
// under those settings, each in a process of its own, where the library is without the instructions,
// too. A machine with AVX-512 tests them all.
//
// Consequences. GB/s, medians of 250 to 400 samples in turns, from 1 GiB that is walked through or
// from one piece that stays in the cache; Intel Xeon (family 6, model 167 in a virtual machine, with
// AVX-512), two cores, others computing beside it:
//
//	library         128 bits  256 bits                           512 bits     copy
//	512 B, cached   28        30                                 54           71           63
//	4 KiB, cached   30        32                                 62           113          150
//	1 MiB, cached   30        33                                 65           129          41
//	4 KiB, memory   5.0       8.3                                9.6          12           13
//	64 KiB, memory  5.4       10.4 (7.9 without fetching ahead)  11.9 (9.6)   12.5 (11.1)  11.2
//	1 MiB, memory   6.1       11.5 (8.3)                         13.2 (10.4)  13.7 (12.1)  9.5
//
// Even 128 bits win everywhere; what is shorter than 512 bytes goes through the CRC32 instruction as
// before. Fetching ahead 512 or 1024 bytes gives less from 16 KiB on; in messages of 2 and 4 KiB any
// distance loses up to a fifth or gains nothing, since what it fetches is late or, past the end, of no
// use. ADR 18 saw no gain of it, on another processor.
//
// With iSER over loopback on the same machine, each width forced at both ends, in turns, CPU-s/GiB of
// the target, medians of 6 with CRC by the library, 128, 256 and 512 bits, and without CRC: 1 MiB
// reads at depth 8 0.30, 0.19, 0.18, 0.18, 0.19; 4 KiB random reads at depth 32 0.62, 0.56, 0.52,
// 0.54, 0.66 (the least of each: 0.60, 0.52, 0.48, 0.52, 0.48). Bandwidth and IOPS could not be
// compared: the machine was busy.
//
// [UpdateWarm], for what has just been received and is in the cache, has both units of the processor work
// at once where folding is by 256 bits: two multiplications for 32 bytes take four cycles, which is
// 8 bytes a cycle, as much as three streams of CRC32 take; so of seven lanes four are folded and three
// go through the instruction, 28 KiB or 7 at a time, put together by a multiplication each. On Zen 3
// 60 KiB from the cache: 34 to 41 GB/s, 21 to 25 by folding alone. Nothing is fetched ahead there, which
// costs a seventh where there is nothing to fetch. iSER of 1 MiB over loopback, new over old, medians of
// 9 and 11 turns, IOPS and CPU of both ends: writes 1.08 and 0.97, 1.00 and 0.97; reads 1.15 and 0.96,
// 1.13 and 0.90. With all CRCs computed so, senders' of cold memory too: 1.02 and 1.02, 1.03 and 1.03.
//
// On Zen 5 (AVX-512), one run at a load of 9: 60 KiB cached 33 by 256 bits, 65 by 512, a copy 96; 1 MiB from
// memory 26, 28, and a copy 24.
//
// By 128 bits, where two multiplications for 16 bytes take Zen 2 four cycles and Intel's cores before
// Ice Lake two or four, the CRC32 instruction is as fast or faster, and both units work for every
// CRC32C, cold memory too: of each 256 bytes three lanes of 64 are summed and the fourth is folded
// (beside128). Lanes so short keep to the order of the memory, which the processor's prefetcher
// needs: four of 1 KiB, one page, sum a random cold page at 4.6 GB/s. What lies 512 bytes ahead is
// fetched in short messages, too, 768 from 8 KiB on. Zen 2, GB/s, at real-time priority, medians of 3
// (random pages: of 1 GiB, the first 256 bytes fetched some turns before, as targets do):
//
//	                        library  folded  both  a copy
//	4 KiB, cached              23.3    12.9  25.0    91
//	60 KiB, cached             23.9    13.3  27.6    53
//	4 KiB, random pages         4.4     5.3   7.0     7.7
//	60 KiB, from memory           -    11.8  13.4    14.1
//	1 MiB, from memory          6.0    12.0  13.5    13.1
//
// iSER over loopback there, both ends by both units over both by folding, medians of 5 in turns. From a
// volume that was never written to, whose zeroes are cached: 4 KiB reads at depth 32 and 128 1.06 and
// 1.07 of the IOPS with 0.94 and 0.93 of the CPU, writes at 32 1.06 and 0.94; 1 MiB reads at 8 and 32
// 1.29 and 0.80, 1.12 and 0.88, writes at 8 1.03 and 0.95. From 256 MiB of data, beside others' work at
// real-time priority: 4 KiB reads 1.10 and 1.04, 0.95 and 0.96 of the CPU; 1 MiB reads 1.01 (0.77 to
// 1.12) and 1.10, writes at 8 1.08 and 0.92.
//
// On arm64 the library stays: it has that architecture's CRC instructions, and PMULL could not be
// measured here. The CRC is not computed while copying: no path of ours copies payload in user space
// that it also sums up.
package crc32c

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
