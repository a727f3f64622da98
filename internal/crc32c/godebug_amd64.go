package crc32c

import "strings"

// allowed is the widest width that GODEBUG leaves, and whether it leaves CRC32: what Go's
// runtime and libraries do without for cpu.avx2=off and the like, this package does without, too.
// Of names that are for others nothing changes.
func allowed(godebug string) (w width, crc32Instruction bool) {
	w, crc32Instruction = width512, true
	for field := range strings.SplitSeq(godebug, ",") {
		name, off := strings.CutSuffix(strings.TrimSpace(field), "=off")
		if !off {
			continue
		}
		switch name {
		case "cpu.avx512f", "cpu.avx512dq", "cpu.avx512vl":
			w = min(w, width256)
		case "cpu.avx", "cpu.avx2", "cpu.vpclmulqdq":
			w = min(w, width128)
		case "cpu.pclmulqdq":
			w = noFolding
		case "cpu.sse42", "cpu.all":
			w, crc32Instruction = noFolding, false
		}
	}
	return w, crc32Instruction
}
